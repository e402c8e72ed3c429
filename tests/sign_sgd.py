"""Custom sign SGD without a trusted server: a machine sends one sign through randomised response (pure ε-DP)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax import (
    Assumption,
    Grouped,
    LocalAlgorithm,
    LocalEpochs,
    Protocol,
    PureEvent,
    Terms,
    WorkPrivacy,
    gradient,
    noise,
)


@struct.dataclass
class FullGradients(LocalAlgorithm):
    """Machines send the mean gradient of their records, and the server steps along the mean of the messages."""

    def init(self, public, step):
        return public.start

    def enter(self, received, own):
        return received, received

    def ask(self, carry):
        return gradient(carry[0])

    def move(self, carry, g, received, own, work):
        return carry[0], g

    def leave(self, carry, received, own, work):
        return carry[1]

    def serve(self, server, mean, at):
        return at.project(jax.tree.map(lambda w, g: w - at.step * g, server, mean))

    def point(self, server):
        return server


@struct.dataclass(kw_only=True)
class OneSign(WorkPrivacy):
    """One sign of every machine's message, at a random coordinate, true with odds e^ε₀, where ε₀ = 1/noise_std."""

    work: Any = struct.field(pytree_node=False, default=LocalEpochs(1))

    unit, at_machines = "machine", False

    def probability_of_a_lie(self, noise_std):
        return jax.nn.sigmoid(-1 / noise_std)

    def encoded(self, message, key, facts):
        vector, unravel = ravel_pytree(message)
        place = jax.random.randint(jax.random.fold_in(key, 1), (), 0, vector.size)
        lies = jax.random.bernoulli(jax.random.fold_in(key, 2), self.probability_of_a_lie(facts.noise_std))
        sign = jnp.where((vector[place] >= 0) != lies, 1.0, -1.0)
        return unravel(jnp.zeros_like(vector).at[place].set(sign))

    def divisor(self, weight, inputs):
        return inputs.divisor

    def message_bits(self, dimension):
        return 1.0  # the coordinate follows from a public key

    def mechanism(self, facts, method):
        return noise.Randomised()

    def event(self, facts, noise_std):
        public = (Assumption("public participation"),)
        terms = Terms("none", "randomised response", public, unit="all records of one machine")
        return PureEvent(noise_std, Grouped.of(facts.plan.schedule.total), terms)


def sign_sgd(privacy=OneSign, step_size=0.1, **target):
    """Return sign SGD with a class of privacy objects and a target, or a `noise_std`."""
    return Protocol(FullGradients(), privacy=privacy(), step_size=step_size, **target)
