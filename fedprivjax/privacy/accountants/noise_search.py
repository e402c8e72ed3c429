"""The least noise that a target allows, with few evaluations of a slow ε."""

from collections.abc import Callable
from math import exp, inf, log

CLOSE = 5e-7  # relative: how far the ε that is found may lie below what is asked
WIDTH = 1e-8  # relative: of the last bracket, where ε jumps over what is asked
LONGEST = 2.0  # step of a logarithm
MOST, LEAST = 40.0, -40.0  # logarithms: noise that would drown anything, and none to speak of
BEYOND = 1e9  # times what is asked: as good as infinite


def least_noise(epsilon_of: Callable[[float], float], epsilon: float, guess: float) -> float:
    """The least noise whose ε, which falls with it, is at most this one, and within `CLOSE` of it where it is smooth.

    Secants between logarithms, kept inside a bracket: some six evaluations from a good guess. Where ε is not quite
    monotone, the noise still meets the target.

    Returns:
        Noise at which ε was evaluated; inf where it is met by none, next to nothing where it is met by any.

    >>> noise = least_noise(lambda noise: 3 / noise**2, 1.0, 1.0)
    >>> round(noise, 5), 1 - 1e-6 < 3 / noise**2 <= 1
    (1.73205, True)
    """

    def excess(place: float) -> float:
        return log(min(max(epsilon_of(exp(place)) / epsilon, 1 / BEYOND), BEYOND))

    low, high = _bracket(excess, log(guess))
    if low is None or high is None:
        return inf if high is None else exp(high[0])
    kept, weight = 0, 1.0  # the end that stayed last time, below 0 the low one, and what it counts for
    while high[1] < -CLOSE and high[0] - low[0] > WIDTH:
        above, below = low[1] + CLOSE / 2, high[1] + CLOSE / 2
        above, below = (above * weight, below) if kept < 0 else (above, below * weight)
        share = 0.5 if min(low[1], -high[1]) > LONGEST else min(max(above / (above - below), 0.01), 0.99)
        place = low[0] + share * (high[0] - low[0])
        here = excess(place)
        stays = 1 if here > 0 else -1
        low, high = ((place, here), high) if here > 0 else (low, (place, here))
        kept, weight = stays, weight / 2 if stays == kept else 1.0  # by halves, or it would stay for ever (Illinois)
    return exp(high[0])


Point = tuple[float, float]  # a logarithm of the noise, and of the ε there over what is asked


def _bracket(excess: Callable[[float], float], place: float) -> tuple[Point | None, Point | None]:
    """Noise that is too little, and enough; None where there is none."""
    low: Point | None = None
    high: Point | None = None
    while LEAST < place < MOST:
        here = excess(place)
        low, high = ((place, here), high) if here > 0 else (low, (place, here))
        if (low and high) or -CLOSE <= here <= 0:  # good enough: no bracket is needed
            return (low or (place, here)), high
        step = min(max(here, -LONGEST), LONGEST)  # ε falls about as 1/noise or faster
        place += 0.9 * step + (1e-4 if here > 0 else -1e-4)
    return low, high
