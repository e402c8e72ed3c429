"""Distribution of a chunk of a sweep over devices."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedprivjax.engine.hosts import require_all_hosts, together
from fedprivjax.problem.devices import MACHINES, RUNS, as_mesh, specs_of


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
        if self.by_draw:
            return _padded(draws, self.devices), columns
        return draws, _padded(columns, self.devices)


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


def _padded(indices: np.ndarray, devices: int) -> np.ndarray:
    return np.append(indices, np.repeat(indices[-1:], -indices.size % devices))
