"""Cohort-size distributions: the probability of each number of machines from 1, float64 [largest size]."""

from math import ceil, sqrt

import numpy as np
import scipy


def moment(pmf: np.ndarray, power: float) -> float:
    """Return the moment E[M^power].

    >>> moment(np.array([0.5, 0.5]), -1)
    0.75
    """
    return float(np.sum(pmf * np.arange(1.0, pmf.size + 1) ** power))


def binomial_pmf(machines: int, rate: float, tail: float) -> np.ndarray:
    """Return Binomial(machines, rate), conditioned on being from 1 to its mean plus `tail` standard deviations.

    >>> binomial_pmf(100, 0.5, 4.0).size
    70
    """
    most = machines * rate + tail * sqrt(machines * rate * (1 - rate))
    pmf = scipy.stats.binom.pmf(np.arange(1, max(1, min(machines, ceil(most))) + 1), machines, rate)
    return pmf / pmf.sum()


def thinned(pmf: np.ndarray, rate: float) -> np.ndarray:
    """Return the cohort-size distribution after dropouts with probability `rate`, where at least one machine stays.

    >>> thinned(np.array([0.0, 1.0]), 0.5).round(9).tolist()
    [0.75, 0.25]
    """
    left, kept = np.arange(pmf.size + 1), np.zeros(pmf.size + 1)
    for size in np.flatnonzero(pmf) + 1:
        kept += pmf[size - 1] * scipy.stats.binom.pmf(left, size, 1 - rate)
    return at_least_one(kept)


def thinned_subsets(pmf: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the distribution of `thinned` for per-machine rates, if cohorts are uniformly random subsets.

    With f_i[j, k] the probability that k machines are left of a random subset of j of the first i machines,

        f_i[j] = (1 − j/i)·f_{i−1}[j] + (j/i)·(r_i·f_{i−1}[j−1, k] + (1 − r_i)·f_{i−1}[j−1, k−1])

    The cost is machines · per_round² steps.

    >>> thinned_subsets(np.array([1.0]), np.array([0.0, 1.0])).tolist()
    [1.0]
    """
    most = pmf.size
    left = np.zeros((most + 1, most + 1))
    left[0, 0] = 1.0
    share = np.arange(most + 1)[:, None]
    for i, rate in enumerate(rates, start=1):
        one_more = np.zeros_like(left)
        one_more[1:] = rate * left[:-1]
        one_more[1:, 1:] += (1 - rate) * left[:-1, :-1]
        part = np.minimum(share / i, 1.0)
        left = (1 - part) * left + part * one_more
    return at_least_one(pmf @ left[1:])


def thinned_cohorts(rates: np.ndarray) -> np.ndarray:
    """Return the distribution after dropouts of the size of a uniformly random one of these cohorts.

    Args:
        rates: dropout rate of each slot's machine, [rounds, per_round]; 1 in slots without a scheduled machine.
    """
    rounds, per_round = rates.shape
    left = np.zeros((rounds, per_round + 1))
    left[:, 0] = 1.0
    for rate in rates.T[:, :, None]:
        left[:, 1:] = rate * left[:, 1:] + (1 - rate) * left[:, :-1]
        left[:, :1] *= rate
    return at_least_one(left.mean(axis=0))


def at_least_one(pmf: np.ndarray) -> np.ndarray:
    """Convert a distribution on 0, 1, … to one on 1, 2, …, with size 0 counted as 1."""
    return np.append(pmf[0] + pmf[1], pmf[2:])
