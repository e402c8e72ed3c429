"""Division of a round's slots, and of the machines' states, over the devices of a mesh.

Every device computes the messages of its part of a round's slots. Between rounds, it holds the states of a block of
consecutive machines. A slot's state is sent to the device that computes the slot, and the new state to the device that
holds it. Random numbers are those of one device: a slot's depend on its number alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.plan.schedule import Size
from fedprivjax.problem.devices import MACHINES, DividedRows, devices


def part_of_size(size: Size, devices: int) -> Size:
    """Return the numbers of machines whose states are on one of some devices, and of the slots that it computes.

    The last devices may have fewer.

    >>> part_of_size(Size(machines=10, per_round=6, rounds=5), 4)
    Size(machines=3, per_round=2, rounds=5)
    """
    return size._replace(machines=-(-size.machines // devices), per_round=-(-size.per_round // devices))


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


def own_records(pool: Any, samples: Any, machine: Any) -> tuple[Any, Any]:
    """Return the pool and indices into it, or, if the pool is divided, the slots' own records and indices into them.

    Records that other devices hold are thus sent before the slots' local work, in which devices do not meet.

    Args:
        samples, machine: indices of every slot's records, [slots, ...], and of its machine, [slots].
    """
    if not isinstance(pool, DividedRows):
        return pool, samples
    slots, shape = samples.shape[0], samples.shape[1:]
    records = pool.take(samples.reshape(slots, -1), machine)
    places = jnp.arange(max(1, samples[0].size)).reshape(shape)
    return records, jnp.broadcast_to(places, (slots, *shape))
