"""Disk cache of slow host computations, shared between processes. Its files may be deleted at any time.

A file is named by a digest of everything that it depends on, including the code that computes it. Each cache lists its
own code (`code_digest`), so that an edit elsewhere invalidates nothing; chunks of runs depend on the whole package
(`code_version`). Files are written atomically (`fedprivjax.atomic_write`). A damaged file is computed again. If the
folder cannot be written, nothing is cached and nothing is reported.
"""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.checks.user_warnings import warn

CACHE = "FEDPRIVJAX_CACHE"  # environment variable that names the folder; empty disables the cache
SLOW = 0.2  # seconds; faster computations are not cached
SHORT = 16  # hexadecimal digits of a digest in the name of a file that people see
PACKAGE = Path(__file__).parent


def cache_folder() -> Path | None:
    """Return the cache folder: `$FEDPRIVJAX_CACHE`, by default the download cache, or None if the variable is empty."""
    named = os.environ.get(CACHE)
    if named is None:
        import pooch

        return Path(pooch.os_cache("fedprivjax"))
    return Path(named) if named else None


def cached(
    kind: str, cache_key: tuple[Any, ...], compute: Callable[[], np.ndarray], valid: Callable[[np.ndarray], bool]
) -> np.ndarray:
    """Return a cached array, or compute it, and cache it if that was slow.

    Args:
        kind: name of the subfolder of `cache_folder`.
        cache_key: everything that the array depends on, see `digest`.
        compute: returns the array.
        valid: returns True if an array from disk may be used. Nothing else is assumed of it.
    """
    path = cached_file(cache_folder(), kind, cache_key)
    found = None if path is None else read(path)
    if found is not None and valid(found):
        return np.array(found)
    start = perf_counter()
    computed = compute()
    if path is not None and (found is not None or perf_counter() - start >= SLOW):
        try_write(path, lambda file: np.lib.format.write_array(file, computed, allow_pickle=False))
    return computed


def cached_file(folder: Path | None, kind: str, cache_key: tuple[Any, ...]) -> Path | None:
    """Return the file of an array, or None without a folder."""
    return None if folder is None else folder / kind / f"{digest(*cache_key)}.npy"


def digest(*parts: Any) -> str:
    """SHA-256 of arrays, by their shapes, types and numbers, and of other values, by their `repr`.

    >>> digest(np.zeros(2), "one") == digest(np.zeros(2), "one") != digest(np.zeros((2, 1)), "one")
    True
    """
    found = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        head = repr((part.shape, part.dtype.str) if array else part)
        found.update(f"{len(head)} {head}".encode())
        if array:
            found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


@cache
def code_digest(*folders: Path, packages: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> str:
    """Digest of the Python files in folders and of the versions of packages.

    Args:
        exclude: names of files without ".py".
    """
    files = [file for folder in folders for file in sorted(folder.rglob("*.py")) if file.stem not in exclude]
    return digest(*[file.read_bytes() for file in files], *[version(package) for package in packages])


def code_version() -> str:
    """Digest of this package's code and of jax's version, which the chunks of a run depend on."""
    return code_digest(PACKAGE, packages=("jax",))[:SHORT]


def read(path: Path) -> np.ndarray | None:
    """Return an array on disk, mapped into memory, or None if there is none or it is damaged."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception:  # NumPy may raise anything for a damaged header, even a tokenizer's error
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


def write_chunk(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays of a finished chunk, which `read_chunk` returns."""
    write_atomically(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def try_write(path: Path, fill: Callable[[BinaryIO], Any]) -> bool:
    """Write a file. Return True on success, and False if it cannot be written.

    The content goes through the file, never through a memory map: on a full disk that would end the process.
    """
    try:
        write_atomically(path, fill)
    except OSError:
        return False
    return True
