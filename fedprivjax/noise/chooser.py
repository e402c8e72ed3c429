"""Noise schedules, and the choice of how to sample the machines' noise.

A noise schedule divides a machine's privacy budget over its messages. It gives each message's noise a relative standard
deviation r, normalised so that `Σ_k 1/r_k² ≤ 1` for every machine. With `σ_k = noise_std · r_k` and
`noise_std = sensitivity/μ`, the machine's messages together are μ-GDP. The noise follows from the planned
participation, without dropouts. A message that is not sent does not change the noise of the others, so a machine spends
at most its budget for any dropouts.

All samplers have the same distribution, so the cheapest is used.
"""

from collections.abc import Sequence
from math import inf, log

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.covariance import Cancelling, Covariance, Replayed, factor, padded
from fedprivjax.noise.interface import Fresh, Mechanism, MessageInputs, PerMachine, mean_of_fresh
from fedprivjax.plan.participation import Full
from fedprivjax.plan.schedule import Schedule, Size

NOISE_SCHEDULES = {
    "uniform": "the same noise in all messages of a machine: r² = n for n messages",
    "proportional": "more noise in later messages k, r_k² = (1 + ln T)·k; for any number of messages up to T",
    "gap": "less noise if it stays longer: 1/r_k² proportional to the rounds until the machine's next message",
}
OF_MACHINES = {
    "auto": "the cheapest sampler that is exact in distribution",
    "materialised": "separate noise for every message",
    "replayed": "old noise regenerated from the machine's key, without state per machine",
    "covariance": "one vector per round, correlated over rounds as the schedule requires",
    "aggregate": "one sample of the machines' mean noise, only if no noise of earlier rounds is in the aggregate",
}
METHODS = {**OF_MACHINES, "normal": "rounded normals instead of binomials, an approximation without a guarantee"}

# time relative to one normal number, measured on two CPU cores
NORMAL, MEMORY_PASS, MULTIPLY_ADD = 1.0, 0.3, 0.01
MAX_BYTES = 2**30  # largest noise state of one run


