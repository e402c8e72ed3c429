"""Disk cache of slow host computations, shared between processes. Its files may be deleted at any time.

A file's name is a digest of everything that it depends on, including the code that computes it. Each cache lists its
own code (`code_digest`), so other edits do not invalidate it. Chunks of runs depend on the whole package
(`code_version`). Files are written atomically (`fedprivjax.atomic_write`). Damaged files are recomputed. If the folder
is not writable, nothing is cached and no error is reported.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np
import platformdirs

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import Unreadable, arrays_from
from fedprivjax.checks.refusal import warn

CACHE = "FEDPRIVJAX_CACHE"  # environment variable that names the folder; empty disables the cache
SLOW = 0.2  # seconds; faster computations are not cached
SHORT = 16  # hexadecimal digits of a digest in names of user-visible files
PACKAGE = Path(__file__).parent


def cache_folder() -> Path | None:
    """Return the cache folder: `$FEDPRIVJAX_CACHE`, by default the download cache, or None if the variable is empty."""
    named = os.environ.get(CACHE)
    if named is None:
        return Path(platformdirs.user_cache_dir("fedprivjax"))
    return Path(named) if named else None


def keep_compiled() -> None:
    """Enable jax's disk cache of compiled programs: `$JAX_COMPILATION_CACHE_DIR`, by default in the cache folder.

    jax reads these settings when it is imported. A later call has no effect.
    """
    folder = cache_folder()
    if folder is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides warnings on CPU features of cached programs


def cached(
    kind: str, cache_key: tuple[Any, ...], compute: Callable[[], np.ndarray], valid: Callable[[np.ndarray], bool]
) -> np.ndarray:
    """Return a cached array, or compute it and cache it if that was slow.

    Args:
        kind: name of the subfolder of `cache_folder`.
        cache_key: everything that the array depends on, see `digest`.
        compute: function that returns the array.
        valid: function that returns True if an array from disk is valid. Cached arrays are not trusted otherwise.
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
    """Return the path of a cached array, or None without a folder."""
    return None if folder is None else folder / kind / f"{digest(*cache_key)}.npy"


def digest(*parts: Any) -> str:
    """Return the SHA-256 of arrays (shape, dtype and numbers) and of the `repr` of other values.

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
    """Return a digest of the Python files in folders and the versions of packages.

    Args:
        folders: folders, searched recursively.
        packages: names of installed packages.
        exclude: names of excluded files, without ".py".

    Raises:
        FileNotFoundError: if a folder does not exist or holds no Python file. Its digest would never change.
    """
    files: list[Path] = []
    for folder in folders:
        found = sorted(folder.rglob("*.py"))
        if not found:
            raise FileNotFoundError(f"folders must hold Python files, got {folder}")
        files += [file for file in found if file.stem not in exclude]
    return digest(*[file.read_bytes() for file in files], *[version(package) for package in packages])


def code_version() -> str:
    """Return a digest of this package's code and jax's version, on which the chunks of a run depend."""
    return code_digest(PACKAGE, packages=("jax",))[:SHORT]


def read(path: Path) -> np.ndarray | None:
    """Return an array on disk as a memory map, or None if the file is missing or damaged."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception:  # NumPy may raise any exception for a damaged header, even a tokenizer's error
        return None


def read_chunk(
    path: Path, accepted: Callable[[Mapping[str, np.ndarray]], bool] = lambda arrays: True
) -> dict[str, np.ndarray] | None:
    """Return the arrays of a finished chunk, an `.npz` file, by name, or None if the file does not exist.

    Warn, and return None, if the file is damaged or its arrays are not accepted.
    """
    if not path.is_file():
        return None
    with suppress(OSError, Unreadable):
        arrays = arrays_from(path, follow=False)
        if accepted(arrays):
            return arrays
    warn(f"chunk {path} is damaged: it is computed again")
    return None


def write_chunk(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays of a finished chunk, which `read_chunk` returns."""
    write_atomically(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def try_write(path: Path, fill: Callable[[BinaryIO], Any]) -> bool:
    """Write a file. Return True on success, and False if it cannot be written.

    The content is written through the file, not a memory map, which would end the process on a full disk.
    """
    try:
        write_atomically(path, fill)
    except OSError:
        return False
    return True
