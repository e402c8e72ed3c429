"""Run plans: a participation schedule and the records that every message uses.

The records are minibatches with weights, or examples that are assigned to the slots of a schedule.
Secret samples are drawn on first use, because guarantees do not need them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from math import isnan
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.samplers.interface import require_records
from fedprivjax.plan.samplers.minibatch import epoch_places, places_in_order
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import Once

FEWER = "Use fewer rounds, participation by_size (BySize), or a method that samples batches from each machine's records"
ORDERS = {
    "shuffled": "one pass in a random order, from the seed",
    "stored": "one pass in the order in which the problem stores them",
    "cyclic": "several epochs over a machine's own records, all in the same random order",
    "reshuffled": "several epochs over a machine's own records, each in a new random order",
}
EPOCHS = ("cyclic", "reshuffled")
DRAWN = ("samples", "weights")  # fields that a secret plan samples on first use


class Minibatches(NamedTuple):
    """Records of every message of a run, in arrays of shape [rounds, per_round, width].

    A message has at most `width` records. Unused places are padding.

    Attributes:
        samples: index of each record in the dataset, int32.
        weights: weight of each record in the machine's mean, float32; 0 for padding.
    """

    samples: np.ndarray
    weights: np.ndarray


def draw_minibatches(
    sampler: Sampler,
    rows: np.ndarray,
    schedule: Schedule,
    rng: np.random.Generator,
    stored: bool = False,
    factors: float | np.ndarray = 1.0,
) -> Minibatches:
    """Sample the records of every message of a run.

    Args:
        rows: record indices of each machine, [machines, max_records], padded with −1 at the end.
        stored: True if one pass uses a machine's records in the listed order.
        factors: factor of the messages, one for all machines or one for each.

    Returns:
        The weights of a message sum to 1 times the machine's factor; with Poisson sampling, only on average. All
        weights are 0 in empty slots of the schedule. A place of weight 0 holds a record that the round uses elsewhere
        (record 0 if it uses none), so padding needs no further records.

    Raises:
        ValueError: if a batch is larger than a machine's dataset, or if one pass needs more records than it has.

    >>> rows = np.arange(6).reshape(2, 3)
    >>> from fedprivjax.plan.participation import Full
    >>> from fedprivjax.plan.samplers import Subset
    >>> everyone = Full(2).draw(1, np.random.default_rng(0))
    >>> draw_minibatches(Subset(2), rows, everyone, np.random.default_rng(0)).weights.tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    sizes = np.sum(rows >= 0, axis=1)
    picks, used = sampler.draw(rows, schedule, rng, stored)
    machines = schedule.participants[:, :, None]
    used &= schedule.present[:, :, None]
    samples = _filled(rows[machines, picks], used)
    factors = machine_values("machine_weights", factors, sizes.size)
    weights = (factors / sampler.batches(sizes))[machines]
    return Minibatches(samples, np.where(used, weights, 0.0).astype(np.float32))


