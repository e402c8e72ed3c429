"""Application of feature maps to a dataset: maps by name, the norm bound of their composition, and the disk cache.

The cache has one file for each dataset and chain of maps, written atomically in pieces.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, of_table
from fedprivjax.datasets.dataset import Dataset
from fedprivjax.disk_cache import cache_folder, code_digest, digest, read, try_write
from fedprivjax.features.maps import Constant, FeatureMap, GroupNorm, Pooling, Shape, UnitNorm
from fedprivjax.features.scattering import Scattering
from fedprivjax.problem.program import program_of

CODE = (Path(__file__).parent,)  # folders with code that cached features depend on
UNRELATED = ("__init__", "mapped")  # files there that do not affect features
CHUNK_NUMBERS = 2**23  # largest number of input and output values of a map in one batch
MOST_AT_ONCE = 256  # largest number of examples in one batch
Say = Callable[[str], None]
Said = FeatureMap | str | Mapping[str, Any]
MAPS: dict[str, type[FeatureMap]] = {
    "pooling": Pooling,
    "scattering": Scattering,
    "group_norm": GroupNorm,
    "unit_norm": UnitNorm,
    "constant": Constant,
}


def as_maps(said: Said | Sequence[Said]) -> tuple[FeatureMap, ...]:
    """Return feature maps as a tuple of `FeatureMap` objects.

    Args:
        said: one feature map, or several in the order of their application. Each is a `FeatureMap`, a name such as
            "scattering", or a dictionary of settings, whose key `kind` is the name.

    >>> as_maps(["scattering", {"kind": "group_norm", "groups": 27}])
    (Scattering(scales=2, angles=8, order=2), GroupNorm(groups=27, floor=1e-05))
    >>> as_maps("scatering")
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown kind of feature map 'scatering', did you mean 'scattering'? (known: ...)
    """
    one = isinstance(said, FeatureMap | str | Mapping)
    if not (one or isinstance(said, Sequence)):
        raise Refusal(f"features must be a list of maps, such as ['scattering', 'unit_norm'], got {called(said)}")
    return tuple(as_map(each) for each in ([said] if one else said))


def as_map(said: Any) -> FeatureMap:
    """Return a feature map as an object, from a name or a table of its `kind` and settings."""
    if isinstance(said, FeatureMap):
        require_decorated(said)
        return said
    table = {"kind": said} if isinstance(said, str) else said
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        shown = repr(dict(said)) if isinstance(said, Mapping) else called(said)
        raise Refusal(f"a feature map must be a name, or a table with its name as kind, got {shown}")
    return of_table("feature map", table, MAPS)


def built_in(each: FeatureMap) -> bool:
    """Return True for the package's own maps, which never mix the examples of a batch. False for their subclasses.

    >>> built_in(UnitNorm())
    True
    """
    return type(each) in MAPS.values()


def cache() -> Path | None:
    """Return the folder in which outputs of slow feature maps are stored, or None if nothing is stored.

    The folder lies in the package's cache folder, which the environment variable `$FEDPRIVJAX_CACHE` can change. If
    `$FEDPRIVJAX_CACHE` is set to an empty text, nothing is stored. The files in the folder may be deleted at any time.
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


def mapped(
    dataset: Dataset,
    maps: Said | Sequence[Said],
    *,
    picture: Sequence[int] | None = None,
    keep: bool | str | Path = True,
    say: Say | None = None,
) -> Dataset:
    """Return a dataset whose features are transformed by one or several feature maps.

    The maps are applied in order. They receive an image as [height, width, channels], without the constant feature that
    may follow it. The map `Constant` can append a constant again. The output of a slow map, such as `Scattering`, is
    stored on disk.

    **Privacy.** An example's new features are a public function of that example alone, so every per-record guarantee
    remains valid. A custom map is applied to one example at a time. The new `feature_bound` is derived from the bound
    of the given dataset, and holds for every example.

    Args:
        dataset: dataset to transform.
        maps: one or several feature maps. Each is a `FeatureMap`, a name such as "scattering", or a dictionary of
            settings, whose key `kind` is the name.
        picture: shape of the image at the start of a feature vector, (height, width) or (height, width, channels). None
            takes the attribute `picture` of the dataset.
        keep: True to store outputs of slow maps in the folder `cache()`, the path of another folder, or False not to
            store outputs.
        say: progress callback, called with text.

    Returns:
        The dataset with new features, bound and picture. Fields that belong to the old features are dropped: `optimum`,
        `population`, `noise_lipschitz` and `raw_rows`.

    Raises:
        Refusal: if a map does not fit its input or has unknown settings.

    >>> from fedprivjax import datasets
    >>> small = mapped(datasets.load("digits"), ["pooling", "unit_norm"])
    >>> small, small.feature_bound, small.picture
    (Dataset('digits': 1437 training and 360 test examples, 16 features, 10 classes), 1.0, (4, 4, 1))
    """
    if not isinstance(dataset, Dataset):
        raise Refusal(f"features must be of a stored Dataset, got {called(dataset)}")
    if dataset.padding is not None:
        raise Refusal("features must not be tokens of sequences, which have no maps. Leave maps and picture out")
    chosen = as_maps(maps)
    shapes, bound = _checked(dataset, chosen, picture)
    if not chosen:
        return replace(dataset, picture=shapes[0] if len(shapes[0]) == 3 else None)
    folder = Path(keep) if isinstance(keep, str | Path) else cache() if keep else None
    features, tested = dataset.features, dataset.test_features
    features, tested = features[:, : prod(shapes[0])], None if tested is None else tested[:, : prod(shapes[0])]
    for stage in _stages(chosen, shapes, folder, say):
        features, tested = stage(features), None if tested is None else stage(tested)
    return replace(
        dataset,
        features=features,
        test_features=tested,
        feature_bound=bound,
        picture=shapes[-1] if len(shapes[-1]) == 3 else None,
        optimum=None,
        population=None,
        noise_lipschitz=None,
        raw_rows=None,
    )


