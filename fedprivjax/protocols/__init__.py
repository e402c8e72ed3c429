"""One method a file, named after its paper's method; the shared round machinery in `cohort`."""

from fedprivjax.protocols.dp_mu2 import DPMu2
from fedprivjax.protocols.noisy_sgd import NoisySGD
from fedprivjax.protocols.stale_momentum import StaleMomentum

PROTOCOLS = {
    "dp_mu2": (DPMu2, "DP-μ²-FL (Reshef & Levy): trusted or untrusted server, any participation, clipped or not"),
    "noisy_sgd": (NoisySGD, "single-pass noisy SGD, trusted or untrusted server, with or without per-sample clipping"),
    "stale_momentum": (StaleMomentum, "per-machine momentum with stale corrections, the paper's alternative 1"),
}

__all__ = ["PROTOCOLS", "DPMu2", "NoisySGD", "StaleMomentum"]
