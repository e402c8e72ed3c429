"""Statistical check of a sample mean against its expected value."""

import numpy as np


def within(values, mean) -> bool:
    """Return True if the mean of independent values is within four standard errors of `mean`."""
    return bool(abs(values.mean() - mean) < 4 * values.std(ddof=1) / np.sqrt(values.size))