def _checked(dataset: Dataset, maps: Sequence[FeatureMap], picture: Sequence[int] | None) -> tuple[list[Shape], float]:
    """Return the shapes before, between and after the maps, and the final bound on the norm."""
    shapes = [_incoming(dataset, picture)]
    bound = dataset.feature_bound
    for each in maps:
        out = tuple(map(int, each.shape(shapes[-1])))
        bound = float(each.bound(shapes[-1], bound))
        if not 0 < bound < np.inf:
            raise Refusal(f"features {each} must state a bound that is positive and finite, got {bound}")
        shapes.append(out)
    return shapes, bound


def _incoming(dataset: Dataset, picture: Sequence[int] | None) -> Shape:
    width = dataset.features.shape[1]
    if picture is None:
        return (width,) if dataset.picture is None else dataset.picture
    shape = as_picture(picture)
    if dataset.picture not in (None, shape):
        raise Refusal(f"picture must be {list(dataset.picture)}, as in the dataset, got {list(shape)}")
    if prod(shape) > width:
        raise Refusal(f"picture must have at most {width} numbers, got {list(shape)}")
    return shape


def as_picture(picture: Any) -> tuple[int, int, int]:
    """Return the height, width and channels.

    >>> as_picture([28, 28])
    (28, 28, 1)
    """
    sides = list(picture) if isinstance(picture, Sequence) and not isinstance(picture, str) else []
    whole = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides)
    if len(sides) not in (2, 3) or not whole:
        raise Refusal(f"picture must be [height, width] or [height, width, channels], got {picture!r}")
    return sides[0], sides[1], (*sides, 1)[2]


class _Stage:
    """Maps that are computed together, as one program; cached on disk if a folder is given."""

    def __init__(self, maps: Sequence[FeatureMap], shapes: Sequence[Shape], folder: Path | None, say: Say | None):
        self.maps, self.shapes, self.folder, self.say = maps, shapes, folder, say
        numbers = max(prod(one) + prod(two) for one, two in pairwise(shapes))
        self.size = max(1, min(MOST_AT_ONCE, CHUNK_NUMBERS // numbers))
        self.program = jax.jit(self._features)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the features of rows, shape [examples, features]."""
        key = "" if self.folder is None else features_key(self.maps, rows, self.shapes[0], self._computed)
        return cached_features(self.folder, key, (len(rows), prod(self.shapes[-1])), lambda: self._pieces(rows))

    def _computed(self) -> Hashable:
        return program_of(self._features, jax.ShapeDtypeStruct((1, prod(self.shapes[0])), np.float32))

    def _pieces(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield features in batches of bounded memory. The last batch is padded, so that one program serves all."""
        for start in range(0, len(rows), self.size):
            piece = np.asarray(rows[start : start + self.size], np.float32)
            if self.say is not None:
                self.say(f"computing features of {len(rows)} examples ({start / len(rows):.0%})")
            filled = np.pad(piece, ((0, self.size - len(piece)), (0, 0)))
            yield np.asarray(self.program(filled))[: len(piece)]

    def _features(self, rows):
        examples = rows.reshape(len(rows), *self.shapes[0])
        for each, shape in zip(self.maps, self.shapes[1:], strict=True):
            examples = applied(each, examples)
            if examples.shape[1:] != shape:
                raise Refusal(f"features {each} must give shape {shape} for an example, got {examples.shape[1:]}")
        return examples.reshape(len(rows), -1).astype(np.float32)


def applied(each: FeatureMap, examples):
    """Return the output of a feature map for a batch of examples, [examples, …].

    A feature map that is not part of the package is called with one example at a time. It cannot mix examples, which
    would void guarantees for single records.

    Args:
        each: feature map.
        examples: inputs of the map, [examples, …].
    """
    return each(examples) if built_in(each) else jax.vmap(lambda example: each(example[None])[0])(examples)


def _stages(maps: Sequence[FeatureMap], shapes: Sequence[Shape], folder: Path | None, say: Say | None) -> list[_Stage]:
    """Return a cached stage of the maps up to the last expensive one, and a stage of the maps after it."""
    expensive = max((place + 1 for place, each in enumerate(maps) if each.cached), default=0)
    first = [_Stage(maps[:expensive], shapes[: expensive + 1], folder, say)] if expensive else []
    return first + ([_Stage(maps[expensive:], shapes[expensive:], None, say)] if expensive < len(maps) else [])
