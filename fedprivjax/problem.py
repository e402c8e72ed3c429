"""A problem: examples, one example's loss, a constraint set, and the constants that noise and steps follow from."""

from collections.abc import Callable
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks import require_positive
from fedprivjax.constraints import Ball, WholeSpace
from fedprivjax.losses import LinearLoss
from fedprivjax.models import Example, GeneralModel, LinearModel
from fedprivjax.problem_checks import (
    leading_axes,
    numbers,
    require_alike,
    require_features,
    require_finite_examples,
    require_labels,
    require_paired,
    require_parameters,
    require_scalar_loss,
    table_rows,
)


class Table:
    """Which examples each machine owns: int32 [machines, most], padded with −1. Host data, compared by identity."""

    def __init__(self, rows: np.ndarray):
        self.rows = np.asarray(rows, np.int32)

    @property
    def sizes(self) -> np.ndarray:
        """Examples of each machine, [machines]."""
        return np.sum(self.rows >= 0, axis=1)


@struct.dataclass
class Problem:
    """What is minimised, on which data, over which set.

    Build one with `linear_problem` or `general_problem`. Arrays are leaves; what fixes the program is static.

    Attributes:
        pool: examples, a pytree with leaves [examples, ...], shared by all machines.
        test: held-out examples of the same structure, or None.
        start: first point of every run, a pytree of parameters.
        constraint: `Ball` or `WholeSpace`.
        optimum: the exact minimiser where known, of the structure of `start`, or None.
        model: the loss of one example and its gradient.
        feature_bound: public bound on the norm of a feature vector (not a statistic of the data).
        table: a fixed partition of the pool over machines, or None: samples are dealt in order of use.
        excess: exact excess risk `params -> scalar` where known.
    """

    pool: Any
    test: Any
    start: Any
    constraint: Ball | WholeSpace
    optimum: Any = None
    model: LinearModel | GeneralModel = struct.field(pytree_node=False, default=None)  # type: ignore[assignment]
    feature_bound: float | None = struct.field(pytree_node=False, default=None)
    own_lipschitz: float | None = struct.field(pytree_node=False, default=None)
    own_smoothness: float | None = struct.field(pytree_node=False, default=None)
    table: Table | None = struct.field(pytree_node=False, default=None)
    excess: Callable[[Any], Any] | None = struct.field(pytree_node=False, default=None)

    @property
    def examples(self) -> int:
        """Examples in the pool."""
        return jax.tree.leaves(self.pool)[0].shape[0]

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.start))

    @property
    def lipschitz(self) -> float:
        """G: bound on the gradient norm of one example's loss on the constraint set; infinite where unknown."""
        if self.own_lipschitz is not None:
            return self.own_lipschitz
        return inf if self.feature_bound is None else self.model.lipschitz(self.feature_bound, self.constraint.radius)

    @property
    def smoothness(self) -> float:
        """L: bound on the curvature of one example's loss; infinite where unknown."""
        if self.own_smoothness is not None:
            return self.own_smoothness
        return inf if self.feature_bound is None else self.model.smoothness(self.feature_bound)

    def take(self, samples):
        """The examples with these indices, leaves [..., per-example shape]."""
        return jax.tree.map(lambda leaf: leaf[samples], self.pool)

    def unravel(self, vector):
        """A flat vector [d] in the structure of the parameters."""
        return ravel_pytree(self.start)[1](vector)


def linear_problem(
    features,
    labels,
    loss: LinearLoss,
    *,
    feature_bound: float | None = None,
    constraint: Ball | WholeSpace | None = None,
    test: tuple[Any, Any] | None = None,
    start=None,
    optimum=None,
    excess: Callable[[Any], Any] | None = None,
    table: np.ndarray | None = None,
) -> Problem:
    """A linear predictor on one's own arrays.

    Args:
        features: [examples, features], or [machines, examples, features] for data already split over machines.
        labels: [examples] or [machines, examples].
        loss: `Softmax`, `Logistic` or `Squared`.
        feature_bound: public bound on the norm of a feature vector; needed by protocols that do not clip.
        constraint: `Ball(radius)`; the whole space if None.
        test: held-out (features, labels).
        start: first point; zero if None.
        optimum: exact minimiser where known.
        excess: exact excess risk of parameters, where known; else it is measured against `optimum` on the test set.
        table: int [machines, most], padded with −1: which examples each machine owns.

    Raises:
        ValueError: features or parameters that are not finite, labels out of range or between two classes, shapes that
            do not match, a norm above the bound, a start outside the constraint set.

    >>> import numpy as np
    >>> from fedprivjax import Softmax
    >>> linear_problem(np.eye(4), np.array([0, 1, 1, 0]), Softmax(2), feature_bound=1.0).dimension
    8
    """
    features, labels = numbers("features", features), numbers("labels", labels)
    if features.ndim == 3:
        features, labels, table = _merge_machines(features, labels, table)
    if features.ndim != 2:
        raise ValueError(f"features must be [examples, features] or have a leading machines axis, got {features.shape}")
    width = features.shape[1]
    shape = loss.shape(width)
    problem = Problem(
        pool=_examples("features", features, labels, width, loss, feature_bound),
        test=None if test is None else _examples("test features", *test, width, loss, feature_bound),
        start=_linear_params("start", np.zeros(shape) if start is None else start, shape),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=None if optimum is None else _linear_params("optimum", optimum, shape, ": is it this loss's?"),
        model=LinearModel(loss),
        feature_bound=feature_bound,
        table=None if table is None else Table(table_rows(table, features.shape[0])),
        excess=excess,
    )
    return _start_inside(problem)


