"""Rounds of secret cohorts compute the chunks of slots that are filled, and give the sums of all slots."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SHARES

from fedprivjax import AdaptiveClip, Dropouts, FedAvg, PoissonCohorts, SecretSubsets, Uniform
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import run_program
from fedprivjax.method.local_rounds import chunk_of, scan_filled
from fedprivjax.method.round import RoundInputs

POISSON = PoissonCohorts(4, 0.4)


def drawn(scheme, seed=0):
    return scheme.draw(5, np.random.default_rng(seed))


@pytest.mark.parametrize(("filled", "chunks"), [((), 0), ((0,), 1), ((0, 1, 2), 1), ((0, 3), 2), ((6,), 3)])
def test_chunks_after_the_last_filled_slot_are_not_computed(filled, chunks):
    present = np.zeros(7, np.float32)
    present[list(filled)] = 1
    slots = RoundInputs(None, jnp.arange(7), None, None, present=jnp.asarray(present)), None, jnp.arange(7)

    def one(carry, chunk):
        computed, total = carry
        return (computed + 1, total + jnp.sum(chunk[0].samples * chunk[0].present)), None

    computed, total = jax.jit(lambda slots: scan_filled(one, (0, 0.0), slots, 3))(slots)
    assert (int(computed), float(total)) == (chunks, sum(filled))


@pytest.mark.parametrize(("machines", "rate"), [(100, 0.1), (1000, 0.1), (1000, 0.01), (20, 0.5), (5, 0.01), (3, 1.0)])
def test_chunks_follow_from_the_distribution_of_the_size(machines, rate):
    scheme = PoissonCohorts(machines, rate)
    chunk = chunk_of(drawn(scheme))
    assert chunk is not None
    assert {chunk_of(drawn(scheme, seed)) for seed in range(5)} == {chunk}
    sizes = np.random.default_rng(0).binomial(machines, rate, 20_000)
    assert chunk == 1 or (chunk * -(-sizes // chunk)).mean() < 1.55 * sizes.mean()
    assert chunk == scheme.per_round or (chunk + 1) * np.mean(-(-sizes // (chunk + 1))) > 1.3 * sizes.mean()


def test_cohorts_of_a_fixed_or_public_size_have_no_chunks():
    assert chunk_of(drawn(SecretSubsets(10, 4))) is None
    assert chunk_of(drawn(Uniform(10, 4))) is None
    assert chunk_of(drawn(Dropouts(Uniform(10, 4), 0.5))) is None


@pytest.mark.parametrize("scheme", [POISSON, Dropouts(POISSON, 0.3)])
@pytest.mark.parametrize("clip", [pytest.param(0.1, marks=pytest.mark.slow), AdaptiveClip(start=0.1)])
def test_a_run_is_that_in_which_all_slots_are_computed(scheme, clip):
    method = FedAvg(local_epochs=1, batch=9, unit="machine", update_clip=clip, noise_std=0.1, step_size=0.3)
    start = ready(method, SHARES, scheme, rounds=12, eval_every=3)
    known = start.protocol.known
    assert 0 < known.chunk < start.plan.size.per_round
    assert known == ready(method, SHARES, scheme, rounds=12, seed=1).protocol.known
    arguments = start.arguments
    every = arguments._replace(protocol=replace(arguments.protocol, known=replace(known, chunk=None)))
    found, expected = (run_program(one, start.static) for one in (arguments, every))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_guarantee_says_that_times_are_not_covered():
    method = FedAvg(local_epochs=1, unit="machine", update_clip=0.1, epsilon=4.0, step_size=0.3)
    assert "times of a run depend on it and are not covered" in str(ready(method, SHARES, POISSON, rounds=2).guarantee)
