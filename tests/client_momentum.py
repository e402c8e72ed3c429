"""Custom method with client state: every machine keeps the momentum of its local steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax import Assumption, ClientMethod, GaussianEvent, Grouped, LocalEpochs, Terms, add_noise, noise


@struct.dataclass
class ClientMomentum(ClientMethod):
    """Local steps along the machine's own momentum, which it keeps between rounds.

    It sends the update clipped to norm C, and the server adds N(0, noise_std²) to the mean.

    **Privacy**: all records of one machine; a machine in k rounds is (2C·√k/(m̄·noise_std))-GDP.
    """

    mu: Any = None
    noise_std: Any = None
    step_size: Any = 0.1
    update_clip: Any = 0.1
    beta: Any = 0.5
    trust: str = struct.field(pytree_node=False, default="server")

    @property
    def minibatches(self):
        return LocalEpochs(1, 3)

    @property
    def protects_machines(self):
        return True

    @property
    def gradient_clip(self):
        return self.update_clip / self.step_size

    def server_init(self, problem, size, key):
        return problem.start

    def client_init(self, problem):
        return jax.tree.map(jnp.zeros_like, problem.start)

    def client(self, server, own, data, noise, key):
        def step(carry, minibatch):
            w, m = carry
            m = jax.tree.map(lambda m, g: self.beta * m + g, m, minibatch.gradient(w))
            w = jax.tree.map(lambda w, m: w - self.step_size * m, w, m)
            return (data.problem.constraint.project(w), m), None

        (end, m), _ = data.scan(step, (server, own))
        update = jax.tree.map(jnp.subtract, end, server)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update)))
        short = jnp.minimum(1.0, self.update_clip / jnp.maximum(norm, 1e-12))
        return jax.tree.map(lambda leaf: short * leaf, update), m, {"message_norm": norm}

    def serve(self, problem, server, total, weight, inputs, noise):
        mean = add_noise(problem, jax.tree.map(lambda leaf: leaf / inputs.divisor, total), noise)
        return problem.constraint.project(jax.tree.map(jnp.add, server, mean))

    def output(self, state):
        return state.server

    def mechanism(self, problem, plan, method="auto"):
        return noise.Fresh(np.ones(plan.size.rounds, np.float32))

    def event(self, problem, plan):
        facts = Assumption("public participation"), Assumption("stated", {"text": "updates are clipped as a whole"})
        terms = Terms("server", "composed Gaussian mechanisms", facts, unit="all records of one machine")
        moved = 2 * float(self.update_clip) / plan.schedule.divisor
        times = np.sqrt(plan.schedule.total)
        return GaussianEvent(
            float(self.noise_std), moved, Grouped.of(times), terms, lambda i: np.ones(plan.schedule.total[i])
        )
