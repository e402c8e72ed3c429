"""Gaussian noise on messages of fresh samples: the host side of every method that uses each sample once.

A `MessageNoise` states the relative noise of every message, each machine's exposure, the noise of each release, and
the mechanism that samples the noise. It holds no real-valued setting, so all configurations of a sweep share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.relative_privacy import exposed_once, privacy_shares, relative_noise
from fedprivjax.noise import Fresh, Mechanism, choose
from fedprivjax.noise.chooser import exposure, relative_std, server_std
from fedprivjax.noise.message_factors import CorrelatedSums, SumFactor, Toeplitz, anytime, anytime_workload
from fedprivjax.noise.pairwise import Pairwise
from fedprivjax.plan.participation import Full
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.per_machine import Grouped, grouped_once


@dataclass(frozen=True)
class MessageNoise:
    """Independent noise on every message, for samples that affect one release each.

    Attributes:
        trust: "none" if every machine adds noise to its messages, "server" if the server adds noise to the aggregate.
        relative_privacy: relative μ of the machines, or None if all are equal; only without a trusted server.
        summed: the aggregate is a running sum, in which noise accumulates.
    """

    trust: str = "none"
    relative_privacy: Sequence[float] | None = None
    summed: bool = False

    cancel: ClassVar[bool] = False  # whether each message subtracts the machine's previous noise

    # ---- noise

    def unscaled(self, schedule: Schedule) -> Any:
        """Relative noise of each message if all machines have the same μ; shape [rounds, per_round]."""
        return 1.0

    def server_std(self, rounds: int) -> np.ndarray:
        """Relative noise of each round of a trusted server; float64, shape [rounds]."""
        return np.ones(rounds)

    def divisor(self, schedule: Schedule) -> Any:
        """Divisor of each round's sum: one number, or shape [rounds]."""
        return schedule.divisor

    def relative(self, plan: Plan) -> np.ndarray:
        """Relative noise of each message; float64, shape [rounds, per_round]."""
        schedule = plan.schedule

        def compute():
            shares = privacy_shares(self.relative_privacy, schedule.machines)
            return self.unscaled(schedule) / shares[schedule.participants]

        return schedule.once(("relative", self), compute)

    def mechanism(self, plan: Plan, dimension: int, method: str) -> Mechanism:
        """Mechanism that samples the noise by the given noise method."""
        if self.trust == "server":
            return Fresh(np.asarray(self.server_std(plan.size.rounds), np.float32))
        schedule, relative = plan.schedule, self.relative(plan)
        if self.summed:
            return choose(schedule, relative, dimension, method, cancel=self.cancel, accumulate=not self.cancel)
        return choose(schedule, relative, dimension, method, cancel=False, divisor=self.divisor(schedule))

    def variances(self, plan: Plan) -> np.ndarray:
        """Variance of one coordinate of the aggregate's noise, divided by `noise_std`²; float64, shape [rounds]."""
        if self.trust == "server":
            return self.server_std(plan.size.rounds) ** 2
        schedule = plan.schedule
        squares = np.where(schedule.present, self.relative(plan) ** 2, 0.0)
        cancelled = schedule.previous(squares) if self.cancel else 0.0
        added = np.sum(squares - cancelled, axis=1)
        return (np.cumsum(added) if self.summed else added) / self.divisor(schedule) ** 2

    # ---- privacy

    def exposure(self, plan: Plan) -> Grouped:
        """μ of each machine, in units of sensitivity/noise_std."""
        return exposed_once(plan.schedule, self.relative_privacy)

    def releases(self, plan: Plan, machine: int) -> np.ndarray:
        """Relative noise of each release that the machine's most exposed sample affects; shape [releases]."""
        return relative_noise(self.relative_privacy, plan.size.machines)[[machine]]


@dataclass(frozen=True, kw_only=True)
class SharedNoise(MessageNoise):
    """Independent noise on every message, and noise that neighbours on a graph share.

    Attributes:
        noise: the shared noise.
    """

    noise: Pairwise

    def mechanism(self, plan: Plan, dimension: int, method: str) -> Mechanism:
        return self.noise.mechanism(plan.schedule, self.relative(plan), self.divisor(plan.schedule), method)


