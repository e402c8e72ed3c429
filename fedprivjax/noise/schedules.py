"""How a machine's privacy budget is spread over its messages.

A schedule gives each message's noise a relative standard deviation r, normalised so that `Σ_k 1/r_k² ≤ 1` for every
machine: with `σ_k = noise_std · r_k` and `noise_std = sensitivity/μ`, the machine's messages together are μ-GDP.

All of it is by the plan, as if nobody dropped out: a message that is not sent leaves the others' noise as it is, so
what a machine spends is a part of its budget, whoever drops out.
"""

from collections.abc import Sequence
from math import log

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.plan.participation import Full
from fedprivjax.plan.schedule import Schedule

NOISE_SCHEDULES = {
    "uniform": "the same noise in each of a machine's messages, r² = n_i",
    "proportional": "the paper's r_k² = (1 + ln T)·k, valid for any number of messages up to T",
    "gap": "1/r_k² proportional to the rounds until the machine's next message: noise that stands longer is smaller",
}


def relative_std(noise_schedule: str | Sequence[float], schedule: Schedule) -> np.ndarray:
    """Relative noise of each planned message, float64 [rounds, per_round]; 1 in slots that nobody is asked to fill.

    Args:
        noise_schedule: a name in `NOISE_SCHEDULES`, or a positive sequence σ_1, σ_2, … for a machine's first, second, …
            message (any scale; it is normalised so that the busiest machine spends exactly its budget).

    Source: Reshef & Levy 2025 for `proportional`; `uniform` and `gap` use that the schedule is public beforehand.

    >>> relative_std("uniform", Full(1).draw(4, np.random.default_rng(0))).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    relative = _of_plan(noise_schedule, schedule.planned)
    return np.where(schedule.asked, relative, 1.0) if schedule.varies else relative


def server_std(noise_schedule: str | Sequence[float], rounds: int) -> np.ndarray:
    """Relative noise of each round of a trusted server, which releases something every round: float64 [rounds]."""
    return relative_std(noise_schedule, Full(1).draw(rounds, np.random.default_rng(0)))[:, 0]


def exposure(relative: np.ndarray, schedule: Schedule) -> np.ndarray:
    """`√Σ_k 1/r_k²` of each machine over its planned messages, float64 [machines]: its GDP μ in units of
    sensitivity/noise_std."""
    squares = np.where(schedule.asked, relative**-2.0, 0.0)
    return np.sqrt(np.bincount(schedule.participants.ravel(), squares.ravel(), schedule.machines))


def _of_plan(noise_schedule: str | Sequence[float], schedule: Schedule) -> np.ndarray:
    """`relative_std` of a schedule from which nobody drops out; of slots that nobody fills, anything."""
    if not isinstance(noise_schedule, str):
        return _given(noise_schedule, schedule)
    require_choice("noise_schedule", noise_schedule, NOISE_SCHEDULES)
    if noise_schedule == "proportional":
        return np.sqrt((1 + log(schedule.size.rounds)) * schedule.counts)
    if noise_schedule == "uniform":
        return np.sqrt(schedule.total[schedule.participants].astype(float))
    standing = np.bincount(schedule.participants.ravel(), schedule.gaps.ravel(), schedule.machines)
    return np.sqrt(standing[schedule.participants] / np.maximum(schedule.gaps, 1))


def _given(sequence: Sequence[float], schedule: Schedule) -> np.ndarray:
    values = np.asarray(sequence, float)
    most = int(schedule.total.max())
    if values.ndim != 1 or values.size < most:
        raise Refusal(f"noise_schedule must have at least {most} entries for this schedule, got {values.size}")
    wrong = values[~(np.isfinite(values) & (values > 0))]
    if wrong.size:
        raise Refusal(f"noise_schedule must be positive and finite, got {wrong[0]}")
    relative = values[schedule.counts - 1]
    return relative * exposure(relative, schedule).max()
