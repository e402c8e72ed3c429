"""Planted faults in the noise: another scale or distribution than claimed.

Every faulty method claims the guarantee of the correct one, and samples different noise.
"""

from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np
from faults.federations import EVERYONE
from flax import struct
from restating import states, unsealed

from fedprivjax import (
    DPMu2,
    FedAvg,
    LocalSGD,
    NoisyRecordSteps,
    NoisySGD,
    ReducedTreeMomentum,
    StaleMomentum,
    TreeMomentum,
    UserSGD,
)
from fedprivjax.method.linear import of_record
from fedprivjax.method.message_noise import CancelledNoise, CorrelatedNoise
from fedprivjax.method.round import add_noise, cohort_sum
from fedprivjax.noise import Cancelling, Fresh, PerMachine, choose
from fedprivjax.noise.factors.interface import Path
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.noise.fresh import MessageInputs
from fedprivjax.noise.sums import CorrelatedSums
from fedprivjax.privacy.per_machine import Grouped


def as_another(kind, protocol, **changed):
    """Return the traced form of a built-in protocol with this protocol's settings and changes, to share its program."""
    own = {field.name: getattr(protocol, field.name) for field in fields(kind)}
    return kind(**{**own, **changed}).traced


# ---- too little noise


@states("event")
@struct.dataclass
class HalfTheNoiseSGD(NoisySGD):
    """σ/2 is added and σ is claimed."""

    @property
    def traced(self):
        return as_another(NoisySGD, self, noise_std=self.noise_std / 2)


@states("event")
@struct.dataclass
class HalfTheNoiseMu2(DPMu2):
    """The same with noise cancellation."""

    @property
    def traced(self):
        return as_another(DPMu2, self, noise_std=self.noise_std / 2)


@states("event")
@struct.dataclass
class SharedTreeNoise(TreeMomentum):
    """Every machine's tree has its noise divided by √M, as if only the mean were visible."""

    @property
    def traced(self):
        return as_another(TreeMomentum, self, noise_std=self.noise_std / np.sqrt(EVERYONE.participation.machines))


@states("event")
@struct.dataclass
class AddOrRemove(DPMu2):
    """The sensitivity C of removing a record is claimed, and replacing it changes the sum by 2C."""

    def bound(self, problem, machines):
        stated = super().bound(problem, machines)
        return stated._replace(norm=stated.norm / 2)

    @property
    def traced(self):
        return as_another(DPMu2, self)


@states("event")
@struct.dataclass
class NoiseOfTheMean(NoisySGD):
    """The server releases the sum, with the noise of the mean."""

    def round(self, problem, state, inputs, noise, key):
        message = self.algorithm.message(state.server, inputs.round)
        total, info = cohort_sum(problem, of_record(message), inputs, self.clip)
        step = self.step_scale * self.step_size
        w = jax.tree.map(lambda w, g: w - step * g, state.server.w, add_noise(problem, total, noise))
        return state._replace(server=state.server._replace(w=w)), info


@states("event")
@struct.dataclass
class StuckCount(DPMu2):
    """The paper's r_k² = (1 + ln T)·k with k stuck at 1."""

    def mechanism(self, problem, plan, method="auto"):
        relative = np.full(plan.schedule.participants.shape, np.sqrt(1 + np.log(plan.size.rounds)))
        return choose(plan.schedule, relative, problem.dimension, method, cancel=True)

    @property
    def traced(self):
        return as_another(DPMu2, self)


@struct.dataclass
class CountedAsIndependent(FedAvg):
    """Noise that is correlated over rounds, in an event of independent noise."""

    def event(self, problem, plan):
        exposure = Grouped.of(np.sqrt(plan.schedule.total))
        return replace(super().event(problem, plan), exposure=exposure, releases=None)


@struct.dataclass
class WithItsNoise(DPMu2):
    """DP-μ²-FL with the noise and the exposure of another distribution."""

    @property
    def its_noise(self):
        """Distribution of the noise, a `MessageNoise`."""
        raise NotImplementedError

    def mechanism(self, problem, plan, method="auto"):
        return self.its_noise.mechanism(plan, problem.dimension, method)

    def event(self, problem, plan):
        noise = self.its_noise
        event = super().event(problem, plan)
        return replace(event, exposure=noise.exposure(plan), releases=lambda machine: noise.releases(plan, machine))


class NoiseForTwo(CancelledNoise):
    """Noise for two messages, with exposure 1."""

    def relative(self, plan):
        return np.full(plan.schedule.participants.shape, np.sqrt(2.0))

    def exposure(self, plan):
        return Grouped.of((plan.schedule.total > 0).astype(float))


