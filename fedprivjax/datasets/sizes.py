"""Unequal dataset sizes of machines."""

from collections.abc import Sequence

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_positive
from fedprivjax.problem.checks import numbers

SIZES = ("lognormal", "dirichlet")


def unequal_sizes(
    examples: int, machines: int, sizes: str | Sequence[float], alpha: float, spread: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the number of examples of each machine, int, shape [machines].

    Random sizes use all examples, and are rounded by largest remainders.

    >>> unequal_sizes(10, 2, [3, 5], 0.5, 1.0, np.random.default_rng(0)).tolist()
    [3, 5]
    """
    if isinstance(sizes, str):
        require_choice("sizes", sizes, SIZES)
        require_positive("alpha", alpha)
        require_positive("spread", spread)
        weights = np.exp(spread * rng.standard_normal(machines))
        shares = weights / weights.sum() if sizes == "lognormal" else rng.dirichlet(np.full(machines, alpha))
        counts = np.floor(examples * shares).astype(int)
        rest = np.argsort(counts - examples * shares, kind="stable")[: examples - counts.sum()]
        counts[rest] += 1
        return counts
    given = numbers("sizes", sizes)
    if given.shape != (machines,) or not np.isfinite(given).all() or (given < 0).any():
        raise Refusal(f"sizes must be a number that is not negative for each of {machines} machines, got {sizes!r}")
    whole = (given == np.floor(given)).all()
    if given.sum() > (examples if whole else 1 + 1e-9):
        most = f"{examples}, the examples" if whole else "1, as shares"
        raise Refusal(f"sizes must add up to at most {most}, got {given.sum():g}")
    return given.astype(int) if whole else np.floor(examples * given + 1e-9).astype(int)
