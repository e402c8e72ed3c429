"""FedPer: a NumPy loop, exact privacy losses of two rounds, and heads without noise, which are refused."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from dp_fedavg import ClippedUpdates
from flax import struct
from oracles import local_algorithms as oracle

import fedprivjax as fpj
from fedprivjax import FedPer, LocalEpochs, LocalGradientSteps, LocalPrivacy, Protocol, Refusal
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.algorithm import Public
from fedprivjax.testing import check_protocol

MACHINES, STEP, SIZES = 5, 0.5, (7, 2, 0, 4, 1)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(sum(SIZES), 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5]) + RNG.normal(size=len(X)) > 0).astype(int)
ROWS = fpj.datasets.table(np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))[0]
START = {"layers": {"in": RNG.normal(size=(2, 3)).astype(np.float32)}, "out": np.array([0.3, -0.2], np.float32)}
WORK = LocalEpochs(2, 3)
PRIVATE = {
    "record": {"unit": "record", "clip": 0.3},
    "machine": {"unit": "machine", "update_clip": 0.1},
    "untrusted": {"unit": "machine", "update_clip": 0.1, "trust": "none"},
}
JOINT = "what a client keeps for itself is seen by this client alone: joint differential privacy"


def loss(params, example):
    score = params["out"] @ jnp.tanh(params["layers"]["in"] @ example[0])
    return jnp.logaddexp(0.0, score * (1 - 2 * example[1]))


@cache
def problem():
    return fpj.general_problem(loss, (X, Y), start=START, partition_table=ROWS)


def slope(v, record):
    """Gradient of the loss in `in` and `out`, by hand, [8]."""
    layer, out = v[:6].reshape(2, 3), v[6:]
    inside, sign = np.tanh(layer @ X[record]), 1.0 - 2 * Y[record]
    at_score = sign / (1 + np.exp(-sign * (out @ inside)))
    return at_score * np.concatenate([np.outer(out * (1 - inside**2), X[record]).ravel(), inside])


def method(algorithm, kind=None, privacy=None, **options):
    noise = {"noise_std": 0.0 if kind is None else 0.4}
    privacy = privacy or LocalPrivacy(work=WORK, **PRIVATE.get(kind, {}))
    return Protocol(algorithm, privacy=privacy, step_size=STEP, **noise | options)


def run(algorithm, kind=None, participation=None, made=None, **options):
    participation = participation or fpj.Dropouts(fpj.Uniform(MACHINES, 4), 0.3)
    settings = {"rounds": 20, "seed": 3, "metrics": []} | options
    return fpj.simulate(method(algorithm, kind), made or problem(), participation, **settings)


def test_a_run_is_the_loop_over_machines_and_steps():
    """Shares are unequal, one machine has no records, and machines drop out."""
    found = run(FedPer(head="out", prox=0.3))
    inputs = round_inputs(found.plan)
    plan = zip(inputs.machine, inputs.present, inputs.samples, inputs.weights, strict=True)
    start = np.concatenate([START["layers"]["in"].ravel(), START["out"]]).astype(float)
    sizes = {"shared": 6, "machines": MACHINES, "steps": WORK.cut(found.plan.samples.shape[-1])}
    w, heads = oracle.fedper(slope, plan, start, step=STEP, prox=0.3, **sizes)
    np.testing.assert_allclose(found.params["layers"]["in"].ravel(), w[:6], atol=1e-5)
    np.testing.assert_allclose(found.own["out"], heads, atol=1e-5)
    np.testing.assert_array_equal(found.params["out"], START["out"])
    np.testing.assert_array_equal(found.own["out"][2], START["out"])
    assert np.linalg.norm(heads - START["out"], axis=1)[[0, 1, 3, 4]].min() > 0.1
    mine = found.model_of(3)
    np.testing.assert_array_equal(mine["out"], found.own["out"][3])
    np.testing.assert_array_equal(mine["layers"]["in"], found.params["layers"]["in"])
    assert (found.costs["sent_bits"], found.costs["client_state_bytes"]) == (32 * 6, 4 * 2 * MACHINES)


@pytest.mark.parametrize("head", ["layers", "layers/in", ("out",), ["layers/in"]])
def test_a_path_names_a_parameter_or_all_below_it(head):
    own = method(FedPer(head=head)).algorithm.own(Public.of(problem(), 1))
    assert list(own) == (["out"] if "out" in head else ["layers/in"])


@pytest.mark.parametrize("kind", sparing(list(PRIVATE), ["machine"]))
def test_the_guarantee_is_fedavgs(kind):
    """If records are protected, a head is computed from noisy steps. If machines are, it stays with its client."""
    cohorts = fpj.Uniform(MACHINES, 4)
    one, other = (
        fpj.ready(method(each, kind), problem(), cohorts, rounds=3)
        for each in (FedPer(head="out"), LocalGradientSteps())
    )
    assert one.guarantee.epsilon == other.guarantee.epsilon
    assert (JOINT in str(one.guarantee)) == (kind != "record")
    assert JOINT not in str(other.guarantee)


# ---- exact privacy losses: body and head of one number each, two machines, two rounds

CLIP, DELTA, RATE = 0.5, 0.02, 0.5


def step_of(body, head, target):
    """Return a machine's clipped message and its head after one step on (body + head − target)²/2."""
    move = STEP * (target - body - head)
    return np.clip(move, -CLIP, CLIP), head + move


