"""Noise in integer sums: accountants of the authors (google-research/federated, distributed_dp), and exact values.

`skellam_epsilon` and `discrete_gaussian_epsilon` follow `skellam_epsilon` and `ddgauss_epsilon` of their
`accounting_utils.py` for q = 1, with their orders, in the domain of the messages. `exact_delta` sums the two
distributions of a release term by term.
"""

from math import exp, log, pi, sqrt

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy.stats import skellam

AUTHORS_ORDERS = [*range(2, 129), 256]


def _norms(scale, clip, beta, dimension):
    """Return Δ₁ and Δ₂ of a rounded message, divided by the scale."""
    c = scale * clip
    bounds = [c + sqrt(dimension)]
    if beta > 0:
        bounds.append(sqrt(c * c + dimension / 4 + sqrt(2 * log(1 / beta)) * (c + sqrt(dimension) / 2)))
    l2 = min(bounds) / scale
    return l2 * scale * min(sqrt(dimension), l2 * scale) / scale, l2


def skellam_epsilon(*, scale, local_std, machines, clip, beta, dimension, rounds, delta):
    l1, l2 = _norms(scale, clip, beta, dimension)
    variance = machines * local_std**2
    divergences = []
    for order in AUTHORS_ORDERS:
        one = order * l2 * l2 / (2 * variance)
        small = ((2 * order - 1) * scale * l2 * l2 + 6 * l1) / (4 * scale**3 * variance**2)
        divergences.append(rounds * (one + min(small, 3 * l1 / (2 * scale * variance))))
    return compute_epsilon(AUTHORS_ORDERS, divergences, delta)[0]


def discrete_gaussian_epsilon(*, scale, local_std, machines, clip, beta, dimension, rounds, delta):
    l1, l2 = (norm / (sqrt(machines) * local_std) for norm in _norms(scale, clip, beta, dimension))
    tau = 10 * sum(exp(-2 * (pi * local_std * scale) ** 2 * k / (k + 1)) for k in range(1, machines))
    divergences = []
    for order in AUTHORS_ORDERS:
        one = order / 2 * l2**2 + tau * dimension
        two = order / 2 * (l2**2 + 2 * l1 * tau + tau**2 * dimension)
        three = order / 2 * (l2 + sqrt(dimension) * tau) ** 2
        divergences.append(rounds * min(one, two, three))
    return compute_epsilon(AUTHORS_ORDERS, divergences, delta)[0]


AUTHORS = {"skellam": skellam_epsilon, "discrete-gaussian": discrete_gaussian_epsilon}


def skellam_probabilities(variance, machines, reach):
    """Return P[Z = k], k = −reach, …, reach, of the sum of Skellam noises."""
    return skellam.pmf(np.arange(-reach, reach + 1), machines * variance / 2, machines * variance / 2)


def discrete_gaussian_probabilities(variance, machines, reach):
    """Return P[Z = k], k = −reach, …, reach, of the sum of discrete Gaussian noises, by direct convolution."""
    each = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    each, found = each / each.sum(), np.eye(1, 2 * reach + 1, reach)[0]
    for _ in range(machines):
        found = np.convolve(found, each)[reach:-reach]
    return found


PROBABILITIES = {"skellam": skellam_probabilities, "discrete-gaussian": discrete_gaussian_probabilities}


def exact_delta(shift, epsilon, probabilities):
    """Return δ(ε), in the worse direction, of a sum that moves by an integer vector of one or two coordinates.

    Args:
        probabilities: of a coordinate's noise, in a range that holds the shift.
    """
    p = q = np.ones(())
    for by in np.atleast_1d(shift):
        moved = np.roll(probabilities, by)
        p, q = np.multiply.outer(p, probabilities), np.multiply.outer(q, moved)
    return max(np.maximum(p - exp(epsilon) * q, 0).sum(), np.maximum(q - exp(epsilon) * p, 0).sum())
