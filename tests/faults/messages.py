"""Planted faults in clipping, record use, participation, accounting and the adversary's view."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from faults.federations import SMALL
from faults.noise import as_another
from flax import struct
from jax.flatten_util import ravel_pytree
from restating import states

from fedprivjax import (
    AdaptiveClip,
    DPMu2,
    FedAvg,
    NoisyMinibatchSGD,
    NoisySGD,
    TreeMomentum,
)
from fedprivjax.method.algorithm import Public, lipschitz_bound
from fedprivjax.method.encoders import Encoder, Quantiser
from fedprivjax.method.linear import gradient, of_record
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.round import add_noise, cohort_messages, flat_rows
from fedprivjax.method.views import in_the_clear
from fedprivjax.plan.samplers import Subset
from fedprivjax.protocols import ReleasedMinibatchSGD
from fedprivjax.protocols.released.records import released_messages

# ---- clipping


def moved_along(method, state, direction):
    """Return the state of noisy SGD after a step along a direction, without projection."""
    step = method.step_scale * method.step_size
    w = jax.tree.map(lambda w, g: w - step * g, state.server.w, direction)
    return state._replace(server=state.server._replace(w=w))


def without_a_clip(method, problem, state, inputs):
    """Return the participants' messages before the clip, leaves [per_round, ...]."""
    message = method.algorithm.message(state.server, inputs.round)
    return cohort_messages(problem, of_record(message), inputs, None)


@states("event")
@struct.dataclass
class AsSent(NoisySGD):
    """Noisy SGD whose server steps by the messages as they are sent."""

    def round(self, problem, state, inputs, noise, key):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self.messages(problem, state, inputs, noise, key))
        return moved_along(self, state, add_noise(problem, mean, noise)), {}


def clipped_rows(rows, norms, bound, above):
    """Return rows [m, d], scaled to the bound if their norm [m] exceeds `above`."""
    return rows * jnp.where(norms > above, bound / jnp.maximum(norms, 1e-30), 1.0)[:, None]


@states("event")
@struct.dataclass
class ClippedAbove(AsSent):
    """Gradients are clipped only if their norm exceeds 1.05·C."""

    def messages(self, problem, state, inputs, noise, key):
        rows = flat_rows(problem, without_a_clip(self, problem, state, inputs))
        rows = clipped_rows(rows, jnp.linalg.norm(rows, axis=1), self.clip, 1.05 * self.clip)
        return jax.vmap(problem.unravel)(rows)


@states("event")
@struct.dataclass
class ClippedByCoordinate(AsSent):
    """Every coordinate is clipped to [−C, C], and the norm is assumed to be C."""

    def messages(self, problem, state, inputs, noise, key):
        rows = without_a_clip(self, problem, state, inputs)
        return jax.tree.map(lambda leaf: jnp.clip(leaf, -self.clip, self.clip), rows)


@states("event")
@struct.dataclass
class LeafForgotten(AsSent):
    """Leaves of one axis, biases, are not clipped."""

    def messages(self, problem, state, inputs, noise, key):
        rows = without_a_clip(self, problem, state, inputs)
        kept = {name: leaf for name, leaf in rows.items() if name.endswith("kernel")}
        norms = jnp.sqrt(sum(jnp.sum(leaf**2, axis=tuple(range(1, leaf.ndim))) for leaf in kept.values()))
        factor = self.clip / jnp.maximum(norms, self.clip)
        return {
            name: leaf * factor.reshape(-1, *[1] * (leaf.ndim - 1)) if name in kept else leaf
            for name, leaf in rows.items()
        }


@states("event")
@struct.dataclass
class KernelForgotten(LeafForgotten):
    """Leaves of several axes, kernels, are not clipped."""

    def messages(self, problem, state, inputs, noise, key):
        rows = without_a_clip(self, problem, state, inputs)
        return {
            name: leaf if name.endswith("kernel") else jnp.clip(leaf, -self.clip, self.clip)
            for name, leaf in rows.items()
        }


@states("event")
@struct.dataclass
class LeavesClipped(AsSent):
    """Every array of parameters is clipped to norm C, and the norm of all is assumed to be C."""

    def messages(self, problem, state, inputs, noise, key):
        rows = without_a_clip(self, problem, state, inputs)
        return jax.tree.map(lambda leaf: jax.vmap(self._clipped)(leaf), rows)

    def _clipped(self, leaf):
        return leaf * self.clip / jnp.maximum(jnp.linalg.norm(leaf), self.clip)


