"""Memory of a chunk on an accelerator, from its compiled program: logged, and refused if it is not free."""

import logging
from collections.abc import Callable
from math import inf, prod
from typing import Any

import jax

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.size_limits import GIB, device_memory
from fedprivjax.problem.devices import RUNS, bytes_on_device
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.prepare import ReadySweep

USABLE = 0.9  # of the memory that a device reports as free
log = logging.getLogger("fedprivjax")


def require_room(start: ReadySweep, compiled: Callable[[tuple[int, int]], Any]) -> None:
    """Log the bytes of a chunk's compiled program, and raise Refusal if they are not free on this process's devices.

    A CPU reports no memory, and nothing is compiled. The sizes of a chunk do not follow the free memory, which is
    different on another day.

    Args:
        compiled: function that returns the compiled program of a chunk of (draws, configurations).
    """
    devices = [device for device in start.mesh.devices.flat if device.process_index == jax.process_index()]
    free = min(map(free_memory, devices))
    if free == inf:
        return
    sizes, taken, room = start.sizes, peak_bytes(compiled(start.sizes), start), int(USABLE * free)
    number = prod(-(-runs // size) for runs, size in zip(start.runs, sizes, strict=True))
    log.info(
        f"{start.first.protocol.name}: {number} chunks of {sizes[0]} × {sizes[1]} runs need {taken / GIB:.3g} GiB on "
        f"each of {start.mesh.size} devices ({devices[0].device_kind}, {free / GIB:.3g} GiB free)"
    )
    if taken <= room:
        return
    got = f"got {start.memory_budget}: a chunk of {sizes[0]} × {sizes[1]} runs needs {taken} bytes"
    if prod(sizes) <= start.mesh.shape[RUNS]:
        raise Refusal(
            f"memory_budget must leave room for one run on each device, {got}. Use fewer records in a message"
        )
    raise Refusal(
        f"memory_budget must be at most {_largest_budget(start, room / taken)} bytes for {room} free ones, {got}"
    )


def _largest_budget(start: ReadySweep, factor: float) -> int:
    """Return the budget of chunks of `factor` times the bytes, or of one run on each device."""
    over_runs, over_machines = start.mesh.devices.shape
    per_draw, per_configuration = run_bytes(start.first, over_machines, keep=bool(start.keep))
    estimate = start.sizes[0] * (per_draw + start.sizes[1] * per_configuration) / over_runs
    return max(per_draw + per_configuration, int(factor * estimate))


def peak_bytes(program: Any, start: ReadySweep) -> int:
    """Return the bytes that a chunk's program needs on a device, with arguments and results of two chunks.

    The next chunk is dispatched before a chunk is copied. The problem is held once.
    """
    found = program.memory_analysis()
    problem = sum(map(bytes_on_device, jax.tree.leaves(start.problem)))
    own = max(0, found.argument_size_in_bytes - problem)
    return int(found.temp_size_in_bytes + problem + 2 * (own + found.output_size_in_bytes))


def free_memory(device: Any) -> float:
    """Return the bytes that a device reports as free, or infinity if it reports none."""
    limit = device_memory(device)
    return limit if limit == inf else limit - (device.memory_stats() or {}).get("bytes_in_use", 0)
