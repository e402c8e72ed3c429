import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    MLP,
    AcceleratedMinibatchSGD,
    Ball,
    DPMu2,
    Full,
    LocalSGD,
    NoisyMinibatchSGD,
    Softmax,
    Uniform,
    from_dataset,
    general_problem,
    linear_problem,
)
from fedprivjax.datasets import from_arrays
from fedprivjax.engine.prepare import ready
from fedprivjax.problem.devices import programs_for
from fedprivjax.protocols.released import ReleasedMinibatchSGD
from fedprivjax.sweeps.configurations import stacked
from fedprivjax.sweeps.execute import run_chunk
from fedprivjax.sweeps.memory import chunk_sizes, chunks, run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

RNG = np.random.default_rng(51)
FEATURES = RNG.normal(size=(60, 5))
PROBLEM = linear_problem(FEATURES, RNG.integers(0, 3, 60), Softmax(3), constraint=Ball(1.0))


@pytest.fixture(scope="module")
def job():
    """A prepared run."""
    return one_run(PROBLEM)


def one_run(problem, rounds=12, eval_every=6):
    return ready(DPMu2(mu=1.0, clip=1.0), problem, Uniform(10, 4), rounds=rounds, eval_every=eval_every)


@pytest.mark.parametrize("seed", range(30))
def test_chunks_cover_every_run_once_but_for_repeated_last_ones(seed):
    rng = np.random.default_rng(seed)
    runs = tuple(int(n) for n in rng.integers(1, 20, 2))
    sizes = tuple(int(rng.integers(1, n + 1)) for n in runs)
    seen = np.zeros(runs, int)
    for some, which in chunks(runs, sizes):
        assert (some.size, which.size) == sizes
        seen[np.ix_(np.unique(some), np.unique(which))] += 1
        for index, run in ((some, runs[0]), (which, runs[1])):
            repeats = index[1:] == index[:-1]
            assert (index[1:][repeats] == run - 1).all()  # only the last run is ever repeated
            assert (np.diff(index)[~repeats] == 1).all()
    assert (seen == 1).all()


@pytest.mark.parametrize("seed", range(30))
def test_a_budget_is_respected_and_used(job, seed):
    rng = np.random.default_rng(seed)
    per_seed, per_configuration = run_bytes(job)
    runs = tuple(int(n) for n in rng.integers(1, 40, 2))
    budget = int((per_seed + per_configuration) * 10 ** rng.uniform(0, 3))
    seeds, members = chunk_sizes(job, runs, budget, min_chunks=1)
    assert 1 <= seeds <= runs[0]
    assert 1 <= members <= runs[1]
    assert seeds * (per_seed + members * per_configuration) <= budget
    # cutting evenly wastes less than half; seeds are split before another member fits
    if (seeds, members) != runs:
        twice = 2 * seeds * (per_seed + members * per_configuration) + per_seed + 2 * seeds * per_configuration
        assert twice > budget / 2


def test_a_sweep_that_fits_is_one_chunk_if_one_is_enough(job):
    assert chunk_sizes(job, (7, 9), 2**40, min_chunks=1) == (7, 9)
    per_seed, per_configuration = run_bytes(job)
    exactly = 7 * (per_seed + 9 * per_configuration)
    assert chunk_sizes(job, (7, 9), exactly, min_chunks=1) == (7, 9)
    assert chunk_sizes(job, (7, 9), exactly - 1, min_chunks=1) == (4, 9)  # 7 in two nearly equal parts


def test_members_of_one_seed_stay_together_while_they_fit(job):
    per_seed, per_configuration = run_bytes(job)
    assert chunk_sizes(job, (7, 9), per_seed + 9 * per_configuration) == (1, 9)
    assert chunk_sizes(job, (7, 9), per_seed + 9 * per_configuration - 1) == (1, 5)


