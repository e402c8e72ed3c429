"""The least noise that is enough for all machines, and what is kept of it on disk: a number that is never trusted."""

from collections.abc import Callable
from math import exp, isinf
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.disk_cache import code, remembered
from fedprivjax.privacy.accountants.noise_search import CLOSE, least_noise
from fedprivjax.privacy.events import Excess

PACKAGE = Path(__file__).parents[1]
FOLDERS = PACKAGE / "privacy", PACKAGE / "plan" / "samplers"  # the code that makes ε of noise
PACKAGES = ("dp-accounting", "numpy", "scipy")


def least_kept(said: tuple[Any, ...] | None, excess: Callable[..., Excess], guess: float) -> float:
    """`least_for_all`, which is kept on disk where it took long, and solved for anew where what was kept is not it.

    **Privacy.** Of a number from disk everybody's excess is computed as of any other, and the number is used only if
    that is at most 1, and as close to it as the search comes. So no such number is less, or more, than is needed,
    whatever it was that wrote it.

    Args:
        said: all that `excess` depends on but the noise, see `kept.digest`; None keeps nothing.
    """
    if said is None:
        return least_for_all(excess, guess)

    def good(found: np.ndarray) -> bool:
        if found.shape != (1,) or found.dtype != float or not 0 < found[0] < np.inf:
            return False
        return exp(-CLOSE) - 1e-9 <= excess(float(found[0])).ratio <= 1

    all_said = *said, code(*FOLDERS, packages=PACKAGES)
    return float(remembered("noise", all_said, lambda: np.array([least_for_all(excess, guess)]), good)[0])


def least_for_all(excess: Callable[..., Excess], guess: float) -> float:
    """The least noise, from above, at which nobody's excess is above 1; inf where there is none.

    The worst machine's is solved for alone, and all are looked at again: few are worse at another noise.

    Args:
        excess: from a noise, and from whom to look at alone or None for everyone.
    """
    worst = excess(guess).who
    while True:
        noise = _least_of(excess, worst, guess)
        if isinf(noise) or worst is None:
            return noise
        found = excess(noise)
        if found.ratio <= 1:
            return noise
        guess, worst = noise, found.who


def _least_of(excess: Callable[..., Excess], who: Any, guess: float) -> float:
    return least_noise(lambda noise: excess(noise, who).ratio, 1.0, guess)
