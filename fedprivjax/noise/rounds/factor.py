r"""Factors of prefix sums over rounds: a trusted server's noise, and the exposure of machines in several rounds.

The sums of clipped updates x_1, …, x_R have norm at most C per machine and round. The server releases F·x + Ξ, with F
lower triangular [R, R] and Ξ independent normals. Prefix sums then have the noise B·Ξ with B = A·F⁻¹ (A: the prefix
sums), and x_t the noise z_t = (B·Ξ)_t − (B·Ξ)_{t−1} = (F⁻¹·Ξ)_t. A machine in rounds t_1 < … < t_k moves F·x by at most

    C·√(Σ_{j,l} |(FᵀF)_{t_j,t_l}|)

which it reaches if the entries are at least 0. Later updates may depend on earlier releases, since F is lower
triangular (Denisov et al. 2022; several participations: Choquette-Choo, McMahan, Rush & Thakurta 2023).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.chooser import MAX_BYTES
from fedprivjax.noise.covariance import ROUND_UP, padded
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.noise.fresh import Fresh
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.rounds.excess import excess
from fedprivjax.noise.rounds.fit import fitted, pattern_sums
from fedprivjax.noise.rounds.sampler import Recursive, TreeOfRounds
from fedprivjax.noise.rounds.toeplitz_fit import optimised
from fedprivjax.noise.sums.correlated import HALF_UNIT, MAX_ROUNDED
from fedprivjax.noise.sums.factor import require_factor, rows_of
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.uses import Uses

log = logging.getLogger("fedprivjax")

INDEPENDENT = "independent"
MAX_FITTED = 2000  # largest number of rounds of a fitted factor
LOGGED = 200  # fits of more rounds log their excess
POWER = 0.5  # of the prefix sums


@dataclass(frozen=True)
class RoundFactor:
    """Base class of factors over rounds: a frozen dataclass of static settings. It defines `matrix`.

    The exposure of a machine is the largest change of F·x in units of C. F's scale is free, since it scales exposures
    and noise alike; named factors have F(1, 1) = 1, so that the first mean has noise σ.

    Attributes:
        most: largest number of rounds, so that F fits in memory.
    """

    stated: ClassVar[Stated] = Stated(
        by=("exposures",), free=("matrix", "most", "instead", "require_room", "excess"), concrete=True
    )
    most: ClassVar[int] = int((MAX_BYTES / 8) ** 0.5)
    instead: ClassVar[str] = "tree"  # schedule for more rounds

    def __str__(self) -> str:
        return type(self).__name__

    def matrix(self, schedule: Schedule) -> np.ndarray:
        """Return F for a public schedule, float64 [rounds, rounds], lower triangular with a positive diagonal."""
        raise Undefined(f"{type(self).__name__} must define matrix(schedule)")

    def known(self, schedule: Schedule) -> np.ndarray:
        """Return the cached `matrix`.

        Raises:
            Refusal: if the schedule has more than `most` rounds.
        """
        self.require_room(schedule)
        return schedule.once(("factor over rounds", self), lambda: self.matrix(schedule))

    def require_room(self, schedule: Schedule) -> None:
        """Raise Refusal if the schedule has more than `most` rounds."""
        if schedule.size.rounds > self.most:
            use = f"Use {self.instead!r}"
            raise Refusal(f"rounds must be at most {self.most} for {self}, got {schedule.size.rounds}. {use}")

    def exposures(self, schedule: Schedule) -> np.ndarray:
        """Return the exposure of every machine, float64 [machines]. Dropouts count as present."""
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
        """Return the sampler of z."""
        rows = banded(self.known(schedule))
        return Recursive(padded(rows, -(-max(rows.shape[1] - 1, 1) // ROUND_UP) * ROUND_UP).astype(np.float32))

    def first_std(self, schedule: Schedule) -> float:
        """Return the standard deviation of z_1."""
        return 1.0

    def check(self, schedule: Schedule, dimension: int) -> None:
        """Raise Refusal if the factor is not possible for a schedule, or its noise does not fit in memory."""
        require_public(schedule)
        width = banded(self.known(schedule)).shape[1] - 1
        if 4 * width * dimension > MAX_BYTES:
            raise Refusal(
                f"noise_schedule must keep at most {MAX_BYTES / 1e9:.3g} GB of noise in a run, got "
                f"{4 * width * dimension / 1e9:.3g} GB ({width} vectors of {dimension} numbers). Use 'tree'"
            )


@dataclass(frozen=True)
class TreeFactor(RoundFactor):
    """Binary tree over rounds: row t of F sums the last b rounds, with b the lowest set bit of t.

    It stores the fewest vectors. Prefix sums have less noise than with independent noise only if machines seldom take
    part: with 100 of 1000 machines in each of 100 rounds they have 1.35 times its variance at equal μ if cohorts are
    uniform, 0.67 times if they are cyclic.

    Source: Dwork, Naor, Pitassi & Rothblum 2010; Chan, Shi & Song 2011; DP-FTRL (Kairouz et al. 2021).
    """

    def matrix(self, schedule: Schedule) -> np.ndarray:
        t = np.arange(1, schedule.size.rounds + 1)
        return ((t > (t - (t & -t))[:, None]) & (t <= t[:, None])).astype(float)

    def exposures(self, schedule: Schedule) -> np.ndarray:
        machine, when = scheduled(schedule)
        uses = Uses(when + 1, machine, np.ones(when.size), schedule.machines)
        return np.sqrt(Tree().squares(uses, schedule.size.rounds, 0.0))

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        when = rounds_of(schedule, machine) + 1
        return 1 / Tree().contributions(when, np.ones(when.size), schedule.size.rounds, 0.0)

    def mechanism(self, schedule: Schedule) -> Mechanism:
        return TreeOfRounds(schedule.size.rounds)

    def check(self, schedule: Schedule, dimension: int) -> None:
        """Raise Refusal if participation is secret. All other schedules are possible: log₂ R vectors are stored."""
        require_public(schedule)


@dataclass(frozen=True)
class ToeplitzFactor(RoundFactor):
    """F = A^½ (the same coefficients in every column), cut to a band: entries further below the diagonal are 0.

    The bandwidth is 2^k − 1 or R − 1, or the smallest separation of a machine's rounds less one, with coefficients that
    are optimised for it. The choice with the least noise in prefix sums at equal μ on the schedule is used.
    With 100 of 1000 machines in each of 100 rounds, they have 0.39 times the variance of independent noise
    if cohorts are uniform, 0.17 times if they are cyclic.

    Source: Fichtenberger, Henzinger & Upadhyay 2023; banded: Choquette-Choo et al. 2023.
    """

    def matrix(self, schedule: Schedule) -> np.ndarray:
        rounds, widest = schedule.size.rounds, separation(schedule) - 1
        columns = [coefficients(rounds, band) for band in sorted({*bands(rounds), widest})]
        columns.append(optimised(coefficients(rounds, widest)[: widest + 1], rounds))
        return _of_column(min(columns, key=lambda column: _noise(column, schedule)))


@dataclass(frozen=True)
class OptimalFactor(RoundFactor):
    """F fitted to the smallest noise in prefix sums at equal μ on the schedule, for at most 2000 rounds.

    The fit starts from `ToeplitzFactor`, is never worse, and is cached on disk. It stores R vectors of noise.
    `excess` bounds its distance from the optimum, and is logged above 200 rounds: less than 0.1% if rounds of each
    machine are equally far apart, and looser bounds otherwise.
    With 100 of 1000 machines in each of 100 rounds, prefix sums have 0.29 times the variance of independent noise
    if cohorts are uniform, 0.15 times if they are cyclic.
    """

    most: ClassVar[int] = MAX_FITTED
    instead: ClassVar[str] = "toeplitz"

    def matrix(self, schedule: Schedule) -> np.ndarray:
        patterns = [group.patterns for group in groups(schedule)]
        found = fitted(ToeplitzFactor().known(schedule), patterns)
        if len(found) > LOGGED:
            log.info(
                "%s of %d rounds: at most %.2g%% above the least noise", self, len(found), excess(found, patterns) * 100
            )
        return found

    def excess(self, schedule: Schedule) -> float:
        """Return a bound on the noise in prefix sums relative to the least one, less 1; inf if no bound is found.

        >>> round(OptimalFactor().excess(Schedule(8, np.arange(8, dtype=np.int32)[:, None])), 3)
        0.0
        """
        return float(excess(self.known(schedule), [group.patterns for group in groups(schedule)]))


@dataclass(frozen=True)
class GivenFactor(RoundFactor):
    """A user-supplied F.

    Attributes:
        rows: F, lower triangular with a positive diagonal and one row per round, as a tuple of rows.

    >>> GivenFactor(((1.0, 0.0), (0.5, -1.0)))
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_schedule must have a positive diagonal, got -1 in row 2
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self):
        factor = np.asarray(self.rows, float)
        require_factor(factor)
        diagonal = np.diag(factor)
        if (diagonal < 0).any():
            row = int(np.argmin(diagonal))
            raise Refusal(f"noise_schedule must have a positive diagonal, got {diagonal[row]:g} in row {row + 1}")
        inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
        sizes = np.abs(np.concatenate([factor, inverse]))
        least, largest = sizes[sizes > 0].min(), sizes.max()
        if not (largest < 1e30 and least >= 1e-30):
            raise Refusal(
                f"noise_schedule must have entries of size 1e-30 to 1e30, and so must its inverse, got {least:.3g} to "
                f"{largest:.3g}. Rescale its rows"
            )

    def matrix(self, schedule: Schedule) -> np.ndarray:
        """Return F, or its leading part for the first rounds of a schedule."""
        rounds = schedule.size.rounds
        if len(self.rows) < rounds:
            raise Refusal(f"noise_schedule must have one row per round, {rounds}, got {len(self.rows)}")
        return np.asarray(self.rows, float)[:rounds, :rounds]

    def mechanism(self, schedule: Schedule) -> Mechanism:
        factor = self.known(schedule)
        diagonal = np.diag(factor)
        if (factor == np.diag(diagonal)).all():
            return Fresh((1 / diagonal).astype(np.float32))
        return super().mechanism(schedule)

    def first_std(self, schedule: Schedule) -> float:
        return 1 / self.rows[0][0]

    def check(self, schedule: Schedule, dimension: int) -> None:
        rounds = schedule.size.rounds
        if len(self.rows) != rounds:
            raise Refusal(f"noise_schedule must have one row per round, {rounds}, got {len(self.rows)}")
        super().check(schedule, dimension)
        size = np.abs(self.known(schedule))
        exact, most = self.exposures(schedule), exposures(size.T @ size, schedule)
        rounded = rounds * HALF_UNIT * np.max(most[exact > 0] / exact[exact > 0], initial=1.0)
        if not rounded <= MAX_ROUNDED:
            raise Refusal(
                f"noise_schedule must be a factor that float32 can represent: rounding may increase the sensitivity by "
                f"at most {MAX_ROUNDED:g}, got {rounded:.3g}"
            )


