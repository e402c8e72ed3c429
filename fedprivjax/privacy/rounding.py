"""Privacy parameters as text, rounded up, and lower bounds on them, rounded down."""

from collections.abc import Callable
from math import ceil, floor, inf, log10

SLACK = 1e-6  # relative excess of a privacy parameter that is not printed


def up(value: float, digits: int) -> str:
    """Return a positive number rounded up to `digits` significant digits, as text.

    All privacy parameters are printed so. A relative excess of `SLACK` is ignored, which the calibration of the noise
    to a target may leave.

    >>> up(9.99726, 4), up(1.04306, 4), up(4.000001, 3), up(0.0, 3)
    ('9.998', '1.044', '4', '0')
    """
    return _rounded(ceil, value * (1 - SLACK), digits)


def down(value: float, digits: int) -> str:
    """Return a positive number rounded down to `digits` significant digits, as text: a lower bound on a parameter.

    >>> down(1.99679, 3), down(0.0, 3)
    ('1.99', '0')
    """
    return _rounded(floor, value, digits)


def _rounded(rounding: Callable[[float], int], value: float, digits: int) -> str:
    if not 1e-300 < value < inf:
        return f"{value:.{digits}g}"
    scale = 10.0 ** (digits - 1 - floor(log10(value)))
    return f"{rounding(value * scale) / scale:.{digits}g}"
