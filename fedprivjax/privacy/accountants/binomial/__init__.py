"""Sums of bits with binomial noise, as a shuffler releases them: exact accounting, and the paper's constants.

Source: Cheu, Joseph, Mao & Peng, ICLR 2022. Host, float64, NumPy and SciPy only.
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
