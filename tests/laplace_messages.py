"""Custom privacy object: Laplace noise on messages that are clipped in the L1 norm, without a trusted server."""

from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax import USED_ONCE, Assumption, Grouped, MessagePrivacy, PureEvent, Terms, add_noise
from fedprivjax.method.release import Released
from fedprivjax.noise import Mechanism


@struct.dataclass
class Laplace(Mechanism):
    """Independent Laplace noise of variance 1 in every message; inputs: 1 if a slot is filled, [rounds, per_round]."""

    inputs: Any

    def message_noise(self, memory, inputs, key, dimension):
        unit = jax.random.laplace(key, (*inputs.shape, dimension)) / sqrt(2)
        return memory, inputs[:, None] * unit

    def draw(self, state, inputs, keys, dimension):
        def mean(present, key):
            return jnp.sum(self.message_noise((), present, key, dimension)[1], axis=0) / jnp.sum(present)

        return state, jax.vmap(mean)(inputs, keys)


def clipped(row, bound):
    """Return a pytree in the L1 ball, zero if it is not finite."""
    leaves = jax.tree.leaves(row)
    norm = sum(jnp.sum(jnp.abs(leaf)) for leaf in leaves)
    factor = jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-30))
    return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(norm), factor * leaf, 0.0), row)


@struct.dataclass(kw_only=True)
class LaplaceMessages(MessagePrivacy):
    """ε-DP for one record, which is in one message of L1 norm at most C."""

    clip: Any = 1.0

    def enforced(self, limits, *, private):
        return None  # no clip in the L2 norm

    def messages(self, problem, message, inputs, noise, limits, key):
        rows = super().messages(problem, message, inputs, noise, limits, key)
        return jax.vmap(lambda row: clipped(row, self.clip))(rows)

    def release(self, problem, message, inputs, noise, memory, limits, key):
        rows = self.messages(problem, message, inputs, noise, limits, key)
        mean = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / self.divisor(inputs), rows)
        return Released(add_noise(problem, mean, noise), memory, {})

    def mechanism(self, facts, method):
        return Laplace(facts.plan.schedule.present.astype(np.float32))

    def event(self, facts, noise_std):
        clip = Assumption("stated", {"text": f"messages are clipped to L1 norm {float(self.clip):.4g}"})
        terms = Terms("none", "the Laplace mechanism, parallel composition over records", (*USED_ONCE, clip))
        level = noise_std / (sqrt(2) * 2 * float(self.clip))  # scale of the noise, over the sensitivity
        return PureEvent(level, Grouped.of(np.minimum(facts.plan.schedule.total, 1)), terms)
