"""Faults that need a varying cohort, a quadratic canary or visible local steps to be detected."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from restating import buggy, planted, unsealed

from fedprivjax import Dropouts, Full, LocalSGD, NoisyMessages, NoisyRecordSteps, Protocol, Varying, gradient
from fedprivjax.auditing.federation import Federation
from fedprivjax.method.linear import of_record, points_of
from fedprivjax.protocols.local_sgd import AveragedEndPoints

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


class Drift(NamedTuple):
    """Local steps, and the point from which they start."""

    walk: Any
    start: Any


@struct.dataclass(kw_only=True)
class Drifting(AveragedEndPoints):
    """Local SGD with a drift correction: the gradient at v minus that at the round's start is added to a step's."""

    def enter(self, received, own):
        return Drift(super().enter(received, own), received)

    def ask(self, carry):
        return 2.0 * gradient(carry.walk) - gradient(carry.start)

    def move(self, carry, g, received, own, work):
        return carry._replace(walk=super().move(carry.walk, g, received, own, work))

    def leave(self, carry, received, own, work):
        return super().leave(carry.walk, received, own, work)


def corrected(private, problem, message, minibatch, noise, facts):
    """Return a step's noisy gradient, to which the drift correction is added after clipping."""
    here, start = points_of(message)
    g = NoisyRecordSteps.of_batch(private, problem, gradient(here), minibatch, noise, facts)
    correction = minibatch.mean(of_record(gradient(here) - gradient(start)))
    return jax.tree.map(jnp.add, g, correction)


DRIFT = Protocol(Drifting(), privacy=NoisyRecordSteps(batch=3, clip=1.0), epsilon=2.0, step_size=0.1)
DRIFT_UNCLIPPED = planted(DRIFT, unsealed(of_batch=corrected))


def quiet(privacy, noise, step, dimension):
    z = NoisyRecordSteps.step_noise(privacy, noise, step, dimension)
    return jnp.where(step == LOCAL["batch"] - 1, 1.0, 0.1) * z


QUIET = unsealed(step_noise=quiet)  # all local steps except the last have a tenth of their noise


# the same, with only the end points visible
QUIET_STEPS_UNSEEN = buggy(
    LocalSGD,
    privacy=property(lambda self: QUIET(LocalSGD.privacy.fget(self))),
    noisy_steps=lambda self, problem, state, inputs, noise, key: None,
)
