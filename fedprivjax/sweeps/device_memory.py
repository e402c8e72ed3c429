"""Chunk sizes on an accelerator, from the memory of the compiled program."""

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import Any

import jax

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.size_limits import GIB, device_memory
from fedprivjax.problem.devices import RUNS, bytes_on_device
from fedprivjax.sweeps.memory import chunk_sizes, run_bytes
from fedprivjax.sweeps.prepare import ReadySweep

USABLE = 0.9  # of the memory that a device reports as free
SPARE = 0.95  # of the budget, for a chunk of corrected sizes
TRIES = 4  # largest number of compiled chunk sizes
Sizes = tuple[int, int]
log = logging.getLogger("fedprivjax")


def fitted(start: ReadySweep, compiled: Callable[[Sizes], Any]) -> ReadySweep:
    """Return the sweep with chunks whose compiled program fits the memory of the devices, and log its peak.

    Unchanged on a CPU, which reports no memory: its chunks follow the estimate of `run_bytes`.

    Args:
        compiled: function that returns the compiled program of a chunk of (draws, configurations).

    Raises:
        Refusal: if one run on each device needs more than the budget or the free memory.
    """
    devices = [device for device in start.mesh.devices.flat if device.process_index == jax.process_index()]
    free = min(map(free_memory, devices))
    if free == inf:
        return start
    budget = min(start.memory_budget, int(USABLE * free))
    sizes, taken = fitted_sizes(start, budget, lambda sizes: peak_bytes(compiled(sizes), start))
    number = prod(-(-runs // size) for runs, size in zip(start.runs, sizes, strict=True))
    log.info(
        f"{start.first.protocol.name}: {number} chunks of {sizes[0]} × {sizes[1]} runs need {taken / GIB:.3g} GiB on "
        f"each of {start.mesh.size} devices ({devices[0].device_kind}, {free / GIB:.3g} GiB free)"
    )
    return replace(start, sizes=sizes)


def fitted_sizes(start: ReadySweep, budget: int, measure: Callable[[Sizes], int]) -> tuple[Sizes, int]:
    """Return the sizes of a chunk that needs at most `budget` bytes on a device, and the bytes that it needs.

    The first sizes are those of the sweep. Further sizes follow from the estimate, scaled to the measured bytes. They
    grow as long as they fit.

    Args:
        measure: function that returns the bytes of a chunk of (draws, configurations) on a device.

    Raises:
        Refusal: if one run on each device needs more.
    """
    devices = start.mesh.shape[RUNS]
    by_draw, by_configuration = (size % devices == 0 for size in start.sizes)
    smallest = (devices, 1) if by_draw else (1, devices if by_configuration else 1)
    sizes, fits, taken = start.sizes, None, 0
    for left in reversed(range(TRIES)):
        taken = measure(sizes)
        if taken <= budget:
            fits = sizes, taken
        elif fits or sizes == smallest:
            break
        other = _scaled(start, sizes, SPARE * budget / taken)
        if fits and prod(other) <= prod(sizes):
            break
        sizes = other if fits or (prod(other) < prod(sizes) and left > 1) else smallest
    if fits is None:
        raise Refusal(
            f"memory_budget must be at least {taken} bytes for one run on each device, got {budget}, which is at most "
            f"90% of the free memory. Raise it, or use fewer records in a message"
        )
    return fits


def peak_bytes(program: Any, start: ReadySweep) -> int:
    """Return the bytes that a chunk's program needs on a device, with arguments and results of two chunks.

    The next chunk is dispatched before a chunk is copied. The problem is held once.
    """
    found = program.memory_analysis()
    problem = sum(map(bytes_on_device, jax.tree.leaves(start.problem)))
    own = max(0, found.argument_size_in_bytes - problem)
    return int(found.temp_size_in_bytes + problem + 2 * (own + found.output_size_in_bytes))


def free_memory(device: Any) -> float:
    """Return the bytes that a device reports as free, or infinity if it reports none.

    With several processes it is the device's limit, since all processes need chunks of equal sizes.
    """
    limit = device_memory(device)
    taken = 0 if limit == inf or jax.process_count() > 1 else (device.memory_stats() or {}).get("bytes_in_use", 0)
    return limit - taken


def _scaled(start: ReadySweep, sizes: Sizes, factor: float) -> Sizes:
    """Return the sizes of a chunk with `factor` times the estimated bytes, or those of one run on each device."""
    over_runs, over_machines = start.mesh.devices.shape
    per_draw, per_configuration = run_bytes(start.first, over_machines, keep=bool(start.keep))
    estimate = sizes[0] * (per_draw + sizes[1] * per_configuration) / over_runs
    budget = max(per_draw + per_configuration, int(factor * estimate))
    return chunk_sizes(start.first, start.runs, budget, over_runs, over_machines, keep=bool(start.keep))
