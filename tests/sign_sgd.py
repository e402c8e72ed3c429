"""Custom sign SGD without a trusted server: a machine sends one sign through randomised response (pure ε-DP)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax import Assumption, ClientMethod, Grouped, LocalEpochs, PureEvent, Terms, noise


@struct.dataclass
class SignSGD(ClientMethod):
    """Steps along one sign of every machine's gradient, true with odds e^ε₀, where ε₀ = 1/noise_std."""

    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = 0.1

    @property
    def minibatches(self):
        return LocalEpochs(1)

    @property
    def protects_machines(self):
        return True

    def server_init(self, problem, size, key):
        return problem.start

    def client(self, server, own, data, noise, key):
        return data.scan(lambda g, minibatch: (minibatch.gradient(server), None), server)[0], own, {}

    def encode(self, message, key):
        gradient, unravel = ravel_pytree(message)
        place = jax.random.randint(jax.random.fold_in(key, 1), (), 0, gradient.size)
        lies = jax.random.bernoulli(jax.random.fold_in(key, 2), self.probability_of_a_lie)
        sign = jnp.where((gradient[place] >= 0) != lies, 1.0, -1.0)
        return unravel(jnp.zeros_like(gradient).at[place].set(sign))

    @property
    def probability_of_a_lie(self):
        return jax.nn.sigmoid(-1 / self.noise_std)

    def message_bits(self, problem):
        return 1.0  # the coordinate follows from a public key

    def serve(self, problem, server, total, weight, inputs, noise):
        step = self.step_size / inputs.divisor
        return problem.constraint.project(jax.tree.map(lambda w, signs: w - step * signs, server, total))

    def output(self, state):
        return state.server

    def mechanism(self, problem, plan, method="auto"):
        return noise.Randomised()

    def event(self, problem, plan):
        public = (Assumption("public participation"),)
        terms = Terms("none", "randomised response", public, unit="all records of one machine")
        return PureEvent(float(self.noise_std), Grouped.of(plan.schedule.total), terms)
