"""Property of costs: the number of gradients per round is the one that the protocol states."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.interface import as_leaves
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.testing.trial import Trial

FEW = 2  # rounds to run


@dataclass(frozen=True, eq=False)
class Counting:
    """A model that counts the computed gradients of one example at one point.

    Attributes:
        model: wrapped model.
        asked: number of computed gradients, under the key "gradients".
    """

    model: Any
    asked: Counter = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def gradients(self, points, example):
        self._count(len(points), example)
        return self.model.gradients(points, example)

    def summed_gradients(self, points, examples, weights=None):
        self._count(len(points) * jax.tree.leaves(examples)[0].shape[0], examples)
        return self.model.summed_gradients(points, examples, weights)

    def _count(self, number: int, examples) -> None:
        """Add `number` to the count. Under vmap, the callback runs once per example, since its argument is mapped."""

        def add(_):
            self.asked["gradients"] += number

        jax.debug.callback(add, jax.tree.leaves(examples)[0])


def number_of_gradients_is_as_stated(trial: Trial) -> None:
    """Check that each record use of the first rounds takes `gradients_per_use` − `gradients_spared` gradients.

    A protocol that takes no gradients of the problem's model passes.
    """
    start = trial.start
    counting = Counting(start.problem.model)
    problem = replace(start.problem.traced, model=counting)
    protocol, inputs = as_leaves(start.protocol.traced), round_inputs(start.plan)
    stated = start.costs["gradients_per_use"] - start.protocol.gradients_spared
    state = protocol.init(problem, start.plan.size, protocol_key(start.key))
    one_round = jax.jit(lambda protocol, state, inputs, key: protocol.round(problem, state, inputs, None, key)[0])
    for t in range(min(FEW, trial.rounds)):
        of_round = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        counting.asked.clear()
        key = protocol_key(start.key, of_round.round)
        state = jax.block_until_ready(one_round(protocol, state, of_round, key))
        jax.effects_barrier()
        counted, records = counting.asked["gradients"], np.size(of_round.samples)
        assert not counted or counted == stated * records, (
            f"gradients_per_use less gradients_spared must be the gradients of round {t + 1} over its {records} "
            f"records, {counted / records:g}, and is {stated:g}"
        )
