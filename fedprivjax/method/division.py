"""Division of a run's machines over the devices of a mesh.

The program is mapped over the mesh. Every device computes all of it but the messages of a round: it computes those of
its part of the round's slots, and the sums are added over the devices once a round. Between rounds, each device holds
the states of a block of consecutive machines. A slot's state is sent to the device that computes the slot, and the new
state to the device that holds it. Random numbers are those of one device: a slot's depend on its number alone.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.schedule import Size

RUNS, MACHINES = "runs", "machines"
REPLICATED = PartitionSpec()


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
        remedy = f"Use jax.make_mesh((2, 4), ({RUNS!r}, {MACHINES!r}))"
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
        raise Refusal(f"mesh must have at most {len(every)} devices, all that jax finds, got {dict(sizes)}. {remedy}")
    return np.reshape(every[: prod(shape)], shape)


def part_of_size(size: Size, devices: int) -> Size:
    """Return the numbers of machines whose states are on one of some devices, and of the slots that it computes.

    The last devices may have fewer.

    >>> part_of_size(Size(machines=10, per_round=6, rounds=5), 4)
    Size(machines=3, per_round=2, rounds=5)
    """
    return size._replace(machines=-(-size.machines // devices), per_round=-(-size.per_round // devices))


def mapped(function: Callable[[Any], Any], mesh: Mesh) -> Callable[[Any], Any]:
    """Return a function of replicated arguments whose machines are divided over a mesh. Its results are replicated."""
    return jax.shard_map(function, mesh=mesh, in_specs=REPLICATED, out_specs=REPLICATED, check_vma=False)


def devices() -> int:
    """Return the number of devices that machines are divided over where this is traced: 1 outside `mapped`."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[MACHINES] if MACHINES in mesh.manual_axes else 1


def is_first() -> Any:
    """Return True on the first device of the mesh, for work that is done once. True outside `mapped`."""
    axes = [name for name in (RUNS, MACHINES) if name in jax.sharding.get_abstract_mesh().manual_axes]
    return sum((jax.lax.axis_index(name) for name in axes), 0) == 0


def part_of(slots: Any, present: Any) -> tuple[Any, Any]:
    """Return this device's part of a round's slots, and which of them are present, 0 for those beyond the last.

    Args:
        slots: a pytree with leaves [count, ...]. Those of the result are [⌈count/devices⌉, ...].
        present: 1 for slots that are present and 0 for the others, [count].
    """
    if devices() == 1:
        return slots, present
    count = present.shape[0]
    size = -(-count // devices())
    place = jax.lax.axis_index(MACHINES) * size + jnp.arange(size)
    slots, present = jax.tree.map(lambda leaf: jnp.asarray(leaf)[jnp.minimum(place, count - 1)], (slots, present))
    return slots, jnp.where(place < count, present, 0.0)


def added(sums: Any) -> Any:
    """Return the sums of all devices."""
    return sums if devices() == 1 else jax.lax.psum(sums, MACHINES)


def gathered(states: Any, machine: Any, present: Any) -> Any:
    """Return the states of this device's slots, leaves [slots, ...], from the devices that hold them.

    Args:
        states: states of the machines that this device holds, leaves [machines, ...].
        machine, present: index of each slot's machine, and 1 if it is present and else 0, [slots].
    """
    if devices() == 1:
        return jax.tree.map(lambda rows: rows[machine], states)
    machine, present = jax.lax.all_gather((machine, present), MACHINES, tiled=True)

    def one(rows):
        if jnp.issubdtype(rows.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(rows)), impl=jax.random.key_impl(rows))
        numbers = rows.astype(jnp.int8) if rows.dtype == bool else rows
        place, here = _held(machine, present, rows.shape[0])
        here = here.reshape(-1, *[1] * (rows.ndim - 1)) > 0
        found = jnp.where(here, numbers[place], jnp.zeros((), numbers.dtype))
        return jax.lax.psum_scatter(found, MACHINES, tiled=True).astype(rows.dtype)

    return jax.tree.map(one, states)


def to_holders(states: Any, machine: Any, present: Any, machines: int) -> tuple[Any, Any, Any]:
    """Return the new states of all devices' slots, leaves [all slots, ...], and where they are on this device.

    Args:
        states, machine, present: those of this device's slots, as in `gathered`.
        machines: number of machines whose states are on one device.

    Returns:
        The states, the index of each one's machine among those that this device holds, and 1 if it holds it, else 0.
    """
    if devices() == 1:
        return states, machine, present
    states, machine, present = jax.lax.all_gather((states, machine, present), MACHINES, tiled=True)
    return states, *_held(machine, present, machines)


def whole(states: Any, machines: int) -> Any:
    """Return the states of all machines, leaves [machines, ...]. XLA leaves this out where it is not used."""
    if devices() == 1:
        return states
    return jax.tree.map(lambda rows: jax.lax.all_gather(rows, MACHINES, tiled=True)[:machines], states)


def _held(machine: Any, present: Any, machines: int) -> tuple[Any, Any]:
    """Return each machine's index among those that this device holds, and 1 if it is present and held here, else 0."""
    place = machine - jax.lax.axis_index(MACHINES) * machines
    here = (place >= 0) & (place < machines)
    return jnp.where(here, place, 0), jnp.where(here, present, 0.0)
