"""User-supplied factors over rounds: matrices, and those of other libraries."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.fresh import Fresh
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.rounds.exposures import exposures
from fedprivjax.noise.rounds.factor import RoundFactor
from fedprivjax.noise.sums.correlated import HALF_UNIT, MAX_ROUNDED
from fedprivjax.noise.sums.factor import require_factor, rows_of
from fedprivjax.plan.schedule import Schedule


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
