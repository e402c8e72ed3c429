"""The protocol's own randomness: keys of `init` and of every round are separate from those of the noise."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from flax import struct
from scipy.stats import chisquare

from fedprivjax import Algorithm, Full, Metric, NoisyMessages, Protocol, Seeds, gradient, ready, simulate, sweep
from fedprivjax.method.round import slot_keys
from fedprivjax.plan.seeds import as_seeds, protocol_key, round_keys, run_key
from fedprivjax.problem.build import general_problem
from fedprivjax.sweeps.memory import run_bytes

ROUNDS = 12
PROBLEM = general_problem(lambda w, x: jnp.vdot(w, w) * x, np.ones(2 * ROUNDS, np.float32), np.zeros(2))
DRAWN = Metric("drawn", lambda problem, snapshot: snapshot.params[0])
BITS = Metric("bits", lambda problem, snapshot: snapshot.params[1])


class LatchedState(NamedTuple):
    at: jax.Array
    chosen: jax.Array
    bits: jax.Array


@struct.dataclass
class Latched(Algorithm):
    """Reports a round number sampled in `init`, and the sum of numbers sampled in every round."""

    def init(self, public, step):
        return LatchedState(jax.random.randint(public.key, (), 1, ROUNDS + 1), jnp.zeros(()), jnp.zeros(()))

    def message(self, server, t):
        return gradient(self.point(server))

    def serve(self, server, read, at):
        chosen = jnp.where(at.t == server.at, at.t, server.chosen)
        flips = jax.vmap(jax.random.uniform)(slot_keys(at.key, 2))
        return LatchedState(server.at, chosen, server.bits + jnp.sum(flips))

    def point(self, server):
        return jnp.stack([server.chosen, server.bits])


def latched(noise_std=1.0):
    return Protocol(Latched(), privacy=NoisyMessages(clip=1.0, trust="server"), noise_std=noise_std, step_size=0.1)


def expected(seed):
    """Return (sampled round number, sum of all samples), computed from the seed's keys."""
    key = run_key(as_seeds(seed))
    drawn = jax.random.randint(protocol_key(key), (), 1, ROUNDS + 1)
    keys = [slot_keys(protocol_key(key, t), 2) for t in range(1, ROUNDS + 1)]
    return int(drawn), float(sum(jax.random.uniform(one) for pair in keys for one in pair))


SEEDS = [0, 1, 2, Seeds(5, 6, 7), Seeds(6, 5, 7)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("every", sparing([1, 5], [5]))
def test_a_run_draws_by_its_seed(seed, every):
    run = simulate(latched(), PROBLEM, Full(2), rounds=ROUNDS, seed=seed, eval_every=every, metrics=(DRAWN, BITS))
    np.testing.assert_allclose(run.params, expected(seed), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 2, 100])
def test_a_sweep_draws_the_same_however_it_is_cut(runs):
    start = ready(latched(), PROBLEM, Full(2), rounds=ROUNDS, metrics=(DRAWN, BITS))
    options = {"rounds": ROUNDS, "eval_every": ROUNDS, "metrics": (DRAWN, BITS)}
    budget = runs * sum(run_bytes(start))
    data = sweep(
        latched(None), PROBLEM, Full(2), over={"noise_std": [1.0, 2.0]}, seeds=SEEDS, memory_budget=budget, **options
    )
    for place, seed in enumerate(SEEDS):
        for member in (0, 1):
            one = data.isel(seed=place, noise_std=member, round=-1)
            np.testing.assert_allclose([one["drawn"], one["bits"]], expected(seed), rtol=1e-5)


@pytest.mark.slow
def test_draws_are_uniform_and_members_differ_where_asked():
    options = {"rounds": ROUNDS, "eval_every": ROUNDS, "metrics": (DRAWN,), "common_noise": False}
    data = sweep(latched(None), PROBLEM, Full(2), over={"noise_std": [1.0, 2.0]}, seeds=600, **options)
    drawn = data["drawn"].isel(round=-1).values.astype(int)
    counts = np.bincount(drawn.ravel(), minlength=ROUNDS + 1)[1:]
    assert counts.sum() == 1200
    assert chisquare(counts).pvalue > 1e-3
    assert chisquare(counts + np.where(np.arange(ROUNDS) < ROUNDS // 2, 25, -25)).pvalue < 1e-3  # it could tell
    assert abs(np.mean(drawn[0] == drawn[1]) - 1 / ROUNDS) < 4 * np.sqrt(1 / ROUNDS / 600)


def bits_of(keys):
    return {tuple(row) for row in np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()}


def test_a_slots_key_does_not_depend_on_how_many_there_are():
    key = jax.random.key(3)
    few, many = (np.asarray(jax.random.key_data(slot_keys(key, count))) for count in (3, 50))
    np.testing.assert_array_equal(few, many[:3])
    assert len(bits_of(slot_keys(key, 50))) == 50


def test_no_key_serves_twice():
    """The keys of rounds' noise, of the protocol and of its slots all differ."""
    key, rounds = jax.random.key(3), np.arange(1, 200)
    noise = bits_of(round_keys(key, rounds))
    own_keys = jax.vmap(lambda t: protocol_key(key, t))(np.arange(200))
    own, slots = bits_of(own_keys), bits_of(jax.vmap(lambda key: slot_keys(key, 20))(own_keys))
    assert (len(noise), len(own), len(slots)) == (199, 200, 4000)
    assert not noise & own
    assert not (noise | own) & slots
