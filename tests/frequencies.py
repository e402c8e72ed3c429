"""Whether what was drawn has the mean that a law states."""

import numpy as np


def within(values, mean) -> bool:
    """Whether the mean of independent values is within four standard errors of a stated one."""
    return bool(abs(values.mean() - mean) < 4 * values.std(ddof=1) / np.sqrt(values.size))
