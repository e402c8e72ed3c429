"""Division of machines over the devices of a mesh: their states, and the local work of a round's slots.

Each device holds the states of a block of consecutive machines, and computes an equal part of the slots. A part's
states are sent to its device, and all new states to the devices that hold them. Everything else is replicated.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.round import RoundInputs

AXIS = "machines"
DIVIDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


def machines_mesh(mesh: Mesh) -> Mesh:
    """Return a mesh of the same devices whose axis has the type that `shard_map` divides.

    Raises:
        Refusal: unless the mesh has one axis, "machines".

    >>> machines_mesh(jax.make_mesh((1,), ("machines",))).axis_types
    (Auto,)
    """
    names = getattr(mesh, "axis_names", None)
    if names != (AXIS,):
        got = f"the axes {names}" if names else repr(mesh)
        raise Refusal(f"mesh must have one axis, {AXIS!r}, got {got}. Use jax.make_mesh((devices,), ({AXIS!r},))")
    return Mesh(mesh.devices, mesh.axis_names)


def machines_of_one(machines: int, mesh: Mesh | None) -> int:
    """Return the number of machines whose states are on one device. The last devices may have fewer.

    >>> machines_of_one(10, jax.make_mesh((1,), ("machines",))), machines_of_one(10, None)
    (10, 10)
    """
    return machines if mesh is None else -(-machines // mesh.size)


def divided(states: Any, mesh: Mesh) -> Any:
    """Return states with leaves [machines, ...] divided over the devices, in a traced function."""
    return jax.lax.with_sharding_constraint(states, NamedSharding(mesh, DIVIDED))


def over_machines(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Return `function(*shared, states) -> (sums, states)` divided over a mesh. Sums are added over devices.

    Args:
        function: function of replicated arguments, and of one device's states. It calls the other functions here.
    """

    def on_device(shared, states):
        sums, states = function(*shared, states)
        return jax.lax.psum(sums, AXIS), states

    specs = REPLICATED, DIVIDED
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    return lambda *arguments: mapped(arguments[:-1], arguments[-1])


def part_of(slots: tuple[RoundInputs, Any, jax.Array], mesh: Mesh) -> tuple[RoundInputs, Any, jax.Array]:
    """Return this device's part of the slots, leaves [⌈slots/devices⌉, ...]; slots are empty beyond the last."""
    count = slots[0].present.shape[0]
    size = -(-count // mesh.size)
    place = jax.lax.axis_index(AXIS) * size + jnp.arange(size)
    inputs, *others = jax.tree.map(lambda leaf: leaf[jnp.minimum(place, count - 1)], slots)
    return (inputs._replace(present=jnp.where(place < count, inputs.present, 0.0)), *others)


def gathered(states: Any, inputs: RoundInputs) -> Any:
    """Return the states of this device's slots, leaves [slots, ...], from the devices that hold them."""
    everyone = _on_all_devices(inputs)

    def one(rows):
        if jnp.issubdtype(rows.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(rows)), impl=jax.random.key_impl(rows))
        numbers = rows.astype(jnp.int8) if rows.dtype == bool else rows
        held = _held(everyone, rows.shape[0])
        here = held.present.reshape(-1, *[1] * (rows.ndim - 1)) > 0
        found = jnp.where(here, numbers[held.machine], jnp.zeros((), numbers.dtype))
        return jax.lax.psum_scatter(found, AXIS, tiled=True).astype(rows.dtype)

    return jax.tree.map(one, states)


def to_holders(states: Any, inputs: RoundInputs, machines: int) -> tuple[RoundInputs, Any]:
    """Return the new states of all devices' slots, leaves [all slots, ...], and where they are on this device.

    Args:
        machines: number of machines whose states are on one device.
    """
    return _held(_on_all_devices(inputs), machines), jax.lax.all_gather(states, AXIS, tiled=True)


def _on_all_devices(inputs: RoundInputs) -> RoundInputs:
    """Return `machine` and `present` of all devices' slots."""
    machine, present = jax.lax.all_gather((inputs.machine, inputs.present), AXIS, tiled=True)
    return inputs._replace(machine=machine, present=present)


def _held(inputs: RoundInputs, machines: int) -> RoundInputs:
    """Return inputs with indices among the machines that this device holds. The slots of others are empty."""
    place = inputs.machine - jax.lax.axis_index(AXIS) * machines
    here = (place >= 0) & (place < machines)
    return inputs._replace(machine=jnp.where(here, place, 0), present=jnp.where(here, inputs.present, 0.0))
