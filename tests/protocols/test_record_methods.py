"""Methods that sample a machine's records against their pseudocode in NumPy, and their special cases."""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from cases import FEATURES, MACHINES, PARTIAL, RADIUS, RECORD_CASES, ROUNDS, SHARES, X, Y, sparing

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Ball,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Squared,
    calibrate,
    datasets,
    from_dataset,
    general_problem,
    linear_problem,
    sweep,
    transcript,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import execute, run_program
from fedprivjax.noise.interface import step_noise
from fedprivjax.plan.seeds import round_keys
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.testing.trial import PROBE

METRICS = ("train_loss", PROBE)
QUICK = ("minibatch-clipped", "minibatch-varying", "accelerated-multistage")


def start_of(protocol, case, problem=None, *, seed=3):
    settings = {"rounds": ROUNDS, "seed": seed, "eval_every": 1, "metrics": METRICS}
    return ready(protocol, case.problem if problem is None else problem, case.participation, **settings)


def gradients_of(protocol):
    """Every sample's own gradient, clipped where the protocol clips records."""
    features, labels = X.reshape(-1, FEATURES).astype(float), Y.ravel().astype(float)

    def gradients(w, samples):
        x = features[samples]
        g = (1 / (1 + np.exp(-x @ w)) - labels[samples])[..., None] * x
        if protocol.clip is None:
            return g
        return g * np.minimum(1.0, protocol.clip / np.maximum(np.linalg.norm(g, axis=-1, keepdims=True), 1e-30))

    return gradients


class Noise(NamedTuple):
    """Noise inputs of the oracle of a kind of method."""

    silent: object
    drawn: object


def in_the_sum(start, keys):
    mechanism = start.mechanism
    noise = mechanism.draw(mechanism.init(FEATURES, start.key), mechanism.inputs, keys, FEATURES)[1]
    return start.protocol.noise_std * np.asarray(noise, float)


def in_every_step(start, keys):
    steps = range(start.protocol.batch)
    rounds = zip(keys, start.mechanism.inputs, strict=True)
    return start.protocol.noise_std * np.array([[step_noise(one, step, FEATURES) for step in steps] for one in rounds])


def followed(name, start):
    """The oracle's points and its reported point, on the engine's own samples and noise."""
    kind = Noise(None, in_every_step) if name.startswith("local") else Noise(0.0, in_the_sum)
    keys = round_keys(start.key, np.arange(1, ROUNDS + 1))
    noise = kind.silent if start.protocol.noise_std == 0 else kind.drawn(start, keys)
    plan = start.plan
    steps = list(zip(plan.samples, np.asarray(plan.weights, float), plan.schedule.present.astype(float), strict=True))
    oracle = RECORD_CASES[name].oracle
    return oracle(start.protocol, start.problem, gradients_of(start.protocol), steps, np.zeros(FEATURES), noise)


@pytest.mark.parametrize("noisy", sparing([True, False], [True]), ids=["noisy", "silent"])
@pytest.mark.parametrize("name", sparing(RECORD_CASES, QUICK))
def test_the_oracle_goes_where_the_engine_goes(name, noisy):
    case = RECORD_CASES[name]
    start = start_of(case.protocol if noisy else replace(case.protocol, noise_std=0.0), case)
    points, reported = followed(name, start)
    np.testing.assert_allclose(execute(start).params, reported, atol=2e-4)
    assert np.linalg.norm(reported) > 0.05
    assert max(np.linalg.norm(point) for point in points) <= RADIUS + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minibatch-subset", "minibatch-varying", "accelerated-plain", "local"])
