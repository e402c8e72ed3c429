"""Faults that need a varying cohort, a quadratic canary or visible local steps to be detected."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax import Dropouts, Full, LocalSGD, NoisySGD, Varying
from fedprivjax.auditing.neighbouring import Federation
from fedprivjax.method.clipping import clip
from fedprivjax.method.round import oracle
from fedprivjax.noise.fresh import step_noise

SIZES = {"rounds": 6, "records": 6, "dimension": 4}
UNEVEN = {
    "varying": Federation(Varying(4, (0.75, 0.0, 0.0, 0.25)), **SIZES),
    "dropouts": Federation(Dropouts(Full(4), 0.6), **SIZES),
}
EVEN = Federation(Full(4), **SIZES)
SERVER = {"mu": 2.0, "clip": 1.0, "trust": "server"}

LOCAL = {"epsilon": 2.0, "clip": 1.0, "batch": 3}
WALKS = Federation(Full(2), rounds=4, records=6, dimension=4, loss="quadratic")
ALWAYS = replace(WALKS, records=1)  # the canary is used in every step


@struct.dataclass
class NoiseOfThoseWhoCame(NoisySGD):
    """The server divides the noise by the round's cohort size, and the sum by the constant E|S_t|."""

    def round(self, problem, state, inputs, noise, key):
        noise = jax.tree.map(lambda z: z * inputs.divisor / inputs.cohort, noise)
        return super().round(problem, state, inputs, noise, key)


class Walked(LocalSGD):
    """Base class of local SGD with faulty steps."""

    def direction(self, gradient, start, v):
        """Return the direction of a step at v, without noise."""
        return clip(gradient(v), self.clip).written_out()

    def loudness(self, k, steps):
        """Return the factor of the noise in step k, counted from 0."""
        return 1.0

    def walks(self, problem, state, inputs, noise, *, every_step=False):
        machines, steps = inputs.samples.shape
        points = [jnp.broadcast_to(state.w, (machines, problem.dimension))]
        for k in range(steps):
            examples = problem.take(inputs.samples[:, k], inputs.machine)

            def one(v, example):
                return self.direction(oracle(problem.model.gradients, example), state.w, v)

            z = 0.0 if noise is None else self.loudness(k, steps) * step_noise(noise, k, problem.dimension)
            step = self.step_scale * self.step_size
            points.append(points[-1] - step * (jax.vmap(one)(points[-1], examples) + z))
        return points[-1], jnp.diff(jnp.stack(points, axis=1), axis=1)


@struct.dataclass
class DriftUnclipped(Walked):
    """A drift correction, the gradient at v minus that at the round's start, is added after clipping."""

    def direction(self, gradient, start, v):
        here, there = (one.written_out() for one in gradient(v, start))
        return super().direction(gradient, start, v) + here - there


@struct.dataclass
class QuietSteps(Walked):
    """All local steps except the last have a tenth of their noise."""

    def loudness(self, k, steps):
        return 1.0 if k == steps - 1 else 0.1


@struct.dataclass
class QuietStepsUnseen(QuietSteps):
    """The same, with only the end points visible."""

    def noisy_steps(self, problem, state, inputs, noise, key):
        return None
