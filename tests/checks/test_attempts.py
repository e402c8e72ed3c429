"""Attempts to keep a guarantee that is no longer true: each is refused, or its bound holds.

True ε are lower bounds of audits, or follow from the moved sensitivity, for the settings in the comment.
"""

from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import getattr_static
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, MACHINES, PER_ROUND, SHARES
from faults.clients import MACHINE, largest_update
from flax import struct

from fedprivjax import (
    AdaptiveClip,
    Ball,
    DPMu2,
    Encoder,
    FedAvg,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    Problem,
    Quantiser,
    Refusal,
    Scaffold,
    TreeMomentum,
    Uniform,
    draw_plan,
    guarantee,
    ready,
)
from fedprivjax.checks.restated import GENERATED, TEXTS, _broken, of_package, require_restated
from fedprivjax.engine.transcript import replay
from fedprivjax.method.interface import FREE
from fedprivjax.noise import Silent
from fedprivjax.noise.factors import Tree
from fedprivjax.noise.rounds.factor import RoundFactor, TreeFactor
from fedprivjax.plan.samplers import Cyclic, Full, LocalEpochs, Poisson, Sampler, Subset
from fedprivjax.privacy.accountants.sampled import SampledReleases
from fedprivjax.problem.losses import Hinge
from fedprivjax.problem.models import LinearModel

SOME = Uniform(MACHINES, PER_ROUND)


def first_two(self, sizes, batches, most, width, rng):
    return np.tile(np.arange(width), (sizes.size, 1)), batches


@dataclass(frozen=True)
class Favourites(Subset):
    """Always the first records. With ε = 1 stated for a batch of 2 of 100 in 100 rounds, the true ε is 68."""

    message = first_two


@dataclass(frozen=True)
class BelowFavourites(Favourites):
    """A subclass that changes nothing more."""


@dataclass(frozen=True)
class Repeated(Poisson):
    """One sample in every round. With ε = 1 stated, the true ε is 38."""

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
    "subset": (Favourites(2), "message", "secret and occurrences", "Subset"),
    "poisson": (Repeated(2), "draw", "secret, independent, occurrences, amplifies, empty and chance", "Poisson"),
    "partly": (RarelySecret(2), "occurrences", "secret", "Subset"),
    "full": (NotAll(), "message", "settled", "Full"),
    "attribute": (SecretAgain(2), "independent", "secret and occurrences", "Subset"),
    "below": (BelowFavourites(2), "message", "secret and occurrences", "Subset"),
}


def sampled(sampler, **settings):
    return NoisyMinibatchSGD(sampler=sampler, clip=0.3, step_size=0.1, **{"epsilon": 1.0, "delta": 1e-5, **settings})


