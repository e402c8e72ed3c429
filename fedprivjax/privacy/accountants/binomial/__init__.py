"""Accounting of sums of bits with binomial noise in the shuffle model: exact, or with the paper's constants.

Computed on the host in float64, with NumPy and SciPy only.

Source: Cheu, Joseph, Mao & Peng, ICLR 2022.
"""

from fedprivjax.privacy.accountants.binomial.accountant import ACCOUNTINGS, BinomialSums
from fedprivjax.privacy.accountants.binomial.parameters import Bits, bits, default_levels
from fedprivjax.privacy.accountants.binomial.scalar import hockey_stick, scalar_epsilon, scalar_trials
from fedprivjax.privacy.accountants.binomial.vector import ROUNDINGS, gaussian_norm, vector_epsilon, vector_ratio

__all__ = [
    "ACCOUNTINGS",
    "ROUNDINGS",
    "BinomialSums",
    "Bits",
    "bits",
    "default_levels",
    "gaussian_norm",
    "hockey_stick",
    "scalar_epsilon",
    "scalar_trials",
    "vector_epsilon",
    "vector_ratio",
]