def _filled(records: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return the records, int32, with unused places filled by the round's first used record."""
    flat, counts = records.reshape(len(records), -1), used.reshape(len(used), -1)
    first = np.where(counts.any(axis=1), flat[np.arange(len(flat)), counts.argmax(axis=1)], 0)
    return np.where(used, records, first[:, None, None]).astype(np.int32)


def machine_values(name: str, value: Any, machines: int) -> np.ndarray:
    """Return a setting, given as one number or one per machine, for every machine: float64 [machines].

    >>> machine_values("epsilon", 2.0, 3).tolist()
    [2.0, 2.0, 2.0]
    """
    values = np.asarray(value, float)
    if values.ndim and values.shape != (machines,):
        raise Refusal(f"{name} must be one number or one for each of {machines} machines, got {values.size}")
    return np.broadcast_to(values, machines)


def assign_pool(problem: Problem, schedule: Schedule, rng: np.random.Generator | None, batch: int = 1) -> np.ndarray:
    """Assign each slot the next `batch` examples of a permutation of the pool, int32 [rounds, per_round, batch].

    Empty slots also take examples, unless cohort sizes are announced. Without `rng` the order is the stored one.
    """
    order = np.arange(problem.examples) if rng is None else rng.permutation(problem.examples)
    samples = np.zeros((*schedule.participants.shape, batch), np.int32)
    taken = schedule.present if schedule.announced else np.ones_like(schedule.present)
    samples[taken] = order[: batch * taken.sum()].reshape(-1, batch)
    return samples


def assign_computed(schedule: Schedule, batch: int = 1) -> np.ndarray:
    """Assign a machine's k-th participation its k-th `batch` computed examples, [rounds, per_round, batch]."""
    return batch * np.maximum(schedule.counts - 1, 0)[..., None] + np.arange(batch, dtype=np.int32)


def assign_epochs(problem: Problem, schedule: Schedule, rng: np.random.Generator, order: str) -> np.ndarray:
    """Assign a machine of n records, at its k-th participation, place (k − 1) mod n of the epoch's permutation."""
    assert problem.partition_table is not None
    rows, sizes = problem.partition_table.rows, problem.partition_table.sizes
    require_records(sizes)
    ones = np.ones(sizes.size, int)
    places, _ = epoch_places(rows, schedule, ones, rng, reshuffle=order == "reshuffled")
    return rows[schedule.participants, places[:, :, 0]]


def assign_shares(problem: Problem, schedule: Schedule, rng: np.random.Generator | None) -> np.ndarray:
    """Assign a machine's k-th participation the k-th example of a permutation of its own dataset."""
    assert problem.partition_table is not None
    rows, sizes = problem.partition_table.rows, problem.partition_table.sizes
    short = np.flatnonzero(schedule.total > sizes)
    if short.size:
        needs, has = schedule.total[short[0]], sizes[short[0]]
        raise Refusal(
            f"machine {short[0]} must have at least {needs} examples for this schedule, got {has}. {FEWER}",
            machine=int(short[0]),
        )
    place = np.maximum(schedule.counts - 1, 0)  # places of absent machines are not used
    return np.maximum(np.take_along_axis(rows, places_in_order(rows, rng), axis=1)[schedule.participants, place], 0)


@dataclass(frozen=True)
class Plan(Once):
    """Run plan, sampled before a run: each round's machines, and each message's records (the samples).

    A sample is the index of a record in the problem's dataset. If a function computes examples on demand, a sample is
    the index of an example among the machine's examples, from 0.

    If minibatches are sampled independently for each message, the samples may be secret (`secret`). To obtain the
    guarantee against an adversary who knows the samples, use `replace(plan, secret=False)`.

    Attributes:
        schedule: participation schedule: the machines of each round.
        samples: record indices, int32 [rounds, per_round], or [rounds, per_round, width] for at most `width` records
            per message.
        weights: weight of each record in its message, float32 [rounds, per_round, width]. None if every message has one
            record of weight 1.
        secret: True if the adversary does not know the samples.
        order: order in which records are used: "shuffled", "stored", "cyclic" or "reshuffled", as in `draw_plan`.
        sampler: sampler of the minibatches, or None for one example per message. It decides how often records are used.
        stored: True if examples are stored in a dataset, False if they are computed by a function.
        examples: number of examples in the dataset, or None if it is unknown.
        depends_on_sizes: True if the schedule depends on machines' numbers of records, which are then public.
        planned_uses: number of messages that would use each machine's most used record if no machine had dropped out,
            int [machines]. None unless there are dropouts and the order is "cyclic" or "reshuffled".
        hides_sizes: True if machines' numbers of records are private. The samples are also secret in this case.
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
        """Copy of the plan without its secret parts, or the plan itself if nothing is secret.

        * If participation is secret, the participants are removed.
        * If the samples, participation or machines' numbers of records are secret, samples and weights are removed.
          Samples and weights would also show who takes part, and how many records a machine has.

        Removed arrays are replaced by empty arrays, of width 0.
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
        """True if an example is used twice in one pass, or if the `order` makes several passes.

        False for samplers that use records repeatedly by design.
        """
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
        """Number of rounds that use a record, for each machine's most used record; int, shape [machines].

        It is defined for one record per message. Machines that drop out count as if they had sent.
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
        """Percentage of the dataset's examples that at least one message uses.

        It is NaN if the number of examples is unknown, or if samples or participation are secret.
        """
        if not self.examples or self.secret or self.schedule.secret is not None:
            return np.nan
        return 100 * self.used / self.examples

    @property
    def data_used(self) -> str:
        """Number and percentage of the dataset's examples that the run uses, as text, or "" if unknown."""
        return "" if isnan(self.part_used) else f"{self.used} of {self.examples} examples ({self.part_used:.3g}%)"

    @property
    def width(self) -> int:
        """Largest number of records of a message."""
        return 1 if self.weights is None else self.samples.shape[2]

    @property
    def drawn(self) -> bool:
        """True if the samples (the records of each message) have been drawn.

        Secret samples are drawn on first use.
        """
        return all(name in self.__dict__ for name in DRAWN)

    def will_be_of(self, problem: Problem) -> bool:
        """Return True if the samples are not drawn yet, and will be drawn from the records of this problem."""
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


def equal_but_for_secrets(one: Plan, other: Plan) -> bool:
    """Return True if two plans are equal, except for secret samples that neither of them has drawn yet.

    Whatever was computed from one plan without drawing its secret samples is then the same for the other plan.
    """
    drawn = one.drawn, other.drawn
    if type(one) is not type(other) or drawn[0] != drawn[1] or one.sampler != other.sampler:
        return False
    left = "sampler", *(() if drawn[0] else DRAWN)
    names = [each.name for each in fields(one) if each.name not in left]
    same = all(_same(getattr(one, name), getattr(other, name)) for name in names)
    return same and (drawn[0] or (one.width == other.width and one.__dict__["_of"] == other.__dict__["_of"]))


def _same(one: Any, other: Any) -> bool:
    """Return True if two values of a plan are the same object, equal arrays, or equal numbers or texts."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Schedule):
        return all(_same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool | int | float | str) and one == other
