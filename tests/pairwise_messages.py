"""Custom privacy object: clipped messages with own noise, and noise that neighbours on a ring share and cancel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax import USED_ONCE, Assumption, GaussianEvent, Grouped, MessagePrivacy, Terms
from fedprivjax.noise import Mechanism
from fedprivjax.privacy.views import SentNoise, squares


@struct.dataclass
class RingNoise(Mechanism):
    """Own noise of deviation 1, and noise of deviation `shared` that the next machine on a ring subtracts."""

    inputs: Any  # 1 if a slot sends, [rounds, machines], in the order of the machines
    shared: float = struct.field(pytree_node=False, default=2.0)
    exchangeable = False

    def message_noise(self, memory, inputs, key, dimension):
        own, pairs = (jax.random.normal(each, (inputs.size, dimension)) for each in jax.random.split(key))
        return memory, inputs[:, None] * (own + self.shared * (pairs - jnp.roll(pairs, 1, axis=0)))

    def draw(self, state, inputs, keys, dimension):
        def mean(present, key):
            return jnp.mean(self.message_noise((), present, key, dimension)[1], axis=0)

        return state, jax.vmap(mean)(inputs, keys)


@struct.dataclass(kw_only=True)
class RingMessages(MessagePrivacy):
    """μ-GDP for one record, which is in one message, with noise that is sampled together for all machines."""

    clip: Any = 1.0
    shared: float = struct.field(pytree_node=False, default=2.0)

    def mechanism(self, facts, method):
        return RingNoise(facts.plan.schedule.present.astype(np.float32), self.shared)

    def covariance(self, machines, honest):
        """Own noise, and that of the edges of which neither end is known."""
        found = np.eye(machines.size)
        for one in range(machines.size):
            two = (one + 1) % machines.size
            if honest[one] and honest[two]:
                edge = np.eye(machines.size)[one] - np.eye(machines.size)[two]
                found += self.shared**2 * np.outer(edge, edge)
        return found

    def sent_noise(self, facts):
        shape = facts.plan.schedule.participants.shape
        return SentNoise(np.ones(shape), once=True, covariance=self.covariance)

    def event(self, facts, noise_std):
        machines = facts.plan.size.machines
        everyone = self.covariance(np.arange(machines), np.ones(machines, bool))
        exposure = np.sqrt(squares(np.eye(machines), everyone))
        terms = Terms("none", "the Gaussian mechanism", (*USED_ONCE, Assumption("clipped gradients", {"bound": 1.0})))
        return GaussianEvent(noise_std, 2 * float(self.clip), Grouped.of(exposure), terms)
