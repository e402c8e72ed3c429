"""Adaptive clip of updates: a NumPy loop, the pair's sensitivity and noise, the quantile, refusals, and files."""

import tomllib
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from oracles import clients as oracle
from small_file import FEDERATION

from fedprivjax import (
    AdaptiveClip,
    Dropouts,
    FedAvg,
    Full,
    LinearLoss,
    Logistic,
    PoissonCohorts,
    Refusal,
    Scaffold,
    Uniform,
    WholeSpace,
    linear_problem,
    ready,
    simulate,
    sweep,
)
from fedprivjax.checks.numbers import numbers_in, with_numbers
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.experiment.build import make_protocol
from fedprivjax.experiment.read import parse
from fedprivjax.method.local_rounds import ClientState
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.round import flat_rows
from fedprivjax.problem.program import typed_jit
from fedprivjax.protocols.scaffold import Controlled

RNG = np.random.default_rng(8)
SIZES = (7, 2, 0, 4, 1)
X = RNG.normal(size=(sum(SIZES), 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5]) + RNG.normal(size=len(X)) > 0).astype(int)
METHODS = FedAvg, Scaffold
START, CLIP = 0.3, 0.7  # of the first round, and of the tested round
MACHINES = 12  # of the tests of one round
CLIPS = {
    "server": ("server", None),
    "a quiet count": ("server", 1.6),
    "none": ("none", None),
    "a loud count": ("none", 5.0),
}
Z = 2.5


class Score(LinearLoss):
    """The score itself: the gradient is the record, at any point."""

    def value(self, score, label):
        return score


def rows_of(sizes):
    rows = np.full((len(sizes), max(sizes)), -1)
    for i, (first, last) in enumerate(pairwise(np.cumsum((0, *sizes)))):
        rows[i, : last - first] = np.arange(first, last)
    return rows


# ---- without noise


def gradient(v, record):
    margin = 2 * Y[record] - 1
    return -margin * X[record] / (1 + np.exp(margin * X[record] @ v))


@pytest.mark.parametrize("unit", sparing(["machine", None], ["machine"]))
@pytest.mark.parametrize("method", sparing(METHODS, [FedAvg]))
def test_a_run_is_the_loop_over_machines(method, unit):
    """Machines drop out, and one has no records: its update is 0, and it counts as unclipped if it is present."""
    clip, rounds = AdaptiveClip(start=START, quantile=0.6, rate=0.3), 20
    protocol = method(local_epochs=2, batch=3, step_size=0.5, unit=unit, update_clip=clip, noise_std=0.0)
    problem = linear_problem(X, Y, Logistic(), partition_table=rows_of(SIZES))
    participation = Dropouts(Uniform(5, 4), 0.3)
    run = simulate(protocol, problem, participation, rounds=rounds, seed=3, metrics=["clip"], eval_every=1)
    inputs = round_inputs(run.plan)
    plan = list(zip(inputs.machine, inputs.present, inputs.samples, inputs.weights, strict=True))
    path, clips = oracle.adaptive(
        gradient,
        plan,
        np.zeros(3),
        machines=5,
        steps=protocol.minibatches.cut(run.plan.samples.shape[-1]),
        step=0.5,
        controlled=method is Scaffold,
        clip=(START, 0.6, 0.3),
        divisor=run.plan.schedule.divisor if unit == "machine" else None,
    )
    assert not run.plan.schedule.present.all()
    assert len(np.unique(clips.round(6))) > 5
    np.testing.assert_allclose(run.metrics["clip"], clips[:-1], rtol=1e-5)
    np.testing.assert_allclose(run.params, path[-1], atol=1e-5)


@pytest.mark.parametrize("quantile", sparing([0.2, 0.5, 0.8], [0.8]))
def test_the_clip_reaches_the_quantile_of_the_norms(quantile):
    """Updates are constant, of norms from 0.01 to 10; noise of the count stays below its 20th part."""
    machines, rounds = 40, 120
    norms = np.geomspace(0.01, 10, machines)
    rows = norms[:, None] * np.array([0.6, 0.8])
    problem = linear_problem(rows, np.zeros(machines), Score(), partition_table=np.arange(machines)[:, None])
    clip = AdaptiveClip(start=1.0, quantile=quantile)
    for noise_std, unit in ((0.0, None), (1.0, "machine")):
        protocol = FedAvg(local_epochs=1, step_size=1.0, noise_std=noise_std, unit=unit, update_clip=clip)
        run = simulate(protocol, problem, Full(machines), rounds=rounds, metrics=["clip"], eval_every=1)
        found = np.mean(norms[:, None] <= run.metrics["clip"][-60:], axis=0)
        assert abs(found.mean() - quantile) < 0.05, noise_std


