"""Private means of a cohort's messages, by the kind of noise."""

from fedprivjax.method.private_mean.gaussian import THEOREMS, GaussianMean
from fedprivjax.method.private_mean.interface import PrivateMean, gradient_bound, noise_constant, round_noise
from fedprivjax.method.private_mean.shuffled_bits import OF_BITS, BitMean

SHUFFLER = "shuffler"
TRUSTS = (SHUFFLER, *THEOREMS)

__all__ = [
    "OF_BITS",
    "SHUFFLER",
    "TRUSTS",
    "BitMean",
    "GaussianMean",
    "PrivateMean",
    "gradient_bound",
    "noise_constant",
    "round_noise",
]
