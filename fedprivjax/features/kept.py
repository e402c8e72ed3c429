"""Features on disk, one file for each data set and map: written aside, in pieces, then put in place whole."""

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import cache as once
from pathlib import Path

import numpy as np
import pooch

from fedprivjax.features.interface import FeatureMap, Shape

AROUND = ("__init__", "known", "kept", "mapped")  # files of this room that change no feature


def cache() -> Path:
    """The folder of computed features, beside that of downloaded data; what is in it may be deleted at any time."""
    return Path(pooch.os_cache("fedprivjax")) / "features"


def kept(folder: Path | None, name: str, shape: Shape, make: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
    """Float32 features [examples, …], read from the folder, mapped into memory, or computed and put there.

    Where the folder cannot be written, or is full, they are computed in memory; None keeps nothing.

    Args:
        name: of the file, which says all that the features depend on.
        make: computes them, in pieces that follow each other.
    """
    path = None if folder is None else folder / f"{name}.npy"
    found = None if path is None else _read(path, shape)
    if path is not None and found is None and _written(path, shape, make):
        found = _read(path, shape)
    return _gathered(shape, make()) if found is None else found


def named(maps: Iterable[FeatureMap], features: np.ndarray, picture: Shape | None) -> str:
    """A digest of the features that come in and of the maps: their settings and this package's maps as they are.

    >>> from fedprivjax.features.pooling import Pooling
    >>> rows = np.zeros((2, 4), np.float32)
    >>> named([Pooling(1)], rows, (2, 2, 1)) == named([Pooling(2)], rows, (2, 2, 1))
    False
    """
    said = [(type(each).__module__, repr(each)) for each in maps]
    digest = hashlib.sha256(repr((said, features.shape, picture, _code())).encode())
    digest.update(np.ascontiguousarray(features).data)
    return digest.hexdigest()


@once
def _code() -> str:
    files = [file for file in sorted(Path(__file__).parent.glob("*.py")) if file.stem not in AROUND]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _read(path: Path, shape: Shape) -> np.ndarray | None:
    try:
        found = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # none, or a damaged one, which is written anew
        return None
    return found if found.shape == shape and found.dtype == np.float32 else None


def _written(path: Path, shape: Shape, make: Callable[[], Iterable[np.ndarray]]) -> bool:
    """Whether the features are there now. No mapped file is written: on a full disk that ends the process."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = aside.open("wb")
    except OSError:
        return False
    try:
        with file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in make():
                file.write(np.ascontiguousarray(piece, "<f4").data)
        os.replace(aside, path)
    except OSError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _gathered(shape: Shape, pieces: Iterable[np.ndarray]) -> np.ndarray:
    out = np.empty(shape, np.float32)
    start = 0
    for piece in pieces:
        out[start : start + len(piece)] = piece
        start += len(piece)
    return out
