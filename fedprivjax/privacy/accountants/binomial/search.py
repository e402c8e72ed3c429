"""The least noise for a target, with few evaluations of a slow ε."""

from collections.abc import Callable
from math import exp, log

WIDTH = 1e-5  # of the last bracket, and of ε, both relative
LONGEST = 2.0  # step of a logarithm


def least_ratio(epsilon_of: Callable[[float], float], epsilon: float, guess: float) -> float:
    """The least ratio whose ε, which falls with it, is at most this one, to a part in 10⁵ from above.

    Secants between logarithms, kept inside a bracket: some five evaluations from a good guess. Where ε is not quite
    monotone, the ratio still meets the target.

    >>> round(least_ratio(lambda ratio: 3 / ratio**2, 1.0, 1.0), 4)
    1.7321
    """

    def excess(place: float) -> float:
        return log(min(max(epsilon_of(exp(place)), 1e-9 * epsilon), 1e9 * epsilon) / epsilon)

    place = log(guess)
    here = excess(place)
    low = high = (place, here)
    while low[1] <= 0 or high[1] > 0:  # ε falls about as 1/ratio or faster
        low, high = ((place, here), high) if here > 0 else (low, (place, here))
        if -WIDTH < here <= 0:
            return exp(place)
        if low[1] <= 0 or high[1] > 0:
            place += min(max(0.8 * here, -LONGEST), LONGEST) + (2e-3 if here > 0 else -2e-3)
            here = excess(place)
    while high[0] - low[0] > WIDTH and high[1] <= -WIDTH:
        share = min(max(low[1] / (low[1] - high[1]), 0.02), 0.98)
        aim = low[0] + share * (high[0] - low[0])
        place = min(aim + WIDTH / 3, (aim + high[0]) / 2)  # a little beyond, to meet the target at once
        here = excess(place)
        low, high = ((place, here), high) if here > 0 else (low, (place, here))
    return exp(high[0])
