"""Claims of client methods that hold only under a condition: samples that are known, public steps, borrowed secrecy."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    AdaptiveClip,
    Dropouts,
    Encoder,
    FedAvg,
    Full,
    LinearLoss,
    Participation,
    PoissonCohorts,
    Refusal,
    Scaffold,
    Uniform,
    draw_plan,
    guarantee,
    linear_problem,
    ready,
    transcript,
)
from fedprivjax.privacy import gdp

MACHINES, RECORDS, DELTA = 4, 6, 1e-5


class Score(LinearLoss):
    """The score itself: the gradient is the record, at any point."""

    def value(self, score, label):
        return score


def problem_of(sizes=(RECORDS,) * MACHINES):
    rows = np.full((len(sizes), max(sizes)), -1)
    for machine, size in enumerate(sizes):
        rows[machine, :size] = sum(sizes[:machine]) + np.arange(size)
    return linear_problem(np.ones((sum(sizes), 2)), np.ones(sum(sizes)), Score(), partition_table=rows)


# ---- one record


def worst_uses(plan, machine, steps):
    """Return Σ_steps j² of a machine's most used record, j its occurrences in a step."""
    squares = np.zeros(MACHINES * RECORDS)
    for t, slot in zip(*np.nonzero(plan.schedule.participants == machine), strict=True):
        rows = zip(np.split(plan.samples[t, slot], steps), np.split(plan.weights[t, slot], steps), strict=True)
        for samples, weights in rows:
            squares += np.bincount(samples[weights > 0], minlength=squares.size) ** 2
    return squares.max()


@pytest.mark.parametrize("sampler", ["subset", "replacement", "poisson"])
@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_steps_on_known_records_amplify_nothing(method, sampler):
    protocol = method(local_steps=3, batch=2, sampler=sampler, unit="record", clip=1.0, noise_std=3.0, step_size=0.1)
    problem, participation = problem_of(), Uniform(MACHINES, 2)
    plan = draw_plan(problem, participation, 5, 1, sampler=protocol.minibatches)
    secret, known = (guarantee(protocol, problem, one, DELTA) for one in (plan, replace(plan, secret=False)))
    mus = [2 / 2 * sqrt(worst_uses(plan, machine, 3)) / 3.0 for machine in range(MACHINES)]
    expected = [float(gdp.epsilon(mu, DELTA)) if mu else 0.0 for mu in mus]
    np.testing.assert_allclose(known.per_machine, expected, rtol=1e-6)
    assert known.epsilon > secret.epsilon
    assert "which records are used is known" in known.theorem


def test_known_records_cannot_be_counted_with_dropouts_or_be_added():
    settings = {"local_steps": 2, "batch": 2, "unit": "record", "clip": 1.0, "noise_std": 3.0, "step_size": 0.1}
    added = {"sampler": "poisson", "rate": 0.3, "relation": "add-or-remove-one"}
    cases = (FedAvg(**settings), Dropouts(Full(MACHINES), 0.3)), (FedAvg(**settings, **added), Full(MACHINES))
    for (protocol, participation), named in zip(cases, ("dropouts must be left out", "relation must be"), strict=True):
        plan = draw_plan(problem_of(), participation, 3, 1, sampler=protocol.minibatches)
        assert guarantee(protocol, problem_of(), plan, DELTA).epsilon > 0
        with pytest.raises(Refusal, match=f"{named}.* if the used records are public"):
            guarantee(protocol, problem_of(), replace(plan, secret=False), DELTA)


# ---- noise of local steps

LONG, SIGMA = 2000, 0.7


