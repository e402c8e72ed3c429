"""Custom protocol in one file with public names only: clipped SGD with momentum at the server."""

from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax import (
    USED_ONCE,
    Assumption,
    GaussianEvent,
    Grouped,
    Protocol,
    Terms,
    add_noise,
    cohort_messages,
    cohort_sum,
    noise,
)


class State(NamedTuple):
    """The point and its velocity."""

    w: Any
    v: Any


@struct.dataclass
class MomentumSGD(Protocol):
    """Clipped SGD with server momentum: v ← β·v + g + noise, w ← w − η·v.

    **Privacy**: every sample is in one message, clipped to C, so a machine is (2C/noise_std)-GDP.
    """

    mu: Any = None
    noise_std: Any = None
    step_size: Any = 0.1
    clip: Any = 1.0
    beta: Any = 0.5

    def init(self, problem, size, key):
        return State(problem.start, jax.tree.map(jnp.zeros_like, problem.start))

    def round(self, problem, state, inputs, noise, key):
        total, info = cohort_sum(problem, lambda gradient: gradient(state.w), inputs, self.clip)
        g = add_noise(problem, jax.tree.map(lambda g: g / inputs.samples.shape[0], total), noise)
        v = jax.tree.map(lambda v, g: self.beta * v + g, state.v, g)
        w = problem.constraint.project(jax.tree.map(lambda w, v: w - self.step_size * v, state.w, v))
        return State(w, v), info

    def output(self, state):
        return state.w

    def messages(self, problem, state, inputs, noise, key):
        return cohort_messages(problem, lambda gradient: gradient(state.w), inputs, self.clip)

    def mechanism(self, problem, plan, method="auto"):
        alike = np.ones(plan.schedule.participants.shape)
        return noise.choose(plan.schedule, alike, problem.dimension, method, cancel=False)

    def event(self, problem, plan):
        bounded = Assumption("clipped gradients", {"bound": inf if self.clip is None else float(self.clip)})
        terms = Terms("none", "the Gaussian mechanism; momentum is post-processing", (*USED_ONCE, bounded))
        return GaussianEvent(float(self.noise_std), 2 * float(self.clip), self.exposure(plan), terms)

    def exposure(self, plan):
        """Return the exposure of each machine: 1 if it takes part."""
        return Grouped.of(plan.schedule.total > 0)
