"""Networks compared with hand-written JAX code, client state, many machines, and a tree's noise.

FedAvg and DP-μ²-FL are written by hand. A million machines are compared with a hundred, and noise of a tree with
independent noise.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax import datasets
from fedprivjax.bench.timing import (
    Line,
    compiled_run,
    in_a_process,
    peak_of_run,
    ratio_side_by_side,
    seconds_by_turn,
    side_by_side,
)
from fedprivjax.datasets import Dataset, from_arrays
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import run_program
from fedprivjax.noise import Silent
from fedprivjax.plan.participation import Full, Uniform
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.networks import MLP
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import FLOAT32
from fedprivjax.protocols import DPMu2, FedAvg, Scaffold, TreeMomentum

SIDE, CLASSES, HIDDEN = 28, 10, (200, 200)
TWOS = (1000, 1000)  # two machines of this network are trained at once
MACHINES, RECORDS, BATCH, ROUNDS = 10, 600, 10, 3  # of FedAvg, all machines in every round
COHORT, FEW, MANY, STATE_STEPS = 100, 100, 10_000, 10  # of SCAFFOLD
NETWORK_MACHINES, NETWORK_COHORT, NETWORK_HIDDEN, CLIP = 100, 20, (126,), 1.0  # of DP-μ²-FL
NETWORK_ROUNDS, NETWORK_TIMED_ROUNDS = 500, 100
TIMED_ROUNDS = 20, 60  # a round's time is the difference, which excludes the first allocation of the state
PER_ROUND, LONG, SHORT, MILLION = 50, 1200, 300, 10**6
TREE_RECORDS, FEATURES = 60_000, 785


def lines() -> Iterator[Line]:
    """Yield the ratio of FedAvg's time to hand-written code, and SCAFFOLD's time and memory with many machines."""
    yield Line("FedAvg, a network of 2·10⁵ parameters, over a round by hand", ratio(), "times", "≤ 1.2")
    name = "products in the program of 110 rounds of 9 machines in twos, over 100 rounds of 10"
    yield Line(name, products_of(110, 9) / products_of(100, 10), "times", "≤ 1")
    many = f"SCAFFOLD, {MANY} machines"
    yield Line(f"{many} over {FEW}, a round of {COHORT}", in_a_process(ratio_of_machines), "times", "≤ 1.3")
    yield Line(f"{many}, peak memory beyond its state", in_a_process(beyond_state), "MB", "≤ 500")


def random_images(count: int) -> Dataset:
    """Return random images with random classes."""
    rng = np.random.default_rng(0)
    pictures = rng.random((count, SIDE, SIDE), np.float32)
    return from_arrays(pictures, rng.integers(0, CLASSES, count), feature_bound=float(SIDE), classes=CLASSES)


def random_problem(machines: int, records: int, network: Any = None) -> Problem:
    """Return a problem on random images, with equally many records on all machines."""
    rows = np.arange(machines * records).reshape(machines, records)
    return from_dataset(random_images(rows.size), network=network, partition_table=rows)


@cache
def make(rounds: int, precision: str = FLOAT32) -> ReadyRun:
    """Return a prepared run of FedAvg with d = 199,210: one pass over 600 records in batches of 10."""
    problem = random_problem(MACHINES, RECORDS, MLP(HIDDEN, activation="relu"))
    method = FedAvg(local_epochs=1, batch=BATCH, step_size=0.05)
    options: dict[str, Any] = {"rounds": rounds, "metrics": (), "eval_every": rounds, "precision": precision}
    return ready(method, problem, Uniform(MACHINES, MACHINES), **options)


def products_of(rounds: int, per_round: int) -> int:
    """Return the number of products in the program of FedAvg with a network that is trained on two machines at once."""
    problem = random_problem(MACHINES, BATCH, MLP(TWOS))
    start = ready(
        FedAvg(local_steps=1, batch=BATCH, step_size=0.05), problem, Uniform(MACHINES, per_round), rounds=rounds
    )
    return run_program.lower(start.arguments, start.static).as_text().count("dot_general")


def ratio() -> float:
    """Return the median ratio of a run's time to that of `by_hand`, measured in turn."""
    start = make(ROUNDS)
    return ratio_side_by_side(compiled_run(start), partial(by_hand, *arguments(start)), repeats=9)


