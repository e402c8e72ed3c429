"""Problems from user-supplied arrays, functions and generators, validated before anything is compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import known_keywords, require_at_least, require_choice, require_positive
from fedprivjax.problem import checks
from fedprivjax.problem.client_tests import client_tests
from fedprivjax.problem.constraints import ABOUT_ZERO, ConstraintSet, WholeSpace
from fedprivjax.problem.convolutions import CONVOLUTIONS, Convolutions
from fedprivjax.problem.dense_layers import with_clipping
from fedprivjax.problem.devices import device_memory
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.models import Clipping, Example, GeneralModel, LinearModel, length
from fedprivjax.problem.problem import Problem, Procedural, Table
from fedprivjax.problem.random_keys import random_key


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
    test_machine_of=None,
    lipschitz: float | Sequence[float] | None = None,
    distance: float | None = None,
    machine_weights: Sequence[float] | str | None = None,
) -> Problem:
    """Return the problem of training a linear predictor on user-supplied arrays.

    Args:
        features: [examples, features], or [machines, examples, features] for data already split over machines.
        labels: [examples] or [machines, examples].
        loss: a `LinearLoss`: `Softmax`, `Logistic`, `Hinge`, `Moreau(Absolute(), 1.0)`, …
        feature_bound: public bound on the L2 norm of a feature vector. The loss's Lipschitz constant follows from it.
            Without a clip, the noise depends on this constant.
        constraint: set of allowed parameters: `Ball(radius)`, `Box(low, high)`, `Simplex(scale)`, `L1Ball(radius)`, or
            a `ConstraintSet`. None is the whole space.
        test: held-out examples (features, labels), or None.
        start: initial parameters, or None for the point of the constraint set nearest to zero. If they are the result
            of another private run, the guarantee of the new run does not cover the other run. `PrivacyGuarantee.then`
            combines the guarantees of the two runs.
        optimum: exact minimiser, or None if unknown.
        excess: exact excess risk, `params -> scalar`. None takes the mean loss minus the mean loss at `optimum`, on the
            test set if `test` is given, otherwise on the training examples.
        partition_table: indices of the examples that each machine owns, int [machines, max_records], padded with −1.
        test_machine_of: machine of each test example, int [tests]. None if unknown.
        lipschitz: declared bound on the gradient norm of one example's loss: one number, or one per machine. It
            replaces the bound that follows from `feature_bound`, and is not verified.
        distance: public bound on the distance from the start to the optimum. None is the constraint set's diameter.
        machine_weights: weights of the machines' mean losses in the objective, positive, with sum 1. "sizes" is
            proportional to the machines' numbers of records, which are then public. None is equal weights.

    Raises:
        ValueError: if features or parameters are not finite, labels are out of range or not integers for classes, or
            shapes do not match. Also if a norm exceeds `feature_bound`, the start is outside the constraint set, or
            declared constants are impossible.

    >>> import numpy as np
    >>> from fedprivjax import Softmax
    >>> linear_problem(np.eye(4), np.array([0, 1, 1, 0]), Softmax(2), feature_bound=1.0).dimension
    8
    """
    checks.require_loss(loss)
    checks.require_constraint(constraint)
    if test is not None:
        checks.require_pair("test", test)
    features, labels = checks.numbers("features", features), checks.numbers("labels", labels)
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
        partition_table=None if partition_table is None else _table(partition_table, features.shape[0]),
        excess=excess,
        own_lipschitz=lipschitz,
        distance=distance,
        machine_weights=machine_weights,
    )
    clients = client_tests(test_machine_of, problem.test, problem.partition_table)
    return _start_inside(replace(problem, test_clients=clients))


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
    test_machine_of=None,
    split: bool = False,
    convolutions: Convolutions = "auto",
    clipping: Clipping = "auto",
) -> Problem:
    """Return a training problem whose loss is any scalar function of parameters and one example.

    Args:
        function: loss of one example, `(params, example) -> scalar`.
        pool: examples of all machines, a pytree with leaves [examples, ...]. With `split`, the leaves are [machines,
            examples, ...].
        start: initial parameters, a pytree.
        constraint: set of allowed parameters, such as `Ball(radius)`. None is the whole space.
        lipschitz: bound on the gradient norm of one example's loss on the constraint set: one number, or one per
            machine. Without a clip, the noise depends on it. None if no bound is known.
        smoothness: Lipschitz constant of the gradient of one example's loss on the constraint set. Without a clip, the
            noise of some methods depends on it. None if unknown.
        distance: public bound on the distance from the start to the optimum. None is the constraint set's diameter.
        machine_weights: weights of the machines' mean losses in the objective, positive, with sum 1. "sizes" is
            proportional to the machines' numbers of records, which are then public. None is equal weights.
        correct: `(params, example) -> 1.0 if the prediction is correct, otherwise 0.0`, for accuracies.
        test: held-out examples of the same structure as the pool, or None.
        optimum: exact minimiser, or None if unknown.
        excess: exact excess risk, `params -> scalar`. None takes the mean loss minus the mean loss at `optimum`, on the
            test set if `test` is given, otherwise on the training examples.
        partition_table: indices of the examples that each machine owns, int [machines, max_records], padded with −1.
        test_machine_of: machine of each test example, int [tests]. None if unknown.
        split: True if the pool's leaves have a first axis of machines.
        convolutions: computation of convolutions and pooling in the loss: "xla" by XLA's operations, "products" by
            slices and matrix products. "auto" is "products" on a CPU, and "xla" elsewhere. Their results differ
            by rounding.
        clipping: computation of clipped gradients. "rows" computes and clips the gradient of every record. "ghost"
            (ghost clipping) never forms these gradients. "ghost" requires a method whose messages are gradients at one
            point. For such a method, "auto" is "ghost" if the network has at least 50,000 parameters and dense layers
            hold at least half of them. Otherwise, "auto" is "rows".

    Raises:
        ValueError: if the loss is not a scalar, data or parameters are not finite, or leaves of the pool have different
            numbers of examples. Also if the start has integers or is outside the constraint set.

    >>> import jax.numpy as jnp
    >>> general_problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.ones((5, 3)), jnp.zeros(3)).examples
    5
    """
    checks.require_constraint(constraint)
    require_choice("convolutions", convolutions, CONVOLUTIONS)
    if split:
        if partition_table is not None:
            raise Refusal("partition_table must be None when the data are split")
        machines, each = checks.leading_axes("the data", pool, ("machines", "examples"))
        partition_table = np.arange(machines * each).reshape(machines, each)
        pool = jax.tree.map(lambda leaf: leaf.reshape(machines * each, *leaf.shape[2:]), pool)
    (examples,) = checks.leading_axes("the data", pool, ("examples",))
    checks.require_finite_examples("data", jax.tree.leaves(pool))
    problem = Problem(
        pool=jax.tree.map(_copied, pool),
        test=None if test is None else _general_test(test, pool),
        start=_general_params("start", start),
        constraint=WholeSpace() if constraint is None else constraint,
        optimum=None if optimum is None else _general_params("optimum", optimum),
        model=GeneralModel(function, correct, convolutions),
        own_smoothness=smoothness,
        partition_table=None if partition_table is None else _table(partition_table, examples),
        excess=excess,
        own_lipschitz=lipschitz,
        distance=distance,
        machine_weights=machine_weights,
    )
    if optimum is not None:
        checks.require_alike("optimum", problem.optimum, problem.start, "start")
    checks.require_scalar_loss(problem.model, problem.start, jax.eval_shape(problem.take, 0))
    clients = client_tests(test_machine_of, problem.test, problem.partition_table)
    return with_clipping(_start_inside(replace(problem, test_clients=clients)), clipping)


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
    convolutions: Convolutions = "auto",
    clipping: Clipping = "auto",
) -> Problem:
    """Return a training problem whose examples are computed on demand instead of stored.

    Args:
        generate: pure function `(key, machine) -> example`. For a linear predictor, an example is (features, label).
            Each use of a machine's data has a new random key, so examples are independent.
        loss: a `LinearLoss` such as `Squared()` for a linear predictor, or a function `(params, example) -> scalar`.
        seed: seed of the data.
        start: initial parameters. For a linear predictor, None is the point of the constraint set that is nearest to
            zero.
        feature_bound: public bound on the norm of a feature vector, for a linear predictor. Vectors with a larger norm
            are scaled down to this norm. Non-finite vectors become zero, and labels are clipped to the loss's range.
        lipschitz: bound on the gradient norm of one example's loss, or None. For a linear predictor, None is the bound
            that follows from the loss and `feature_bound`.
        smoothness: Lipschitz constant of the gradient of one example's loss, or None. For a linear predictor, None is
            the constant that follows from the loss and `feature_bound`.
        correct: `(params, example) -> 1.0 if the prediction is correct, otherwise 0.0`, for accuracies.
        convolutions, clipping: computation of convolutions and of clipped gradients, described in `general_problem`.
        constraint: set of allowed parameters, such as `Ball(radius)`. None is the whole space.
        distance: public bound on the distance from the start to the optimum. None is the constraint set's diameter.
        test: stored held-out examples, or None. They have the structure of an example from `generate`, with a first
            axis [examples].
        optimum: exact minimiser, or None if unknown.
        excess: exact excess risk, `params -> scalar`. None takes the mean loss minus the mean loss at `optimum`, on the
            test set.

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
    shapes = jax.eval_shape(generate, random_key(0), jnp.zeros((), jnp.int32))
    options = {"constraint": constraint, "lipschitz": lipschitz, "distance": distance}
    options |= {"test": test, "optimum": optimum, "excess": excess}
    if not isinstance(loss, LinearLoss):
        if start is None:
            raise Refusal("start must be given unless the loss is that of a linear predictor")
        toy = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), shapes)
        options |= {"smoothness": smoothness, "correct": correct, "convolutions": convolutions, "clipping": clipping}
        built = general_problem(loss, toy, start, **options)
        return replace(built, pool=Procedural(np.uint32(seed), generate))
    if not isinstance(shapes, tuple) or len(shapes) != 2 or shapes[0].ndim != 1 or shapes[1].shape != ():
        raise Refusal(f"generate must return (features [features], label []), got {shapes}")
    checks.require_auto(convolutions=convolutions, clipping=clipping)
    options |= {"feature_bound": feature_bound, "start": start}
    built = linear_problem(np.zeros((1, *shapes[0].shape)), np.zeros(1), loss, **options)
    pool = Procedural(np.uint32(seed), _Labelled(generate, feature_bound, loss.label_range()))
    return replace(built, pool=pool, own_smoothness=smoothness)


