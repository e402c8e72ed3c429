"""Devices of a mesh: a program is mapped over them, and stored data are divided over them.

Every device computes the whole program, but for sums of which it computes a part. Parts are added over the axis
"machines" of the mesh. The axis "runs" belongs to sweeps.

Sizes are compared with the memory of devices and of this computer by arithmetic alone, before anything is sampled,
calibrated or compiled.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, short

COUNTED = 2**31  # machines, rounds and records are int32
OF_MACHINE, OF_SLOT, OF_RECORD = 64, 48, 8  # bytes on the host per item while a run is prepared
OF_NUMBER = 12  # bytes on the host per feature of an example: sampled in float64, stored in float32
OF_DRAW = 2**14  # further bytes per seed for its plan and noise
GIB = 2**30
RUNS, MACHINES = "runs", "machines"
REPLICATED, DIVIDED = PartitionSpec(), PartitionSpec(MACHINES)
PLATFORM: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """Return the platform that programs are traced for, such as "cpu" or "gpu": jax's default, or `programs_for`'s."""
    return PLATFORM.get() or jax.default_backend()


@contextmanager
def programs_for(platform: str) -> Iterator[None]:
    """Prepare and trace programs for another platform than jax's default. Nothing of the block may be traced before.

    >>> with programs_for("gpu"):
    ...     platform()
    'gpu'
    """
    token = PLATFORM.set(platform)
    try:
        yield
    finally:
        PLATFORM.reset(token)


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


def as_mesh(mesh: Mesh | Mapping[str, int] | None) -> Mesh | None:
    """Return a mesh with the axes "runs" and "machines", of the type that `shard_map` divides.

    Args:
        mesh: a mesh with one of these axes or both, or the number of devices along each, or None.

    Raises:
        Refusal: if the mesh has other axes, or more devices than there are.

    >>> as_mesh({"machines": 1}).axis_names
    ('runs', 'machines')
    """
    if mesh is None:
        return None
    names = tuple(mesh) if isinstance(mesh, Mapping) else getattr(mesh, "axis_names", ())
    if not names or not set(names) <= {RUNS, MACHINES}:
        got = f"the axes {names}" if names else repr(mesh)
        remedy = "Give the number of devices along each, such as {'runs': 2, 'machines': 4}"
        raise Refusal(f"mesh must have the axes {RUNS!r}, {MACHINES!r}, or both, got {got}. {remedy}")
    devices = _first_devices(mesh) if isinstance(mesh, Mapping) else mesh.devices
    devices = devices.T if names == (MACHINES, RUNS) else devices
    missing = tuple(place for place, name in enumerate((RUNS, MACHINES)) if name not in names)
    return Mesh(np.expand_dims(devices, missing), (RUNS, MACHINES))


def _first_devices(sizes: Mapping[str, int]) -> np.ndarray:
    """Return the first devices in the shape of the given sizes."""
    shape, every = tuple(sizes.values()), jax.devices()
    for name, size in sizes.items():
        require_at_least(f"mesh.{name}", size, 1)
    if prod(shape) > len(every):
        remedy = "On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=8 simulates eight"
        raise Refusal(f"mesh must have at most as many devices as jax finds, {len(every)}, got {dict(sizes)}. {remedy}")
    return np.reshape(every[: prod(shape)], shape)


def device_memory(device: Any) -> float:
    """Return the bytes that a run may take on a `jax.Device`, or infinity if it does not report them."""
    return (device.memory_stats() or {}).get("bytes_limit", inf)


def mapped_with_carry(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Return a function of (arguments, carry, *others), computed by every device, that returns (carry, results).

    Every device keeps its own carry: outside, its leaves have a leading axis of devices. The others are replicated, but
    for `DividedRows` among the arguments.
    """

    def call(arguments, carry, *others):
        leaves, tree = jax.tree.flatten(arguments)

        def on_device(leaves, carry, *others):
            own = jax.tree.map(lambda leaf: leaf[0], carry)
            carry, results = function(jax.tree.unflatten(tree, leaves), own, *others)
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], carry), results

        specs = specs_of(arguments), DIVIDED, *[REPLICATED] * len(others)
        out_specs = DIVIDED, REPLICATED
        program = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)
        return program(leaves, carry, *others)

    return call


def devices() -> int:
    """Return the number of devices that machines are divided over where this is traced: 1 outside of a divided run."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[MACHINES] if MACHINES in mesh.manual_axes else 1


def added(sums: Any) -> Any:
    """Return the sums of all devices."""
    return sums if devices() == 1 else jax.lax.psum(sums, MACHINES)


@struct.dataclass
class DividedRows:
    """Stored examples of which every device holds a block of consecutive rows.

    Attributes:
        rows: a pytree with leaves [rows, ...]: this device's rows in a mapped function, all rows outside. The last row
            is repeated to make the blocks equal.
        count: number of examples.
    """

    rows: Any
    count: int = struct.field(pytree_node=False)

    def take(self, samples: Any, machine: Any = 0) -> Any:
        """Return examples with leaves [..., per-example shape], from the devices that hold them.

        Every device must call it, with as many indices as the others.
        """
        samples = jnp.asarray(samples)
        every = jax.lax.all_gather(samples.reshape(-1), MACHINES, tiled=True)

        def one(rows):
            place = every - jax.lax.axis_index(MACHINES) * rows.shape[0]
            here = (place >= 0) & (place < rows.shape[0])
            found = rows[jnp.where(here, place, 0)]
            found = jnp.where(here.reshape(-1, *[1] * (rows.ndim - 1)), found, jnp.zeros((), rows.dtype))
            own = jax.lax.psum_scatter(found, MACHINES, tiled=True)
            return own.reshape(*samples.shape, *rows.shape[1:])

        return jax.tree.map(one, self.rows)

    @property
    def held(self) -> jax.Array:
        """1 for this device's examples and 0 for added rows, [rows]."""
        rows = jax.tree.leaves(self.rows)[0].shape[0]
        return (jax.lax.axis_index(MACHINES) * rows + jnp.arange(rows) < self.count).astype(jnp.float32)


def divided_rows(examples: Any, mesh: Mesh) -> DividedRows:
    """Return stored examples with their rows divided over the devices of a mesh."""
    count, devices = number_of(examples), mesh.shape[MACHINES]

    def one(leaf):
        rows = np.asarray(leaf)
        rows = np.concatenate([rows, np.repeat(rows[-1:], -count % devices, axis=0)])
        return jax.make_array_from_callback(rows.shape, NamedSharding(mesh, DIVIDED), lambda place: rows[place])

    return DividedRows(jax.tree.map(one, examples), count)


def bytes_on_device(leaf: Any) -> int:
    """Return the bytes that one device holds of an array."""
    shape = leaf.sharding.shard_shape(leaf.shape) if isinstance(leaf, jax.Array) else np.shape(leaf)
    return prod(shape) * jnp.result_type(leaf).itemsize


def number_of(examples: Any) -> int:
    """Return the number of stored examples."""
    return examples.count if isinstance(examples, DividedRows) else jax.tree.leaves(examples)[0].shape[0]


def specs_of(arguments: Any) -> list[PartitionSpec]:
    """Return how each leaf of a mapped function's arguments is divided."""
    divided = lambda node: isinstance(node, DividedRows)  # noqa: E731
    nodes = jax.tree.leaves(arguments, is_leaf=divided)
    each = [[DIVIDED] * len(jax.tree.leaves(node)) if divided(node) else [REPLICATED] for node in nodes]
    return [spec for specs in each for spec in specs]
