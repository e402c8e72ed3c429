"""A trusted server's noise, correlated over rounds by a factor of the prefix-sum matrix (DP-FTRL)."""

from fedprivjax.noise.rounds.factor import (
    INDEPENDENT,
    ROUND_FACTORS,
    RoundFactor,
    over_rounds,
    require_public,
    round_factor,
)
from fedprivjax.noise.rounds.sampler import Recursive, TreeOfRounds

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
