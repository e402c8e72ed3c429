"""What takes long to compute on the host, on disk between processes: files that may be deleted at any time.

A file is named by a digest of all that it depends on, the code that computes it among that. Files are written
atomically (`fedprivjax.atomic_write`). A damaged file is computed anew. Where nothing can be written, nothing is kept,
and nothing said.
"""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.checks.user_warnings import warn

CACHE = "FEDPRIVJAX_CACHE"  # names the folder; empty keeps nothing
SLOW = 0.2  # seconds: what is sooner computed is not kept


def home() -> Path | None:
    """The folder of all that is kept, beside that of downloads; `$FEDPRIVJAX_CACHE` names another or, empty, none."""
    named = os.environ.get(CACHE)
    if named is None:
        import pooch

        return Path(pooch.os_cache("fedprivjax"))
    return Path(named) if named else None


def remembered(
    kind: str, said: tuple[Any, ...], make: Callable[[], np.ndarray], good: Callable[[np.ndarray], bool]
) -> np.ndarray:
    """An array that was kept, or that is computed, and kept where that took long.

    Args:
        kind: the folder's name within `home`.
        said: all that the array depends on, see `digest`.
        make: computes it.
        good: whether an array from disk may be used; it is trusted in nothing else.
    """
    path = place(home(), kind, said)
    found = None if path is None else read(path)
    if found is not None and good(found):
        return np.array(found)
    start = perf_counter()
    made = make()
    if path is not None and (found is not None or perf_counter() - start >= SLOW):
        written(path, lambda file: np.lib.format.write_array(file, made, allow_pickle=False))
    return made


def place(folder: Path | None, kind: str, said: tuple[Any, ...]) -> Path | None:
    """The file of an array, by all that it depends on; None where nothing is kept."""
    return None if folder is None else folder / kind / f"{digest(*said)}.npy"


def digest(*parts: Any) -> str:
    """A name for arrays, by their numbers, and for whatever else, by its `repr`.

    >>> digest(np.zeros(2), "one") == digest(np.zeros(2), "one") != digest(np.zeros((2, 1)), "one")
    True
    """
    found = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        head = repr((part.shape, part.dtype.str) if array else part)
        found.update(f"{len(head)} {head}".encode())
        if array:
            found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


@cache
def code(*folders: Path, packages: tuple[str, ...] = (), but: tuple[str, ...] = ()) -> str:
    """A digest of the Python files in folders, but for some by name, and of the versions of packages."""
    files = [file for folder in folders for file in sorted(folder.rglob("*.py")) if file.stem not in but]
    return digest(*[file.read_bytes() for file in files], *[version(package) for package in packages])


def read(path: Path) -> np.ndarray | None:
    """An array on disk, mapped into memory; None where there is none, or a damaged one."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception:  # of a damaged header NumPy may raise anything, a tokenizer's error too
        return None


def read_chunk(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays of a finished chunk, an `.npz` file, by name, or None if there is none.

    Warn, and return None, if the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        warn(f"chunk {path} is damaged: it is computed again")
        return None


def written(path: Path, fill: Callable[[BinaryIO], Any]) -> bool:
    """Whether a file could be written. No mapped file is written: on a full disk that ends the process."""
    try:
        write_atomically(path, fill)
    except OSError:
        return False
    return True
