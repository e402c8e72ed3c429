"""Attempts to keep a guarantee that is no longer true: each is refused, or its bound holds.

Docstrings of attempts say what they reached before they were refused.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from cases import MACHINES, PER_ROUND, SHARES, sparing
from faults.clients import MACHINE, largest_update
from flax import struct
from restating import refused

from fedprivjax import (
    AdaptiveClip,
    Ball,
    Encoder,
    FedAvg,
    Logistic,
    NoisyMinibatchSGD,
    Problem,
    Quantiser,
    Refusal,
    TreeMomentum,
    Uniform,
    draw_plan,
    guarantee,
    ready,
)
from fedprivjax.checks.restated import require_restated
from fedprivjax.engine.transcript import replay
from fedprivjax.noise import Silent
from fedprivjax.noise.factors import Tree
from fedprivjax.noise.server_factors import RoundFactor
from fedprivjax.plan.samplers import Cyclic, Full, LocalEpochs, LocalSteps, Occurrences, Poisson, Sampler, Subset
from fedprivjax.privacy.accountants.sampled import SampledReleases
from fedprivjax.problem.losses import Hinge
from fedprivjax.problem.models import LinearModel

SOME = Uniform(MACHINES, PER_ROUND)


def first_two(self, sizes, batches, most, width, rng):
    return np.tile(np.arange(width), (sizes.size, 1)), batches


@dataclass(frozen=True)
class Favourites(Subset):
    """Always the first records. The true ε was 68 where 1 was stated."""

    message = first_two


@dataclass(frozen=True)
class BelowFavourites(Favourites):
    """A subclass that changes nothing more."""


@dataclass(frozen=True)
class Repeated(Poisson):
    """One sample in every round. The true ε was 38 where 1 was stated."""

    def draw(self, rows, schedule, rng, stored=False):
        places, used = super().draw(rows, schedule, rng, stored)
        return np.broadcast_to(places[:1], places.shape), np.broadcast_to(used[:1], used.shape).copy()


@dataclass(frozen=True)
class SecretAgain(Subset):
    """A class attribute that is no field, such as the rate of a record."""

    independent: ClassVar[bool] = True


@dataclass(frozen=True)
class RarelySecret(Subset):
    """A record is stated to be sampled a tenth as often as it is, in a part of the statement."""

    def occurrences(self, records, batch):
        return super().occurrences(10 * records, batch)


@dataclass(frozen=True)
class NotAll(Full):
    """One record in every message, whose divisor stays the number of records."""

    message = first_two


@dataclass(frozen=True)
class OneOrder(LocalEpochs):
    """Epochs that take the first record only."""

    def draw(self, rows, schedule, rng, stored=False):
        places, used = super().draw(rows, schedule, rng, stored)
        return np.zeros_like(places), used


@dataclass(frozen=True)
class Named(Subset):
    """Another name and a field: samples are those of `Subset`."""

    note: str = ""
    name = "named"


@dataclass(frozen=True)
class Counted(Favourites):
    """The same records, which are public: guarantees count them."""

    secret = False


@dataclass(frozen=True)
class Own(Sampler):
    """A sampler without a parent, which is public by default."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    name = "own"
    description = "the first records"
    message = first_two


@dataclass(frozen=True)
class OwnOrder(Cyclic):
    """Another order, which guarantees count in the plan."""

    def draw(self, rows, schedule, rng, stored=False):
        return super().draw(rows, schedule, rng, True)


SAMPLERS = {
    "subset": (Favourites(2), "message", "secret, coupled and occurrences", "Subset"),
    "poisson": (Repeated(2), "draw", "secret, independent, occurrences, amplifies, empty and chance", "Poisson"),
    "partly": (RarelySecret(2), "occurrences", "secret and coupled", "Subset"),
    "full": (NotAll(), "message", "settled", "Full"),
    "attribute": (SecretAgain(2), "independent", "secret, coupled and occurrences", "Subset"),
    "below": (BelowFavourites(2), "message", "secret, coupled and occurrences", "Subset"),
}


def sampled(sampler, **settings):
    return NoisyMinibatchSGD(sampler=sampler, clip=0.3, step_size=0.1, **{"epsilon": 1.0, "delta": 1e-5, **settings})


