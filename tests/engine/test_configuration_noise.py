"""Noise of single configurations: state in the scan, integers, and noise sampled on the host."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from flax import struct

from fedprivjax import (
    Algorithm,
    Full,
    MessagePrivacy,
    Metric,
    Protocol,
    Seeds,
    gradient,
    ready,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.noise import Fresh
from fedprivjax.noise.interface import normals
from fedprivjax.plan.seeds import as_seeds, round_keys, run_key
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Terms
from fedprivjax.problem.build import general_problem
from fedprivjax.sweeps.chunk_store import sweep_fingerprint
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

DIMENSION, ROUNDS = 6, 70  # sampled in two blocks between evaluations
LEVELS = np.array([3, -1, 2, 5], np.int32)
WEIGHTS = np.linspace(0.5, 2.0, ROUNDS, dtype=np.float32)
PROBLEM = general_problem(lambda w, x: jnp.vdot(w, w) * x, np.ones(ROUNDS * 2, np.float32), np.zeros(DIMENSION))
WHERE = Metric("where", lambda problem, snapshot: snapshot.params)
FIRST = Metric("first", lambda problem, snapshot: snapshot.params[0])


@struct.dataclass
class Walk(Algorithm):
    """w ← w − η·(mean of the messages): a random walk without data, because all messages are 0."""

    def init(self, public, step):
        return public.start

    def message(self, server, t):
        return 0.0 * gradient(server)

    def serve(self, server, read, at):
        return server - at.step * read

    def point(self, server):
        return server


@struct.dataclass(kw_only=True)
class Discounted(MessagePrivacy):
    """A trusted server's noise σ·Σ_s discount^(t−s)·z_s + levels[t]·host_t."""

    clip: Any = 1.0
    discount: Any = 0.5
    levels: Any = struct.field(default_factory=lambda: LEVELS)
    uses_host_noise: bool = struct.field(pytree_node=False, default=True)
    most: int = struct.field(pytree_node=False, default=4)

    trust = "server"

    @property
    def traced(self):
        return replace(self, most=0)

    def mechanism(self, facts, method):
        return Fresh(WEIGHTS[: facts.plan.size.rounds])

    def noise_state(self, dimension, rounds):
        return jnp.zeros(dimension), jnp.zeros((), jnp.int32)

    def round_noise(self, state, drawn, noise_std, reads, host_noise):
        total, place = state
        assert self.levels.dtype == jnp.int32
        assert place.dtype == jnp.int32
        total = self.discount * total + drawn
        noise = noise_std * total
        if host_noise is not None:
            assert host_noise.dtype == jnp.int32
            noise = noise + self.levels[place % LEVELS.size] * host_noise
        return (total, place + 1), noise

    def host_noise(self, plan, dimension, seed):
        """Return host noise that depends on the seed and on the configuration."""
        if not self.uses_host_noise:
            return None
        rng = np.random.default_rng([seed, round(1000 * self.discount)])
        return rng.integers(-self.most, self.most + 1, (plan.size.rounds, dimension), dtype=np.int32)

    def event(self, facts, noise_std):
        return GaussianEvent(noise_std, 1.0, Grouped.of(np.ones(facts.plan.size.machines)), Terms("server", "none"))


def walk(privacy=Discounted, **settings):
    """Return the walk with a class of noise and its settings."""
    return Protocol(Walk(), privacy=privacy(**settings), noise_std=0.7, step_size=0.1)


def by_hand(protocol, seed=0):
    """Return the points after every round and every round's noise, [rounds, d], by a loop in float64."""
    seeds, privacy = as_seeds(seed), protocol.privacy
    keys = round_keys(run_key(seeds), np.arange(1, ROUNDS + 1))
    z = WEIGHTS[:, None] * np.asarray(jax.vmap(lambda key: normals(key, (DIMENSION,)))(keys), np.float64)
    rng = np.random.default_rng([seeds.noise, round(1000 * privacy.discount)])
    host_noise = rng.integers(-privacy.most, privacy.most + 1, (ROUNDS, DIMENSION), dtype=np.int32)
    w, total, points, noises = np.zeros(DIMENSION), np.zeros(DIMENSION), [], []
    for t in range(ROUNDS):
        total = privacy.discount * total + z[t]
        noise = protocol.noise_std * total + privacy.uses_host_noise * int(LEVELS[t % 4]) * host_noise[t]
        w = w - protocol.step_size * noise
        points.append(w)
        noises.append(np.linalg.norm(noise))
    return np.array(points), np.array(noises)


OWN = walk(discount=0.9)


