r"""The law of noise that is correlated over each machine's messages, and what follows from it.

All machines have one factor F, cut to as many messages as they send, and a scale r_i each; with `c` the messages that a
machine has sent, σ·z_t stands in the aggregate, where

    z_t = (1/m)·Σ_i r_i·(B·ξ_i)_{c_i(t)},        Cov(z)(s, t) = (1/m²)·Σ_i r_i²·(B·Bᵀ)_{c_i(s), c_i(t)}

so that one correlated vector a round has its law. Its factor is dense: nothing is ever taken back whole.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.chooser import MOST_BYTES, round_divisors
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.sums.factor import require_factor
from fedprivjax.noise.sums.materialised import Written, WrittenInputs
from fedprivjax.noise.sums.triangular import Triangular
from fedprivjax.noise.sums.workload import sent_rounds
from fedprivjax.plan.schedule import Schedule

ROUND_UP = 32  # messages, so that most schedules share one program

HALF_UNIT = 2.0**-24  # relative, of float32

MOST_ROUNDED = 1e-3  # relative: what float32 may add to what one increment moves

WAYS = {
    "auto": "the same as covariance",
    "covariance": "one correlated vector a round, from the factor of the schedule's covariance",
    "materialised": "every machine's noise written out, as messages carry it",
}


@dataclass(frozen=True, eq=False)
class CorrelatedSums:
    """Noise on the running sums of a schedule's machines.

    Attributes:
        factor: F, of the most messages that a machine sends, float64 [messages, messages].
        schedule: who sends when.
        shares: each machine's part of the largest μ, [machines].
    """

    factor: np.ndarray
    schedule: Schedule
    shares: np.ndarray

    def __post_init__(self):
        factor, most = np.asarray(self.factor), int(self.schedule.total.max())
        if not np.isrealobj(factor):
            raise Refusal(f"noise_schedule must be a matrix of real numbers, got {factor.dtype}")
        object.__setattr__(self, "factor", factor.astype(float))
        require_factor(self.factor)
        if len(factor) != most:
            raise Refusal(f"noise_schedule must make a factor of {most} rows for this schedule, got {len(factor)}")
        rounded = _rounded(self.factor, self.inverse)
        if not rounded <= MOST_ROUNDED:
            raise Refusal(
                f"noise_schedule must be a factor whose inverse is held by float32, in which one increment moves "
                f"messages by at most {MOST_ROUNDED:g} more, got {rounded:.3g}"
            )

    @cached_property
    def inverse(self) -> np.ndarray:
        """F⁻¹, what of the normals stands in each message."""
        return scipy.linalg.solve_triangular(self.factor, np.eye(len(self.factor)), lower=True)

    @cached_property
    def scale(self) -> np.ndarray:
        """r of every machine, with which it spends its whole share: float64 [machines]."""
        return self._norms[self.schedule.total] / self.shares

    @cached_property
    def exposure(self) -> np.ndarray:
        """The most that a unit change of one increment moves F·s of its machine, over the noise: float64 [machines]."""
        sends = self.schedule.total > 0
        return np.where(sends, self._norms[self.schedule.total] / self.scale, 0.0)

    def releases(self, machine: int) -> np.ndarray:
        """The relative noise of each release that one sample of the machine moves, of the sample that moves them most;
        releases are the entries of F·s + ξ, [releases]."""
        messages = int(self.schedule.total[machine])
        cut = self.factor[:messages, :messages]
        column = np.abs(cut[:, int(np.argmax(np.linalg.norm(cut, axis=0)))])
        return self.scale[machine] / column[column > 0]

    @cached_property
    def variances(self) -> np.ndarray:
        """Of one coordinate of z_t, float64 [rounds]."""
        return np.sum(self.rows**2, axis=1)

    @cached_property
    def rows(self) -> np.ndarray:
        """The lower triangular factor of z's covariance over rounds, float64 [rounds, rounds]."""
        rounds = self.schedule.size.rounds
        if 8 * rounds**2 > MOST_BYTES:
            most = int((MOST_BYTES / 8) ** 0.5)
            raise Refusal(f"noise that is correlated over all messages must have at most {most} rounds, got {rounds}")
        try:
            return np.cumsum(np.linalg.cholesky(self._of_increments()), axis=0)
        except np.linalg.LinAlgError:
            raise Refusal(
                "noise_schedule must be a factor whose noise has a covariance that float64 can factor over rounds, "
                "got one with entries too far apart"
            ) from None

    def mechanism(self, method: str = "auto") -> Mechanism:
        """What draws it."""
        require_choice("noise method", method, WAYS)
        return self._written() if method == "materialised" else Triangular(self.rows.astype(np.float32))

    def _of_increments(self) -> np.ndarray:
        """The covariance of what is added to z in each round, float64 [rounds, rounds]."""
        schedule, rounds = self.schedule, self.schedule.size.rounds
        gram, total = self.inverse @ self.inverse.T, np.zeros(rounds * rounds)
        for machines, when in sent_rounds(schedule):
            pairs, sent = when[:, :, None] * rounds + when[:, None, :], when.shape[1]
            squares = self.scale[machines, None, None] ** 2 * gram[:sent, :sent]
            total += np.bincount(pairs.ravel(), squares.ravel(), rounds * rounds)
        return total.reshape(rounds, rounds) / schedule.divisor**2

    def _written(self) -> Written:
        schedule = self.schedule
        machine = np.where(schedule.present, schedule.participants, schedule.machines).astype(np.int32)
        message = np.where(schedule.present, schedule.counts - 1, 0).astype(np.int32)
        relative = np.where(schedule.present, self.scale[schedule.participants], 0.0).astype(np.float32)
        inputs, places = WrittenInputs(machine, message, relative, round_divisors(schedule)), len(self.inverse)
        room = min(schedule.size.rounds, -(-places // ROUND_UP) * ROUND_UP) - places
        rows = np.pad(self.inverse.astype(np.float32), (0, room))
        return Written(inputs, rows, schedule.machines)

    @cached_property
    def _norms(self) -> np.ndarray:
        """The largest norm of a column of F cut to 0, 1, 2, … messages, [messages + 1]; 1 for none."""
        squares = np.cumsum(self.factor**2, axis=0)  # of column k down to row n
        return np.sqrt(np.append(1.0, squares.max(axis=1)))


def _rounded(factor: np.ndarray, inverse: np.ndarray) -> float:
    """What rounding F⁻¹ may add to the norm of F's longest column, relative, to first order: with every entry off by
    half a unit, F⁻¹ + E has the inverse F − F·E·F."""
    size = np.abs(factor)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.linalg.norm(size @ (np.abs(inverse) @ size), axis=0).max()
    return float(HALF_UNIT * moved / np.linalg.norm(factor, axis=0).max())