@pytest.mark.parametrize("attempt", SAMPLERS)
def test_a_sampler_that_keeps_its_parents_statement_is_refused(attempt):
    sampler, *said = SAMPLERS[attempt]
    refused(lambda: ready(sampled(sampler), SHARES, SOME, rounds=3), *said)
    method = sampled(sampler, epsilon=None, noise_std=1.0)
    refused(lambda: guarantee(method, SHARES, draw_plan(SHARES, SOME, 3, sampler=sampler)), *said)
    refused(lambda: SampledReleases(sampler, 36, 3, 1e-5), *said)
    if attempt != "full":
        inside = FedAvg(unit="record", noise_std=1.0, clip=0.3, step_size=0.1, local_steps=2, sampler=sampler)
        refused(lambda: ready(inside, SHARES, SOME, rounds=3), *said)


def test_the_remedy_of_a_sampler_is_named():
    remedy = r"Define secret, coupled and occurrences in .* as well, or derive it from Sampler$"
    with pytest.raises(Refusal, match=remedy):
        require_restated(Favourites(2))


def test_local_work_that_keeps_its_parents_statement_is_refused():
    refused(lambda: require_restated(OneOrder(1)), "draw", "settled, uses, of_step and divisors", "LocalEpochs")


@pytest.mark.parametrize("sampler", [Favourites(2), Repeated(2)])
def test_a_run_without_noise_takes_any_sampler(sampler):
    method = NoisyMinibatchSGD(sampler=sampler, noise_std=0.0, step_size=0.1)
    assert not ready(method, SHARES, SOME, rounds=3).guarantee.private


@pytest.mark.parametrize("sampler", [Named(2), Counted(2), Own(2), OwnOrder(4)])
def test_a_sampler_that_states_nothing_false_is_run(sampler):
    require_restated(sampler)
    if not isinstance(sampler, Cyclic):
        assert ready(sampled(sampler), SHARES, SOME, rounds=3).guarantee.private


def test_records_of_a_public_sampler_are_counted():
    """The same two records three times: √3 times the sensitivity of one message, without amplification."""
    everyone = Uniform(MACHINES, MACHINES)
    plan = draw_plan(SHARES, everyone, 3, sampler=Counted(2))
    whole = draw_plan(SHARES, everyone, 3, sampler=Full())
    stated, of_all = (
        guarantee(sampled(one.sampler, epsilon=None, noise_std=1.0), SHARES, one).epsilon for one in (plan, whole)
    )
    assert stated > 10 * of_all  # 18 times the weight of a record


@dataclass(frozen=True)
class Longer(Quantiser):
    """Ten times the message: with trust = "server", ε = 2 stated, sensitivity 10 times as large."""

    def encode(self, message, key):
        return 10 * super().encode(message, key)


@struct.dataclass
class WiderBall(Ball):
    """A ball ten times as wide as it states, in a method whose noise follows the diameter."""

    def project(self, params):
        return Ball(10 * self.radius).project(params)


@dataclass(frozen=True)
class Steep(Logistic):
    """The loss times 100, with the gradient bound of the loss: 100 times the sensitivity without a clip."""

    def value(self, score, label):
        return 100 * super().value(score, label)


@dataclass(frozen=True)
class SteepHinge(Hinge):
    """The same with slopes."""

    def slopes(self, label):
        return jax.tree.map(lambda slope: 100 * slope, super().slopes(label))


@dataclass(frozen=True)
class SteepModel(LinearModel):
    """The same in the model."""

    def gradients(self, points, example):
        return tuple(100 * gradient for gradient in super().gradients(points, example))


@struct.dataclass
class LouderRecords(Problem):
    """A problem whose records are 100 times as long as its bound on features."""

    def take(self, samples, machine=0):
        taken = super().take(samples, machine)
        return taken._replace(features=100 * taken.features)


@dataclass(frozen=True)
class QuietTree(Tree):
    """No noise over rounds."""

    def mechanism(self, schedule):
        return Silent()


@dataclass(frozen=True)
class QuietFactor(RoundFactor):
    """The exposures of a matrix, and other noise."""

    def matrix(self, schedule):
        return np.eye(schedule.size.rounds)

    def mechanism(self, schedule):
        return Tree().mechanism(schedule)


@dataclass(frozen=True)
class QuietNodes(Tree):
    """A tenth of the noise of a momentum."""

    def step(self, path, normal, alpha, epoch=None):
        return super().step(path, normal / 10, alpha, epoch)


