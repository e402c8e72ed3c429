"""Bounds of custom samplers that state their distribution truly, against the δ that explicit datasets attain."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedprivjax import (
    Absolute,
    Full,
    LocalGradientSteps,
    LocalPrivacy,
    LocalSGD,
    LocalWork,
    NoisyMinibatchSGD,
    Protocol,
    Refusal,
    guarantee,
    linear_problem,
    ready,
)
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.samplers import Full as AllRecords
from fedprivjax.plan.samplers import Occurrences, Sampler, Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.accountants.sampled import SampledReleases, noise_multiplier_for, sampled_epsilon

DELTA, RECORDS = 1e-5, 50
RUN = {"noise_std": 1.0, "step_size": 0.1}
PROBLEM = linear_problem(np.zeros((2, RECORDS, 3)), np.zeros((2, RECORDS)), Absolute(), feature_bound=1.0)


@dataclass(frozen=True)
class Blocks(Sampler):
    """One of several fixed batches, each with the same probability. The other records show which one it is."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    name: ClassVar[str] = "blocks"
    description: ClassVar[str] = "one of several fixed batches"
    secret: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        return rng.integers(0, sizes // batches)[:, None] * batches[:, None] + np.arange(width), batches

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.array([batch / records]))


@dataclass(frozen=True)
class Copies(Sampler):
    """Each record independently `copies` times, or not at all."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    copies: int = 3
    name: ClassVar[str] = "copies"
    description: ClassVar[str] = "each record independently several times, or not at all"
    secret: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def occurrences(self, records, batch):
        return Occurrences(np.array([float(self.copies)]), np.array([batch / records / self.copies]))


@dataclass(frozen=True)
class All(Sampler):
    """Every record three times in every message."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    name: ClassVar[str] = "all"
    description: ClassVar[str] = "every record three times"
    secret: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def occurrences(self, records, batch):
        return Occurrences(np.array([3.0]), np.ones(1))

    def amplifies(self, records, batch):
        return False


@dataclass(frozen=True)
class First(Sampler):
    """The first record in every message, which is stated."""

    batch: int = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    name: ClassVar[str] = "first"
    description: ClassVar[str] = "the first record"
    secret: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        return np.zeros((sizes.size, width), int), batches

    def occurrences(self, records, batch):
        return Occurrences(np.array([float(batch)]), np.ones(1))


@pytest.mark.parametrize(("batch", "z", "rounds"), [(5, 0.5, 20), (5, 2.0, 100), (1, 3.0, 1000)])
def test_fixed_batches_amplify_delta_alone(batch, z, rounds):
    """Other batches of records far away show when a record's batch is used. Where 7.8 was stated, ε was 22.9."""
    epsilon = sampled_epsilon(z, SampledReleases(Blocks(batch), RECORDS, rounds, DELTA))
    uses = np.arange(1, rounds + 1)
    attained = binom.pmf(uses, rounds, batch / RECORDS) @ gdp.delta(epsilon, 2 * np.sqrt(uses) / z)
    assert attained == pytest.approx(DELTA, rel=1e-3)
    assert attained <= DELTA
    assert sampled_epsilon(z, SampledReleases(Subset(batch), RECORDS, rounds, DELTA)) < 0.8 * epsilon
    assert "amplify δ alone" in Sampled(Blocks(batch)).derivation


def test_messages_that_are_clipped_as_a_whole_hide_the_other_records_too():
    known = {"records": RECORDS, "rounds": 20, "delta": DELTA, "whole_message": True}
    blocks, subset = (sampled_epsilon(2.0, SampledReleases(kind(5), **known)) for kind in (Blocks, Subset))
    assert blocks == subset


@pytest.mark.parametrize("z", [1.0, 4.0])
def test_repetitions_of_independent_records_count(z):
    """Where 1.6 was stated for 20 rounds, ε was 22.3."""
    epsilon = sampled_epsilon(z, SampledReleases(Copies(5), RECORDS, 1, DELTA))
    x, chance = np.linspace(-15 - 12 * z, 15 + 12 * z, 400_001), 5 / RECORDS / 3
    other = norm.pdf(x / z) / z
    here, there = ((1 - chance) * other + chance * norm.pdf((x - side * 3) / z) / z for side in (1, -1))
    attained = np.maximum(here - np.exp(epsilon) * there, 0).sum() * (x[1] - x[0])
    assert 0 < attained <= DELTA


