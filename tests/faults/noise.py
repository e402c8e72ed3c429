"""Planted faults in the noise: another scale or distribution than claimed.

Every faulty method claims the guarantee of the correct one, and samples different noise.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from faults.federations import EVERYONE
from flax import struct
from restating import buggy, states, unsealed

from fedprivjax import (
    BitMean,
    LocalPrivacy,
    NoisyMessages,
    NoisyRecordSteps,
    NormBound,
    ReducedTreeMomentum,
)
from fedprivjax.method.linear import of_record
from fedprivjax.method.message_noise import CancelledNoise, CorrelatedNoise
from fedprivjax.method.release import Released
from fedprivjax.method.round import add_noise, cohort_sum
from fedprivjax.noise import Fresh, PerMachine, choose
from fedprivjax.noise.covariance import Cancelling
from fedprivjax.noise.factors.interface import Path
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.noise.interface import MessageInputs
from fedprivjax.noise.message_factors import CorrelatedSums
from fedprivjax.privacy.per_machine import Grouped

# ---- too little noise


def scaled(factor):
    """Return a copy of privacy objects of messages whose rounds have the noise of another σ."""

    def round_noise(private, state, drawn, noise_std, reads, host_noise):
        return super(type(private), private).round_noise(state, drawn, factor * noise_std, reads, host_noise)

    return unsealed(round_noise=round_noise)


def sum_released(private, problem, message, inputs, noise, memory, limits, key):
    total, info = cohort_sum(problem, of_record(message), inputs, private.clip)
    return Released(add_noise(problem, total, noise), memory, info)


def noise_of_first(private, facts, method):
    plan = facts.plan
    relative = np.full(plan.schedule.participants.shape, np.sqrt(1 + np.log(plan.size.rounds)))
    return choose(plan.schedule, relative, facts.problem.dimension, method, cancel=True)


def half_the_bound(private, stated, *, plain):
    return NormBound(float(private.clip) / 2, ())


HALF_THE_NOISE = scaled(0.5)  # σ/2 is added and σ is claimed
SHARED_TREE_NOISE = scaled(EVERYONE.participation.machines**-0.5)  # every machine's tree, as if only the mean were seen
ADD_OR_REMOVE = unsealed(bounded=half_the_bound)  # the sensitivity of removing a record, of which replacing is twice
NOISE_OF_THE_MEAN = unsealed(release=sum_released)  # the server releases the sum, with the noise of the mean
STUCK_COUNT = unsealed(mechanism=noise_of_first)  # the paper's r_k² = (1 + ln T)·k with k stuck at 1


def counted_as_independent(private, facts, noise_std):
    exposure = Grouped.of(np.sqrt(facts.plan.schedule.total))
    return replace(LocalPrivacy.event(private, facts, noise_std), exposure=exposure, releases=None)


COUNTED_AS_INDEPENDENT = unsealed(event=counted_as_independent)  # noise that is correlated over rounds


class NoiseForTwo(CancelledNoise):
    """Noise for two messages, with exposure 1."""

    def relative(self, plan):
        return np.full(plan.schedule.participants.shape, np.sqrt(2.0))

    def exposure(self, plan):
        return Grouped.of((plan.schedule.total > 0).astype(float))


def no_growth(private, facts, method):
    schedule = facts.plan.schedule
    relative = np.sqrt(schedule.total[schedule.participants].astype(float))
    return choose(schedule, relative, facts.problem.dimension, method, cancel=False)


def changed_sums(**changes):
    """Return a copy of privacy objects of bits whose sums differ by functions of their numbers, by name."""

    def of_noise(private, facts, noise_std, target):
        sums = BitMean.of_noise(private, facts, noise_std, target)["vector_sum"]
        return {"vector_sum": replace(sums, **{name: of(getattr(sums, name)) for name, of in changes.items()})}

    return unsealed(of_noise=of_noise)


# noise for two messages of each machine on any schedule, in an event with exposure 1
OVER_SPENT = unsealed(noise_of=lambda private, reads: NoiseForTwo(private.trust, private.relative_privacy))
NO_GROWTH = unsealed(mechanism=no_growth)  # messages of equal weight, although a sample's in the momentum grows
ONE_HALF = unsealed(hiding=lambda private, plan: plan.size.per_round**0.5)  # each of two halves counts as the whole
FEWER_BITS = changed_sums(trials=lambda trials: trials // 4)  # users send a quarter of the noise bits
RARE_BITS = changed_sums(probability=lambda probability: probability / 4)  # a noise bit is 1 with probability p/4


def floored_bits(privacy, plan, sums):
    """Return the noise bits of users of larger cohorts who divide them with rounding down."""
    users = plan.schedule.present.sum(axis=1)
    return users * (int(sums.trials) * privacy._users(plan) // users)


def of_those_who_send(privacy, facts, method):
    """Return the mechanism of a server whose noise is scaled to the number of machines that send."""
    return Fresh(np.asarray(facts.plan.schedule.present.sum(axis=1) ** -0.5, np.float32))


class FirstColumn(CorrelatedSums):
    """The noise suffices for a machine's first message only."""

    @property
    def scale(self):
        return np.linalg.norm(self.factor[:, 0]) / self.shares

    @property
    def exposure(self):
        return self.shares


class FirstColumnNoise(CorrelatedNoise):
    """Correlated noise with the scale of `FirstColumn`."""

    def sums(self, plan):
        sums = super().sums(plan)
        return FirstColumn(sums.factor, sums.schedule, sums.shares)


