"""Refusals of data, parameters and tables that a problem cannot use: one line each, before anything is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_positive
from fedprivjax.problem.losses import LinearLoss


def numbers(name: str, values) -> np.ndarray:
    """Values as an array of numbers.

    >>> numbers("labels", ["a", "b"])
    Traceback (most recent call last):
    fedprivjax.Refusal: labels must be numbers, got <U1
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise Refusal(f"{name} must be an array of numbers, got rows of different lengths") from None
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise Refusal(f"{name} must be numbers, got {array.dtype}")
    return array


def require_finite_examples(name: str, leaves) -> None:
    """Refuse leaves [examples, ...] in which any entry is infinite or NaN."""
    for leaf in leaves:
        array = np.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.inexact):
            bad = ~np.isfinite(array.reshape(array.shape[0], -1)).all(axis=1)
            if bad.any():
                raise Refusal(f"{name} must be finite, got {bad.sum()} bad examples (first at {np.argmax(bad)})")


def require_features(name: str, features: np.ndarray, width: int) -> None:
    """Refuse features that are not finite, [examples, width], with at least one example."""
    if features.ndim != 2 or features.shape[1] != width:
        raise Refusal(f"{name} must have shape [examples, {width}], got {features.shape}")
    if not features.size:
        raise Refusal(f"{name} must have at least one example and one feature, got shape {features.shape}")
    require_finite_examples(name, [features])


def require_paired(labels: np.ndarray, name: str, shape: tuple[int, ...]) -> None:
    """Refuse labels that are not one for each of the examples `name`, whose leading axes have this shape."""
    if labels.shape != shape:
        raise Refusal(f"labels must have shape {shape} to match {name}, got {labels.shape}")


def require_labels(labels: np.ndarray, loss: LinearLoss) -> None:
    """Refuse labels outside the loss's range, infinite ones, and fractions where they are classes."""
    low, high = loss.label_range()
    wrong = labels[~((labels >= low) & (labels <= high) & np.isfinite(labels))]
    if wrong.size:
        raise Refusal(f"labels must {'be finite' if np.isinf(high) else f'lie in {low}..{high}'}, got {wrong[0]}")
    broken = labels[labels != np.round(labels)] if loss.classifies else labels[:0]
    if broken.size:
        raise Refusal(f"labels must be whole numbers, the classes, got {broken[0]}")


def require_parameters(name: str, params: Any) -> None:
    """Refuse parameters, a pytree of arrays, that cannot be differentiated in or are not finite."""
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise Refusal(f"{name} must be floating-point numbers, got {leaf.dtype}")
        if not np.isfinite(leaf).all():
            raise Refusal(f"{name} must be finite, got an infinite or NaN entry")


def leading_axes(name: str, data, axes: tuple[str, ...]) -> tuple[int, ...]:
    """The sizes of the named leading axes, which all leaves share.

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
    """Refuse a pytree whose leaves, their first `skip` axes aside, are not shaped as the other's."""
    structure, wanted = jax.tree.structure(tree), jax.tree.structure(other)
    if structure != wanted:
        raise Refusal(f"{name} must have the structure of {described} ({wanted}), got {structure}")
    shapes, wanted = ([np.shape(leaf)[skip:] for leaf in jax.tree.leaves(each)] for each in (tree, other))
    if shapes != wanted:
        raise Refusal(f"{name} must have leaves shaped as {described}'s ({wanted}), got {shapes}")


def require_scalar_loss(model, params, example) -> None:
    """Refuse a loss of one example that is not a scalar; all may be shapes only."""
    value = jax.eval_shape(model.value, params, example)
    if getattr(value, "shape", None) != ():
        raise Refusal(f"the loss must return a scalar for one example, got shape {getattr(value, 'shape', value)}")


def table_rows(table, examples: int) -> np.ndarray:
    """Which examples each machine owns, [machines, most], with the padding −1 moved to the end of a row."""
    rows = numbers("table", table)
    used = rows[rows >= 0]
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise Refusal(f"table must be integers [machines, most], got {rows.dtype} {rows.shape}")
    if used.size and used.max() >= examples:
        raise Refusal(f"table must index the {examples} examples, got {used.max()}")
    if np.unique(used).size != used.size:
        raise Refusal("table must give each example to one machine at most, got a repeated index")
    return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)


def require_constants(lipschitz: Any, smoothness: Any, distance: Any) -> None:
    """Refuse constants of a problem, where they are declared, that are not positive and finite."""
    for value in np.unique(lipschitz).tolist() if np.ndim(lipschitz) else [lipschitz]:
        require_positive("lipschitz", value, optional=True)
    require_positive("smoothness", smoothness, optional=True)
    require_positive("distance", distance, optional=True)


def require_weights(weights: tuple[float, ...] | None) -> None:
    """Refuse weights of machines, where there are any, that are not positive or do not add up to 1.

    >>> require_weights((0.5, 0.3))
    Traceback (most recent call last):
    fedprivjax.Refusal: machine_weights must be positive and add up to 1, got a sum of 0.8
    """
    if weights is None:
        return
    total = np.sum(weights)
    if np.ndim(weights) != 1 or not (np.array(weights) > 0).all() or not abs(total - 1) <= 1e-6:
        raise Refusal(f"machine_weights must be positive and add up to 1, got a sum of {total:g}")