def arguments(start: ReadyRun) -> tuple[Any, ...]:
    """Return the arguments of `by_hand` for a prepared run."""
    samples = jnp.asarray(start.plan.samples).reshape(*start.plan.samples.shape[:2], -1, BATCH)
    return start.problem.start, start.problem.pool, samples, jnp.float32(start.protocol.step_size)


@jax.jit
def by_hand(start: Any, pool: Any, samples: jax.Array, step: jax.Array) -> Any:
    """Run the same rounds in hand-written JAX: a scan over local steps, vmapped over machines, and a mean."""

    def loss(params, pictures, labels):
        values = pictures.reshape(pictures.shape[0], -1)
        for layer in ("Dense_0", "Dense_1"):
            values = jax.nn.relu(values @ params[layer]["kernel"] + params[layer]["bias"][None])
        scores = values @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"][None]
        each = jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return jnp.mean(each)

    def local_step(v, chosen):
        gradient = jax.grad(loss)(v, pool[0][chosen], pool[1][chosen])
        return jax.tree.map(lambda v, g: v - step * g, v, gradient), None

    def one_round(w, chosen):
        ends = jax.vmap(lambda batches: jax.lax.scan(local_step, w, batches)[0])(chosen)
        return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), ends), None

    return jax.lax.scan(one_round, start, samples)[0]


def make_scaffold(machines: int, rounds: int) -> ReadyRun:
    """Return a prepared run of SCAFFOLD with d = 7850, cohorts of 100, and 10 steps of 10 records."""
    method = Scaffold(local_steps=STATE_STEPS, batch=BATCH, sampler="replacement", step_size=0.01)
    problem = random_problem(machines, 2)
    return ready(method, problem, Uniform(machines, COHORT), rounds=rounds, metrics=(), eval_every=rounds)


def ratio_of_machines() -> float:
    """Return the ratio of a round's time with many machines to that with few, from medians over turns."""
    short, long = TIMED_ROUNDS
    sizes = [(machines, rounds) for machines in (FEW, MANY) for rounds in TIMED_ROUNDS]
    jobs = {f"{machines} {rounds}": compiled_run(make_scaffold(machines, rounds)) for machines, rounds in sizes}
    taken = seconds_by_turn(jobs, repeats=9)
    few, many = (np.median(taken[f"{machines} {long}"] - taken[f"{machines} {short}"]) for machines in (FEW, MANY))
    return float(many / few)


def beyond_state() -> float:
    """Return the peak memory of this process after one run with many machines, less its client state, in MB."""
    start = make_scaffold(MANY, TIMED_ROUNDS[0])
    return peak_of_run(start)[1] - start.costs["client_state_bytes"] / 2**20


def network_lines() -> Iterator[Line]:
    """Yield the ratio of a run's time to hand-written code, both without noise, and peak memory of a run with noise."""
    yield Line("a network of 10⁵ parameters, clipped, over a round by hand", network_ratio(), "times", "≤ 1.3")
    noise, megabytes = in_a_process(network_peak)
    yield Line(f"the same, peak memory, {noise} noise (chosen)", megabytes, "MB", "≤ 2000")


@cache
def make_network(rounds: int) -> ReadyRun:
    """Return a prepared run with M = 100, m = 20, d = 100,180: DP-μ²-FL, clipped, untrusted, on random images."""
    problem = from_dataset(random_images(NETWORK_COHORT * rounds), network=MLP(NETWORK_HIDDEN))
    options = {"rounds": rounds, "metrics": ("noise_norm",), "eval_every": rounds}
    return ready(DPMu2(mu=4.0, clip=CLIP), problem, Uniform(NETWORK_MACHINES, NETWORK_COHORT), **options)


def network_ratio() -> float:
    """Return the median ratio of a run's time to that of `network_by_hand`, measured in turn."""
    start = make_network(NETWORK_TIMED_ROUNDS)
    pool, samples = start.problem.pool, jnp.asarray(start.plan.samples)
    other = partial(network_by_hand, start.problem.start, pool, samples, jnp.float32(start.protocol.step_size))
    return ratio_side_by_side(compiled_run(start, mechanism=Silent()), other, repeats=3)