def test_a_sweep_that_starts_without_noise_equals_a_loop(name):
    """Also for cohorts of random size, whose realised sizes do not affect defaults."""
    case = RECORD_CASES[name]
    step = 0.5 if name == "local" else None  # local SGD has no default
    blank = replace(case.protocol, noise_std=None, step_size=step)
    settings = {"rounds": ROUNDS, "eval_every": 1, "metrics": METRICS}
    over = {"epsilon": [np.inf, 0.5]}
    grid = sweep(blank, case.problem, case.participation, over=over, seeds=[2, 5], **settings)
    for epsilon, seed in product([np.inf, 0.5], [2, 5]):
        alone = execute(start_of(replace(blank, epsilon=epsilon), case, seed=seed))
        cell = grid.sel(epsilon=epsilon, seed=seed)
        np.testing.assert_allclose(of_iterate(cell["probe"]), alone.metrics["probe"], rtol=1e-4, atol=1e-5)
        assert float(cell["noise_std"]) == pytest.approx(alone.protocol.noise_std)
        assert float(cell["step_size"]) == pytest.approx(alone.protocol.step_size)


@pytest.mark.slow
def test_trust_and_samplers_are_no_other_programs():
    before, case = None, RECORD_CASES["minibatch-subset"]
    for sampler in ("subset", "replacement", "disjoint"):
        execute(start_of(replace(case.protocol, sampler=sampler, batch=3), case))
        before = run_program._cache_size() if before is None else before
    assert run_program._cache_size() <= before


def test_every_query_of_a_multistage_run_lies_in_the_set():
    """Rounds that no stage needs are queries, too: the Lipschitz constant holds on the set alone."""
    squared = linear_problem(X, X[..., 0], Squared(1.0), feature_bound=1.0, constraint=Ball(1.0))
    protocol = AcceleratedMinibatchSGD(
        form="multistage", noise_std=0.05, strong_convexity=0.3, gap=1.0, variance=1e-4, batch=4
    )
    view = transcript(protocol, squared, Full(MACHINES), rounds=20, seed=1)
    left_over = calibrate(protocol, squared, view.plan).schedule[:, 0] == 0
    assert left_over.sum() > 3
    assert np.linalg.norm(view.queries, axis=1).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "name",
    sparing(
        ["minibatch-subset", "minibatch-clipped", "minibatch-poisson", "local", "accelerated-plain"],
        [],
    ),
)
def test_factored_and_dense_are_one(name):
    loss, pool = Logistic(), SHARES.pool
    twin = general_problem(
        lambda w, example: loss.value(w @ example.features, example.label),
        pool,
        SHARES.start,
        constraint=SHARES.constraint,
        lipschitz=SHARES.lipschitz,
        smoothness=SHARES.smoothness,
        partition_table=SHARES.partition_table.rows,
    )
    case = RECORD_CASES[name]
    assert case.participation is PARTIAL
    one, two = (execute(start_of(case.protocol, case, problem)) for problem in (SHARES, twin))
    np.testing.assert_allclose(two.metrics["probe"], one.metrics["probe"], rtol=1e-4, atol=1e-5)


SAMPLED = {"full": False, "disjoint": False, "subset": True, "poisson": True, "replacement": True}
CASES = [(NoisyMinibatchSGD, name) for name in SAMPLED] + [(LocalSGD, "disjoint"), (LocalSGD, "replacement")]


@pytest.mark.parametrize(("method", "sampler"), CASES)
def test_a_theorem_says_subsampled_only_if_records_are_sampled(method, sampler):
    table = np.arange(100).reshape(2, 50)
    problem = from_dataset(datasets.load("digits"), partition_table=table, constraint=Ball(8.0))
    settings = {"epsilon": 2.0, "clip": 1.0, "step_size": 0.1, "sampler": sampler}
    batch = {} if sampler == "full" else {"batch": 5}
    theorem = ready(method(**settings, **batch), problem, Full(2), rounds=2).guarantee.theorem
    assert ("composed profile of the subsampled Gaussian mechanism" in theorem) is SAMPLED[sampler]
    assert ("adaptive composition of Gaussian mechanisms" in theorem) is not SAMPLED[sampler]
