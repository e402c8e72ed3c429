"""Noise on running sums, correlated over all messages of a machine by a factor of the prefix-sum matrix."""

from fedprivjax.noise.sums.correlated import CorrelatedSums
from fedprivjax.noise.sums.factor import SUM_FACTORS, Given, Materialised, Optimal, SumFactor, Toeplitz, rows_of
from fedprivjax.noise.sums.optimum import noise_lower_bound, noise_of, optimal_factor
from fedprivjax.noise.sums.workload import anytime_workload

__all__ = [
    "SUM_FACTORS",
    "CorrelatedSums",
    "Given",
    "Materialised",
    "Optimal",
    "SumFactor",
    "Toeplitz",
    "anytime_workload",
    "noise_lower_bound",
    "noise_of",
    "optimal_factor",
    "rows_of",
]
