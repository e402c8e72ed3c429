"""Run plans: a participation schedule and the records that every message uses.

Secret samples are drawn on first use, because guarantees do not need them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from math import isnan
from textwrap import shorten
from typing import Any

import numpy as np

from fedprivjax.plan.minibatches import Minibatches, assign_computed
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import Once

ORDERS = {
    "shuffled": "one pass in a random order, from the seed",
    "stored": "one pass in the order in which the problem stores them",
    "cyclic": "several epochs over a machine's own records, all in the same random order",
    "reshuffled": "several epochs over a machine's own records, each in a new random order",
}
EPOCHS = ("cyclic", "reshuffled")
DRAWN = ("samples", "weights")  # fields that a secret plan samples on first use


@dataclass(frozen=True)
class Plan(Once):
    """A run plan: the schedule, and the record indices of each message, int32 [rounds, per_round].

    Samples are record indices in the problem's pool. If examples are computed, samples are indices of the machine's own
    examples, from 0. Minibatches have samples [rounds, per_round, width], and weights of the same shape. Minibatches
    that are sampled independently for each message may be `secret`, which amplifies privacy.
    `replace(plan, secret=False)` gives the guarantee against an adversary that knows them.

    Attributes:
        schedule: participation schedule.
        samples: record indices, int32 [rounds, per_round] or [rounds, per_round, width].
        weights: weight of each record in its message, float32 [rounds, per_round, width], or None for one example per
            message.
        secret: True if the adversary does not know the samples.
        order: a name in `ORDERS`.
        sampler: sampler of the minibatches, or None for one example per message.
        stored: False if examples are computed.
        examples: size of the pool, or None if examples are computed or their use is secret.
        depends_on_sizes: True if the schedule depends on the dataset sizes, which are then public.
        planned_uses: `uses` of the planned schedule if machines may drop out, or None.
        hides_sizes: True if machines' numbers of records, which the samples tell, are private.
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
    hides_sizes: bool = False

    def __str__(self) -> str:
        which = "1" if self.sampler is None else shorten(str(self.sampler), 100)  # its width tells numbers of records
        known = "secret" if self.secret or self.schedule.secret else "public"
        return f"Plan: {self.schedule}\n  records of a message: {which}, {known}"

    __repr__ = __str__

    @property
    def public(self) -> "Plan":
        """The public part of the plan: secret participants, samples and weights have width 0.

        If participation is secret, samples are too: records belong to machines. They also are if they tell numbers of
        records that are private.
        """
        if not (self.secret or self.hides_sizes) and self.schedule.secret is None:
            return self
        schedule = self.schedule.public
        nothing = np.zeros((*schedule.participants.shape, 0))
        facts = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in DRAWN}
        drawn = {"samples": nothing.astype(np.int32), "weights": nothing.astype(np.float32)}
        facts |= {"schedule": schedule, "secret": self.secret or self.hides_sizes}
        return Plan(**{**facts, **drawn, "examples": None, "planned_uses": None})

    @property
    def size(self) -> Size:
        return self.schedule.size

    @cached_property
    def repeats(self) -> bool:
        """True if an example is used twice, in an order or by a sampler that uses fresh examples."""
        fresh = self.sampler is None or self.sampler.pooled or self.sampler.one_pass
        if self.order in EPOCHS or not fresh:
            return self.order in EPOCHS
        sent = self.samples if self.weights is None else self.samples[self.weights != 0]
        return bool(np.bincount(sent.ravel()).max(initial=0) > 1) if self.stored else self._computed_again

    @property
    def _computed_again(self) -> bool:
        """True if a machine computes one of its examples twice."""
        samples = self.samples.reshape(*self.schedule.participants.shape, self.width)
        if np.array_equal(samples, assign_computed(self.schedule, self.width)):
            return False
        used = np.ones(samples.shape, bool) if self.weights is None else self.weights != 0
        machine = np.broadcast_to(self.schedule.participants[:, :, None], samples.shape)
        return len(np.unique(np.stack([machine[used], samples[used]]).T, axis=0)) < int(np.count_nonzero(used))

    @cached_property
    def uses(self) -> np.ndarray:
        """Number of rounds that use the most used record of each machine; int, shape [machines].

        It is defined for one record per message. With dropouts it is at least the number without them.
        """
        total = self.schedule.total
        if not self.repeats:
            return np.minimum(total, 1)
        filled = self.schedule.scheduled if self.planned_uses is None else self.schedule.present
        sample = self.samples.reshape(filled.shape)[filled]
        uses = np.zeros(total.size, int)
        np.maximum.at(uses, self.schedule.participants[filled], np.bincount(sample)[sample])
        return uses if self.planned_uses is None else np.maximum(uses, self.planned_uses)

    @cached_property
    def used(self) -> int:
        """Number of examples that at least one message uses."""
        samples = self.samples if self.weights is None else self.samples[self.weights != 0]
        return int(np.count_nonzero(np.bincount(samples.ravel(), minlength=1)))

    @cached_property
    def times_used(self) -> int:
        """Total number of uses of examples by all messages."""
        return self.samples.size if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def part_used(self) -> float:
        """Percentage of the pool's examples that at least one message uses.

        NaN if the pool size is unknown, or if samples or participation are secret, see `plan.data_used`.
        """
        if not self.examples or self.secret or self.schedule.secret is not None:
            return np.nan
        return 100 * self.used / self.examples

    @property
    def data_used(self) -> str:
        """`used` as text, or the empty string if `part_used` is NaN."""
        return "" if isnan(self.part_used) else f"{self.used} of {self.examples} examples ({self.part_used:.3g}%)"

    @property
    def width(self) -> int:
        """Largest number of examples of a message."""
        return 1 if self.weights is None else self.samples.shape[2]

    @property
    def drawn(self) -> bool:
        """True if the samples have been drawn."""
        return all(name in self.__dict__ for name in DRAWN)

    def will_be_of(self, problem: Problem) -> bool:
        """Return True if the samples are not drawn yet and will use this problem's records and weights."""
        return False


class SecretPlan(Plan):
    """A plan whose secret samples are drawn on first use. A guarantee does not need them."""

    @classmethod
    def of(cls, draw: Callable[[], Minibatches], width: int, problem: Problem, **facts: Any) -> "SecretPlan":
        """Return a plan whose samples are drawn by `draw`.

        Args:
            draw: function that returns samples and weights, the same at every call.
            width: largest number of examples of a message.
            problem: problem that the records belong to.
            facts: other fields of the plan.
        """
        plan = cls(samples=None, weights=None, secret=True, **facts)  # type: ignore[arg-type]
        for name in DRAWN:
            del plan.__dict__[name]
        plan.__dict__.update(_draw=draw, _width=width, _of=(problem.partition_table, problem.weights))
        return plan

    def will_be_of(self, problem: Problem) -> bool:
        return not self.drawn and self.__dict__["_of"] == (problem.partition_table, problem.weights)

    @cached_property
    def samples(self) -> np.ndarray:  # type: ignore[override]
        return self._both.samples

    @cached_property
    def weights(self) -> np.ndarray:  # type: ignore[override]
        return self._both.weights

    @property
    def _both(self) -> Minibatches:
        both = self.__dict__["_draw"]()
        self.__dict__.update(zip(DRAWN, both, strict=True))
        return both

    @property
    def width(self) -> int:
        return self.samples.shape[2] if self.drawn else self.__dict__["_width"]
