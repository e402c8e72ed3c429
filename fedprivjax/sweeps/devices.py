"""Distribution of a chunk of a sweep over devices."""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedprivjax.checks.refusal import Refusal

AXIS = "runs"


class Spread(NamedTuple):
    """A distribution of a chunk over devices.

    Attributes:
        mesh: one-dimensional mesh of devices.
        by_draw: True if the chunk's draws are divided over the mesh, False if the configurations are.
    """

    mesh: Mesh
    by_draw: bool


def spread(mesh: Mesh | None, sizes: tuple[int, int]) -> Spread | None:
    """Return the distribution over devices of a chunk of (draws, configurations), or None for one device.

    Without a mesh, all devices are used if the chunk divides over them.

    Raises:
        Refusal: if the mesh has several axes, or neither draws nor configurations divide over it.
    """
    given = mesh is not None
    # a new mesh, because shard_map does not divide axes of every type that a user's mesh may have
    mesh = Mesh(np.array(jax.devices()), (AXIS,)) if mesh is None else Mesh(mesh.devices, mesh.axis_names)
    if len(mesh.axis_names) != 1:
        raise Refusal(f"mesh must have one axis, got {mesh.axis_names}")
    divides = [size % mesh.size == 0 for size in sizes]
    if given and not any(divides):
        raise Refusal(f"mesh must divide {sizes[0]} draws or {sizes[1]} configurations, got {mesh.size} devices")
    return None if mesh.size == 1 or not any(divides) else Spread(mesh, divides[0])


def over_devices(function, spread: Spread | None):
    """Return `function(configurations, by_draw, both, shared, ids)` of a chunk, divided over a mesh.

    Args:
        function: function of arguments with leaves [draws, configurations, ...], [draws, ...],
            [draws, configurations, ...], without these axes, and [configurations]. It returns leaves
            [draws, configurations, ...].
    """
    if spread is None:
        return function
    (axis,) = spread.mesh.axis_names
    both, draw, ids = PartitionSpec(axis), PartitionSpec(axis), PartitionSpec()
    if not spread.by_draw:
        both, draw, ids = PartitionSpec(None, axis), PartitionSpec(), PartitionSpec(axis)
    specs = (both, draw, both, PartitionSpec(), ids)
    return jax.shard_map(function, mesh=spread.mesh, in_specs=specs, out_specs=both, check_vma=False)
