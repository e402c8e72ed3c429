"""FedAvg of recurrent and attention networks compared with the faster of two rounds by hand, all compiled.

By hand, machines are computed at once (`vmap`) or one after another (`lax.map`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convolutions import BATCH, descent, make
from flax import linen as nn

from fedprivjax.bench.fedavg import CLASSES
from fedprivjax.bench.timing import Line, compiled_run, side_by_side
from fedprivjax.engine.prepare import ReadyRun

MACHINES, STEPS = 8, 4
HIDDEN, HEADS = 64, 4


class Recurrent(nn.Module):
    """An LSTM over the rows of an image, and a dense layer.

    Attributes:
        hidden: width of the LSTM.
    """

    hidden: int = 2 * HIDDEN

    @nn.compact
    def __call__(self, inputs):
        values: Any = nn.RNN(nn.LSTMCell(self.hidden))(inputs.reshape(*inputs.shape[:2], -1))
        return nn.Dense(CLASSES)(values[:, -1])


class Transformer(nn.Module):
    """Two blocks of attention over the rows of an image, their mean, and a dense layer.

    Attributes:
        hidden: width of the blocks.
    """

    hidden: int = HIDDEN

    @nn.compact
    def __call__(self, inputs):
        values = nn.Dense(self.hidden)(inputs.reshape(*inputs.shape[:2], -1))
        for _ in range(2):
            values = values + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(values))
            wide = nn.gelu(nn.Dense(4 * self.hidden)(nn.LayerNorm()(values)))
            values = values + nn.Dense(self.hidden)(wide)
        return nn.Dense(CLASSES)(jnp.mean(values, axis=1))


def lines() -> Iterator[Line]:
    """Yield the ratio of a round's time to that of the faster round by hand, for an LSTM and a transformer."""
    for name, network in (("an LSTM", Recurrent()), ("a transformer", Transformer())):
        start = make(MACHINES, STEPS, network)
        jobs: dict[str, Callable[[], Any]] = {"ours": compiled_run(start)}
        jobs |= {over.__name__: partial(by_hand(start, over), *arguments(start)) for over in (at_once, in_turn)}
        ours, *by_hands = side_by_side(jobs).values()
        title = f"FedAvg, {name}, {MACHINES} machines × {STEPS} steps of {BATCH}, over the faster of vmap and lax.map"
        yield Line(title, ours / min(by_hands), "ratio", "≤ 1.15")


def at_once(machine: Callable[[Any], Any], chosen: Any) -> Any:
    return jax.vmap(machine)(chosen)


def in_turn(machine: Callable[[Any], Any], chosen: Any) -> Any:
    return jax.lax.map(machine, chosen)


def arguments(start: ReadyRun) -> tuple[Any, ...]:
    """Return the arguments of a round by hand: parameters, records, and samples [machines, steps, batch]."""
    samples = np.asarray(start.plan.samples)[0].reshape(-1, STEPS, BATCH)
    return start.problem.start, start.problem.pool, jnp.asarray(samples)


def by_hand(start: ReadyRun, over: Callable[[Callable[[Any], Any], Any], Any]) -> Callable[..., Any]:
    """Return a compiled function with the parameters after a round."""
    model: Any = start.problem.model
    step = descent(model.function)

    def one_round(params, pool, samples):
        def machine(batches):
            return jax.lax.scan(lambda v, chosen: (step(v, pool[0][chosen], pool[1][chosen]), None), params, batches)[0]

        return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), over(machine, samples))

    return jax.jit(one_round)
