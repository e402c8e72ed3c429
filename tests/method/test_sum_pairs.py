"""Algorithms that read growing sums: bit-equal to stale momentum, bounded increments, and refusals."""

from typing import Any

import jax
import numpy as np
import pytest
from cases import MACHINES, POOL, SHARES, SOME_MACHINES, sparing
from flax import struct

from fedprivjax import (
    Dropouts,
    Growing,
    Mean,
    NoisyMessages,
    NoisyRecords,
    NormBound,
    Protocol,
    Refusal,
    StaleMomentum,
    audit,
    check_protocol,
    gradient,
    simulate,
    transcript,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.method.protocol import Pair
from fedprivjax.method.sum_rounds import SumRounds
from fedprivjax.protocols.stale_momentum import Stale

ROUNDS, CLIP = 8, 0.5
SETTINGS: dict[str, Any] = {"mu": 4.0, "step_size": 0.05}
SEQUENCE = tuple(1.0 + 0.2 * k for k in range(ROUNDS))
OPTIONS = {
    "uniform": {},
    "sequence": {"noise": SEQUENCE},
    "batch": {"batch": 2},
    "relative": {"relative_privacy": tuple(1.0 + k for k in range(MACHINES))},
}


def grown(algorithm=None, **settings):
    privacy = NoisyMessages(**{"clip": CLIP, "noise": "uniform", **settings})
    return Protocol(Stale() if algorithm is None else algorithm, privacy=privacy, **SETTINGS)


def variant(**members):
    """Return an algorithm like `Stale` with other members."""
    return struct.dataclass(type("Variant", (Stale,), {"__module__": __name__, **members}))()


@pytest.mark.parametrize("name", sparing(list(OPTIONS), ["uniform"]))
def test_a_pair_is_stale_momentum_bit_for_bit(name):
    own = {"noise_schedule" if key == "noise" else key: value for key, value in OPTIONS[name].items()}
    named, pair = StaleMomentum(clip=CLIP, **own, **SETTINGS), grown(**OPTIONS[name])
    assert type(pair.rounds) is SumRounds
    runs = [simulate(each, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3, metrics=()) for each in (named, pair)]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].guarantee.to_json() == runs[1].guarantee.to_json()
    assert {**runs[0].costs, "seconds": 0.0} == {**runs[1].costs, "seconds": 0.0}
    views = [transcript(each, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3) for each in (named, pair)]
    np.testing.assert_array_equal(views[0].queries, views[1].queries)
    np.testing.assert_array_equal(views[0].messages, views[1].messages)


@pytest.mark.slow
def test_a_pair_meets_the_contract():
    check_protocol(grown(), POOL, SOME_MACHINES)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_finds_what_is_claimed_and_no_more():
    found = audit(grown(), runs=2000)
    assert not found.refuted
    assert found.tightness > 0.5


def first_messages(algorithm, noise_std, clip):
    """Norms of the messages of machines in their first round, which are their increments."""
    protocol = Protocol(
        algorithm, privacy=NoisyMessages(clip=clip, noise="uniform"), noise_std=noise_std, step_size=0.05
    )
    view = transcript(protocol, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3)
    assert view.messages is not None
    counts = ready(protocol, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3, metrics=()).plan.schedule.counts
    return np.linalg.norm(np.reshape(view.messages, (*counts.shape, -1)), axis=-1)[counts == 1]


def test_an_increment_is_within_the_clip_after_its_coefficients():
    """C, not 10⁴ times the gradient."""
    algorithm = variant(increment=lambda self, server, t, before: 1e4 * gradient(server.x))
    np.testing.assert_allclose(first_messages(algorithm, 1e-9, CLIP), CLIP, rtol=1e-5)


def test_a_stated_bound_is_enforced_in_private_runs():
    """A false bound of 10⁻⁶ changes what is sent, not what is claimed."""
    algorithm = variant(bound=lambda self, public: NormBound(1e-6, ()))
    start = ready(grown(algorithm, clip=None), POOL, SOME_MACHINES, rounds=ROUNDS, metrics=())
    assert start.event.sensitivity == pytest.approx(2e-6)
    assert first_messages(algorithm, 1e-12, None).max() < 1.001e-6
    assert first_messages(algorithm, 0.0, None).min() > 1e-3


def test_the_algorithm_sees_no_sum():
    """What a machine remembers is public: zeros before its first round, then the query of its last one."""
    seen = []

    def increment(self, server, t, before):
        seen.append(jax.tree.structure(before))
        return Stale.increment(self, server, t, before)

    simulate(grown(variant(increment=increment)), POOL, SOME_MACHINES, rounds=2, metrics=())
    assert {structure.num_leaves for structure in seen} == {1 + len(jax.tree.leaves(POOL.start))}


@struct.dataclass
class AlsoGrowing(Growing):
    """Passes for growing sums."""


REFUSED = {
    "trusted server": (lambda: grown(trust="server"), "trust must be 'none' for growing sums"),
    "independent": (lambda: grown(noise="independent"), "noise must be 'uniform' or standard deviations for growing"),
    "gap": (lambda: grown(noise="gap"), "noise must be 'uniform' or standard deviations for growing sums"),
    "toeplitz": (lambda: grown(noise="toeplitz"), "noise must be 'uniform' or standard deviations for growing sums"),
    "no clip": (lambda: grown(clip=None), "clip must be set"),
    "means": (
        lambda: grown(variant(reads=property(lambda self: Mean()))),
        r"reads of Variant must be Growing\(\) with Variant",
    ),
    "another object": (lambda: grown(variant(reads=property(lambda self: AlsoGrowing()))), r"must be Growing\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pairs_without_a_proof_are_refused(name):
    made, says = REFUSED[name]
    with pytest.raises(Refusal, match=says):
        simulate(made(), POOL, SOME_MACHINES, rounds=ROUNDS)


def test_means_over_own_records_are_refused():
    method = Protocol(Stale(), privacy=NoisyRecords(clip=CLIP, sampler="full"), **SETTINGS)
    with pytest.raises(Refusal, match=r"reads must be Mean\(\) with NoisyRecords"):
        simulate(method, SHARES, SOME_MACHINES, rounds=ROUNDS)


def test_dropouts_are_refused():
    with pytest.raises(Refusal, match="dropouts must be left out with Stale"):
        simulate(grown(), POOL, Dropouts(SOME_MACHINES, 0.3), rounds=ROUNDS)


def test_the_pair_is_sealed():
    with pytest.raises(Refusal, match="Pair must not be subclassed"):
        type("Mine", (Pair,), {})