# correlated noise for a sample of the first message only
OF_THE_FIRST_MESSAGE = unsealed(
    noise_of=lambda private, reads: FirstColumnNoise(private.trust, private.relative_privacy, factor=private.noise)
)


def without_the_factor(self, problem, plan):
    return ReducedTreeMomentum.event(replace(self, step_scale=1.0), problem, plan)


# drift is accounted for without the step's scale
STEP_WITHOUT_ITS_FACTOR = buggy(ReducedTreeMomentum, event=without_the_factor)


@states("squares", "contributions")
@dataclass(frozen=True)
class WithoutALevel(Tree):
    """Nodes of two rounds have no noise."""

    def step(self, path, normal, alpha, epoch=None):
        bit = (path.round + 1) & -(path.round + 1)
        return super().step(path, jnp.where(bit == 2, 0.0, normal), alpha, epoch)


class NothingStays(Tree):
    """The noise of a finished tree is dropped, although its sums stay in all later ones."""

    def step(self, path, normal, alpha, epoch=None):
        kept = jnp.where(path.round % self.restart == 0, 0.0, path.last)
        return super().step(path._replace(last=kept), normal, alpha, epoch)


# ---- reused keys


@struct.dataclass
class OneDraw(PerMachine):
    """The run's key in every round."""

    def init(self, dimension, key):
        return key

    def message_memory(self, dimension, key):
        return key

    def message_noise(self, memory, inputs, key, dimension):
        relative = inputs.relative
        return memory, relative[:, None] * jax.random.normal(memory, (*relative.shape, dimension))

    def draw(self, state, inputs, keys, dimension):
        return state, jax.vmap(lambda one: jnp.mean(self.message_noise(state, one, None, dimension)[1], axis=0))(inputs)


@struct.dataclass
class OneForAll(PerMachine):
    """The round's key on every machine."""

    def message_noise(self, memory, inputs, key, dimension):
        return memory, inputs.relative[:, None] * jax.random.normal(key, (1, dimension))


def with_one_key(mechanism):
    """Return a copy of privacy objects whose noise is of this mechanism."""

    def of(private, facts, method):
        return mechanism(MessageInputs(np.ones(facts.plan.schedule.participants.shape, np.float32)))

    return unsealed(mechanism=of)


KEY_OF_THE_RUN = with_one_key(OneDraw)  # every round's noise is the same
KEY_OF_THE_ROUND = with_one_key(OneForAll)  # all machines' noise is the same
ONE_KEY_OF_STEPS = unsealed(  # all local steps of a round have the same noise, that of the first
    step_noise=lambda private, noise, _, d: NoisyRecordSteps.step_noise(private, noise, 0, d)
)


@struct.dataclass
class OneServerDraw(Fresh):
    """A server that uses one key for all rounds."""

    def draw(self, state, inputs, keys, dimension):
        return state, inputs[:, None] * jax.random.normal(jax.random.key(3), (1, dimension))


# ---- wrong noise cancellation


@struct.dataclass
class NothingTakenBack(Cancelling):
    """The old noise stays in the sum."""

    def message_noise(self, memory, inputs, key, dimension):
        return memory, self.fresh(inputs, key, dimension)

    def fresh(self, inputs, key, dimension):
        return inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))


@struct.dataclass
class AnothersTakenBack(NothingTakenBack):
    """A machine subtracts its neighbour's noise."""

    def message_noise(self, memory, inputs, key, dimension):
        fresh = self.fresh(inputs, key, dimension)
        return memory.at[inputs.machine].set(fresh), fresh - memory[(inputs.machine + 1) % self.machines]


@struct.dataclass
class FirstKept(NothingTakenBack):
    """A machine's stored noise is never updated."""

    def message_noise(self, memory, inputs, key, dimension):
        fresh, old = self.fresh(inputs, key, dimension), memory[inputs.machine]
        return memory.at[inputs.machine].set(jnp.where(old == 0, fresh, old)), fresh - old


@struct.dataclass
class DrawnAnew(NothingTakenBack):
    """A machine subtracts a fresh sample instead of its stored noise."""

    def message_noise(self, memory, inputs, key, dimension):
        fresh, old = self.fresh(inputs, key, dimension), memory[inputs.machine]
        again = jnp.where(old == 0, 0.0, self.fresh(inputs, jax.random.fold_in(key, 1), dimension))
        return memory.at[inputs.machine].set(fresh), fresh - again


@states("squares", "contributions")
@dataclass(frozen=True)
class NodesDrawnAnew(Tree):
    """A node's noise is resampled at every use of the node."""

    def step(self, path, normal, alpha, epoch=None):
        round = path.round + 1
        variance = jnp.asarray(self.variances(64, 0.2))[round - 1]
        return Path(round, jnp.sqrt(variance) * normal, path.memory)


def quiet_trajectory(private, facts, method):
    mechanism = NoisyMessages.mechanism(private, facts, method)
    return mechanism if method == "materialised" else replace(mechanism, inputs=0.8 * mechanism.inputs)


def counted_once(private, facts, noise_std):
    once = np.linalg.norm(Tree().matrix(facts.plan.schedule), axis=0).max()
    exposure = Grouped.of(np.full(facts.plan.size.machines, once))
    return replace(LocalPrivacy.event(private, facts, noise_std), exposure=exposure)


QUIET_TRAJECTORY = unsealed(mechanism=quiet_trajectory)  # the aggregate has 4/5 of the machines' noise
COUNTED_ONCE = unsealed(event=counted_once)  # noise of a tree over rounds, with the exposure of a machine of one round
