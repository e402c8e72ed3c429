"""Size limits, checked by arithmetic alone before anything is sampled, calibrated or compiled."""

import os
from collections.abc import Sequence
from math import inf
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import short
from fedprivjax.problem.devices import device_memory

COUNTED = 2**31  # machines, rounds and records are int32
OF_MACHINE, OF_SLOT, OF_RECORD = 64, 48, 8  # bytes on the host per item while a run is prepared
OF_NUMBER = 12  # bytes on the host per feature of an example: sampled in float64, stored in float32
OF_DRAW = 2**14  # further bytes per seed for its plan and noise
GIB = 2**30


def require_counted(**sizes: int) -> None:
    """Raise Refusal if a named size does not fit int32.

    >>> require_counted(machines=10**12)
    Traceback (most recent call last):
    fedprivjax.Refusal: machines must be below 2³¹, as int32 counts them, got 1000000000000
    """
    for name, size in sizes.items():
        if size >= COUNTED:
            raise Refusal(f"{name} must be below 2³¹, as int32 counts them, got {short(size)}")


def require_room(machines: int, per_round: int, rounds: int, records: int = 1, draws: int = 1) -> None:
    """Raise Refusal if the plans of a sweep need more memory than this computer has.

    Args:
        records: number of records in a message.
        draws: number of plans held in memory at once, one per seed.
    """
    slots = rounds * per_round
    each = OF_DRAW + slots * (OF_SLOT + OF_RECORD * records) + OF_RECORD * machines
    needed, there = draws * each + OF_MACHINE * machines, memory()
    if needed > there:
        sizes = f"machines = {machines}, per_round = {per_round}, rounds = {rounds}"
        sizes += f", batch = {records}" if records > 1 else ""
        seeds = f", seeds = {draws}" if draws > 1 else ""
        raise Refusal(
            f"plans must fit in this computer's {there / GIB:.3g} GiB of memory, got {sizes}{seeds}, which need at "
            f"least {needed / GIB:.3g} GiB. Lower the largest of these"
        )


def require_data_room(examples: int, features: int) -> None:
    """Raise Refusal if a dataset that is sampled needs more memory than this computer has.

    Args:
        examples: number of examples, with those of the test set.
    """
    needed, there = OF_NUMBER * examples * features, memory()
    if needed > there:
        raise Refusal(
            f"data must fit in this computer's {there / GIB:.3g} GiB of memory, got {short(examples)} examples of "
            f"{short(features)} features, which need at least {short(needed // GIB)} GiB. Lower the larger of these"
        )


def require_state_room(needed: int, machines: int, devices: Sequence[Any]) -> None:
    """Raise Refusal if the states that machines keep between rounds need more memory than there is.

    Args:
        needed: bytes of the states on one device.
        machines: number of machines whose states are on one device.
        devices: `jax.Device`s of the run.
    """
    there = room_of(devices)
    if needed > there:
        name = devices[0].device_kind if device_memory(devices[0]) < inf else "this computer"
        raise Refusal(
            f"client state must fit in {there / GIB:.3g} GiB of memory ({name}), got {needed} bytes for {machines} "
            f"machines ({needed / GIB:.3g} GiB) on one device. Use fewer machines, a smaller model, or more devices"
        )


def room_of(devices: Sequence[Any]) -> float:
    """Return the least memory that `jax.Device`s report, in bytes.

    If none reports any, as CPUs do, it is an equal share of this computer's memory.
    """
    there = min(map(device_memory, devices))
    return memory() / len(devices) if there == inf else there


def memory() -> float:
    """Return this computer's memory in bytes, or infinity if it is unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return inf
