"""Disk cache of features, one file for each dataset and chain of maps, written atomically in pieces."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedprivjax.disk_cache import cache_folder, code_digest, digest, read, try_write
from fedprivjax.features.interface import FeatureMap, Shape
from fedprivjax.features.registry import built_in

CODE = (Path(__file__).parent,)  # folders with code that cached features depend on
UNRELATED = ("__init__", "registry", "feature_cache", "mapped")  # files there that do not affect features


def cache() -> Path | None:
    """Return the folder of computed features, within the cache folder. Its files may be deleted at any time.

    `$FEDPRIVJAX_CACHE` names another cache folder. If the variable is empty, nothing is cached, and this is None.
    """
    folder = cache_folder()
    return None if folder is None else folder / "features"


def cached_features(
    folder: Path | None, key: str, shape: Shape, compute: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """Return features, float32 [examples, …]: from the cache, mapped into memory, or computed and cached.

    Without a folder that can be written, or on a full disk, they are computed in memory.

    Args:
        folder: the cache, or None.
        key: name of the file, a digest of everything that the features depend on.
        compute: returns the features in consecutive pieces.
    """
    path = None if folder is None else folder / f"{key}.npy"
    found = None if path is None else _read(path, shape)
    if path is not None and found is None and try_write(path, lambda file: _write(file, shape, compute())):
        found = _read(path, shape)
    return _gathered(shape, compute()) if found is None else found


def features_key(
    maps: Iterable[FeatureMap], features: np.ndarray, picture: Shape | None, program: Callable[[], Hashable] = tuple
) -> str:
    """Return the digest of the incoming features, the maps' settings, and the code of this package's maps.

    Args:
        program: returns the maps' computation, which the digest includes if one of them is custom.

    >>> from fedprivjax.features.simple_maps import Pooling
    >>> rows = np.zeros((2, 4), np.float32)
    >>> features_key([Pooling(1)], rows, (2, 2, 1)) == features_key([Pooling(2)], rows, (2, 2, 1))
    False
    """
    maps = list(maps)
    custom = () if all(map(built_in, maps)) else (program(),)
    settings = [(type(each).__module__, repr(each)) for each in maps]
    return digest(settings, *custom, picture, code_digest(*CODE, exclude=UNRELATED), features)


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
