"""Fit of a factor over rounds to a participation schedule, by a descent over X = FᵀF.

The noise in prefix sums, tr(AᵀA·X⁻¹), is convex. So is the largest exposure of a machine in two cases, which the fit
keeps to. `fedprivjax.noise.server_factors` bounds the distance from the least noise of all factors.

* Separated machines: X is 0 at two rounds of one machine. The exposure is max_i Σ_{t∈i} X(t, t).
* Cohorts: X(t, s) ≥ 0 at rounds t ≠ s of one machine. The exposure is max_i Σ_{t,s∈i} X(t, s). The descent runs in
  float32.

Norms over machines approximate the largest exposure, one after another. The descent is L-BFGS from the curvature of the
noise, which the cosine transform makes nearly diagonal, with bounds on entries.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fedprivjax.noise.factors.exposures import indicators, largest, pattern_sums, together
from fedprivjax.noise.factors.matrices import cached_fit, inverse_of

SMALLEST = 1e-6  # size of a step
POWERS = (16, 64)  # norms over separated machines
ROUNDED = 1e-12  # entries of X that count as 0, relative to its largest
STAGES = ((16, 0.2), (64, 0.35), (256, 0.4), (1024, 0.05))  # norms over cohorts, and their parts of all evaluations
WORK = 6 * 10**7  # evaluations of the loss of cohorts, times squared rounds
LEAST, MOST = 40, 1000  # evaluations
MACHINES = 400  # patterns in the norm of a stage: those with the largest exposures at its start
COUNTED = 1e-6  # weight of a machine in the gradient, relative to the largest
FIRST = 4.0  # size of the first step for norm 1
LOGGED = 200  # fits of more rounds log their progress, and their distance from the optimum
log = logging.getLogger("fedprivjax")


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


SEPARATED = Limits(evaluations=41, enough=1e-5, averaged=1, memory=20)  # for each norm
COHORTS = Limits(evaluations=0, enough=1e-5, averaged=5, memory=20)

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def fitted(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a factor F with nearly the least noise in running sums at a fixed privacy level.

    A trusted server releases F·x + σξ. Here x_t is the sum of messages in round t, and ξ are independent standard
    normals. The fit minimises the product v·e of two numbers:

    * v = ‖A·F⁻¹‖², the variance of one coordinate of the noise in the running sums A·x, summed over rounds, for σ = 1.
      A has ones on and below the diagonal;
    * e = `max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|`, where machine i takes part in the rounds t_1, t_2, …. With messages of norm
      at most 1, no machine can change F·x by more than √e in L2 norm.

    The result is float64 [rounds, rounds], with F(1, 1) = 1. Its product v·e is at most the product for `start`.

    Args:
        start: initial F, lower triangular, shape [rounds, rounds].
        patterns: sets of rounds, counted from 0. Each machine takes part in the rounds of one of these sets. The sets
            are given as a list of arrays, one for each size k of sets: int [sets, k], with one set per row.
    """
    return cached_fit(
        "round factors", tuple(patterns), start, lambda: _fit(start, patterns), lambda found: (np.diag(found) > 0).all()
    )


def _fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    found = separated_fit(start, patterns) if is_separated(start, patterns) else cohort_fit(start, patterns)
    return min(found / found[0, 0], start / start[0, 0], key=lambda factor: loss_of(factor, patterns))


def is_separated(start: np.ndarray, patterns: Sequence[np.ndarray]) -> bool:
    """Return True if no machine moves two columns of the factor that are not orthogonal."""
    gram = np.abs(start.T @ start)
    np.fill_diagonal(gram, 0.0)
    return not (gram * together(patterns, len(start)) > ROUNDED * float(start[:, 0] @ start[:, 0])).any()


def separated_fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a factor with nearly the least noise at equal largest exposure, among those with orthogonal columns.

    Args:
        start: initial factor, for which `is_separated` holds.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    rounds = len(start)
    free = ~together(patterns, rounds)
    gram = np.where(free, start.T @ start, 0.0)
    used = indicators(patterns, rounds)
    for place, power in enumerate(POWERS, 1):
        _log_part(rounds, place, len(POWERS))
        gram = descended(gram, _loss_of(used, power, separated=True), lambda *_: free, lambda one: one, SEPARATED)
    return factor_of(_levelled(gram, used))


