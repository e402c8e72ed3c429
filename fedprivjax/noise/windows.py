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
    """Per-round inputs of the sampler `Windows`, which follow from the participation schedule.

    Attributes:
        round: number of the round, from 1; int [rounds].
        relative: standard deviation of the noise in units of `noise_std`, [rounds], or [rounds, per_round] if every
            machine has its own trees.
        place: for each participant, the index of its trees, int [rounds, per_round]; None if one set of trees serves
            all machines.
    """

    round: Any
    relative: Any
    place: Any = None


@struct.dataclass
class Streamed(Mechanism):
    """Sampler of each round's independent normals, from which the protocol computes a momentum's noise.

    Attributes:
        inputs: inputs of the class `source`, such as standard deviations in units of `noise_std`.
        source: class that samples the normals: `Fresh` samples one vector per round, `PerMachine` one per machine and
            round.
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
    """Sampler of the normals from which `ReducedTrees` computes the noise of a momentum in each round.

    `ReducedTrees` sums gradients in binary trees over rounds, and every node of a tree has its own noise.

    A round needs the nodes that cover the last N = `epoch` rounds. They are not stored, but sampled again from each
    node's random key. A round samples `2·(2·⌈log₂(N + 1)⌉) + 1` vectors.

    Attributes:
        inputs: number of each round, its noise in units of `noise_std`, and the index of each participant's trees. If
            there is such an index, every machine has its own trees, and the aggregate contains the mean of their noise.
        epoch: N, number of rounds of an epoch.
    """

    past_end = True
    inputs: WindowInputs
    epoch: int = struct.field(pytree_node=False)

    def init(self, dimension: int, key):
        return self.message_memory(dimension, key)

    def message_memory(self, dimension: int, key):
        """Return the random key from which the keys of all tree nodes are derived."""
        return jax.random.fold_in(key, 0)  # rounds are numbered from 1: key 0 is free

    def message_noise(self, memory, inputs: WindowInputs, key, dimension: int):
        """Sample one round: return the memory, unchanged, and the normals of each participant's trees.

        A participant sums its gradients in binary trees over rounds, and every node of a tree has its own noise.

        The normals are a `Normals` with leaves of shape [per_round, ...]. They are None if one set of trees serves all
        machines, because messages then have no noise.

        Args:
            memory: key from which the keys of all tree nodes are derived.
            inputs: number of the round, noise in units of `noise_std`, and the index of each participant's trees.
            key: random key of the round.
            dimension: number of model parameters.
        """
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
