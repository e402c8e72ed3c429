"""Numbers of other types: NumPy integers of any width give the same guarantee, all else is refused in one line."""

from fractions import Fraction

import numpy as np
import pytest

from fedprivjax import (
    Absolute,
    Balanced,
    Buffered,
    Cyclic,
    CyclicPoisson,
    FedAvg,
    Full,
    LocalEpochs,
    LocalSteps,
    NoisyMinibatchSGD,
    OnePass,
    PoissonCohorts,
    Refusal,
    SecretSubsets,
    Uniform,
    ready,
)
from fedprivjax.plan.samplers import Full as AllRecords
from fedprivjax.privacy.gdp import epsilon
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Terms
from fedprivjax.problem.build import linear_problem

MACHINES = 200
PROBLEM = linear_problem(np.zeros((MACHINES, 4, 2)), np.zeros((MACHINES, 4)), Absolute(), feature_bound=1.0)
ONE = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0]))


def minibatches(**settings):
    return NoisyMinibatchSGD(**{"clip": 1.0, "step_size": 0.1, "sampler": "subset", "batch": 2, **settings})


def local(**settings):
    return FedAvg(unit="record", noise_std=1.0, clip=1.0, step_size=0.1, **settings)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint64])
def test_integers_of_any_width_have_one_meaning(kind):
    def found(number, method):
        return ready(method, PROBLEM, Full(MACHINES), rounds=number(20)).guarantee.epsilon

    for make in (
        lambda number: minibatches(noise_std=1.0, batch=number(2)),
        lambda number: local(local_epochs=number(3), batch=number(2)),
        lambda number: local(local_steps=number(3), sampler="full"),
    ):
        assert found(kind, make(kind)) == found(int, make(int))
    assert CyclicPoisson(MACHINES, kind(4), 0.5).turns(8).tolist() == [2] * MACHINES


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("scheme", [Full, Uniform, Balanced, Cyclic, OnePass, SecretSubsets, Buffered])
def test_schemes_of_short_integers_are_those_of_integers(scheme, kind):
    def drawn(number):
        made = scheme(number(120)) if scheme is Full else scheme(number(120), number(60))
        return made.draw(2, np.random.default_rng(0)).participants, made.machines * made.per_round

    rows, slots = drawn(kind)
    expected, product = drawn(int)
    np.testing.assert_array_equal(rows, expected)
    assert slots == product


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ready(minibatches(noise_std=1.0, batch=[None] * MACHINES), PROBLEM, Full(MACHINES), rounds=2),
            "batch",
        ),
        (lambda: minibatches(epsilon=[Fraction(2), 1.0]), "epsilon must be a list of numbers, one for each machine"),
        (lambda: minibatches(epsilon=[np.ones(1), 1.0]), "epsilon must be a list of numbers, one for each machine"),
        (lambda: minibatches(epsilon=b"2"), "epsilon must be a positive number, got b'2'"),
        (lambda: minibatches(epsilon=2.0, relative_privacy=[[2.0], 1.0]), "relative_privacy must be a list of numbers"),
        (lambda: minibatches(epsilon=2.0, relative_privacy=np.ones((2, 1))), "relative_privacy must be a list of num"),
        (lambda: minibatches(epsilon=2.0, relative_privacy=np.array(2.0)), "relative_privacy must be a list of num"),
        (lambda: LocalEpochs(10**400), "local_epochs must be below 2³¹"),
        (lambda: LocalEpochs(1, 2**63), "batch must be at most 2⁶²"),
        (lambda: LocalSteps(10**400, AllRecords()), "local_steps must be below 2³¹"),
        (lambda: PoissonCohorts(2**63, rate=0.5), "machines must be below 2³¹"),
        *(
            (lambda value=value, read=read: read(value), "(epsilon|order) must be a")
            for value in ("1", b"1", None, [1.0], np.ones(1), 10**400)
            for read in (ONE.delta_at, ONE.rdp)
        ),
    ],
)
def test_other_types_are_refused_in_one_line(make, message):
    with pytest.raises(Refusal, match=f"^{message}") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_fractions_and_short_floats_are_numbers():
    assert ONE.delta_at(Fraction(1, 2)) == ONE.delta_at(np.float16(0.5)) == ONE.delta_at(0.5)
    assert ONE.rdp(Fraction(2)) == 1.0
    assert ONE.epsilon_at(np.float16(2**-10)) == epsilon(1.0, 2**-10)
