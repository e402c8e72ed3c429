"""Per-machine privacy by `relative_privacy`, in every protocol that supports it."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cases import MACHINES, POOL, sparing

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Ball,
    Federation,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    ReducedTreeMomentum,
    Refusal,
    TreeMomentum,
    UserAGD,
    UserSGD,
    audit,
    final,
    linear_problem,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.noise.factors.tree import compose
from fedprivjax.privacy.cross_check import AGREES, entry
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.testing import PROPERTIES, Trial

PROFILE = (1.0, 4.0, 2.0, 0.5)
SHARES = np.array(PROFILE) / 4
RECORDS, ROUNDS, FEATURES, DELTA = 8, 12, 24, 1e-5
ROWS = np.random.default_rng(0).normal(size=(MACHINES, RECORDS, FEATURES))
ROWS = (ROWS / np.linalg.norm(ROWS, axis=2, keepdims=True)).astype(np.float32)
TABLE = linear_problem(ROWS, (ROWS[..., 0] > 0).astype(int), Logistic(), feature_bound=1.0, constraint=Ball(1.0))
SILENT = linear_problem(0 * ROWS, np.zeros((MACHINES, RECORDS), int), Logistic(), feature_bound=1.0)
STEP = {"clip": 0.5, "step_size": 0.1, "relative_privacy": PROFILE}
TREES = {
    "tree": TreeMomentum(mu=2.0, alpha=0.4, batch=2, trust="none", **STEP),
    "reduced": ReducedTreeMomentum(mu=2.0, alpha=0.4, batch=2, trust="none", **STEP),
}
RECORD_METHODS = {
    "minibatch": NoisyMinibatchSGD(epsilon=2.0, sampler="full", **STEP),
    "accelerated": AcceleratedMinibatchSGD(epsilon=2.0, sampler="full", **STEP),
    "local": LocalSGD(epsilon=2.0, batch=2, sampler="replacement", **STEP),
    "users": UserSGD(epsilon=2.0, trust="none", **STEP),
    "users-agd": UserAGD(epsilon=2.0, trust="none", **STEP),
}
METHODS = {**TREES, **RECORD_METHODS}


def options(protocol):
    users = {"order": "cyclic"} if protocol.minibatches is None else {}
    return {"rounds": ROUNDS if protocol.name != "LocalSGD" else 3, "delta": DELTA, **users}


def begun(protocol, problem=TABLE, **more):
    return ready(protocol, problem, Full(MACHINES), metrics=(), **options(protocol), **more)


@pytest.mark.parametrize("name", TREES)
def test_every_machine_has_its_own_mu(name):
    """Also by its releases one by one, and by dp-accounting's count of these."""
    start = begun(TREES[name])
    np.testing.assert_allclose(start.event.mus.each, 2.0 * SHARES, rtol=1e-9)
    np.testing.assert_allclose(start.guarantee.per_machine, start.event.mus.each, rtol=1e-12)
    assert start.guarantee.per_machine.argmax() == 1
    for machine in range(MACHINES):
        multipliers = start.event.releases(machine) * start.protocol.noise_std / start.event.sensitivity
        assert np.sqrt(np.sum(multipliers**-2.0)) == pytest.approx(2.0 * SHARES[machine], rel=1e-9)
    assert entry(start.event, DELTA).verdict == AGREES


@pytest.mark.parametrize("calibrate_to", ["rule", "plan"])
@pytest.mark.parametrize("name", TREES)
def test_machines_weights_take_none_beyond_its_part(name, calibrate_to):
    """No machine exceeds its fraction of the target if machines also have weights."""
    weights = (0.4, 0.1, 0.3, 0.2)
    start = begun(TREES[name].replace(calibrate_to=calibrate_to), replace(TABLE, machine_weights=weights))
    over = start.event.mus.each / (2.0 * SHARES)
    assert over.max() == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(over / over.max(), np.array(weights) / 0.4, rtol=1e-5)
    assert start.event.mus.max < 2.0


