"""Fit of a factor over rounds to a participation schedule."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedprivjax.disk_cache import cached, code_digest
from fedprivjax.noise.rounds.cohort_fit import cohort_fit
from fedprivjax.noise.rounds.patterns import loss_of
from fedprivjax.noise.rounds.separated_fit import is_separated, separated_fit

PACKAGES = ("numpy", "scipy")


def fitted(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return F that nearly minimises `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|`, float64 [rounds, rounds].

    It is scaled to F(1, 1) = 1, and never worse than the start. Orthogonal columns of a machine remain so, see
    `separated_fit.py`. Other columns of a machine keep products of at least 0, see `cohort_fit.py`.

    Args:
        start: initial factor.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    key = start, *patterns, code_digest(Path(__file__).parent, packages=PACKAGES)
    return cached("round factors", key, lambda: _fit(start, patterns), lambda found: _is_factor(found, start))


def _is_factor(found: np.ndarray, start: np.ndarray) -> bool:
    """Return True if a cached array is lower triangular with a positive diagonal."""
    fits = found.shape == start.shape and found.dtype == float and bool(np.isfinite(found).all())
    return fits and not np.triu(found, 1).any() and bool((np.diag(found) > 0).all())


def _fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    found = separated_fit(start, patterns) if is_separated(start, patterns) else cohort_fit(start, patterns)
    return min(found / found[0, 0], start / start[0, 0], key=lambda factor: loss_of(factor, patterns))
