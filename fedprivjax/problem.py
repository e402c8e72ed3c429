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
        ValueError: non-finite features, labels out of range, lengths that differ, a norm above the bound, a start
            outside the constraint set.

    >>> import numpy as np
    >>> from fedprivjax import Softmax
    >>> linear_problem(np.eye(4), np.array([0, 1, 1, 0]), Softmax(2), feature_bound=1.0).dimension
    8
    """
    features, labels = np.asarray(features, np.float32), np.asarray(labels)
    if features.ndim == 3:
        if table is not None:
            raise ValueError("table must be None when features are [machines, examples, features]")
        table = np.arange(features.shape[0] * features.shape[1]).reshape(features.shape[:2])
        features, labels = features.reshape(-1, features.shape[2]), labels.reshape(-1)
    if features.ndim != 2:
        raise ValueError(f"features must be [examples, features] or have a leading machines axis, got {features.shape}")
    shape = loss.shape(features.shape[1])
    start = np.zeros(shape, np.float32) if start is None else np.asarray(start, np.float32)
    if start.shape != shape:
        raise ValueError(f"start must have shape {shape}, got {start.shape}")
    if optimum is not None and np.shape(optimum) != shape:
        raise ValueError(f"optimum must have shape {shape}, got {np.shape(optimum)}: is it this loss's?")
    problem = Problem(
        pool=_examples("features", features, labels, loss, feature_bound),
        test=None if test is None else _examples("test features", *test, loss, feature_bound),
        start=jnp.asarray(start),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=None if optimum is None else jnp.asarray(optimum, jnp.float32),
        model=LinearModel(loss),
        feature_bound=feature_bound,
        table=None if table is None else _checked_table(table, features.shape[0]),
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
        ValueError: a loss that is not a scalar, non-finite data, a start outside the constraint set.

    >>> import jax.numpy as jnp
    >>> general_problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.ones((5, 3)), jnp.zeros(3)).examples
    5
    """
    require_positive("lipschitz", lipschitz, optional=True)
    require_positive("smoothness", smoothness, optional=True)
    if split:
        machines, each = jax.tree.leaves(pool)[0].shape[:2]
        table = np.arange(machines * each).reshape(machines, each)
        pool = jax.tree.map(lambda leaf: leaf.reshape(machines * each, *leaf.shape[2:]), pool)
    _check_finite("data", jax.tree.leaves(pool))
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(pool)}
    if len(lengths) != 1:
        raise ValueError(f"the leaves of the data must have equal lengths, got {sorted(lengths)}")
    problem = Problem(
        pool=jax.tree.map(jnp.asarray, pool),
        test=jax.tree.map(jnp.asarray, test),
        start=jax.tree.map(jnp.asarray, start),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=jax.tree.map(jnp.asarray, optimum),
        model=GeneralModel(function, hit),
        own_lipschitz=lipschitz,
        own_smoothness=smoothness,
        table=None if table is None else _checked_table(table, lengths.pop()),
        excess=excess,
    )
    _check_scalar_loss(problem)
    return _start_inside(problem)


def _examples(name, features, labels, loss: LinearLoss, feature_bound: float | None) -> Example:
    features, labels = np.asarray(features, np.float32), np.asarray(labels)
    _check_finite(name, [features])
    if labels.shape != features.shape[:1]:
        raise ValueError(f"labels must have shape {features.shape[:1]} to match {name}, got {labels.shape}")
    low, high = loss.label_range()
    wrong = labels[~((labels >= low) & (labels <= high))]
    if wrong.size:
        raise ValueError(f"labels must lie in {low}..{high}, got {wrong[0]}")
    norms = np.linalg.norm(features, axis=1)
    require_positive("feature_bound", feature_bound, optional=True)
    if feature_bound is not None and norms.max(initial=0) > feature_bound * (1 + 1e-5):
        raise ValueError(f"{name} must have norm at most feature_bound ({feature_bound:g}), got {norms.max():g}")
    dtype = jnp.int32 if loss.outputs else jnp.float32
    return Example(jnp.asarray(features), jnp.asarray(labels, dtype), jnp.asarray(norms))


def _check_finite(name: str, leaves) -> None:
    for leaf in leaves:
        array = np.asarray(leaf)
        if np.issubdtype(array.dtype, np.floating):
            bad = ~np.isfinite(array.reshape(array.shape[0], -1)).all(axis=1)
            if bad.any():
                raise ValueError(f"{name} must be finite, got {bad.sum()} bad examples (first at {np.argmax(bad)})")


def _check_scalar_loss(problem: Problem) -> None:
    example = jax.eval_shape(lambda pool: jax.tree.map(lambda leaf: leaf[0], pool), problem.pool)
    value = jax.eval_shape(problem.model.value, problem.start, example)
    if getattr(value, "shape", None) != ():
        raise ValueError(f"the loss must return a scalar for one example, got shape {getattr(value, 'shape', value)}")


def _checked_table(table, examples: int) -> Table:
    rows = np.asarray(table)
    used = rows[rows >= 0]
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"table must be integers [machines, most], got {rows.dtype} {rows.shape}")
    if used.size and used.max() >= examples:
        raise ValueError(f"table must index the {examples} examples, got {used.max()}")
    if np.unique(used).size != used.size:
        raise ValueError("table must give each example to one machine at most, got a repeated index")
    return Table(np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1))


def _start_inside(problem: Problem) -> Problem:
    if not problem.constraint.contains(problem.start):
        raise ValueError(f"start must lie in the constraint set, a ball of radius {problem.constraint.radius:g}")
    return problem