@dataclass(frozen=True, eq=False)
class MaterialisedFactor(RoundFactor):
    """A factor of another library: an object whose `materialize(n)` returns F for n rounds.

    jax_privacy calls F the strategy matrix C; its noising matrix is the inverse.
    """

    source: Any

    def given(self, schedule: Schedule) -> GivenFactor:
        """Return F as a `GivenFactor`, cached."""
        self.require_room(schedule)
        rounds = schedule.size.rounds
        return schedule.once(
            ("materialised factor", self), lambda: GivenFactor(rows_of(np.asarray(self.source.materialize(rounds))))
        )

    def matrix(self, schedule: Schedule) -> np.ndarray:
        return self.given(schedule).matrix(schedule)

    def mechanism(self, schedule: Schedule) -> Mechanism:
        return self.given(schedule).mechanism(schedule)

    def first_std(self, schedule: Schedule) -> float:
        return self.given(schedule).first_std(schedule)

    def check(self, schedule: Schedule, dimension: int) -> None:
        self.given(schedule).check(schedule, dimension)


ROUND_FACTORS: dict[str, type[RoundFactor]] = {
    "tree": TreeFactor,
    "toeplitz": ToeplitzFactor,
    "optimal": OptimalFactor,
}


def over_rounds(noise_schedule: Any) -> Any:
    """Return a noise schedule over rounds as a static setting: a name, or a factor.

    A factor is given as a matrix, or as an object with `materialize(n)`, which returns one.

    >>> over_rounds([[1.0, 0.0], [0.5, 1.0]])
    GivenFactor(rows=((1.0, 0.0), (0.5, 1.0)))
    """
    if isinstance(noise_schedule, RoundFactor):
        return noise_schedule
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