def test_repetitions_count_if_nothing_amplifies():
    """The sensitivity was that of a record that occurs once."""
    releases = SampledReleases(All(3 * RECORDS), RECORDS, 4, DELTA)
    epsilon = sampled_epsilon(20.0, releases)
    assert epsilon == pytest.approx(float(gdp.epsilon(2 * 3 * 2 / 20.0, DELTA)), rel=1e-9)
    assert noise_multiplier_for(epsilon, releases) == pytest.approx(20.0, rel=1e-6)
    results = Sampled(All(3 * RECORDS)).accountant_results(10.0, RECORDS, 3 * RECORDS, 4, delta=DELTA)
    assert min(one.epsilon for one in results) == pytest.approx(epsilon, rel=1e-3)
    assert Sampled(All(3 * RECORDS)).dp_event(10.0, RECORDS, 3 * RECORDS, 4).event.noise_multiplier == 10.0 / 3


def test_a_shuffler_needs_records_that_are_equally_likely():
    """The sum of the messages alone gave ε = 6.5 where 0.92 was stated."""
    settings = {"noise_std": 2.0, "clip": 1.0, "step_size": 0.1, "trust": "shuffler"}
    with pytest.raises(Refusal, match=r"^sampler must be 'subset' or 'replacement' with a shuffler, .* got First\("):
        NoisyMinibatchSGD(sampler=First(), **settings)


def test_local_steps_on_secret_records_need_independent_ones():
    """The steps of a round used one record, and were counted as independent."""
    with pytest.raises(Refusal, match=r"^sampler must be 'replacement' or public for local SGD, .* got First\("):
        LocalSGD(noise_std=2.0, clip=1.0, sampler=First(10), step_size=0.1)


def test_the_guarantee_of_a_run_is_that_of_its_sampler():
    method = NoisyMinibatchSGD(noise_std=0.4, clip=1.0, sampler=Blocks(5), step_size=0.1)
    found = guarantee(method, PROBLEM, draw_plan(PROBLEM, Full(2), 20, sampler=Blocks(5)), delta=DELTA)
    assert found.epsilon == pytest.approx(
        sampled_epsilon(2.0, SampledReleases(Blocks(5), RECORDS, 20, DELTA)), rel=1e-6
    )


@dataclass(frozen=True)
class Uneven(Sampler):
    """Independent records of unequal probabilities, which are not compared."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    rates: np.ndarray = field(compare=False)
    name: ClassVar[str] = "uneven"
    description: ClassVar[str] = "unequal probabilities"
    secret: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.array([self.rates.max()]))


@dataclass(frozen=True, eq=False)
class Further(Blocks):
    """A further field, which the inherited equality does not compare."""

    note: str = ""


@pytest.mark.parametrize(("sampler", "name"), [(Uneven(5, np.full(50, 0.1)), "rates"), (Further(5), "note")])
def test_a_field_that_equality_ignores_is_refused(sampler, name):
    """The ε of the first of two equal samplers was cached and stated for the second."""
    with pytest.raises(Refusal, match=rf"^{name} must be compared by the equality of .* In place of an array, use a"):
        sampled_epsilon(2.0, SampledReleases(sampler, RECORDS, 20, DELTA))


@dataclass(frozen=True)
class OneBatch(LocalWork):
    """One batch of records in a round, on which all local steps are taken: the first record, several times."""

    number: int
    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    step: Sampler
    name: ClassVar[str] = "one_batch"
    description: ClassVar[str] = "one batch in a round"
    secret: ClassVar[bool] = True

    @property
    def uses(self):
        return self.number

    @property
    def of_step(self):
        return self.step

    def divisors(self, sizes):
        return np.full(sizes.shape, self.batch)

    def steps(self, sizes):
        return np.full(sizes.shape, self.number)

    def step_width(self, sizes, messages):
        return self.batch

    def cut(self, width):
        return self.number

    def draw(self, rows, schedule, rng, stored=False):
        shape = *schedule.participants.shape, self.number * self.batch
        return np.zeros(shape, np.int32), np.ones(shape, bool)


def test_local_steps_that_share_their_records_are_not_amplified():
    """The steps were counted as independent: ε was 9.4 where 3.7 was stated."""
    with pytest.raises(
        Refusal, match=r"^of_step of OneBatch must be Full\(\), .* got Subset\(batch=5\)\. Use LocalSteps"
    ):
        LocalPrivacy(work=OneBatch(10, 5, Subset(5)), unit="record", clip=1.0)
    assert LocalPrivacy(work=OneBatch(10, 5, AllRecords()), unit="record", clip=1.0).work.uses == 10
    assert LocalPrivacy(work=OneBatch(10, 5, Subset(5)), unit="machine", update_clip=1.0).work.uses == 10


@dataclass(frozen=True)
class SettledFirst(First):
    """The first record in every place of a message, of a sampler that states that records occur once."""

    secret: ClassVar[bool] = False
    settled: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.ones(1))


def test_records_of_a_settled_sampler_occur_once():
    """A record moved a message by 2C, where 2C/K was stated."""
    method = NoisyMinibatchSGD(noise_std=1.0, clip=1.0, sampler=SettledFirst(5), step_size=0.1)
    with pytest.raises(Refusal, match=r"^samples must occur once in a message, got 0 in round 1, slot 1$"):
        ready(method, PROBLEM, Full(2), rounds=3)


def test_records_of_a_custom_local_step_occur_once():
    work = OneBatch(2, 5, AllRecords())
    pair = Protocol(LocalGradientSteps(), privacy=LocalPrivacy(work=work, unit="record", clip=1.0), **RUN)
    with pytest.raises(Refusal, match=r"^samples must occur once in a local step, got 0 in round 1, slot 1$"):
        _ = ready(pair, PROBLEM, Full(2), rounds=3).arguments


@dataclass(frozen=True)
class SettledAgain(Sampler):
    """The same records in every message, of a sampler that states that a record is in one message."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    name: ClassVar[str] = "settled_again"
    description: ClassVar[str] = "the first records"
    settled: ClassVar[bool] = True

    def releases(self, rounds, records, batch):
        return 1

    def message(self, sizes, batches, most, width, rng):
        return np.tile(np.arange(width), (sizes.size, 1)), batches


