"""Validation of data, parameters and partition tables of a problem, before anything is compiled."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least
from fedprivjax.problem.constraints import BUILT_IN, ConstraintSet
from fedprivjax.problem.linear_loss import LinearLoss


def numbers(name: str, values, remedy: str = "") -> np.ndarray:
    """Return values as a numeric array.

    Args:
        remedy: sentence for rows of different lengths.

    >>> numbers("labels", ["a", "b"])
    Traceback (most recent call last):
    fedprivjax.Refusal: labels must be numbers, got <U1
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise Refusal(f"{name} must be an array of numbers, got rows of different lengths{remedy}") from None
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise Refusal(f"{name} must be numbers, got {array.dtype}")
    return array


def require_finite_examples(name: str, leaves) -> None:
    """Raise Refusal if a leaf [examples, ...] has an infinite or NaN entry."""
    for leaf in leaves:
        array = np.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.inexact):
            bad = ~np.isfinite(array.reshape(array.shape[0], -1)).all(axis=1)
            if bad.any():
                raise Refusal(f"{name} must be finite, got {bad.sum()} bad examples (first at {np.argmax(bad)})")


def require_features(name: str, features: np.ndarray, width: int) -> None:
    """Raise Refusal unless features are finite, of shape [examples, width], with at least one example."""
    if features.ndim != 2 or features.shape[1] != width:
        raise Refusal(f"{name} must have shape [examples, {width}], got {features.shape}")
    if not features.size:
        raise Refusal(f"{name} must have at least one example and one feature, got shape {features.shape}")
    require_finite_examples(name, [features])


def require_paired(labels: np.ndarray, name: str, shape: tuple[int, ...]) -> None:
    """Raise Refusal unless there is one label per example; `shape` holds the examples' leading axes."""
    if labels.shape != shape:
        raise Refusal(f"labels must have shape {shape} to match {name}, got {labels.shape}")


def require_loss(loss: Any) -> None:
    """Raise Refusal unless `loss` is a `LinearLoss`.

    >>> require_loss("softmax")
    Traceback (most recent call last):
    fedprivjax.Refusal: loss must be an object, such as Softmax(classes) or Logistic(), got 'softmax'
    """
    if not isinstance(loss, LinearLoss):
        raise Refusal(f"loss must be an object, such as Softmax(classes) or Logistic(), got {called(loss)}")


def require_constraint(constraint: Any) -> None:
    """Raise Refusal unless `constraint` is None or a `ConstraintSet`.

    >>> require_constraint(2.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: constraint must be a set, such as Ball(2.0), got 2.0
    """
    if constraint is not None and not isinstance(constraint, ConstraintSet):
        radius = constraint if isinstance(constraint, int | float) else "radius"
        raise Refusal(f"constraint must be a set, such as Ball({radius}), got {called(constraint)}")
    name = type(constraint).__name__
    if constraint is not None:
        require_decorated(constraint)
    if constraint is not None and type(constraint).project is ConstraintSet.project:
        raise Refusal(f"constraint {name} must define project(self, params), the nearest point of the set, got none")


def require_projection(constraint: ConstraintSet, params: Any) -> None:
    """Raise Refusal if a custom set's `project` does not preserve the structure and shapes of the parameters."""
    kind = type(constraint)
    if kind in BUILT_IN:
        return
    try:
        projected = jax.eval_shape(lambda constraint, params: constraint.project(params), constraint, params)
    except Exception as error:
        cause = " ".join(str(error).split())[:200]
        taken = (
            f"parameters {', '.join(str(list(np.shape(leaf))) for leaf in jax.tree.leaves(params))} in a jax program"
        )
        got = f"{type(error).__name__}: {cause}"
        raise Refusal(f"{kind.__name__}.project must take {taken}, got {got}") from error
    require_alike(f"result of {kind.__name__}.project", projected, params, "the parameters")


def require_pair(name: str, values: Any) -> None:
    """Raise Refusal unless `values` is a pair (features, labels).

    >>> require_pair("test", np.eye(3))
    Traceback (most recent call last):
    fedprivjax.Refusal: test must be (features, labels), got an array of shape (3, 3)
    """
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise Refusal(f"{name} must be (features, labels), got {called(values)}")


