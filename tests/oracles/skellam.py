"""Skellam noise in integer sums: accountant of the authors (google-research/federated, distributed_dp), exact values.

`authors_epsilon` follows `skellam_epsilon` of their `accounting_utils.py` for q = 1, with their orders, in the domain
of the messages. `exact_delta` sums the two distributions of a release term by term.
"""

from math import exp, log, sqrt

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy.stats import skellam

AUTHORS_ORDERS = [*range(2, 129), 256]


def authors_epsilon(*, scale, central_std, clip, beta, dimension, rounds, delta):
    c = scale * clip
    bounds = [c + sqrt(dimension)]
    if beta > 0:
        bounds.append(sqrt(c * c + dimension / 4 + sqrt(2 * log(1 / beta)) * (c + sqrt(dimension) / 2)))
    l2 = min(bounds) / scale
    l1 = l2 * scale * min(sqrt(dimension), l2 * scale) / scale
    variance = central_std**2
    divergences = []
    for order in AUTHORS_ORDERS:
        one = order * l2 * l2 / (2 * variance)
        small = ((2 * order - 1) * scale * l2 * l2 + 6 * l1) / (4 * scale**3 * variance**2)
        divergences.append(rounds * (one + min(small, 3 * l1 / (2 * scale * variance))))
    return compute_epsilon(AUTHORS_ORDERS, divergences, delta)[0]


def log_probabilities(variance, reach):
    """Return ln P[Z = k] of Skellam noise for k = −reach, …, reach."""
    return skellam.logpmf(np.arange(-reach, reach + 1), variance / 2, variance / 2)


def exact_delta(shift, variance, epsilon, reach=200):
    """Return δ(ε), in the worse direction, of a sum that moves by an integer vector of one or two coordinates."""
    shift = np.atleast_1d(shift)
    grids = [np.arange(-reach, reach + 1) for _ in shift]
    one = other = 0.0
    for place, (grid, by) in enumerate(zip(grids, shift, strict=True)):
        shape = [1] * len(shift)
        shape[place] = -1
        one = one + skellam.logpmf(grid, variance / 2, variance / 2).reshape(shape)
        other = other + skellam.logpmf(grid - by, variance / 2, variance / 2).reshape(shape)
    p, q = np.exp(one), np.exp(other)
    return max(np.maximum(p - exp(epsilon) * q, 0).sum(), np.maximum(q - exp(epsilon) * p, 0).sum())
