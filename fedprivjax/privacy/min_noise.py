"""Smallest noise that meets every machine's target, with a disk cache. Cached values are verified before use."""

from collections.abc import Callable
from math import exp, inf, isinf
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.disk_cache import cached, code_digest
from fedprivjax.privacy.accountants.noise_search import CLOSE, search_min_noise
from fedprivjax.privacy.events import TargetRatio

PACKAGE = Path(__file__).parents[1]
CODE = PACKAGE / "privacy", PACKAGE / "plan" / "samplers"  # folders that a cached noise depends on: from noise to ε
PACKAGES = ("dp-accounting", "numpy", "scipy")


def cached_min_noise(
    cache_key: tuple[Any, ...] | None,
    target_ratio: Callable[..., TargetRatio],
    guess: float,
    quick_ratio: Callable[..., TargetRatio] | None = None,
) -> float:
    """Cached version of `min_noise_for_all`. A cached value that fails verification is recomputed.

    **Privacy.** `target_ratio` is computed for a cached noise as for any other. The noise is used only if the largest
    ratio over all machines is at most 1, and as close to 1 as in the search. A cached noise is therefore never smaller
    or larger than needed, regardless of the program that wrote it.

    Args:
        cache_key: values that `target_ratio` depends on except the noise, see `disk_cache.digest`. None disables the
            cache.
        target_ratio, guess, quick_ratio: as in `min_noise_for_all`.
    """
    if cache_key is None:
        return min_noise_for_all(target_ratio, guess, quick_ratio)

    def valid(found: np.ndarray) -> bool:
        if found.shape != (1,) or found.dtype != float or not 0 < found[0] < np.inf:
            return False
        return exp(-CLOSE) - 1e-9 <= target_ratio(float(found[0])).ratio <= 1

    def compute() -> np.ndarray:
        return np.array([min_noise_for_all(target_ratio, guess, quick_ratio)])

    return float(cached("noise", (*cache_key, code_digest(*CODE, packages=PACKAGES)), compute, valid)[0])


def min_noise_for_all(
    target_ratio: Callable[..., TargetRatio], guess: float, quick_ratio: Callable[..., TargetRatio] | None = None
) -> float:
    """Return the smallest noise, from above, at which no machine's `target_ratio` is above 1, or inf if there is none.

    The search solves for the worst machine alone, then checks all machines. It repeats if another one is worse there.

    Args:
        target_ratio: function from a noise, and from one machine or None for all machines, to a ratio.
        guess: start of the search.
        quick_ratio: upper bound on `target_ratio`, or None. If some noise meets the target by this bound, the search
            starts there, with the machine that is the worst by it.
    """
    worst, start = None, inf
    if quick_ratio is not None:
        start = _searched(quick_ratio, guess, quick_ratio(guess).worst)
        worst = quick_ratio(start).worst if start < inf else None
    if worst is None:
        return _searched(target_ratio, guess, target_ratio(guess).worst)
    return _searched(target_ratio, start, worst)


def _searched(target_ratio: Callable[..., TargetRatio], guess: float, worst: Any) -> float:
    """Return the noise of `min_noise_for_all`, with `worst` the first machine that is solved for."""
    while True:
        noise = search_min_noise(lambda noise, only=worst: target_ratio(noise, only).ratio, 1.0, guess)
        if isinf(noise) or worst is None:
            return noise
        found = target_ratio(noise)
        if found.ratio <= 1:
            return noise
        guess, worst = noise, found.worst
