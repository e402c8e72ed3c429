"""Machines with different privacy levels: each μ is its fraction of the largest, and one scale is swept."""

import jax
import numpy as np
import pytest
from cases import MACHINES, POOL, SOME_MACHINES

from fedprivjax import (
    DPMu2,
    Dropouts,
    Federation,
    Full,
    Given,
    NoisySGD,
    Refusal,
    StaleMomentum,
    Uniform,
    audit,
    simulate,
    sweep,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.method.algorithm import MEAN
from fedprivjax.noise import chooser
from fedprivjax.plan.seeds import round_keys
from fedprivjax.privacy import gdp
from fedprivjax.sweeps.execute import run_chunk

PROFILE = (1.0, 4.0, 2.0, 0.5)
SHARES = np.array(PROFILE) / 4
SETTINGS = {"clip": 0.5, "step_size": 0.02, "relative_privacy": PROFILE}
METHODS = {
    "mu2": DPMu2(mu=3.0, **SETTINGS),
    "mu2-gap": DPMu2(mu=3.0, noise_schedule="gap", **SETTINGS),
    "mu2-fresh": DPMu2(mu=3.0, cancel=False, **SETTINGS),
    "sgd": NoisySGD(mu=3.0, **SETTINGS),
    "stale": StaleMomentum(mu=3.0, **SETTINGS),
}


@pytest.mark.parametrize("law", [SOME_MACHINES, Uniform(MACHINES, 2)], ids=["given", "uniform"])
@pytest.mark.parametrize("name", METHODS)
def test_every_machine_has_its_own_mu(name, law):
    start = ready(METHODS[name], POOL, law, rounds=12, seed=2, metrics=())
    np.testing.assert_allclose(start.event.mus.each, 3.0 * SHARES, rtol=1e-9)
    assert start.guarantee.per_machine.argmax() == 1
    multipliers = start.event.releases(3) * start.protocol.noise_std / start.event.sensitivity
    assert np.sqrt(np.sum(multipliers**-2.0)) == pytest.approx(3.0 * SHARES[3], rel=1e-9)


@pytest.mark.parametrize("method", [DPMu2, StaleMomentum])
@pytest.mark.parametrize("target", [{"mu": 3.0}, {"epsilon": 8.0}])
def test_noise_for_the_plan_takes_no_machine_beyond_its_part(method, target):
    """If noise differs by message, the most frequent participant need not have the largest μ."""
    protocol = method(noise_schedule=tuple(range(1, 13)), calibrate_to="plan", **target, **SETTINGS)
    asked = 3.0 if "mu" in target else gdp.mu(8.0, 1e-5)
    rows = np.array([[0, 2], [0, 2], [0, 3], [0, 2], [0, 1], [0, 3]])
    start = ready(protocol, POOL, Given(MACHINES, rows), metrics=())
    over = start.event.mus.each / (asked * SHARES)
    assert over.max() == pytest.approx(1.0, rel=1e-5)
    assert over[1] < 0.99  # who has the largest part is not who decides


def test_dropouts_leave_it_as_it_is():
    start = ready(METHODS["mu2"], POOL, Dropouts(Full(MACHINES), 0.4), rounds=12, metrics=())
    np.testing.assert_allclose(start.event.mus.each, 3.0 * SHARES, rtol=1e-9)


def noise_of(protocol):
    """Distribution of the noise of a method's messages."""
    return protocol.privacy.noise_of(MEAN) if isinstance(protocol, NoisySGD) else protocol.message_noise


@pytest.mark.parametrize("name", METHODS)
def test_every_machine_adds_its_own_noise(name):
    """At a machine's first message the noise is σ·r/share, two-sided; another machine's share is refused."""
    start = ready(METHODS[name], POOL, SOME_MACHINES, rounds=12, metrics=(), noise_method="materialised")
    plain = ready(METHODS[name].replace(relative_privacy=None), POOL, SOME_MACHINES, rounds=12, metrics=())
    relative = noise_of(plain.protocol).relative(plain.plan)
    dimension, seen = 20_000, set()
    for t, machines in enumerate(start.plan.schedule.participants):
        inputs = jax.tree.map(lambda leaf, t=t: leaf[t], start.mechanism.inputs)
        memory = start.mechanism.message_memory(dimension, jax.random.key(0))
        key = round_keys(jax.random.key(0), np.array([t + 1]))[0]
        added = np.asarray(start.mechanism.message_noise(memory, inputs, key, dimension)[1], np.float64)
        for j in (0, 1):
            ratio = added[j].std() * SHARES[machines[j]] / relative[t, j]
            assert abs(ratio - 1) < 5 / np.sqrt(2 * dimension)
            seen.add(int(machines[j]))
    assert seen == set(range(MACHINES))


@pytest.mark.slow
def test_members_of_a_sweep_share_one_factor_and_one_program(monkeypatch):
    factors, factor = [], chooser.factor
    monkeypatch.setattr(chooser, "factor", lambda *given: factors.append(given) or factor(*given))
    protocol = DPMu2(clip=0.5, step_size=0.02, relative_privacy=PROFILE)
    before = run_chunk._cache_size()
    grid = sweep(
        protocol, POOL, SOME_MACHINES, over={"mu": [1.0, 2.0, 4.0]}, seeds=1, rounds=12, eval_every=12, delta=1e-5
    )
    assert len(factors) == 1
    assert run_chunk._cache_size() == before + 1
    assert grid.sizes["mu"] == 3


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (
            lambda: DPMu2(mu=1.0, trust="server", relative_privacy=PROFILE),
            "relative_privacy must be left out with trust = 'server'",
        ),
        (
            lambda: NoisySGD(mu=1.0, relative_privacy="low"),
            "relative_privacy must be a list of numbers, one for each machine, got 'low'",
        ),
        (lambda: NoisySGD(mu=1.0, relative_privacy=(1.0, 0.0)), "relative_privacy must be positive"),
        (
            lambda: simulate(DPMu2(mu=1.0, clip=1.0, relative_privacy=(1.0, 2.0)), POOL, SOME_MACHINES),
            "each of 4 machines, got 2",
        ),
    ],
)
def test_refusals(protocol, message):
    with pytest.raises(Refusal, match=message):
        protocol()


ROWS = np.array([[0, 1], [2, 3], [1, 2], [3, 0], [1, 3], [0, 2]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("participation", "least"),
    [(Given(4, ROWS), 0.6), (Dropouts(Given(4, ROWS), 0.3), 0.3)],
    ids=["all", "dropouts"],
)
@pytest.mark.usefixtures("small_audits")
def test_the_least_private_machine_is_audited(participation, least):
    """The proved bound stays below the claim, and is close to it if the machine sends all planned messages."""
    protocol = DPMu2(mu=2.0, clip=0.5, relative_privacy=PROFILE)
    found = audit(protocol, Federation(participation, rounds=6, records=12, dimension=4), runs=2000)
    assert not found.refuted
    assert least < found.tightness < 1.05
