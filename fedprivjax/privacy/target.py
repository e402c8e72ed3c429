"""Privacy targets, and the smallest noise that meets the targets of all machines.

The search takes few evaluations of a slow ε. Its result is cached on disk, and cached values are verified before use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, inf, isinf, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_number, require_positive
from fedprivjax.disk_cache import cached, code_digest
from fedprivjax.privacy import gdp

LEVELS = ("mu", "epsilon")  # targets that state a privacy level
TARGETS = (*LEVELS, "noise_std")
KINDS = {
    "mu": "mu is a GDP parameter",
    "epsilon": "epsilon holds at delta",
    "noise_std": "noise_std is the noise itself",
}
NO_TARGET = "one of epsilon, mu and noise_std must be given"
SET_TARGET = "Set epsilon (with delta), mu (GDP) or noise_std"
UNLIMITED = "epsilon = inf is non-private"
RULE, PLAN = "rule", "plan"
CALIBRATIONS = {
    RULE: "noise of the method's rule, which may assume more messages than any machine sends",
    PLAN: "smallest noise that meets the target on the sampled public schedule, for the worst machine",
}
CLOSE = 5e-7  # relative: largest gap of the result's ε below the target
WIDTH = 1e-8  # relative: width of the last bracket if ε jumps past the target
LONGEST = 2.0  # largest step of the logarithm
MOST, LEAST = 40.0, -40.0  # logarithms of the largest and the smallest noise considered
BEYOND = 1e9  # ratios to the target above this are treated as infinite
Point = tuple[float, float]  # logarithms of the noise, and of the ratio of its ε to the target
PACKAGE = Path(__file__).parents[1]
CODE = PACKAGE / "privacy", PACKAGE / "plan" / "samplers"  # folders that a cached noise depends on: from noise to ε
PACKAGES = ("dp-accounting", "numpy", "scipy")


def require_alone(targets: Mapping[str, Any]) -> None:
    """Raise Refusal if several of the targets, by name, are given.

    >>> require_alone({"mu": 1.0, "epsilon": 2.0})
    Traceback (most recent call last):
    fedprivjax.Refusal: mu or epsilon must be given, not both, got mu = 1.0 and epsilon = 2.0. ...
    """
    if len(targets) > 1:
        (one, first), (other, second), *_ = targets.items()
        raise Refusal(
            f"{one} or {other} must be given, not both, got {one} = {first} and {other} = {second}. "
            f"Leave one out: {KINDS[one]}, {KINDS[other]}"
        )


class TargetRatio(NamedTuple):
    """Ratio of a machine's ε (or μ) to its target. The target is missed if the ratio is above 1.

    Attributes:
        ratio: largest ratio over the evaluated machines.
        worst: machine with that ratio, as accepted by the argument `only` of `Event.target_ratio`, or None for all.
    """

    ratio: float
    worst: Any = None


@dataclass(frozen=True)
class Target:
    """Privacy that a run must reach, given as exactly one of `mu`, `epsilon` and `noise_std`.

    Attributes:
        mu: parameter μ of Gaussian differential privacy (GDP). inf is non-private.
        epsilon: ε at `delta`, one number for all machines or one per machine. inf is non-private.
        noise_std: noise standard deviation, regardless of the resulting privacy. 0 is non-private.
        delta: δ at which ε is targeted, or at which ε is computed from μ. None if no δ is needed.

    Raises:
        Refusal: unless exactly one of `mu`, `epsilon` and `noise_std` is given.

    >>> round(Target(mu=1.0, delta=1e-5).worst_epsilon, 2)
    4.38
    """

    mu: float | None = None
    epsilon: Any = None
    noise_std: float | None = None
    delta: float | None = None

    def __post_init__(self):
        given = {name: value for name, value in vars(self).items() if name != "delta" and value is not None}
        if not given:
            raise Refusal(f"{NO_TARGET}, got none. {SET_TARGET}; {UNLIMITED}")
        require_alone(given)
        require_positive("mu", self.mu, optional=True, infinite=True)
        for value in np.ravel([] if self.epsilon is None else self.epsilon):
            require_positive("epsilon", float(value), infinite=True)
        if self.noise_std is not None:
            require_number("noise_std", self.noise_std)
            if not 0 <= self.noise_std < inf:
                raise Refusal(f"noise_std must be finite and not negative, got {self.noise_std}")
        if self.delta is not None:
            require_between("delta", self.delta, 0, 1)

    @property
    def non_private(self) -> bool:
        """True if the target is met without noise: an infinite μ or ε for all machines, or `noise_std` 0."""
        unlimited = self.epsilon is not None and bool(np.isinf(self.epsilon).all())
        return self.mu == inf or self.noise_std == 0 or unlimited

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """Values that identify the target: `(mu, epsilon, noise_std, delta)`.

        The key of calibrated noise in the disk cache contains these values.
        """
        return self.mu, np.asarray(self.epsilon, float), self.noise_std, self.delta

    @property
    def given_noise(self) -> float | None:
        """Noise standard deviation if the target fixes it, 0 if the target is non-private, otherwise None.

        >>> Target(noise_std=2.0).given_noise, Target(mu=inf).given_noise, Target(mu=1.0).given_noise
        (2.0, 0.0, None)
        """
        if self.noise_std is not None:
            return float(self.noise_std)
        return 0.0 if self.non_private else None

    @cached_property
    def worst_epsilon(self) -> float:
        """Largest ε at `delta` that the target allows, or inf if the noise is given."""
        if self.mu is not None:
            return float(gdp.epsilon(self.mu, self.stated_delta))
        return inf if self.epsilon is None else float(np.max(self.epsilon))

    @cached_property
    def largest_mu(self) -> float:
        """Largest μ of Gaussian differential privacy that the target allows, or inf if the noise is given."""
        if self.mu is not None:
            return float(self.mu)
        if self.epsilon is None or self.non_private:
            return inf
        return float(gdp.mu(np.min(self.epsilon), self.stated_delta))

    def __str__(self) -> str:
        if self.mu is not None:
            return f"μ = {self.mu:g}"
        if self.noise_std is not None:
            return f"noise_std = {self.noise_std:g}"
        least, most = float(np.min(self.epsilon)), self.worst_epsilon
        epsilon = f"ε = {most:g}" if least == most else f"ε from {least:g} to {most:g}"
        return epsilon if self.delta is None else f"{epsilon} at δ = {self.delta:g}"

    def shared(self, ratios: Sequence[float] | None) -> "Target":
        """Return the target with a separate ε for each machine, in proportion to `ratios`.

        The largest of these ε is the target's ε. The target itself is returned if `ratios` is None, or if the target
        already has an ε for each machine.

        Raises:
            Refusal: if the target is a noise standard deviation, from which no ε follows.

        >>> Target(epsilon=4.0, delta=1e-5).shared((1.0, 2.0)).epsilon
        (2.0, 4.0)
        """
        if ratios is None or np.ndim(self.epsilon):
            return self
        if self.noise_std is not None:
            raise Refusal(
                f"relative_privacy must be used with epsilon or mu here, because each machine's noise is computed from "
                f"its ε, got noise_std = {self.noise_std:g}"
            )
        largest = float(max(ratios))
        each = tuple(self.worst_epsilon * (float(part) / largest) for part in ratios)
        return replace(self, mu=None, epsilon=each)

    def require_one(self) -> None:
        """Raise Refusal if the target has a separate ε for each machine.

        Methods that accept only one ε for all machines call this function.
        """
        if np.ndim(self.epsilon):
            several = np.array2string(np.asarray(self.epsilon, float), separator=", ", threshold=6)
            raise Refusal(
                f"epsilon must be one number, got {several}: relative_privacy=[...] gives every machine its own privacy"
            )

    @property
    def stated_delta(self) -> float:
        """δ of the target.

        Raises:
            Refusal: if the target has no δ.
        """
        if self.delta is None:
            raise Refusal("delta must be given with epsilon")
        return self.delta


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
