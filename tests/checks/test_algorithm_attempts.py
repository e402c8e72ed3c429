"""Attempts to keep a guarantee by algorithms and numbers of a composed protocol: each is refused, or its bound holds.

Docstrings of attempts say what they reached before.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import MACHINES, PER_ROUND, POOL, SHARES, SOME_MACHINES
from flax import struct
from jax.core import Tracer

from fedprivjax import (
    Encoder,
    LocalEpochs,
    LocalPrivacy,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisyRecords,
    Protocol,
    Refusal,
    SecretSubsets,
    Uniform,
    gradient,
    ready,
    simulate,
)
from fedprivjax.engine.simulate import execute
from fedprivjax.engine.transcript import replay
from fedprivjax.method.algorithm import NormBound
from fedprivjax.method.linear import Linear
from fedprivjax.method.local_algorithm import sub
from fedprivjax.problem.models import Outer
from fedprivjax.protocols.fedavg import LocalGradientSteps
from fedprivjax.protocols.noisy_sgd import SGD

SOME = Uniform(MACHINES, PER_ROUND)
CLIP = 0.3


def local(algorithm, **settings):
    """Return a protocol of local work, with ε = 2 unless the noise is given."""
    level = {} if "noise_std" in settings else {"epsilon": 2.0}
    noise = {"noise_std": settings.pop("noise_std")} if "noise_std" in settings else level
    return Protocol(algorithm, privacy=LocalPrivacy(work=LocalEpochs(1, 2), **settings), step_size=0.1, **noise)


def longest(method):
    """Return the largest norm of a message of two rounds, without its noise."""
    start = ready(method, SHARES, SOME, rounds=2, noise_method="materialised")
    assert start.guarantee.private
    messages = jax.tree.leaves(replay(start.arguments, start.plan.size)[1][1])[0]
    return np.linalg.norm(np.asarray(messages), axis=-1).max()


@struct.dataclass
class Louder(LocalGradientSteps):
    """A multiple of the gradient without a clip: ε = 1 stated by the Lipschitz constant, messages 10⁴ times as long."""

    def ask(self, carry):
        return 1e4 * gradient(carry)


def test_a_combination_of_gradients_in_local_steps_needs_a_clip():
    with pytest.raises(Refusal, match=r"^clip must be set with unit = 'record', .* Set clip in LocalPrivacy$"):
        ready(local(Louder(), unit="record"), SHARES, SOME, rounds=2)
    assert ready(local(Louder(), unit="record", clip=CLIP), SHARES, SOME, rounds=2).guarantee.private


@jax.tree_util.register_pytree_node_class
class Growing:
    """A container whose numbers are ten times as large whenever they are taken out of it."""

    def __init__(self, held):
        self.held = held

    def tree_flatten(self):
        return (10 * self.held if isinstance(self.held, jax.Array) else self.held,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@struct.dataclass
class InContainer(LocalGradientSteps):
    """An update in such a container: norm 300 for C = 0.3."""

    def leave(self, carry, received, own, work):
        return Growing(sub(carry, received))

    def serve(self, server, mean, at):
        return super().serve(server, mean.held, at)


def test_a_container_does_not_change_a_bounded_message():
    assert longest(local(InContainer(), unit="machine", update_clip=CLIP, noise_std=1.0)) == pytest.approx(CLIP, 1e-5)


@struct.dataclass
class Weightless(Outer):
    """A gradient that says that its norm is 0."""

    def norm(self):
        return jnp.float32(0)


@jax.tree_util.register_pytree_node_class
class Factor:
    """A coefficient that returns a longer gradient of such a class."""

    ndim, shape = 0, ()

    def __init__(self, number):
        self.number = number

    def __mul__(self, g):
        return Weightless(1e4 * g.residual, g.features, g.feature_norm)

    def tree_flatten(self):
        return (self.number,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@struct.dataclass
class Multiplied(SGD):
    """A gradient times this coefficient: norm 4,165 for C = 0.3."""

    def message(self, server, t):
        return Linear((Factor(jnp.float32(1)),), (server.w,))


def test_a_coefficient_is_a_number():
    method = Protocol(Multiplied(), privacy=NoisyRecords(clip=CLIP, batch=2), noise_std=1.0, step_size=0.1)
    with pytest.raises(Refusal, match=r"^a coefficient of a message must be one real number, got a Factor"):
        longest(method)


@struct.dataclass
class Sometimes(LocalGradientSteps):
    """A state of machines in the program only: ε = 2 stated for secret subsets by the theorem without a state."""

    compiled: ClassVar[bool] = False

    def own(self, public):
        return jnp.zeros(3) if self.compiled else ()


def test_machines_keep_a_state_as_the_guarantee_says(monkeypatch):
    method = local(Sometimes(), unit="machine", update_clip=CLIP)
    start = ready(method, SHARES, SecretSubsets(MACHINES, PER_ROUND), rounds=2)
    monkeypatch.setattr(Sometimes, "compiled", True)
    with pytest.raises(Refusal, match=r"^own of Sometimes must always hold numbers, or never"):
        execute(start)


@struct.dataclass
class OfTracers(LocalGradientSteps):
    """A state of machines for traced parameters only."""

    def own(self, public):
        return jnp.zeros(3) if isinstance(jax.tree.leaves(public.start)[0], Tracer) else ()


def test_what_is_read_of_an_algorithm_is_read_of_traced_parameters():
    method = local(OfTracers(), unit="machine", update_clip=CLIP)
    with pytest.raises(Refusal, match="with client state"):
        simulate(method, SHARES, SecretSubsets(MACHINES, PER_ROUND), rounds=2)


class Small(float):
    """A number that is another one in guarantees: noise 10⁻⁶ for clip = 1 and ε = 1."""

    def __float__(self):
        return 1e-6


class SmallLater:
    """The same for programs that convert it to an array."""

    def __float__(self):
        return 1e-6

    def __jax_array__(self):
        return jnp.float32(1.0)


class SmallThenLarge:
    """The same for programs that convert it as NumPy does."""

    def __float__(self):
        return 1e-6

    def __array__(self, dtype=None, copy=None):
        return np.asarray(1.0, dtype)


class Many(int):
    """A number of records by which nothing is left of a sensitivity."""

    def __rtruediv__(self, other):
        return 1e-6 * other


NUMBERS = [
    {"clip": Small(1.0), "batch": 2},
    {"clip": SmallLater(), "batch": 2},
    {"clip": SmallThenLarge(), "batch": 2},
    {"clip": 1.0, "batch": Many(2)},
]


@pytest.mark.parametrize("settings", NUMBERS)
def test_a_number_of_another_class_is_refused(settings):
    method = NoisyMinibatchSGD(epsilon=1.0, step_size=0.1, **settings)
    with pytest.raises(Refusal, match=r"^a number of a private run must be of a class of Python, NumPy or JAX, got "):
        ready(method, SHARES, SOME, rounds=2)


@struct.dataclass
class Underflowing(SGD):
    """Messages of norm 10⁻²⁵, whose squares are 0, with a bound of 10⁻³⁰: 10⁵ times the stated sensitivity."""

    def message(self, server, t):
        return 1e-25 * gradient(server.w)

    def bound(self, public):
        return NormBound(1e-30, ())


@dataclass(frozen=True)
class UnderflowingEncoder(Encoder):
    """Encoded messages likewise."""

    def encode(self, message, key):
        return 1e-25 * message

    def norm_bound(self, norm, dimension):
        return 1e-30


def test_a_bound_whose_norms_underflow_is_refused():
    method = Protocol(Underflowing(), privacy=NoisyMessages(), mu=1.0, step_size=0.1)
    with pytest.raises(
        Refusal, match=r"^bound of Underflowing must be at least 1e-12, so that norms do not underflow, got 1e-30"
    ):
        ready(method, POOL, SOME_MACHINES, rounds=2)
    encoded = local(LocalGradientSteps(), unit="machine", update_clip=CLIP, encoder=UnderflowingEncoder())
    with pytest.raises(Refusal, match=r"^norm_bound must be at least 1e-12"):
        ready(encoded, SHARES, SOME, rounds=2)
    steep = replace(SHARES, own_lipschitz=1e-30)
    with pytest.raises(Refusal, match=r"^lipschitz must be at least 1e-12"):
        ready(local(LocalGradientSteps(), unit="record"), steep, SOME, rounds=2)
