"""FedAvg of a convolutional network compared with a Python loop of jitted steps, and a sweep with single runs.

XLA's convolutions are fast in such a loop on a CPU, and slow inside a compiled one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from measures import ratio_side_by_side

from fedprivjax.bench.fedavg import CLASSES, random_problem
from fedprivjax.bench.timing import Line, compiled_run
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Full
from fedprivjax.protocols import FedAvg
from fedprivjax.sweeps.execute import execute
from fedprivjax.sweeps.prepare import ready_sweep

BATCH, SEEDS = 20, 4
SMALL, LARGE = (2, 2), (10, 20)  # machines and local steps of a round
METHOD: Any = FedAvg(local_epochs=1, batch=BATCH, step_size=0.05)
OPTIONS: dict[str, Any] = {"rounds": 1, "metrics": (), "eval_every": 1}


class Network(nn.Module):
    """Two convolutions, each with pooling, and two dense layers: 962,926 parameters for 28×28 images.

    Attributes:
        channels: output channels of each convolution.
        hidden: width of the hidden dense layer.
    """

    channels: tuple[int, ...] = (32, 64)
    hidden: int = 300

    @nn.compact
    def __call__(self, inputs):
        values = inputs
        for width in self.channels:
            values = nn.max_pool(nn.relu(nn.Conv(width, (3, 3))(values)), (2, 2), strides=(2, 2))
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(self.hidden)(values.reshape(values.shape[0], -1))))


def lines() -> Iterator[Line]:
    """Yield the ratios of a round's time to the loop's, and of a sweep's time to that of as many runs."""
    for (machines, steps), repeats in ((SMALL, 9), (LARGE, 3)):
        start = make(machines, steps, Network())
        ratio = ratio_side_by_side(compiled_run(start), partial(by_hand, start), repeats=repeats)
        name = f"FedAvg, flax convolutions, {machines} machines × {steps} steps of {BATCH}, over a loop of jitted steps"
        yield Line(name, ratio, "ratio", "≤ 1.2")
    start = make(*SMALL, Network())
    sweep = ready_sweep(METHOD, start.problem, Full(SMALL[0]), seeds=SEEDS, **OPTIONS)
    run = compiled_run(start)
    ratio = ratio_side_by_side(lambda: execute(replace(sweep)).to_dict(), lambda: [run() for _ in range(SEEDS)])
    yield Line(f"the same, a sweep of {SEEDS} seeds over {SEEDS} runs", ratio, "ratio", "≤ 1.3")


def make(machines: int, steps: int, network: nn.Module) -> ReadyRun:
    """Return a prepared round of FedAvg in which every machine passes once over its records."""
    return ready(METHOD, random_problem(machines, steps * BATCH, network), Full(machines), **OPTIONS)


def by_hand(start: ReadyRun) -> Any:
    """Return the parameters after the same round, from one call of a compiled function for each local step."""
    pool, samples = start.problem.pool, np.asarray(start.plan.samples)[0]
    model: Any = start.problem.model
    step = jitted_step(model.function)

    def end(batches):
        params = start.problem.start
        for chosen in batches.reshape(-1, BATCH):
            params = step(params, pool[0][chosen], pool[1][chosen])
        return params

    return jax.tree.map(lambda *ends: sum(ends) / len(ends), *map(end, samples))


@cache
def jitted_step(loss: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a compiled step of `descent`."""
    return jax.jit(descent(loss))


def descent(loss: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a step of gradient descent on the mean loss of a batch."""

    def mean(params, pictures, labels):
        return jnp.mean(jax.vmap(loss, in_axes=(None, 0))(params, (pictures, labels)))

    def step(params, pictures, labels):
        gradient = jax.grad(mean)(params, pictures, labels)
        return jax.tree.map(lambda v, g: v - METHOD.step_size * g, params, gradient)

    return step