# ---- one round with noise


def one_round(method, trust, count_noise, relation="replace-one", *, records=None):
    """Return the calibrated method, its problem, a server state with another clip than the first, and the inputs."""
    rows = np.zeros((MACHINES, 2)) if records is None else records
    table = np.arange(len(rows))[:, None]
    problem = linear_problem(rows, np.zeros(len(rows)), Score(), partition_table=table, constraint=WholeSpace())
    clip = AdaptiveClip(start=START, count_noise=count_noise)
    protocol = method(
        local_epochs=1, step_size=1.0, unit="machine", trust=trust, relation=relation, noise_std=Z, update_clip=clip
    )
    start = ready(protocol, problem, Full(len(rows)), rounds=1)
    state = start.protocol.init(problem, start.plan.size, start.key)
    return start, with_clip(state, CLIP), jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), start.inputs)


def with_clip(state, clip):
    """Return the state with another clip C_r."""
    return ClientState(state.server._replace(clip=jnp.float32(clip)), state.own)


@typed_jit
def sent(protocol, problem, state, inputs):
    """Return the participants' messages without noise, leaves [per_round, ...]."""
    return protocol.rounds.messages(problem, state, inputs, None, jax.random.key(0))


@typed_jit
def released(protocol, problem, state, inputs, totals, noises):
    """Return what the server releases with these sums and noises: changes of w (and of c), and b̃ − γ."""

    def one(total, noise):
        after = protocol.rounds.serve(problem, state.server, total, 1.0, inputs, noise, jax.random.key(0))
        moved = protocol.output(ClientState(after, ())) - protocol.output(state)
        server = after.server
        moved = jnp.concatenate([moved, server.control]) if isinstance(server, Controlled) else moved
        return moved, -jnp.log(after.clip / state.server.clip) / protocol.update_clip.rate

    return jax.vmap(one)(totals, noises)


def stated(trust, count_noise, machines):
    """Return z_Δ and σ_b by the formulas, as noises of sums."""
    bit = count_noise or (max(machines / 20, Z) if trust == "server" else Z)
    update = (Z**-2 - (2 * bit) ** -2) ** -0.5
    return np.array([update, bit]) * (1 if trust == "server" else machines**0.5)


@pytest.mark.parametrize("kind", sparing(list(CLIPS), ["a quiet count"]))
@pytest.mark.parametrize("method", METHODS)
def test_noise_of_updates_and_bits(method, kind):
    """Both have the stated scale, also against 2/3 and 3/2 of it, and are independent."""
    trust, count_noise = CLIPS[kind]
    start, state, inputs = one_round(method, trust, count_noise)
    protocol, draws = as_leaves(start.protocol.traced), 3000
    dimension = start.protocol.rounds.message_dimension(start.problem)
    assert dimension == (3 if method is FedAvg else 5)
    keys, row = jax.random.split(jax.random.key(1), draws), jax.tree.map(lambda leaf: leaf[:1], start.mechanism.inputs)
    drawn = jax.vmap(lambda key: start.mechanism.draw((), row, key[None], dimension)[1][0])(keys)
    noises = jax.vmap(lambda drawn: protocol.noise((), drawn, None)[1])(drawn)
    zero = (jnp.zeros(2), jnp.zeros(())) if method is FedAvg else ((jnp.zeros(2), jnp.zeros(2)), jnp.zeros(()))
    totals = jax.tree.map(lambda leaf: jnp.zeros((draws, *leaf.shape)), zero)
    moved, counts = released(protocol, start.problem.traced, state, inputs, totals, noises)
    update, bit = stated(trust, count_noise, MACHINES) / MACHINES
    found = np.std(moved, axis=0) / (update * CLIP), np.std(counts) / bit
    for ratio in np.concatenate([np.ravel(each) for each in found]):
        for scale in (2 / 3, 1.0, 3 / 2):
            assert (abs(scale * ratio - 1) < 5 / np.sqrt(2 * draws)) == (scale == 1.0)
    numbers = np.column_stack([moved, counts])
    apart = np.corrcoef(numbers[:, [0, 1, -1]].T)  # SCAFFOLD's c is the same kind of sum
    assert np.abs(apart - np.eye(3)).max() < 5 / np.sqrt(draws)