def test_every_machines_mu_is_what_one_of_its_records_moves():
    """By brute force over records: what a turned gradient adds to each node of its machine's tree, over its noise."""
    start = begun(TREES["tree"])
    protocol, alpha = start.protocol, 0.4
    nodes = sorted({compose(1, t)[-1] for t in range(1, ROUNDS + 1)})
    for machine, share in enumerate(SHARES):
        worst = 0.0
        for record in start.problem.partition_table.rows[machine]:
            rounds = 1 + np.flatnonzero((start.plan.samples[:, machine] == record).any(axis=1))
            held = [(z, rounds[(rounds >= y) & (rounds <= z)]) for y, z in nodes]
            moved = np.array([2 * 0.5 / 2 * alpha * np.sum((1 - alpha) ** (z - used)) for z, used in held])
            worst = max(worst, np.sqrt(np.sum((moved * share / protocol.noise_std) ** 2)))
        assert start.event.mus.each[machine] == pytest.approx(worst, rel=1e-6)
        assert worst == pytest.approx(2.0 * share, rel=1e-6)


@pytest.mark.parametrize("name", sparing(list(RECORD_METHODS), ["minibatch", "accelerated", "users", "users-agd"]))
def test_every_machine_has_its_own_epsilon(name):
    start = begun(RECORD_METHODS[name])
    spent = start.event.epsilons(DELTA).each
    np.testing.assert_allclose(spent, 2.0 * SHARES, rtol=1e-3)
    assert (spent <= 2.0 * SHARES).all()
    np.testing.assert_allclose(start.guarantee.per_machine, spent, rtol=1e-12)
    assert name == "local" or entry(start.event, DELTA).verdict == AGREES


@pytest.mark.parametrize("name", sparing(list(METHODS), ["users"]))
def test_every_machine_adds_the_noise_of_its_own_privacy(name):
    """Exactly the noise of a run with this machine's target for all machines, and not another machine's."""
    protocol = METHODS[name]
    each = noise_of(protocol)
    for machine, share in enumerate(SHARES):
        target = {"mu": 2.0 * share} if name in TREES else {"epsilon": 2.0 * share}
        own = noise_of(protocol.replace(relative_privacy=None, **target))
        np.testing.assert_allclose(each[:, machine], own[:, machine], atol=1e-5 * np.abs(each).max())
        other = (machine + 1) % MACHINES
        assert not 0.7 < np.abs(each[:, other]).sum() / np.abs(own[:, other]).sum() < 1.4


def noise_of(protocol):
    """Noise of the machines' messages for gradients of 0, [rounds, machines, d]."""
    view = transcript(protocol, SILENT, Full(MACHINES), **options(protocol))
    return view.messages - (view.queries[:, None] if protocol.name == "LocalSGD" else 0.0)