@dataclass(frozen=True)
class CancelledNoise(MessageNoise):
    """Noise on running sums: each message adds fresh noise and subtracts the noise of the machine's previous message.

    A trusted server adds fresh noise to the running sum in each round instead.

    Attributes:
        noise_schedule: a name in `NOISE_SCHEDULES`, or the standard deviations over a machine's messages.
    """

    summed: bool = True
    noise_schedule: str | Sequence[float] = "uniform"

    cancel: ClassVar[bool] = True

    def unscaled(self, schedule: Schedule) -> np.ndarray:
        return relative_std(self.noise_schedule, schedule)

    def server_std(self, rounds: int) -> np.ndarray:
        return server_std(self.noise_schedule, rounds)

    def exposure(self, plan: Plan) -> Grouped:
        if self.trust == "server":
            every_round = np.sqrt(np.sum(self.server_std(plan.size.rounds) ** -2.0))
            return super().exposure(plan).map(lambda takes_part: takes_part * every_round)
        return grouped_once(plan.schedule, self.relative(plan), exposure)

    def releases(self, plan: Plan, machine: int) -> np.ndarray:
        if self.trust == "server":
            return self.server_std(plan.size.rounds)
        return self.relative(plan)[plan.schedule.scheduled & (plan.schedule.participants == machine)]


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise(MessageNoise):
    """Noise on running sums, correlated over all messages of a machine.

    A trusted server's noise is that of one machine that sends in every round.

    Attributes:
        factor: factor of the running sums.
    """

    summed: bool = True
    factor: SumFactor

    def sums(self, plan: Plan) -> CorrelatedSums:
        """Distribution of the noise on a plan."""

        def compute():
            alone = self.trust == "server"
            schedule = Full(1).draw(plan.size.rounds, np.random.default_rng(0)) if alone else plan.schedule
            shares = privacy_shares(self.relative_privacy, schedule.machines)
            workload = partial(anytime_workload, schedule, shares)
            return CorrelatedSums(self.factor.matrix(int(schedule.total.max()), workload), schedule, shares)

        return plan.schedule.once(("correlated", self), compute)

    def mechanism(self, plan: Plan, dimension: int, method: str) -> Mechanism:
        return self.sums(plan).mechanism(method)

    def variances(self, plan: Plan) -> np.ndarray:
        return self.sums(plan).variances

    def exposure(self, plan: Plan) -> Grouped:
        of_all = self.sums(plan).exposure
        if self.trust == "server":
            return super().exposure(plan).map(lambda takes_part: takes_part * of_all[0])
        return Grouped.of(of_all)

    def releases(self, plan: Plan, machine: int) -> np.ndarray:
        return self.sums(plan).releases(0 if self.trust == "server" else machine)

    def anytime_stds(self, plan: Plan) -> np.ndarray:
        """Standard deviation of one coordinate of the noise in x_2, …, x_{T+1}; float64, shape [rounds].

        It is for a run without projections, divided by `noise_std` and the step.
        """
        return np.linalg.norm(anytime(plan.size.rounds) @ self.sums(plan).rows, axis=1)

    def gain(self, plan: Plan) -> float:
        """Root mean square of `anytime_stds` with the uniform schedule, divided by that with this factor."""

        def compute():
            uniform = replace(self, factor=Toeplitz(1.0))
            means = (np.sqrt(np.mean(noise.anytime_stds(plan) ** 2)) for noise in (uniform, self))
            return float(next(means) / next(means))

        return plan.schedule.once(("gain", self), compute)


@dataclass(frozen=True)
class GrowingNoise(MessageNoise):
    """Independent noise on messages in which a sample's weight grows from one message to the next.

    Attributes:
        noise_schedule: "uniform", or the standard deviations over a machine's messages.
    """

    noise_schedule: str | Sequence[float] = "uniform"

    def unscaled(self, schedule: Schedule) -> np.ndarray:
        ones = np.ones(schedule.participants.shape)
        if isinstance(self.noise_schedule, str):
            return np.where(schedule.scheduled, growing_exposure(ones, schedule)[schedule.participants], 1.0)
        values = np.asarray(self.noise_schedule, float)
        if values.size < schedule.total.max() or not (np.isfinite(values) & (values > 0)).all():
            raise Refusal(
                f"noise_schedule must have at least {schedule.total.max()} positive entries, got {values.size}"
            )
        relative = values[schedule.counts - 1]
        return relative * growing_exposure(relative, schedule).max()

    def divisor(self, schedule: Schedule) -> np.ndarray:
        return schedule.present.sum(axis=1)

    def exposure(self, plan: Plan) -> Grouped:
        return grouped_once(plan.schedule, self.relative(plan), growing_exposure)

    def releases(self, plan: Plan, machine: int) -> np.ndarray:
        t, j = np.nonzero(plan.schedule.scheduled & (plan.schedule.participants == machine))
        relative, growth = self.relative(plan)[t, j], t[1:] / (t[:-1] + 1.0)  # rounds are t + 1
        each = [relative[k:] / np.cumprod(np.append(1.0, growth[k:])) for k in range(t.size)]
        return max(each, key=lambda noise: float(np.sum(noise**-2.0)))


def growing_exposure(relative: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Return `max_{k₀} √Σ_{k≥k₀} (a_k/r_k)²` of each machine, float64 [machines], with a_k the growth since message k₀.

    The recursion `b_k = 1/r_k² + ((t_{k+1} − 1)/t_k)²·b_{k+1}` runs backwards from each machine's last message, for all
    machines at once.
    """
    rounds = np.broadcast_to(np.arange(1.0, schedule.size.rounds + 1)[:, None], schedule.participants.shape)
    machines, k = schedule.participants.ravel(), np.where(schedule.scheduled, schedule.counts, 0).ravel()
    order = np.argsort(-k, kind="stable")
    ends = np.cumsum(np.bincount(k)[:0:-1])
    tail, following, most = (np.zeros(schedule.machines) for _ in range(3))
    for entries in np.split(order[: ends[-1]], ends[:-1]):  # k-th messages, of machines with at least k
        who, t = machines[entries], rounds.ravel()[entries]
        growth = np.where(following[who] > 0, (following[who] - 1) / t, 0.0)
        tail[who] = relative.ravel()[entries] ** -2.0 + growth**2 * tail[who]
        most[who], following[who] = np.maximum(most[who], tail[who]), t
    return np.sqrt(most)