def require_public(schedule: Schedule) -> None:
    """Raise Refusal if participation is secret: exposures are those of a known schedule."""
    if schedule.secret is not None:
        raise Refusal(
            f"noise_schedule must be {INDEPENDENT!r} under secret participation, because the sensitivity of correlated "
            f"noise depends on who takes part, got {schedule.secret}. Use a public scheme"
        )


def round_factor(noise_schedule: Any) -> RoundFactor | None:
    """Return the factor of a setting from `over_rounds`, or None for independent noise."""
    if isinstance(noise_schedule, RoundFactor):
        return noise_schedule
    return None if noise_schedule == INDEPENDENT else ROUND_FACTORS[noise_schedule]()


# ---- exposures on a schedule


class Group(NamedTuple):
    """Machines that are scheduled equally often: int [machines], their patterns, and each machine's pattern.

    Patterns are distinct sets of rounds, from 0: int [patterns, times].
    """

    machines: np.ndarray
    patterns: np.ndarray
    pattern: np.ndarray


def exposures(gram: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Return `√(Σ_{j,l} |G(t_j, t_l)|)` over the scheduled rounds of every machine, float64 [machines].

    Args:
        gram: G = FᵀF, shape [rounds, rounds].
    """
    size, found = np.abs(gram), np.zeros(schedule.machines)
    for group in groups(schedule):
        found[group.machines] = pattern_sums(size, group.patterns)[group.pattern]
    return np.sqrt(found)


def groups(schedule: Schedule) -> list[Group]:
    """Return the machines that are scheduled at least once, by number of times."""

    def compute() -> list[Group]:
        machine, when = scheduled(schedule)
        machines, first, times = np.unique(machine, return_index=True, return_counts=True)
        found = []
        for many in np.unique(times):
            alike = times == many
            rows = when[first[alike][:, None] + np.arange(many)]
            patterns, pattern = np.unique(rows, axis=0, return_inverse=True)
            found.append(Group(machines[alike], patterns, pattern.ravel()))
        return found

    return schedule.once("groups of equal participation", compute)


def scheduled(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return all scheduled participations by machine and then round: machine and round, from 0."""
    when, slot = np.nonzero(schedule.scheduled)
    machine = schedule.participants[when, slot]
    order = np.argsort(machine, kind="stable")
    return machine[order], when[order]


def separation(schedule: Schedule) -> int:
    """Return the smallest number of rounds between two participations of one machine, or R if there are none."""
    machine, when = scheduled(schedule)
    between = np.diff(when)[machine[1:] == machine[:-1]]
    return int(np.min(between, initial=schedule.size.rounds))


def rounds_of(schedule: Schedule, machine: int) -> np.ndarray:
    """Return the rounds in which a machine is scheduled, from 0."""
    return np.flatnonzero(((schedule.participants == machine) & schedule.scheduled).any(axis=1))


# ---- matrices


def coefficients(rounds: int, band: int) -> np.ndarray:
    """Return the first column of A^½ with 0 beyond a bandwidth, float64 [rounds].

    >>> coefficients(4, 2).tolist()
    [1.0, 0.5, 0.375, 0.0]
    """
    k = np.arange(1.0, rounds)
    column = np.append(1.0, np.cumprod((k - 1 + POWER) / k))
    return np.where(np.arange(rounds) <= band, column, 0.0)


def bands(rounds: int) -> list[int]:
    """Return the candidate bandwidths: 0, 1, 3, 7, … and rounds − 1."""
    return [(1 << k) - 1 for k in range((rounds - 1).bit_length())] + [rounds - 1]


def banded(factor: np.ndarray) -> np.ndarray:
    """Return F's rows in the layout of `Recursive.inputs`, float64 [rounds, bandwidth + 1], smallest bandwidth."""
    below, left = np.nonzero(factor)
    width, rounds = int((below - left).max()), np.arange(len(factor))
    column = rounds[:, None] + np.arange(-width, 1)
    return np.where(column >= 0, factor[rounds[:, None], np.maximum(column, 0)], 0.0)


def prefix_noise(factor: np.ndarray) -> float:
    """Return ‖A·F⁻¹‖²: the variance of one coordinate of B·Ξ, summed over rounds."""
    return float(np.sum(np.cumsum(scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True), axis=0) ** 2))


def _of_column(column: np.ndarray) -> np.ndarray:
    return scipy.linalg.toeplitz(column, np.zeros(len(column)))


def _noise(column: np.ndarray, schedule: Schedule) -> float:
    """Return the variance of all prefix sums with a Toeplitz factor at exposure 1."""
    rounds = len(column)
    inverse = scipy.signal.lfilter([1.0], column[: np.flatnonzero(column)[-1] + 1], np.eye(1, rounds)[0])
    squares = np.cumsum(inverse) ** 2 @ np.arange(rounds, 0, -1.0)
    return float(squares * exposures(_toeplitz_gram(column), schedule).max() ** 2)


def _toeplitz_gram(column: np.ndarray) -> np.ndarray:
    """Return FᵀF of a lower triangular Toeplitz matrix, by diagonals."""
    rounds = len(column)
    gram = np.zeros((rounds, rounds))
    for lag in range(int(np.flatnonzero(column)[-1]) + 1):
        sums = np.cumsum(column[lag:] * column[: rounds - lag])[::-1]
        place = np.arange(rounds - lag)
        gram[place, place + lag] = gram[place + lag, place] = sums
    return gram