@pytest.mark.parametrize("name", TREES)
def test_the_mean_of_machines_noises_has_their_variances_mean(name):
    protocol = TREES[name]
    start = begun(protocol)
    expected = np.sqrt(np.sum(SHARES**-2.0)) / MACHINES
    relative = start.mechanism.inputs.relative if name == "reduced" else start.mechanism.inputs
    np.testing.assert_allclose(relative, np.full(ROUNDS, expected), rtol=1e-6)
    alike = begun(protocol.replace(relative_privacy=None, mu=None, noise_std=start.protocol.noise_std))
    variances = [one.protocol.noise_variances(one.plan.size) for one in (start, alike)]
    np.testing.assert_allclose(variances[0], np.mean(SHARES**-2.0) * variances[1], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reduced", "users"])
def test_the_sum_of_machines_noises_has_its_law(name):
    """For every sampler of the noise; 2/3 and 3/2 of its scale are rejected."""
    order = {"problem": POOL} if name.startswith("users") else {"problem": TABLE}
    trial = Trial(METHODS[name], participation=Full(MACHINES), rounds=ROUNDS, **order)
    PROPERTIES["the noise has the stated distribution"](trial)


@pytest.mark.parametrize("name", ["minibatch", "users"])
def test_a_profile_of_epsilons_can_be_swept(name):
    """Noises are in other proportions at each ε: members keep seeds and plans, and have mechanisms of their own."""
    protocol = RECORD_METHODS[name].replace(epsilon=None)
    law, more = Full(MACHINES), options(protocol)
    over = {"epsilon": [0.5, 8.0, np.inf], "clip": [0.2, 0.4]}
    start = ready_sweep(protocol.replace(clip=None), TABLE, law, over=over, seeds=2, **more)
    for member, (asked, calibrated) in enumerate(zip(start.grid, start.configurations.protocols, strict=True)):
        mechanism = next(
            one.mechanism for draw, one in enumerate(start.starts) if member in start.index[draw % len(start.index)]
        )
        if asked.target.non_private:
            continue
        each = calibrated.replace(relative_privacy=None)
        own = each.mechanism(TABLE, start.first.plan)
        np.testing.assert_array_equal(mechanism.inputs, own.inputs)
        np.testing.assert_allclose(
            start.configurations.events[member][0].epsilons(DELTA).each,
            np.max(asked.target.epsilon) * SHARES,
            rtol=1e-6,
        )
    assert [one.seeds for one in start.starts] == [seed for seed in start.seeds for _ in range(3)]
    apart = ready_sweep(protocol, TABLE, law, over={"epsilon": [0.5, 8.0]}, seeds=2, common_noise=False, **more)
    keys = [apart.arguments(draw, draw % 2).key for draw in range(4)]
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == 4
    drawn = ready_sweep(protocol, TABLE, law, over={"epsilon": [0.5, 8.0]}, seeds=2, resample=["epsilon"], **more)
    assert [one.seeds for one in drawn.starts] == [s.resample(place) for s in drawn.seeds for place in range(2)]


@pytest.mark.slow
def test_a_sweep_over_epsilon_is_a_loop():
    protocol = RECORD_METHODS["minibatch"].replace(epsilon=None)
    more = {**options(protocol), "eval_every": ROUNDS, "metrics": ["train_loss"]}
    grid = sweep(protocol, TABLE, Full(MACHINES), over={"epsilon": [0.5, 8.0]}, seeds=[3], **more)
    for epsilon in (0.5, 8.0):
        run = simulate(protocol.replace(epsilon=epsilon), TABLE, Full(MACHINES), seed=3, **more)
        found = float(final(grid, "train_loss").sel(epsilon=epsilon, seed=3))
        assert found == pytest.approx(float(run.metrics["train_loss"][-1]), rel=1e-5)


def test_a_list_of_epsilons_is_the_same_thing():
    protocol = RECORD_METHODS["minibatch"]
    listed = protocol.replace(epsilon=tuple(2.0 * SHARES), relative_privacy=None)
    one, other = begun(protocol), begun(listed)
    assert one.protocol == other.protocol
    np.testing.assert_array_equal(one.event.epsilons(DELTA).each, other.event.epsilons(DELTA).each)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_the_least_private_machine_is_audited():
    federation = Federation(Full(MACHINES), rounds=8, records=8, dimension=4)
    found = audit(METHODS["tree"].replace(step_size=None), federation, runs=1000)
    assert not found.refuted
    assert 0.3 < found.tightness < 1.05


FEW = {"clip": 1.0, "step_size": 0.1, "relative_privacy": (1.0, 2.0)}
ONE_NOISE = "relative_privacy must be left out with trust = "
REFUSED = {
    "a server's tree": (
        lambda: TreeMomentum(mu=1.0, **FEW),
        ONE_NOISE + "'server', which adds one noise for all machines",
    ),
    "a server's users": (lambda: UserSGD(trust="server", **FEW), ONE_NOISE + "'server', which adds one noise for all"),
    "users of a shuffler": (
        lambda: UserSGD(**FEW),
        ONE_NOISE + "'shuffler', which protects all messages of a round",
    ),
    "users of a pan-private server": (lambda: UserAGD(trust="pan-private", **FEW), ONE_NOISE + "'pan-private'"),
    "shuffled machines": (lambda: NoisyMinibatchSGD(batch=1, trust="shuffler", **FEW), ONE_NOISE + "'shuffler'"),
    "a list beside": (
        lambda: NoisyMinibatchSGD(epsilon=[1.0, 2.0], **FEW),
        "relative_privacy or an epsilon for each machine must be given, not both, got epsilon = ",
    ),
    "an empty one": (
        lambda: LocalSGD(batch=1, relative_privacy=[]),
        "relative_privacy must have one number for each machine, got none",
    ),
    "a number": (
        lambda: UserSGD(trust="none", relative_privacy=2.0),
        "relative_privacy must be a list of numbers, one for each machine",
    ),
    "a noise": (
        lambda: begun(RECORD_METHODS["minibatch"].replace(epsilon=None, noise_std=1.0)),
        "relative_privacy must be used with epsilon or mu here, because each machine's noise is computed from its ε, "
        "got noise_std = 1",
    ),
    **{
        f"of other machines, {name}": (
            lambda protocol=protocol: begun(protocol.replace(relative_privacy=(1.0, 2.0))),
            "relative_privacy must have one number for each of 4 machines, got 2",
        )
        for name, protocol in METHODS.items()
    },
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_where_it_cannot_be_it_is_refused(call, message):
    with pytest.raises(Refusal) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