@pytest.mark.parametrize("uses_host_noise", [True, False])
@pytest.mark.parametrize("every", sparing([1, 9, ROUNDS], [9]))
def test_a_run_is_the_loop(every, uses_host_noise):
    protocol = walk(discount=0.9, uses_host_noise=uses_host_noise)
    run = simulate(protocol, PROBLEM, Full(2), rounds=ROUNDS, seed=3, eval_every=every, metrics=(WHERE, "noise_norm"))
    points, noises = by_hand(protocol, 3)
    np.testing.assert_allclose(run.metrics["where"], points[run.rounds - 1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run.metrics["noise_norm"], noises[run.rounds - 1], rtol=1e-4)


@pytest.mark.parametrize("budget", sparing([2**31, None], [None]), ids=["one chunk", "a run a chunk"])
def test_a_sweep_over_the_discount_is_its_loops(budget):
    own = walk()
    if budget is None:
        budget = sum(run_bytes(ready(own, PROBLEM, Full(2), rounds=ROUNDS, metrics=(FIRST,))))
    seeds = [4, Seeds(1, 1, 9)]
    options = {"rounds": ROUNDS, "eval_every": 30, "metrics": (FIRST, "noise_norm"), "memory_budget": budget}
    data = sweep(own, PROBLEM, Full(2), over={"privacy.discount": [0.0, 0.5, 0.95]}, seeds=seeds, **options)
    for place, seed in enumerate(seeds):
        for discount in (0.0, 0.5, 0.95):
            points, noises = by_hand(walk(discount=discount), seed)
            one = data.isel(seed=place).sel({"privacy.discount": discount})
            np.testing.assert_allclose(one["first"], points[one["round"].values - 1, 0], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(one["noise_norm"], noises[one["round"].values - 1], rtol=1e-4)


def test_a_transcript_follows_the_same_noise():
    seen = transcript(OWN, PROBLEM, Full(2), rounds=ROUNDS, seed=3)
    points, _ = by_hand(OWN, 3)
    np.testing.assert_allclose(seen.queries[1:], points[:-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(seen.params, points[-1], rtol=1e-4, atol=1e-4)


def test_host_noise_is_counted_in_the_memory_of_a_configuration():
    with_host_noise, plain = (
        run_bytes(ready(walk(discount=0.9, uses_host_noise=used), PROBLEM, Full(2), rounds=ROUNDS, metrics=(FIRST,)))
        for used in (True, False)
    )
    assert with_host_noise[0] == plain[0]
    assert with_host_noise[1] - plain[1] == 2 * ROUNDS * DIMENSION * 4  # the next chunk's is prepared meanwhile


def test_other_host_noise_is_another_sweep():
    """Cached chunks belong to one host noise, which host-only settings and custom code may change."""
    prints = [
        sweep_fingerprint(
            ready_sweep(walk(discount=0.9, most=most), PROBLEM, Full(2), rounds=5, seeds=1, metrics=(FIRST,))
        )
        for most in (4, 5, 4)
    ]
    assert prints[0] == prints[2] != prints[1]


def test_noise_without_state_and_with_it_are_recorded_alike():
    """With a discount of 0 the state is carried, and the noise is the round's own sample."""

    @struct.dataclass(kw_only=True)
    class Forgetful(Discounted):
        event = Discounted.event

        def noise_state(self, dimension, rounds):
            return ()

        def round_noise(self, state, drawn, noise_std, reads, host_noise):
            return state, noise_std * drawn

    options = {"rounds": ROUNDS, "seed": 3, "eval_every": 9, "metrics": (WHERE, "noise_norm")}
    carried, forgotten = (
        simulate(walk(privacy, discount=0.0, uses_host_noise=False), PROBLEM, Full(2), **options)
        for privacy in (Discounted, Forgetful)
    )
    for name in ("where", "noise_norm"):
        np.testing.assert_allclose(forgotten.metrics[name], carried.metrics[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("common", [True, False])
def test_configurations_share_host_noise_only_if_noise_is_common(common):
    own = walk()
    options = {"rounds": 5, "seeds": 2, "metrics": (FIRST,), "common_noise": common}
    start = ready_sweep(own, PROBLEM, Full(2), over={"step_size": [0.1, 0.2]}, **options)
    host_noises = [start.host_noise(draw, member) for draw in range(2) for member in range(2)]
    assert np.array_equal(host_noises[0], host_noises[1]) == np.array_equal(host_noises[2], host_noises[3]) == common
    assert not np.array_equal(host_noises[0], host_noises[2])
    np.testing.assert_array_equal(start.host_noise(1, 1), host_noises[3])
