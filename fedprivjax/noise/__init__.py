"""Noise mechanisms: samplers of the noise in the server's aggregate, exact in distribution.

A mechanism (`interface.Mechanism`) samples once per seed. The protocol applies its own settings to the sample, such as
a scale. One sample therefore serves every privacy level, clip and step size of a sweep, and a protocol never holds
state of the federation's size.
"""

from fedprivjax.noise.binomial import HostNoise, RoundedNormal, sample_binomial_noise
from fedprivjax.noise.chooser import METHODS, NOISE_SCHEDULES, choose, exposure, relative_std, server_std
from fedprivjax.noise.covariance import Cancelling, Covariance, Replayed
from fedprivjax.noise.interface import Fresh, Mechanism, PerMachine, PerStep, Randomised, Silent
from fedprivjax.noise.windows import Streamed, WindowInputs, Windows

__all__ = [
    "METHODS",
    "NOISE_SCHEDULES",
    "Cancelling",
    "Covariance",
    "Fresh",
    "HostNoise",
    "Mechanism",
    "PerMachine",
    "PerStep",
    "Randomised",
    "Replayed",
    "RoundedNormal",
    "Silent",
    "Streamed",
    "WindowInputs",
    "Windows",
    "choose",
    "exposure",
    "relative_std",
    "sample_binomial_noise",
    "server_std",
]
