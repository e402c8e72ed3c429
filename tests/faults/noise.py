"""Planted: noise of another scale or law than is claimed.

Every faulty method claims what the right one claims; what is wrong is what it draws.
"""

from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
import numpy as np
from faults.federations import EVERYONE
from flax import struct

from fedprivjax import (
    DPMu2,
    LocalSGD,
    NoisySGD,
    ReducedTreeMomentum,
    StaleMomentum,
    TreeMomentum,
    UserSGD,
)
from fedprivjax.method.message_noise import CancelledNoise, CorrelatedNoise
from fedprivjax.method.private_mean import BitMean, GaussianMean
from fedprivjax.method.round import add_noise, cohort_sum
from fedprivjax.noise import Cancelling, Fresh, PerMachine, choose
from fedprivjax.noise.factors.interface import Path
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.noise.fresh import MessageInputs
from fedprivjax.noise.sums import CorrelatedSums
from fedprivjax.privacy.per_machine import Grouped


def as_another(kind, protocol, **changed):
    """What is traced where a method of the package runs in place of the protocol, with other numbers: no program of its
    own."""
    own = {field.name: getattr(protocol, field.name) for field in fields(kind)}
    return kind(**{**own, **changed}).traced


# ---- too little noise


@struct.dataclass
class HalfTheNoiseSGD(NoisySGD):
    """σ/2 is added where σ is claimed."""

    @property
    def traced(self):
        return as_another(NoisySGD, self, noise_std=self.noise_std / 2)


@struct.dataclass
class HalfTheNoiseMu2(DPMu2):
    """The same, where noise is cancelled."""

    @property
    def traced(self):
        return as_another(DPMu2, self, noise_std=self.noise_std / 2)


@struct.dataclass
class SharedTreeNoise(TreeMomentum):
    """Every machine's own tree has noise over √M, as if only the mean were seen."""

    @property
    def traced(self):
        return as_another(TreeMomentum, self, noise_std=self.noise_std / np.sqrt(EVERYONE.participation.machines))


@struct.dataclass
class AddOrRemove(DPMu2):
    """One record's gradient has norm C, so that taking it out moves a sum by C; but replacing it by 2C."""

    def sensitivity(self, problem, plan):
        return super().sensitivity(problem, plan) / 2

    @property
    def traced(self):
        return as_another(DPMu2, self)


@struct.dataclass
class NoiseOfTheMean(NoisySGD):
    """The server releases the sum, with the noise of the mean."""

    def round(self, problem, state, inputs, noise, key):
        total, info = cohort_sum(problem, self.machine(state, inputs.round), inputs, self.clip)
        step = self.step_scale * self.step_size
        w = jax.tree.map(lambda w, g: w - step * g, state.w, add_noise(problem, total, noise))
        return state._replace(w=w), info


@struct.dataclass
class StuckCount(DPMu2):
    """The paper's r_k² = (1 + ln T)·k with k stuck at 1."""

    def mechanism(self, problem, plan, method="auto"):
        relative = np.full(plan.schedule.participants.shape, np.sqrt(1 + np.log(plan.size.rounds)))
        return choose(plan.schedule, relative, problem.dimension, method, cancel=True)

    @property
    def traced(self):
        return as_another(DPMu2, self)


class NoiseForTwo(CancelledNoise):
    """Noise for two messages, with exposure 1."""

    def relative(self, plan):
        return np.full(plan.schedule.participants.shape, np.sqrt(2.0))

    def exposure(self, plan):
        return Grouped.of((plan.schedule.total > 0).astype(float))


@struct.dataclass
class OverSpent(DPMu2):
    """Noise for two messages of each machine, whatever the schedule, in an event with exposure 1."""

    @property
    def message_noise(self):
        return NoiseForTwo(self.trust, self.relative_privacy)

    @property
    def traced(self):
        return as_another(DPMu2, self)


@struct.dataclass
class NoGrowth(StaleMomentum):
    """Noise for messages of equal weight, where a sample's share of the momentum grows."""

    def mechanism(self, problem, plan, method="auto"):
        relative = np.sqrt(plan.schedule.total[plan.schedule.participants].astype(float))
        return choose(plan.schedule, relative, problem.dimension, method, cancel=False)

    @property
    def traced(self):
        return as_another(StaleMomentum, self)


class HiddenOnce(GaussianMean):
    """A server that forgets adds noise twice, and each half is taken for the whole."""

    def hiding(self, plan):
        return np.sqrt(plan.size.per_round)


@struct.dataclass
class OneHalf(UserSGD):
    """The mean of a server that forgets, with half of its noise."""

    @property
    def private_mean(self):
        return HiddenOnce(self.trust, self.clip)


