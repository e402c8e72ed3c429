"""Noise mechanisms: what stands in the server's aggregate in each round, exact in law, as an input to the protocol.

A mechanism holds per-round `inputs` (leaves [rounds, ...]), starts with `init`, and turns a block of rounds into that
block's noise, [block, d] at unit scale; the protocol multiplies by its `noise_std`. So one draw serves every privacy
level, clip and step of a sweep, and a protocol never sees state of the size of the federation.
"""

from fedprivjax.noise.cancelling import Cancelling, Replayed
from fedprivjax.noise.chooser import METHODS, aligned, choose
from fedprivjax.noise.covariance import Covariance
from fedprivjax.noise.fresh import Fresh, PerMachine, PerStep, Silent
from fedprivjax.noise.schedules import NOISE_SCHEDULES, exposure, relative_std, server_std

__all__ = [
    "METHODS",
    "NOISE_SCHEDULES",
    "Cancelling",
    "Covariance",
    "Fresh",
    "PerMachine",
    "PerStep",
    "Replayed",
    "Silent",
    "aligned",
    "choose",
    "exposure",
    "relative_std",
    "server_std",
]
