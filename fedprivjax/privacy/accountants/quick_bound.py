"""A quick upper bound on the ε of sampled releases, by which machines that cannot be the worst are left out.

It is `accountants.sampled`'s on a coarser grid of privacy losses, whose points are among those of the finer one:
connected by dots, a loss is never less for it, and more by some parts in a thousand. The finer grid may end sooner, and
take more of the largest losses for infinite: as much is left of δ.

Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, Connect the Dots.
"""

from functools import cache
from math import inf, isinf

from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.samplers.subsampling import NEGLIGIBLE
from fedprivjax.privacy.accountants.composition import TAIL, composed, epsilon_between
from fedprivjax.privacy.accountants.sampled import one_release, sampled_epsilon

COARSE = 16  # times the finer grid's spacing: a tenth of its time


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
    >>> 1 < rough_epsilon(2.0, **settings) / sampled_epsilon(2.0, **settings) < 1.01
    True
    """
    if isinf(noise_multiplier) or not sampler.amplifies(records, sampler.batch_of(records)):
        sizes = {"records": records, "rounds": rounds, "delta": delta, "whole_message": whole_message}
        return sampled_epsilon(noise_multiplier, sampler=sampler, **sizes)
    return _rough(noise_multiplier, sampler, records, rounds, delta, whole_message)


@cache
def _rough(z: float, sampler: Sampler, records: int, rounds: int, delta: float, whole: bool) -> float:
    loss, left = one_release(z, sampler, records, whole, COARSE), delta - _cut(rounds)
    if loss is None or left <= 0:
        return inf
    return epsilon_between(composed(loss, rounds), left)[1] * (1 + 1e-6) + 1e-9  # and what is rounded otherwise


def _cut(rounds: int) -> float:
    """At most the δ that goes to losses beyond either grid, which end at different ones."""
    return 2 * (rounds * NEGLIGIBLE + TAIL)
