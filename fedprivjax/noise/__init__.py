"""Noise mechanisms: samplers of the noise in the server's aggregate, exact in distribution.

A mechanism (`interface.Mechanism`) samples once per seed. The protocol applies its own settings to the sample, such as
a scale. One sample therefore serves every privacy level, clip and step size of a sweep, and a protocol never holds
state of the federation's size.
"""

from fedprivjax.noise.chooser import NOISE_SCHEDULES, choose
from fedprivjax.noise.interface import Fresh, Mechanism, PerMachine, PerStep, Randomised, Silent

__all__ = ["NOISE_SCHEDULES", "Fresh", "Mechanism", "PerMachine", "PerStep", "Randomised", "Silent", "choose"]
