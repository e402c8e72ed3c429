"""Interface of noise mechanisms, and independent noise in every round.

A mechanism samples once per seed, independently of a sweep's settings.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.decorated import PYTREE, Decorated
from fedprivjax.checks.refusal import Undefined
from fedprivjax.problem.random_keys import random_key


class Mechanism(Decorated):
    """Base class of noise mechanisms: objects that sample the noise of a run.

    Subclass it as a `flax.struct.dataclass` for a custom distribution. `draw` samples several successive rounds (a
    block) at once. A mechanism samples noise in units of `noise_std`. The protocol's function `noise` later multiplies
    the sample by `noise_std` and other settings. One sample can therefore serve all privacy levels, clips and step
    sizes of a sweep.

    Attributes:
        inputs: arrays of shape [rounds, ...] that follow from the public participation schedule, such as relative
            standard deviations.
    """

    kind, decorator = "mechanism", PYTREE
    inputs: Any
    correlated: ClassVar[bool] = False  # True if the noise of a server's rounds is correlated
    inside: ClassVar[bool] = False  # True if noise is part of the machines' computation, not added to messages
    uses_host_noise: ClassVar[bool] = True  # True if a round's noise may depend on the protocol's `host_noise`
    past_end: ClassVar[bool] = False  # True if a block may repeat the last round's inputs and key, despite a state
    exchangeable: ClassVar[bool] = True  # False if the noise of a round depends on which machines send, as on a graph
    method: ClassVar[str] = "auto"  # the `noise_method` that selects this class
    label: ClassVar[str] = ""  # name in results, if it is not the class's

    @property
    def name(self) -> str:
        """Name of the mechanism in results: its class attribute `label`.

        If `label` is empty, the name is the class name in lower case.
        """
        return self.label or type(self).__name__.lower()

    @property
    def may_pass_end(self) -> bool:
        """True if `draw` may be called for rounds after the end of the run. The noise of such rounds is discarded.

        A run calls `draw` for several successive rounds (a block) at a time. If the value is True, the last block may
        go past the end of the run and have the length of the others.

        The value is the attribute `past_end` of the class that defines `draw`. A subclass that overrides `draw` must
        set `past_end = True` again if the override may also be called for later rounds.
        """
        stated = next(bool(vars(each).get("past_end")) for each in type(self).__mro__ if "draw" in vars(each))
        return stated and self.past_end

    def init(self, dimension: int, key: jax.Array) -> Any:
        """Return the state of `draw` before the first round. The default is (), for no state.

        Args:
            dimension: number of model parameters.
            key: random key of the run, for noise that is not of one round, such as the noise of a tree node.
        """
        return ()

    def draw(self, state: Any, inputs: Any, keys: jax.Array, dimension: int) -> tuple[Any, Any]:
        """Sample the noise of several successive rounds (a block): return the new state, and the noise.

        Args:
            state: state before the block, at first from `init`.
            inputs: `inputs` of the block's rounds, arrays of shape [block, ...].
            keys: random keys of the block's rounds, shape [block].
            dimension: number of model parameters.

        Returns:
            The state after the block, and arrays of shape [block, ...] with the samples, or None if there is no noise.
        """
        raise Undefined(f"{self.name} must define draw(state, inputs, keys, dimension)")

    def aggregate(self, noise: Any) -> jax.Array | None:
        """Return the noise in the server's aggregate of one round, or None if there is none.

        The noise has shape [d] for d parameters. The aggregate is what the server computes from the round's messages,
        such as the mean.

        Args:
            noise: sample of one round, to which the protocol has already applied `noise_std` and other settings.
        """
        return noise

    def message_memory(self, dimension: int, key: jax.Array) -> Any:
        """Return the initial memory of the machines' noise, which `message_noise` updates in each round.

        The memory holds, for example, the latest noise of every machine. It is used only for transcripts, which contain
        every message of a run.

        Args:
            dimension: number of model parameters.
            key: random key of the run.
        """
        return ()

    def message_noise(self, memory: Any, inputs: Any, key: jax.Array, dimension: int) -> tuple[Any, Any]:
        """Sample one round message by message: return the new memory, and the noise of each message.

        The noise is an array or pytree of arrays [per_round, ...], or None if machines add no noise. This function is
        used only for transcripts, which contain every message of a run.

        Args:
            memory: memory of the machines' noise before the round, at first from `message_memory`.
            inputs: the mechanism's `inputs` of the round.
            key: random key of the round.
            dimension: number of model parameters.
        """
        return memory, None

    def align(self, others: Sequence[Any]) -> list[Any]:
        """Return the given mechanisms, in the same order, with arrays padded to equal shapes for `vmap`.

        By default, the mechanisms are returned unchanged. A subclass whose arrays have different shapes for different
        seeds returns copies in which the arrays are padded to the largest shape.

        Args:
            others: mechanisms of this class, one per seed, with this mechanism among them.
        """
        return list(others)

    def floats(self, dimension: int) -> int:
        """Return the number of float32 values of memory that sampling needs for one seed.

        The mechanism's `inputs` and the returned samples are not counted.
        """
        state = jax.eval_shape(lambda: self.init(dimension, random_key(0)))
        return 2 * sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.float32)


def normals(key, shape):
    """Return standard normals of a shape, float32.

    JAX's default layout discards half of the generator's output, to shard one large sample over devices. Noise here is
    sharded over seeds, not within a vector. The older layout is therefore sufficient, and about twice as fast.

    >>> normals(jax.random.key(0), (3,)).shape
    (3,)
    """
    with jax.threefry_partitionable(False):
        return jax.random.normal(key, shape)


@struct.dataclass
class Silent(Mechanism):
    """Mechanism without noise, for non-private runs."""

    inputs: Any = ()

    uses_host_noise = False

    def draw(self, state, inputs, keys, dimension: int):
        return state, None


@struct.dataclass
class Randomised(Silent):
    """Mechanism without added noise, for machines that randomise their messages, as in randomised response.

    A method consists of an algorithm and a privacy object. The privacy object's function `encoded` randomises a
    message, with a random key for each machine.
    """

    inside = True


@struct.dataclass
class Fresh(Mechanism):
    """Sampler of independent Gaussian noise in each round, as a trusted server adds it.

    One sample can stand for the mean of the noises of m machines, because this mean is Gaussian, too. If the noise of
    machine j has standard deviation r_j, the mean has standard deviation √(Σ_j r_j²)/m.

    Attributes:
        inputs: standard deviation of the noise in each round, in units of `noise_std`; float32 [rounds].
        accumulate: True to return the sum of the noise of all rounds so far, instead of the noise of each round.
    """

    past_end = True
    inputs: Any
    accumulate: bool = struct.field(pytree_node=False, default=False)

    def init(self, dimension: int, key):
        return jnp.zeros(dimension) if self.accumulate else ()

    def draw(self, state, inputs, keys, dimension: int):
        noise = inputs[:, None] * jax.vmap(lambda key: normals(key, (dimension,)))(keys)
        return running(noise, state) if self.accumulate else (state, noise)


class MessageInputs(NamedTuple):
    """Per-round inputs of mechanisms that sample every message's noise, shape [rounds, per_round] unless stated.

    Mechanisms without memory of a machine's noise need no `machine`, `count` and `before`.

    Attributes:
        relative: relative noise of each participant, 0 in empty slots.
        divisor: divisor of the sum, shape [rounds], or None for the number of slots.
        machine: index of each participant. `Cancelling` and `Written` need one out of range in empty slots.
        count: number of its participations so far, at least 1.
        before: relative noise at its previous participation, 0 without one and in empty slots.
    """

    relative: Any
    divisor: Any = None
    machine: Any = None
    count: Any = None
    before: Any = None


@struct.dataclass
class PerMachine(Mechanism):
    """Sampler of independent Gaussian noise of every message of a round, machine by machine.

    Use it to inspect single messages. If only the server's aggregate is needed, `Fresh` samples its noise from the same
    distribution at lower cost.

    Attributes:
        inputs: standard deviation of the noise of each message in units of `noise_std`, and divisor of each round's sum
            of messages.
        accumulate: True to return the sum of the noise of all rounds so far, instead of the noise of each round.
        summed: True if the aggregate is the sum of the messages, False if it is this sum divided by the divisor in
            `inputs`.
    """

    past_end = True
    inputs: MessageInputs
    accumulate: bool = struct.field(pytree_node=False, default=False)
    summed: bool = struct.field(pytree_node=False, default=False)

    def init(self, dimension: int, key):
        return jnp.zeros(dimension) if self.accumulate else ()

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Sample one round: return the memory, unchanged, and the noise of each participant's message.

        Args:
            memory: not used.
            inputs: noise of each message of the round (standard deviation in units of `noise_std`).
            key: random key of the round.
            dimension: number of model parameters.

        Returns:
            Memory, and noise [per_round, dimension].
        """
        relative = inputs.relative
        return memory, relative[:, None] * jax.random.normal(key, (*relative.shape, dimension))

    def draw(self, state, inputs: MessageInputs, keys, dimension: int):
        def one(_, step):
            inputs, key = step
            noise = self.message_noise((), inputs, key, dimension)[1]
            return (), jnp.sum(noise, axis=0) if self.summed else shared(noise, inputs.divisor)

        noise = jax.lax.scan(one, (), (inputs, keys))[1]
        return running(noise, state) if self.accumulate else (state, noise)

    def floats(self, dimension: int) -> int:
        return 3 * self.inputs.relative.shape[-1] * dimension