@pytest.mark.parametrize(
    "work",
    [
        pytest.param({"local_epochs": 1, "batch": 2}, id="epochs"),
        pytest.param(
            {"local_steps": 2, "batch": 1, "sampler": "poisson", "rate": 0.2}, id="poisson", marks=pytest.mark.slow
        ),
    ],
)
def test_every_local_step_has_its_own_noise(work):
    """Also steps on an empty Poisson sample, and those of machines that are sorted by their numbers of steps."""
    sizes = (6, 1, 3, 1)
    problem = problem_of(sizes)
    zeros = linear_problem(np.zeros((11, LONG)), np.zeros(11), Score(), partition_table=problem.partition_table.rows)
    protocol = FedAvg(unit="record", clip=1.0, noise_std=SIGMA, step_size=1.0, **work)
    start = ready(protocol, zeros, Full(MACHINES), rounds=2, seed=3)
    steps: Any = transcript(protocol, zeros, Full(MACHINES), rounds=2, seed=3).steps
    taken = protocol.minibatches.steps(np.array(sizes))[start.plan.schedule.participants]
    noises = np.concatenate([steps[t, slot, :k] for (t, slot), k in np.ndenumerate(taken)]).astype(float)
    assert len(noises) == taken.sum()
    np.testing.assert_allclose(noises.std(axis=1), SIGMA, rtol=5 / np.sqrt(2 * LONG))
    assert np.abs(np.corrcoef(noises) - np.eye(len(noises))).max() < 5.5 / np.sqrt(LONG)
    if "rate" in work:
        assert not start.arguments.inputs.weights.reshape(2, MACHINES, 2, -1).any(axis=3).all()


# ---- one machine

MACHINE = {"unit": "machine", "noise_std": 1.0, "step_size": 0.5, "batch": 1}
STEPS = "the largest number of a machine's local steps in a round is a public constant"  # which is not printed


@pytest.mark.parametrize("participation", [Full(MACHINES), PoissonCohorts(MACHINES, 0.5)])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_steps_that_scale_all_messages_are_public(relation, participation):
    """SCAFFOLD's K is that of the largest machine, so with epochs its number of records moves all messages."""

    def assumed(method, **work):
        protocol = method(update_clip=0.3, relation=relation, **work, **MACHINE)
        return set(map(str, ready(protocol, problem_of((6, 1, 2, 1)), participation, rounds=2).guarantee.assumptions))

    assert STEPS in assumed(Scaffold, local_epochs=1)
    assert STEPS not in assumed(FedAvg, local_epochs=1)
    assert STEPS not in assumed(Scaffold, local_steps=6)


def test_clips_whose_squares_underflow_are_refused():
    with pytest.raises(
        Refusal, match=r"^update_clip must be at least 1e-12, so that norms do not underflow, got 1e-20"
    ):
        FedAvg(update_clip=1e-20, local_epochs=1, **MACHINE)
    with pytest.raises(Refusal, match=r"^start must be at least 1e-12, so that norms do not underflow, got 1e-20"):
        AdaptiveClip(start=1e-20)


@dataclass(frozen=True)
class Sticky(Participation):
    """Poisson cohorts that stay for two rounds."""

    machines: int
    secret = True
    varies = True
    per_round = MACHINES

    @property
    def mean_size(self):
        return self.machines / 2

    def draw(self, rounds, rng):
        drawn = PoissonCohorts(self.machines, 0.5).draw(rounds, rng)
        stays, filled = np.arange(rounds) // 2, np.asarray(drawn.filled)
        return replace(drawn, participants=drawn.participants[stays], filled=filled[stays])


@pytest.mark.parametrize("participation", [Sticky(MACHINES), Dropouts(Sticky(MACHINES), 0.2)])
def test_a_custom_scheme_does_not_borrow_the_amplification_of_another(participation):
    with pytest.raises(Refusal, match=r"participation must be PoissonCohorts, .* got Sticky"):
        ready(FedAvg(update_clip=0.3, local_epochs=1, **MACHINE), problem_of(), participation, rounds=4)


# ---- dropouts and encoders

ADAPTIVE = AdaptiveClip(start=0.3)
OF_DROPOUTS = {
    "server": FedAvg(update_clip=0.3, local_epochs=1, **MACHINE),
    "none": FedAvg(update_clip=0.3, local_epochs=1, trust="none", **MACHINE),
    "tree": FedAvg(update_clip=0.3, local_epochs=1, noise_schedule="tree", **MACHINE),
    "toeplitz": Scaffold(update_clip=0.3, local_epochs=1, noise_schedule="toeplitz", **MACHINE),
    "adaptive": Scaffold(update_clip=ADAPTIVE, local_epochs=1, **MACHINE),
    "record": FedAvg(unit="record", clip=1.0, local_epochs=1, batch=2, noise_std=1.0, step_size=0.5),
    "sampled record": Scaffold(unit="record", clip=1.0, local_steps=2, batch=2, noise_std=1.0, step_size=0.5),
}


