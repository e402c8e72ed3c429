"""Properties of gradients: they are taken at the query, and their number per round is the one that is stated."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.method.seen import costs_of, seen_of
from fedprivjax.testing.trial import Trial, first_rounds

ROUNDING = 1e-6  # relative


@dataclass(frozen=True, eq=False)
class Watched:
    """A model that records its evaluations at one point for one example, or for a sum over examples.

    Attributes:
        model: wrapped model.
        evaluations: recorded points [d], each with the number of computed gradients.
    """

    model: Any
    evaluations: list[tuple[np.ndarray, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def value(self, params, example):
        self._record([params], example, 0)
        return self.model.value(params, example)

    def gradients(self, points, example):
        self._record(points, example, 1)
        return self.model.gradients(points, example)

    def summed_gradients(self, points, examples, weights=None):
        self._record(points, examples, jax.tree.leaves(examples)[0].shape[0])
        return self.model.summed_gradients(points, examples, weights)

    def _record(self, points, example, number: int) -> None:
        """Record the evaluations at `points`. Under vmap, each example is recorded, since the argument is mapped."""
        for point in points:
            jax.debug.callback(partial(self._add, number), ravel_pytree(point)[0], jax.tree.leaves(example)[0])

    def _add(self, number: int, point, _) -> None:
        self.evaluations.append((np.array(point), number))


def _watched_rounds(trial: Trial) -> Iterator[tuple[int, np.ndarray, int, list[tuple[np.ndarray, int]]]]:
    """Yield each of the first rounds: its number from 1, query [d], number of record uses, and evaluations."""
    watched = Watched(trial.start.problem.model)
    problem = replace(trial.start.problem.traced, model=watched)
    for t, (inputs, before, after) in enumerate(first_rounds(trial.start, problem=problem)):
        jax.block_until_ready(after)
        jax.effects_barrier()
        query = np.asarray(ravel_pytree(seen_of(trial.start.protocol).query(before))[0])
        yield t + 1, query, np.size(inputs.samples), watched.evaluations.copy()
        watched.evaluations.clear()


def query_is_where_gradients_are_taken(trial: Trial) -> str | None:
    """Check that the query of each of the first rounds is a point at which the round takes gradients.

    It must be a point at which no earlier round took gradients, if the round has one, unless the query did not change,
    as after a round without a machine. A protocol that does not evaluate the problem's model passes.

    Returns:
        The reason why this does not apply.
    """
    if reason := _no_gradients(trial):
        return reason
    before: list[np.ndarray] = []
    last = None
    for t, query, _, evaluations in _watched_rounds(trial):
        asked = [point for point, _ in evaluations if np.isfinite(point).all()]
        new = [point for point in asked if not _among(point, before)]
        unchanged = last is not None and np.array_equal(query, last)
        assert not asked or _among(query, asked if unchanged else new or asked), (
            f"query must be the point at which round {t} takes gradients, and is "
            f"{min(np.abs(point - query).max() for point in asked):.3g} from the nearest"
        )
        before, last = before + new, query
    return None


def number_of_gradients_is_as_stated(trial: Trial) -> str | None:
    """Check that each record use of the first rounds takes `gradients_per_use` − `gradients_spared` gradients.

    A protocol that takes no gradients of the problem's model passes.

    Returns:
        The reason why this does not apply.
    """
    if reason := _no_gradients(trial):
        return reason
    stated = trial.start.costs["gradients_per_use"] - costs_of(trial.start.protocol).gradients_spared
    for t, _, uses, evaluations in _watched_rounds(trial):
        counted = sum(number for _, number in evaluations)
        assert not counted or counted == stated * uses, (
            f"gradients_per_use less gradients_spared must be the gradients of round {t} over its {uses} "
            f"records, {counted / uses:g}, and is {stated:g}"
        )
    return None


def _no_gradients(trial: Trial) -> str | None:
    """Return the reason why a protocol's machines take no gradients, or None if they may."""
    known = getattr(trial.start.protocol, "known", None)
    return None if getattr(known, "statistic", None) is None else "its messages are another function of a record"


def _among(point: np.ndarray, others: list[np.ndarray]) -> bool:
    return any(np.abs(point - other).max() <= ROUNDING * np.abs(other).max() for other in others)