@struct.dataclass
class FewerBits(UserSGD):
    """Users send a quarter of the noise bits."""

    def calibrate(self, problem, plan, target):
        ready = super().calibrate(problem, plan, target)
        return replace(ready, vector_sum=replace(ready.vector_sum, trials=ready.vector_sum.trials // 4))

    @property
    def traced(self):
        return as_another(UserSGD, self)


@struct.dataclass
class RareBits(UserSGD):
    """A noise bit is 1 with probability p/4."""

    def calibrate(self, problem, plan, target):
        ready = super().calibrate(problem, plan, target)
        return replace(ready, vector_sum=replace(ready.vector_sum, probability=ready.vector_sum.probability / 4))

    @property
    def traced(self):
        return as_another(UserSGD, self)


class FlooredBits(BitMean):
    """Users of larger cohorts share the noise bits by a division that is rounded down."""

    def _totals(self, plan, sums):
        users = plan.schedule.present.sum(axis=1)
        return users * (int(sums.trials) * self._users(plan) // users)


class OfThoseWhoSend(GaussianMean):
    """The server's noise is that of a sum over those who send."""

    def mechanism(self, plan, method):
        return Fresh(np.asarray(plan.schedule.present.sum(axis=1) ** -0.5, np.float32))


class FirstColumn(CorrelatedSums):
    """The noise is enough for a machine's first message."""

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


@struct.dataclass
class OfTheFirstMessage(DPMu2):
    """Correlated noise for what a sample of the first message moves."""

    @property
    def message_noise(self):
        return FirstColumnNoise(self.trust, self.relative_privacy, factor=self.noise_schedule)


@struct.dataclass
class StepWithoutItsFactor(ReducedTreeMomentum):
    """Drift is accounted for as if no factor were on the step."""

    def _drift(self, problem, plan):
        return ReducedTreeMomentum._drift(replace(self, step_scale=1.0), problem, plan)


@dataclass(frozen=True)
class WithoutALevel(Tree):
    """Nodes of two rounds have no noise."""

    def step(self, path, normal, alpha, epoch=None):
        bit = (path.round + 1) & -(path.round + 1)
        return super().step(path, jnp.where(bit == 2, 0.0, normal), alpha, epoch)


# ---- keys used again


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


@struct.dataclass
class KeyOfTheRun(NoisySGD):
    """Every round's noise is the same."""

    def mechanism(self, problem, plan, method="auto"):
        return OneDraw(MessageInputs(np.ones(plan.schedule.participants.shape, np.float32)))

    @property
    def traced(self):
        return as_another(NoisySGD, self)


@struct.dataclass
class KeyOfTheRound(NoisySGD):
    """All machines' noise is the same."""

    def mechanism(self, problem, plan, method="auto"):
        return OneForAll(MessageInputs(np.ones(plan.schedule.participants.shape, np.float32)))

    @property
    def traced(self):
        return as_another(NoisySGD, self)


@struct.dataclass
class OneKeyOfSteps(LocalSGD):
    """All local steps of a round have the same noise: each is the first of a walk of its own."""

    def messages(self, problem, state, inputs, noise, key):
        def step(walks, samples):
            def of(slot, w):
                alone = inputs._replace(samples=samples[:, None])
                ends = LocalSGD.messages(self, problem, state._replace(w=w), alone, noise, key)
                return jax.tree.map(lambda rows: rows[slot], ends)

            return jax.vmap(of)(jnp.arange(len(samples)), walks), None

        slots = inputs.samples.shape[0]
        walks = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (slots, *leaf.shape)), state.w)
        return jax.lax.scan(step, walks, inputs.samples.T)[0]


@struct.dataclass
class OneServerDraw(Fresh):
    """A server with one key for all rounds."""

    def draw(self, state, inputs, keys, dimension):
        return state, inputs[:, None] * jax.random.normal(jax.random.key(3), (1, dimension))


# ---- noise that is cancelled wrongly


@struct.dataclass
class NothingTakenBack(Cancelling):
    """The old noise stays in the sum."""

    def message_noise(self, memory, inputs, key, dimension):
        return memory, self.fresh(inputs, key, dimension)

    def fresh(self, inputs, key, dimension):
        return inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))


@struct.dataclass
class AnothersTakenBack(NothingTakenBack):
    """A machine takes back its neighbour's noise."""

    def message_noise(self, memory, inputs, key, dimension):
        fresh = self.fresh(inputs, key, dimension)
        return memory.at[inputs.machine].set(fresh), fresh - memory[(inputs.machine + 1) % self.machines]


@struct.dataclass
class FirstKept(NothingTakenBack):
    """What a machine remembers is never renewed."""

    def message_noise(self, memory, inputs, key, dimension):
        fresh, old = self.fresh(inputs, key, dimension), memory[inputs.machine]
        return memory.at[inputs.machine].set(jnp.where(old == 0, fresh, old)), fresh - old


@struct.dataclass
class DrawnAnew(NothingTakenBack):
    """What a machine takes back is a fresh draw, rather than the noise that it stored."""

    def message_noise(self, memory, inputs, key, dimension):
        fresh, old = self.fresh(inputs, key, dimension), memory[inputs.machine]
        again = jnp.where(old == 0, 0.0, self.fresh(inputs, jax.random.fold_in(key, 1), dimension))
        return memory.at[inputs.machine].set(fresh), fresh - again


@dataclass(frozen=True)
class NodesDrawnAnew(Tree):
    """A node's noise is drawn anew whenever the node is used."""

    def step(self, path, normal, alpha, epoch=None):
        round = path.round + 1
        variance = jnp.asarray(self.variances(64, 0.2))[round - 1]
        return Path(round, jnp.sqrt(variance) * normal, path.memory)


@struct.dataclass
class QuietTrajectory(DPMu2):
    """The aggregate has 4/5 of the noise that machines add."""

    def mechanism(self, problem, plan, method="auto"):
        mechanism = super().mechanism(problem, plan, method)
        return mechanism if method == "materialised" else replace(mechanism, inputs=0.8 * mechanism.inputs)
