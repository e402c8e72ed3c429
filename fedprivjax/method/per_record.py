"""Evaluation of messages that are another function of one record than a gradient.

Privacy objects evaluate, clip and add noise to gradients. For such a message they get a problem whose "gradient" is the
value of the function, and whose parameters are shaped like it, so that dimension, sensitivity and noise are its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.linear import Linear, Statistic, points_of, statistic_of
from fedprivjax.method.traced_checks import short
from fedprivjax.problem.models import Dense, scaled
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import isolated_record


class Record(NamedTuple):
    """One record, as the function of `per_record` sees it.

    Attributes:
        loss: loss of the record at given parameters, `params -> scalar`.
        example: the record itself, a pytree.
    """

    loss: Callable[[Any], Any]
    example: Any


@dataclass(frozen=True, eq=False)
class RecordModel:
    """A model whose gradient is the value of a function of one record.

    Attributes:
        model: the problem's model.
        start: the problem's start.
        function: function of `per_record`, or None on the host, which evaluates nothing.
        shape: shape of its value.
    """

    model: Any
    start: Any
    function: Callable[..., Any] | None
    shape: tuple[int, ...]

    factored = False

    def value(self, _, example: Any) -> Any:
        """Return the loss of one example at the start, whose computation takes about the memory of the function's."""
        return self.model.value(self.start, example)

    def gradients(self, points: tuple[Any, ...], example: Any) -> tuple[Dense, ...]:
        """Return the function's value for one example.

        Args:
            points: one point, the tuple of public arguments.

        Raises:
            Refusal: the value has another shape or type than stated.
        """
        assert self.function is not None
        name = self.function.__qualname__
        value = isolated_record(self._of, example, *points[0], name=f"the function {self.function.__module__}.{name}")
        leaves = jax.tree.leaves(value)
        found = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
        if found != [(self.shape, jnp.float32)] or leaves[0] is not value:
            raise Refusal(f"{name} must return an array of float32 of shape {self.shape}, got {found}")
        return (Dense(jnp.asarray(value)),)

    def summed_gradients(self, points: tuple[Any, ...], examples: Any, weights: Any = None) -> tuple[Dense, ...]:
        """Return the (weighted) sum of the function's values for examples along a leading axis."""
        (rows,) = jax.vmap(partial(self.gradients, points))(examples)
        return (Dense((rows if weights is None else jax.vmap(scaled)(rows, weights)).total()),)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        return float("inf")

    def smoothness(self, feature_bound: float) -> float:
        return float("inf")

    def _of(self, example: Any, *public: Any) -> Any:
        assert self.function is not None
        return self.function(Record(partial(self._loss, example), example), *public)

    def _loss(self, example: Any, params: Any) -> Any:
        return self.model.value(params, example)


def sent_problem(problem: Problem, shape: tuple[int, ...] | None, message: Linear | None = None) -> Problem:
    """Return the problem whose gradients are the messages: the problem itself, or that of a function of one record.

    Args:
        shape: shape of the function's value, or None for messages of gradients.
        message: message that is evaluated, or None on the host.
    """
    if shape is None:
        return problem
    statistic = None if message is None else statistic_of(message)
    model = RecordModel(problem.model, problem.start, None if statistic is None else statistic.function, shape)
    return replace(problem, model=model, start=np.zeros(shape, np.float32), own_lipschitz=None, own_smoothness=None)


def require_isolated_message(problem: Problem, message: Linear) -> Statistic | None:
    """Return the function of one record in a message, or None. Raise Refusal unless it is isolated."""
    statistic = statistic_of(message)
    if statistic is not None:
        record = jax.eval_shape(lambda problem: problem.take(0), problem.traced)
        model: Any = sent_problem(problem, statistic.shape, message).model
        try:
            jax.eval_shape(lambda points, record: model.gradients((points,), record), points_of(message), record)
        except Refusal:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            raise Refusal(
                f"the function {statistic.name} must be computed from record.loss and record.example, which is "
                f"{short(record)}, got {cause}. Correct the function"
            ) from error
    return statistic
