"""Attempts to keep a guarantee by methods, participation schemes, plans and messages: each is refused, or bounded.

Docstrings of attempts say what they reached before they were refused.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, MACHINES, PER_ROUND, SHARES
from flax import struct
from restating import buggy

from fedprivjax import (
    DPMu2,
    Dropouts,
    FedAvg,
    NoisyMinibatchSGD,
    NoisySGD,
    PoissonCohorts,
    Protocol,
    Refusal,
    Schedule,
    Uniform,
    calibrate,
    draw_plan,
    guarantee,
    ready,
    transcript,
)
from fedprivjax.checks.restated import of_package
from fedprivjax.method.clipping import clip
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Subset
from fedprivjax.problem.models import Dense
from fedprivjax.problem.problem import Table
from fedprivjax.sweeps.prepare import ready_sweep

SOME = Uniform(MACHINES, PER_ROUND)
UPDATES: dict[str, Any] = {"unit": "machine", "local_epochs": 1, "batch": 3, "step_size": 0.1, "epsilon": 2.0}


# ---- methods

METHODS = sorted({type(case.protocol) for case in CASES.values()}, key=lambda method: method.__name__)
NOISY = DPMu2(noise_std=1.0, clip=1.0, step_size=0.1)


class Mixed:
    """A parent that is no method."""


class Unsealing:
    """A parent that leaves out the check of subclasses."""

    def __init_subclass__(cls, **options):
        pass


@pytest.mark.parametrize("method", [Protocol, *METHODS])
def test_a_method_has_no_subclasses(method):
    """An extra coordinate had norm 1000 for C = 1, and the un-noised sum as output an accuracy of 0.84 for 0.16."""
    said = f"{method.__name__} must not be subclassed, because guarantees rely on its own functions, got Mine. "
    said += "Define an Algorithm, see the guide 'A custom algorithm'"
    for changes in ({}, {"event": NoisySGD.event, "output": lambda self, state: state.memory}):
        with pytest.raises(Refusal) as refusal:
            type("Mine", (Mixed, method), changes)
        assert str(refusal.value) == said


def test_the_remedy_names_a_guide():
    guide = Path(__file__).parents[2] / "notebooks" / "custom_algorithm.md"
    assert guide.read_text(encoding="utf-8").startswith("# A custom algorithm\n")


def forged(parents, **names):
    """Return an object of a subclass of `DPMu2` that is not refused where it is defined."""
    kind = struct.dataclass(type("DPMu2", (*parents, DPMu2), {"output": lambda self, state: state.memory.q, **names}))
    return kind(noise_std=1.0, clip=1.0, step_size=0.1)


def test_a_class_that_passes_the_seal_is_not_run():
    plan = draw_plan(SHARES, SOME, 4)
    for method in (forged((), __module__=DPMu2.__module__), forged((), __module__="fedprivjax"), forged((Unsealing,))):
        for prepare in (
            lambda method=method: ready(method, SHARES, SOME, rounds=4),
            lambda method=method: ready(replace(method, noise_std=0.0), SHARES, SOME, rounds=4),
            lambda method=method: ready_sweep(method, SHARES, SOME, over={"clip": [1.0]}, rounds=4),
            lambda method=method: transcript(method, SHARES, SOME, rounds=4),
            lambda method=method: calibrate(method, SHARES, plan),
            lambda method=method: guarantee(method, SHARES, plan),
        ):
            with pytest.raises(Refusal, match=r"^protocol must be of a class of the package, .* the subclass DPMu2$"):
                prepare()


def test_a_name_of_the_package_is_no_class_of_it():
    assert not of_package(type(forged((), __module__=DPMu2.__module__)))
    assert of_package(DPMu2)
    assert of_package(buggy(DPMu2))


def test_a_function_that_is_replaced_on_a_protocol_is_refused():
    method = replace(NOISY)
    object.__setattr__(method, "event", NOISY.event)
    with pytest.raises(Refusal, match=r"^event must be defined by the class DPMu2, which guarantees rely on"):
        guarantee(method, SHARES, draw_plan(SHARES, SOME, 4))


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
    with pytest.raises(Refusal, match=r"^participation must be PoissonCohorts, CyclicPoisson, SecretSubsets or public"):
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


@pytest.mark.parametrize("kind", [jnp.int32, jnp.bool_, jnp.float16, jnp.bfloat16])
def test_a_gradient_of_other_numbers_is_not_clipped(kind):
    """The squares of 65536 overflow to 0 in int32: messages had norm 1.3·10⁶ for C = 10⁻³."""
    with pytest.raises(Refusal, match="float32 numbers"):
        clip(Dense({"w": jnp.ones(3), "b": jnp.ones(2, kind)}), 1.0)
