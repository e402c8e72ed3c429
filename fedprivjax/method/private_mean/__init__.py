"""Private mean of a cohort's gradients, by trust model: noise, accounting and costs."""

from fedprivjax.method.private_mean.gaussian import GaussianMean
from fedprivjax.method.private_mean.interface import PrivateMean
from fedprivjax.method.private_mean.method import UserMethod
from fedprivjax.method.private_mean.shuffled_bits import BitMean

__all__ = ["BitMean", "GaussianMean", "PrivateMean", "UserMethod"]
