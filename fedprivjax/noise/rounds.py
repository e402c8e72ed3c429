"""A trusted server's noise, correlated over rounds by a factor of the prefix sums (DP-FTRL).

`excess` bounds how far a factor is from the least noise in prefix sums at equal largest exposure. Let w_i ≥ 0 be
weights of machines and V ⪰ 0 with abs(V(t, s)) ≤ Σ w_i over the machines in both rounds. For every X = FᵀF,

    Σ_i w_i · max_i Σ_{t,s∈i} abs(X(t, s))  ≥  tr(VX),        tr(AᵀA·X⁻¹)·tr(VX)  ≥  (tr (A·V·Aᵀ)^½)²

so no factor has less noise than the last number divided by Σ w_i. At the optimum V is the slope X⁻¹AᵀA·X⁻¹ at pairs of
rounds of one machine, and its bound where X > 0. Here V is the slope, cut to its bounds.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Any, ClassVar

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.chooser import MAX_BYTES
from fedprivjax.noise.covariance import ROUND_UP, Recursive, banded, padded
from fedprivjax.noise.factors.exposures import exposures, groups, indicators, largest, rounds_of
from fedprivjax.noise.factors.fit import LOGGED, fitted, inverse_sums, loss_of
from fedprivjax.noise.factors.interface import INDEPENDENT as INDEPENDENT
from fedprivjax.noise.factors.interface import Factor
from fedprivjax.noise.factors.interface import require_public as require_public
from fedprivjax.noise.factors.matrices import (
    HALF_UNIT,
    MAX_ROUNDED,
    best_toeplitz,
    entries,
    inverse_of,
    require_factor,
    rows_of,
)
from fedprivjax.noise.factors.tree import Tree, tree_of
from fedprivjax.noise.interface import Fresh, Mechanism
from fedprivjax.plan.schedule import Schedule

MACHINES = 1000  # patterns with weights
POWER = 64  # of the exposure, for the first weights
SMALLEST = 1e-3  # first weight of a machine
REPEATS = 10  # of the weights' update
REPAIRS = 3  # of eigenvalues of V below 0
FLOOR = 1e-3  # eigenvalue of V, relative to its mean diagonal
MIXED = (0.0, *(2.0**k for k in range(-10, 1)))  # parts of the diagonal in V, so that it is positive definite
MAX_FITTED = 2000  # largest number of rounds of `OptimalFactor`
log = logging.getLogger("fedprivjax")


def excess(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return a bound on the noise of F relative to the least one, less 1; inf if no bound is found."""
    least = least_noise(factor, largest(factor.T @ factor, patterns, MACHINES))
    return loss_of(factor, patterns) / least - 1 if least > 0 else inf


