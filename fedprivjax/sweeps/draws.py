"""Draws of a sweep: samples of all its randomness, each shared by several configurations."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.seeds import Seeds, as_seeds, distinct_resamples


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


def seeds_of_draws(seeds: Sequence[Seeds], resampled: np.ndarray) -> list[Seeds]:
    """Return the seeds of every draw, seed by seed. Those of different resampled points are independent."""
    if resampled[0] < 0:
        return [seed for seed in seeds for _ in resampled]
    rows = resampled.tolist()
    found = distinct_resamples(seeds, sorted(set(rows)))
    return [found[seed, row] for seed in seeds for row in rows]


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