SMALL = 1e-10  # norm of a feature vector below which squares underflow in float32


@dataclass(frozen=True)
class _Labelled:
    """Generator of `Example`s from one of (features, label). It enforces the bounds that privacy needs."""

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


def _table(given: Any, examples: int) -> Table:
    """Return a partition table, checked. Its origin is that of `datasets.table`, if it has one."""
    return Table(checks.table_rows(given, examples), origin=getattr(given, "origin", None))


def _merge_machines(features, labels, table):
    """Return data with a machines axis as one pool, with labels and partition table."""
    if table is not None:
        raise Refusal("partition_table must be None when features are [machines, examples, features]")
    checks.require_paired(labels, "features", features.shape[:2])
    table = np.arange(labels.size).reshape(labels.shape)
    return features.reshape(labels.size, features.shape[2]), labels.ravel(), table


def _examples(name, features, labels, width: int, loss: LinearLoss, feature_bound: float | None) -> Example:
    features, labels = checks.numbers(name, features).astype(np.float32, copy=False), checks.numbers("labels", labels)
    checks.require_features(name, features, width)
    checks.require_paired(labels, name, features.shape[:1])
    checks.require_labels(labels, loss)
    norms = np.linalg.norm(features, axis=1)
    small = norms < SMALL
    norms[small] = np.linalg.norm(features[small].astype(float), axis=1)
    require_positive("feature_bound", feature_bound, optional=True)
    if feature_bound is not None and norms.max() > feature_bound * (1 + 1e-5):
        raise Refusal(f"{name} must have norm at most feature_bound ({feature_bound:g}), got {norms.max():g}")
    dtype = jnp.int32 if loss.outputs else jnp.float32
    return Example(_copied(features), _copied(labels, dtype), _copied(norms, jnp.float32))


