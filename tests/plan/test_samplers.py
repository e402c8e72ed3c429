"""Statements of samplers about themselves, compared with their samples."""

from dataclasses import dataclass
from itertools import permutations
from math import comb, perm
from time import process_time
from typing import ClassVar

import numpy as np
import pytest
from scipy.stats import binom, binomtest, chisquare

from fedprivjax import DSGD, AcceleratedMinibatchSGD, FedAvg, LocalSGD, NoisyMinibatchSGD, NoisyRecords, Refusal
from fedprivjax.plan.participation import Full as Everyone
from fedprivjax.plan.plan import draw_minibatches
from fedprivjax.plan.samplers import (
    SAMPLERS,
    Cyclic,
    Disjoint,
    Full,
    Occurrences,
    Poisson,
    Replacement,
    Reshuffled,
    Sampler,
    Subset,
    as_sampler,
)
from fedprivjax.plan.samplers.minibatch import distinct_places
from fedprivjax.privacy.accountants.bounds import attainable_epsilon
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.noise_rules import noise_stds
from fedprivjax.protocols import ReleasedMinibatchSGD

RECORDS, BATCH, ROUNDS = 6, 3, 20_000
ROWS = np.arange(2 * RECORDS).reshape(2, RECORDS)
ALL = [Replacement(BATCH), Subset(BATCH), Poisson(BATCH), Disjoint(BATCH), Full(), Cyclic(BATCH), Reshuffled(BATCH)]
EXPECTED = {
    "replacement": [[4, 0, 1], [5, 3, 0]],
    "subset": [[0, 4, 1], [4, 0, 1]],
    "poisson": [[0, 5, -1, -1, -1, -1], [0, 1, 5, -1, -1, -1]],
    "disjoint": [[0, 4, 1], [5, 3, 2]],
    "full": [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]],
    "cyclic": [[0, 4, 1], [5, 3, 2]],
    "reshuffled": [[0, 4, 1], [5, 3, 2]],
}

FEW = [[13, 1], [3, 4]]  # Subset(2) of 17 records


def drawn(sampler, rounds=ROUNDS, seed=0):
    schedule = Everyone(2).draw(rounds, np.random.default_rng(1))
    picks, used = sampler.draw(ROWS, schedule, np.random.default_rng(seed))
    return np.where(used, picks, -1)


def uses(places, record=0):
    return np.sum(places == record, axis=2).ravel()


def test_numbers_of_occurrences_that_never_happen_are_left_out():
    assert Replacement(1).occurrences(10, 1).times.tolist() == [1]
    times = Replacement(443).occurrences(1238, 443).times
    assert times.size < 30
    assert binom.sf(times.size, 443, 1 / 1238) < 1e-25


@pytest.mark.parametrize("sampler", [sampler for sampler in ALL if sampler.secret], ids=lambda sampler: sampler.name)
def test_occurrences_follow_the_stated_distribution(sampler):
    law = sampler.occurrences(RECORDS, BATCH)
    assert law.times @ law.chances == pytest.approx(BATCH / RECORDS)
    whole = np.zeros(BATCH + 1)
    np.add.at(whole, law.times.clip(max=BATCH).astype(int), law.chances)
    whole[0] = 1 - law.chances.sum()
    observed = np.bincount(uses(drawn(sampler)), minlength=BATCH + 1)
    seen = whole > 1e-12
    assert observed[~seen].sum() == 0
    assert chisquare(observed[seen], whole[seen] * observed.sum()).pvalue > 1e-3


@pytest.mark.parametrize("sampler", ALL, ids=lambda sampler: sampler.name)
def test_how_often_a_message_without_a_record_has_none_at_all(sampler):
    places = drawn(sampler, 2 if sampler.one_pass else ROUNDS)
    places = places.reshape(-1, places.shape[2])
    without = places[(places != 0).all(axis=1)]
    expected = sampler.empty(RECORDS, sampler.batch_of(RECORDS))
    if without.size:
        empty = (without < 0).all(axis=1)
        assert empty.mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / empty.size))
    assert (expected > 0) == sampler.independent


