"""A cohort's private mean gradient, by trust model: who adds which noise, and what it is worth."""

from fedprivjax.protocols.private_mean.bits import BitMean
from fedprivjax.protocols.private_mean.gaussian import GaussianMean
from fedprivjax.protocols.private_mean.interface import PrivateMean
from fedprivjax.protocols.private_mean.method import UserMethod

__all__ = ["BitMean", "GaussianMean", "PrivateMean", "UserMethod"]