def _linear_params(name: str, values, shape: tuple[int, ...], hint: str = ""):
    params = checks.numbers(name, values).astype(np.float32)
    if params.shape != shape:
        raise Refusal(f"{name} must have shape {shape}, got {params.shape}{hint}")
    checks.require_parameters(name, params)
    return _copied(params)


def _general_params(name: str, values):
    params = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else checks.numbers(name, leaf), values)
    checks.require_parameters(name, params)
    if not jax.tree.leaves(params):
        raise Refusal(f"{name} must have at least one parameter, got {values!r}")
    return jax.tree.map(lambda leaf: _copied(leaf, jnp.float32), params)


def _copied(values, dtype: Any = None) -> Any:
    """Return a device copy of host values, of jax's type or the one given. Device arrays are not copied.

    Values that take more than half of a device's memory are copied on the host. NumPy copies and converts, since
    `jnp.array` would compile a program per shape.
    """
    if isinstance(values, jax.Array):
        return jnp.asarray(values, dtype)
    copy = np.array(values, dtype)
    return copy if copy.nbytes > device_memory(jax.local_devices()[0]) / 2 else jax.device_put(copy)


def _general_test(test, pool):
    """Held-out examples, of the pool's structure."""
    checks.leading_axes("test", test, ("examples",))
    checks.require_alike("test", test, pool, "the data", skip=1)
    checks.require_finite_examples("test", jax.tree.leaves(test))
    return jax.tree.map(_copied, test)


def _nearest_to_zero(constraint: ConstraintSet | None, shape: tuple[int, ...]):
    zero = np.zeros(shape, np.float32)
    if constraint is None or type(constraint) in ABOUT_ZERO:
        return zero
    checks.require_projection(constraint, zero)
    return constraint.project(zero)


def _start_inside(problem: Problem) -> Problem:
    """Return the problem with its constraint set fitted to the parameters. Raise Refusal if the start is outside."""
    checks.require_projection(problem.constraint, problem.start)
    fitted = replace(problem, constraint=problem.constraint.of(problem.start))
    if not fitted.constraint.contains(fitted.start):
        raise Refusal(f"start must lie in the constraint set, {fitted.constraint.described}")
    return fitted
