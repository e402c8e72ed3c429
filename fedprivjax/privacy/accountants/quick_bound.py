"""Quick upper bound on the ε of sampled releases, used to skip machines that cannot be the worst.

It is the bound of `accountants.sampled` on a coarser grid of privacy losses, a subset of the finer grid's points. By
connecting the dots, a loss is never smaller on the coarser grid, and larger by some parts in a thousand. The finer grid
may end earlier and count more of the largest losses as infinite. Their probability is subtracted from δ here.

Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, Connect the Dots.
"""

from functools import cache
from math import inf, isinf

from fedprivjax.privacy.accountants.composition import TAIL, composed, epsilon_between
from fedprivjax.privacy.accountants.sampled import NEGLIGIBLE, SampledReleases, one_release, sampled_epsilon

COARSE = 16  # spacing divided by the finer grid's: takes a tenth of the time


@cache
def quick_epsilon(noise_multiplier: float, releases: SampledReleases) -> float:
    """Return an upper bound on `sampled_epsilon`, valid if `sampled_epsilon` is finite.

    If `sampled_epsilon` itself is fast to compute, its value is returned.

    >>> from fedprivjax.plan.samplers import Subset
    >>> releases = SampledReleases(Subset(10), records=100, rounds=50, delta=1e-5)
    >>> 1 < quick_epsilon(2.0, releases) / sampled_epsilon(2.0, releases) < 1.01
    True
    """
    if isinf(noise_multiplier) or not releases.amplified:
        return sampled_epsilon(noise_multiplier, releases)
    message = releases.whole_message, releases.relation
    loss = one_release(noise_multiplier, releases.sampler, releases.records, *message, COARSE)
    left = releases.delta - _cut(releases.rounds)
    if loss is None or left <= 0:
        return inf
    return epsilon_between(composed(loss, releases.rounds), left)[1] * (1 + 1e-6) + 1e-9  # allows for other rounding


def _cut(rounds: int) -> float:
    """Return an upper bound on the δ of losses beyond either grid's end."""
    return 2 * (rounds * NEGLIGIBLE + TAIL)
