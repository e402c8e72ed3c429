"""Minibatches of fresh examples: from a pool, from machines' own datasets, and computed."""

import jax
import numpy as np
import pytest

from fedprivjax import (
    Ball,
    BySize,
    Dropouts,
    Full,
    Given,
    NoisyRecords,
    Protocol,
    Softmax,
    Uniform,
    Varying,
    draw_plan,
    linear_problem,
    ready,
)
from fedprivjax.plan.samplers import Disjoint, OnePassPool
from fedprivjax.privacy import gdp
from fedprivjax.problem.build import procedural_problem
from fedprivjax.protocols.noisy_sgd import SGD

SHARES = np.array([[0, 1, 2, 3, 4], [5, 6, 7, -1, -1], [8, 9, 10, 11, -1]])
TURNS = Given(3, [[0, 2], [0, 1], [2, 1]])


def make(examples=24, table=None):
    rng = np.random.default_rng(0)
    return linear_problem(
        rng.normal(size=(examples, 2)), rng.integers(0, 2, examples), Softmax(2), partition_table=table
    )


def dealt(problem, participation, batch, rounds=None, **options):
    return draw_plan(problem, participation, rounds, 3, sampler=OnePassPool(batch), **options)


def sent(plan):
    return plan.samples[plan.weights != 0]


@pytest.mark.parametrize("participation", [Full(4), Uniform(10, 3), Varying.between(5, 1, 3)], ids=str)
@pytest.mark.parametrize("batch", [2, 5])
def test_a_pool_is_used_once(participation, batch):
    plan = dealt(make(47), participation, batch)
    assert plan.size.rounds == 47 // (batch * participation.per_round)
    assert plan.samples.shape == plan.weights.shape == (*plan.schedule.participants.shape, batch)
    assert np.unique(sent(plan)).size == sent(plan).size == batch * plan.schedule.present.sum()
    filled = np.broadcast_to(plan.schedule.present[..., None], plan.weights.shape)
    np.testing.assert_array_equal(plan.weights, np.float32(1 / batch) * filled)
    assert (plan.secret, plan.repeats) == (False, False)


def test_the_order_is_that_of_one_sample_a_message():
    """The next K of the same permutation go to the next message, so all K use the same samples."""
    plan, single = dealt(make(), Uniform(10, 3), 4), draw_plan(make(), Uniform(10, 3), 8, 3)
    np.testing.assert_array_equal(plan.samples.ravel(), single.samples.ravel())
    stored = dealt(make(), Full(3), 4, order="stored")
    np.testing.assert_array_equal(stored.samples.ravel(), np.arange(24))


@pytest.mark.parametrize("order", ["shuffled", "stored"])
def test_a_machine_uses_its_own_share_in_whole_batches(order):
    problem = make(12, SHARES)
    for batch, rounds in {1: 3, 2: 1}.items():
        assert draw_plan(problem, Full(3), sampler=OnePassPool(batch) if batch > 1 else None).size.rounds == rounds
    plan = dealt(problem, Given(3, [[0, 2], [0, 1]]), 2, 2, order=order)
    assert np.unique(sent(plan)).size == sent(plan).size
    for machine, used in enumerate((4, 2, 2)):
        own = plan.samples[plan.schedule.participants == machine]
        assert np.isin(own, SHARES[machine]).all()
        assert own.size == used


def test_by_size_counts_whole_batches():
    plan = dealt(make(12, SHARES), BySize(3, 1), 2)
    assert plan.schedule.total.tolist() == [2, 1, 2]


def test_computed_samples_are_fresh():
    problem = procedural_problem(
        lambda key, machine: jax.random.normal(key), lambda w, z: (w * z).sum(), start=np.zeros(2), constraint=Ball(1.0)
    )
    plan = dealt(problem, TURNS, 3, 3)
    for machine in range(3):
        assert plan.samples[plan.schedule.participants == machine].ravel().tolist() == list(range(6))


def test_dropouts_keep_their_samples():
    schedule = Dropouts(Given(3, [[0, 2], [0, 1]] * 2), 0.5)
    plan = draw_plan(make(30, np.arange(30).reshape(3, 10)), schedule, 4, 1, sampler=OnePassPool(2))
    assert plan.schedule.dropped.any()
    assert not plan.weights[plan.schedule.dropped].any()
    assert np.unique(sent(plan)).size == sent(plan).size


def test_a_sample_that_is_used_twice_is_seen():
    plan = dealt(make(), Full(3), 2)
    plan.samples[1, 0, 0] = plan.samples[0, 0, 1]
    assert plan.repeats


def test_weights_of_machines_scale_messages():
    problem = make(12, SHARES).replace(machine_weights=(0.5, 0.3, 0.2))
    np.testing.assert_allclose(np.unique(dealt(problem, Full(3), 2).weights), [0.3, 0.45, 0.75])


def test_the_noise_of_a_weighted_machine_is_that_of_its_messages():
    """A light machine has little noise, which is enough for messages of its weight only."""
    problem = make(12, SHARES).replace(machine_weights=(0.1, 0.1, 0.8))
    privacy = NoisyRecords(clip=1.0, sampler=OnePassPool(2))
    start = ready(Protocol(SGD(), privacy=privacy, noise_std=1.0, step_size=0.1), problem, Full(3), rounds=1)
    assert start.plan.weights is not None
    moved = 2 * start.plan.weights.max(axis=2) / privacy.records(None).message_noise(problem, start.plan)
    assert gdp.epsilon(float(moved.max()), 1e-5) == pytest.approx(start.guarantee.epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("problem", "participation", "rounds", "batch", "message"),
    [
        (
            make(),
            Full(4),
            None,
            7,
            r".*at most the 24 examples, got 7 · 4 · 1 = 28. Use fewer machines per round",
        ),
        (
            make(),
            Full(4),
            4,
            2,
            r"batch · per_round · rounds must be at most the 24 examples, got 2 · 4 · 4 = 32. Use at most 3 rounds",
        ),
        (make(12, SHARES), Full(3), None, 4, r"batch must be at most the 3 records of machine 1 \(dealt\), got 4"),
        (
            make(12, SHARES),
            Full(3),
            2,
            2,
            "batch · messages must be at most the 3 records of machine 1 in one pass, got 2 · 2 = 4.*",
        ),
    ],
)
def test_too_few_examples_are_refused(problem, participation, rounds, batch, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        dealt(problem, participation, batch, rounds)


def test_sampling_own_records_needs_a_partition_table():
    with pytest.raises(ValueError, match="partition_table must be given"):
        draw_plan(make(), Full(3), 2, sampler=Disjoint(2))
