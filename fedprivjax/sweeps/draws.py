"""Draws of a sweep: samples of all its randomness, each shared by several configurations."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.seeds import Seeds, as_seeds, configuration_seed


def shared_draws(axes: Mapping[str, np.ndarray], resample: Sequence[str]) -> np.ndarray:
    """Return the configurations that share a draw: int [points of resampled axes, points of the other axes]."""
    for name in resample:
        require_choice("axis to resample", name, axes)
    configurations = np.arange(np.prod([axis.size for axis in axes.values()], dtype=int))
    configurations = configurations.reshape([axis.size for axis in axes.values()])
    outer = [place for place, name in enumerate(axes) if name in resample]
    points = np.prod([configurations.shape[place] for place in outer], dtype=int)
    return np.moveaxis(configurations, outer, range(len(outer))).reshape(points, -1)


def resampled_rows(index: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """Return the row of `resampled` that contains each row of a finer index, int [points].

    All entries are −1 if nothing is resampled.
    """
    if len(resampled) == 1:
        return np.full(len(index), -1)
    return np.array([np.flatnonzero((resampled == row[0]).any(axis=1))[0] for row in index])


def seeds_of_draw(seed: Seeds, resampled: np.ndarray, point: int, common_noise: bool) -> Seeds:
    """Return the seeds of a draw at a point.

    They are independent for each resampled point. Without common noise, points that share the other streams have
    different noise seeds.
    """
    own = seed if resampled[point] < 0 else seed.resample(int(resampled[point]))
    apart = np.flatnonzero(resampled == resampled[point]).size > 1 and not common_noise
    return own._replace(noise=configuration_seed(own, point)) if apart else own


def number_of(seeds: int | Sequence[int | Seeds]) -> int:
    """Return the number of seeds."""
    if isinstance(seeds, Sequence) or np.ndim(seeds):
        return len(seeds)  # type: ignore[arg-type]
    require_at_least("seeds", seeds, 1)
    return int(seeds)  # type: ignore[arg-type]


def seed_list(seeds: int | Sequence[int | Seeds]) -> list[Seeds]:
    listed = seeds if isinstance(seeds, Sequence) or np.ndim(seeds) else range(number_of(seeds))
    each = [as_seeds(seed) for seed in listed]  # type: ignore[union-attr]
    require_at_least("seeds", len(each), 1)
    if len(set(each)) != len(each):
        raise Refusal(f"seeds must be distinct, got {list(seeds)}")  # type: ignore[arg-type]
    return each


def seed_labels(seeds: Sequence[Seeds]) -> np.ndarray:
    labels = np.array([seed.noise for seed in seeds])
    return labels if np.unique(labels).size == labels.size else np.arange(len(seeds))