@struct.dataclass
class MessageNoise:
    """Noise of every message of one round, or of each round of a block, before it is sampled.

    Attributes:
        mechanism: mechanism with the round's inputs.
        key: key of the round.
    """

    mechanism: PerMachine
    key: jax.Array
    dimension: int = struct.field(pytree_node=False)

    def sample(self) -> jax.Array:
        """Return the noise of one round's messages, [per_round, d]."""
        return self.mechanism.message_noise((), self.mechanism.inputs, self.key, self.dimension)[1]


@struct.dataclass
class EachMessage(Mechanism):
    """Noise of every message of a round, for machines that do not add their messages. It is sampled in the round.

    Attributes:
        inner: mechanism that samples it, without its inputs.
    """

    past_end = True
    exchangeable = False
    label = "each message"
    inputs: MessageInputs
    inner: PerMachine

    @classmethod
    def of(cls, inner: Any) -> "EachMessage":
        """Return the noise of the messages of a mechanism that samples them separately."""
        return cls(inner.inputs, inner.replace(inputs=()))

    def draw(self, state, inputs, keys, dimension: int):
        block = keys.shape[0]
        each: Any = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (block, *jnp.shape(leaf))), self.inner)
        return state, MessageNoise(each.replace(inputs=inputs), keys, dimension)

    def aggregate(self, noise):
        """Return the mean of the noises of the messages, or of one message, [d]."""
        return jnp.mean(noise.reshape(-1, noise.shape[-1]), axis=0)

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        return self.inner.message_noise(memory, inputs, key, dimension)

    def floats(self, dimension: int) -> int:
        whole: Any = self.inner
        return whole.replace(inputs=self.inputs).floats(dimension)


