"""Delays of answers in simulated hours: servers that wait for a round's slowest machine, or for a full buffer.

FedBuff (Nguyen et al., AISTATS 2022): a fixed number of machines work at the same time. A machine answers after its
delay, and another one starts from the server's current version. The server steps whenever its buffer is full.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least, require_choice, require_positive
from fedprivjax.plan.participation.interface import Around, Participation, floats
from fedprivjax.plan.participation.validate import checked_draw
from fedprivjax.plan.schedule import Late, Schedule

KINDS = ("constant", "exponential", "log_normal")
LONGEST = 10  # default largest staleness, in multiples of its mean with exponential delays
BLOCK = 1024  # random numbers that are sampled together


@dataclass(frozen=True)
class Delays:
    """Random times from a machine's start to its answer (its message), in simulated hours.

    Delays are public. They are independent of the data, except for the numbers of records if `per_record` is True.

    Args:
        kind: distribution of a delay, "constant", "exponential" or "log_normal".
        hours: mean delay, one for all machines or one per machine, [machines].
        deviation: standard deviation of the logarithm of a delay, for "log_normal" only.
        per_record: True if a machine's mean delay is `hours` times its number of records. Delays then reveal the
            numbers of records. Guarantees therefore require the neighbouring relation replace-one, which does not
            change these numbers.

    >>> Delays("constant", hours=[1.0, 3.0]).of(np.array([[1, 0]]), np.random.default_rng(0)).tolist()
    [[3.0, 1.0]]
    """

    kind: str = "exponential"
    hours: Any = 1.0
    deviation: float = 1.0
    per_record: bool = False

    def __post_init__(self):
        require_choice("delays", self.kind, KINDS)
        require_positive("deviation", self.deviation)
        if self.kind != "log_normal" and self.deviation != 1:
            raise Refusal(
                f"deviation must go with log_normal delays, got {self.deviation} with {self.kind}. Leave it out"
            )
        hours = floats("hours", self.hours, "one number or one for each machine")
        wrong = hours[~((hours > 0) & (hours < np.inf))]
        if wrong.size or hours.ndim > 1 or not hours.size:
            given = wrong.flat[0] if wrong.size else f"shape {list(hours.shape)}"
            raise Refusal(f"hours must be positive and finite, one for all machines or one for each, got {given}")
        object.__setattr__(self, "hours", tuple(hours.tolist()) if hours.ndim else float(hours))

    def means(self, machines: int) -> np.ndarray:
        """Return every machine's mean delay in hours, or in hours per record if `per_record`; float64 [machines]."""
        if np.ndim(self.hours) and len(self.hours) != machines:
            raise Refusal(f"hours must be one number or one for each of {machines} machines, got {len(self.hours)}")
        return np.broadcast_to(np.asarray(self.hours, float), machines)

    def sized(self, sizes: np.ndarray | None) -> "Delays":
        """Return delays in which `hours` is the mean delay of each machine, and `per_record` is False.

        If `per_record` is True, `hours` is a mean delay per record. It is multiplied by each machine's number of
        records, counted as at least 1. If `per_record` is False, the delays are returned unchanged.

        Args:
            sizes: number of records of each machine, int [machines], or None if all machines share a dataset.

        Raises:
            Refusal: if `per_record` is True and `sizes` is None.
        """
        if not self.per_record:
            return self
        if sizes is None:
            raise Refusal("per_record must go with machines that own records, got a shared pool. Leave it out")
        hours = self.means(sizes.size) * np.maximum(sizes, 1)
        return replace(self, hours=hours, per_record=False)

    def relative(self, shape: Any, rng: np.random.Generator) -> np.ndarray:
        """Sample delays divided by their mean, which therefore have mean 1, in an array of the given shape."""
        if self.kind == "constant":
            return np.ones(shape)
        if self.kind == "exponential":
            return rng.exponential(size=shape)
        return np.exp(self.deviation * rng.standard_normal(shape) - self.deviation**2 / 2)

    def require_sized(self) -> None:
        """Raise Refusal if delays depend on machines' numbers of records and these are not known yet.

        `sized` returns delays for which they are known.
        """
        if self.per_record:
            raise Refusal("per_record must be False for a schedule without data, got True. Use draw_plan or a run")

    def of(self, machines: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sample a delay in hours for each entry of an array of machine indices; an array of the same shape."""
        self.require_sized()
        return np.asarray(self.hours)[machines if np.ndim(self.hours) else ...] * self.relative(machines.shape, rng)


def as_delays(delays: Any) -> Delays:
    """Return delays, given as such or by the name of their kind."""
    if isinstance(delays, str):
        return Delays(delays)
    if not isinstance(delays, Delays):
        raise Refusal(f"delays must be Delays or one of {', '.join(KINDS)}, got {called(delays)}")
    return delays


@dataclass(frozen=True)
class Buffered(Participation):
    """Asynchronous participation: the server steps whenever `per_round` answers have arrived (FedBuff).

    An answer is a machine's message. A round is one step of the server. When a machine answers, it becomes idle. A
    uniformly random idle machine then starts from the server's current parameters. If several answers arrive at the
    same time, new machines start after all of them have arrived. A machine may answer twice in one round.

    The staleness s of an answer is the number of steps that the server has taken since the answer's machine started.
    The answer's weight is (1 + s)^−`power`. The weighted sum of a round's answers is divided by `per_round`. An answer
    whose staleness would exceed `max_staleness` is not sent. Delays, schedule and weights are public, and fixed before
    the run.

    Args:
        machines: total number of machines.
        per_round: number of answers for which the server waits before each step.
        concurrency: number of machines that work at the same time. Default: all machines.
        delays: time from a machine's start to its answer: `Delays`, or the name of a kind of delays, "constant",
            "exponential" or "log_normal".
        max_staleness: largest staleness of an answer. The server stores max_staleness + 1 versions of the parameters.
            Default: 10·concurrency/per_round, rounded up.
        power: exponent of the staleness weights, at least 0.

    >>> schedule = Buffered(10, 2, concurrency=4).draw(3, np.random.default_rng(0))
    >>> schedule.participants.shape, schedule.late.staleness[0].tolist(), len(schedule.hours)
    ((3, 2), [0, 0], 3)
    """

    machines: int
    per_round: int
    concurrency: int | None = None
    delays: Any = "exponential"
    max_staleness: int | None = None
    power: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "delays", as_delays(self.delays))
        self.delays.means(self.machines)  # raises Refusal
        if self.concurrency is not None:
            require_at_least("concurrency", self.concurrency, 1)
        if not self.per_round <= self.working <= self.machines:
            raise Refusal(
                f"concurrency must be from per_round ({self.per_round}) to machines ({self.machines}), got "
                f"{self.working}. Use a smaller buffer, per_round, or more machines"
            )
        if self.max_staleness is not None:
            require_at_least("max_staleness", self.max_staleness, 0)
        if not 0 <= self.power < np.inf:
            raise Refusal(f"power must be at least 0 and finite, got {self.power}")

    @property
    def working(self) -> int:
        """Number of machines that work at the same time."""
        return self.machines if self.concurrency is None else self.concurrency

    @property
    def longest(self) -> int:
        """Largest staleness of an answer: server steps between its machine's start and its arrival."""
        return ceil(LONGEST * self.working / self.per_round) if self.max_staleness is None else self.max_staleness

    def sized(self, sizes: np.ndarray | None) -> "Buffered":
        return replace(self, delays=self.delays.sized(sizes)) if self.delays.per_record else self

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        self.delays.require_sized()
        answers = np.array(list(self._answers(rounds, rng))).reshape(rounds, self.per_round, 3)
        staleness = answers[..., 1].astype(np.int32)
        late = Late(staleness, (1.0 + staleness) ** -float(self.power), min(self.longest + 1, rounds))
        return Schedule(self.machines, answers[..., 0].astype(np.int32), late=late, hours=answers[:, -1, 2])

    def _answers(self, rounds: int, rng: np.random.Generator) -> Iterator[tuple[int, int, float]]:
        """Yield machine, staleness and hours of the answers that fill the buffers of these rounds, in order."""
        means, idle, work = self.delays.means(self.machines).tolist(), list(range(self.machines)), []
        numbers, order, version, received, now = _numbers(self.delays, rng), count(), 0, 0, 0.0
        free = self.working
        while True:
            for _ in range(free):
                delay, choice = next(numbers)
                place = int(choice * len(idle))
                idle[place], idle[-1] = idle[-1], idle[place]
                machine = idle.pop()
                heappush(work, (now + means[machine] * delay, next(order), machine, version))
            now, free = work[0][0], 0
            while work and work[0][0] == now:
                *_, machine, started = heappop(work)
                idle.append(machine)
                free += 1
                if version - started > self.longest:
                    continue
                yield machine, version - started, now
                received += 1
                if received % self.per_round == 0:
                    version += 1
                    if version == rounds:
                        return


def _numbers(delays: Delays, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
    """Yield pairs of a relative delay and a uniform number, so that more rounds start with the same ones."""
    while True:
        yield from zip(delays.relative(BLOCK, rng).tolist(), rng.random(BLOCK).tolist(), strict=True)


@dataclass(frozen=True)
class Timed(Around):
    """Any public participation scheme, with a simulated clock: a round lasts as long as its slowest machine.

    The clock changes only the times at which rounds end (`hours` of the schedule). For the same seed, the same machines
    take part as without the clock. Machines that drop out do not prolong a round.

    Args:
        scheme: participation scheme that schedules the machines.
        delays: time from a machine's start to its answer: `Delays`, or the name of a kind of delays, "constant",
            "exponential" or "log_normal".

    >>> from fedprivjax import Full
    >>> Timed(Full(3), Delays("constant", [1.0, 2.0, 4.0])).draw(2, np.random.default_rng(0)).hours.tolist()
    [4.0, 8.0]
    """

    scheme: Participation
    delays: Any = "exponential"

    def __post_init__(self):
        if not isinstance(self.scheme, Participation) or self.scheme.secret:
            raise Refusal(f"scheme must be a public Participation, such as Uniform(100, 10), got {called(self.scheme)}")
        object.__setattr__(self, "delays", as_delays(self.delays))
        self.take("varies", "exchangeable")
        self.delays.means(self.machines)  # raises Refusal

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        return self.scheme.cohort_size_pmf

    def sized(self, sizes: np.ndarray | None) -> "Timed":
        found = super().sized(sizes)
        return replace(found, delays=self.delays.sized(sizes)) if self.delays.per_record else found

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        drawn = checked_draw(self.scheme, rounds, rng)
        if drawn.hours is not None:
            raise Refusal(f"delays must be given once, got others from {str(self.scheme)[:80]}. Leave out Timed")
        slowest = np.where(drawn.present, self.delays.of(drawn.participants, rng), 0.0).max(axis=1)
        return replace(drawn, hours=np.cumsum(slowest))
