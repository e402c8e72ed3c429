"""Run plans: a participation schedule with the records that every message uses."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from fedprivjax.plan.record_assignment import deal_computed
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.problem.memoize import Once
from fedprivjax.problem.problem import Problem

ORDERS = {
    "shuffled": "one pass in a random order, from the seed",
    "stored": "one pass, as the problem holds them",
    "cyclic": "several epochs over a machine's own records, in one random order again and again",
    "reshuffled": "several epochs over a machine's own records, in a fresh random order each time",
}
EPOCHS = ("cyclic", "reshuffled")
DRAWN = ("samples", "weights")  # fields that a secret plan draws at their first use


@dataclass(frozen=True)
class Plan(Once):
    """What is drawn before a run: the public schedule, and each participant's example, int32 [rounds, per_round].

    Samples index the problem's pool; where examples are computed, the machine's own examples, from 0. Minibatches have
    samples [rounds, per_round, width] with weights of the same shape. Those drawn anew each time are `secret`, which
    amplifies privacy; with `replace(plan, secret=False)`, the guarantee is that against one who knows them.

    Attributes:
        examples: how many the pool has; None where they are computed, or nobody is to know which are used.
        depends_on_sizes: whether the schedule follows from how many examples machines have, which is then public.
        planned_uses: `uses` of the schedule that is planned, where machines may drop out of it; None is no such plan.
    """

    schedule: Schedule
    samples: np.ndarray
    weights: np.ndarray | None = None
    secret: bool = False
    order: str = "shuffled"
    sampler: Sampler | None = None
    stored: bool = True
    examples: int | None = None
    depends_on_sizes: bool = False
    planned_uses: np.ndarray | None = None

    def __str__(self) -> str:
        most = "at most " if self.secret or self.weights is not None else ""
        which = f"{most}{self.width}, {'secret' if self.secret else 'public'}"
        data = f"\n  data: {self.data_used}" if not self.secret and self.data_used else ""  # draws none
        return f"Plan: {self.schedule}\n  records of a message: {which}{data}"

    __repr__ = __str__

    @property
    def public(self) -> "Plan":
        """What others know of it: without samples (of width 0) where they are secret."""
        if not self.secret:
            return self
        nothing = np.zeros((*self.schedule.participants.shape, 0))
        facts = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in DRAWN}
        known = {**facts, "samples": nothing.astype(np.int32), "weights": nothing.astype(np.float32), "examples": None}
        return Plan(**known)

    @property
    def size(self) -> Size:
        return self.schedule.size

    @cached_property
    def repeats(self) -> bool:
        """Whether a sample, of those that are fresh in every message, is used twice."""
        fresh = self.sampler is None or self.sampler.pooled or self.sampler.one_pass
        if self.order in EPOCHS or not fresh:
            return self.order in EPOCHS
        sent = self.samples if self.weights is None else self.samples[self.weights != 0]
        return bool(np.bincount(sent.ravel()).max(initial=0) > 1) if self.stored else self._computed_again

    @property
    def _computed_again(self) -> bool:
        """Whether a machine computes one of its examples twice."""
        samples = self.samples.reshape(*self.schedule.participants.shape, self.width)
        if np.array_equal(samples, deal_computed(self.schedule, self.width)):
            return False
        used = np.ones(samples.shape, bool) if self.weights is None else self.weights != 0
        machine = np.broadcast_to(self.schedule.participants[:, :, None], samples.shape)
        return len(np.unique(np.stack([machine[used], samples[used]]).T, axis=0)) < int(np.count_nonzero(used))

    @cached_property
    def uses(self) -> np.ndarray:
        """Rounds that use a machine's most used record, of one example a message, int [machines]; at least as many as
        if nobody dropped out."""
        total = self.schedule.total
        if not self.repeats:
            return np.minimum(total, 1)
        filled = self.schedule.asked if self.planned_uses is None else self.schedule.present
        sample = self.samples.reshape(filled.shape)[filled]
        uses = np.zeros(total.size, int)
        np.maximum.at(uses, self.schedule.participants[filled], np.bincount(sample)[sample])
        return uses if self.planned_uses is None else np.maximum(uses, self.planned_uses)

    @cached_property
    def used(self) -> int:
        """Examples that at least one message uses."""
        samples = self.samples if self.weights is None else self.samples[self.weights != 0]
        return int(np.count_nonzero(np.bincount(samples.ravel(), minlength=1)))

    @cached_property
    def times_used(self) -> int:
        """Uses of examples by all messages together."""
        return self.samples.size if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def part_used(self) -> float:
        """The part of a pool's examples that at least one message uses, in percent; NaN where its size is not known."""
        return 100 * self.used / self.examples if self.examples else np.nan

    @property
    def data_used(self) -> str:
        """`used` in words; nothing where the pool's size is not known."""
        return f"{self.used} of {self.examples} examples ({self.part_used:.3g}%)" if self.examples else ""

    @property
    def width(self) -> int:
        """Examples of a message, the largest number."""
        return 1 if self.weights is None else self.samples.shape[2]

    @property
    def drawn(self) -> bool:
        """True if the samples are drawn already."""
        return all(name in self.__dict__ for name in DRAWN)

    def will_be_of(self, problem: Problem) -> bool:
        """True if the samples are not drawn yet and will have this problem's records and weights."""
        return False
