"""A trusted server's noise, correlated over rounds by a factor (DP-FTRL).

A factor is a matrix F: the server releases F·x + σξ with independent normals ξ, where x_t is the sum of round t. Most
guarantees count the rounds of each machine on the sampled schedule. Those of `AnySchedule` hold for every schedule in
which machines take part seldom, with enough rounds between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import of_table, require_at_least, require_choice
from fedprivjax.noise.factors.exposures import exposures
from fedprivjax.noise.factors.interface import INDEPENDENT as INDEPENDENT
from fedprivjax.noise.factors.interface import Factor, require_by_matrix
from fedprivjax.noise.factors.interface import column_norm as column_norm
from fedprivjax.noise.factors.matrices import HALF_UNIT, MAX_ROUNDED, entries, inverse_of, require_factor, rows_of
from fedprivjax.noise.factors.of_rounds import BLT, Banded, OptimalFactor, RoundFactor, ToeplitzFactor
from fedprivjax.noise.factors.separated import (
    SeparatedExposure,
    public_rounds,
    require_separated,
    separated_exposure,
    turns,
)
from fedprivjax.noise.factors.tree import Tree, tree_of
from fedprivjax.noise.interface import Fresh, Mechanism
from fedprivjax.plan.schedule import Schedule


@final
@dataclass(frozen=True)
class AnySchedule(RoundFactor):
    """Noise of a trusted server, with a guarantee for all participation schedules within two limits.

    A machine takes part in at most `uses` rounds, and any two of its rounds are at least `separation` rounds apart. The
    guarantee is for the worst schedule within the limits. The noise and ε depend on the limits and the number of
    rounds, but not on the sampled schedule. A sampled schedule that exceeds the limits is refused.

    Args:
        factor: matrix that correlates the noise over rounds, in any form that the setting `noise_schedule` takes, such
            as "toeplitz" or `Banded(5)`.
        separation: b, least number of rounds from one round of a machine to its next.
        uses: k, largest number of rounds of a machine. None takes the largest possible number, ⌈R/b⌉ for R rounds.

    >>> AnySchedule(Banded(2), separation=2, uses=3).exposures(turns(6, 2, 3)).round(6).tolist()
    [1.732051, 1.732051]
    """

    factor: Any
    separation: int
    uses: int | None = None

    def __post_init__(self):
        require_at_least("separation", self.separation, 1)
        if self.uses is not None:
            require_at_least("uses", self.uses, 1)
        factor = round_factor(over_rounds(self.factor)) or Banded(1)
        require_by_matrix(factor)
        object.__setattr__(self, "factor", factor)

    def __str__(self) -> str:
        return f"AnySchedule({self.factor}, separation={self.separation}, uses={self.uses})"

    def matrix(self, over, workload=None, /) -> np.ndarray:
        return self.factor.known(self._worst(over))

    def exposures(self, schedule: Schedule) -> np.ndarray:
        require_separated(schedule, self.separation, self._uses(schedule))
        return np.full(schedule.machines, self._exposure(schedule).value)

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        return np.array([1 / self._exposure(schedule).value])

    def statement(self, schedule: Schedule) -> tuple[str, dict[str, int]]:
        return self._exposure(schedule).rule, {"separation": self.separation, "uses": self._uses(schedule)}

    def mechanism(self, schedule: Schedule) -> Mechanism:
        return self.factor.mechanism(self._worst(schedule))

    def first_std(self, schedule: Schedule) -> float:
        return self.factor.first_std(self._worst(schedule))

    def check(self, schedule: Schedule, dimension: int) -> None:
        Factor.check(self, schedule, dimension)
        self.factor.check(self._worst(schedule), dimension)
        if schedule.secret is None:
            require_separated(schedule, self.separation, self._uses(schedule))

    def _worst(self, schedule: Schedule) -> Schedule:
        """Return the schedule to which F is fitted, which is public."""
        size = schedule.size.rounds, self.separation, self._uses(schedule)
        return schedule.once(("turns", size), lambda: turns(*size))

    def _uses(self, schedule: Schedule) -> int:
        most = -(-schedule.size.rounds // self.separation)
        return most if self.uses is None else min(self.uses, most)

    def _exposure(self, schedule: Schedule) -> SeparatedExposure:
        uses = self._uses(schedule)
        once = ("separated exposure", self)
        return schedule.once(once, lambda: separated_exposure(self.known(schedule), self.separation, uses))


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
        size, over = np.abs(self.known(schedule)), public_rounds(schedule)
        exact, most = self.exposures(over), exposures(size.T @ size, over)
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
KINDS: dict[str, type[Factor]] = {"banded": Banded, "blt": BLT, "any_schedule": AnySchedule}  # of a table in a file


def over_rounds(noise_schedule: Any) -> Any:
    """Convert a trusted server's setting `noise_schedule` to a standard form: a name, or a factor object.

    Args:
        noise_schedule: the setting in one of these forms:

            * a name: "independent", "tree", "toeplitz" or "optimal", which is returned as it is;
            * a factor object, such as `Banded(5)` or `Tree()`, which is returned as it is;
            * {"tree": n}, for `Tree(restart=n)`, a tree that restarts after every n rounds;
            * {"kind": "banded", "bands": 5}, for `Banded(5)`;
            * {"kind": "blt", "decay": [0.9], "scale": [0.4]}, for `BLT([0.9], [0.4])`;
            * {"kind": "any_schedule", "factor": "toeplitz", "separation": 10, "uses": 6}, for `AnySchedule("toeplitz",
              10, 6)`;
            * a matrix, as a list of rows or an array;
            * an object with a method `materialize(n)` that returns the matrix for n rounds.

    >>> over_rounds({"kind": "banded", "bands": 5})
    Banded(bands=5)
    >>> over_rounds([[1.0, 0.0], [0.5, 1.0]])
    GivenFactor(rows=((1.0, 0.0), (0.5, 1.0)))
    """
    if isinstance(noise_schedule, Factor) and noise_schedule.of_rounds:
        return noise_schedule
    if hasattr(noise_schedule, "materialize"):
        return MaterialisedFactor(noise_schedule)
    if isinstance(noise_schedule, Mapping):
        table = "kind" in noise_schedule
        return of_table("noise_schedule", noise_schedule, KINDS) if table else tree_of("noise_schedule", noise_schedule)
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, (INDEPENDENT, *ROUND_FACTORS))
        return noise_schedule
    got = f"{' '.join(str(noise_schedule).split()):.60}"
    wrong = f"noise_schedule must be a name or a matrix as a list of rows, got {got}"
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
