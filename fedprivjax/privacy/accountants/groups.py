"""Privacy of sampled Gaussian-noised sums for a group of k records, each sampled independently with probability q.

In one release, j ~ Binomial(k, q) records of the group occur. They move it by at most j·m standard deviations, with m
the shift of one record. In both directions and every dimension, a release is dominated by the pair

    added     Σ_j P[j]·N(j·m)  against  N(0)
    replaced  Σ_j P[j]·N(j·m)  against  Σ_j P[j]·N(−j·m)

The pair is attained by records whose vectors are equal, and opposite to those that replace them, so it is exact.

Proof. Let the record set S have probability p_S and move the release by v_S in one dataset, by w_S in the other. Under
x ~ N(0, I), the likelihood ratios are Σ_S p_S·e^{⟨v_S, x⟩ − ‖v_S‖²/2} and the same with w_S, and δ(ε) is the mean of a
convex function of the first minus e^ε times the second. Each term is log-normal with mean p_S, and increases with its
norm in the convex order. In the convex order, a sum with given distributions of its terms is largest if all terms
increase together, as functions of one number: for v_S on one ray, and w_S on the opposite one. The norms are at most
those of the pair. For added records, this is Corollary 4.7 of Choquette-Choo, Ganesh, Steinke & Thakurta 2023.

Several machines. Machine i holds k_i of the k records and sends R_i messages with noise of its own. Each message has a
dominating pair, and fixed pairs compose in any order. So the r-th messages of all machines may be taken together: they
move by (j_1·m, j_2·m, …), a vector of norm at most (Σ_i j_i)·m, and Σ_i j_i ~ Binomial(k, q). By the proof above, the
worst split of the records is all of them on the machine with the most messages. If q or m differ between machines, the
largest of each gives an upper bound, because the pair increases with both.
"""

from bisect import bisect_left
from functools import lru_cache
from math import inf

import numpy as np
import scipy

from fedprivjax.plan.samplers import Occurrences
from fedprivjax.plan.samplers.minibatch import RAREST
from fedprivjax.privacy.accountants import composition
from fedprivjax.privacy.accountants.grids import mixed
from fedprivjax.privacy.accountants.tilted import Composed
from fedprivjax.privacy.relations import vectors_changed

SPACING = 5e-4  # distance of neighbouring losses, if a standard deviation then has an allowed number of cells
COARSEST, FINEST = 10, 100  # least and largest number of cells per standard deviation of a loss
SPENT = 0.01  # largest part of δ lost to rounding in a Fourier transform of unweighted losses
KEPT = 8  # number of cached composed losses


def group_occurrences(rate: float, size: int) -> Occurrences:
    """Return the distribution of the number of a group's records in a release.

    Larger numbers with a probability of at most `RAREST` in all are left out.

    >>> group_occurrences(0.5, 2).chances.round(3).tolist()
    [0.5, 0.25]
    """
    rare = bisect_left(range(1, size), True, key=lambda times: scipy.stats.binom.sf(times, size, rate) <= RAREST)
    times = np.arange(1, rare + 2)
    return Occurrences(times.astype(float), scipy.stats.binom.pmf(times, size, rate))


def group_epsilon(shift: float, rate: float, size: int, rounds: int, relation: str, delta: float) -> float:
    """Return an upper bound on ε at δ of the composed releases, exact up to the grid of losses.

    It is inf if every loss on the grid is infinite, as in very large groups.

    Args:
        shift: m, largest shift of a release by one record that is added or removed, divided by the noise.
        rate: q, below 1.
        size: k.
        rounds: number of releases.

    >>> from fedprivjax.privacy.relations import ADD_OR_REMOVE
    >>> round(group_epsilon(0.5, 1 / 14, 2, 100, ADD_OR_REMOVE, 1e-5), 2)
    3.54
    """
    directions = _losses(shift, rate, size, rounds, relation)
    return max((_epsilon(losses, delta) for losses in directions), default=inf)


def _epsilon(losses: Composed, delta: float) -> float:
    """Return an upper bound on ε in one direction. Losses are weighted if rounding would be a large part of δ."""
    unweighted = composition.composed(composition.loss_of_grid(losses.one), losses.rounds)
    found = composition.epsilon_between(unweighted, delta)[1]
    if losses.rounds * composition.ROUNDED <= SPENT * delta:
        return found
    return min(found, losses.epsilon(delta), losses.renyi_epsilon(delta))


@lru_cache(maxsize=KEPT)
def _losses(shift: float, rate: float, size: int, rounds: int, relation: str) -> tuple[Composed, ...]:
    """Return the composed losses of all releases, for one or two directions. Empty if one has no finite loss."""
    deviation = vectors_changed(relation) * size * rate * shift
    spacing = max(min(SPACING, deviation / COARSEST), deviation / FINEST)
    grids = mixed(shift, group_occurrences(rate, size), (1 - rate) ** size, spacing, relation)
    if not all(grid.probabilities.any() for grid in grids):
        return ()
    return tuple(Composed(grid, rounds) for grid in grids)
