"""Local work and client state: a round of FedAvg compared with hand-written JAX code, and SCAFFOLD's state."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.bench.timing import Line, compiled_run, in_a_process, peak_of_run, ratio_side_by_side, seconds_by_turn
from fedprivjax.datasets import from_arrays
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.compiled import FLOAT32
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Uniform
from fedprivjax.problem.networks import MLP
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import FedAvg, Scaffold

SIDE, CLASSES, HIDDEN = 28, 10, (200, 200)
MACHINES, RECORDS, BATCH, ROUNDS = 10, 600, 10, 3  # of FedAvg, all machines in every round
COHORT, FEW, MANY, STATE_STEPS = 100, 100, 10_000, 10  # of SCAFFOLD
TIMED_ROUNDS = 20, 60  # a round's time is the difference, which excludes the first allocation of the state


def lines() -> Iterator[Line]:
    """Yield the ratio of FedAvg's time to hand-written code, and SCAFFOLD's time and memory with many machines."""
    yield Line("FedAvg, a network of 2·10⁵ parameters, over a round by hand", ratio(), "times", "≤ 1.2")
    many = f"SCAFFOLD, {MANY} machines"
    yield Line(f"{many} over {FEW}, a round of {COHORT}", in_a_process(ratio_of_machines), "times", "≤ 1.3")
    yield Line(f"{many}, peak memory beyond its state", in_a_process(beyond_state), "MB", "≤ 500")


def random_problem(machines: int, records: int, network: Any = None) -> Problem:
    """Return a problem on random images, with equally many records on all machines."""
    rng = np.random.default_rng(0)
    pictures = rng.random((machines * records, SIDE, SIDE), np.float32)
    data = from_arrays(pictures, rng.integers(0, CLASSES, len(pictures)), feature_bound=float(SIDE), classes=CLASSES)
    rows = np.arange(machines * records).reshape(machines, records)
    return from_dataset(data, network=network, partition_table=rows)


@cache
def make(rounds: int, precision: str = FLOAT32) -> ReadyRun:
    """Return a prepared run of FedAvg with d = 199,210: one pass over 600 records in batches of 10."""
    problem = random_problem(MACHINES, RECORDS, MLP(HIDDEN, activation="relu"))
    method = FedAvg(local_epochs=1, batch=BATCH, step_size=0.05)
    options: dict[str, Any] = {"rounds": rounds, "metrics": (), "eval_every": rounds, "precision": precision}
    return ready(method, problem, Uniform(MACHINES, MACHINES), **options)


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