def relative_std(noise_schedule: str | Sequence[float], schedule: Schedule) -> np.ndarray:
    """Return the relative noise r of each planned message; float64 [rounds, per_round], 1 in empty slots.

    The noise of a message has standard deviation r times `noise_std`. For every machine, 1/r² sums to at most 1 over
    its planned messages. All messages of a machine together therefore leak at most as much as one message with noise
    `noise_std`.

    Args:
        noise_schedule: a name, or positive numbers. `NOISE_SCHEDULES` explains the names. Numbers are the relative
            noise of a machine's first, second, … message. The numbers are scaled so that 1/r² sums to 1 for the machine
            with the largest sum.
        schedule: participation schedule: which machines take part in each round.

    With "uniform" and "gap", a machine must know in advance in which rounds it takes part.

    Source: Reshef & Levy 2025 for "proportional".

    >>> relative_std("uniform", Full(1).draw(4, np.random.default_rng(0))).ravel().tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    relative = _of_plan(noise_schedule, schedule.planned)
    return np.where(schedule.scheduled, relative, 1.0) if schedule.varies else relative


def server_std(noise_schedule: str | Sequence[float], rounds: int) -> np.ndarray:
    """Return the relative noise of each round if a trusted server adds the noise; float64 [rounds].

    The noise of a round has standard deviation `noise_std` times the round's relative noise. The server releases one
    noisy result in each round. The noise schedule is therefore applied as if the server were one machine that sends a
    message in every round.

    Args:
        noise_schedule: a name in `NOISE_SCHEDULES`, or positive numbers of which only the ratios matter.
        rounds: number of rounds.
    """
    return relative_std(noise_schedule, Full(1).draw(rounds, np.random.default_rng(0)))[:, 0]


def exposure(relative: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Return the exposure of each machine, to which its privacy loss is proportional; float64 [machines].

    A machine's k-th message has noise of standard deviation r_k times `noise_std`. The exposure is `√(Σ_k 1/r_k²)` over
    the planned messages, including messages of rounds in which the machine drops out. The machine is μ-GDP (Gaussian
    differential privacy) with μ = exposure · sensitivity / `noise_std`, for the L2 sensitivity of one message.

    Args:
        relative: relative noise r of each message, shape [rounds, per_round].
        schedule: participation schedule: which machines take part in each round.
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


def choose(
    schedule: Schedule,
    relative: np.ndarray,
    dimension: int,
    method: str = "auto",
    *,
    cancel: bool,
    accumulate: bool = False,
    divisor: np.ndarray | None = None,
) -> Mechanism:
    """Return the cheapest exact sampler for a run in which machines add Gaussian noise to their messages.

    The server uses only the sum of the messages of a round, divided by a constant. The sampler samples the noise in
    this quotient, which is called the aggregate. The server may also add up the messages of all rounds so far (a
    running sum).

    Args:
        schedule: participation schedule: which machines take part in each round.
        relative: standard deviation of the noise of each message, as a multiple of `noise_std`; shape [rounds,
            per_round].
        dimension: number of model parameters.
        method: name of a sampler, a key of `OF_MACHINES`. "auto" takes the cheapest.
        cancel: True if the aggregate is a running sum in which machines cancel their old noise: each message subtracts
            the noise of the machine's previous message.
        accumulate: True if the aggregate is a running sum in which old noise stays.
        divisor: divisor of each round's sum, shape [rounds]. None takes the divisor of the schedule. If `cancel` or
            `accumulate` is True, `divisor` must be None.

    In the example, all machines take part in both rounds. The noise of each round is then independent:

    >>> from fedprivjax import Full
    >>> everyone = Full(3).draw(2, np.random.default_rng(0))
    >>> type(choose(everyone, np.ones((2, 3)), 10, cancel=True)).__name__
    'Fresh'
    """
    require_choice("noise method", method, OF_MACHINES)
    if divisor is not None and (cancel or accumulate):
        raise Refusal("divisor must be left out if noise cancels or accumulates, which needs one constant")
    all_fresh = not cancel or (schedule.size.per_round == schedule.size.machines and schedule.present.all())
    relative = np.where(schedule.present, relative, 0.0) if schedule.varies else relative
    if method == "aggregate" and not all_fresh:
        raise Refusal("noise method 'aggregate' must have full participation or no cancellation")
    if method in ("replayed", "covariance") and not cancel:
        raise Refusal(f"noise method {method!r} must have noise that is cancelled; use 'aggregate'")
    if all_fresh and method in ("auto", "aggregate"):
        over = schedule.divisor if divisor is None else divisor
        return Fresh(np.asarray(mean_of_fresh(relative, over), np.float32), accumulate)
    if not cancel:
        over = round_divisors(schedule, divisor)
        return PerMachine(MessageInputs(np.asarray(relative, np.float32), over), accumulate)
    if method == "auto":
        method = cheapest(schedule.size, int(schedule.gaps.max()) - 1, dimension)
    if method == "materialised":
        return Cancelling(sent_inputs(schedule, relative), schedule.machines)
    if method == "covariance":
        return Covariance(np.asarray(padded(factor(schedule, relative)), np.float32))
    return _replayed(schedule, relative)


def cheapest(size: Size, bandwidth: int, dimension: int) -> str:
    """Return the name of the fastest sampler of cancelling noise whose state fits in memory.

    >>> cheapest(Size(machines=100, per_round=50, rounds=1200), bandwidth=20, dimension=7850)
    'covariance'
    """
    _, m, _ = size
    factors = 4 * size.rounds * (bandwidth + 1)  # two float64 copies during the computation
    state = bandwidth * dimension + factors
    kept = {"materialised": size.machines * dimension, "replayed": dimension, "covariance": state}
    time = {
        "materialised": m * (NORMAL + 3 * MEMORY_PASS),
        "replayed": m * (2 * NORMAL + MEMORY_PASS),
        "covariance": NORMAL + MULTIPLY_ADD * bandwidth,
    }
    fits = {name: time[name] if 4 * floats <= MAX_BYTES else inf for name, floats in kept.items()}
    return min(fits, key=lambda name: fits[name])


def _replayed(schedule: Schedule, relative: np.ndarray) -> Replayed:
    now, before = (np.asarray(noise, np.float32) for noise in (relative, schedule.previous(relative)))
    machine, count = (np.asarray(index, np.int32) for index in (schedule.participants, schedule.counts))
    return Replayed(MessageInputs(now, round_divisors(schedule), machine, count, before))


def sent_inputs(schedule: Schedule, relative: np.ndarray) -> MessageInputs:
    """Return inputs of mechanisms with memory of machines' noise. In empty slots the noise is 0, of no machine."""
    machine = np.where(schedule.present, schedule.participants, schedule.machines).astype(np.int32)
    noise = np.where(schedule.present, relative, 0.0).astype(np.float32)
    return MessageInputs(noise, round_divisors(schedule), machine)


def round_divisors(schedule: Schedule, divisor: np.ndarray | None = None) -> np.ndarray | None:
    """Return the divisor of each round's sum, float32 [rounds], or None if it is the number of slots."""
    if not schedule.varies:
        return None
    over = schedule.divisor if divisor is None else divisor
    return np.broadcast_to(np.asarray(over, np.float32), schedule.size.rounds)
