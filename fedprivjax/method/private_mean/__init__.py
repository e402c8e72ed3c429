"""Private means of a cohort's messages, by the kind of noise."""

from fedprivjax.method.private_mean.gaussian import GaussianMean
from fedprivjax.method.private_mean.interface import PrivateMean, gradient_bound, noise_constant, round_noise
from fedprivjax.method.private_mean.method import TRUSTS, UserMethod
from fedprivjax.method.private_mean.shuffled_bits import BitMean

__all__ = [
    "TRUSTS",
    "BitMean",
    "GaussianMean",
    "PrivateMean",
    "UserMethod",
    "gradient_bound",
    "noise_constant",
    "round_noise",
]