def require_labels(labels: np.ndarray, loss: LinearLoss) -> None:
    """Raise Refusal if a label is outside the loss's range, infinite, or not an integer for a classification loss."""
    low, high = loss.label_range()
    wrong = labels[~((labels >= low) & (labels <= high) & np.isfinite(labels))]
    if wrong.size:
        raise Refusal(f"labels must {'be finite' if np.isinf(high) else f'lie in {low}..{high}'}, got {wrong[0]}")
    broken = labels[labels != np.round(labels)] if loss.classifies else labels[:0]
    if broken.size:
        raise Refusal(f"labels must be whole numbers, the classes, got {broken[0]}")


def require_parameters(name: str, params: Any) -> None:
    """Raise Refusal unless all leaves of the parameters are finite floating-point arrays."""
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise Refusal(f"{name} must be floating-point numbers, got {leaf.dtype}")
        if not np.isfinite(leaf).all():
            raise Refusal(f"{name} must be finite, got an infinite or NaN entry")


def leading_axes(name: str, data, axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return the sizes of the named leading axes, which all leaves must share.

    >>> leading_axes("the data", {"x": np.zeros((3, 4)), "scale": np.float32(2)}, ("examples",))
    Traceback (most recent call last):
    fedprivjax.Refusal: the leaves of the data must be [examples, ...], got shape ()
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(data)]
    short = [shape for shape in shapes if len(shape) < len(axes)]
    if short:
        raise Refusal(f"the leaves of {name} must be [{', '.join(axes)}, ...], got shape {short[0]}")
    leads = {shape[: len(axes)] for shape in shapes}
    if len(leads) > 1:
        lengths = sorted(lead if len(axes) > 1 else lead[0] for lead in leads)
        raise Refusal(f"the leaves of {name} must have equal lengths, got {lengths}")
    if not leads or 0 in min(leads):
        raise Refusal(f"{name} must have at least one example, got none")
    return leads.pop()


def require_alike(name: str, tree, other, described: str, *, skip: int = 0) -> None:
    """Raise Refusal unless both pytrees have the same structure and leaf shapes, without the first `skip` axes."""
    structure, wanted = jax.tree.structure(tree), jax.tree.structure(other)
    if structure != wanted:
        raise Refusal(f"{name} must have the structure of {described} ({wanted}), got {structure}")
    shapes, wanted = ([np.shape(leaf)[skip:] for leaf in jax.tree.leaves(each)] for each in (tree, other))
    if shapes != wanted:
        raise Refusal(f"{name} must have leaves of the same shapes as {described} ({wanted}), got {shapes}")


def require_layers(name: str, widths: Any) -> None:
    """Raise Refusal unless `widths` is a list of widths of layers, each at least 1."""
    if isinstance(widths, str | bytes) or not isinstance(widths, Sequence):
        example = f"({widths},)" if isinstance(widths, int) else "(64,)"
        raise Refusal(f"{name} must be a list of widths, such as {example}, got {called(widths)}")
    for width in widths:
        require_at_least(name, width, 1, "Leave out the layer")


def require_scalar_loss(model, params, example) -> None:
    """Raise Refusal unless the loss of one example is a floating-point scalar. Arguments may be shapes only."""
    value = jax.eval_shape(model.value, params, example)
    if getattr(value, "shape", None) != ():
        raise Refusal(f"the loss must return a scalar for one example, got {_what(value)}")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise Refusal(f"the loss must return a floating-point number, to be differentiated, got {value.dtype}")


def require_auto(**settings: Any) -> None:
    """Raise Refusal if a setting of a general model's computation is given to a linear predictor."""
    for name, value in settings.items():
        if value != "auto":
            raise Refusal(
                f"{name} must be 'auto' for a linear predictor, whose gradients are factored, got {value!r}. "
                f"Leave it out"
            )


def _what(value) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"shape {shape}"


def table_rows(table, examples: int) -> np.ndarray:
    """Return the validated partition table, int [machines, max_records], with the padding −1 at the end of each row."""
    remedy = ". datasets.table(parts)[0] pads the parts that datasets.partition returns with −1"
    rows = numbers("partition_table", table, remedy)
    used = rows[rows >= 0]
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise Refusal(f"partition_table must be integers [machines, most], got {rows.dtype} {rows.shape}")
    if not len(rows):
        raise Refusal(f"partition_table must have a row for each machine, got shape {rows.shape}")
    if used.size and used.max() >= examples:
        raise Refusal(f"partition_table must index the {examples} examples, got {used.max()}")
    if np.unique(used).size != used.size:
        raise Refusal("partition_table must give each example to one machine at most, got a repeated index")
    return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