def refused(make, changed, missing, of):
    """Check that a private run is refused in one line, before anything compiles, and return the message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", None)
        with pytest.raises(Refusal, match=f"^{changed} must be overridden together with {missing}, which ") as refusal:
            make()
    assert "\n" not in str(refusal.value)
    assert f" of {of}. Define {missing} in " in str(refusal.value)


@pytest.mark.parametrize("attempt", SAMPLERS)
def test_a_sampler_that_keeps_its_parents_statement_is_refused(attempt):
    sampler, *said = SAMPLERS[attempt]
    refused(lambda: ready(sampled(sampler), SHARES, SOME, rounds=3), *said)
    method = sampled(sampler, epsilon=None, noise_std=1.0)
    refused(lambda: guarantee(method, SHARES, draw_plan(SHARES, SOME, 3, sampler=sampler)), *said)
    refused(lambda: SampledReleases(sampler, 36, 3, 1e-5), *said)
    inside = FedAvg(unit="record", noise_std=1.0, clip=0.3, step_size=0.1, local_steps=2, sampler=sampler)
    refused(lambda: ready(inside, SHARES, SOME, rounds=3), *said)


def test_the_remedy_of_a_sampler_is_named():
    with pytest.raises(Refusal, match=r"Define secret and occurrences in .* as well, or derive it from Sampler$"):
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
class QuietTree(TreeFactor):
    """No noise over rounds."""

    def mechanism(self, schedule):
        return Silent()


@dataclass(frozen=True)
class QuietFactor(RoundFactor):
    """The exposures of a matrix, and other noise."""

    def matrix(self, schedule):
        return np.eye(schedule.size.rounds)

    def mechanism(self, schedule):
        return TreeFactor().mechanism(schedule)


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


OBJECTS: dict[str, tuple[Any, str, str, str]] = {
    "encoder": (Longer(4), "encode", "norm_bound", "Quantiser"),
    "set": (WiderBall(1.0), "project", "diameter and radius", "Ball"),
    "loss": (Steep(), "value", "lipschitz and smoothness", "Logistic"),
    "kinked loss": (SteepHinge(), "slopes", "lipschitz", "Hinge"),
    "model": (SteepModel(Logistic()), "gradients", "lipschitz and smoothness", "LinearModel"),
    "tree over rounds": (QuietTree(), "mechanism", "exposures", "TreeFactor"),
    "factor over rounds": (QuietFactor(), "mechanism", "exposures", "RoundFactor"),
    "tree of a momentum": (QuietNodes(), "step", "squares and contributions", "Tree"),
    "adaptive clip": (LoudPair(start=0.1), "pair", "norm_bound", "AdaptiveClip"),
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
@pytest.mark.parametrize("trust", ["server", "none"])
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


# ---- methods


@struct.dataclass(kw_only=True)
class FedExP(FedAvg):
    """A coordinate 1000·‖Δ‖² beside the clipped update: messages of norm 1000 for C = 1 and ε = 2 stated.

    With an adaptive clip, the pair's bit is read from the wrong place, and the clip falls to 0.003.
    """

    def message(self, update, server, info, noise):
        length = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update))
        return super().message(update, server, info, noise), 1000 * length

    def message_dimension(self, problem):
        return super().message_dimension(problem) + 1

    def serve(self, problem, server, total, weight, inputs, noise):
        return super().serve(problem, server, total[0], weight, inputs, None if noise is None else noise[:-1])


@struct.dataclass(kw_only=True)
class SumServed(FedAvg):
    """The server steps by the sum without its noise."""

    def noisy_mean(self, server, total, weight, inputs, noise):
        return super().noisy_mean(server, total, weight, inputs, None)


@struct.dataclass(kw_only=True)
class OthersSeen(FedAvg):
    """The output depends on what machines hold."""

    def output(self, state):
        return jax.tree.map(lambda w: w + jnp.size(state.own), super().output(state))


@struct.dataclass
class SumShown(DPMu2):
    """The server's un-noised sum as the output: accuracy 0.84 (honest 0.16) where μ = 0.01 is stated."""

    def output(self, state):
        return state.q


@struct.dataclass
class SumAsIterate(DPMu2):
    """The same, evaluated beside the output."""

    def iterates(self, state):
        return {"sum": state.q}


@struct.dataclass
class Tripled(NoisySGD):
    """Three times the gradient after the clip."""

    def messages(self, problem, state, inputs, noise, key):
        return jax.tree.map(lambda leaf: 3 * leaf, super().messages(problem, state, inputs, noise, key))


@struct.dataclass
class OtherMessage(DPMu2):
    """Three times the message, in a function that the class of the event does not know."""

    def machine(self, state, t):
        message = super().machine(state, t)
        return lambda gradient: 3 * message(gradient)


@struct.dataclass
class LongerEpochs(DPMu2):
    """Samples are used again, in an event for one use of each."""

    several_epochs = True


@struct.dataclass
class ClipByProperty(NoisySGD):
    """A clip that is another number in the program than in the event."""

    clip = property(lambda self: 1.0 if isinstance(self.step_scale, float) else 1e6, lambda self, value: None)


@struct.dataclass(kw_only=True)
class CohortsCounted(FedAvg):
    """The sum divided by the number of machines that came."""

    def cohort(self, weight, inputs):
        return jnp.maximum(weight, 1.0)


@struct.dataclass(kw_only=True)
class Mixed(Scaffold, CohortsCounted):
    """A change between a method and the class whose event it extends."""


