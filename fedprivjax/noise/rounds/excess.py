"""Bound on how far a factor over rounds is from the least noise in prefix sums at equal largest exposure.

Let w_i ≥ 0 be weights of machines and V ⪰ 0 with |V(t, s)| ≤ Σ w_i over the machines in both rounds. For every X = FᵀF,

    Σ_i w_i · max_i Σ_{t,s∈i} |X(t, s)|  ≥  tr(VX),        tr(AᵀA·X⁻¹)·tr(VX)  ≥  (tr (A·V·Aᵀ)^½)²

so no factor has less noise than the last number divided by Σ w_i. At the optimum V is the slope X⁻¹AᵀA·X⁻¹ at pairs of
rounds of one machine, and its bound where X > 0. Both are tried.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
import scipy

from fedprivjax.noise.rounds.fit import busiest, loss_of
from fedprivjax.noise.rounds.separated_fit import indicators, inverse_sums

REPEATS = 20  # of the weights' update


def excess(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return a bound on the noise of F relative to the least one, less 1; inf if no bound is found."""
    least = least_noise(factor, busiest(patterns))
    return loss_of(factor, patterns) / least - 1 if least > 0 else inf


def least_noise(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return a lower bound on `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|` of all factors, or 0 if none is found.

    Args:
        factor: F, near which the bound is good.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    sums = inverse_sums(factor.T @ factor)
    if sums is None:
        return 0.0
    used, slope = indicators(patterns, len(factor)), sums.T @ sums
    weights = _weights(used, np.diag(slope))
    allowed = used.T @ (weights[:, None] * used)
    return max(_nuclear(one) ** 2 / weights.sum() for one in (allowed, _admitted(slope, allowed)))


def _admitted(slope: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the slope, rescaled to its bounds, or zeros if that is not positive semidefinite."""
    busy = np.flatnonzero(np.diag(allowed))
    found, place = np.zeros_like(slope), np.ix_(busy, busy)
    scale = np.sqrt(np.diag(allowed)[busy] / np.diag(slope)[busy])
    dual = np.where(allowed[place] > 0, slope[place] * scale[:, None] * scale, 0.0)
    some = dual != 0
    dual *= float(np.min(allowed[place][some] / np.abs(dual[some]), initial=1.0))
    if not scipy.linalg.lapack.dpotrf(dual, lower=1)[1]:
        found[place] = dual
    return found


def _nuclear(dual: np.ndarray) -> float:
    """Return tr (A·V·Aᵀ)^½."""
    squares = np.linalg.eigvalsh(np.cumsum(np.cumsum(dual, axis=0), axis=1))
    return float(np.sqrt(squares.clip(0)).sum())


def _weights(used: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """Return weights of machines whose sums over the machines of a round are near its entry of the slope."""
    weights = np.ones(len(used))
    for _ in range(REPEATS):
        together = used.T @ weights
        weights *= used @ np.where(together > 0, diagonal / np.maximum(together, 1e-300), 0.0) / used.sum(axis=1)
    return weights
