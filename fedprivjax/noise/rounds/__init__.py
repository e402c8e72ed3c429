"""A trusted server's noise, correlated over rounds by a factor of the prefix-sum matrix (DP-FTRL)."""

from fedprivjax.noise.rounds.factor import INDEPENDENT, RoundFactor, require_public
from fedprivjax.noise.rounds.sampler import Recursive, TreeOfRounds
from fedprivjax.noise.rounds.setting import ROUND_FACTORS, over_rounds, round_factor

__all__ = [
    "INDEPENDENT",
    "ROUND_FACTORS",
    "Recursive",
    "RoundFactor",
    "TreeOfRounds",
    "over_rounds",
    "require_public",
    "round_factor",
]
