"""Algorithms that read a momentum: bit-equal to tree momentum, and refusals."""

from typing import Any

import jax
import numpy as np
import pytest
from cases import MACHINES, POOL, SHARES, sparing

from fedprivjax import (
    Full,
    Momentum,
    NoisyMessages,
    NoisyMomentum,
    NoisyRecords,
    Protocol,
    Refusal,
    TreeMomentum,
    simulate,
)
from fedprivjax.method.difference_momentum import ReducedMomentum
from fedprivjax.method.momentum import NormalisedSteps
from fedprivjax.method.momentum_privacy import require_alpha
from fedprivjax.protocols.noisy_sgd import SGD

EVERYONE, ROUNDS, STEP = Full(MACHINES), 12, 0.1
SETTINGS: dict[str, Any] = {"mu": 4.0, "step_size": STEP}


def tree_pair(**settings):
    named = TreeMomentum(alpha=0.5, batch=9, clip=0.3, **settings, **SETTINGS)
    return named, Protocol(NormalisedSteps(alpha=0.5), privacy=NoisyMomentum(batch=9, clip=0.3, **settings), **SETTINGS)


PAIRS = {
    "tree": tree_pair(),
    "tree-none": tree_pair(trust="none", sampler="reshuffled"),
    "tree-independent": tree_pair(factor="independent"),
}


@pytest.mark.parametrize("name", sparing(list(PAIRS), ["tree-none"]))
def test_a_pair_is_the_named_method_bit_for_bit(name):
    runs = [simulate(each, SHARES, EVERYONE, rounds=ROUNDS, seed=3, metrics=()) for each in PAIRS[name]]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].guarantee.to_json() == runs[1].guarantee.to_json()


REFUSED = {
    "means": (
        lambda: Protocol(SGD(), privacy=NoisyMomentum(clip=1.0, batch=9), **SETTINGS),
        SHARES,
        "reads must be M",
    ),
    "fresh records": (
        lambda: Protocol(NormalisedSteps(alpha=0.5), privacy=NoisyMessages(clip=1.0), **SETTINGS),
        POOL,
        "reads must be Mean",
    ),
    "own records": (
        lambda: Protocol(NormalisedSteps(alpha=0.5), privacy=NoisyRecords(clip=1.0, sampler="full"), **SETTINGS),
        SHARES,
        "reads must be Mean",
    ),
    "reduced noise": (
        lambda: Protocol(NormalisedSteps(alpha=0.5), privacy=ReducedMomentum(length=STEP, clip=1.0), **SETTINGS),
        SHARES,
        "privacy must be a NoisyMessages or a NoisyRecords or a NoisyMomentum",
    ),
    "small alpha": (
        lambda: Protocol(NormalisedSteps(alpha=0.01), privacy=NoisyMomentum(clip=1.0, batch=9), **SETTINGS),
        SHARES,
        "alpha must be at least",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pairs_without_a_proof_are_refused(name):
    make, problem, says = REFUSED[name]
    with pytest.raises(Refusal, match=says):
        simulate(make(), problem, EVERYONE, rounds=ROUNDS)


@pytest.mark.parametrize("alpha", [1.5, 0.0, -1.0, np.nan, None, [0.5]])
def test_alpha_is_a_weight(alpha):
    with pytest.raises(Refusal, match="alpha must be above 0 and at most 1, got"):
        require_alpha(alpha)
    require_alpha(np.float32(1.0))


def test_the_objects_are_sealed_and_read_a_momentum_as_a_tree_of_one_number():
    for parent in (NoisyMomentum, ReducedMomentum):
        with pytest.raises(Refusal, match=f"{parent.__name__} must not be subclassed"):
            type("Mine", (parent,), {})
    assert jax.tree.leaves(Momentum(0.5)) == [0.5]
