"""How a cohort's gradients become the server's noisy mean, by trust model: whose noise, and what it is worth."""

from fedprivjax.protocols.releases.bits import ShuffledBits
from fedprivjax.protocols.releases.gaussian import GaussianRelease
from fedprivjax.protocols.releases.interface import Release

__all__ = ["GaussianRelease", "Release", "ShuffledBits"]
