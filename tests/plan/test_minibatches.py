"""Distributions of minibatches: records, their occurrences and their weights."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from fedprivjax.plan.participation import Full, Given, Varying
from fedprivjax.plan.plan import draw_minibatches, machine_values
from fedprivjax.plan.samplers import SAMPLERS, Disjoint, as_sampler

RECORDS, BATCH, ROUNDS = 6, 3, 20_000
ROWS = np.arange(2 * RECORDS).reshape(2, RECORDS)
RAGGED = np.array([[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, -1, -1]])


def draw(kind, batch=BATCH, *, rounds=ROUNDS, rows=ROWS, seed=0, participation=None, factors=1.0):
    schedule = (participation or Full(len(rows))).draw(rounds, np.random.default_rng(1))
    rng = np.random.default_rng(seed)
    return draw_minibatches(as_sampler(kind, batch), rows, schedule, rng, factors=factors), schedule


def counts(drawn, record):
    """Number of uses of each record in each message."""
    return np.sum((drawn.samples == record) & (drawn.weights > 0), axis=2)


def likely(observed, expected):
    return chisquare(observed, expected * observed.sum()).pvalue > 1e-3


def test_replacement_is_binomial():
    drawn, _ = draw("replacement")
    law = binom.pmf(np.arange(BATCH + 1), BATCH, 1 / RECORDS)
    for record in (0, 5):
        observed = np.bincount(counts(drawn, record)[:, 0], minlength=BATCH + 1)
        assert likely(observed, law)
        assert not likely(observed, binom.pmf(np.arange(BATCH + 1), BATCH, 1.5 / RECORDS))
    assert (drawn.weights == np.float32(1 / BATCH)).all()


def test_a_subset_is_uniform_over_subsets():
    drawn, _ = draw("subset")
    seen = np.sort(drawn.samples[:, 0], axis=1) @ [36, 6, 1]
    every = [np.dot(each, [36, 6, 1]) for each in combinations(range(RECORDS), BATCH)]
    observed = np.array([np.sum(seen == code) for code in every])
    assert observed.sum() == ROUNDS
    assert likely(observed, np.full(len(every), 1 / len(every)))
    assert (np.diff(np.sort(drawn.samples, axis=2), axis=2) > 0).all()


def test_poisson_samples_records_independently():
    drawn, _ = draw("poisson")
    times = np.stack([counts(drawn, record)[:, 0] for record in range(RECORDS)], axis=1)
    assert times.max() == 1
    assert likely(np.bincount(times.sum(axis=1), minlength=RECORDS + 1), binom.pmf(range(RECORDS + 1), RECORDS, 0.5))
    pairs = np.bincount(times[:, 0] * 2 + times[:, 1], minlength=4)
    assert likely(pairs, np.full(4, 0.25))
    assert set(np.unique(drawn.weights)) == {np.float32(0), np.float32(1 / BATCH)}  # never by how many came


def test_poisson_of_many_records_is_padded_far_enough():
    rows = np.arange(4000)[None]
    drawn, _ = draw("poisson", 40, rounds=3000, rows=rows)
    size = np.sum(drawn.weights > 0, axis=2)
    assert drawn.samples.shape[2] < 120
    assert size.max() < drawn.samples.shape[2]
    assert abs(size.mean() - 40) < 4 * np.sqrt(40 / 3000)
    assert abs(size.var() / 39.6 - 1) < 0.15


@pytest.mark.parametrize("rows", [ROWS, RAGGED], ids=["equal", "ragged"])
def test_one_pass_uses_every_record_once(rows):
    drawn, _ = draw("disjoint", 2, rounds=2, rows=rows)
    assert drawn.samples.shape == (2, 2, 2)
    for i in range(2):
        own = drawn.samples[:, i].ravel()
        assert np.unique(own).size == 4
        assert set(own) <= set(rows[i])


def test_one_pass_counts_a_machines_own_messages():
    order = Given(2, np.array([[0], [1], [0], [0]]))
    drawn, _ = draw("disjoint", 2, rounds=4, participation=order)
    assert set(drawn.samples[[0, 2, 3], 0].ravel()) == set(range(6))
    assert set(drawn.samples[1, 0]) < set(range(6, 12))


def test_one_pass_is_a_random_permutation():
    first = np.array([draw("disjoint", 1, rounds=6, seed=s)[0].samples[0, 0, 0] for s in range(600)])
    assert likely(np.bincount(first, minlength=6), np.full(6, 1 / 6))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_machine_uses_its_own_records_and_weights_of_mean_one(kind):
    drawn, schedule = draw(kind, None if kind == "full" else 2, rounds=2 if kind == "disjoint" else 500, rows=RAGGED)
    for i, own in enumerate((range(6), range(6, 10))):
        used = drawn.samples[schedule.participants == i][drawn.weights[schedule.participants == i] > 0]
        assert set(used) == set(own) if kind != "disjoint" else set(used) <= set(own)
        total = drawn.weights[schedule.participants == i].sum(axis=1)
        if kind == "poisson":
            assert abs(total.mean() - 1) < 4 * total.std() / np.sqrt(total.size)
        else:
            np.testing.assert_allclose(total, 1, rtol=1e-6)


def test_per_machine_batches_and_factors():
    drawn, _ = draw("subset", (1, 4), rounds=50, rows=RAGGED, factors=(0.5, 1.5))
    assert np.sum(drawn.weights > 0, axis=2).tolist() == [[1, 4]] * 50
    np.testing.assert_allclose(drawn.weights.sum(axis=2), [[0.5, 1.5]] * 50, rtol=1e-6)


def test_slots_of_a_smaller_cohort_are_empty():
    rows = np.arange(24).reshape(4, 6)
    drawn, schedule = draw("subset", rounds=200, rows=rows, participation=Varying.between(4, 1, 3))
    assert 0 < schedule.present.mean() < 1
    assert ((drawn.weights > 0).any(axis=2) == schedule.present).all()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_one_seed_is_one_sample(kind):
    settings = {"batch": 2, "rounds": 3 if kind == "disjoint" else 40}
    one, same, other = (draw(kind, **settings, seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.samples, same.samples)
    assert (one.samples == other.samples).all() == (kind == "full")


@pytest.mark.parametrize(
    ("kind", "batch", "message"),
    [
        ("subsets", 2, "unknown sampler 'subsets', did you mean 'subset'.*"),
        ("subset", None, "batch must be given for the sampler 'subset'"),
        ("subset", 0, "batch must be at least 1, got 0"),
        ("subset", 5, r"batch must be at most the 4 records of machine 1 \(subset\), got 5"),
        ("poisson", (6, 5), r"batch must be at most the 4 records of machine 1 \(poisson\), got 5"),
        ("replacement", (1, 2, 3), "batch must be one number or one for each of 2 machines, got 3"),
        ("disjoint", 3, r"batch · messages must be at most the 6 records of machine 0 in one pass, got 3 · 3 = 9.*"),
    ],
)
def test_refusals(kind, batch, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        draw(kind, batch, rounds=3, rows=RAGGED)


def test_a_value_for_each_machine():
    assert machine_values("epsilon", [1.0, 2.0], 2).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"^epsilon must be one number or one for each of 3 machines, got 2$"):
        machine_values("epsilon", [1.0, 2.0], 3)


def test_one_pass_in_the_order_that_is_listed():
    rows = np.array([[4, 2, 9, 7], [1, 3, 5, -1]])
    schedule = Full(2).draw(1, np.random.default_rng(0))
    drawn = draw_minibatches(Disjoint(2), rows, schedule, np.random.default_rng(0), stored=True)
    assert drawn.samples.tolist() == [[[4, 2], [1, 3]]]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_unused_places_hold_a_record_that_the_round_uses(kind):
    rows = np.arange(30).reshape(5, 6)
    rows[2, 4:] = -1
    batch = None if kind == "full" else (1, 2, 1, 2, 1)
    drawn, schedule = draw(kind, batch, rounds=3, rows=rows, participation=Varying.between(5, 1, 4), seed=2)
    unused = drawn.weights == 0
    assert unused.any()
    assert (~schedule.present).any()
    for samples, empty in zip(drawn.samples, unused, strict=True):
        used = samples[~empty]
        assert set(samples[empty]) <= (set(used[:1]) if used.size else {0})


def test_a_round_without_any_records_holds_record_0():
    drawn, _ = draw("poisson", 1, rounds=200)
    none = (drawn.weights == 0).all(axis=(1, 2))
    assert 0 < none.mean() < 1
    assert (drawn.samples[none] == 0).all()