@pytest.mark.parametrize("seed", range(30))
def test_there_are_64_chunks_where_there_are_as_many_runs(job, seed):
    """Else the configurations of a draw, which share its noise, stay together."""
    rng = np.random.default_rng(seed)
    runs = tuple(int(n) for n in rng.integers(1, 80, 2))
    devices = int(rng.choice([1, 2]))
    sizes = chunk_sizes(job, runs, 2**40, devices)
    number = len(list(chunks(runs, sizes)))
    if runs[0] * runs[1] >= 64 * devices:
        assert number >= 64
    else:
        assert sizes[0] == (devices if runs[0] >= devices else 1)
        assert sizes[1] >= runs[1]
    if number >= 128 and sizes[0] > 1:  # no more than needed
        assert len(list(chunks(runs, (2 * sizes[0], sizes[1])))) < 64


def test_a_budget_below_one_run_is_refused(job):
    with pytest.raises(ValueError, match="memory_budget") as caught:
        chunk_sizes(job, (3, 4), 1)
    found = re.fullmatch(r"memory_budget must be at least (\d+) bytes for one run, got 1", str(caught.value))
    assert found
    least = int(found[1])
    assert chunk_sizes(job, (3, 4), least) == (1, 1)
    with pytest.raises(ValueError, match=rf"^memory_budget must be at least {least} bytes"):
        chunk_sizes(job, (3, 4), least - 1)


def test_what_takes_more_memory_is_counted_as_more(job):
    few = run_bytes(job)
    assert run_bytes(one_run(PROBLEM, rounds=15))[0] > few[0]  # all that the 60 examples allow
    wide = linear_problem(np.tile(FEATURES, 20), np.zeros(60, int), Softmax(3), constraint=Ball(1.0))
    assert all(more > less for more, less in zip(run_bytes(one_run(wide)), few, strict=True))
    tested = linear_problem(
        FEATURES, np.zeros(60, int), Softmax(3), constraint=Ball(1.0), test=(FEATURES, np.zeros(60, int))
    )
    assert run_bytes(one_run(tested))[1] > few[1]


def compiled_bytes(start):
    """Bytes that XLA allocates for a whole sweep as one chunk, without its arguments."""
    members, drawn = start.configurations, start.starts
    lowered = run_chunk.lower(
        jax.tree.map(lambda leaf: np.broadcast_to(leaf, (2, *leaf.shape)), members.leaves),
        (
            stacked([one.mechanism for one in drawn]),
            stacked([one.inputs for one in drawn]),
            jnp.stack([one.key for one in drawn]),
        ),
        None,
        start.first.problem.traced,
        None,
        start.static,
    )
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("kind", "participation"),
    [("linear", Uniform(400, 4)), ("linear", Uniform(400, 200)), ("general", Uniform(400, 200))],
)
@pytest.mark.slow
def test_the_estimate_is_what_the_compiled_program_takes_roughly(kind, participation):
    """The estimate includes per-machine noise memory and materialised messages."""
    features, labels = RNG.normal(size=(1000, 200)), RNG.integers(0, 3, 1000)
    loss, ball = Softmax(3), Ball(1.0)
    problem = linear_problem(features, labels, loss, constraint=ball)
    if kind == "general":
        pool = problem.pool
        problem = general_problem(
            lambda params, e: loss.value(params @ e.features, e.label), pool, problem.start, constraint=ball
        )
    protocol = DPMu2(clip=1.0, step_size=0.1)
    sizes = {"over": {"mu": [1.0, 2.0, 3.0]}, "seeds": 2, "rounds": 5}
    start = ready_sweep(protocol, problem, participation, noise_method="materialised", **sizes)
    per_seed, per_configuration = run_bytes(start.first)
    estimate = 2 * (per_seed + 3 * per_configuration)
    taken = compiled_bytes(start)
    assert estimate / 10 < taken < 2 * estimate


