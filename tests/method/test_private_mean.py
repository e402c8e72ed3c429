"""Private means of users' messages with any algorithm: bit-equal to the named methods, bounds, refusals."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import COMPILED, MACHINES, POOL, SOME_MACHINES, sparing
from flax import struct
from heavy_ball import HeavyBall

from fedprivjax import (
    Absolute,
    Ball,
    BitMean,
    Cohorts,
    GaussianMean,
    Moreau,
    OnePass,
    Protocol,
    Refusal,
    UserAGD,
    UserSGD,
    check_protocol,
    gradient,
    linear_problem,
    simulate,
    transcript,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.method.momentum import NormalisedSteps
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedSGD
from fedprivjax.protocols.dp_mu2 import Mu2
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.testing import PROPERTIES

ROUNDS, CLIP = 4, 0.3
SETTINGS: dict[str, Any] = {"noise_std": 0.4, "step_size": 0.1}
PRIVACY = {
    "shuffler": BitMean(clip=CLIP),
    "shuffler-options": BitMean(clip=CLIP, levels=9, rounding="coupled", honest=0.5),
    "none": GaussianMean(clip=CLIP),
    "server": GaussianMean(clip=CLIP, trust="server"),
    "pan-private": GaussianMean(clip=CLIP, trust="pan-private"),
    "bounded": BitMean(),
}


def named(privacy):
    own = {name: getattr(privacy, name) for name in ("clip", "trust")}
    if isinstance(privacy, BitMean):
        own |= {name: getattr(privacy, name) for name in ("levels", "rounding", "honest")}
    return UserSGD(**own, **SETTINGS)


@pytest.mark.parametrize("name", sparing(list(PRIVACY), ["shuffler-options"]))
def test_a_pair_is_the_named_method_bit_for_bit(name):
    each = named(PRIVACY[name]), Protocol(SGD(average=True), privacy=PRIVACY[name], **SETTINGS)
    runs = [simulate(one, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3, metrics=()) for one in each]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].guarantee.to_json() == runs[1].guarantee.to_json()
    assert {**runs[0].costs, "seconds": 0.0} == {**runs[1].costs, "seconds": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["shuffler", "none", "pan-private"])
def test_and_so_is_what_an_adversary_sees(trust):
    each = named(PRIVACY[trust]), Protocol(SGD(average=True), privacy=PRIVACY[trust], **SETTINGS)
    views = [transcript(one, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3) for one in each]
    for one, other in zip(*map(jax.tree.leaves, ((v.queries, v.messages, v.internal) for v in views)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (len(jax.tree.leaves(views[1].internal)) > 0) == (trust == "pan-private")


@pytest.mark.slow
def test_the_noise_of_another_algorithm_is_as_stated():
    held = ("silent without noise", "the noise has the stated distribution", "the target is met")
    pair = Protocol(HeavyBall(), privacy=PRIVACY["shuffler"], **SETTINGS)
    assert check_protocol(pair, POOL, properties=held).held == held


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffler", "none", "pan-private"])
def test_another_algorithm_keeps_the_contract(name):
    properties = PROPERTIES if name == "none" else COMPILED
    report = check_protocol(Protocol(HeavyBall(), privacy=PRIVACY[name], **SETTINGS), POOL, properties=properties)
    assert set(report.held) == set(properties) - set(report.not_applicable)


# ---- the bound


def loud(factor):
    """Return an algorithm whose message is a multiple of the gradient."""
    message = {"message": lambda self, server, t: factor * gradient(server[0]), "__module__": __name__}
    return struct.dataclass(type("Loud", (HeavyBall,), message))()


def first_sent(privacy, factor):
    view = transcript(
        Protocol(loud(factor), privacy=privacy, noise_std=1e-6, step_size=0.1), POOL, SOME_MACHINES, rounds=1, seed=3
    )
    return np.asarray(view.messages)


def test_a_multiple_of_a_gradient_is_clipped_and_a_message_that_is_none_is_zero():
    norms = np.linalg.norm(first_sent(PRIVACY["none"], 1e4).reshape(-1, POOL.dimension), axis=1)
    np.testing.assert_allclose(norms, CLIP, rtol=1e-4)
    assert np.abs(first_sent(PRIVACY["none"], np.nan)).max() < 1e-4


@pytest.mark.slow
def test_bits_are_of_a_message_that_is_clipped_as_a_whole():
    """Coordinates by themselves would reach the bound, each of them."""
    privacy = BitMean(clip=CLIP, levels=1000)
    method = Protocol(loud(1e4), privacy=privacy, noise_std=1e-3, step_size=0.1)
    sent = np.asarray(transcript(method, POOL, OnePass(MACHINES, 1), rounds=1, seed=3).messages)
    assert np.linalg.norm(sent) == pytest.approx(CLIP, rel=0.05)


def test_a_combination_without_a_clip_or_a_bound_is_refused():
    for privacy in (BitMean(), GaussianMean()):
        with pytest.raises(Refusal, match=f"clip must be set, .* Set clip in {type(privacy).__name__}$"):
            ready(Protocol(loud(2.0), privacy=privacy, **SETTINGS), POOL, SOME_MACHINES, rounds=ROUNDS)


def test_no_message_is_rounded_with_the_servers_key():
    key = protocol_key(jax.random.key(3), 1)
    of_server = BitMean().server_key(key)
    of_slots = jax.vmap(lambda slot: jax.random.fold_in(key, slot))(jnp.arange(1000))
    kept, *others = (np.asarray(jax.random.key_data(one)).reshape(-1, 2) for one in (of_server, of_slots, key))
    assert all((rows != kept).any(axis=1).all() for rows in others)


# ---- envelopes


KINKED = linear_problem(
    np.eye(4, dtype=np.float32)[:, None],
    np.ones((4, 1), np.float32),
    Moreau(Absolute(), 50.0),
    feature_bound=1.0,
    constraint=Ball(1.0),
)


@pytest.mark.slow
def test_envelopes_of_every_round_are_those_of_the_phases():
    """The algorithm asks for the strengths that `UserAGD` chose, and reaches the same point."""
    method = UserAGD(noise_std=0.1, strong_convexity=0.3, phases=2, smoothing="phases")
    planned: Any = ready(method, KINKED, OnePass(4, 1), seed=3, metrics=()).protocol
    run = simulate(method, KINKED, OnePass(4, 1), seed=3, metrics=())
    made = replace(AcceleratedSGD(), schedule=planned.schedule, strengths=planned.strengths)
    pair = Protocol(made, privacy=BitMean(), noise_std=0.1, step_size=1.0)
    reached = simulate(pair, KINKED, OnePass(4, 1), seed=3, metrics=()).params
    np.testing.assert_allclose(reached, run.params, rtol=1e-6)
    assert planned.strengths is not None
    given = replace(pair, algorithm=replace(made, strengths=None))
    without = simulate(given, KINKED, OnePass(4, 1), seed=3, metrics=()).params
    assert np.abs(without - run.params).max() > 1e-6


def smoothing(value):
    own = {"smoothing": lambda self, server: value, "__module__": __name__}
    return struct.dataclass(type("Smoothing", (HeavyBall,), own))()


@pytest.mark.parametrize(
    ("value", "problem", "says"),
    [
        (3.0, POOL, "loss must be an envelope"),
        ([1.0, 2.0], KINKED, "the strength of envelopes must be one real number"),
        ("strong", KINKED, "the strength of envelopes must be one real number"),
    ],
)
def test_envelopes_of_other_losses_and_strengths_that_are_none_are_refused(value, problem, says):
    method = Protocol(smoothing(value), privacy=GaussianMean(clip=CLIP), **SETTINGS)
    participation = OnePass(4, 2) if problem is KINKED else SOME_MACHINES
    with pytest.raises(Refusal, match=says):
        simulate(method, problem, participation, rounds=2)


# ---- refusals


REFUSED = {
    "sums": (lambda: Protocol(Mu2(), privacy=BitMean(clip=CLIP), **SETTINGS), r"reads must be Mean\(\) with BitMean"),
    "momentum": (
        lambda: Protocol(NormalisedSteps(alpha=0.5), privacy=GaussianMean(clip=CLIP), **SETTINGS),
        r"reads must be Mean\(\) with GaussianMean",
    ),
    "the named method as privacy": (
        lambda: Protocol(SGD(), privacy=UserSGD(epsilon=1.0), **SETTINGS),
        "privacy must be a NoisyMessages",
    ),
    "a shuffler of normals": (lambda: GaussianMean(trust="shuffler"), "unknown trust 'shuffler'"),
    "levels of normals": (lambda: GaussianMean(**{"levels": 3}), "unknown setting of GaussianMean 'levels'"),
    "shares of bits": (lambda: BitMean(**{"relative_privacy": (1.0, 2.0)}), "unknown setting of BitMean"),
    "shares of one noise": (
        lambda: GaussianMean(trust="server", relative_privacy=(1.0, 2.0)),
        "relative_privacy must be left out with trust = 'server'",
    ),
    "derived sums": (lambda: BitMean(vector_sum=1.0), "vector_sum must be left out of BitMean"),
    "no honest user": (lambda: BitMean(honest=0.0), "honest must be above 0"),
    "an underflowing clip": (lambda: BitMean(clip=1e-20), "clip must be at least 1e-12"),
    "no step": (lambda: Protocol(SGD(), privacy=BitMean(clip=CLIP), noise_std=1.0), "step_size must be given for SGD"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pairs_without_a_proof_and_invalid_settings_are_refused(name):
    make, says = REFUSED[name]
    with pytest.raises(Refusal, match=says):
        ready(make(), POOL, SOME_MACHINES, rounds=ROUNDS)


def test_cohorts_of_several_sizes_need_one_noise():
    pair = Protocol(SGD(), privacy=GaussianMean(clip=CLIP), **SETTINGS)
    cohorts = Cohorts(SOME_MACHINES.machines, (1, 2))
    with pytest.raises(Refusal, match="cohorts must be of one size with trust = 'none'"):
        ready(pair, POOL, cohorts)
    ready(replace(pair, privacy=GaussianMean(clip=CLIP, trust="server")), POOL, cohorts)


def test_the_objects_are_sealed():
    for parent in (GaussianMean, BitMean):
        with pytest.raises(Refusal, match=f"{parent.__name__} must not be subclassed"):
            type("Mine", (parent,), {})
