"""Noise schedules over rounds as settings: a name, a matrix, or a factor of another library."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.rounds.factor import INDEPENDENT, RoundFactor
from fedprivjax.noise.rounds.given import GivenFactor, MaterialisedFactor
from fedprivjax.noise.rounds.optimal import OptimalFactor
from fedprivjax.noise.rounds.toeplitz import ToeplitzFactor
from fedprivjax.noise.rounds.tree import TreeFactor
from fedprivjax.noise.sums.factor import rows_of

ROUND_FACTORS: dict[str, type[RoundFactor]] = {
    "tree": TreeFactor,
    "toeplitz": ToeplitzFactor,
    "optimal": OptimalFactor,
}


def over_rounds(noise_schedule: Any) -> Any:
    """Return a noise schedule over rounds as a static setting: a name, or a factor.

    A factor is given as a matrix, or as an object with `materialize(n)`, which returns one.

    >>> over_rounds([[1.0, 0.0], [0.5, 1.0]])
    GivenFactor(rows=((1.0, 0.0), (0.5, 1.0)))
    """
    if isinstance(noise_schedule, RoundFactor):
        return noise_schedule
    if hasattr(noise_schedule, "materialize"):
        return MaterialisedFactor(noise_schedule)
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, (INDEPENDENT, *ROUND_FACTORS))
        return noise_schedule
    wrong = (
        f"noise_schedule must be a name or a matrix as a list of rows, got {' '.join(str(noise_schedule).split()):.60}"
    )
    if not (isinstance(noise_schedule, Sequence) or hasattr(noise_schedule, "__array__")):
        raise Refusal(wrong)
    try:
        return GivenFactor(rows_of(np.asarray(noise_schedule)))
    except (TypeError, ValueError) as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(wrong) from None


def round_factor(noise_schedule: Any) -> RoundFactor | None:
    """Return the factor of a setting from `over_rounds`, or None for independent noise."""
    if isinstance(noise_schedule, RoundFactor):
        return noise_schedule
    return None if noise_schedule == INDEPENDENT else ROUND_FACTORS[noise_schedule]()