@pytest.mark.parametrize("sampler", ALL, ids=lambda sampler: sampler.name)
def test_samples_agree_with_the_width_and_flags(sampler):
    places = drawn(sampler, 2 if sampler.one_pass else 200)
    sizes = np.full(2, RECORDS)
    assert places.shape[2] == sampler.width(sizes, sampler.batches(sizes), places.shape[0] * 2)
    most = max(uses(places, record).max() for record in range(RECORDS))
    assert (most > 1) == sampler.repeats
    messages = (np.stack([uses(places[:, :1], record) for record in range(RECORDS)]) > 0).sum(axis=1)
    assert messages.max() == sampler.releases(places.shape[0], RECORDS, sampler.batch_of(RECORDS)) or sampler.secret
    assert (np.unique(messages).size > 1) == sampler.secret == sampler.amplifies(RECORDS, sampler.batch_of(RECORDS))


def test_samples_of_a_seed_are_reproducible():
    """Published runs must stay reproducible."""
    found = {sampler.name: drawn(sampler, 2, seed=3)[:, 0].tolist() for sampler in ALL}
    assert found == EXPECTED


@pytest.mark.parametrize(("records", "batch"), [(4, 3), (3, 3), (17, 2)])
def test_all_sequences_of_distinct_places_are_equally_likely(records, batch):
    shape, codes = np.ones(100 * perm(records, batch), int), records ** np.arange(batch)
    found = distinct_places(records * shape, batch * shape, batch, np.random.default_rng(0))
    sequences, counts = np.unique(found @ codes, return_counts=True)
    assert sequences.tolist() == sorted((np.array(list(permutations(range(records), batch))) @ codes).tolist())
    assert chisquare(counts).pvalue > 1e-3


def test_subsets_of_machines_above_and_below_an_eighth_are_uniform_in_one_message():
    sizes, batches = np.tile([17, 16, 60, 5], 20_000), np.tile([2, 2, 1, 4], 20_000)
    places, used = Subset(batches).message(sizes, batches, 60, 5, np.random.default_rng(0))
    assert used is batches
    for size, batch, own in zip(sizes[:4], batches[:4], places.reshape(-1, 4, 5).swapaxes(0, 1), strict=True):
        chosen = np.sort(own[:, :batch], axis=1)
        assert (np.diff(chosen) > 0).all()
        assert set(chosen.ravel().tolist()) == set(range(size))
        counts = np.unique(chosen @ size ** np.arange(batch), return_counts=True)[1]
        assert counts.size == comb(size, batch)
        assert chisquare(counts).pvalue > 1e-3


def test_a_small_subset_costs_no_sort_of_the_records():
    records = np.array([10**12, 100, 10**12])  # more than any memory has keys for
    places, _ = Subset(20).message(records, np.full(3, 20), 10**12, 20, np.random.default_rng(0))
    assert places[1].max() < 100 < 10**9 < places[[0, 2]].min()
    assert np.unique(places).size == 60
    few = Subset(2).message(np.full(2, 17), np.full(2, 2), 17, 2, np.random.default_rng(3))[0]
    assert few.tolist() == FEW


def poisson_uses(rounds, sizes, batches, seed=0):
    """Return a mask of the records in each message of machines of these sizes, bool [rounds, machines, max_records]."""
    most = max(sizes)
    rows = np.where(np.arange(most) < np.array(sizes)[:, None], np.arange(most), -1)
    schedule = Everyone(len(sizes)).draw(rounds, np.random.default_rng(1))
    sampler = Poisson(batches)
    picks, used = sampler.draw(rows, schedule, np.random.default_rng(seed))
    order = np.argsort(schedule.participants, axis=1)[..., None]
    picks, used = (np.take_along_axis(values, order, axis=1) for values in (picks, used))
    times = np.zeros((rounds, len(sizes), most + 1), int)
    np.add.at(times, (*np.indices(picks.shape)[:2], np.where(used, picks, most)), 1)
    assert times[..., :most].max() <= 1
    return times[..., :most] > 0