def plain_problem(targets):
    def squares(params, target):
        return (params["body"][0] + params["head"][0] - target) ** 2 / 2

    start = {"body": np.zeros(1, np.float32), "head": np.zeros(1, np.float32)}
    pool, rows = np.asarray(targets, np.float32), np.arange(2)[:, None]
    return fpj.general_problem(squares, pool, start=start, partition_table=rows)


def two_rounds(targets, participation, noise_std, run_or_ready=fpj.ready):
    privacy = LocalPrivacy(work=LocalEpochs(1), unit="machine", update_clip=CLIP)
    tested = method(FedPer(head="head"), privacy=privacy, noise_std=noise_std)
    arguments = tested, plain_problem(targets), participation
    return run_or_ready(*arguments, rounds=2, metrics=[], delta=DELTA, seed=4)


def bell(value, mean, sigma):
    return np.exp(-(((value - mean) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))


def density(targets, sigma, divisor, rate, grid):
    """Return the density of the server's two noisy means, [first, second], over who takes part if `rate` < 1."""
    total, first, second = np.zeros((len(grid), len(grid))), grid[:, None], grid[None, :]
    coins = [(1, 1)] if rate == 1 else list(product((0, 1), repeat=2))
    weight = {one: np.prod([rate if coin else 1 - rate for coin in one]) for one in coins}
    for now, then in product(coins, repeat=2):
        sent, heads = zip(*(step_of(0.0, 0.0, target) for target in targets), strict=True)
        heads = [coin * head for coin, head in zip(now, heads, strict=True)]
        one = sum(coin * message for coin, message in zip(now, sent, strict=True)) / divisor
        later = [step_of(first, head, target)[0] for head, target in zip(heads, targets, strict=True)]
        other = sum(coin * message for coin, message in zip(then, later, strict=True)) / divisor
        chance = weight[now] * weight[then]
        total += chance * bell(first, one, sigma) * bell(second, other, sigma)
    return total


def exact_delta(pair, epsilon, *settings):
    """Return the δ at which two datasets are ε apart, by a sum over a fine grid."""
    grid = np.linspace(-6, 6, 601)
    one, other = (density(targets, *settings, grid) for targets in pair)
    return max(np.sum(np.maximum(p - np.exp(epsilon) * q, 0)) for p, q in ((one, other), (other, one))) * 0.02**2


def test_the_density_is_that_of_the_package():
    found = two_rounds((0.9, -0.3), fpj.Full(2), 1e-7, fpj.simulate)
    body, heads = 0.0, np.zeros(2)
    for _ in range(2):
        sent, heads = step_of(body, heads, np.array([0.9, -0.3]))
        body = body + sent.mean()
    np.testing.assert_allclose(found.own["head"][:, 0], heads, atol=1e-5)
    np.testing.assert_allclose(found.params["body"], body, atol=1e-5)


@pytest.mark.parametrize("rate", [1, RATE])
def test_two_rounds_lose_at_most_the_stated_epsilon(rate):
    """Heads that saturate the clip attain ε in public rounds; heads that turn the second message stay below it."""
    participation = fpj.Full(2) if rate == 1 else fpj.PoissonCohorts(2, RATE)
    sigma, divisor = 0.6, 2 * rate
    guarantee = two_rounds((9.0, 0.0), participation, sigma).guarantee
    assert guarantee.delta == pytest.approx(DELTA)
    saturated, turning = ((9.0, 0.0), (-9.0, 0.0)), ((0.9, -2.0), (-1.1, -2.0))
    deltas = [exact_delta(pair, guarantee.epsilon, sigma, divisor, rate) for pair in (saturated, turning)]
    assert max(deltas) <= DELTA * (1 + 1e-3)
    assert deltas[0] > 0.5 * DELTA
    assert exact_delta(saturated, guarantee.epsilon, sigma * 2 / 3, divisor, rate) > 1.5 * DELTA


def test_secret_cohorts_of_a_fixed_size_are_refused_because_a_head_shows_its_rounds():
    with pytest.raises(Refusal, match="participation must be PoissonCohorts or public with client state"):
        run(FedPer(head="out"), "machine", participation=fpj.SecretSubsets(MACHINES, 2), rounds=4)


@struct.dataclass(kw_only=True)
class Unnoised(ClippedUpdates):
    """Noise of a record's size in the mean only, which says nothing about the heads that feed later messages."""

    unit = "record"

    def event(self, facts, noise_std):
        return super().event(facts, noise_std)


def test_heads_without_noise_are_refused_if_records_are_protected():
    with pytest.raises(Refusal, match="privacy must add noise to every local step for FedPer with unit = 'record'"):
        fpj.simulate(
            method(FedPer(head="out"), privacy=Unnoised(work=WORK), noise_std=0.5),
            problem(),
            fpj.Full(MACHINES),
            rounds=2,
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", PRIVATE)
def test_the_contract_holds(kind):
    query = "the query is where gradients are taken"
    properties = (
        "stable structure and dtypes",
        "absent machines leave no trace",
        "no message exceeds the stated bound",
        "released numbers determine the server",
        "the transcript follows the run",
    )
    report = check_protocol(
        method(FedPer(head="out"), kind), problem(), fpj.Uniform(MACHINES, 4), properties=(*properties, query)
    )
    assert report.held == properties
    assert list(report.not_applicable) == [query]


def linear(**settings):
    return fpj.linear_problem(X, Y, fpj.Logistic(), partition_table=ROWS, **settings)


def ambiguous():
    start = {"a/b": np.zeros(1, np.float32), "a": {"b": np.zeros(1, np.float32)}, "c": np.zeros(1, np.float32)}
    return fpj.general_problem(lambda params, target: params["c"][0] * target, Y, start=start, partition_table=ROWS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedPer(head=0.5), "head must be the path of parameters, or a tuple of paths, got 0.5"),
        (lambda: FedPer(head=()), "head must be the path of parameters, or a tuple of paths, got a tuple"),
        (lambda: run(FedPer(head="oud")), "head must be .* got 'oud'. The parameters have: layers/in, out"),
        (lambda: run(FedPer(head="layers/i")), "head must be the path of parameters, got 'layers/i'"),
        (lambda: run(FedPer(head=("out", "layers"))), "head must leave parameters to share, got out, layers"),
        (
            lambda: run(FedPer(head="a/b"), made=ambiguous()),
            "parameters must have names of their own",
        ),
        (lambda: run(FedPer(head="out"), made=linear()), "got 'out'. The parameters have: no names, because they are"),
        (
            lambda: run(
                FedPer(head="out"),
                made=fpj.general_problem(loss, (X, Y), start=START, partition_table=ROWS, constraint=fpj.Ball(9.0)),
            ),
            "constraint must be left out for FedPer, because it would bound body and head together, got Ball",
        ),
        (
            lambda: run(FedPer(head="out"), participation=fpj.Buffered(MACHINES, 2, delays="constant")),
            "participation must be synchronous for FedPer",
        ),
    ],
)
def test_invalid_settings(make, message):
    with pytest.raises(Refusal, match=message):
        make()


@pytest.mark.slow
def test_heads_may_start_at_random():
    """`own` receives a key wherever the states are made."""

    @struct.dataclass
    class RandomHeads(FedPer):
        def own(self, public):
            head = super().own(public)
            return jax.tree.map(lambda leaf: jax.random.normal(public.key, leaf.shape), head)

    made = method(RandomHeads(head="out"))
    found = fpj.simulate(made, problem(), fpj.Full(MACHINES), rounds=2, seed=1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))
