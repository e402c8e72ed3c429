"""Application of feature maps to a dataset, with the norm bound of their composition."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.datasets.dataset import Dataset
from fedprivjax.features.feature_cache import cache, cached_features, features_key
from fedprivjax.features.interface import FeatureMap, Shape
from fedprivjax.features.registry import Said, as_maps, built_in
from fedprivjax.problem.program import program_of

CHUNK_NUMBERS = 2**23  # largest number of input and output values of a map in one batch
MOST_AT_ONCE = 256  # largest number of examples in one batch
Say = Callable[[str], None]


def mapped(
    dataset: Dataset,
    maps: Said | Sequence[Said],
    *,
    picture: Sequence[int] | None = None,
    keep: bool | str | Path = True,
    say: Say | None = None,
) -> Dataset:
    """Return a dataset with one or several feature maps applied in order.

    The maps receive an image as [height, width, channels], without the constant feature that may follow it. `Constant`
    appends one. Other features are passed unchanged. The output of the last expensive map (`FeatureMap.cached`,
    `Scattering`) is cached on disk under a digest of the data and of the maps up to it. Later maps are computed at each
    call.

    **Privacy.** An example's features are a public function of that example alone, so every per-record guarantee
    remains valid. A custom map is applied to one example at a time, so it cannot mix examples. `feature_bound` is
    derived from the incoming bound and holds for every example.

    Args:
        maps: one or several `FeatureMap`s, names, or tables with a name as `kind` and settings.
        picture: height, width (and channels, default 1) of the image at the start of an example, row by row, if the
            dataset does not state it.
        keep: whether to cache expensive maps on disk, in `cache()` or in a given folder.
        say: progress callback, called with text.

    Returns:
        The dataset with new features, bound and picture. Its optimum, its population, its authors' noise and the
        preparation of raw rows belong to the old features and are dropped.

    Raises:
        Refusal: if a map does not fit its input or has unknown settings. Nothing is computed then.

    Memory: MNIST's scattering features are 7·7·81 = 3969 numbers for each of 70,000 images, 1.1 GB in float32. They are
    stored on disk, again in memory if other maps follow, and once as the arrays of a problem.

    >>> from fedprivjax import datasets
    >>> small = mapped(datasets.load("digits"), ["pooling", "unit_norm"])
    >>> small, small.feature_bound, small.picture
    (Dataset('digits': 1437 training and 360 test examples, 16 features, 10 classes), 1.0, (4, 4, 1))
    """
    if not isinstance(dataset, Dataset):
        raise Refusal(f"features must be of a stored Dataset, got {called(dataset)}")
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
    """Return the map's output for a batch, [examples, …]. A custom map is called with one example at a time."""
    return each(examples) if built_in(each) else jax.vmap(lambda example: each(example[None])[0])(examples)


def _stages(maps: Sequence[FeatureMap], shapes: Sequence[Shape], folder: Path | None, say: Say | None) -> list[_Stage]:
    """Return a cached stage of the maps up to the last expensive one, and a stage of the maps after it."""
    expensive = max((place + 1 for place, each in enumerate(maps) if each.cached), default=0)
    first = [_Stage(maps[:expensive], shapes[: expensive + 1], folder, say)] if expensive else []
    return first + ([_Stage(maps[expensive:], shapes[expensive:], None, say)] if expensive < len(maps) else [])
