"""Claims of chunks, by which processes that share a folder avoid computing the same chunk.

A claim is a file that one process creates and touches while it computes. A claim that was not touched for `EXPIRY`
seconds has expired: its process has ended, or cannot reach the folder. Claims only save work, because every process
that computes a chunk writes the same numbers.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from fedprivjax.atomic_write import create_atomically

CLAIM = ".claim"
TOUCHED = 5.0  # seconds between two touches of a claim
EXPIRY = 60.0  # seconds since its last touch after which a claim has expired


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a claim within the block. The value is False if another process holds it.

    Args:
        path: file of the claim.

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


def _take(path: Path) -> bool:
    if path.exists() and _expired(path):
        path.unlink(missing_ok=True)
    return create_atomically(path, f"{socket.gethostname()} {os.getpid()}\n")


def _touch(path: Path, ended: Event) -> None:
    while not ended.wait(TOUCHED):
        with suppress(OSError):
            os.utime(path)


def _expired(path: Path) -> bool:
    """Return True if a claim has expired or is gone. Both times are the file server's."""
    now = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}.part")
    try:
        now.touch(exist_ok=False)
        return now.stat().st_mtime - path.stat().st_mtime > EXPIRY
    except FileNotFoundError:
        return True
    finally:
        now.unlink(missing_ok=True)
