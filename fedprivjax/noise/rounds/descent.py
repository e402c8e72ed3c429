"""Descent over X = FᵀF, for factors F over rounds: L-BFGS from the curvature of the noise, with bounds on entries.

The noise in prefix sums is tr(AᵀA·X⁻¹). The cosine transform makes its curvature nearly diagonal.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

SMALLEST = 1e-6  # size of a step


class Limits(NamedTuple):
    """Limits of a descent.

    Attributes:
        evaluations: largest number of evaluations of the loss, but for those of the last step.
        enough: relative fall of the loss in a step, on average over the last steps, that ends the descent.
        averaged: number of these last steps.
        memory: number of previous steps that approximate the curvature.
        first: size of the first step, relative to that of the curvature of the noise alone.
    """

    evaluations: int
    enough: float
    averaged: int
    memory: int
    first: float = 1.0


Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def descended(
    gram: np.ndarray,
    loss: Loss,
    free: Callable[[np.ndarray, np.ndarray], np.ndarray],
    projected: Callable[[np.ndarray], np.ndarray],
    limits: Limits,
) -> np.ndarray:
    """Return X after a descent, in the dtype of the first X.

    Args:
        gram: first X.
        loss: logarithm of the loss of X, inf unless X is positive definite, and its gradient.
        free: function of X and the gradient: True for entries that may move, bool [rounds, rounds].
        projected: projection on the bounds of X.
        limits: when to end.
    """
    (value, slope), curved = loss(gram), inverse_curvature(gram)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    values, left = [value], limits.evaluations - 1
    while left > 0:
        moving = free(gram, slope)
        masked = np.where(moving, slope, 0)
        direction = -np.where(moving, _preconditioned(masked, steps, lambda one: np.where(moving, curved(one), 0)), 0)  # noqa: B023
        size = 1.0 if steps else limits.first
        found, tried = _searched(gram, value, masked, direction * size, loss, projected)
        left -= tried
        if found is None:
            if not steps:
                break
            steps = []
            continue
        after, value, next_slope = found
        both = moving & free(after, next_slope)
        step, change = np.where(both, after - gram, 0), np.where(both, next_slope - slope, 0)
        if np.vdot(step, change) > 0:
            steps = [*steps[1 - limits.memory :], (step, change)]
        gram, slope, values = after, next_slope, [*values[-limits.averaged :], value]
        if len(values) > limits.averaged and values[0] - value < limits.averaged * limits.enough:
            break
    return gram


def _searched(
    gram: np.ndarray,
    value: float,
    slope: np.ndarray,
    direction: np.ndarray,
    loss: Loss,
    projected: Callable[[np.ndarray], np.ndarray],
) -> tuple[tuple[np.ndarray, float, np.ndarray] | None, int]:
    """Return the first X at which the loss falls, its loss and gradient, or None, and the number of evaluations.

    Steps are shortened until X is positive definite and the loss falls.
    """
    size, tried = 1.0, 0
    while size > SMALLEST and np.vdot(direction, slope) < 0:
        after = projected(gram + size * direction)
        tried += 1
        next_value, next_slope = loss(after)
        if next_value <= value + 1e-4 * float(np.vdot(slope, after - gram)):
            return (after, next_value, next_slope), tried
        size *= _shorter(next_value - value, size * float(np.vdot(direction, slope)))
    return None, tried


def _shorter(rise: float, slope: float) -> float:
    """Return the ratio of the next step's size to that of a step that failed, by a parabola."""
    return float(np.clip(-slope / (2 * (rise - slope)), 0.1, 0.5))


def inverse_sums(gram: np.ndarray) -> np.ndarray | None:
    """Return A·X⁻¹, or None unless X is positive definite."""
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (gram,))
    lower, info = potrf(gram, lower=1)
    if info:
        return None
    inverse = potri(lower, lower=1, overwrite_c=1)[0]  # 0 above the diagonal
    found = np.add(inverse, inverse.T, order="C")
    found[np.diag_indices_from(found)] /= 2
    return np.cumsum(found, axis=0, out=found)


def noise_of(sums: np.ndarray) -> float:
    """Return the noise tr(AᵀA·X⁻¹), given A·X⁻¹."""
    return float(np.sum(np.tril(sums), dtype=float))


def inverse_curvature(gram: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the product of a matrix and the inverse curvature of the log noise, diagonal in the cosine transform."""

    def transformed(matrix: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.fft.dctn(matrix, type=4, norm="ortho"))

    sums = inverse_sums(gram)
    assert sums is not None
    own, slope = np.diag(transformed(gram)), np.diag(transformed(sums.T @ sums))
    scale = noise_of(sums) * np.outer(own, own) / (np.outer(own, slope) + np.outer(slope, own))

    def curved(matrix: np.ndarray) -> np.ndarray:
        found = transformed(matrix)
        found *= scale
        return transformed(found)

    return curved


def _preconditioned(
    slope: np.ndarray, steps: list[tuple[np.ndarray, np.ndarray]], curved: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the product of the approximate inverse curvature and the gradient (two-loop recursion)."""
    found, shares = slope.copy(), []
    for step, change in reversed(steps):
        shares.append(float(np.vdot(step, found) / np.vdot(step, change)))
        _add(found, change, -shares[-1])
    found = curved(found)
    if steps:
        step, change = steps[-1]
        found *= float(np.vdot(step, change) / np.vdot(change, curved(change)))
    for (step, change), share in zip(steps, reversed(shares), strict=True):
        _add(found, step, share - float(np.vdot(change, found) / np.vdot(step, change)))
    return found


def _add(matrix: np.ndarray, other: np.ndarray, times: float) -> None:
    """Add a multiple of another matrix in place."""
    (axpy,) = scipy.linalg.get_blas_funcs(("axpy",), (matrix,))
    axpy(other.reshape(-1), matrix.reshape(-1), a=times)
