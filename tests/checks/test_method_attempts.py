"""Attempts to keep a guarantee by methods, participation schemes, plans and messages: each is refused, or bounded.

Docstrings of attempts say what they reached before they were refused.
"""

from dataclasses import dataclass, fields, replace
from inspect import getattr_static
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, MACHINES, PER_ROUND, SHARES, sparing
from flax import struct
from restating import refused, states, unsealed

from fedprivjax import (
    AdaptiveClip,
    DPMu2,
    Dropouts,
    FedAvg,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    PoissonCohorts,
    Refusal,
    Scaffold,
    Schedule,
    Uniform,
    draw_plan,
    guarantee,
    linear_problem,
    ready,
)
from fedprivjax.checks.restated import GENERATED, TEXTS, _broken, of_package
from fedprivjax.engine.transcript import replay
from fedprivjax.method.clipping import clip
from fedprivjax.method.interface import FREE
from fedprivjax.method.theory import Theory
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Subset
from fedprivjax.problem.models import Dense
from fedprivjax.problem.problem import Table

SOME = Uniform(MACHINES, PER_ROUND)
UPDATES: dict[str, Any] = {"unit": "machine", "local_epochs": 1, "batch": 3, "step_size": 0.1, "epsilon": 2.0}


# ---- methods


@struct.dataclass(kw_only=True)
class FedExP(FedAvg):
    """A coordinate 1000·‖Δ‖² beside the clipped update: messages of norm 1000 for C = 1 and ε = 2 stated.

    With an adaptive clip, the pair's bit is read from the wrong place, and the clip falls to 0.003.
    """

    def client(self, server, own, data, noise, key):
        message, own, info = super().client(server, own, data, noise, key)
        return (message, 1000 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(message))), own, info

    def message_dimension(self, problem):
        return super().message_dimension(problem) + 1

    def _served(self, problem, server, total, weight, inputs, noise, key):
        noise = None if noise is None else noise[:-1]
        return super()._served(problem, server, total[0], weight, inputs, noise, key)


@struct.dataclass(kw_only=True)
class SumServed(FedAvg):
    """The server steps by the sum without its noise."""

    def _served(self, problem, server, total, weight, inputs, noise, key):
        return super()._served(problem, server, total, weight, inputs, None, key)


@struct.dataclass(kw_only=True)
class OthersSeen(FedAvg):
    """The output depends on what machines hold."""

    def output(self, state):
        return jax.tree.map(lambda w: w + jnp.size(state.own), super().output(state))


@struct.dataclass
class SumShown(DPMu2):
    """The server's un-noised sum as the output: accuracy 0.84 (honest 0.16) where μ = 0.01 is stated."""

    def output(self, state):
        return state.memory.q


@struct.dataclass
class SumAsIterate(DPMu2):
    """The same, evaluated beside the output."""

    def iterates(self, state):
        return {"sum": state.memory.q}


@struct.dataclass
class Tripled(NoisySGD):
    """Three times the gradient after the clip."""

    def messages(self, problem, state, inputs, noise, key):
        return jax.tree.map(lambda leaf: 3 * leaf, super().messages(problem, state, inputs, noise, key))


@struct.dataclass
class OtherMessage(DPMu2):
    """Three times the message, in a function that the class of the event does not know."""

    def _message(self, problem, state, t):
        return 3 * super()._message(problem, state, t)


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

    @property
    def privacy(self):
        return unsealed(divisor=lambda self, weight, inputs: jnp.maximum(weight, 1.0))(super().privacy)


@struct.dataclass(kw_only=True)
class Mixed(Scaffold, CohortsCounted):
    """A change between a method and the class whose event it extends."""


