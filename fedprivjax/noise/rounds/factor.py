r"""Factors of prefix sums over rounds: a trusted server's noise, and the exposure of machines in several rounds.

The sums of clipped updates x_1, …, x_R have norm at most C per machine and round. The server releases F·x + Ξ, with F
lower triangular [R, R] and Ξ independent normals. Prefix sums then have the noise B·Ξ with B = A·F⁻¹ (A: the prefix
sums), and x_t the noise z_t = (B·Ξ)_t − (B·Ξ)_{t−1} = (F⁻¹·Ξ)_t. A machine in rounds t_1 < … < t_k moves F·x by at most

    C·√(Σ_{j,l} |(FᵀF)_{t_j,t_l}|)

which it reaches if the entries are at least 0. Later updates may depend on earlier releases, since F is lower
triangular (Denisov et al. 2022; several participations: Choquette-Choo, McMahan, Rush & Thakurta 2023).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.noise.chooser import MAX_BYTES
from fedprivjax.noise.covariance import ROUND_UP, padded
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.rounds.exposures import exposures, rounds_of
from fedprivjax.noise.rounds.sampler import Recursive, banded
from fedprivjax.plan.schedule import Schedule

INDEPENDENT = "independent"


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


def require_public(schedule: Schedule) -> None:
    """Raise Refusal if participation is secret: exposures are those of a known schedule."""
    if schedule.secret is not None:
        raise Refusal(
            f"noise_schedule must be {INDEPENDENT!r} under secret participation, because the sensitivity of correlated "
            f"noise depends on who takes part, got {schedule.secret}. Use a public scheme"
        )
