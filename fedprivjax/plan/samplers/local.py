"""Samplers of local work: the records of every local step of a participant, cut into the batches of its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_at_least, short
from fedprivjax.plan.samplers.interface import CLAIMS, Batch, Sampler
from fedprivjax.plan.samplers.minibatch import NO_LIMIT, Full, Replacement, Subset
from fedprivjax.problem.devices import require_counted


class LocalWork(Sampler):
    """Base class of samplers for machines that take several local steps before they send a message.

    A sampler of this class samples the records of all steps of a round at once. The record indices have shape [rounds,
    per_round, K·B]. Here, K is the largest number of steps of a machine, and B is the largest number of records in a
    step. The records of step k, from 0, are at the places k·B to (k+1)·B − 1. Unused places have weight 0.
    """

    stated: ClassVar[Stated] = Stated(by=(*CLAIMS, "uses", "of_step", "divisors"), free=("variance",))
    repeats: ClassVar[bool] = True  # a record occurs in several steps

    @property
    def uses(self) -> Any:
        """Largest number of local steps of a round that may use the same record.

        It is one number for all machines, or one per machine, [machines].
        """
        raise Undefined("a sampler of local work must define uses")

    @property
    def of_step(self) -> Sampler:
        """Sampler of one local step, from which privacy accountants compute the amplification by subsampling.

        If the steps that use a record are public, privacy is not amplified. This sampler is then `Full()`, as if every
        step used all records. It must be `Full()` in a custom class, too, if noise in local steps protects records: the
        steps of a round may share their records.
        """
        raise Undefined("a sampler of local work must define of_step")

    def divisors(self, sizes: np.ndarray) -> np.ndarray:
        """Return the fixed number by which each machine divides the sum over a step's records; int [machines].

        If noise in local steps protects records, the sum is divided by `batch` or, without one, by the number of the
        step's records. A divisor must then be at most this number.

        Args:
            sizes: number of records of each machine, int [machines].
        """
        raise Undefined("a sampler of local work must define divisors")

    def most_steps(self, sizes: np.ndarray) -> int:
        """Return the largest number of local steps that a machine takes in a round.

        Args:
            sizes: number of records of each machine, int [machines].
        """
        return max(1, int(self.steps(sizes).max()))

    def width(self, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
        return self.most_steps(sizes) * self.step_width(sizes, messages)

    def step_width(self, sizes: np.ndarray, messages: int) -> int:
        """Return the number of records for which arrays have room in one local step.

        No step of the run has more records. If batches have random sizes, this holds except with a tiny probability.

        Args:
            sizes: number of records of each machine, int [machines].
            messages: number of messages in the run. It is used only if batches have random sizes.
        """
        raise Undefined("a sampler of local work must define step_width")


@dataclass(frozen=True)
class LocalEpochs(LocalWork):
    """Sampler for machines that make `epochs` passes over their records in every round, in batches.

    Each pass is in a new random order. A machine with n records takes E·⌈n/B⌉ steps per round, with E = `epochs` and B
    = `batch`. The last batch of a pass is smaller if B does not divide n.

    Attributes:
        epochs: E, number of passes over the records in a round.
        batch: B, largest number of records of a step, or None for all records of the machine in every step.

    >>> LocalEpochs(2, 10).steps(np.array([600, 25, 0])).tolist()
    [120, 6, 0]
    """

    epochs: int
    batch: Batch = None
    name: ClassVar[str] = "local_epochs"
    words: ClassVar[str] = "passes over a machine's records in every round, each in a new public random order"
    settled: ClassVar[bool] = True

    def __post_init__(self):
        require_at_least("local_epochs", self.epochs, 1)
        require_counted(local_epochs=self.epochs)
        object.__setattr__(self, "epochs", int(self.epochs))
        if self.batch is not None:
            require_at_least("batch", self.batch, 1)  # type: ignore[arg-type]
            if self.batch > NO_LIMIT:  # type: ignore[operator]
                raise Refusal(f"batch must be at most 2⁶², got {short(self.batch)}")
            object.__setattr__(self, "batch", int(self.batch))  # type: ignore[arg-type]

    @property
    def uses(self) -> int:
        return self.epochs

    @property
    def of_step(self) -> Sampler:
        return Full()  # the steps that use a record are public

    def divisors(self, sizes: np.ndarray) -> np.ndarray:
        return np.maximum(sizes, 1) if self.batch is None else np.full(sizes.shape, self.batch)

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        return self.epochs * np.maximum(sizes, 1)

    def steps(self, sizes: np.ndarray) -> np.ndarray:
        return self.epochs * (np.minimum(sizes, 1) if self.batch is None else -(-sizes // self.batch))

    def step_width(self, sizes: np.ndarray, messages: int) -> int:
        return max(1, int(sizes.max())) if self.batch is None else int(self.batch)  # type: ignore[arg-type]

    def cut(self, width: int) -> int:
        return self.epochs if self.batch is None else width // int(self.batch)  # type: ignore[arg-type]

    def draw(self, rows, schedule, rng, stored=False):
        sizes = np.sum(rows >= 0, axis=1)
        each, step, most = self.steps(sizes) // self.epochs, self.step_width(sizes, 1), int(sizes.max())
        shape = (*schedule.participants.shape, self.most_steps(sizes), step)
        places, used = np.zeros(shape, np.int32), np.zeros(shape, bool)
        for t, machines in enumerate(schedule.participants):
            keys = rng.random((machines.size, self.epochs, most)) if not stored else np.linspace(0, 1, max(most, 1))
            size = sizes[machines][:, None, None]
            order = np.argsort(np.where(np.arange(most) < size, keys, 2.0), axis=2)
            epoch, part = np.divmod(np.arange(shape[2]), np.maximum(each[machines], 1)[:, None])  # [per_round, K]
            at = part[:, :, None] * step + np.arange(step)
            used[t] = (at < size) & (epoch < self.epochs)[:, :, None]
            within = np.minimum(at, max(most - 1, 0)), np.minimum(epoch, self.epochs - 1)[:, :, None]
            if most:
                places[t] = order[np.arange(machines.size)[:, None, None], within[1], within[0]]
        flat = (*shape[:2], shape[2] * shape[3])
        return np.where(used, places, 0).reshape(flat), used.reshape(flat)


@dataclass(frozen=True)
class LocalSteps(LocalWork):
    """Sampler for a fixed number of local steps per round, with an independently sampled batch in each step.

    Attributes:
        number: number of local steps of every machine, or one number for each machine. These numbers are public.
        sampler: sampler of the batch of one step.

    >>> from fedprivjax.plan.samplers import Subset
    >>> LocalSteps(5, Subset(10)).steps(np.array([600, 25])).tolist()
    [5, 5]
    >>> LocalSteps([5, 2], Subset(10)).steps(np.array([600, 25])).tolist()
    [5, 2]
    """

    number: int | Sequence[int]
    sampler: Sampler
    name: ClassVar[str] = "local_steps"
    words: ClassVar[str] = "an independent sample of records for every local step"

    def __post_init__(self):
        if np.ndim(self.number):
            object.__setattr__(self, "number", tuple(np.asarray(self.number).tolist()))
        for number in np.atleast_1d(self.number).tolist():
            require_at_least("local_steps", number, 1)
            require_counted(local_steps=number)
        if self.unequal and type(self.sampler) not in (Replacement, Subset, Full):
            raise Refusal(
                f"sampler must be 'replacement', 'subset' or 'full' with one number of local_steps for each machine, "
                f"because a step whose secret sample is empty would be left out, got {self.sampler}"
            )
        if not (self.sampler.secret or type(self.sampler) is Full):
            raise Refusal(
                f"sampler must be 'replacement', 'subset', 'poisson' or 'full' for local steps, "
                f"got {self.sampler}. Use local_epochs for passes over the records"
            )

    @property
    def batch(self) -> Batch:  # type: ignore[override]
        """Number of records in the batch of one local step, or None if the sampler needs no such number."""
        return self.sampler.batch

    @property
    def secret(self) -> bool:  # type: ignore[override]
        """True if it is secret which records the batch of each local step has."""
        return self.sampler.secret

    @property
    def unequal(self) -> bool:
        """True if there is a separate number of local steps for each machine."""
        return isinstance(self.number, tuple)

    @property
    def uses(self) -> Any:
        return np.asarray(self.number) if self.unequal else self.number

    @property
    def of_step(self) -> Sampler:
        return self.sampler

    def divisors(self, sizes: np.ndarray) -> np.ndarray:
        return np.maximum(self.sampler.batches(sizes), 1)  # 0 for a full batch of a machine without records

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        return self.steps(sizes) * self.divisors(sizes)

    def steps(self, sizes: np.ndarray) -> np.ndarray:
        if self.unequal and np.shape(self.number) != sizes.shape:
            raise Refusal(
                f"local_steps must be one number or one for each of {sizes.size} machines, got {np.size(self.number)}"
            )
        return np.broadcast_to(self.number, sizes.shape)

    def most_steps(self, sizes: np.ndarray) -> int:
        return int(np.max(self.number))

    def step_width(self, sizes: np.ndarray, messages: int) -> int:
        return self.sampler.width(sizes, self.sampler.batches(sizes), messages * self.most_steps(sizes))

    def cut(self, width: int) -> int:
        return int(np.max(self.number))

    def draw(self, rows, schedule, rng, stored=False):
        sizes = np.sum(rows >= 0, axis=1)
        batches, slots, most = self.sampler.batches(sizes), schedule.participants.size, self.most_steps(sizes)
        step, shape = self.step_width(sizes, slots), (*schedule.participants.shape, most)
        places, counts = np.zeros((*shape, step), np.int32), np.zeros(shape, int)
        for t, machines in enumerate(schedule.participants):
            flat = np.repeat(machines, most)
            drawn, count = self.sampler.message(sizes[flat], batches[flat], int(sizes.max()), step, rng)
            places[t], counts[t] = np.reshape(drawn, (*shape[1:], step)), np.reshape(count, shape[1:])
        counts = np.where(np.arange(most) < self.steps(sizes)[schedule.participants][..., None], counts, 0)
        used = np.arange(step) < counts[..., None]
        return places.reshape(*shape[:2], -1), used.reshape(*shape[:2], -1)