def general_problem(
    function: Callable[[Any, Any], Any],
    pool: Any,
    start: Any,
    *,
    constraint: Ball | WholeSpace | None = None,
    lipschitz: float | None = None,
    smoothness: float | None = None,
    hit: Callable[[Any, Any], Any] | None = None,
    test: Any = None,
    optimum: Any = None,
    excess: Callable[[Any], Any] | None = None,
    table: np.ndarray | None = None,
    split: bool = False,
) -> Problem:
    """Any scalar loss of parameters and one example; a flax module's `apply` fits in.

    Args:
        function: `(params, example) -> scalar`.
        pool: pytree with leaves [examples, ...] (with `split`, [machines, examples, ...]).
        start: first parameters, a pytree.
        lipschitz, smoothness: G and L on the constraint set where known; needed by protocols that do not clip.
        hit: `(params, example) -> 1.0 where the prediction is right`, for accuracies.
        test, optimum, excess, table: as in `linear_problem`.
        split: the pool's leaves have a leading machines axis.

    Raises:
        ValueError: a loss that is not a scalar, data or parameters that are not finite, leaves that do not match, a
            start of integers or outside the constraint set.

    >>> import jax.numpy as jnp
    >>> general_problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.ones((5, 3)), jnp.zeros(3)).examples
    5
    """
    require_positive("lipschitz", lipschitz, optional=True)
    require_positive("smoothness", smoothness, optional=True)
    if split:
        if table is not None:
            raise ValueError("table must be None when the data are split")
        machines, each = leading_axes("the data", pool, ("machines", "examples"))
        table = np.arange(machines * each).reshape(machines, each)
        pool = jax.tree.map(lambda leaf: leaf.reshape(machines * each, *leaf.shape[2:]), pool)
    (examples,) = leading_axes("the data", pool, ("examples",))
    require_finite_examples("data", jax.tree.leaves(pool))
    problem = Problem(
        pool=jax.tree.map(jnp.asarray, pool),
        test=None if test is None else _general_test(test, pool),
        start=_general_params("start", start),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=None if optimum is None else _general_params("optimum", optimum),
        model=GeneralModel(function, hit),
        own_lipschitz=lipschitz,
        own_smoothness=smoothness,
        table=None if table is None else Table(table_rows(table, examples)),
        excess=excess,
    )
    if optimum is not None:
        require_alike("optimum", problem.optimum, problem.start, "start")
    require_scalar_loss(problem.model, problem.start, jax.eval_shape(problem.take, 0))
    return _start_inside(problem)


def _merge_machines(features, labels, table):
    """Data split over machines as one pool, and the table of who owns what."""
    if table is not None:
        raise ValueError("table must be None when features are [machines, examples, features]")
    require_paired(labels, "features", features.shape[:2])
    table = np.arange(labels.size).reshape(labels.shape)
    return features.reshape(labels.size, features.shape[2]), labels.ravel(), table


def _examples(name, features, labels, width: int, loss: LinearLoss, feature_bound: float | None) -> Example:
    features, labels = numbers(name, features).astype(np.float32, copy=False), numbers("labels", labels)
    require_features(name, features, width)
    require_paired(labels, name, features.shape[:1])
    require_labels(labels, loss)
    norms = np.linalg.norm(features, axis=1)
    require_positive("feature_bound", feature_bound, optional=True)
    if feature_bound is not None and norms.max() > feature_bound * (1 + 1e-5):
        raise ValueError(f"{name} must have norm at most feature_bound ({feature_bound:g}), got {norms.max():g}")
    dtype = jnp.int32 if loss.outputs else jnp.float32
    return Example(jnp.asarray(features), jnp.asarray(labels, dtype), jnp.asarray(norms))


def _linear_params(name: str, values, shape: tuple[int, ...], hint: str = ""):
    params = numbers(name, values).astype(np.float32)
    if params.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {params.shape}{hint}")
    require_parameters(name, params)
    return jnp.asarray(params)


def _general_params(name: str, values):
    params = jax.tree.map(jnp.asarray, values)
    require_parameters(name, params)
    return params


def _general_test(test, pool):
    """Held-out examples, of the pool's structure."""
    leading_axes("test", test, ("examples",))
    require_alike("test", test, pool, "the data", skip=1)
    require_finite_examples("test", jax.tree.leaves(test))
    return jax.tree.map(jnp.asarray, test)


def _start_inside(problem: Problem) -> Problem:
    if not problem.constraint.contains(problem.start):
        raise ValueError(f"start must lie in the constraint set, a ball of radius {problem.constraint.radius:g}")
    return problem
