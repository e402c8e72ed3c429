"""Sums of bits with binomial noise, as a shuffler releases them: exact accounting, and the paper's constants.

Source: Cheu, Joseph, Mao & Peng, ICLR 2022. Host, float64, NumPy and SciPy only.
"""

from fedprivjax.privacy.accountants.binomial.accountant import BinomialSums
from fedprivjax.privacy.accountants.binomial.parameters import Bits, bits, default_levels
from fedprivjax.privacy.accountants.binomial.scalar import hockey_stick, scalar_epsilon, scalar_trials
from fedprivjax.privacy.accountants.binomial.vector import vector_epsilon, vector_ratio

__all__ = [
    "BinomialSums",
    "Bits",
    "bits",
    "default_levels",
    "hockey_stick",
    "scalar_epsilon",
    "scalar_trials",
    "vector_epsilon",
    "vector_ratio",
]
