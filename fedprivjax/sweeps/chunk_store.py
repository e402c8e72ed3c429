"""Finished chunks of a sweep on disk, from which a killed run resumes."""

import hashlib
import json
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.user_warnings import warn
from fedprivjax.disk_cache import read_chunk
from fedprivjax.engine.prepare import Recipe
from fedprivjax.engine.simulate import run_program

HOISTED = "jax_use_simplified_jaxpr_constants"


class ChunkStore:
    """A folder of finished chunks of one sweep.

    Files are named by the sweep's fingerprint, chunks also by the code and by their sizes. Processes may share the
    folder.
    """

    def __init__(self, folder: Path, fingerprint: str, sizes: tuple[int, int] = (1, 1)):
        self.folder, self.fingerprint, self.sizes = folder, fingerprint, sizes

    def settle(self) -> tuple[int, int]:
        """Return the chunk sizes of the run that was begun here, or its own, which are then written down.

        Raises:
            Refusal: the run was begun by another version of the code.
        """
        path = self.folder / f"{self.fingerprint}.json"
        begun = _begun(path) if path.is_file() else None
        if begun is not None:
            if begun["code"] != code_version():
                raise Refusal(f"the run in {self.folder} must be resumed by the code that began it, which has changed")
            self.sizes = begun["sizes"]
        else:
            write_atomically(path, json.dumps({"sizes": self.sizes, "code": code_version()}))
        return self.sizes

    def load(self, index: int) -> dict[str, np.ndarray] | None:
        """Return a finished chunk's arrays, or None, as `read_chunk`."""
        return read_chunk(self._path(index))

    def save(self, index: int, arrays: dict[str, np.ndarray]) -> None:
        """Write a finished chunk."""
        write_atomically(self._path(index), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]

    def _path(self, index: int) -> Path:
        draws, members = self.sizes
        return self.folder / f"{self.fingerprint}-{code_version()}-{draws}x{members}-{index:04d}.npz"


def _begun(path: Path) -> dict[str, Any] | None:
    """What was written down of a run, or None where it cannot be read, which is said."""
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
        draws, members = begun["sizes"]
        return {"code": begun["code"], "sizes": (int(draws), int(members))}
    except (ValueError, KeyError, TypeError):
        warn(f"{path} is damaged: chunks of other sizes are computed again")
        return None


def fingerprint(*parts) -> str:
    """A digest of pytrees of arrays, numbers and text."""
    digest = hashlib.blake2b(digest_size=8)
    for path, leaf in jax.tree_util.tree_leaves_with_path(parts, is_leaf=lambda leaf: leaf is None):
        for piece in (jax.tree_util.keystr(path).encode(), *_pieces(leaf)):
            digest.update(len(piece).to_bytes(8, "little"))  # so that no two sequences of pieces are one
            digest.update(piece)
    return digest.hexdigest()


def program_text(arguments: Any, recipe: Recipe) -> str:
    """The text of one run's program, the same in two processes: all that a user's functions put into it is there.

    A program that calls back to the host is like no other, not even itself: what it calls is not in the text.
    """
    with _constants_in_place():
        text = run_program.lower(arguments, recipe).as_text()
    return text if "callback" not in text else f"{text}\n{uuid4()}"


@contextmanager
def _constants_in_place():
    """Arrays that a function closes over stand in its program, and are not made arguments of it, which the text leaves
    out; jax has a setting for that, which users may set."""
    before = jax.config.values.get(HOISTED)
    if not before:
        yield
        return
    jax.config.update(HOISTED, False)
    try:
        yield
    finally:
        jax.config.update(HOISTED, before)


def _pieces(leaf) -> tuple[bytes, ...]:
    """What tells a leaf from every other."""
    if isinstance(leaf, str) or leaf is None:
        return (repr(leaf).encode(),)
    array = np.ascontiguousarray(leaf)
    if array.dtype == object:
        raise TypeError(f"a fingerprint is of arrays, numbers and text, not of {leaf!r}")
    return b"array", f"{array.dtype}{np.shape(leaf)}".encode(), array.tobytes()


@cache
def code_version() -> str:
    """A digest of this package's source and of jax's version."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.blake2b(jax.__version__.encode(), digest_size=8)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()