@jax.jit
def network_by_hand(start: Any, pool: Any, samples: jax.Array, step: jax.Array) -> Any:
    """Run the same rounds in hand-written JAX: two gradients per message by vmap, clipping, a sum, and a step."""

    def loss(params, picture, label):
        hidden = jnp.tanh(picture.reshape(-1) @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
        scores = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        return jax.nn.logsumexp(scores) - scores[label]

    def message(x, before, t, picture, label):
        now, then = jax.grad(loss)(x, picture, label), jax.grad(loss)(before, picture, label)
        s = jax.tree.map(lambda a, b: t * a - (t - 1) * b, now, then)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(s)))
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, CLIP / norm), s)

    def one_round(state, inputs):
        (x, before, w, q), (t, chosen) = state, inputs
        rows = jax.vmap(partial(message, x, before, t))(pool[0][chosen], pool[1][chosen])
        q = jax.tree.map(lambda q, s: q + jnp.mean(s, axis=0), q, rows)
        w = jax.tree.map(lambda w, q: w - step * q, w, q)
        return (jax.tree.map(lambda x, w: x + 2 / (t + 2) * (w - x), x, w), x, w, q), None

    zero = jax.tree.map(jnp.zeros_like, start)
    rounds = jnp.arange(1, samples.shape[0] + 1, dtype=jnp.float32)
    return jax.lax.scan(one_round, (start, start, start, zero), (rounds, samples))[0][1]


def network_peak() -> tuple[str, float]:
    """Return the chosen noise mechanism's name and the peak memory of this process after one run, in MB."""
    return peak_of_run(make_network(NETWORK_ROUNDS))


def federation_lines() -> Iterator[Line]:
    """Yield the ratio of times of a round by noise method, and peak memory with the automatic method."""
    for method, target in (("replayed", "≤ 1.3"), ("covariance", None)):
        value = in_a_process(ratio_of_methods, method)
        yield Line(f"10⁶ machines over 100, a round, {method} noise on both", value, "times", target)
    noise, megabytes = in_a_process(federation_peak)
    yield Line(f"10⁶ machines, peak memory, {noise} noise (chosen)", megabytes, "MB", "≤ 1000")


def make_federation(machines: int, method: str, rounds: int) -> ReadyRun:
    """Return a prepared run of this many machines."""
    problem = from_dataset(datasets.load("stream", features=785), constraint=Ball(0.05))
    options = {"rounds": rounds, "metrics": ("test_loss",), "eval_every": rounds, "noise_method": method}
    return ready(DPMu2(mu=8.0), problem, Uniform(machines, PER_ROUND), **options)


def ratio_of_methods(method: str) -> float:
    """Return the ratio of the time with a million machines to that with a hundred, by a noise method."""
    jobs = {str(machines): compiled_run(make_federation(machines, method, SHORT)) for machines in (100, MILLION)}
    taken = side_by_side(jobs, repeats=3)
    return taken[str(MILLION)] / taken["100"]


def federation_peak() -> tuple[str, float]:
    """Return the chosen noise mechanism's name and the peak memory of this process after one run, in MB."""
    return peak_of_run(make_federation(MILLION, "auto", LONG))


def tree_lines() -> Iterator[Line]:
    """Yield the ratios of time and of peak memory with a tree to those with independent noise."""
    yield Line("tree over independent noise, a round of 60,000", in_a_process(tree_ratio), "times", "≤ 1.2")
    with ThreadPoolExecutor() as both:  # memory does not depend on other load
        peaks = list(both.map(partial(in_a_process, tree_peak), ("tree", "independent")))
    yield Line("the same, peak memory of the process", peaks[0] / peaks[1], "times", "≤ 1.05")


def make_tree(factor: str) -> ReadyRun:
    """Return a prepared run with a noise factor."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, TREE_RECORDS, FEATURES), np.float32) / np.float32(FEATURES**0.5)
    problem = linear_problem(features, rng.integers(0, CLASSES, (1, TREE_RECORDS)), Softmax(CLASSES))
    protocol = TreeMomentum(epsilon=2.0, alpha=1 / TREE_RECORDS, clip=1.0, factor=factor)
    return ready(protocol, problem, Full(1), rounds=TREE_RECORDS, metrics=(), eval_every=TREE_RECORDS)


def tree_ratio() -> float:
    """Return the ratio of the time with a tree to that with independent noise."""
    taken = side_by_side({factor: compiled_run(make_tree(factor)) for factor in ("tree", "independent")}, repeats=3)
    return taken["tree"] / taken["independent"]


def tree_peak(factor: str) -> float:
    """Return the peak memory of this process after one run, in MB."""
    return peak_of_run(make_tree(factor))[1]
