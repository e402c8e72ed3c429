"""Size limits, checked by arithmetic alone before anything is sampled, calibrated or compiled."""

import os
from collections.abc import Sequence
from math import inf
from typing import Any

from fedprivjax.checks.refusal import Refusal

COUNTED = 2**31  # machines, rounds and records are int32
OF_MACHINE, OF_SLOT, OF_RECORD = 64, 48, 8  # bytes on the host per item while a run is prepared
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
            raise Refusal(f"{name} must be below 2³¹, as int32 counts them, got {size}")


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


def require_state_room(needed: int, machines: int, devices: Sequence[Any]) -> None:
    """Raise Refusal if the states that machines keep between rounds need more memory than there is.

    Args:
        needed: bytes of the states on one device.
        machines: number of machines whose states are on one device.
        devices: `jax.Device`s of the run. The limit is the least memory that they report, or an equal share of this
            computer's memory if none reports any, as CPUs do.
    """
    there, name = min(map(device_memory, devices)), devices[0].device_kind
    if there == inf:
        there, name = memory() / len(devices), "this computer"
    if needed > there:
        raise Refusal(
            f"client state must fit in {there / GIB:.3g} GiB of memory ({name}), got {needed} bytes for {machines} "
            f"machines ({needed / GIB:.3g} GiB) on one device. Use fewer machines, a smaller model, or more devices"
        )


def device_memory(device: Any) -> float:
    """Return the bytes that a run may take on a `jax.Device`, or infinity if it does not report them."""
    return (device.memory_stats() or {}).get("bytes_limit", inf)


def memory() -> float:
    """Return this computer's memory in bytes, or infinity if it is unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return inf