@struct.dataclass(kw_only=True)
class LoudPair(AdaptiveClip):
    """Pairs of update and bit of norm 10."""

    def pair(self, update, unclipped, clip, factor):
        return jax.tree.map(lambda leaf: 10 * leaf, super().pair(update, unclipped, clip, factor))


@struct.dataclass(kw_only=True)
class QuietBits(AdaptiveClip):
    """Less noise of the bits in a program, where the numbers are arrays."""

    def __post_init__(self):
        if not isinstance(self.count_noise, float | None):
            object.__setattr__(self, "count_noise", 1e-4)


OBJECTS: dict[str, tuple[Any, str, str, str]] = {
    "encoder": (Longer(4), "encode", "norm_bound", "Quantiser"),
    "set": (WiderBall(1.0), "project", "diameter and radius", "Ball"),
    "loss": (Steep(), "value", "lipschitz and smoothness", "Logistic"),
    "kinked loss": (SteepHinge(), "slopes", "lipschitz", "Hinge"),
    "model": (SteepModel(Logistic()), "gradients", "lipschitz and smoothness", "LinearModel"),
    "tree over rounds": (QuietTree(), "mechanism", "squares and contributions", "Tree"),
    "factor over rounds": (QuietFactor(), "mechanism", "exposures", "RoundFactor"),
    "tree of a momentum": (QuietNodes(), "step", "squares and contributions", "Tree"),
    "adaptive clip": (LoudPair(start=0.1), "pair", "norm_bound", "AdaptiveClip"),
    "adaptive clip that is made otherwise": (QuietBits(start=0.1), "__post_init__", "norm_bound", "AdaptiveClip"),
}
UPDATES: dict[str, Any] = {"unit": "machine", "local_epochs": 1, "batch": 3, "step_size": 0.1, "epsilon": 2.0}


@pytest.mark.parametrize("attempt", OBJECTS)
def test_an_object_that_keeps_its_parents_statement_is_refused(attempt):
    held, *said = OBJECTS[attempt]
    refused(lambda: require_restated(held), *said)


RUNS = {
    "encoder": (FedAvg(update_clip=0.3, encoder=Longer(4), **UPDATES), SHARES),
    "set": (NoisyMinibatchSGD(batch=2, epsilon=1.0, delta=1e-5), replace(SHARES, constraint=WiderBall(1.5))),
    "loss": (NoisyMinibatchSGD(batch=2, epsilon=1.0, delta=1e-5), replace(SHARES, model=LinearModel(Steep()))),
    "model": (NoisyMinibatchSGD(batch=2, epsilon=1.0, delta=1e-5), replace(SHARES, model=SteepModel(Logistic()))),
    "factor over rounds": (FedAvg(update_clip=0.3, noise_schedule=QuietFactor(), **UPDATES), SHARES),
    "tree of a momentum": (TreeMomentum(batch=4, alpha=0.5, epsilon=1.0, step_size=0.1, factor=QuietNodes()), SHARES),
    "adaptive clip": (FedAvg(update_clip=LoudPair(start=0.1), **UPDATES), SHARES),
}


@pytest.mark.parametrize("attempt", RUNS)
def test_a_private_run_with_such_an_object_is_refused(attempt):
    method, problem = RUNS[attempt]
    refused(lambda: ready(method, problem, SOME, rounds=4), *OBJECTS[attempt][1:])


def test_a_problem_that_changes_its_records_is_refused():
    held = {field.name: getattr(SHARES, field.name) for field in fields(SHARES)}
    method = NoisyMinibatchSGD(batch=2, epsilon=1.0, delta=1e-5)
    refused(
        partial(ready, method, LouderRecords(**held), SOME, rounds=4), "take", "lipschitz and smoothness", "Problem"
    )


def test_an_object_that_states_its_own_is_run():
    @dataclass(frozen=True)
    class Stated(Longer):
        def norm_bound(self, norm, dimension):
            return 10 * super().norm_bound(norm, dimension)

    @dataclass(frozen=True)
    class StatedLoss(Steep):
        def lipschitz(self, feature_bound, radius=np.inf):
            return 100 * super().lipschitz(feature_bound, radius)

        def smoothness(self, feature_bound):
            return 100 * super().smoothness(feature_bound)

    assert ready(FedAvg(update_clip=0.3, encoder=Stated(4), **UPDATES), SHARES, SOME, rounds=4).guarantee.private
    own = replace(SHARES, model=LinearModel(StatedLoss()))
    assert own.lipschitz == 100 * SHARES.lipschitz
    assert ready(NoisyMinibatchSGD(batch=2, epsilon=1.0, delta=1e-5), own, SOME, rounds=4).guarantee.private


