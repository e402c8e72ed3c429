"""Parts of a sweep: several processes, on any machines that share a folder, compute its chunks between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from fedprivjax.checks.refusal import Refusal

Item = TypeVar("Item")

# Variables of the number of this process from 0 or from a first number, and of the number of processes.
SCHEDULERS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("SLURM_PROCID", None, "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", None, "OMPI_COMM_WORLD_SIZE"),
)


class Part(NamedTuple):
    """One of several processes that compute a sweep together.

    Attributes:
        number: number of this part, from 1.
        of: number of parts.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part of a text such as "3/16".

        >>> Part.parse("3/16")
        Part(number=3, of=16)
        """
        number, _, of = text.partition("/")
        if not (number.strip().isdigit() and of.strip().isdigit()):
            raise Refusal(f"part must be two numbers such as 3/16, got {text!r}")
        return as_part((int(number), int(of)))

    def in_order(self, items: Sequence[Item]) -> list[Item]:
        """Return the items in this part's order: from its share on, then the others.

        >>> Part(2, 2).in_order("abcd")
        ['c', 'd', 'a', 'b']
        """
        first = (self.number - 1) * len(items) // self.of
        return [*items[first:], *items[:first]]

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def as_part(part: Part | tuple[int, int]) -> Part:
    """Return a part from a pair (number, of).

    Raises:
        Refusal: unless 1 ≤ number ≤ of.
    """
    if isinstance(part, str) or not isinstance(part, Sequence) or len(part) != 2:
        raise Refusal(f"part must be a pair (number, of) such as (3, 16), got {part!r}")
    number, of = part
    if not all(type(value) is int for value in (number, of)) or not 1 <= number <= of:
        raise Refusal(f"part must be a number from 1 to the number of parts, got {number}/{of}")
    return Part(number, of)


def part_of_scheduler(environment: Mapping[str, str]) -> Part | None:
    """Return the part that a scheduler gave this process by environment variables, or None for a single process.

    It reads those of Slurm (job arrays, and the tasks of `srun`) and Open MPI.

    >>> part_of_scheduler({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"})
    Part(number=3, of=4)
    """
    for number, first, of in SCHEDULERS:
        if number in environment and int(environment.get(of, "1")) > 1:
            start = int(environment.get(first, "0")) if first else 0
            return as_part((int(environment[number]) - start + 1, int(environment[of])))
    return None
