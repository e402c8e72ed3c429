"""Storage of a sweep's finished chunks, from which an interrupted run resumes."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.user_warnings import warn
from fedprivjax.disk_cache import SHORT, code_version, digest, read_chunk, write_chunk
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
        """Return the chunk sizes of the run that was started in this folder, or store and return `sizes`.

        Raises:
            Refusal: if the run was started by another version of the code.
        """
        path = self.folder / f"{self.fingerprint}.json"
        begun = _begun(path) if path.is_file() else None
        if begun is not None:
            if begun["code"] != code_version():
                raise Refusal(f"the run in {self.folder} must be resumed by the code that began it, and it has changed")
            self.sizes = begun["sizes"]
        else:
            write_atomically(path, json.dumps({"sizes": self.sizes, "code": code_version()}))
        return self.sizes

    def load(self, index: int) -> dict[str, np.ndarray] | None:
        """Return a finished chunk's arrays, or None as in `read_chunk`."""
        return read_chunk(self._path(index))

    def save(self, index: int, arrays: dict[str, np.ndarray]) -> None:
        """Write a finished chunk."""
        write_chunk(self._path(index), arrays)

    def _path(self, index: int) -> Path:
        draws, members = self.sizes
        return self.folder / f"{self.fingerprint}-{code_version()}-{draws}x{members}-{index:04d}.npz"


def _begun(path: Path) -> dict[str, Any] | None:
    """Return the stored code version and chunk sizes of a run. Warn, and return None, if the file is damaged."""
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
        draws, members = begun["sizes"]
        return {"code": begun["code"], "sizes": (int(draws), int(members))}
    except (ValueError, KeyError, TypeError):
        warn(f"{path} is damaged: chunks of other sizes are computed again")
        return None


def fingerprint(*parts) -> str:
    """Return a digest of pytrees of arrays, numbers and text."""
    leaves = jax.tree_util.tree_leaves_with_path(parts, is_leaf=lambda leaf: leaf is None)
    return digest(*[part for path, leaf in leaves for part in (jax.tree_util.keystr(path), _part(leaf))])[:SHORT]


def program_text(arguments: Any, recipe: Recipe) -> str:
    """Return the text of one run's program, equal in all processes. It includes the code of user functions.

    The text of a program with host callbacks is always unique, because it does not contain the called functions.
    """
    with _constants_in_place():
        text = run_program.lower(arguments, recipe).as_text()
    return text if "callback" not in text else f"{text}\n{uuid4()}"


@contextmanager
def _constants_in_place():
    """Keep arrays that a function closes over as constants of its program, regardless of the user's jax setting.

    As arguments of the program they would be missing from its text.
    """
    before = jax.config.values.get(HOISTED)
    if not before:
        yield
        return
    jax.config.update(HOISTED, False)
    try:
        yield
    finally:
        jax.config.update(HOISTED, before)


def _part(leaf: Any) -> Any:
    """Return the leaf in a form for `digest`: text, None or an array."""
    if isinstance(leaf, str) or leaf is None:
        return leaf
    array = np.asarray(leaf)
    if array.dtype == object:
        raise TypeError(f"fingerprint must be of arrays, numbers and text, got {leaf!r}")
    return array