@pytest.mark.parametrize("name", OF_DROPOUTS)
def test_machines_that_drop_out_count_as_present(name):
    start = ready(OF_DROPOUTS[name], problem_of(), Dropouts(Uniform(MACHINES, 3), 0.5), rounds=6, seed=2)
    schedule = start.plan.schedule
    assert (np.bincount(schedule.participants[schedule.present], minlength=MACHINES) < schedule.total).any()
    planned = replace(start.plan, schedule=replace(schedule, dropped=np.zeros_like(schedule.dropped)))
    one, other = (start.protocol.event(start.problem, plan).guarantee(DELTA) for plan in (start.plan, planned))
    np.testing.assert_array_equal(one.per_machine, other.per_machine)


@dataclass(frozen=True)
class Unchanged(Encoder):
    def encode(self, message, key):
        return message

    def bits(self, dimension):
        return 32.0 * dimension


@pytest.mark.parametrize("method", sparing([FedAvg, Scaffold], [FedAvg]))
def test_update_and_bit_have_the_machines_noise_before_the_encoder(method):
    many = 1000
    zeros = linear_problem(np.zeros((many, 2)), np.zeros(many), Score(), partition_table=np.arange(many)[:, None])
    settings = MACHINE | {"trust": "none", "noise_std": SIGMA, "encoder": Unchanged(), "local_epochs": 1}
    messages = np.asarray(transcript(method(update_clip=ADAPTIVE, **settings), zeros, Full(many), rounds=1).messages)[0]
    assert messages.shape == (many, 3 if method is FedAvg else 5)
    np.testing.assert_allclose(messages.std(axis=0), SIGMA, rtol=5 / np.sqrt(2 * many))


@pytest.mark.parametrize(
    "clip", [pytest.param(0.3, id="fixed", marks=pytest.mark.slow), pytest.param(ADAPTIVE, id="adaptive")]
)
def test_updates_that_overflow_are_zero(clip):
    """The clip leaves no infinite or undefined number in a message, whatever the machine's records are."""
    features = np.full((4, 2), 1e-21, np.float32)
    features[0] = 1e18
    problem = linear_problem(features, np.zeros(4), Score(), partition_table=np.arange(4)[:, None])
    settings = MACHINE | {"noise_std": 1e-6, "step_size": 1e21, "trust": "none", "local_epochs": 1}
    view = transcript(FedAvg(update_clip=clip, **settings), problem, Full(4), rounds=2)
    messages = np.asarray(view.messages)
    assert np.isfinite(view.queries).all()
    assert np.isfinite(messages).all()
    np.testing.assert_allclose(messages[0, 0, :2], 0, atol=1e-4)
    assert np.linalg.norm(messages[0, 1]) > 0.1


@pytest.mark.parametrize("scheme", [PoissonCohorts(12, 0.5), Dropouts(PoissonCohorts(12, 0.5), 0.3)])
@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_costs_do_not_tell_secret_cohorts(method, scheme):
    """Machines differ in their numbers of steps, so the realised share of idle steps would show who took part."""
    protocol, problem = method(update_clip=0.3, local_epochs=1, **MACHINE), problem_of(tuple(range(1, 13)))

    def starts(participation):
        return [ready(protocol, problem, participation, rounds=2, seed=seed) for seed in range(4)]

    secret, public = starts(scheme), starts(Uniform(12, 8))
    assert len({repr(start.costs) for start in secret}) == 1
    assert np.isnan([start.costs["idle_steps"] for start in [*secret, *public]]).all(), "sizes are private, too"
    assert len({start.protocol.rounds.run_costs(problem, start.plan)["idle_steps"] for start in public}) > 1
