"""Custom client-level DP-FedAvg: clipped updates, and noise in their mean from a trusted server; states ε only."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax import Assumption, Event, Grouped, Problem, Protocol, Terms, add_noise, noise
from fedprivjax.plan.samplers import Disjoint
from fedprivjax.privacy import gdp

UNIT = "all records of one machine"


@dataclass(frozen=True)
class Composed(Event):
    """Gaussian means of clipped updates, composed over the rounds in which a machine takes part."""

    noise_std: float
    sensitivity: float
    rounds: np.ndarray
    terms: Terms

    def epsilons(self, delta):
        with np.errstate(divide="ignore", invalid="ignore"):
            mus = np.where(self.rounds > 0, np.sqrt(self.rounds) * self.sensitivity / np.float64(self.noise_std), 0.0)
        return Grouped.of(gdp.epsilon(mus, delta))


@struct.dataclass
class DPFedAvg(Protocol):
    """Machines take K local steps and clip their update. The server adds N(0, noise_std²) to the mean."""

    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = 0.3
    clip: Any = 0.5
    trust: str = struct.field(pytree_node=False, default="server")
    batch: int = struct.field(pytree_node=False, default=3)
    several_epochs = True

    @property
    def minibatches(self):
        return Disjoint(self.batch)

    def init(self, problem: Problem, size, key):
        return problem.start

    def messages(self, problem, state, inputs, noise, key):
        def update(examples):
            def step(w, example):
                (g,) = problem.model.gradients((w,), example)
                return jax.tree.map(lambda w, g: w - self.step_size * g, w, g.written_out()), None

            end = jax.lax.scan(step, state, examples)[0]
            delta = jax.tree.map(jnp.subtract, end, state)
            norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(delta)))
            return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, self.clip / jnp.maximum(norm, 1e-12)), delta)

        return jax.vmap(update)(problem.take(inputs.samples, inputs.machine))

    def round(self, problem, state, inputs, noise, key):
        rows = self.messages(problem, state, inputs, noise, key)
        mean = jax.tree.map(lambda leaf: jnp.tensordot(inputs.filled, leaf, 1) / inputs.divisor, rows)
        w = jax.tree.map(jnp.add, state, add_noise(problem, mean, noise))
        return problem.constraint.project(w), {}

    def output(self, state):
        return state

    def mechanism(self, problem, plan, method="auto"):
        return noise.Fresh(np.ones(plan.size.rounds, np.float32))

    def event(self, problem, plan):
        public = Assumption("public participation"), Assumption("stated", {"text": "updates are clipped as a whole"})
        terms = Terms(self.trust, "the Gaussian mechanism on a round's mean; composition", public, unit=UNIT)
        moved = 2 * float(self.clip) / plan.schedule.divisor
        return Composed(float(self.noise_std), moved, plan.schedule.total, terms)