@dataclass(frozen=True)
class Overstated(Encoder):
    """Five times the message, said to be no longer: 5 times the sensitivity where ε = 2 is stated."""

    factor: float = 5.0

    def encode(self, message, key):
        return self.factor * message

    def norm_bound(self, norm, dimension):
        return norm


@pytest.mark.parametrize("factor", [5.0, np.inf, 0.5])
@pytest.mark.parametrize("trust", sparing(["server", "none"], ["server"]))
def test_encoded_messages_are_clipped_to_their_stated_bound(factor, trust):
    """A machine's own noise is added before the encoder, so its messages need no bound."""
    settings = MACHINE | {"noise_std": 1.0, "trust": trust}
    claimed, moved = largest_update(FedAvg(encoder=Overstated(factor), **settings))
    if trust == "server":
        assert moved == pytest.approx({5.0: 1.0, np.inf: 0.0, 0.5: 0.5}[factor] * claimed, rel=1e-3)
    else:
        assert factor == np.inf or moved * 2 == pytest.approx(factor * claimed, rel=1e-3)


def test_encoded_pairs_are_clipped_to_their_stated_bound():
    method = FedAvg(encoder=Overstated(), **MACHINE | {"noise_std": 1e-6, "update_clip": AdaptiveClip(start=0.3)})
    start = ready(method, SHARES, SOME, rounds=2, noise_method="materialised")
    messages = np.asarray(replay(start.arguments, start.plan.size)[1][1])
    assert np.linalg.norm(messages, axis=-1).max() == pytest.approx(1.0, rel=1e-4)


@dataclass(frozen=True)
class Twice(Sampler):
    """One record twice in a step, of a sampler that states that records occur once."""

    batch: int  # pyright: ignore[reportIncompatibleVariableOverride]
    name = "full"
    description = "one record"
    secret = True

    def message(self, sizes, batches, most, width, rng):
        return np.zeros((sizes.size, width), int), batches

    def occurrences(self, records, batch):
        return Occurrences(np.ones(1), np.array([batch / records]))


def test_a_local_step_of_a_custom_sampler_has_a_record_once_if_it_states_so():
    """The record moved a step by 2C, where 2C/B was stated."""
    method = FedAvg(unit="record", noise_std=1.0, clip=0.3, step_size=0.1, local_steps=2, sampler=Twice(2))
    start = ready(method, SHARES, SOME, rounds=3)
    with pytest.raises(Refusal, match=r"^samples must occur once in a local step, got \d+ in round 1, slot 1$"):
        _ = start.arguments
    once = FedAvg(unit="record", noise_std=1.0, clip=0.3, step_size=0.1, local_steps=2, sampler=Twice(1))
    assert ready(once, SHARES, SOME, rounds=3).arguments


def test_a_sampler_is_not_taken_for_full_by_its_name():
    """Public records of a step are not counted, unless it takes all."""
    for other in (type("Public", (Twice,), {"secret": False})(2), NotAll()):
        with pytest.raises(Refusal, match=r"^sampler must be 'replacement', .* or 'full' for local steps"):
            LocalSteps(2, other)


def test_a_function_that_is_replaced_on_the_object_is_refused():
    sampler = Subset(2)
    object.__setattr__(sampler, "message", partial(first_two, sampler))
    with pytest.raises(Refusal, match=r"^message must be defined by the class Subset, which guarantees rely on"):
        ready(sampled(sampler), SHARES, SOME, rounds=3)


def test_records_that_a_plan_uses_twice_in_a_message_count_with_both_weights():
    method = TreeMomentum(batch=4, alpha=0.5, noise_std=1.0, step_size=0.1, factor="independent", clip=1.0)
    plan = draw_plan(SHARES, SOME, 9, sampler=method.minibatches)
    samples = plan.samples.copy()
    samples[0] = samples[0, :, :1]
    doubled = replace(plan, samples=samples)
    once, four = (guarantee(method, SHARES, one).mu for one in (replace(doubled, weights=plan.weights / 4), doubled))
    assert four == pytest.approx(4 * once, rel=1e-6)
    assert four > 1.5 * guarantee(method, SHARES, plan).mu
