"""FedAvg of a network on random images, and the same rounds in hand-written JAX code."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.datasets import Dataset, from_arrays
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Uniform
from fedprivjax.problem.networks import MLP
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import FLOAT32
from fedprivjax.protocols import FedAvg

SIDE, CLASSES, HIDDEN = 28, 10, (200, 200)
MACHINES, RECORDS, BATCH = 10, 600, 10  # all machines in every round


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