def candidates():
    """Records whose updates have many directions, and norms from 0 to above the clip."""
    angles = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    lengths = np.array([0.0, 0.2, 0.6, 0.95, 0.9999, 1.0001, 1.5, 40.0])
    along = np.column_stack([np.cos(angles), np.sin(angles)])
    return np.concatenate([CLIP * length * along for length in lengths])


@pytest.mark.parametrize("kind", sparing(list(CLIPS), ["none"]))
@pytest.mark.parametrize("method", METHODS)
def test_sensitivity_of_the_pair(method, kind):
    """One machine moves the released pair, in units of its noise, by at most s/z, and nearly attains it."""
    trust, count_noise = CLIPS[kind]
    rows = candidates() / (1 if method is FedAvg else 2**0.5)  # SCAFFOLD sends (Δ, −Δ) here
    start, state, inputs = one_round(method, trust, count_noise, records=rows)
    protocol, problem, count = as_leaves(start.protocol.traced), start.problem.traced, len(rows)
    messages = sent(protocol, problem, state, inputs)
    silent = jnp.zeros((count, start.protocol.rounds.message_dimension(problem)))
    moved, counts = released(protocol, problem, state, inputs, messages, silent)
    update, bit = stated(trust, count_noise, count) / (1 if trust == "server" else count**0.5) / count
    views = np.column_stack([moved / (update * CLIP), counts / bit])
    present = np.linalg.norm(views, axis=1)
    pairs = np.linalg.norm(views[:, None] - views[None], axis=2)
    for relation, found, times in (("add-or-remove-one", present, 1), ("replace-one", pairs, 2)):
        event = one_round(method, trust, count_noise, relation)[0].event
        assert event.sensitivity == times
        assert event.mu == pytest.approx(times / Z)
        assert 0.999 * event.mu < found.max() < event.mu * (1 + 1e-4)
    norms = np.linalg.norm(flat_rows(problem, messages), axis=1)
    assert 0.9999 < norms.max() < 1 + 1e-5  # the noise of messages is z on every number


def test_secret_cohorts_have_the_multiplier_of_the_pair():
    """ε of secret Poisson cohorts is that of a fixed clip with noise z·C in the sum."""
    rows = np.ones((40, 2))
    problem = linear_problem(rows, np.zeros(40), Score(), partition_table=np.arange(40)[:, None])
    settings = {"local_epochs": 1, "step_size": 1.0, "unit": "machine"}
    scheme = PoissonCohorts(40, 0.25)
    for relation in ("add-or-remove-one", "replace-one"):
        fixed = FedAvg(update_clip=START, noise_std=Z * START / 10, relation=relation, **settings)
        adaptive = FedAvg(update_clip=AdaptiveClip(start=1.0), noise_std=Z, relation=relation, **settings)
        one, other = (ready(each, problem, scheme, rounds=8).event.epsilon(1e-5) for each in (fixed, adaptive))
        assert one == pytest.approx(other, rel=1e-6)
        assert 0.1 < other < 5


def test_absent_machines_send_neither_update_nor_bit():
    start, state, inputs = one_round(FedAvg, "server", None, records=candidates())
    present = inputs._replace(present=jnp.arange(len(candidates())) % 2.0)
    update, bit = sent(as_leaves(start.protocol.traced), start.problem.traced, state, present)
    assert not np.any(update[::2])
    assert not np.any(bit[::2])
    assert np.all(bit[1::2] != 0)


def test_the_count_of_a_large_cohort_has_more_noise():
    start, _, _ = one_round(FedAvg, "server", None, records=np.ones((200, 2)))
    assert float(start.protocol.privacy._bit_factor(start.protocol.rounds._facts)) == pytest.approx(Z / (2 * 200 / 20))


# ---- settings


