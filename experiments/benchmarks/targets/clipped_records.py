"""Networks with every record's gradient clipped, compared with hand-written JAX code: time and memory."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measures import peak_of_run, ratio_side_by_side

from fedprivjax.bench.fedavg import random_problem
from fedprivjax.bench.timing import Line, compiled_run, in_a_process
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Full
from fedprivjax.problem.dense_layers import with_clipping
from fedprivjax.problem.models import Clipping
from fedprivjax.problem.networks import CNN, MLP
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import NoisyMinibatchSGD

RECORDS, ROUNDS, CLIP, STEP = 512, 3, 1.0, 0.1
DENSE, DENSE_BATCH = MLP((512, 512)), 64
PICTURES, PICTURES_BATCH = CNN((32, 64)), 32


def lines() -> Iterator[Line]:
    """Yield the ratios of a run's time to hand-written code, and the memory that clipping takes."""
    name = f"clipped MLP 784-512-512-10, batch {DENSE_BATCH}"
    yield Line(f"{name}, over ghost norms by hand", ratio(DENSE, DENSE_BATCH, by_ghost), "ratio", "≤ 1.5")
    rows = ratio(DENSE, DENSE_BATCH, by_scan, clipping="rows")
    yield Line("the same by rows, over a scan by hand", rows, "ratio", "≤ 1.15")
    clipped, plain = (in_a_process(peak, clip) for clip in ("clipped", "plain"))
    yield Line("the same, peak memory beyond a run without a clip", clipped - plain, "MB", "≤ 60")
    of_pictures = ratio(PICTURES, PICTURES_BATCH, by_vmap)
    yield Line(f"clipped CNN, batch {PICTURES_BATCH}, over a vmap by hand", of_pictures, "ratio", "≤ 1.15")


def make(network: Any, batch: int, clip: float | None = CLIP, clipping: Clipping = "auto") -> ReadyRun:
    """Return a prepared run of minibatch SGD without noise on one machine."""
    method = NoisyMinibatchSGD(clip=clip, batch=batch, epsilon=np.inf, step_size=STEP)
    problem = with_clipping(random_problem(1, RECORDS, network), clipping)
    return ready(method, problem, Full(1), rounds=ROUNDS, metrics=(), eval_every=ROUNDS)


def ratio(network: Any, batch: int, by_hand: Any, clipping: Clipping = "auto") -> float:
    """Return the median ratio of a run's time to that of a function such as `by_scan`, measured in turn."""
    start = make(network, batch, clipping=clipping)
    return ratio_side_by_side(compiled_run(start), partial(by_hand(start.problem), *arguments(start)))


def arguments(start: ReadyRun) -> tuple[Any, Any, jax.Array]:
    """Return the arguments of a run by hand: parameters, records and the rounds' samples."""
    return start.problem.start, start.problem.pool, jnp.asarray(start.plan.samples)[:, 0]


def by_scan(problem: Problem) -> Any:
    """Return the same run in hand-written JAX, which adds one record's clipped gradient after another."""
    clipped = of_record(problem)

    def total(w, examples):
        zero = jax.tree.map(jnp.zeros_like, w)
        return jax.lax.scan(lambda sums, one: (jax.tree.map(jnp.add, sums, clipped(w, one)), None), zero, examples)[0]

    return by_hand(total)


def by_vmap(problem: Problem) -> Any:
    """Return the same run in hand-written JAX, which clips the gradients of all records at once."""
    clipped = of_record(problem)

    def total(w, examples):
        return jax.tree.map(lambda rows: jnp.sum(rows, axis=0), jax.vmap(partial(clipped, w))(examples))

    return by_hand(total)


def by_ghost(problem: Problem) -> Any:
    """Return the same run of an MLP in hand-written JAX, with norms from the inputs of layers and their gradients."""
    layers = sorted(problem.start)

    def total(w, examples):
        pictures, labels = examples

        def losses(shifts):
            inputs, scores = [], pictures.reshape(labels.size, -1)
            values = scores
            for layer, shift in zip(layers, shifts, strict=True):
                inputs.append(values)
                scores = values @ w[layer]["kernel"] + w[layer]["bias"][None] + shift
                values = jnp.tanh(scores)
            each = jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
            return jnp.sum(each), inputs

        zeros = [jnp.zeros((labels.size, w[layer]["bias"].size)) for layer in layers]
        residuals, inputs = jax.grad(losses, has_aux=True)(zeros)
        pairs = list(zip(inputs, residuals, strict=True))
        norms = jnp.sqrt(sum(jnp.sum(r**2, axis=1) * (1 + jnp.sum(x**2, axis=1)) for x, r in pairs))
        factor = jnp.minimum(1.0, CLIP / norms)[:, None]
        sums = [{"kernel": x.T @ (factor * r), "bias": jnp.sum(factor * r, axis=0)} for x, r in pairs]
        return dict(zip(layers, sums, strict=True))

    return by_hand(total)


def of_record(problem: Problem) -> Any:
    """Return the function of parameters and one record that is the record's clipped gradient."""

    def clipped(w, example):
        g = jax.grad(problem.model.value)(w, example)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(g)))
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, CLIP / norm), g)

    return clipped


def by_hand(total: Any) -> Any:
    """Return a compiled run of SGD, which returns the mean of its iterates, from the sum of a batch's gradients."""

    def one_round(pool, state, inputs):
        (w, mean), (r, chosen) = state, inputs
        mean = jax.tree.map(lambda mean, w: mean + (w - mean) / r, mean, w)
        g = total(w, jax.tree.map(lambda leaf: leaf[chosen], pool))
        return (jax.tree.map(lambda w, g: w - STEP * g / chosen.size, w, g), mean), None

    def run(start, pool, samples):
        rounds = jnp.arange(1.0, samples.shape[0] + 1)
        return jax.lax.scan(partial(one_round, pool), (start, start), (rounds, samples))[0][1]

    return jax.jit(run)


def peak(clip: str) -> float:
    """Return the peak memory of this process after one "clipped" or "plain" run, in MB."""
    return peak_of_run(make(DENSE, DENSE_BATCH, CLIP if clip == "clipped" else None))[1]
