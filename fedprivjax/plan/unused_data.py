"""Warning about data that a run leaves unused because the smallest dataset limits its rounds."""

from bisect import bisect_left

import numpy as np

from fedprivjax.checks.user_warnings import warn
from fedprivjax.plan.data_used import data_used
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.participation.weighted_sampling import rounds_filled
from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem

HALF = 50  # percent of the data; a run limited by the smallest dataset that uses less causes a warning


def warn_of_unused_data(problem: Problem, plan: Plan, participation: Participation, shares: np.ndarray) -> None:
    """Warn if most of the data stay unused because the smallest dataset limits the rounds."""
    of_smallest = plan.size.rounds == participation.rounds_of_shares(shares) and 2 * shares.min() < shares.mean()
    used = data_used(problem, plan)
    if participation.depends_on_sizes or not of_smallest or used.part >= HALF:
        return
    warn(f"a run uses {used}: rounds end with the smallest share; {_remedy(participation, shares, plan)}")


def _remedy(participation: Participation, shares: np.ndarray, plan: Plan) -> str:
    """Return a suggestion, as text, for using more than half of the data.

    It is `BySize` with the same number of machines per round or, if needed, with fewer, down to half as many. If these
    do not suffice, it is to reuse records.
    """
    asked = participation.per_round
    most = asked // 2
    less = bisect_left(range(asked), HALF, hi=most + 1, key=lambda less: _part_by_size(shares, asked - less))
    if less <= most:
        scheme = f"BySize({participation.machines}, {asked - less})"
        key = f", per_round = {asked - less}" if less else ""
        return f'{scheme}, in a file kind = "by_size"{key}, uses {_part_by_size(shares, asked - less):.3g}%'
    if plan.sampler is None or plan.sampler.pooled:
        return "methods of minibatches from a machine's own records, such as noisy_minibatch_sgd, do not end there"
    return 'samplers that use records again, such as sampler = "poisson", do not end there'


def _part_by_size(shares: np.ndarray, per_round: int) -> float:
    """Return the percentage of all possible messages that `BySize` cohorts of this size send."""
    return 100 * rounds_filled(shares, per_round) * per_round / shares.sum()