def cohort_fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a factor with little noise at equal largest exposure.

    Args:
        start: initial factor, with FᵀF ≥ 0 at rounds of one machine.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    rounds = len(start)
    bounded = together(patterns, rounds)
    gram = (start.T @ start).astype(np.float32)
    evaluations = min(max(WORK // rounds**2, LEAST), MOST)
    for place, (power, part) in enumerate(STAGES, 1):
        _log_part(rounds, place, len(STAGES))
        used = indicators(largest(gram, patterns, MACHINES), rounds).astype(np.float32)
        gram = descended(
            gram,
            _loss_of(used, power, separated=False),
            lambda one, slope: ~(bounded & (one <= 0) & (slope > 0)),
            lambda one: np.where(bounded, np.maximum(one, 0), one),
            COHORTS._replace(evaluations=round(part * evaluations), first=min(1.0, FIRST / power)),
        )
    return factor_of(gram.astype(float))


def _log_part(rounds: int, place: int, parts: int) -> None:
    """Log the progress of a fit of many rounds."""
    if rounds > LOGGED:
        log.info("fitting a noise factor over %d rounds (%d of %d)", rounds, place, parts)


def _loss_of(used: np.ndarray, power: int, *, separated: bool) -> Loss:
    """Return the function from X to the logarithm of the noise times the exposure, and its gradient.

    It is inf unless X is positive definite.
    """

    def loss(gram: np.ndarray) -> tuple[float, np.ndarray]:
        sums = inverse_sums(gram)
        if sums is None:
            return np.inf, gram
        noise = noise_of(sums)
        squares = used @ np.diag(gram) if separated else np.sum(used @ gram * used, axis=1, dtype=float)
        most = float(squares.max())
        powers = (squares / most) ** power
        total = float(powers.sum())
        slope = sums.T @ sums
        slope *= -1 / noise
        if separated:
            slope[np.diag_indices_from(slope)] += used.T @ (powers / squares) / total
        else:
            some = powers > COUNTED
            weighted = used[some] * np.sqrt(powers[some] / squares[some] / total).astype(gram.dtype)[:, None]
            slope += weighted.T @ weighted
        return float(np.log(noise) + np.log(most) + np.log(total) / power), slope

    return loss


def _levelled(gram: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return X with its rounds rescaled, so that all largest exposures are 1."""
    most = (used * (used @ np.diag(gram))[:, None]).max(axis=0)
    scale = 1 / np.sqrt(np.where(most > 0, most, most.max()))
    return gram * scale[:, None] * scale


def loss_of(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|`."""
    gram = np.abs(factor.T @ factor)
    return prefix_noise(factor) * float(max(pattern_sums(gram, t).max() for t in patterns))


def prefix_noise(factor: np.ndarray) -> float:
    """Return ‖A·F⁻¹‖²: the variance of one coordinate of B·Ξ, summed over rounds."""
    return float(np.sum(np.cumsum(inverse_of(factor), axis=0) ** 2))


def factor_of(gram: np.ndarray) -> np.ndarray:
    """Return the lower triangular F with FᵀF = X, if X is positive definite."""
    lower = scipy.linalg.cholesky(gram[::-1, ::-1], lower=True)
    return np.ascontiguousarray(lower[::-1, ::-1].T)


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
    """Return the noise of running sums over rounds with a factor F: the trace tr(AᵀA·X⁻¹), for X = FᵀF.

    A trusted server releases F·x + ξ. Here x_t is the sum of the messages of round t, and ξ are independent standard
    normals. The trace is the noise variance of one coordinate of the running sums A·x, summed over rounds. A has ones
    on and below the diagonal.

    Args:
        sums: A·X⁻¹, shape [rounds, rounds].
    """
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
