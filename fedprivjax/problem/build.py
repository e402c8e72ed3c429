"""Problems from one's own arrays, functions and generators, checked before anything is compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.keywords import known_keywords
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_positive
from fedprivjax.problem.checks import (
    leading_axes,
    numbers,
    require_alike,
    require_constraint,
    require_features,
    require_finite_examples,
    require_labels,
    require_loss,
    require_pair,
    require_paired,
    require_parameters,
    require_projection,
    require_scalar_loss,
    table_rows,
)
from fedprivjax.problem.constraints import ConstraintSet, WholeSpace
from fedprivjax.problem.gradients import length
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.models import Example, GeneralModel, LinearModel
from fedprivjax.problem.problem import Problem, Table
from fedprivjax.problem.procedural import Procedural


@known_keywords
def linear_problem(
    features,
    labels,
    loss: LinearLoss,
    *,
    feature_bound: float | None = None,
    constraint: ConstraintSet | None = None,
    test: tuple[Any, Any] | None = None,
    start=None,
    optimum=None,
    excess: Callable[[Any], Any] | None = None,
    partition_table: np.ndarray | None = None,
    lipschitz: float | Sequence[float] | None = None,
    distance: float | None = None,
    machine_weights: Sequence[float] | str | None = None,
) -> Problem:
    """A linear predictor on one's own arrays.

    Args:
        features: [examples, features], or [machines, examples, features] for data already split over machines.
        labels: [examples] or [machines, examples].
        loss: a `LinearLoss`: `Softmax`, `Logistic`, `Hinge`, `Moreau(Absolute(), 1.0)`, …
        feature_bound: public bound on the norm of a feature vector; needed by protocols that do not clip.
        constraint: `Ball(radius)`, `Box(low, high)`, `Simplex(scale)`, `L1Ball(radius)`, or a `ConstraintSet` of your
            own; the whole space if None.
        test: held-out (features, labels).
        start: first point; the set's nearest to zero if None.
        optimum: exact minimiser where known.
        excess: exact excess risk of parameters, where known; else it is measured against `optimum` on the test set.
        partition_table: int [machines, most], padded with −1: which examples each machine owns.
        lipschitz: G where it is declared rather than the loss's own: one constant, or one for each machine; promised,
            not looked at.
        distance: a public bound on the distance from the start to the optimum; None is the constraint set's diameter.
        machine_weights: p_i of the objective Σ_i p_i·F_i of methods that sample machines' own records, positive and
            adding up to 1; "sizes" is in proportion to machines' numbers of records, which are then public; None is
            equal weights.

    Raises:
        ValueError: features or parameters that are not finite, labels out of range or between two classes, shapes that
            do not match, a norm above the bound, a start outside the constraint set, declared constants that no
            problem has.

    >>> import numpy as np
    >>> from fedprivjax import Softmax
    >>> linear_problem(np.eye(4), np.array([0, 1, 1, 0]), Softmax(2), feature_bound=1.0).dimension
    8
    """
    require_loss(loss)
    require_constraint(constraint)
    if test is not None:
        require_pair("test", test)
    features, labels = numbers("features", features), numbers("labels", labels)
    if features.ndim == 3:
        features, labels, partition_table = _merge_machines(features, labels, partition_table)
    if features.ndim != 2:
        raise Refusal(f"features must be [examples, features] or have a leading machines axis, got {features.shape}")
    width = features.shape[1]
    shape = loss.shape(width)
    problem = Problem(
        pool=_examples("features", features, labels, width, loss, feature_bound),
        test=None if test is None else _examples("test features", *test, width, loss, feature_bound),
        start=_linear_params("start", _nearest_to_zero(constraint, shape) if start is None else start, shape),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=None if optimum is None else _linear_params("optimum", optimum, shape, ": is it this loss's?"),
        model=LinearModel(loss),
        feature_bound=feature_bound,
        partition_table=None if partition_table is None else Table(table_rows(partition_table, features.shape[0])),
        excess=excess,
        own_lipschitz=lipschitz,
        distance=distance,
        machine_weights=machine_weights,
    )
    return _start_inside(problem)


@known_keywords
def general_problem(
    function: Callable[[Any, Any], Any],
    pool: Any,
    start: Any,
    *,
    constraint: ConstraintSet | None = None,
    lipschitz: float | Sequence[float] | None = None,
    smoothness: float | None = None,
    distance: float | None = None,
    machine_weights: Sequence[float] | str | None = None,
    correct: Callable[[Any, Any], Any] | None = None,
    test: Any = None,
    optimum: Any = None,
    excess: Callable[[Any], Any] | None = None,
    partition_table: np.ndarray | None = None,
    split: bool = False,
) -> Problem:
    """Any scalar loss of parameters and one example; a flax module's `apply` fits in.

    Args:
        function: `(params, example) -> scalar`.
        pool: pytree with leaves [examples, ...] (with `split`, [machines, examples, ...]).
        start: first parameters, a pytree.
        lipschitz, smoothness: G (one constant, or one for each machine) and L on the constraint set where known; needed
            by protocols that do not clip.
        correct: `(params, example) -> 1.0 where the prediction is right`, for accuracies.
        test, optimum, excess, partition_table, distance, machine_weights: as in `linear_problem`.
        split: the pool's leaves have a leading machines axis.

    Raises:
        ValueError: a loss that is not a scalar, data or parameters that are not finite, leaves that do not match, a
            start of integers or outside the constraint set.

    >>> import jax.numpy as jnp
    >>> general_problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.ones((5, 3)), jnp.zeros(3)).examples
    5
    """
    require_constraint(constraint)
    if split:
        if partition_table is not None:
            raise Refusal("partition_table must be None when the data are split")
        machines, each = leading_axes("the data", pool, ("machines", "examples"))
        partition_table = np.arange(machines * each).reshape(machines, each)
        pool = jax.tree.map(lambda leaf: leaf.reshape(machines * each, *leaf.shape[2:]), pool)
    (examples,) = leading_axes("the data", pool, ("examples",))
    require_finite_examples("data", jax.tree.leaves(pool))
    problem = Problem(
        pool=jax.tree.map(jnp.asarray, pool),
        test=None if test is None else _general_test(test, pool),
        start=_general_params("start", start),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=None if optimum is None else _general_params("optimum", optimum),
        model=GeneralModel(function, correct),
        own_smoothness=smoothness,
        partition_table=None if partition_table is None else Table(table_rows(partition_table, examples)),
        excess=excess,
        own_lipschitz=lipschitz,
        distance=distance,
        machine_weights=machine_weights,
    )
    if optimum is not None:
        require_alike("optimum", problem.optimum, problem.start, "start")
    require_scalar_loss(problem.model, problem.start, jax.eval_shape(problem.take, 0))
    return _start_inside(problem)


def procedural_problem(
    generate: Callable[[Any, Any], Any],
    loss: LinearLoss | Callable[[Any, Any], Any],
    *,
    seed: int = 0,
    start=None,
    feature_bound: float | None = None,
    constraint: ConstraintSet | None = None,
    lipschitz: float | None = None,
    smoothness: float | None = None,
    distance: float | None = None,
    correct: Callable[[Any, Any], Any] | None = None,
    test: Any = None,
    optimum: Any = None,
    excess: Callable[[Any], Any] | None = None,
) -> Problem:
    """A problem whose examples are computed when they are used: a million machines take no memory.

    Args:
        generate: `(key, machine) -> example`, pure; (features, label) for a linear predictor. A machine's k-th
            participation gets a key of its own, so no two examples are alike.
        loss: a `LinearLoss`, or `(params, example) -> scalar` as in `general_problem`.
        seed: of the data.
        start: first parameters; needed unless the predictor is linear.
        feature_bound: public bound on the norm of a feature vector: longer ones are scaled to it. Those that are not
            finite become zero, and labels outside the loss's range its ends.
        lipschitz, smoothness, correct: as in `general_problem`.
        constraint, distance, test, optimum, excess: as in `linear_problem`.

    >>> import jax
    >>> from fedprivjax import Ball, DPMu2, Squared, Uniform, simulate
    >>> def example(key, machine):
    ...     x = jax.random.ball(key, 3)
    ...     return x, x.sum()
    >>> problem = procedural_problem(example, Squared(), feature_bound=1.0, constraint=Ball(2.0), optimum=np.ones(3))
    >>> run = simulate(DPMu2(mu=1.0, clip=1.0), problem, Uniform(10**6, 20), rounds=10)
    >>> run.metrics["distance"].shape
    (10,)
    """
    require_at_least("seed", seed, 0)
    shapes = jax.eval_shape(generate, jax.random.key(0), jnp.zeros((), jnp.int32))
    options = {"lipschitz": lipschitz, "distance": distance, "excess": excess}
    if not isinstance(loss, LinearLoss):
        if start is None:
            raise Refusal("start must be given, unless the loss is a linear predictor's")
        toy = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), shapes)
        options = {**options, "smoothness": smoothness, "correct": correct}
        built = general_problem(loss, toy, start, constraint=constraint, test=test, optimum=optimum, **options)
        return replace(built, pool=Procedural(np.uint32(seed), generate))
    if not isinstance(shapes, tuple) or len(shapes) != 2 or shapes[0].ndim != 1 or shapes[1].shape != ():
        raise Refusal(f"generate must return (features [features], label []), got {shapes}")
    options = {**options, "feature_bound": feature_bound, "constraint": constraint, "test": test, "start": start}
    built = linear_problem(np.zeros((1, *shapes[0].shape)), np.zeros(1), loss, optimum=optimum, **options)
    pool = Procedural(np.uint32(seed), _Labelled(generate, feature_bound, loss.label_range()))
    return replace(built, pool=pool, own_smoothness=smoothness)


SMALL = 1e-10  # of a feature vector's norm: below, float32 loses the squares of its parts


@dataclass(frozen=True)
class _Labelled:
    """A generator of (features, label) as one of `Example`s, which keep the bounds that privacy rests on."""

    generate: Callable[[Any, Any], Any]
    feature_bound: float | None
    labels: tuple[float, float]

    def __call__(self, key, machine) -> Example:
        features, label = self.generate(key, machine)
        features, label = jnp.asarray(features, jnp.float32), jnp.asarray(label)
        norm = length(features)
        most = jnp.finfo(jnp.float32).max if self.feature_bound is None else self.feature_bound
        features = jnp.where(norm <= most, features, jnp.where(jnp.isfinite(norm), features * (most / norm), 0.0))
        norm = jnp.minimum(jnp.nan_to_num(norm, nan=0.0, posinf=0.0), most)
        within = jnp.clip(jnp.nan_to_num(label, nan=0.0), *self.labels).astype(label.dtype)
        return Example(features, within, norm)


def _merge_machines(features, labels, table):
    """Data split over machines as one pool, and the table of who owns what."""
    if table is not None:
        raise Refusal("partition_table must be None when features are [machines, examples, features]")
    require_paired(labels, "features", features.shape[:2])
    table = np.arange(labels.size).reshape(labels.shape)
    return features.reshape(labels.size, features.shape[2]), labels.ravel(), table


def _examples(name, features, labels, width: int, loss: LinearLoss, feature_bound: float | None) -> Example:
    features, labels = numbers(name, features).astype(np.float32, copy=False), numbers("labels", labels)
    require_features(name, features, width)
    require_paired(labels, name, features.shape[:1])
    require_labels(labels, loss)
    norms = np.linalg.norm(features, axis=1)
    small = norms < SMALL
    norms[small] = np.linalg.norm(features[small].astype(float), axis=1)
    require_positive("feature_bound", feature_bound, optional=True)
    if feature_bound is not None and norms.max() > feature_bound * (1 + 1e-5):
        raise Refusal(f"{name} must have norm at most feature_bound ({feature_bound:g}), got {norms.max():g}")
    dtype = jnp.int32 if loss.outputs else jnp.float32
    return Example(jnp.asarray(features), jnp.asarray(labels, dtype), jnp.asarray(norms))


def _linear_params(name: str, values, shape: tuple[int, ...], hint: str = ""):
    params = numbers(name, values).astype(np.float32)
    if params.shape != shape:
        raise Refusal(f"{name} must have shape {shape}, got {params.shape}{hint}")
    require_parameters(name, params)
    return jnp.asarray(params)


def _general_params(name: str, values):
    params = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else numbers(name, leaf), values)
    require_parameters(name, params)
    if not jax.tree.leaves(params):
        raise Refusal(f"{name} must have at least one parameter, got {values!r}")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


def _general_test(test, pool):
    """Held-out examples, of the pool's structure."""
    leading_axes("test", test, ("examples",))
    require_alike("test", test, pool, "the data", skip=1)
    require_finite_examples("test", jax.tree.leaves(test))
    return jax.tree.map(jnp.asarray, test)


def _nearest_to_zero(constraint: ConstraintSet | None, shape: tuple[int, ...]):
    zero = np.zeros(shape, np.float32)
    if constraint is None:
        return zero
    require_projection(constraint, zero)
    return constraint.project(zero)


def _start_inside(problem: Problem) -> Problem:
    """The problem, its set told how many parameters there are."""
    require_projection(problem.constraint, problem.start)
    fitted = replace(problem, constraint=problem.constraint.of(problem.start))
    if not fitted.constraint.contains(fitted.start):
        raise Refusal(f"start must lie in the constraint set, {fitted.constraint.described}")
    return fitted