UNNOISED: dict[str, Any] = {"mu": 0.01, "clip": 1.0, "step_size": 0.1}
EXP: dict[str, Any] = UPDATES | {"update_clip": 1.0}
METHODS = {
    "extra coordinate": (FedExP(**EXP), "client", "FedAvg"),
    "extra coordinate, adaptive": (FedExP(**EXP | {"update_clip": AdaptiveClip(start=1.0)}), "client", "FedAvg"),
    "sum served": (SumServed(**EXP), "_served", "FedAvg"),
    "machines' states as output": (OthersSeen(**EXP), "output", "FedAvg"),
    "realised cohort": (CohortsCounted(**EXP), "privacy", "FedAvg"),
    "between classes": (Mixed(**EXP), "privacy", "FedAvg"),
    "message": (OtherMessage(**UNNOISED), "_message", "DPMu2"),
    "sum as output": (SumShown(**UNNOISED), "output", "DPMu2"),
    "sum as iterate": (SumAsIterate(**UNNOISED), "iterates", "DPMu2"),
    "three times": (Tripled(**UNNOISED), "messages", "NoisySGD"),
    "flag": (LongerEpochs(**UNNOISED), "several_epochs", "DPMu2"),
    "property": (ClipByProperty(mu=0.01, step_size=0.1), "clip", "NoisySGD"),
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
    names |= {*method.stated.optional, "examples"}
    assert {"init", "round", "output", "query", "mechanism", "noise", "traced", "check", "clip", "trust"} <= names
    assert {"needed_noise", "theory", "costs", "examples"} <= names & {*FREE}
    for name in names:
        broken = _broken(changed_name(method, name))
        assert (broken is None) == (name in FREE), name


@struct.dataclass(kw_only=True)
class Unchecked(FedAvg):
    """Settings without their checks: correlated noise with an adaptive clip, whose noise does not cancel."""

    def __post_init__(self):
        object.__setattr__(self, "trust", "server")


def test_settings_that_a_subclass_leaves_unchecked_are_checked_before_a_private_run():
    method = Unchecked(**EXP | {"update_clip": AdaptiveClip(start=1.0)}, noise_schedule="tree")
    with pytest.raises(Refusal, match=r"^noise_schedule must be 'independent' with an AdaptiveClip, because noise"):
        ready(method, SHARES, SOME, rounds=4)
    assert ready(Unchecked(**EXP), SHARES, SOME, rounds=4).guarantee.private


def test_a_new_default_of_a_setting_and_new_names_need_no_event():
    @struct.dataclass(kw_only=True)
    class Settled(FedAvg):
        prox: Any = 0.1
        note: str = struct.field(pytree_node=False, default="")
        name = "settled"

        theory = Theory(step=lambda protocol, problem, plan, target: protocol.helper)

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
        @property
        def privacy(self):
            return super().privacy

    assert ready(Stated(**EXP), SHARES, SOME, rounds=4).guarantee.private
    refused(lambda: ready(Below(**EXP), SHARES, SOME, rounds=4), "privacy", "event", "Stated")


def test_a_name_of_the_package_is_no_class_of_it():
    spoofed = type("FedAvg", (SumServed,), {"__module__": FedAvg.__module__, "noise": FedAvg.noise})
    assert not of_package(spoofed)
    assert of_package(FedAvg)
    assert "noise of FedAvg" in str(_broken(spoofed))


# ---- participation and plans


@dataclass(frozen=True)
class FirstMachines(PoissonCohorts):
    """The same machines in every round: the scheme's amplification does not hold."""

    def draw(self, rounds, rng):
        schedule = super().draw(rounds, rng)
        return replace(schedule, participants=np.sort(schedule.participants, axis=1)[:1].repeat(rounds, axis=0))


@dataclass(frozen=True)
class Sized(Uniform):
    """The machines with the most records, of a scheme that is stated not to depend on them."""

    first: Any = ()

    def fitted(self, shares):
        return replace(self, first=() if shares is None else tuple(np.argsort(-shares)[: self.per_round].tolist()))

    def draw(self, rounds, rng):
        return Schedule(self.machines, np.tile(np.array(self.first), (rounds, 1)))


class Uncounted(Schedule):
    """A schedule in which no machine takes part more than once."""

    @property
    def total(self):
        return np.ones(self.machines, int)


@dataclass(frozen=True)
class Uncounting(Uniform):
    """A scheme with such a schedule."""

    def draw(self, rounds, rng):
        return Uncounted(self.machines, super().draw(rounds, rng).participants)


class OneUse(Plan):
    """A plan that uses no record twice."""

    repeats = False


class LongTable(Table):
    """Machines with ten times their records."""

    @property
    def sizes(self):
        return 10 * np.sum(self.rows >= 0, axis=1)


def test_a_secret_scheme_that_draws_otherwise_is_not_amplified():
    with pytest.raises(Refusal, match=r"^participation must be PoissonCohorts, SecretSubsets or public for"):
        ready(FedAvg(update_clip=0.3, **UPDATES), SHARES, FirstMachines(MACHINES, 0.5), rounds=4)


@pytest.mark.parametrize("scheme", [Sized(MACHINES, 2), Dropouts(Sized(MACHINES, 2), 0.1)])
def test_a_scheme_that_is_fitted_to_dataset_sizes_makes_them_public(scheme):
    plan = draw_plan(SHARES, scheme, 4)
    assert plan.depends_on_sizes
    stated = guarantee(DPMu2(noise_std=1.0, clip=1.0, step_size=0.1), SHARES, plan)
    assert "each machine's number of records is public" in str(stated)
    for unchanged in (SOME, Dropouts(SOME, 0.1)):
        assert not draw_plan(SHARES, unchanged, 4).depends_on_sizes


def test_schedules_plans_and_tables_that_count_otherwise_are_refused():
    method = DPMu2(noise_std=1.0, clip=1.0, step_size=0.1)
    with pytest.raises(Refusal, match=r"^Uncounting.draw must give a Schedule, got Uncounted$"):
        ready(method, SHARES, Uncounting(MACHINES, PER_ROUND), rounds=4)
    plan = draw_plan(SHARES, SOME, 4)
    held = {field.name: getattr(plan, field.name) for field in fields(plan)}
    with pytest.raises(Refusal, match=r"^plan must be of a class of the package, .* the subclass OneUse$"):
        guarantee(method, SHARES, OneUse(**held))
    quiet = replace(plan, schedule=Uncounted(MACHINES, plan.schedule.participants))
    with pytest.raises(Refusal, match=r"^schedule must be of a class of the package"):
        guarantee(method, SHARES, quiet)
    longer = replace(SHARES, partition_table=LongTable(SHARES.partition_table.rows))
    with pytest.raises(Refusal, match=r"^partition_table must be of a class of the package"):
        guarantee(
            NoisyMinibatchSGD(batch=2, sampler="subset", clip=0.3, noise_std=1.0, step_size=0.1),
            longer,
            draw_plan(longer, SOME, 4, sampler=Subset(2)),
        )


# ---- messages that are no float32 numbers


@states("event")
@struct.dataclass(kw_only=True)
class Replied(FedAvg):
    """An update of one value on machines whose first label is 1, bounded and paired as in `FedAvg`."""

    value: float = struct.field(pytree_node=False, default=0.0)
    integers: bool = struct.field(pytree_node=False, default=False)

    def client(self, server, own, data, noise, key):
        labels = data.problem.take(data.samples, data.machine).label
        told = jnp.where(labels[0, 0] > 0, self.value, 0.0)
        update = jnp.full(data.problem.start.shape, told)
        bounded, info = self.privacy.bounded(update.astype(jnp.int32) if self.integers else update, server.clip)
        return self.privacy.sent(bounded, info, server.clip, noise, self._facts), own, info


def sent(value, **settings):
    """Return the messages of all machines, [machines, numbers], of which the last one has labels 1."""
    labels = np.zeros((MACHINES, 3), int)
    labels[-1] = 1
    problem = linear_problem(np.ones((MACHINES, 3, 2)), labels, Logistic())
    method = Replied(value=value, **UPDATES | {"epsilon": None, "noise_std": 1.0} | settings)
    start = ready(method, problem, Uniform(MACHINES, MACHINES), rounds=1, noise_method="materialised")
    return np.asarray(replay(start.arguments, start.plan.size)[1][1])[0]


@pytest.mark.parametrize("value", sparing([np.nan, np.inf, 1e30], [np.nan]))
def test_a_message_that_is_not_finite_is_zero_before_its_norm_and_its_bit(value):
    """With a bit that followed the NaN, one number of a message told of it."""
    np.testing.assert_array_equal(sent(value, update_clip=0.3), 0)
    messages = sent(value, update_clip=AdaptiveClip(start=0.3))
    np.testing.assert_array_equal(messages[-1], messages[0])
    assert (messages[:, -1] > 0).all()
    longer = sent(10.0, update_clip=AdaptiveClip(start=0.3))
    assert longer[-1, -1] == -longer[0, -1]


def test_a_message_of_integers_is_refused_before_its_norm():
    """The squares of 65536 overflow to 0 in int32: updates had norm 1.3·10⁶ for C = 10⁻³."""
    with pytest.raises(Refusal, match=r"^message must consist of float32 numbers to be clipped, got int32\. Convert"):
        sent(65536.0, integers=True, update_clip=1e-3)
    for kind in (jnp.int32, jnp.bool_, jnp.float16, jnp.bfloat16):
        with pytest.raises(Refusal, match="float32 numbers"):
            clip(Dense({"w": jnp.ones(3), "b": jnp.ones(2, kind)}), 1.0)


def test_a_run_without_noise_and_clip_keeps_what_is_not_finite():
    messages = sent(np.nan, unit=None, noise_std=0.0, step_size=0.1)
    assert np.isnan(messages[-1]).all()