def test_poisson_samples_have_the_rate_of_each_machine_and_no_other():
    sizes, batches = [30, 8, 5, 4], (2, 4, 4, 4)
    uses = poisson_uses(4000, sizes, batches)
    for i, (size, batch) in enumerate(zip(sizes, batches, strict=True)):
        assert not uses[:, i, size:].any()
        rate, observed = batch / size, int(uses[:, i].sum())
        assert (np.abs(uses[:, i, :size].mean(axis=0) - rate) <= 4.5 * np.sqrt(rate * (1 - rate) / 4000)).all()
        rates = [rate, 2 / 3 * rate, min(3 / 2 * rate, 1.0)]
        plausible = [binomtest(observed, 4000 * size, one).pvalue > 1e-3 for one in rates]
        assert plausible == [True, False, rate == 1]


def test_poisson_samples_are_independent_of_each_other():
    """Between records of a message, machines of a round, and rounds: products have the mean of independent draws."""
    uses = poisson_uses(20_000, [6, 6], 2).astype(float)
    q = 1 / 3
    centred = uses - q
    scale = q * (1 - q)
    pairs = {
        "records": centred[:, 0, 0] * centred[:, 0, 3],
        "machines": centred[:, 0, 0] * centred[:, 1, 0],
        "rounds": centred[1:, 0, 0] * centred[:-1, 0, 0],
        "rounds two apart": centred[2:, 1, 5] * centred[:-2, 1, 5],
    }
    for between, products in pairs.items():
        assert abs(products.mean()) < 4 * scale / np.sqrt(products.size), between
    whole = uses[:, 0].sum(axis=1)
    assert whole.var() == pytest.approx(6 * scale, rel=0.05)
    assert chisquare(np.bincount(whole.astype(int), minlength=7), binom.pmf(range(7), 6, q) * 20_000).pvalue > 1e-3


def test_poisson_samples_cost_what_they_hold_not_what_they_are_drawn_from():
    schedule, rows = Everyone(1).draw(100, np.random.default_rng(0)), np.arange(10**6)[None]
    begun = process_time()
    Poisson(10).draw(rows, schedule, np.random.default_rng(0))
    assert process_time() - begun < 1  # 10⁸ random numbers take ten


def test_only_samples_of_some_records_amplify():
    assert [sampler.amplifies(6, 3) for sampler in ALL] == [True, True, True, False, False, False, False]
    assert [sampler.amplifies(6, 6) for sampler in ALL] == [True, False, False, False, False, False, False]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_by_its_name(name):
    sampler = as_sampler(name, 4)
    assert sampler.name == name
    assert sampler == as_sampler(sampler) == as_sampler(name, 4)
    assert len({sampler, as_sampler(name, 4)}) == 1
    assert (sampler == as_sampler(name, 5)) == (name == "full")
    assert as_sampler(name, [1, 2]) == as_sampler(name, np.array([1, 2]))
    assert hash(as_sampler(name, [1, 2])) == hash(as_sampler(name, (1, 2)))
    assert len(sampler.description) > 10


def test_samplers_of_one_batch_differ():
    assert len({kind.of(2) for kind in SAMPLERS.values()}) == len(SAMPLERS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_sampler("subsets", 2), "unknown sampler 'subsets', did you mean 'subset'.*"),
        (lambda: as_sampler(Subset(2), 2), r"batch must be left out with the sampler Subset\(batch=2\), got 2"),
        (lambda: Subset(None).batch_of(3), "batch must be given for the sampler 'subset'"),
        (lambda: Poisson(4).batch_of(3), r"batch must be at most records \(3\) for the sampler 'poisson', got 4"),
        (lambda: Subset((1, 2)).batch_of(3), r"batch must be an integer, got \(1, 2\)"),
        (lambda: Subset([1, 2.5]).batches(np.array([3, 3])), "batch must be an integer, got 1.0"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


@dataclass(frozen=True)
class FirstHalf(Sampler):
    """Each time, a fair coin: all records of one fixed half, or of the other."""

    batch: int
    name: ClassVar[str] = "half"
    description: ClassVar[str] = "one half or the other"
    secret: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        start = rng.integers(0, 2, (sizes.size, 1)) * batches[:, None]
        return start + np.arange(width), batches

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.array([batch / records]))