@struct.dataclass
class PerStep(Mechanism):
    """Noise in the local steps of machines, instead of in the messages that they send.

    The mechanism samples nothing itself. It passes the random key of the round and the standard deviations to the local
    steps, which sample the noise.

    Attributes:
        inputs: standard deviation of the noise in the steps of each participant, in units of `noise_std`; float32
            [rounds, per_round].
    """

    inputs: Any

    inside = True

    def draw(self, state, inputs, keys, dimension: int):
        return state, (keys, inputs)

    def aggregate(self, noise) -> None:
        """Return None: the noise is already in the messages, so none is added to the server's aggregate."""

    def floats(self, dimension: int) -> int:
        return 3 * self.inputs.shape[-1] * dimension


def step_noise(noise, step, dimension: int):
    """Return the participants' noises of one local step, [per_round, d], from a round's (key, standard deviations)."""
    key, deviations = noise
    return deviations[:, None] * normals(jax.random.fold_in(key, step), (*deviations.shape, dimension))


def mean_of_fresh(relative: np.ndarray, divisor: Any = None) -> np.ndarray:
    """Return the relative noise of the mean of independent messages, float64 [rounds].

    Args:
        relative: relative noise of each message, shape [rounds, per_round], 0 in empty slots.
        divisor: divisor of their sum, one for all rounds or shape [rounds]. None is the number of slots.
    """
    return np.sqrt(np.sum(relative**2, axis=1)) / (relative.shape[1] if divisor is None else divisor)


def shared(rows, divisor):
    """Return the sum of rows [per_round, d] divided by the divisor, or by their number if it is None."""
    return jnp.mean(rows, axis=0) if divisor is None else jnp.sum(rows, axis=0) / divisor


def running(noise, state):
    """Return running sums of a block's noise [block, d], starting from `state` [d]."""
    noise = state[None] + jnp.cumsum(noise, axis=0)
    return noise[-1], noise
