"""Matrices of factors: checks, user-supplied rows, coefficients of Toeplitz matrices, and the cache of fits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.disk_cache import cached, code_digest

HALF_UNIT = 2.0**-24  # relative rounding error of float32
MAX_ROUNDED = 1e-3  # largest relative increase of the sensitivity by float32 rounding
CODE = (Path(__file__).parent,)  # folders that a cached factor depends on
PACKAGES = ("numpy", "scipy")


def entries(over: Any) -> int:
    """Return the number of entries of a factor, over a schedule's rounds or a number of messages."""
    return over if isinstance(over, int) else over.size.rounds


def rows_of(matrix: Any) -> tuple[tuple[float, ...], ...]:
    """Return a matrix as a tuple of rows."""
    return tuple(tuple(float(value) for value in row) for row in matrix)


def inverse_of(factor: np.ndarray) -> np.ndarray:
    """Return F⁻¹, which maps independent normals to the noise of each entry."""
    return scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)


def coefficients(count: int, band: int | None = None, power: float = 0.5) -> np.ndarray:
    """Return the first column of A^p, the coefficients of (1 − z)^(−p), with 0 beyond a bandwidth; float64 [count].

    >>> coefficients(4, 2).tolist()
    [1.0, 0.5, 0.375, 0.0]
    """
    k = np.arange(1.0, count)
    column = np.append(1.0, np.cumprod((k - 1 + power) / k))
    return column if band is None else np.where(np.arange(count) <= band, column, 0.0)


def toeplitz(column: np.ndarray) -> np.ndarray:
    """Return the lower triangular matrix with the same coefficients in every column."""
    return scipy.linalg.toeplitz(column, np.zeros(len(column)))


def require_factor(factor: np.ndarray) -> None:
    """Raise Refusal unless the factor is a finite lower triangular matrix without a 0 on its diagonal.

    >>> require_factor(np.array([[1.0, 0.5], [0.0, 1.0]]))
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_schedule must be a lower triangular matrix, got 0.5 in row 1, column 2
    """
    if factor.ndim != 2 or factor.shape[0] != factor.shape[1]:
        raise Refusal(f"noise_schedule must be a square matrix, got shape {factor.shape}")
    if not np.isfinite(factor).all():
        raise Refusal("noise_schedule must be finite, got a matrix with entries that are not")
    row, column = np.unravel_index(np.argmax(np.abs(np.triu(factor, 1))), factor.shape)
    if factor[row, column] != 0 and column > row:
        found = f"{factor[row, column]:g} in row {row + 1}, column {column + 1}"
        raise Refusal(f"noise_schedule must be a lower triangular matrix, got {found}")
    diagonal = np.abs(np.diag(factor))
    if (diagonal == 0).any():
        raise Refusal(f"noise_schedule must have no 0 on its diagonal, got one in row {np.argmin(diagonal) + 1}")


def cached_fit(
    kind: str, key: tuple, start: np.ndarray, fit: Callable[[], np.ndarray], valid: Callable[[np.ndarray], Any]
) -> np.ndarray:
    """Return a fitted factor, cached on disk.

    Args:
        kind: name of the cache.
        key: everything that the fit depends on, besides the start and the code.
        start: initial factor, of the same shape.
        fit: function that computes the factor.
        valid: further condition on a cached factor.
    """

    def is_valid(found: np.ndarray) -> bool:
        if found.shape != start.shape or found.dtype != float:
            return False
        try:
            require_factor(found)
        except Refusal:
            return False
        return bool(valid(found))

    return cached(kind, (start, *key, code_digest(*CODE, packages=PACKAGES)), fit, is_valid)
