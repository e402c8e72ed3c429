"""Noise schedules: the division of a machine's privacy budget over its messages.

A noise schedule gives each message's noise a relative standard deviation r, normalised so that `Σ_k 1/r_k² ≤ 1` for
every machine. With `σ_k = noise_std · r_k` and `noise_std = sensitivity/μ`, the machine's messages together are μ-GDP.

The noise follows from the planned participation, without dropouts. A message that is not sent does not change the noise
of the others, so a machine spends at most its budget for any dropouts.
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
    "gap": "1/r_k² proportional to the rounds until the machine's next message: longer-lasting noise is smaller",
}


def relative_std(noise_schedule: str | Sequence[float], schedule: Schedule) -> np.ndarray:
    """Return the relative noise of each planned message, float64 [rounds, per_round], 1 in unscheduled slots.

    Args:
        noise_schedule: a name in `NOISE_SCHEDULES`, or a positive sequence σ_1, σ_2, … for a machine's first, second, …
            message. Its scale is arbitrary: the machine with the largest exposure spends exactly its budget.

    Source: Reshef & Levy 2025 for "proportional". "uniform" and "gap" need a participation schedule that is public in
    advance.

    >>> relative_std("uniform", Full(1).draw(4, np.random.default_rng(0))).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    relative = _of_plan(noise_schedule, schedule.planned)
    return np.where(schedule.scheduled, relative, 1.0) if schedule.varies else relative


def server_std(noise_schedule: str | Sequence[float], rounds: int) -> np.ndarray:
    """Return the relative noise of each round of a trusted server, which releases in every round; float64 [rounds]."""
    return relative_std(noise_schedule, Full(1).draw(rounds, np.random.default_rng(0)))[:, 0]


def exposure(relative: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Return `√Σ_k 1/r_k²` over each machine's planned messages, float64 [machines].

    This is the machine's GDP μ in units of sensitivity/noise_std.
    """
    squares = np.where(schedule.scheduled, relative**-2.0, 0.0)
    return np.sqrt(np.bincount(schedule.participants.ravel(), squares.ravel(), schedule.machines))


def _of_plan(noise_schedule: str | Sequence[float], schedule: Schedule) -> np.ndarray:
    """Return `relative_std` for a schedule without dropouts. Values in empty slots are arbitrary."""
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
