"""Property of queries: the query is the point at which gradients are taken."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.interface import as_leaves
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.testing.trial import Trial

FEW = 3  # rounds to run, without compilation
ROUNDING = 1e-6  # relative


@dataclass(frozen=True, eq=False)
class Watched:
    """A model that records the parameters at which it is evaluated.

    Attributes:
        model: wrapped model.
        points: recorded parameters as vectors, each [d].
    """

    model: Any
    points: list[np.ndarray] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def value(self, params, example):
        self._remember(params)
        return self.model.value(params, example)

    def gradients(self, points, example):
        self._remember(*points)
        return self.model.gradients(points, example)

    def summed_gradients(self, points, examples, weights=None):
        self._remember(*points)
        return self.model.summed_gradients(points, examples, weights)

    def _remember(self, *points) -> None:
        for point in points:
            jax.debug.callback(lambda flat: self.points.append(np.array(flat)), ravel_pytree(point)[0])


def query_is_where_gradients_are_taken(trial: Trial) -> None:
    """Check that the query of each of the first rounds is a point at which the round takes gradients.

    It must be a point at which no earlier round took gradients, if the round has one. A protocol that does not evaluate
    the problem's model passes.
    """
    start = trial.start
    watched = Watched(start.problem.model)
    problem = replace(start.problem.traced, model=watched)
    protocol, inputs = as_leaves(start.protocol.traced), round_inputs(start.plan)
    state = protocol.init(problem, start.plan.size, protocol_key(start.key))
    before: list[np.ndarray] = []
    for t in range(min(FEW, trial.rounds)):
        query = np.asarray(ravel_pytree(protocol.query(state))[0])
        of_round = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        state, _ = protocol.round(problem, state, of_round, None, protocol_key(start.key, of_round.round))
        jax.block_until_ready(state)
        jax.effects_barrier()
        asked = [point for point in watched.points if np.isfinite(point).all()]
        watched.points.clear()
        new = [point for point in asked if not _among(point, before)]
        assert not asked or _among(query, new or asked), (
            f"query must be the point at which round {t + 1} takes gradients, and is "
            f"{min(np.abs(point - query).max() for point in asked):.3g} from the nearest"
        )
        before += new


def _among(point: np.ndarray, others: list[np.ndarray]) -> bool:
    return any(np.abs(point - other).max() <= ROUNDING * np.abs(other).max() for other in others)