@states("event")
@struct.dataclass
class OverSpent(WithItsNoise):
    """Noise for two messages of each machine on any schedule, in an event with exposure 1."""

    @property
    def its_noise(self):
        return NoiseForTwo(self.trust, self.relative_privacy)

    @property
    def traced(self):
        return as_another(DPMu2, self)


@states("event")
@struct.dataclass
class NoGrowth(StaleMomentum):
    """Noise for messages of equal weight, although a sample's weight in the momentum grows."""

    def mechanism(self, problem, plan, method="auto"):
        relative = np.sqrt(plan.schedule.total[plan.schedule.participants].astype(float))
        return choose(plan.schedule, relative, problem.dimension, method, cancel=False)

    @property
    def traced(self):
        return as_another(StaleMomentum, self)


@struct.dataclass
class OneHalf(UserSGD):
    """A pan-private server adds noise twice, and each half is counted as the whole."""

    def event(self, problem, plan):
        event = UserSGD.event(replace(self, trust="server"), problem, plan)
        return replace(event, terms=replace(event.terms, trust=self.trust))

    def needed_noise(self, problem, plan, target):
        return UserSGD.needed_noise(replace(self, trust="server"), problem, plan, target)


@states("event")
@struct.dataclass
class FewerBits(UserSGD):
    """Users send a quarter of the noise bits."""

    def calibrate(self, problem, plan, target):
        ready = super().calibrate(problem, plan, target)
        return replace(ready, vector_sum=replace(ready.vector_sum, trials=ready.vector_sum.trials // 4))

    @property
    def traced(self):
        return as_another(UserSGD, self)


@states("event")
@struct.dataclass
class RareBits(UserSGD):
    """A noise bit is 1 with probability p/4."""

    def calibrate(self, problem, plan, target):
        ready = super().calibrate(problem, plan, target)
        return replace(ready, vector_sum=replace(ready.vector_sum, probability=ready.vector_sum.probability / 4))

    @property
    def traced(self):
        return as_another(UserSGD, self)


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


@states("event")
@struct.dataclass
class OfTheFirstMessage(WithItsNoise):
    """Correlated noise for a sample of the first message only."""

    @property
    def its_noise(self):
        return FirstColumnNoise(self.trust, self.relative_privacy, factor=self.noise_schedule)


@states("event")
@struct.dataclass
class StepWithoutItsFactor(ReducedTreeMomentum):
    """Drift is accounted for without the step's scale."""

    def event(self, problem, plan):
        return ReducedTreeMomentum.event(replace(self, step_scale=1.0), problem, plan)


@states("squares", "contributions")
@dataclass(frozen=True)
class WithoutALevel(Tree):
    """Nodes of two rounds have no noise."""

    def step(self, path, normal, alpha, epoch=None):
        bit = (path.round + 1) & -(path.round + 1)
        return super().step(path, jnp.where(bit == 2, 0.0, normal), alpha, epoch)


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


@states("event")
@struct.dataclass
class KeyOfTheRun(NoisySGD):
    """Every round's noise is the same."""

    def mechanism(self, problem, plan, method="auto"):
        return OneDraw(MessageInputs(np.ones(plan.schedule.participants.shape, np.float32)))

    @property
    def traced(self):
        return as_another(NoisySGD, self)


@states("event")
@struct.dataclass
class KeyOfTheRound(NoisySGD):
    """All machines' noise is the same."""

    def mechanism(self, problem, plan, method="auto"):
        return OneForAll(MessageInputs(np.ones(plan.schedule.participants.shape, np.float32)))

    @property
    def traced(self):
        return as_another(NoisySGD, self)


ONE_KEY = unsealed(step_noise=lambda private, noise, _, d: NoisyRecordSteps.step_noise(private, noise, 0, d))


@states("event")
@struct.dataclass
class OneKeyOfSteps(LocalSGD):
    """All local steps of a round have the same noise, that of the first."""

    @property
    def privacy(self):
        return ONE_KEY(super().privacy)


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


@states("event")
@struct.dataclass
class QuietTrajectory(DPMu2):
    """The aggregate has 4/5 of the machines' noise."""

    def mechanism(self, problem, plan, method="auto"):
        mechanism = super().mechanism(problem, plan, method)
        return mechanism if method == "materialised" else replace(mechanism, inputs=0.8 * mechanism.inputs)


@struct.dataclass(kw_only=True)
class CountedOnce(FedAvg):
    """Noise of a tree over rounds, and the exposure of machines that take part once."""

    def event(self, problem, plan):
        once = np.linalg.norm(Tree().matrix(plan.schedule), axis=0).max()
        return replace(super().event(problem, plan), exposure=Grouped.of(np.full(plan.size.machines, once)))
