"""Quick upper bound on the ε of sampled releases, used to skip machines that cannot be the worst.

It is the bound of `accountants.sampled` on a coarser grid of privacy losses, a subset of the finer grid's points. By
connecting the dots, a loss is never smaller on the coarser grid, and larger by some parts in a thousand. The finer grid
may end earlier and count more of the largest losses as infinite. Their probability is subtracted from δ here.

Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, Connect the Dots.
"""

from functools import cache
from math import inf, isinf

from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.samplers.subsampling import NEGLIGIBLE
from fedprivjax.privacy.accountants.composition import TAIL, composed, epsilon_between
from fedprivjax.privacy.accountants.sampled import one_release, sampled_epsilon

COARSE = 16  # spacing divided by the finer grid's: takes a tenth of the time


def quick_epsilon(
    noise_multiplier: float,
    *,
    sampler: Sampler,
    records: int,
    rounds: int,
    delta: float,
    whole_message: bool = False,
) -> float:
    """Return an upper bound on `sampled_epsilon` if that is finite, or its value if it is fast to compute.

    The arguments are as in `sampled_epsilon`.

    >>> from fedprivjax.plan.samplers import Subset
    >>> settings = {"sampler": Subset(10), "records": 100, "rounds": 50, "delta": 1e-5}
    >>> 1 < quick_epsilon(2.0, **settings) / sampled_epsilon(2.0, **settings) < 1.01
    True
    """
    if isinf(noise_multiplier) or not sampler.amplifies(records, sampler.batch_of(records)):
        sizes = {"records": records, "rounds": rounds, "delta": delta, "whole_message": whole_message}
        return sampled_epsilon(noise_multiplier, sampler=sampler, **sizes)
    return _quick(noise_multiplier, sampler, records, rounds, delta, whole_message)


@cache
def _quick(z: float, sampler: Sampler, records: int, rounds: int, delta: float, whole: bool) -> float:
    loss, left = one_release(z, sampler, records, whole, COARSE), delta - _cut(rounds)
    if loss is None or left <= 0:
        return inf
    return epsilon_between(composed(loss, rounds), left)[1] * (1 + 1e-6) + 1e-9  # allows for different rounding


def _cut(rounds: int) -> float:
    """Return an upper bound on the δ of losses beyond either grid's end."""
    return 2 * (rounds * NEGLIGIBLE + TAIL)
