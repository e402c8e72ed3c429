"""Noise mechanisms: what stands in the server's aggregate in each round, exact in law, as an input to the protocol.

A mechanism (`interface.Mechanism`) draws what is random once per seed; what a protocol's own leaves make of it is the
protocol's. So one draw serves every privacy level, clip and step of a sweep, and a protocol never sees state of the
size of the federation.
"""

from fedprivjax.noise.binomial import RoundedNormal, Tape, binomial_tape
from fedprivjax.noise.cancelling import Cancelling, Replayed
from fedprivjax.noise.chooser import METHODS, choose
from fedprivjax.noise.covariance import Covariance
from fedprivjax.noise.fresh import Fresh, PerMachine, PerStep, Silent
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.schedules import NOISE_SCHEDULES, exposure, relative_std, server_std
from fedprivjax.noise.streamed import Streamed
from fedprivjax.noise.windows import WindowInputs, Windows

__all__ = [
    "METHODS",
    "NOISE_SCHEDULES",
    "Cancelling",
    "Covariance",
    "Fresh",
    "Mechanism",
    "PerMachine",
    "PerStep",
    "Replayed",
    "RoundedNormal",
    "Silent",
    "Streamed",
    "Tape",
    "WindowInputs",
    "Windows",
    "binomial_tape",
    "choose",
    "exposure",
    "relative_std",
    "server_std",
]