@pytest.mark.parametrize(
    "protocol",
    sparing(
        [
            NoisyMinibatchSGD(sampler="full", step_size=0.1),
            NoisyMinibatchSGD(batch=40, clip=1.0, step_size=0.1),
            ReleasedMinibatchSGD(batch=40, clip=1.0, clip_at="message", step_size=0.1),
            AcceleratedMinibatchSGD(batch=40, step_size=0.1),
            LocalSGD(batch=40, step_size=0.1),
        ],
        [NoisyMinibatchSGD(batch=40, clip=1.0, step_size=0.1)],
    ),
    ids=lambda protocol: f"{type(protocol).__name__}-{protocol.sampler}-{protocol.clip}",
)
def test_minibatches_and_local_steps_count(protocol):
    features, labels = RNG.normal(size=(20, 80, 200)), RNG.integers(0, 3, (20, 80))
    problem = linear_problem(features, labels, Softmax(3), feature_bound=40.0, constraint=Ball(1.0))
    start = ready_sweep(protocol, problem, Uniform(20, 10), over={"epsilon": [1.0, 2.0, 3.0]}, seeds=2, rounds=5)
    per_seed, per_configuration = run_bytes(start.first)
    estimate = 2 * (per_seed + 3 * per_configuration)
    assert estimate / 10 < compiled_bytes(start) < 2 * estimate


def dense_shares():
    """A general model of 600 parameters and machines of 80 records each."""
    features, labels = RNG.normal(size=(20, 80, 200)), RNG.integers(0, 3, (20, 80))
    linear = linear_problem(features, labels, Softmax(3), feature_bound=40.0, constraint=Ball(1.0))
    value = linear.model.value
    problem = general_problem(value, linear.pool, linear.start, lipschitz=60.0, smoothness=900.0)
    return replace(problem, partition_table=linear.partition_table, constraint=Ball(1.0))


@pytest.mark.slow
def test_gradients_of_a_dense_model_are_held_by_record_and_only_where_they_are_clipped():
    problem = dense_shares()
    options = {"over": {"epsilon": [1.0, 2.0, 3.0]}, "seeds": 2, "rounds": 5}
    estimates = []
    for clip in (None, 1.0):
        start = ready_sweep(NoisyMinibatchSGD(batch=40, clip=clip, step_size=0.1), problem, Uniform(20, 10), **options)
        per_seed, per_configuration = run_bytes(start.first)
        estimate = 2 * (per_seed + 3 * per_configuration)
        assert estimate / 10 < compiled_bytes(start) < 2 * estimate
        estimates.append(per_configuration)
    held = 4 * 4 * 10 * 40 * problem.dimension
    assert estimates[1] - estimates[0] == held


def clipped_network(clipping):
    """A sweep of a clipped network of dense layers."""
    data = from_arrays(RNG.normal(size=(80, 100)), RNG.integers(0, 3, 80), feature_bound=40.0, classes=3)
    problem = from_dataset(data, network=MLP((100,)), partition_table=np.arange(80)[None], clipping=clipping)
    protocol = NoisyMinibatchSGD(batch=40, clip=1.0, step_size=0.1)
    return ready_sweep(protocol, problem, Full(1), over={"epsilon": [1.0, 2.0, 3.0]}, seeds=2, rounds=5)


@pytest.mark.parametrize("clipping", sparing(["ghost", "rows"], []))
@programs_for("gpu")
def test_the_estimate_of_clipped_networks_is_what_is_allocated(clipping):
    start = clipped_network(clipping)
    per_seed, per_configuration = run_bytes(start.first)
    estimate = 2 * (per_seed + 3 * per_configuration)
    assert estimate / 10 < compiled_bytes(start) < 2 * estimate


@pytest.mark.slow
@programs_for("gpu")
def test_gradients_that_stay_factored_at_dense_layers_are_not_counted():
    estimates = {name: run_bytes(clipped_network(name).first)[1] for name in ("auto", "rows", "ghost")}
    assert estimates["auto"] == estimates["rows"] > 5 * estimates["ghost"]
