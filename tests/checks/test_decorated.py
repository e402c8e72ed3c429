"""Messages for custom classes without the required decorator, and for jax's 64-bit mode."""

from typing import Any

import jax
import numpy as np
import pytest
from restating import planted, unsealed

from fedprivjax import (
    Algorithm,
    Ball,
    ConstraintSet,
    Full,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Participation,
    Protocol,
    Refusal,
    Softmax,
    linear_problem,
    simulate,
    sweep,
)
from fedprivjax.features import FeatureMap, as_maps
from fedprivjax.noise import Mechanism
from fedprivjax.plan.samplers import Sampler, Subset
from fedprivjax.protocols.noisy_sgd import SGD

X, Y = np.ones((2, 8, 3)), np.zeros((2, 8), int)
PROBLEM = linear_problem(X, Y, Softmax(2), feature_bound=9.0)
PRIVATE = NoisySGD(mu=1.0, clip=1.0, step_size=0.1)


class Slower(SGD):
    factor: Any = 2.0


class Empty(Algorithm):
    beta: Any = None


class Shifted(Ball):
    shift: Any = 0.0


class Halfspace(ConstraintSet):
    offset: Any


class First(Participation):
    machines: int
    per_round: int


class Pair(Participation):
    machines = per_round = 2


class Wider(Full):
    more: int = 1


class Picks(Sampler):
    batch = 2


class Halved(FeatureMap):
    times: int


class Quiet(Mechanism):
    pass


def run(protocol=PRIVATE, problem=PROBLEM, participation=Full(2)):  # noqa: B008
    return simulate(protocol, problem, participation, rounds=2)


STRUCT, FROZEN = "a flax.struct.dataclass", "a dataclass(frozen=True)"
CASES = [
    (lambda: Protocol(Slower(), privacy=NoisyMessages(clip=1.0)), f"algorithm Slower must be {STRUCT}"),
    (lambda: Slower(factor=3.0), f"algorithm Slower must be {STRUCT}"),
    (lambda: Empty(beta=1.0), f"algorithm Empty must be {STRUCT}"),
    (lambda: linear_problem(X, Y, Softmax(2), constraint=Shifted(1.0)), f"constraint Shifted must be {STRUCT}"),
    (lambda: Halfspace(0.1), f"constraint Halfspace must be {STRUCT}"),
    (lambda: First(2, 2), f"participation First must be {FROZEN}"),
    (lambda: run(participation=Pair()), f"participation Pair must be {FROZEN}"),
    (lambda: run(participation=Wider(2)), f"participation Wider must be {FROZEN}"),
    (lambda: NoisyMinibatchSGD(sampler=Picks(), epsilon=1.0, clip=1.0), f"sampler Picks must be {FROZEN}"),
    (lambda: Halved(2), f"feature map Halved must be {FROZEN}"),
    (lambda: as_maps(Halved()), f"feature map Halved must be {FROZEN}"),
    (
        lambda: run(planted(PRIVATE, unsealed(mechanism=lambda private, facts, method: Quiet()))),
        f"mechanism Quiet must be {STRUCT}",
    ),
]


@pytest.mark.parametrize(("make", "says"), CASES, ids=[str(place) for place in range(len(CASES))])
def test_a_class_without_its_decorator_is_refused(make, says):
    with pytest.raises(Refusal) as caught:
        run(make())
    assert str(caught.value) == f"{says}, got a class without that decorator"


def test_a_subclass_that_adds_no_field_needs_no_decorator_to_be_frozen():
    class Twice(Subset):
        words = "another"

    assert as_maps([]) == ()
    assert NoisyMinibatchSGD(sampler=Twice(2), epsilon=1.0, clip=1.0).minibatches == Twice(2)


def test_the_64_bit_mode_is_refused_before_anything_is_drawn():
    says = r"^jax_enable_x64 must be off, because programs compute in float32, got on\. Unset JAX_ENABLE_X64$"
    with jax.enable_x64(True):
        with pytest.raises(Refusal, match=says):
            run()
        with pytest.raises(Refusal, match=says):
            sweep(NoisySGD(clip=1.0), PROBLEM, Full(2), over={"mu": [1.0]})
