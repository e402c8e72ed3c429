"""Samplers of the normals from which a protocol computes a momentum's noise, a `Correlated` in each round."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.factors.interface import Correlated
from fedprivjax.noise.factors.reduced import Normals, empty
from fedprivjax.noise.factors.tree import window
from fedprivjax.noise.interface import Fresh, Mechanism, PerMachine, normals

MAX_LEVELS = 64  # largest depth of a tree


class WindowInputs(NamedTuple):
    """Per-round inputs of `Windows`, known before the run.

    Attributes:
        round: number of the round, from 1; int [rounds].
        relative: relative standard deviation of the noise, [rounds], or [rounds, per_round] if participants have
            separate trees.
        place: index of each participant's trees, int [rounds, per_round], or None if all share one set of trees.
    """

    round: Any
    relative: Any
    place: Any = None


@struct.dataclass
class Streamed(Mechanism):
    """Sampler of independent normals in each round, from which the noise in a momentum is then computed.

    Attributes:
        inputs: inputs of the source mechanism.
        source: class of the source mechanism: one sample per round for all machines (`Fresh`), or one per machine.
    """

    inputs: Any
    source: type[Fresh] | type[PerMachine] = struct.field(pytree_node=False, default=Fresh)

    @property
    def name(self) -> str:
        return f"streamed {self._source.name}"

    @property
    def _source(self) -> Mechanism:
        return self.source(self.inputs)

    def draw(self, state, inputs, keys, dimension: int):
        return self._source.draw(state, inputs, keys, dimension)

    def aggregate(self, noise: Correlated):
        return noise.now

    def message_noise(self, memory, inputs, key, dimension: int):
        return self._source.message_noise(memory, inputs, key, dimension)

    def floats(self, dimension: int) -> int:
        return self._source.floats(dimension)


@struct.dataclass
class Windows(Mechanism):
    """Sampler of the normals that `ReducedTrees` needs in each round.

    The normals belong to the nodes of binary trees that cover the last N = `epoch` rounds. They are not stored, but
    computed again from each node's random key. A round samples `2·(2·⌈log₂(N + 1)⌉) + 1` vectors. If the inputs have a
    `place`, every machine has its own trees, and the aggregate contains the mean of their noise.

    Attributes:
        epoch: N, number of rounds of an epoch.
    """

    past_end = True
    inputs: WindowInputs
    epoch: int = struct.field(pytree_node=False)

    def init(self, dimension: int, key):
        return self.message_memory(dimension, key)

    def message_memory(self, dimension: int, key):
        """Return the key from which all nodes' keys are derived."""
        return jax.random.fold_in(key, 0)  # rounds are numbered from 1: key 0 is free

    def message_noise(self, memory, inputs: WindowInputs, key, dimension: int):
        """Return each participant's normals, leaves [per_round, ...], or None if all share one set of trees."""
        if inputs.place is None:
            return memory, None

        def one(place, relative):
            own = jax.random.fold_in(memory, place), jax.random.fold_in(key, place)
            return self._of_round(*own, inputs.round, relative, dimension)

        return memory, jax.vmap(one)(inputs.place, inputs.relative)

    def draw(self, state, inputs: WindowInputs, keys, dimension: int):
        def one(_, step):
            inputs, key = step
            own = self.message_noise(state, inputs, key, dimension)[1]
            if own is None:
                return (), self._of_round(state, key, inputs.round, inputs.relative, dimension)
            mean = own._replace(nodes=jnp.mean(own.nodes, axis=0), residual=jnp.mean(own.residual, axis=0))
            return (), mean._replace(age=own.age[0], later=own.later[0])

        return state, jax.lax.scan(one, (), (inputs, keys))[1]

    def aggregate(self, noise: Correlated):
        return noise.now

    def floats(self, dimension: int) -> int:
        machines = 1 if self.inputs.place is None else self.inputs.place.shape[-1]
        return 3 * machines * (4 * self.epoch.bit_length() + 1) * dimension

    def _of_round(self, key, round_key, round, relative, dimension: int) -> Normals:
        level, index, filled = window(round, self.epoch, jnp)
        end = (index + 1) << level
        trees, slots = np.divmod(np.arange(2 * level.size), level.size)
        own = jax.vmap(lambda *node: node_key(key, *node))(trees, level[slots], index[slots])
        keys = jnp.concatenate([own, round_key[None]])
        drawn = relative * jax.vmap(lambda key: normals(key, (dimension,)))(keys)
        nodes = jnp.where(filled[slots, None], drawn[:-1], 0.0).reshape(2, level.size, dimension)
        residual = jnp.where(empty(round, self.epoch), 0.0, drawn[-1])
        return Normals(nodes, round - end, end > 2 * self.epoch, residual)


def node_key(key, tree, level, index) -> jax.Array:
    """Return the key of a tree's node [index·2^level + 1, (index + 1)·2^level]."""
    return jax.random.fold_in(jax.random.fold_in(key, MAX_LEVELS * tree + level), index)
