"""A round of the cell of `fedprivjax bench` by component: its noise, its gather of records, and its arithmetic."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line, compiled_run, side_by_side
from fedprivjax.engine.prepare import ready
from fedprivjax.noise import Silent
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key
from fedprivjax.protocols import DPMu2


@struct.dataclass
class InPlace(Problem):
    """The problem with the same examples in every round, read without a gather."""

    def take(self, samples, machine=0):
        first = slice(samples.shape[0]) if jnp.ndim(samples) else samples
        return jax.tree.map(lambda leaf: leaf[first], self.pool)


def lines() -> Iterator[Line]:
    """Yield times of covariance noise, and of the noise-free scan and its gather against a lower limit."""
    protocol, zeros = DPMu2(mu=8.0), jnp.zeros((2 * cell.CLASSES, cell.FEATURES))
    options = {"rounds": cell.ROUNDS, "metrics": cell.METRICS, "eval_every": cell.ROUNDS}
    start, silent = ready(protocol, cell.make(), cell.PARTICIPATION, **options), Silent()
    taken = side_by_side(
        {
            "covariance": cell.run_of(protocol, method="covariance"),
            "silent": compiled_run(start, mechanism=silent),
            "draw": partial(_draw, random_key(1)),
            "in place": compiled_run(start, mechanism=silent, problem=InPlace(**vars(start.problem))),
            "floor": partial(_floor, jnp.ones((cell.PER_ROUND, cell.FEATURES)), zeros),
        }
    )
    allowed = taken["silent"] + taken["draw"]
    yield Line("covariance noise, over noise-free and T·d normals", taken["covariance"] / allowed, "ratio", "≤ 1.25")
    yield Line("noise-free without the gather, over the floor", taken["in place"] / taken["floor"], "ratio", "≤ 2.5")
    yield Line("the gather, over the floor", (taken["silent"] - taken["in place"]) / taken["floor"], "times")


@jax.jit
def _draw(key):
    return jax.random.normal(key, (cell.ROUNDS, cell.CLASSES * cell.FEATURES))


@jax.jit
def _floor(examples, w):
    """Run the same number of scan steps with two matrix products and three updates only."""

    def step(state, _):
        w, x, q = state
        scores = examples @ w.T
        q = q + jnp.tile(scores[:, : cell.CLASSES].T @ examples, (2, 1))
        w = w - 0.001 * q
        return (w, x + 0.5 * (w - x), q), ()

    return jax.lax.scan(step, (w, w, w), None, length=cell.ROUNDS)[0]
