"""Planted faults in clipping, record use, participation, accounting and the adversary's view."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from faults.federations import SMALL
from flax import struct
from jax.flatten_util import ravel_pytree
from restating import buggy, states, unsealed

from fedprivjax import (
    AdaptiveClip,
    DPMu2,
    LocalPrivacy,
    NoisyMessages,
)
from fedprivjax.method.encoders import Encoder, Quantiser
from fedprivjax.method.linear import of_record
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.release import Released
from fedprivjax.method.round import add_noise, cohort_messages, flat_rows
from fedprivjax.plan.samplers import Subset
from fedprivjax.privacy.adversaries import BY_TRUST
from fedprivjax.protocols.released import ReleasedRecords, released_messages

# ---- clipping


def steps_along_messages(private, problem, message, inputs, noise, memory, limits, key):
    """Return a release of the mean of the messages as they are sent."""
    rows = private.messages(problem, message, inputs, noise, limits, key)
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), rows)
    return Released(add_noise(problem, mean, noise), memory, {})


def as_sent(messages):
    """Return a copy of privacy objects with other messages, along whose mean the server steps."""
    return unsealed(messages=messages, release=steps_along_messages)


def without_a_clip(problem, message, inputs):
    """Return the participants' messages before the clip, leaves [per_round, ...]."""
    return cohort_messages(problem, of_record(message), inputs, None)


def clipped_above(private, problem, message, inputs, noise, limits, key):
    rows = flat_rows(problem, without_a_clip(problem, message, inputs))
    norms = jnp.linalg.norm(rows, axis=1)
    short = jnp.where(norms > 1.05 * private.clip, private.clip / jnp.maximum(norms, 1e-30), 1.0)
    return jax.vmap(problem.unravel)(rows * short[:, None])


def clipped_by_coordinate(private, problem, message, inputs, noise, limits, key):
    rows = without_a_clip(problem, message, inputs)
    return jax.tree.map(lambda leaf: jnp.clip(leaf, -private.clip, private.clip), rows)


def leaf_forgotten(private, problem, message, inputs, noise, limits, key):
    rows = without_a_clip(problem, message, inputs)
    kept = {name: leaf for name, leaf in rows.items() if name.endswith("kernel")}
    norms = jnp.sqrt(sum(jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in kept.values()))
    factor = private.clip / jnp.maximum(norms, private.clip)
    return {
        name: leaf * factor.reshape(-1, *[1] * (leaf.ndim - 1)) if name in kept else leaf for name, leaf in rows.items()
    }


def kernel_forgotten(private, problem, message, inputs, noise, limits, key):
    rows = without_a_clip(problem, message, inputs)
    return {
        name: leaf if name.endswith("kernel") else jnp.clip(leaf, -private.clip, private.clip)
        for name, leaf in rows.items()
    }


def leaves_clipped(private, problem, message, inputs, noise, limits, key):
    def clipped(leaf):
        return leaf * private.clip / jnp.maximum(jnp.linalg.norm(leaf), private.clip)

    return jax.tree.map(lambda leaf: jax.vmap(clipped)(leaf), without_a_clip(problem, message, inputs))


def mean_clipped(private, problem, message, inputs, noise, limits, key):
    return released_messages(problem, of_record(message), inputs, "message", private.clip)


CLIPPED_ABOVE = as_sent(clipped_above)  # gradients are clipped only if their norm exceeds 1.05·C
CLIPPED_BY_COORDINATE = as_sent(clipped_by_coordinate)  # every coordinate to [−C, C], and the norm is assumed to be C
LEAF_FORGOTTEN = as_sent(leaf_forgotten)  # leaves of one axis, biases, are not clipped
KERNEL_FORGOTTEN = as_sent(kernel_forgotten)  # leaves of several axes, kernels, are not clipped
LEAVES_CLIPPED = as_sent(leaves_clipped)  # every array to norm C, and the norm of all is assumed to be C
CLIPPED_MEAN = as_sent(mean_clipped)  # the mean over a machine's batch instead of every record's gradient


def counted_as_records(private, epsilon):
    return replace(ReleasedRecords.records(private, epsilon), whole_message=False)


# messages are clipped as a whole, and accounted for as means of clipped records
COUNTED_AS_RECORDS = unsealed(records=counted_as_records)