GIVEN = {"local_epochs": 1, "step_size": 0.1, "unit": "machine", "noise_std": 2.0}
REFUSED = {
    "quantile": ({"start": 1.0, "quantile": 1.0}, "^quantile must be between 0 and 1, got 1.0"),
    "quantile 0": ({"start": 1.0, "quantile": 0.0}, "^quantile must be between 0 and 1, got 0.0"),
    "start": ({"start": 0.0}, "^start must be positive, got 0.0"),
    "no start": ({}, "^start of AdaptiveClip must be given"),
    "rate": ({"start": 1.0, "rate": -0.2}, "^rate must be positive, got -0.2"),
    "count noise": (
        {"start": 1.0, "count_noise": 1.0},
        "^count_noise must be more than half of the noise multiplier, 1, got 1. Leave it out",
    ),
    "unknown": ({"start": 1.0, "quantil": 0.5}, "unknown setting of AdaptiveClip 'quantil', did you mean 'quantile'"),
    "correlated": (
        {"start": 1.0, "noise_schedule": "tree"},
        "^noise_schedule must be 'independent' with an AdaptiveClip, because .* got 'tree'",
    ),
    "several": ({"start": [1.0, 2.0]}, "^start must be one number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_settings(name):
    settings, message = REFUSED[name]
    given = GIVEN | {name: settings[name] for name in settings if name == "noise_schedule"}
    settings = {name: settings[name] for name in settings if name not in given}
    problem = linear_problem(X, Y, Logistic(), partition_table=rows_of(SIZES))
    with pytest.raises(Refusal, match=message) as refused:
        ready(FedAvg(update_clip=AdaptiveClip(**settings), **given), problem, Full(5), rounds=2)
    assert "\n" not in str(refused.value)


def test_numbers_are_those_of_the_clip():
    fixed, adaptive = (FedAvg(update_clip=clip, **GIVEN) for clip in (0.3, AdaptiveClip(start=0.3)))
    assert numbers_in(fixed)["update_clip"] == 0.3
    assert "update_clip" not in numbers_in(adaptive)
    names = ("start", "quantile", "rate", "count_noise")
    assert [numbers_in(adaptive)[f"update_clip.{name}"] for name in names] == [0.3, 0.5, 0.2, None]
    assert with_numbers(adaptive, {"update_clip.rate": 0.1}).update_clip == AdaptiveClip(start=0.3, rate=0.1)


@pytest.mark.slow
def test_a_sweep_of_its_numbers():
    problem = linear_problem(X, Y, Logistic(), partition_table=rows_of(SIZES))
    settings = {"rounds": 3, "metrics": ["clip"], "eval_every": 1}
    protocol = FedAvg(update_clip=AdaptiveClip(start=1.0), **GIVEN)
    swept = sweep(protocol, problem, Full(5), over={"update_clip.start": [0.1, 0.4]}, seeds=1, **settings)
    assert swept["clip"].isel(round=0).values.ravel() == pytest.approx([0.1, 0.4])


FILE = (
    'title = "adaptive clips"\n'
    + FEDERATION
    + """
[problem.partition]
kind = "iid"

[[protocol]]
name = "fedavg"
label = "adaptive"
local_epochs = 1
step_size = 0.1
unit = "machine"
update_clip = CLIP

[sweep]
epsilon = [4]
seeds = 1

[evaluation]
metrics = ["test_loss"]
select = "test_loss"
"""
)


def parsed(clip):
    return parse(tomllib.loads(FILE.replace("CLIP", clip)))


def test_a_table_is_an_adaptive_clip():
    settings = parsed("{ quantile = 0.4, start = 0.3 }\ngrid = { update_clip.rate = [0.1, 0.2] }")
    assert make_protocol(settings.protocol[0]).update_clip == AdaptiveClip(start=0.3, quantile=0.4)
    assert make_protocol(parsed("0.3").protocol[0]).update_clip == 0.3
    with pytest.raises(Refusal, match="quantile must be between 0 and 1, got 2"):
        parsed("{ quantile = 2, start = 0.3 }")


def test_a_prepared_method_is_printed_with_its_settings():
    where = linear_problem(X[:8], Y[:8], Logistic(), partition_table=np.arange(8).reshape(4, 2))
    settings = {"unit": "machine", "noise_std": 2.0, "local_epochs": 1, "step_size": 0.5}
    for clip, text in {0.25: "0.25", AdaptiveClip(start=0.25): "AdaptiveClip(start = 0.25)"}.items():
        method = FedAvg(update_clip=clip, **settings)
        printed = f"update_clip = {text}"
        assert printed in str(method)
        prepared = str(ready(method, where, Full(4), rounds=2).protocol)
        assert printed in prepared
        assert not any(name in prepared for name in ("slot_classes", "expected", "weighted"))