def least_noise(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return a lower bound on `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|` of all factors, or 0 if none is found.

    Args:
        factor: F, near which the bound is good.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    gram = factor.T @ factor
    sums = inverse_sums(gram)
    if sums is None:
        return 0.0
    slope = sums.T @ sums
    used = indicators(patterns, len(factor))
    weights = _weights(used, gram, slope)
    return _nuclear(_admitted(slope, used, weights)) ** 2 / float(weights.sum())


def _weights(used: np.ndarray, gram: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return weights of machines whose sums over the machines of two rounds are near the slope where X is large."""
    size = np.abs(gram)
    squares = np.sum(used @ size * used, axis=1)
    weights = (squares / squares.max()) ** POWER
    some = weights > SMALLEST
    found, weights, squares = used[some], weights[some], squares[some]
    for _ in range(REPEATS):
        ratio = size * np.maximum(slope, 0) / np.maximum(_allowed(found, weights), 1e-300)
        weights = weights * np.sum(found @ ratio * found, axis=1) / squares
    spread = np.zeros(len(used))
    spread[some] = weights
    return spread


def _allowed(used: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the bounds of V: the sums of weights over the machines in two rounds, float64 [rounds, rounds]."""
    weighted = used * np.sqrt(weights)[:, None]
    return weighted.T @ weighted


def _admitted(slope: np.ndarray, used: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return V: the slope, with its diagonal rescaled to its bounds, cut to them, and positive semidefinite."""
    allowed = _allowed(used, weights)
    busy = np.flatnonzero(np.diag(allowed))
    found, place = np.zeros_like(slope), np.ix_(busy, busy)
    own, bounds = np.diag(allowed)[busy], allowed[place]
    scale = np.sqrt(own / np.diag(slope)[busy])
    cut = np.clip(slope[place] * scale[:, None] * scale, -bounds, bounds)
    floor = FLOOR * float(own.mean())
    for _ in range(REPAIRS):
        if not _is_positive(cut):
            values, vectors = scipy.linalg.eigh(cut, subset_by_value=(-np.inf, floor))
            cut = np.clip(cut - (vectors * (values - 2 * floor)) @ vectors.T, -bounds, bounds)
    mixed = ((1 - part) * cut + part * np.diag(own) for part in MIXED)
    found[place] = next(dual for dual in mixed if _is_positive(dual))
    return found


def _is_positive(matrix: np.ndarray) -> bool:
    """Return True if a symmetric matrix is positive definite."""
    return not scipy.linalg.lapack.dpotrf(matrix, lower=1)[1]


def _nuclear(dual: np.ndarray) -> float:
    """Return tr (A·V·Aᵀ)^½."""
    squares = np.linalg.eigvalsh(np.cumsum(np.cumsum(dual, axis=0), axis=1))
    return float(np.sqrt(squares.clip(0)).sum())


@dataclass(frozen=True)
class RoundFactor(Factor):
    """Base class of factors over rounds by their `matrix(schedule)`: a frozen dataclass of static settings.

    F's scale is free, since it scales exposures and noise alike. Named factors have F(1, 1) = 1, so that the first mean
    has noise σ.
    """

    stated: ClassVar[Stated] = Stated(
        by=("exposures",), free=("matrix", "most", "instead", "require_room", "excess"), concrete=True
    )

    def __str__(self) -> str:
        return type(self).__name__

    def exposures(self, schedule: Schedule) -> np.ndarray:
        factor = self.known(schedule)
        return exposures(factor.T @ factor, schedule)

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the noise of each entry of F·x that a machine moves, divided by the move in units of C, [releases].

        If FᵀF has negative entries, no single change reaches the bound: one release then stands for all.
        """
        factor, when = self.known(schedule), rounds_of(schedule, machine)
        columns = factor[:, when]
        if not when.size:
            return np.zeros(0)
        gram = columns.T @ columns
        moved = np.abs(columns.sum(axis=1)) if (gram >= 0).all() else np.sqrt(np.abs(gram).sum())[None]
        return 1 / moved[moved > 0]

    def mechanism(self, schedule: Schedule) -> Mechanism:
        rows = banded(self.known(schedule))
        return Recursive(padded(rows, -(-max(rows.shape[1] - 1, 1) // ROUND_UP) * ROUND_UP).astype(np.float32))

    def first_std(self, schedule: Schedule) -> float:
        return 1 / float(self.known(schedule)[0, 0])

    def check(self, schedule: Schedule, dimension: int) -> None:
        require_public(schedule)
        width = banded(self.known(schedule)).shape[1] - 1
        if 4 * width * dimension > MAX_BYTES:
            raise Refusal(
                f"noise_schedule must keep at most {MAX_BYTES / 1e9:.3g} GB of noise in a run, got "
                f"{4 * width * dimension / 1e9:.3g} GB ({width} vectors of {dimension} numbers). Use 'tree'"
            )


@dataclass(frozen=True)
class ToeplitzFactor(RoundFactor):
    """F = A^½ (the same coefficients in every column), cut to a band: entries further below the diagonal are 0.

    The bandwidth is 2^k − 1 or R − 1, or the smallest separation of a machine's rounds less one, with coefficients that
    are optimised for it. The choice with the least noise in prefix sums at equal μ on the schedule is used.
    With 100 of 1000 machines in each of 100 rounds, they have 0.39 times the variance of independent noise
    if cohorts are uniform, 0.17 times if they are cyclic.

    Source: Fichtenberger, Henzinger & Upadhyay 2023; banded: Choquette-Choo et al. 2023.
    """

    def matrix(self, over, workload=None, /) -> np.ndarray:
        return best_toeplitz(over)


@dataclass(frozen=True)
class OptimalFactor(RoundFactor):
    """F fitted to the smallest noise in prefix sums at equal μ on the schedule, for at most 2000 rounds.

    The fit starts from `ToeplitzFactor`, is never worse, and is cached on disk. It stores R vectors of noise. At 1000
    rounds it takes about 100 inversions of a matrix [R, R], 8 to 10 seconds of one core. `excess` bounds its distance
    from the optimum, and is logged above 200 rounds: less than 0.1% if rounds of each machine are equally far apart.
    For random cohorts of up to 200 rounds the bound is 0.3 to 4%, and the distance was 0.3% where a long fit was made.
    At 1000 rounds the fit ends before it converges, and the bound is near 50%.
    With 100 of 1000 machines in each of 100 rounds, prefix sums have 0.28 times the variance of independent noise
    if cohorts are uniform, 0.15 times if they are cyclic.
    """

    most: ClassVar[int] = MAX_FITTED
    instead: ClassVar[str] = "toeplitz"

    def matrix(self, over, workload=None, /) -> np.ndarray:
        patterns = [group.patterns for group in groups(over)]
        import_module("scipy.linalg")  # threads of a library can be limited once it is loaded
        with threadpool_limits(1, user_api="blas"):  # waiting threads cost more, and their number changes the result
            found = fitted(ToeplitzFactor().known(over), patterns)
            if len(found) > LOGGED:
                above = 100 * excess(found, patterns)
                log.info("%s of %d rounds: at most %.2g%% above the least noise", self, len(found), above)
        return found

    def excess(self, schedule: Schedule) -> float:
        """Return a bound on the noise in prefix sums relative to the least one, less 1; inf if no bound is found.

        >>> round(OptimalFactor().excess(Schedule(8, np.arange(8, dtype=np.int32)[:, None])), 3)
        0.0
        """
        return float(excess(self.known(schedule), [group.patterns for group in groups(schedule)]))


class OwnFactor(RoundFactor):
    """Base class of user-supplied factors."""

    def mechanism(self, schedule: Schedule) -> Mechanism:
        factor = self.known(schedule)
        diagonal = np.diag(factor)
        if (factor == np.diag(diagonal)).all():
            return Fresh((1 / diagonal).astype(np.float32))
        return super().mechanism(schedule)

    def check(self, schedule: Schedule, dimension: int) -> None:
        super().check(schedule, dimension)
        size = np.abs(self.known(schedule))
        exact, most = self.exposures(schedule), exposures(size.T @ size, schedule)
        rounded = len(size) * HALF_UNIT * np.max(most[exact > 0] / exact[exact > 0], initial=1.0)
        if not rounded <= MAX_ROUNDED:
            raise Refusal(
                f"noise_schedule must be a factor that float32 can represent: rounding may increase the sensitivity by "
                f"at most {MAX_ROUNDED:g}, got {rounded:.3g}"
            )


@dataclass(frozen=True)
class GivenFactor(OwnFactor):
    """A user-supplied F.

    Attributes:
        rows: F, lower triangular with a positive diagonal and one row per round, as a tuple of rows.

    >>> GivenFactor(((1.0, 0.0), (0.5, -1.0)))
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_schedule must have a positive diagonal, got -1 in row 2
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self):
        require_own(np.asarray(self.rows, float))

    def matrix(self, over, workload=None, /) -> np.ndarray:
        """Return F, or its leading part for the first rounds of a schedule."""
        self.require_rows(over, len(self.rows) >= entries(over))
        return np.asarray(self.rows, float)[: entries(over), : entries(over)]

    def check(self, schedule: Schedule, dimension: int) -> None:
        self.require_rows(schedule, len(self.rows) == entries(schedule))
        super().check(schedule, dimension)

    def require_rows(self, over: Any, enough: bool) -> None:
        """Raise Refusal unless there are enough rows."""
        if not enough:
            raise Refusal(f"noise_schedule must have one row per round, {entries(over)}, got {len(self.rows)}")


@dataclass(frozen=True, eq=False)
class MaterialisedFactor(OwnFactor):
    """A factor of another library: an object whose `materialize(n)` returns F for n rounds."""

    source: Any

    def matrix(self, over, workload=None, /) -> np.ndarray:
        given = GivenFactor(rows_of(np.asarray(self.source.materialize(entries(over)))))
        given.require_rows(over, len(given.rows) == entries(over))
        return given.matrix(over)


def require_own(factor: np.ndarray) -> None:
    """Raise Refusal unless a user-supplied matrix is a factor with a positive diagonal and entries of usual sizes."""
    require_factor(factor)
    diagonal = np.diag(factor)
    if (diagonal < 0).any():
        row = int(np.argmin(diagonal))
        raise Refusal(f"noise_schedule must have a positive diagonal, got {diagonal[row]:g} in row {row + 1}")
    sizes = np.abs(np.concatenate([factor, inverse_of(factor)]))
    least, largest = sizes[sizes > 0].min(), sizes.max()
    if not (largest < 1e30 and least >= 1e-30):
        raise Refusal(
            f"noise_schedule must have entries of size 1e-30 to 1e30, and so must its inverse, got {least:.3g} to "
            f"{largest:.3g}. Rescale its rows"
        )


ROUND_FACTORS: dict[str, type[Factor]] = {"tree": Tree, "toeplitz": ToeplitzFactor, "optimal": OptimalFactor}


def over_rounds(noise_schedule: Any) -> Any:
    """Return a noise schedule over rounds as a static setting: a name, or a factor.

    A factor is a `RoundFactor`, a stream such as `Tree()`, {"tree": rounds of a tree that restarts}, a matrix, or an
    object with `materialize(n)`, which returns one.

    >>> over_rounds([[1.0, 0.0], [0.5, 1.0]])
    GivenFactor(rows=((1.0, 0.0), (0.5, 1.0)))
    """
    if isinstance(noise_schedule, Factor) and noise_schedule.of_rounds:
        return noise_schedule
    if isinstance(noise_schedule, Mapping):
        return tree_of("noise_schedule", noise_schedule)
    if hasattr(noise_schedule, "materialize"):
        return MaterialisedFactor(noise_schedule)
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, (INDEPENDENT, *ROUND_FACTORS))
        return noise_schedule
    wrong = (
        f"noise_schedule must be a name or a matrix as a list of rows, got {' '.join(str(noise_schedule).split()):.60}"
    )
    if not (isinstance(noise_schedule, Sequence) or hasattr(noise_schedule, "__array__")):
        raise Refusal(wrong)
    try:
        return GivenFactor(rows_of(np.asarray(noise_schedule)))
    except (TypeError, ValueError) as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(wrong) from None


def round_factor(noise_schedule: Any) -> Factor | None:
    """Return the factor of a setting from `over_rounds`, or None for noise that is independent between rounds."""
    if isinstance(noise_schedule, Factor):
        return noise_schedule
    return ROUND_FACTORS[noise_schedule]() if noise_schedule in ROUND_FACTORS else None
