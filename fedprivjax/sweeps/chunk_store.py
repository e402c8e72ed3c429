"""Storage of a sweep's finished chunks, from which an interrupted run resumes and which several processes fill."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
import numpy as np

from fedprivjax.atomic_write import create_atomically, write_atomically
from fedprivjax.bounded_read import json_from
from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.disk_cache import SHORT, code_version, read_chunk, write_chunk
from fedprivjax.engine.fingerprint import calls_host, data_fingerprint, fingerprint, versions
from fedprivjax.engine.fingerprint import program_text as lowered_text
from fedprivjax.engine.hosts import from_first, require_equal, together
from fedprivjax.engine.prepare import StaticArguments
from fedprivjax.engine.simulate import run_program
from fedprivjax.sweeps.part import CLAIM
from fedprivjax.sweeps.prepare import ReadySweep

SECONDS = "seconds"  # of a chunk, with compilation
DIVERGED = "diverged"
LARGEST = 2**20  # runs of a chunk
DIGEST = rf"[0-9a-f]{{{SHORT}}}"
FILES = re.compile(rf"{DIGEST}(\.json|-{DIGEST}-\d+x\d+-\d+(\.npz|{re.escape(CLAIM)}))")  # of a store


class ChunkStore:
    """A folder of finished chunks of one sweep.

    Files are named by the sweep's fingerprint, chunks also by the code and by their sizes. Processes may share the
    folder.
    """

    def __init__(self, folder: Path, fingerprint: str, sizes: tuple[int, int] = (1, 1)):
        self.folder, self.fingerprint, self.sizes = folder, fingerprint, sizes

    def settle(self) -> tuple[int, int]:
        """Return the chunk sizes of the run that was started in this folder, or store and return `sizes`.

        Warn, and replace the stored sizes, if their file is damaged.

        Raises:
            Refusal: if the run was started by another version of the code.
        """
        path = self._sizes_path()
        own = json.dumps({"sizes": self.sizes, "code": code_version()})
        if create_atomically(path, own):
            return self.sizes
        try:
            begun = json_from(path, follow=False)
            (draws, configurations), code = begun["sizes"], begun["code"]
            if not all(type(size) is int and size > 0 for size in begun["sizes"]) or draws * configurations > LARGEST:
                raise ValueError(begun["sizes"])
            self.sizes = draws, configurations
        except (ValueError, KeyError, TypeError):
            warn(f"{path} is damaged: chunks of other sizes are computed again")
            write_atomically(path, own)
            return self.sizes
        if code != code_version():
            raise Refusal(f"the run in {self.folder} must be resumed by the code that began it, and it has changed")
        return self.sizes

    def has(self, index: int) -> bool:
        """Return True if a chunk is finished."""
        return self._path(index).is_file()

    def claim(self, index: int) -> Path:
        """Return the file of a chunk's claim."""
        return self._path(index).with_suffix(CLAIM)

    def load(self, index: int, shape: tuple[int, int]) -> dict[str, np.ndarray] | None:
        """Return a finished chunk's arrays, or None as in `read_chunk`.

        Args:
            shape: numbers of draws and configurations. A chunk of another shape is damaged.
        """
        return read_chunk(self._path(index), partial(_is_chunk, shape))

    def save(self, index: int, arrays: dict[str, np.ndarray]) -> None:
        """Write a finished chunk."""
        write_chunk(self._path(index), arrays)

    def _sizes_path(self) -> Path:
        return self.folder / f"{self.fingerprint}.json"

    def _path(self, index: int) -> Path:
        draws, configurations = self.sizes
        return self.folder / f"{self.fingerprint}-{code_version()}-{draws}x{configurations}-{index:04d}.npz"


def remove_stores(folder: Path) -> None:
    """Remove the files of all stores in a folder. Other files stay."""
    for path in folder.iterdir():
        if FILES.fullmatch(path.name):
            path.unlink(missing_ok=True)


class FirstStore(ChunkStore):
    """A folder of finished chunks that the first of several processes reads and writes.

    The others call the same methods, and get what the first has found. They need not reach the folder.
    """

    def settle(self) -> tuple[int, int]:
        self.sizes = from_first(super().settle)
        return self.sizes

    def load(self, index: int, shape: tuple[int, int]) -> dict[str, np.ndarray] | None:
        return from_first(partial(super().load, index, shape))

    def save(self, index: int, arrays: dict[str, np.ndarray]) -> None:
        from_first(partial(super().save, index, arrays))


def _is_chunk(shape: tuple[int, int], arrays: Mapping[str, np.ndarray]) -> bool:
    """Return True if arrays are the seconds of a chunk, and numbers of its runs."""
    of_runs = {name: array for name, array in arrays.items() if name != SECONDS}
    seconds = arrays.get(SECONDS, np.zeros(1))
    return (
        seconds.shape == ()
        and DIVERGED in of_runs
        and all(array.dtype.kind in "biuf" for array in arrays.values())
        and all(array.shape[:2] == shape for array in of_runs.values())
    )


def open_store(folder: Path, start: ReadySweep, name: str) -> ChunkStore:
    """Return the store of a sweep's chunks in a folder, which the first of the processes of its mesh uses.

    Args:
        name: fingerprint of the sweep.
    """
    kind = FirstStore if together(start.mesh) else ChunkStore
    return kind(folder, name, start.sizes)


def agreed_fingerprint(start: ReadySweep) -> str:
    """Return the fingerprint of a sweep, equal in all processes of its mesh.

    Raises:
        Refusal: if the processes have other versions of the code, other data or other settings.
    """
    found = sweep_fingerprint(start)
    if together(start.mesh):
        require_equal({**versions(), "data": data_fingerprint(start.first.problem), "settings": found})
    return found


def sweep_fingerprint(start: ReadySweep) -> str:
    """Return a digest of everything that a sweep's numbers depend on: its inputs and the text of one program."""
    one_run = start.arguments(0, 0)
    host_noises = (  # one at a time, because all of them may not fit in memory
        start.host_noise(draw, place)
        for draw in range(len(start.starts))
        for place in start.index[draw % len(start.index)].tolist()
    )
    noises = [fingerprint(noise) for noise in host_noises]
    drawn = [(one.mechanism, one.inputs, one.seeds) for one in start.starts]
    text = program_text(one_run, start.static)
    if calls_host(text) and together(start.mesh):
        text = from_first(lambda: text)
    inputs = start.first.problem.traced, start.configurations.leaves, start.index, drawn, noises, start.common_noise
    return fingerprint(text, *inputs, *start.keep)


def code_text(start: ReadySweep) -> str:
    """Return the text of one run's program, or "" if it has host callbacks, whose functions no text contains."""
    text = lowered_text(run_program, start.arguments(0, 0), start.static)
    return "" if calls_host(text) else text


def number_fingerprint(start: ReadySweep) -> str:
    """Return a digest of the numbers that a sweep's programs take, except examples and randomness."""
    leaves = jax.tree_util.tree_leaves_with_path(start.first.problem.traced)
    given = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in leaves
        if path[0].name not in ("pool", "test", "test_clients")
    }
    return fingerprint(given, start.configurations.leaves)


def program_text(arguments: Any, static: StaticArguments) -> str:
    """Return the text of one run's program, equal in all processes. It includes the code of user functions.

    The text of a program with host callbacks is always unique, because it does not contain the called functions.
    """
    text = lowered_text(run_program, arguments, static)
    return f"{text}\n{uuid4()}" if calls_host(text) else text
