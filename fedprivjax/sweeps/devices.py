"""Spreading a chunk of a sweep over devices."""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedprivjax.checks.refusal import Refusal

AXIS = "runs"


class Spread(NamedTuple):
    """A mesh, and whether a chunk's draws, rather than the members that share them, divide over it."""

    mesh: Mesh
    by_draw: bool


def spread(mesh: Mesh | None, sizes: tuple[int, int]) -> Spread | None:
    """How a chunk of (draws, members) divides over devices; None for one device.

    Without a mesh all devices are taken, where the chunk divides over them.

    Raises:
        Refusal: a mesh with several axes, or one over which neither draws nor members divide.
    """
    given = mesh is not None
    # a mesh made anew has axes of the kind that shard_map divides, whatever kind the user's are
    mesh = Mesh(np.array(jax.devices()), (AXIS,)) if mesh is None else Mesh(mesh.devices, mesh.axis_names)
    if len(mesh.axis_names) != 1:
        raise Refusal(f"mesh must have one axis, got {mesh.axis_names}")
    divides = [size % mesh.size == 0 for size in sizes]
    if given and not any(divides):
        raise Refusal(f"a chunk's draws ({sizes[0]}) or members ({sizes[1]}) must divide over {mesh.size} devices")
    return None if mesh.size == 1 or not any(divides) else Spread(mesh, divides[0])


def over_devices(function, spread: Spread | None):
    """`function(members, by_draw, both, shared, member_ids)` of a chunk, divided over a mesh.

    Args:
        function: of what has leaves [draws, members, ...], [draws, ...], [draws, members, ...], no such axis, and
            [members]; it returns leaves [draws, members, ...].
    """
    if spread is None:
        return function
    (axis,) = spread.mesh.axis_names
    both, draw, ids = PartitionSpec(axis), PartitionSpec(axis), PartitionSpec()
    if not spread.by_draw:
        both, draw, ids = PartitionSpec(None, axis), PartitionSpec(), PartitionSpec(axis)
    specs = (both, draw, both, PartitionSpec(), ids)
    return jax.shard_map(function, mesh=spread.mesh, in_specs=specs, out_specs=both, check_vma=False)