@states("event")
@struct.dataclass
class ClippedMean(NoisyMinibatchSGD):
    """A machine clips the mean over its batch instead of every record's gradient."""

    def round(self, problem, state, inputs, noise, key):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self.messages(problem, state, inputs, noise, None))
        server = self.algorithm.serve(state.server, add_noise(problem, mean, noise), self._at(problem, inputs, key))
        return state._replace(server=server), {}

    def messages(self, problem, state, inputs, noise, key):
        return released_messages(problem, of_record(gradient(state.server.w)), inputs, "message", self.clip)


@states("event")
@struct.dataclass
class CountedAsRecords(ReleasedMinibatchSGD):
    """Messages are clipped as a whole, and accounted for as means of clipped records."""

    @property
    def records(self):
        return replace(super().records, whole_message=False)

    def needed_noise(self, problem, plan, target):
        return self.records.noise_std(problem, plan.size, target)

    def event(self, problem, plan):
        return self.records.event(problem, plan, self.noise_std)

    @property
    def traced(self):
        return as_another(ReleasedMinibatchSGD, self)


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


@states("event")
@struct.dataclass(kw_only=True)
class EncodedAnyhow(FedAvg):
    """Encoded messages are not clipped to the bound of their encoder."""

    def encode(self, message, key):
        vector, unravel = ravel_pytree(message)
        assert self.encoder is not None
        return unravel(self.encoder.encode(vector, key))


# ---- records, participation, and what is published


@states("event")
@struct.dataclass
class UsedTwice(AsSent):
    """Only half of the pool is used, so that each of its samples is used twice."""

    def messages(self, problem, state, inputs, noise, key):
        half = SMALL.rounds * SMALL.participation.per_round // 2
        return super().messages(problem, state, inputs._replace(samples=inputs.samples % half), noise, key)


@states("event")
@struct.dataclass
class UnnoisedMomentum(DPMu2):
    """The server queries a point moved by q_t without its noise."""

    def query(self, state):
        step = self.step_scale * self.step_size
        return jax.tree.map(lambda x, q: x - step * q, state.server.x, state.memory.q)


@dataclass(frozen=True)
class PublicSubset(Subset):
    """A subset whose indices are published."""

    secret = False


class AmplifiedAnyhow(RecordMechanism):
    """Amplification is claimed for public samples too."""

    def _counted(self, plan):
        return False


@states("event")
@struct.dataclass
class PublicSamples(NoisyMinibatchSGD):
    """Sampled indices are published, and amplification by their secrecy is claimed."""

    @property
    def records(self):
        return AmplifiedAnyhow(Subset(1), self.clip, self.noise_rule, None, self.delta)

    def needed_noise(self, problem, plan, target):
        return self.records.noise_std(problem, plan.size, target)

    def event(self, problem, plan):
        return self.records.event(problem, plan, self.noise_std)

    @property
    def traced(self):
        return as_another(NoisyMinibatchSGD, self)


@states("event")
@struct.dataclass
class SendersNamed(NoisyMinibatchSGD):
    """A shuffler that leaves messages in the order of their senders."""

    def view(self, full):
        return in_the_clear(full)


@states("event")
@struct.dataclass
class OwnNoiseForgotten(NoisySGD):
    """The noise is in the aggregate, not in the messages."""

    def sent(self, problem, state, inputs, noise, own_noise, key):
        return flat_rows(problem, self.messages(problem, state, inputs, noise, key))


@states("event")
@struct.dataclass
class GradientsOnly(DPMu2):
    """The bound G of a gradient is claimed instead of the bound S of an increment."""

    def bound(self, problem, machines):
        return lipschitz_bound(Public.of(problem, machines))


@states("event")
@struct.dataclass
class SlotsCounted(DPMu2):
    """The sensitivity assumes division by the number of slots, instead of the mean cohort size."""

    def event(self, problem, plan):
        return replace(super().event(problem, plan), sensitivity=2 * self.clip / plan.size.per_round)

    @property
    def traced(self):
        return as_another(DPMu2, self)


@states("event")
@struct.dataclass
class OwnNumber(TreeMomentum):
    """The server divides by each round's number of machines, instead of the mean cohort size."""

    def round(self, problem, state, inputs, noise, key):
        own = inputs._replace(expected=jnp.sum(inputs.present))
        return TreeMomentum.round(self, problem, state, own, noise, key)


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


@states("event")
@struct.dataclass(kw_only=True)
class BitWithoutNoise(FedAvg):
    """The count of unclipped updates has no noise."""

    def noise(self, state, drawn, host_noise):
        state, noise = super().noise(state, drawn, host_noise)
        return state, noise.at[-1].set(0.0)
