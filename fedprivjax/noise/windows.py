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
    """Inputs of the sampler `Windows` in each round. They follow from the participation schedule.

    A momentum is computed in a set of binary trees over rounds. For the noise in the server's aggregate, `Windows`
    samples one set of trees. For the noise in messages, it samples one set of trees for each machine.

    Attributes:
        round: number of the round, from 1; int [rounds].
        relative: standard deviation of the noise in units of `noise_std`, shape [rounds] for one set of trees, or
            [rounds, per_round] for one set per machine.
        place: index of each participant's set of trees, int [rounds, per_round]. None if there is one set of trees.
    """

    round: Any
    relative: Any
    place: Any = None


@struct.dataclass
class Streamed(Mechanism):
    """Sampler of each round's independent normals, from which a protocol computes the noise of a momentum.

    The noise of a momentum is correlated over rounds. The protocol computes it later, as a function of the normals of
    all rounds so far.

    Attributes:
        inputs: standard deviations of the normals in units of `noise_std`. With `Fresh`, `inputs` is an array of shape
            [rounds]. With `PerMachine`, it is a `MessageInputs` whose `relative` has shape [rounds, per_round].
        source: `Fresh` samples one vector in each round. `PerMachine` samples one vector for each participant of a
            round, and the server's noise is the mean of these vectors.
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

    `ReducedTrees` sums vectors over rounds in binary trees. Every node of a tree has separate noise, which is used in
    many rounds. This noise is not stored: it is sampled again in each round that uses it, from a random key of the
    node. A round uses the nodes that cover the last N = `epoch` rounds.

    Attributes:
        inputs: inputs of each round. If every machine has its own set of trees, the server's noise is the mean of the
            participants' noise.
        epoch: N, number of rounds of an epoch.
    """

    past_end = True
    inputs: WindowInputs
    epoch: int = struct.field(pytree_node=False)

    def init(self, dimension: int, key):
        return self.message_memory(dimension, key)

    def message_memory(self, dimension: int, key):
        """Return the random key from which noise that several rounds use is sampled.

        Such noise is not stored. It is sampled again in each of these rounds, always from this key.

        Args:
            dimension: not used.
            key: random key of the run.
        """
        return jax.random.fold_in(key, 0)  # rounds are numbered from 1: key 0 is free

    def message_noise(self, memory, inputs: WindowInputs, key, dimension: int):
        """Sample one round: return the memory, unchanged, and the normals of each participant.

        The protocol computes the noise of each participant's message from these normals and those of earlier rounds.
        The result is a `Normals` whose arrays have a leading axis [per_round]. It is None if only the noise in the
        server's aggregate is sampled.

        Args:
            memory: random key from `message_memory`.
            inputs: number of the round, standard deviation of the noise in units of `noise_std`, and index of each
                participant's noise.
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
