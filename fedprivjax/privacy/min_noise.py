"""Smallest noise that meets every machine's target, with a disk cache. Cached values are verified before use."""

from collections.abc import Callable
from math import exp, isinf
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.disk_cache import cached, code_digest
from fedprivjax.privacy.accountants.noise_search import CLOSE, least_noise
from fedprivjax.privacy.events import Excess

PACKAGE = Path(__file__).parents[1]
CODE = PACKAGE / "privacy", PACKAGE / "plan" / "samplers"  # folders that a cached noise depends on: from noise to ε
PACKAGES = ("dp-accounting", "numpy", "scipy")


def cached_min_noise(cache_key: tuple[Any, ...] | None, excess: Callable[..., Excess], guess: float) -> float:
    """Cached version of `min_noise_for_all`. A cached value that fails verification is recomputed.

    **Privacy.** `excess` is computed for a cached noise as for any other. The noise is used only if the largest ratio
    over all machines is at most 1, and as close to 1 as the search comes. So a cached noise is never smaller or larger
    than needed, whatever wrote it.

    Args:
        cache_key: everything that `excess` depends on except the noise, see `disk_cache.digest`; None does not cache.
    """
    if cache_key is None:
        return min_noise_for_all(excess, guess)

    def valid(found: np.ndarray) -> bool:
        if found.shape != (1,) or found.dtype != float or not 0 < found[0] < np.inf:
            return False
        return exp(-CLOSE) - 1e-9 <= excess(float(found[0])).ratio <= 1

    def compute() -> np.ndarray:
        return np.array([min_noise_for_all(excess, guess)])

    return float(cached("noise", (*cache_key, code_digest(*CODE, packages=PACKAGES)), compute, valid)[0])


def min_noise_for_all(excess: Callable[..., Excess], guess: float) -> float:
    """Smallest noise, from above, at which no machine's `excess` is above 1, or inf if there is none.

    The search solves for the worst machine alone, then checks all machines: few are worse at another noise.

    Args:
        excess: from a noise, and from one machine or None for all machines.
        guess: start of the search.
    """
    worst = excess(guess).who
    while True:
        noise = _min_noise_of(excess, worst, guess)
        if isinf(noise) or worst is None:
            return noise
        found = excess(noise)
        if found.ratio <= 1:
            return noise
        guess, worst = noise, found.who


def _min_noise_of(excess: Callable[..., Excess], who: Any, guess: float) -> float:
    return least_noise(lambda noise: excess(noise, who).ratio, 1.0, guess)
