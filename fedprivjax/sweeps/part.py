"""Parts of a sweep: several processes, on any machines that share a folder, compute its chunks between them.

They claim chunks, so that no two compute the same one. A claim is a file that one process creates and touches while it
computes. It has expired if its process ran on this computer and has ended, or if it was not touched for `EXPIRY`
seconds: its process ended or cannot reach the folder. A claim whose time is as far in the future has expired, too: it
is a copy from a computer with another clock. Claims only save work, because every process that computes a chunk writes
the same numbers.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import NamedTuple, TypeVar

from fedprivjax.atomic_write import create_atomically
from fedprivjax.bounded_read import text_of
from fedprivjax.checks.refusal import Refusal

Item = TypeVar("Item")

# Variables of the number of this process from 0 or from a first number, and of the number of processes.
SCHEDULERS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("SLURM_PROCID", None, "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", None, "OMPI_COMM_WORLD_SIZE"),
)
CLAIM = ".claim"
TOUCHED = 5.0  # seconds between two touches of a claim
LONGEST = 4096  # largest number of bytes of a claim
EXPIRY = 60.0  # seconds since its last touch after which a claim has expired


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


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Context manager that reserves a piece of work for this process, if no other process has it.

    The processes share a folder. The value is True if this process holds the claim until the end of the block, and
    False if another process holds it. A claim is a file that exists while it is held.

    Args:
        path: path of the claim's file, the same in all processes.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, claimed(Path(folder, "chunk.claim")) as first:
    ...     with claimed(Path(folder, "chunk.claim")) as second:
    ...         first, second
    (True, False)
    """
    if not _take(path):
        yield False
        return
    ended = Event()
    touching = Thread(target=_touch, args=(path, ended), daemon=True)
    touching.start()
    try:
        yield True
    finally:
        ended.set()
        touching.join()
        with suppress(OSError):
            path.unlink()


def held(folder: Path) -> bool:
    """Return True if a process holds a claim in the folder."""
    return any(not _expired(path) for path in folder.glob(f"*{CLAIM}"))


def any_free(paths: Iterable[Path]) -> bool:
    """Wait until one of these claims is released or expires, and return True, or until all are touched: False.

    A touch shows that the claim's process still runs. The wait takes at most `EXPIRY` seconds.
    """
    waiting = {path: _touched_at(path) for path in paths}
    while waiting:
        if any(_expired(path) for path in waiting):
            return True
        waiting = {path: before for path, before in waiting.items() if _touched_at(path) == before}
        sleep(TOUCHED / 10 if waiting else 0)
    return False


def _take(path: Path) -> bool:
    if path.exists() and _expired(path):
        path.unlink(missing_ok=True)
    return create_atomically(path, f"{_computer()} {os.getpid()}\n")


def _touch(path: Path, ended: Event) -> None:
    while not ended.wait(TOUCHED):
        with suppress(OSError):
            os.utime(path)


def _expired(path: Path) -> bool:
    """Return True if a claim has expired or is gone. Both times are the file server's."""
    if _ended(path):
        return True
    now = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}.part")
    try:
        now.touch(exist_ok=False)
        return abs(now.stat().st_mtime - path.stat().st_mtime) > EXPIRY  # nobody touches a file in the future
    except FileNotFoundError:
        return True
    finally:
        now.unlink(missing_ok=True)


def _touched_at(path: Path) -> float | None:
    """Return the time of a claim's last touch, or None if it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _ended(path: Path) -> bool:
    """Return True if a claim's process ran on this computer and has ended."""
    try:
        computer, number = text_of(path, LONGEST, follow=False).split()
        if os.name != "posix" or computer != _computer():
            return False
        os.kill(int(number), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


@cache
def _computer() -> str:
    """Return a name of this computer since its start, and of the container: processes of others have other numbers."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)
