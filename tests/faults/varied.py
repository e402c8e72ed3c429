"""Faults that need a varying cohort, a quadratic canary or visible local steps to be detected."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from restating import states, unsealed

from fedprivjax import Dropouts, Full, LocalSGD, NoisyMessages, NoisyRecordSteps, Varying
from fedprivjax.auditing.neighbouring import Federation
from fedprivjax.method.round import add_noise

SIZES = {"rounds": 6, "records": 6, "dimension": 4, "dense": False}
UNEVEN = {
    "varying": Federation(Varying(4, (0.75, 0.0, 0.0, 0.25)), **SIZES),
    "dropouts": Federation(Dropouts(Full(4), 0.6), **SIZES),
}
EVEN = Federation(Full(4), **SIZES)
SERVER = {"mu": 2.0, "clip": 1.0, "trust": "server"}

LOCAL = {"epsilon": 2.0, "clip": 1.0, "batch": 3}
WALKS = Federation(Full(2), rounds=4, records=6, dimension=4, loss="quadratic", dense=False)
ALWAYS = replace(WALKS, records=1)  # the canary is used in every step


def of_those_who_came(private, problem, message, inputs, noise, memory, limits, key):
    noise = jax.tree.map(lambda z: z * inputs.divisor / inputs.cohort, noise)
    return NoisyMessages.release(private, problem, message, inputs, noise, memory, limits, key)


# the server divides the noise by the round's cohort size, and the sum by the constant E|S_t|
NOISE_OF_THOSE_WHO_CAME = unsealed(release=of_those_who_came)


@states("event")
@struct.dataclass
class DriftUnclipped(LocalSGD):
    """A drift correction, the gradient at v minus that at the round's start, is added after clipping."""

    def _walk(self, shared, own, data, noise, *, every_step=False):
        start, d = shared.server, data.problem.dimension

        def step(v, minibatch):
            here, there = (minibatch.gradient(w, divisor=1) for w in (v, start))
            g = minibatch.gradient(v, divisor=1, clip=self.clip)
            g = jax.tree.map(lambda g, here, there: g + here - there, g, here, there)
            z = None if noise is None else self.privacy.step_noise((shared.noise, noise), minibatch.step, d)
            step = add_noise(data.problem, g, z)
            after = jax.tree.map(lambda v, g: v - self.step_scale * self.step_size * g, v, step)
            return after, (jax.tree.map(jnp.subtract, after, v), z)

        end, steps = data.scan(step, start)
        return self.algorithm.enter(start, own)._replace(v=end), steps


def quiet(privacy, noise, step, dimension):
    z = NoisyRecordSteps.step_noise(privacy, noise, step, dimension)
    return jnp.where(step == LOCAL["batch"] - 1, 1.0, 0.1) * z


QUIET = unsealed(step_noise=quiet)  # all local steps except the last have a tenth of their noise


@states("event")
@struct.dataclass
class QuietStepsUnseen(LocalSGD):
    """The same, with only the end points visible."""

    @property
    def privacy(self):
        return QUIET(super().privacy)

    def noisy_steps(self, problem, state, inputs, noise, key):
        return None
