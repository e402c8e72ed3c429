"""Search for the smallest noise that meets a target, with few evaluations of a slow ε."""

from collections.abc import Callable
from math import exp, inf, log

CLOSE = 5e-7  # relative: largest gap of the result's ε below the target
WIDTH = 1e-8  # relative: width of the last bracket if ε jumps past the target
LONGEST = 2.0  # largest step of the logarithm
MOST, LEAST = 40.0, -40.0  # logarithms of the largest and the smallest noise considered
BEYOND = 1e9  # ratios to the target above this are treated as infinite


def search_min_noise(epsilon_of: Callable[[float], float], epsilon: float, guess: float) -> float:
    """Return the smallest noise whose ε is at most `epsilon`, and within `CLOSE` of it if ε is smooth.

    ε must decrease with the noise. The search takes secants between logarithms inside a bracket: about six evaluations
    from a good guess. If ε is not quite monotone, the noise still meets the target.

    Args:
        epsilon_of: function from noise to ε.
        epsilon: target.
        guess: start of the search.

    Returns:
        A noise at which ε was evaluated, inf if no noise meets the target, or a tiny noise if every noise does.

    >>> noise = search_min_noise(lambda noise: 3 / noise**2, 1.0, 1.0)
    >>> round(noise, 5), 1 - 1e-6 < 3 / noise**2 <= 1
    (1.73205, True)
    """

    def log_ratio(place: float) -> float:
        return log(min(max(epsilon_of(exp(place)) / epsilon, 1 / BEYOND), BEYOND))

    low, high = _bracket(log_ratio, log(guess))
    if low is None or high is None:
        return inf if high is None else exp(high[0])
    kept, weight = 0, 1.0  # end that stayed last time (−1: low, 1: high), and its weight
    while high[1] < -CLOSE and high[0] - low[0] > WIDTH:
        above, below = low[1] + CLOSE / 2, high[1] + CLOSE / 2
        above, below = (above * weight, below) if kept < 0 else (above, below * weight)
        share = 0.5 if min(low[1], -high[1]) > LONGEST else min(max(above / (above - below), 0.01), 0.99)
        place = low[0] + share * (high[0] - low[0])
        here = log_ratio(place)
        stays = 1 if here > 0 else -1
        low, high = ((place, here), high) if here > 0 else (low, (place, here))
        kept, weight = stays, weight / 2 if stays == kept else 1.0  # halved, or the end may stay for ever (Illinois)
    return exp(high[0])


Point = tuple[float, float]  # logarithms of the noise, and of the ratio of its ε to the target


def _bracket(log_ratio: Callable[[float], float], place: float) -> tuple[Point | None, Point | None]:
    """Return a point with too little noise and a point with enough, each None if none was found."""
    low: Point | None = None
    high: Point | None = None
    while LEAST < place < MOST:
        here = log_ratio(place)
        low, high = ((place, here), high) if here > 0 else (low, (place, here))
        if (low and high) or -CLOSE <= here <= 0:  # good enough: no bracket is needed
            return (low or (place, here)), high
        step = min(max(here, -LONGEST), LONGEST)  # ε falls about as 1/noise or faster
        place += 0.9 * step + (1e-4 if here > 0 else -1e-4)
    return low, high
