"""A cohort's private mean gradient, by trust model: who adds which noise, and what it is worth."""

from fedprivjax.method.private_mean.gaussian import GaussianMean
from fedprivjax.method.private_mean.interface import PrivateMean
from fedprivjax.method.private_mean.method import UserMethod
from fedprivjax.method.private_mean.shuffled_bits import BitMean

__all__ = ["BitMean", "GaussianMean", "PrivateMean", "UserMethod"]