@dataclass(frozen=True)
class Signs(Encoder):
    """The signs of a message, times its norm: √d times as long as the message if no coordinate is 0."""

    def encode(self, message, key):
        return jnp.linalg.norm(message) * jnp.sign(message)

    def bits(self, dimension):
        return 32.0 + dimension

    def norm_bound(self, norm, dimension):
        return norm * dimension**0.5


@dataclass(frozen=True)
class ShortSigns(Signs):
    """The same, said to be no longer than the message."""

    def norm_bound(self, norm, dimension):
        return norm


@dataclass(frozen=True)
class ShortLevels(Quantiser):
    """A quantiser whose random rounding is said to lengthen no message."""

    def norm_bound(self, norm, dimension):
        return norm


def encoded_anyhow(private, message, key, facts):
    vector, unravel = ravel_pytree(message)
    return unravel(private.encoder.encode(vector, key))


ENCODED_ANYHOW = unsealed(encoded=encoded_anyhow)  # messages are not clipped to the bound of their encoder

# ---- records, participation, and what is published


def used_twice(private, problem, message, inputs, noise, limits, key):
    half = SMALL.rounds * SMALL.participation.per_round // 2
    inputs = inputs._replace(samples=inputs.samples % half)
    return NoisyMessages.messages(private, problem, message, inputs, noise, limits, key)


USED_TWICE = as_sent(used_twice)  # only half of the pool is used, so that each of its samples is used twice


def moved_by_the_momentum(self, state):
    step = self.step_scale * self.step_size
    return jax.tree.map(lambda x, q: x - step * q, state.server.x, state.memory.q)


UNNOISED_MOMENTUM = buggy(DPMu2, query=moved_by_the_momentum)  # the queried point is moved by q_t without its noise


@dataclass(frozen=True)
class PublicSubset(Subset):
    """A subset whose indices are published."""

    secret = False


class AmplifiedAnyhow(RecordMechanism):
    """Amplification is claimed for public samples too."""

    def _counted(self, plan):
        return False


def amplified(private, epsilon):
    return AmplifiedAnyhow(Subset(1), private.clip, private.noise_rule, None, private.delta)


def slots_counted(private, facts, noise_std):
    event = NoisyMessages.event(private, facts, noise_std)
    return replace(event, sensitivity=2 * private.clip / facts.plan.size.per_round)


PUBLIC_SAMPLES = unsealed(records=amplified)  # amplification by secret indices, which are published
SENDERS_NAMED = unsealed(view=lambda private, full: BY_TRUST["none"].view(full))  # a shuffler that names senders
OWN_NOISE_FORGOTTEN = unsealed(of_message=lambda private, own, reads: 0 * own)  # noise is in the aggregate alone
GRADIENTS_ONLY = unsealed(bounded=lambda private, stated, *, plain: stated._replace(norm=1.0))  # G = 1 is claimed for S
SLOTS_COUNTED = unsealed(event=slots_counted)  # division by the number of slots is assumed, instead of the mean cohort
OWN_NUMBER = unsealed(_count=lambda private, inputs: jnp.sum(inputs.present))  # each round's number of machines divides


# ---- an adaptive clip


@states("norm_bound")
@struct.dataclass(kw_only=True)
class MultiplierOfUpdates(AdaptiveClip):
    """The updates have the noise multiplier z instead of z_Δ, and the bits are sent on top."""

    def update_factor(self, factor):
        return jnp.ones(())


@states("norm_bound")
@struct.dataclass(kw_only=True)
class NoiseOfTheFirstClip(AdaptiveClip):
    """The noise of the updates is a multiple of the first clip, and they are clipped to the present one."""

    def pair(self, update, unclipped, clip, factor):
        return super().pair(update, unclipped, self.start, factor)

    def released(self, mean, clip, factor):
        update, after = super().released(mean, clip, factor)
        return jax.tree.map(lambda leaf: leaf * self.start / clip, update), after


def quiet_bit(private, total, divisor, noise, bound, facts):
    return LocalPrivacy.read(private, total, divisor, None if noise is None else noise.at[-1].set(0.0), bound, facts)


BIT_WITHOUT_NOISE = unsealed(read=quiet_bit)  # the count of unclipped updates has no noise
