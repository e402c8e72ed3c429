r"""A quick upper bound on the ε of sampled releases, by which machines that cannot be the worst are left out.

With δ(ε) the bound on one release's profile, in both directions, of `accountants.sampled`, moments of its privacy loss
follow without any density, for α > 1,

    E e^{(α−1)·loss} ≤ 1 + α(α−1)·∫_0^∞ (e^{(α−1)ε} + e^{−αε})·δ(ε) dε

where δ, which falls, is taken on each of many cells at the lower end: never less. They multiply over releases, and

    ε(δ) ≤ min_α [ T·log E/(α−1) + log(1 − 1/α) − log(δα)/(α−1) ].

Beyond the last cell's end the loss counts as infinite, with what is left of the profile there as its probability.

Source: Mironov 2017; Canonne, Kamath & Steinke 2020, for the last step; the integral is Sason & Verdú's 2016.
"""

from functools import cache
from math import inf, isinf

import numpy as np

from fedprivjax.plan.samplers import Sampler
from fedprivjax.privacy.accountants.sampled import law, longest_loss, profile, sampled_epsilon

CELLS = 1000
ORDERS = np.geomspace(0.05, 500, 80)  # α − 1
WIDEST = 300.0  # exponent of a moment that is looked at


def rough_epsilon(
    noise_multiplier: float,
    *,
    sampler: Sampler,
    records: int,
    rounds: int,
    delta: float,
    whole_message: bool = False,
) -> float:
    """At least `sampled_epsilon`, whose arguments these are, where that is finite; that itself where it costs nothing.

    >>> from fedprivjax.plan.samplers import Subset
    >>> settings = {"sampler": Subset(10), "records": 100, "rounds": 50, "delta": 1e-5}
    >>> 1 < rough_epsilon(2.0, **settings) / sampled_epsilon(2.0, **settings) < 1.25
    True
    """
    if isinf(noise_multiplier) or not sampler.amplifies(records, sampler.batch_of(records)):
        sizes = {"records": records, "rounds": rounds, "delta": delta, "whole_message": whole_message}
        return sampled_epsilon(noise_multiplier, sampler=sampler, **sizes)
    return _rough(noise_multiplier, sampler, records, rounds, delta, whole_message)


@cache
def _rough(z: float, sampler: Sampler, records: int, rounds: int, delta: float, whole: bool) -> float:
    times, chances = law(sampler, records, whole)
    longest = longest_loss(z, times, chances)
    if longest is None:
        return inf
    edges = longest * np.linspace(0.0, 1.0, CELLS + 1) ** 2  # narrow where the profile is steep
    deltas = np.minimum.accumulate(profile(edges, times, chances, z))
    spill = rounds * deltas[-1]
    if spill >= delta / 2:
        return inf
    less_one = ORDERS[ORDERS * longest < WIDEST]
    if not less_one.size:
        return inf
    orders = 1 + less_one
    ahead = np.diff(np.exp(np.outer(less_one, edges))) / less_one[:, None]
    behind = -np.diff(np.exp(-np.outer(orders, edges))) / orders[:, None]
    moments = np.log1p(orders * less_one * np.sum((ahead + behind) * deltas[:-1], axis=1))
    found = rounds * moments / less_one + np.log1p(-1 / orders) - np.log((delta - spill) * orders) / less_one
    return max(0.0, float(found.min())) * (1 + 1e-6) + 1e-9  # and what the exact one's grid adds