def test_records_of_a_settled_sampler_are_in_as_many_messages_as_it_states():
    """μ was 1 where ten messages have √10."""
    method = NoisyMinibatchSGD(noise_std=0.4, clip=1.0, sampler=SettledAgain(5), step_size=0.1)
    assert ready(method, PROBLEM, Full(2), rounds=1).guarantee.curve.mu == pytest.approx(1)
    with pytest.raises(
        Refusal, match=r"^samples must be in as many messages as releases of SettledAgain.* states, got"
    ):
        ready(method, PROBLEM, Full(2), rounds=10)


@dataclass(frozen=True)
class SameSteps(LocalWork):
    """The first two records in every local step, which are public."""

    number: int
    batch: int | None  # pyright: ignore[reportIncompatibleVariableOverride]
    divisor: int = 2
    most: int = 3
    name: ClassVar[str] = "same_steps"
    description: ClassVar[str] = "two records in every local step"

    @property
    def uses(self):
        return self.most

    @property
    def of_step(self):
        return AllRecords()

    def divisors(self, sizes):
        return np.full(sizes.shape, self.divisor)

    def batches(self, sizes):
        return np.full(sizes.shape, 2 * self.number)

    def steps(self, sizes):
        return np.full(sizes.shape, self.number)

    def step_width(self, sizes, messages):
        return 2

    def cut(self, width):
        return self.number

    def draw(self, rows, schedule, rng, stored=False):
        shape = *schedule.participants.shape, self.number * 2
        return np.broadcast_to(np.arange(shape[2], dtype=np.int32) % 2, shape), np.ones(shape, bool)


def in_steps(work, **run):
    return Protocol(LocalGradientSteps(), privacy=LocalPrivacy(work=work, unit="record", clip=1.0), **RUN | run)


def test_a_record_is_in_as_many_local_steps_as_custom_work_states():
    """A record in three steps counted as in one."""
    assert ready(in_steps(SameSteps(3, 2)), PROBLEM, Full(2), rounds=1).guarantee.curve.mu == pytest.approx(3**0.5)
    with pytest.raises(Refusal, match=r"^samples must be in at most 1 local steps of a round, got 0 in round 1, slot"):
        ready(in_steps(SameSteps(3, 2, most=1)), PROBLEM, Full(2), rounds=1)
    with pytest.raises(Refusal, match=r"^samples must be in at most 0 local steps of a round, got 0 in round 1, slot"):
        ready(in_steps(SameSteps(3, 2, most=0)), PROBLEM, Full(2), rounds=1)


@pytest.mark.parametrize("batch", [2, None])
def test_custom_work_divides_a_step_as_the_program_does(batch):
    """The program divided by the batch, or the number of records, and the guarantee by larger divisors."""
    assert ready(in_steps(SameSteps(3, batch)), PROBLEM, Full(2), rounds=1).guarantee.curve.mu == pytest.approx(3**0.5)
    found = "batch = 2" if batch else "no batch and steps of fewer records"
    with pytest.raises(Refusal, match=rf"^divisors of SameSteps must be at most the batch .* machine 0 with {found}$"):
        ready(in_steps(SameSteps(3, batch, divisor=10)), PROBLEM, Full(2), rounds=1)
    without = ready(in_steps(SameSteps(3, batch, divisor=10), noise_std=0.0), PROBLEM, Full(2), rounds=1)
    assert not without.guarantee.private
