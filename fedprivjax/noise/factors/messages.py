r"""Distribution of noise that is correlated over each machine's messages, its sampler and its exposures.

All machines share one factor F of `noise.message_factors`, truncated to the number of messages that they send, and each
has a scale r_i. Let c_i(t) be the number of messages that machine i has sent by round t. The aggregate contains σ·z_t
with

    z_t = (1/m)·Σ_i r_i·(B·ξ_i)_{c_i(t)},        Cov(z)(s, t) = (1/m²)·Σ_i r_i²·(B·Bᵀ)_{c_i(s), c_i(t)}

One correlated vector per round has this distribution. Its factor is dense, since no noise is ever cancelled completely.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.chooser import MAX_BYTES, sent_inputs
from fedprivjax.noise.covariance import Triangular, Written
from fedprivjax.noise.factors.exposures import sent_rounds
from fedprivjax.noise.factors.matrices import HALF_UNIT, MAX_ROUNDED, inverse_of, require_factor
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.schedule import Schedule

ROUND_UP = 32  # numbers of messages are padded to multiples of this, so that most schedules share one program
WAYS = {
    "auto": "the same as covariance",
    "covariance": "one correlated vector per round, from the factor of the schedule's covariance",
    "materialised": "separate noise for every message",
}


@dataclass(frozen=True, eq=False)
class CorrelatedSums:
    """Noise in running sums, if every machine correlates the noise of its messages by a factor F.

    A machine sends its increments s_1, s_2, … with the noise r·σ·F⁻¹ξ. Here ξ are independent standard normals, σ is
    `noise_std`, and r is the machine's relative noise, which the property `scale` returns. The noisy increments equal
    F⁻¹·(F·s + r·σ·ξ), so they are as private as a release of F·s + r·σ·ξ.

    Attributes:
        factor: F for the largest number of messages of a machine, float64 [messages, messages]. A machine that sends n
            messages uses the first n rows and columns.
        schedule: the participation schedule: which machines take part in each round.
        shares: ratio of each machine's target μ (of Gaussian differential privacy) to the largest target, shape
            [machines].
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
        if not rounded <= MAX_ROUNDED:
            raise Refusal(
                f"noise_schedule must be a factor whose inverse float32 can represent: rounding may increase the "
                f"sensitivity by at most {MAX_ROUNDED:g}, got {rounded:.3g}"
            )

    @cached_property
    def inverse(self) -> np.ndarray:
        """F⁻¹, which maps independent normals to the noise of each message."""
        return inverse_of(self.factor)

    @cached_property
    def scale(self) -> np.ndarray:
        """Relative noise with which each machine just meets its target; float64 [machines].

        It follows from the machine's number of messages.
        """
        return self._norms[self.schedule.total] / self.shares

    @cached_property
    def exposure(self) -> np.ndarray:
        """Largest change of a machine's F·s by a change of norm 1 in one increment, divided by `scale`; [machines]."""
        sends = self.schedule.total > 0
        return np.where(sends, self._norms[self.schedule.total] / self.scale, 0.0)

    def releases(self, machine: int) -> np.ndarray:
        """Return the relative noise of each release that the machine's most exposed record changes; shape [releases].

        The machine sends increments s, and a record changes one of them. The releases are the entries of F·s + σξ, with
        the factor F and independent normals ξ. The relative noise of an entry is its standard deviation divided by its
        change, for `noise_std` = 1 and a change of s by norm 1. The most exposed record is that of the increment whose
        column of F has the largest norm.
        """
        messages = int(self.schedule.total[machine])
        cut = self.factor[:messages, :messages]
        column = np.abs(cut[:, int(np.argmax(np.linalg.norm(cut, axis=0)))])
        return self.scale[machine] / column[column > 0]

    @cached_property
    def variances(self) -> np.ndarray:
        """Noise variance of one coordinate of each round's aggregate; float64, shape [rounds].

        It is for `noise_std` = 1.
        """
        return np.sum(self.rows**2, axis=1)

    @cached_property
    def rows(self) -> np.ndarray:
        """Cholesky factor of the covariance over rounds of the aggregates' noise; float64, shape [rounds, rounds]."""
        rounds = self.schedule.size.rounds
        if 8 * rounds**2 > MAX_BYTES:
            most = int((MAX_BYTES / 8) ** 0.5)
            raise Refusal(f"rounds must be at most {most} for noise correlated over all messages, got {rounds}")
        try:
            return np.cumsum(np.linalg.cholesky(self._of_increments()), axis=0)
        except np.linalg.LinAlgError:
            raise Refusal(
                "noise_schedule must be a factor whose noise covariance over rounds has a Cholesky factor in float64, "
                "got entries of too different sizes"
            ) from None

    def mechanism(self, method: str = "auto") -> Mechanism:
        """Return the sampler of the noise in the server's running sums.

        Args:
            method: "covariance" samples one vector per round, correlated over rounds. "materialised" samples the noise
                of every message. "auto" is "covariance".
        """
        require_choice("noise method", method, WAYS)
        return self._written() if method == "materialised" else Triangular(self.rows.astype(np.float32))

    def _of_increments(self) -> np.ndarray:
        """Return the covariance of the increments of z, float64 [rounds, rounds]."""
        schedule, rounds = self.schedule, self.schedule.size.rounds
        gram, total = self.inverse @ self.inverse.T, np.zeros(rounds * rounds)
        for machines, when in sent_rounds(schedule):
            pairs, sent = when[:, :, None] * rounds + when[:, None, :], when.shape[1]
            squares = self.scale[machines, None, None] ** 2 * gram[:sent, :sent]
            total += np.bincount(pairs.ravel(), squares.ravel(), rounds * rounds)
        return total.reshape(rounds, rounds) / schedule.divisor**2

    def _written(self) -> Written:
        schedule = self.schedule
        inputs, places = sent_inputs(schedule, self.scale[schedule.participants]), len(self.inverse)
        count = np.where(schedule.present, schedule.counts, 1).astype(np.int32)
        room = min(schedule.size.rounds, -(-places // ROUND_UP) * ROUND_UP) - places
        rows = np.pad(self.inverse.astype(np.float32), (0, room))
        return Written(inputs._replace(count=count), rows, schedule.machines)

    @cached_property
    def _norms(self) -> np.ndarray:
        """Largest column norm of F truncated to 0, 1, 2, … messages, shape [messages + 1]; 1 for 0 messages."""
        squares = np.cumsum(self.factor**2, axis=0)  # of column k down to row n
        return np.sqrt(np.append(1.0, squares.max(axis=1)))


def _rounded(factor: np.ndarray, inverse: np.ndarray) -> float:
    """Return a first-order bound on the relative increase of F's largest column norm by rounding F⁻¹ to float32.

    If every entry is off by half a unit, F⁻¹ + E has the inverse F − F·E·F.
    """
    size = np.abs(factor)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.linalg.norm(size @ (np.abs(inverse) @ size), axis=0).max()
    return float(HALF_UNIT * moved / np.linalg.norm(factor, axis=0).max())