UNNOISED: dict[str, Any] = {"mu": 0.01, "clip": 1.0, "step_size": 0.1}
EXP: dict[str, Any] = UPDATES | {"update_clip": 1.0}
METHODS = {
    "extra coordinate": (FedExP(**EXP), "message", "FedAvg"),
    "extra coordinate, adaptive": (FedExP(**EXP | {"update_clip": AdaptiveClip(start=1.0)}), "message", "FedAvg"),
    "sum served": (SumServed(**EXP), "noisy_mean", "FedAvg"),
    "machines' states as output": (OthersSeen(**EXP), "output", "FedAvg"),
    "realised cohort": (CohortsCounted(**EXP), "cohort", "FedAvg"),
    "between classes": (Mixed(**EXP), "cohort", "Scaffold"),
    "message": (OtherMessage(**UNNOISED), "machine", "GaussianMethod"),
    "sum as output": (SumShown(**UNNOISED), "output", "GaussianMethod"),
    "sum as iterate": (SumAsIterate(**UNNOISED), "iterates", "GaussianMethod"),
    "three times": (Tripled(**UNNOISED), "messages", "GaussianMethod"),
    "flag": (LongerEpochs(**UNNOISED), "several_epochs", "GaussianMethod"),
    "property": (ClipByProperty(mu=0.01, step_size=0.1), "clip", "GaussianMethod"),
}


@pytest.mark.parametrize("attempt", METHODS)
def test_a_method_that_keeps_an_event_which_is_not_its_own_is_refused(attempt):
    method, changed, of = METHODS[attempt]
    refused(lambda: ready(method, SHARES, SOME, rounds=4), changed, "event", of)


def changed_name(method, name):
    """Return a subclass that overrides a name by what it inherits, in a form that is no default of a field."""
    inherited = getattr_static(method, name, None)
    kept = inherited if callable(inherited) or hasattr(inherited, "__get__") else property(lambda self: inherited)
    return type("Changed", (method,), {name: kept})


OF_PACKAGE = sorted({type(case.protocol) for case in CASES.values()}, key=lambda method: method.__name__)


@pytest.mark.parametrize("method", OF_PACKAGE)
def test_every_name_of_a_private_method_needs_its_event_but_those_that_no_release_follows(method):
    names = {name for name in dir(method) if not name.startswith("__")} - {*TEXTS, *GENERATED, "event"}
    assert {"init", "round", "output", "query", "mechanism", "noise", "traced", "check", "clip", "trust"} <= names
    assert {"default_step", "needed_noise", "uses", "error_bound", "costs", "scaled_down"} <= names & {*FREE}
    for name in names:
        broken = _broken(changed_name(method, name))
        assert (broken is None) == (name in FREE), name


def test_a_new_default_of_a_setting_and_new_names_need_no_event():
    @struct.dataclass(kw_only=True)
    class Settled(FedAvg):
        prox: Any = 0.1
        note: str = struct.field(pytree_node=False, default="")
        name = "settled"

        def default_step(self, problem, plan, target):
            return self.helper

        @property
        def helper(self):
            return 0.1

    assert ready(Settled(**EXP), SHARES, SOME, rounds=4).guarantee.private


def test_a_method_that_states_its_event_is_run():
    @struct.dataclass(kw_only=True)
    class Stated(CohortsCounted):
        def event(self, problem, plan):
            event = super().event(problem, plan)
            return replace(event, sensitivity=PER_ROUND * event.sensitivity)

    @struct.dataclass(kw_only=True)
    class Below(Stated):
        def cohort(self, weight, inputs):
            return super().cohort(weight, inputs)

    assert ready(Stated(**EXP), SHARES, SOME, rounds=4).guarantee.private
    refused(lambda: ready(Below(**EXP), SHARES, SOME, rounds=4), "cohort", "event", "Stated")


def test_a_name_of_the_package_is_no_class_of_it():
    spoofed = type("FedAvg", (SumServed,), {"__module__": FedAvg.__module__, "noise": FedAvg.noise})
    assert not of_package(spoofed)
    assert of_package(FedAvg)
    assert "noise of FedAvg" in str(_broken(spoofed))
