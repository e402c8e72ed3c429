"""Correlation of a run's noise, over its rounds or between its machines."""

from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.factors.matrices import inverse_of
from fedprivjax.noise.message_factors import SumFactor
from fedprivjax.noise.pairwise import Pairwise
from fedprivjax.noise.server_factors import round_factor
from fedprivjax.plan.schedule import Schedule

MOST = 2000  # largest number of rounds


def noise_correlation(noise: Any, schedule: Schedule) -> tuple[np.ndarray, str]:
    """Return the correlation matrix of the noise, and the name of its axes.

    The axes are "round" for the noise of a trusted server, shape [rounds, rounds], and "machine" for the noise of all
    machines' messages in one round, shape [machines, machines].

    Args:
        noise: noise of a privacy object, such as a factor over rounds or a `Pairwise`.
        schedule: participation schedule of the run.

    Raises:
        Refusal: if the noise is independent, or correlated over the messages of a machine, or there are too many
            rounds.
    """
    if isinstance(noise, Pairwise):
        machines = np.arange(schedule.machines)
        ones = np.ones(machines.size)
        covariance, name = noise.covariance(ones)(machines, ones.astype(bool)), "machine"
    elif not isinstance(factor := round_factor(noise), SumFactor | None) and schedule.size.rounds <= MOST:
        inverse = inverse_of(factor.known(schedule))
        covariance, name = inverse @ inverse.T, "round"
    else:
        raise Refusal(
            f"noise must be correlated over at most {MOST} rounds, or between machines (Pairwise), to have a "
            f"correlation matrix, got {noise!r}"
        )
    spread = np.sqrt(np.diag(covariance))
    return covariance / np.outer(spread, spread), name
