"""Features on disk, one file for each data set and map, written atomically in pieces."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedprivjax.disk_cache import code, digest, home, read, written
from fedprivjax.features.interface import FeatureMap, Shape
from fedprivjax.features.registry import built_in

AROUND = ("__init__", "registry", "feature_cache", "mapped")  # files of this room that change no feature


def cache() -> Path | None:
    """The folder of computed features, beside that of downloaded data; what is in it may be deleted at any time.

    `$FEDPRIVJAX_CACHE` names another folder for all that is kept; where it is empty, nothing is, and this is None.
    """
    folder = home()
    return None if folder is None else folder / "features"


def kept(folder: Path | None, name: str, shape: Shape, make: Callable[[], Iterable[np.ndarray]]) -> np.ndarray:
    """Float32 features [examples, …], read from the folder, mapped into memory, or computed and put there.

    Where the folder cannot be written, or is full, they are computed in memory; None keeps nothing.

    Args:
        name: of the file, which says all that the features depend on.
        make: computes them, in pieces that follow each other.
    """
    path = None if folder is None else folder / f"{name}.npy"
    found = None if path is None else _read(path, shape)
    if path is not None and found is None and written(path, lambda file: _write(file, shape, make())):
        found = _read(path, shape)
    return _gathered(shape, make()) if found is None else found


def named(
    maps: Iterable[FeatureMap], features: np.ndarray, picture: Shape | None, program: Callable[[], Hashable] = tuple
) -> str:
    """A digest of the features that come in and of the maps: their settings and this package's maps as they are.

    Args:
        program: returns what the maps compute, which a name depends on where one of them is custom.

    >>> from fedprivjax.features.pooling import Pooling
    >>> rows = np.zeros((2, 4), np.float32)
    >>> named([Pooling(1)], rows, (2, 2, 1)) == named([Pooling(2)], rows, (2, 2, 1))
    False
    """
    maps = list(maps)
    custom = () if all(map(built_in, maps)) else (program(),)
    said = [(type(each).__module__, repr(each)) for each in maps]
    return digest(said, *custom, picture, code(Path(__file__).parent, but=AROUND), features)


def _read(path: Path, shape: Shape) -> np.ndarray | None:
    found = read(path)
    return found if found is not None and found.shape == shape and found.dtype == np.float32 else None


def _write(file: BinaryIO, shape: Shape, pieces: Iterable[np.ndarray]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    for piece in pieces:
        file.write(np.ascontiguousarray(piece, "<f4").data)


def _gathered(shape: Shape, pieces: Iterable[np.ndarray]) -> np.ndarray:
    out = np.empty(shape, np.float32)
    start = 0
    for piece in pieces:
        out[start : start + len(piece)] = piece
        start += len(piece)
    return out
