"""Choose how to sample the machines' noise. All samplers have the same distribution, so the cheapest is used."""

from math import inf

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise.covariance import Cancelling, Covariance, Replayed, factor, padded
from fedprivjax.noise.interface import Fresh, Mechanism, MessageInputs, PerMachine, mean_of_fresh
from fedprivjax.plan.schedule import Schedule, Size

OF_MACHINES = {
    "auto": "the cheapest sampler that is exact in distribution",
    "materialised": "separate noise for every message",
    "replayed": "old noise regenerated from the machine's key, without state per machine",
    "covariance": "one correlated vector per round, from the factor of the schedule's covariance",
    "aggregate": "one sample of the participants' mean noise; only if all noise in the aggregate is fresh",
}
METHODS = {**OF_MACHINES, "normal": "rounded normals instead of binomials, an approximation without a guarantee"}

# time relative to one normal number, measured on two CPU cores
NORMAL, MEMORY_PASS, MULTIPLY_ADD = 1.0, 0.3, 0.01
MAX_BYTES = 2**30  # largest noise state of one run


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
    """Return the mechanism for machines that each add their own noise to their messages.

    The mechanism samples the noise in the sum of messages divided by a divisor. Empty slots add no noise.

    Args:
        relative: relative noise of each message, shape [rounds, per_round].
        dimension: number of parameters, which decides what fits in memory.
        method: a name in `METHODS`.
        cancel: True if a machine subtracts its previous noise, and the aggregate is a running sum.
        accumulate: True if noise is not subtracted, and the aggregate is a running sum.
        divisor: divisor of each round's sum, shape [rounds], if noise neither cancels nor accumulates. None is the
            schedule's constant.

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
    kept = {
        "materialised": size.machines * dimension,
        "replayed": dimension,
        "covariance": bandwidth * dimension + factors,
    }
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
    return MessageInputs(
        np.where(schedule.present, relative, 0.0).astype(np.float32), round_divisors(schedule), machine
    )


def round_divisors(schedule: Schedule, divisor: np.ndarray | None = None) -> np.ndarray | None:
    """Return the divisor of each round's sum, float32 [rounds], or None if it is the number of slots."""
    if not schedule.varies:
        return None
    over = schedule.divisor if divisor is None else divisor
    return np.broadcast_to(np.asarray(over, np.float32), schedule.size.rounds)
