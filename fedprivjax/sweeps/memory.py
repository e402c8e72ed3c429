"""Chunks of a sweep: sizes that fit a budget, their distribution over devices, and the room for one on an accelerator.

The memory of a chunk's compiled program is logged, and refused if it is not free.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.chunked_sums import CHUNK_NUMBERS
from fedprivjax.engine.client_metrics import CLIENT
from fedprivjax.engine.hosts import require_all_hosts, together
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.segments import BLOCK
from fedprivjax.method.division import part_of_size
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.seeds import round_keys
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.problem.devices import (
    GIB,
    MACHINES,
    RUNS,
    as_mesh,
    bytes_on_device,
    device_memory,
    platform,
    specs_of,
)
from fedprivjax.problem.problem import numbers_of_one
from fedprivjax.problem.random_keys import random_key

if TYPE_CHECKING:  # its module imports this one
    from fedprivjax.sweeps.prepare import ReadySweep

MEMORY_BUDGET = 2 * 2**30  # bytes of a chunk on a device
MIN_CHUNKS = 64  # of a sweep with as many runs, so that 64 processes can share it and a stopped one loses little
USABLE = 0.9  # of the memory that a device reports as free
log = logging.getLogger("fedprivjax")


class Spread(NamedTuple):
    """A distribution of a chunk over devices.

    Attributes:
        mesh: devices with the axes "runs" and "machines".
        by_draw: True if the chunk's draws are divided over "runs", False if the configurations are.
    """

    mesh: Mesh
    by_draw: bool

    @property
    def devices(self) -> int:
        """Number of parts that the draws or the configurations are divided into."""
        return self.mesh.shape[RUNS]

    def padded(self, draws: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of a chunk with the last repeated, so that every device has equally many runs."""
        missing = (0, -(draws if self.by_draw else columns).size % self.devices)
        return (np.pad(draws, missing, "edge"), columns) if self.by_draw else (draws, np.pad(columns, missing, "edge"))


def sweep_mesh(mesh: Mesh | Mapping[str, int] | None, *, local: bool = False) -> Mesh:
    """Return the mesh of a sweep, with the axes "runs" and "machines". Without one, runs are divided over all devices.

    Args:
        local: True to use this process's devices only if no mesh is given.

    Raises:
        Refusal: if the mesh has other axes.

    >>> dict(sweep_mesh(None).shape) == {"runs": jax.device_count(), "machines": 1}
    True
    """
    found = as_mesh(mesh)
    every = jax.local_devices() if local else jax.devices()
    found = Mesh(np.array(every)[:, None], (RUNS, MACHINES)) if found is None else found
    require_all_hosts(found)
    return found


def one_run(mesh: Mesh) -> Mesh | None:
    """Return the mesh that one run of a sweep is divided over, or None for one device."""
    return None if mesh.shape[MACHINES] == 1 else Mesh(mesh.devices[:1], mesh.axis_names)


def spread(mesh: Mesh, sizes: tuple[int, int]) -> Spread | None:
    """Return the distribution over devices of a chunk of (draws, configurations), or None for one device.

    The one is divided that needs less padding: the draws, whose noise its configurations share, if both need the same.
    """
    idle = [-size % mesh.shape[RUNS] / size for size in sizes]
    return None if mesh.size == 1 else Spread(mesh, idle[0] <= idle[1])


