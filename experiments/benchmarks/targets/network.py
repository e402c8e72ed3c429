"""DP-μ²-FL with a network compared with hand-written JAX code, and its peak memory."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from measures import peak_of_run, ratio_side_by_side

from fedprivjax.bench.fedavg import random_images
from fedprivjax.bench.timing import Line, compiled_run, in_a_process
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.noise import Silent
from fedprivjax.plan.participation import Uniform
from fedprivjax.problem.networks import MLP
from fedprivjax.protocols import DPMu2

MACHINES, COHORT, HIDDEN, CLIP = 100, 20, (126,), 1.0
ROUNDS, TIMED_ROUNDS = 500, 100


def lines() -> Iterator[Line]:
    """Yield the ratio of a run's time to hand-written code, both without noise, and peak memory of a run with noise."""
    yield Line("a network of 10⁵ parameters, clipped, over a round by hand", ratio(), "ratio", "≤ 1.3")
    noise, megabytes = in_a_process(peak)
    yield Line(f"the same, peak memory, {noise} noise (chosen)", megabytes, "MB", "≤ 2000")


@cache
def make(rounds: int) -> ReadyRun:
    """Return a prepared run with M = 100, m = 20, d = 100,180: DP-μ²-FL, clipped, untrusted, on random images."""
    problem = from_dataset(random_images(COHORT * rounds), network=MLP(HIDDEN))
    options = {"rounds": rounds, "metrics": ("noise_norm",), "eval_every": rounds}
    return ready(DPMu2(mu=4.0, clip=CLIP), problem, Uniform(MACHINES, COHORT), **options)


def ratio() -> float:
    """Return the median ratio of a run's time to that of `by_hand`, measured in turn."""
    start = make(TIMED_ROUNDS)
    pool, samples = start.problem.pool, jnp.asarray(start.plan.samples)
    other = partial(by_hand, start.problem.start, pool, samples, jnp.float32(start.protocol.step_size))
    return ratio_side_by_side(compiled_run(start, mechanism=Silent()), other, repeats=3)


@jax.jit
def by_hand(start: Any, pool: Any, samples: jax.Array, step: jax.Array) -> Any:
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


def peak() -> tuple[str, float]:
    """Return the chosen noise mechanism's name and the peak memory of this process after one run, in MB."""
    return peak_of_run(make(ROUNDS))
