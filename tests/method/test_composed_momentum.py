"""Algorithms that read a momentum: bit-equal to the tree momenta, enforced lengths, and refusals."""

from typing import Any

import jax
import numpy as np
import pytest
from cases import MACHINES, POOL, SHARES, sparing
from flax import struct

from fedprivjax import (
    Full,
    Momentum,
    NoisyMessages,
    NoisyMomentum,
    NoisyRecords,
    Protocol,
    ReducedMomentum,
    ReducedTreeMomentum,
    Refusal,
    TreeMomentum,
    gradient,
    ready,
    simulate,
    transcript,
)
from fedprivjax.method.momentum import NormalisedSteps
from fedprivjax.protocols.noisy_sgd import SGD

EVERYONE, ROUNDS, STEP = Full(MACHINES), 12, 0.1
SETTINGS: dict[str, Any] = {"mu": 4.0, "step_size": STEP}


def tree_pair(**settings):
    named = TreeMomentum(alpha=0.5, batch=9, clip=0.3, **settings, **SETTINGS)
    return named, Protocol(NormalisedSteps(alpha=0.5), privacy=NoisyMomentum(batch=9, clip=0.3, **settings), **SETTINGS)


def reduced_pair(**settings):
    named = ReducedTreeMomentum(alpha=0.5, batch=9, clip=0.3, **settings, **SETTINGS)
    privacy = ReducedMomentum(length=STEP, batch=9, clip=0.3, **settings)
    return named, Protocol(NormalisedSteps(alpha=0.5), privacy=privacy, **SETTINGS)


PAIRS = {
    "tree": tree_pair(),
    "tree-none": tree_pair(trust="none", sampler="reshuffled"),
    "tree-independent": tree_pair(factor="independent"),
    "reduced": reduced_pair(),
    "reduced-none": reduced_pair(trust="none"),
}


@pytest.mark.parametrize("name", sparing(list(PAIRS), ["tree-none", "reduced"]))
def test_a_pair_is_the_named_method_bit_for_bit(name):
    runs = [simulate(each, SHARES, EVERYONE, rounds=ROUNDS, seed=3, metrics=()) for each in PAIRS[name]]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].guarantee.to_json() == runs[1].guarantee.to_json()


def stepping(length):
    """Return an algorithm whose points are this far apart."""

    def serve(self, server, read, at):
        return NormalisedSteps.serve(self, server, read, at._replace(step=length))

    return struct.dataclass(type("Stepping", (NormalisedSteps,), {"serve": serve, "__module__": __name__}))(alpha=0.5)


def test_points_that_travel_further_than_the_length_are_moved_back():
    """The algorithm takes steps of 0.3 in a set that allows them, and gradients are taken at points 0.01 apart."""
    privacy = ReducedMomentum(length=0.01, batch=9, clip=0.3)
    ways = []
    for step in (0.01, 0.3):
        method = Protocol(stepping(step), privacy=privacy, **SETTINGS)
        queries = np.asarray(transcript(method, SHARES, EVERYONE, rounds=ROUNDS, seed=3).queries, np.float64)
        flat = queries.reshape(ROUNDS, -1)
        ways.append(np.linalg.norm(np.diff(flat, axis=0), axis=1).max())
    np.testing.assert_allclose(ways, 0.01, rtol=1e-4)


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
    "small alpha": (
        lambda: Protocol(NormalisedSteps(alpha=0.01), privacy=NoisyMomentum(clip=1.0, batch=9), **SETTINGS),
        SHARES,
        "alpha must be at least",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pairs_without_a_proof_are_refused(name):
    make, problem, says = REFUSED[name]
    method = make()
    with pytest.raises(Refusal, match=says):
        simulate(method, problem, EVERYONE, rounds=ROUNDS)


def test_a_combination_of_gradients_has_no_reduced_noise():
    twice = {"message": lambda self, server, t: gradient(server.w) + gradient(server.w), "__module__": __name__}
    algorithm = struct.dataclass(type("Twice", (NormalisedSteps,), twice))(alpha=0.5)
    method = Protocol(algorithm, privacy=ReducedMomentum(length=0.1, batch=9, clip=0.3), **SETTINGS)
    with pytest.raises(Refusal, match="message must be one gradient with ReducedMomentum"):
        ready(method, SHARES, EVERYONE, rounds=ROUNDS)


def test_the_objects_are_sealed_and_read_a_momentum_as_a_tree_of_one_number():
    for parent in (NoisyMomentum, ReducedMomentum):
        with pytest.raises(Refusal, match=f"{parent.__name__} must not be subclassed"):
            type("Mine", (parent,), {})
    assert jax.tree.leaves(Momentum(0.5)) == [0.5]