def over_devices(function, spread: Spread | None):
    """Return `function(configurations, by_draw, both, shared, ids)` of a chunk, divided over a mesh.

    Args:
        function: function of arguments with leaves [draws, configurations, ...], [draws, ...],
            [draws, configurations, ...], without these axes, and [draws, configurations]. It returns leaves
            [draws, configurations, ...], which are replicated if the devices belong to several processes.
    """
    if spread is None:
        return function
    axis, everywhere = 0 if spread.by_draw else 1, PartitionSpec()
    several = together(spread.mesh)  # no process can read the others' devices
    both, draw = PartitionSpec(RUNS), PartitionSpec(RUNS)
    if not spread.by_draw:
        both, draw = PartitionSpec(None, RUNS), everywhere

    def call(configurations, drawn, host_noises, problem, ids):
        leaves, tree = jax.tree.flatten(problem)

        def on_device(configurations, drawn, host_noises, leaves, ids):
            values = function(configurations, drawn, host_noises, jax.tree.unflatten(tree, leaves), ids)
            if not several:
                return values
            return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, RUNS, axis=axis, tiled=True), values)

        specs, out = (both, draw, both, specs_of(problem), both), everywhere if several else both
        mapped = jax.shard_map(on_device, mesh=spread.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return mapped(configurations, drawn, host_noises, leaves, ids)

    return call


def chunk_sizes(
    start: ReadyRun,
    runs: tuple[int, int],
    budget: int,
    devices: int = 1,
    devices_of_run: int = 1,
    *,
    keep: bool = False,
    min_chunks: int = MIN_CHUNKS,
) -> tuple[int, int]:
    """Return the numbers of draws and configurations of a chunk that needs at most about `budget` bytes per device.

    The draws divide over the devices if there are enough, otherwise the configurations. On a CPU, a chunk has one run
    on each device if machines are computed one after another, see `machines_at_once`. The sizes follow from the
    arguments alone, so that any number of processes, at any time, computes the same chunks, with equal bits.

    Args:
        start: one prepared run of the sweep.
        runs: total numbers of draws and of configurations that share one.
        devices: number of devices that the runs are divided over.
        devices_of_run: number of devices that the machines of one run are divided over.
        keep: whether parameters are kept.
        min_chunks: smallest number of chunks, see `divided`.

    Raises:
        ValueError: if the budget is too small for one run.
    """
    per_draw, per_configuration = run_bytes(start, devices_of_run, keep=keep)
    if not per_draw + per_configuration <= budget:
        raise Refusal(f"memory_budget must be at least {per_draw + per_configuration} bytes for one run, got {budget}")
    over_draws = devices if runs[0] >= devices else 1
    over_configurations = devices if over_draws == 1 else 1
    if _one_by_one(start):
        return over_draws, over_configurations
    local = _ceil(runs[0], over_draws), _ceil(runs[1], over_configurations)
    configurations = min(local[1], (budget - per_draw) // per_configuration)
    draws = min(local[0], budget // (per_draw + configurations * per_configuration))
    sizes = over_draws * _even(local[0], draws), over_configurations * _even(local[1], configurations)
    return divided(sizes, runs, min_chunks, (over_draws, over_configurations))


def _one_by_one(start: ReadyRun) -> bool:
    """Return True if the local work of two machines is not computed at once, on a CPU."""
    local = getattr(start.protocol.rounds, "local", None)
    return platform() == "cpu" and local is not None and local.together(start.problem, 2, start.plan.width) == 1


def chunks(runs: tuple[int, int], sizes: tuple[int, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield index arrays (draws, configurations) of every chunk, of equal sizes. Short chunks repeat the last index.

    >>> [(list(map(int, s)), list(map(int, m))) for s, m in chunks((3, 1), (2, 1))]
    [([0, 1], [0]), ([2, 2], [0])]
    """
    for row in range(0, runs[0], sizes[0]):
        for column in range(0, runs[1], sizes[1]):
            yield (
                np.minimum(np.arange(row, row + sizes[0]), runs[0] - 1),
                np.minimum(np.arange(column, column + sizes[1]), runs[1] - 1),
            )


def divided(
    sizes: tuple[int, int], runs: tuple[int, int], least: int, one: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """Return chunk sizes, at most `sizes`, with at least `least` chunks if there are as many runs for each device.

    The draws are divided first, since the configurations of a draw share its noise. With fewer runs, a chunk has all
    configurations of one draw on each device, as far as `sizes` allow.

    Args:
        one: numbers of draws and of configurations of a chunk with one run on each device. Sizes are multiples of it.

    >>> divided((100, 24), (100, 24), least=64), divided((8, 12), (8, 12), least=64), divided((4, 3), (4, 3), least=64)
    ((1, 24), (1, 1), (1, 3))
    """
    axes = (0, 1) if runs[0] * runs[1] >= least * one[0] * one[1] else (0,)
    found = list(sizes)
    for axis in axes:
        while _ceil(runs[0], found[0]) * _ceil(runs[1], found[1]) < least and found[axis] > one[axis]:
            found[axis] = _ceil(found[axis] // one[axis], 2) * one[axis]
    return found[0], found[1]


def run_bytes(start: ReadyRun, devices: int = 1, *, keep: bool = False) -> tuple[int, int]:
    """Estimate the bytes of a draw and of one of its configurations, from the protocol's and mechanism's statements.

    Arguments count twice, because those of the next chunk are prepared while a chunk is computed. Computed arrays count
    once, because a device computes one chunk at a time.

    Args:
        devices: number of devices that the run's machines are divided over. The bytes are those of one device.
        keep: whether parameters are kept. They count twice, because a chunk is copied while the next is computed.
    """
    protocol, problem, size = start.protocol, start.problem, start.static.size
    d, (_, per_round, rounds), part = problem.dimension, size, part_of_size(size, devices)
    example = floats_of(lambda: problem.take(0, 0))
    tested = 0 if problem.test is None else jax.tree.leaves(problem.test)[0].shape[0]
    first_leaf = jax.tree.leaves(problem.start)[0]
    scores = first_leaf.shape[0] if first_leaf.ndim > 1 else 1
    slots = per_round * start.plan.width
    block = min(BLOCK, rounds) * max(d, numbers_drawn(start))
    drawn = rounds * (6 * per_round + 2 * slots) + 3 * block + 2 * slots * example
    records = part.per_round * start.plan.width
    written_out = costs_of(protocol).vectors_in_memory(problem, part, records)
    way = 0 if problem.model.factored else numbers_of_one(problem)  # intermediate numbers of one record in a network
    computed = written_out if privacy_of(protocol).clip is not None else records
    messages = 4 * written_out * d + 2 * records * scores + 2 * computed * way
    state = floats_of(lambda: protocol.init(problem, part, random_key(0)))
    noise_state = floats_of(lambda: protocol.rounds.noise_state(d, size))
    host_noise = _bytes(start.host_noise)
    inputs = 4 * rounds * (3 * per_round + 2 * slots) + _bytes(start.mechanism)  # without drawing secret samples
    seen = max(tested, problem.examples if problem.stored else 0)
    evaluated = max(3 * tested * scores, 2 * min(CHUNK_NUMBERS, seen * way))
    vectors = sum(metric.axis == CLIENT for metric in start.static.metrics) * -(-rounds // start.static.eval_every)
    evaluated += 3 * vectors * (0 if problem.test_clients is None else problem.test_clients.counts.size)
    configuration = (8 if keep else 6) * d + 2 * (state + noise_state) + evaluated + messages
    return 4 * (drawn + start.mechanism.floats(d)) + inputs, 4 * configuration + 2 * host_noise


def numbers_drawn(start: ReadyRun) -> int:
    """Return the number of random numbers that a mechanism samples for one round."""
    mechanism, dimension = start.mechanism, costs_of(start.protocol).message_dimension(start.problem)
    first = jax.tree.map(lambda leaf: leaf[:1], mechanism.inputs)

    def draw():
        key = random_key(0)
        keys = round_keys(key, np.ones(1, np.int32))
        return mechanism.draw(mechanism.init(dimension, key), first, keys, dimension)[1]

    return floats_of(draw)


def _bytes(tree: Any) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))


def floats_of(make: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(jax.eval_shape(make)))


def _even(total: int, most: int) -> int:
    """Return the chunk size, at most `most`, that divides `total` into nearly equal chunks."""
    return _ceil(total, _ceil(total, most))


def _ceil(total: int, size: int) -> int:
    return -(-total // size)


def require_room(start: "ReadySweep", compiled: Callable[[tuple[int, int]], Any]) -> None:
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


def _largest_budget(start: "ReadySweep", factor: float) -> int:
    """Return the budget of chunks of `factor` times the bytes, or of one run on each device."""
    over_runs, over_machines = start.mesh.devices.shape
    per_draw, per_configuration = run_bytes(start.first, over_machines, keep=bool(start.keep))
    estimate = start.sizes[0] * (per_draw + start.sizes[1] * per_configuration) / over_runs
    return max(per_draw + per_configuration, int(factor * estimate))


def peak_bytes(program: Any, start: "ReadySweep") -> int:
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