def test_a_custom_sampler_needs_no_registration():
    schedule = Everyone(2).draw(40, np.random.default_rng(1))
    batches = draw_minibatches(FirstHalf(3), ROWS, schedule, np.random.default_rng(0))
    assert set(map(tuple, batches.samples[:, 0].tolist())) == {(0, 1, 2), (3, 4, 5)}
    settings = {"records": RECORDS, "rounds": 4, "delta": 1e-5}
    halves = sampled_epsilon(3.0, SampledReleases(sampler=FirstHalf(3), **settings))
    assert halves > sampled_epsilon(3.0, SampledReleases(sampler=Subset(3), **settings))  # one record shows the others
    assert halves > attainable_epsilon(3.0, SampledReleases(sampler=FirstHalf(3), **settings)) > 0


@dataclass(frozen=True)
class Favoured(Sampler):
    """All else as in `Subset`, but a record of chance `most` is accounted for."""

    batch: int
    most: float = 0.1
    name: ClassVar[str] = "favoured"
    description: ClassVar[str] = "some records more often"
    secret: ClassVar[bool] = True

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.array([self.most]))


@pytest.mark.parametrize("most", [0.2, 0.8])
def test_a_sampler_is_accounted_for_with_all_its_fields(most):
    settings = {"sampler": Favoured(3, most), "records": 20, "delta": 1e-5}
    bound = sampled_epsilon(3.0, SampledReleases(rounds=4, **settings))
    assert bound != sampled_epsilon(3.0, SampledReleases(Favoured(3), 20, 4, 1e-5))
    assert Sampled(settings["sampler"]).epsilon(1.5, 20, 3, 4, delta=1e-5) == bound
    each = noise_stds("accountant", lipschitz=1.0, rounds=4, epsilon=bound, **settings)
    assert each[0] * 3 == pytest.approx(3.0, rel=1e-3)


def test_another_batch_is_all_that_changes():
    assert Favoured(3, 0.5).with_batch(4) == Favoured(4, 0.5)
    assert Full().with_batch(4) == Full()


def test_what_a_sampler_must_define():
    with pytest.raises(TypeError, match="a sampler must define message"):
        Sampler.message(Subset(2), np.ones(1), np.ones(1), 1, 1, np.random.default_rng(0))


def test_a_public_rate_is_stated_in_place_of_batch_by_records():
    own, public = (Sampled(sampler).derivation for sampler in (Poisson(10), Poisson(10, rate=0.25)))
    assert "each record independently with probability batch/records;" in own
    assert "each record independently with probability 0.25;" in public


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (NoisyMinibatchSGD, {}),
        (AcceleratedMinibatchSGD, {}),
        (DSGD, {"mixing": "ring"}),
        (ReleasedMinibatchSGD, {}),
        (NoisyRecords, {}),
        (FedAvg, {"local_steps": 2}),
    ],
)
def test_a_batch_that_full_would_ignore_is_refused_when_a_method_is_made(method, settings):
    assert method(sampler="full", **settings).batch is None
    with pytest.raises(
        Refusal,
        match=r"^batch must be left out with sampler = 'full', which uses all records, got 10. Use sampler = 'subset'",
    ):
        method(sampler="full", batch=10, **settings)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (NoisyMinibatchSGD, {}),
        (AcceleratedMinibatchSGD, {}),
        (DSGD, {"mixing": "ring"}),
        (LocalSGD, {}),
        (FedAvg, {"local_steps": 2}),  # without a batch, which is the sampler "full"
        (FedAvg, {"local_steps": 2, "batch": 5}),
    ],
)
def test_an_unknown_sampler_is_refused_when_a_method_is_made(method, settings):
    with pytest.raises(Refusal, match=r"^unknown sampler 'bernoulli' \(known: replacement, subset, poisson, "):
        method(sampler="bernoulli", **settings)
