"""Machines with different constants, targets, records and batches, and the resulting noise."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Ball,
    Full,
    Hinge,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Refusal,
    Uniform,
    draw_plan,
    linear_problem,
    transcript,
)
from fedprivjax.datasets import table
from fedprivjax.plan.plan import Minibatches
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.uses import repeated_uses
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.privacy.noise_rules import noise_std
from fedprivjax.problem.problem import Table
from fedprivjax.protocols.released import ReleasedMinibatchSGD

MACHINES, RECORDS, FEATURES, ROUNDS = 3, 20, 400, 6
EPSILON, DELTA, LIPSCHITZ, BATCH = (1.0, 2.0, 4.0), (1e-5, 1e-4, 1e-5), (1.0, 0.5, 2.0), (4, 4, 8)
OWN = {"epsilon": EPSILON, "delta": DELTA}
ZEROS = np.zeros((MACHINES, RECORDS, FEATURES), np.float32)
PROBLEM = linear_problem(ZEROS, ZEROS[..., 0].astype(int), Logistic(), feature_bound=1.0)
DIFFERENT = replace(PROBLEM, own_lipschitz=LIPSCHITZ)


def wanted(i, rule, batch, releases=ROUNDS, sampler="subset"):
    sampled = SampledReleases(sampler, RECORDS, releases, DELTA[i], batch)
    return noise_std(rule, sampled, lipschitz=LIPSCHITZ[i], epsilon=EPSILON[i])


def stds(protocol):
    """Standard deviation of each machine's messages for gradients of 0, or of its local steps; [machines]."""
    view = transcript(replace(protocol, step_size=0.1), DIFFERENT, Full(MACHINES), rounds=ROUNDS, seed=2, delta=1e-4)
    sent = view.messages - view.queries[:, None] if isinstance(protocol, LocalSGD) else view.messages
    return sent.std(axis=(0, 2))


@pytest.mark.parametrize("method", sparing([NoisyMinibatchSGD, AcceleratedMinibatchSGD], [NoisyMinibatchSGD]))
def test_the_theorems_noise_is_each_machines_own(method):
    found = stds(method(batch=BATCH, noise_rule="advanced", **OWN))
    expected = [wanted(i, "advanced", BATCH[i]) for i in range(MACHINES)]
    assert max(expected) / min(expected) > 3
    np.testing.assert_allclose(found, expected, rtol=0.06)  # 2400 normals each: 4 standard errors


@pytest.mark.parametrize("sampler", sparing(["subset", "replacement", "poisson", "full", "disjoint"], ["subset"]))
def test_the_accountants_noise_is_just_enough_for_every_machine(sampler):
    batch = {"full": None, "disjoint": (1, 3, 2)}.get(sampler, BATCH)
    protocol = NoisyMinibatchSGD(batch=batch, sampler=sampler, step_size=0.1, **OWN)
    plan = draw_plan(DIFFERENT, Full(MACHINES), ROUNDS, sampler=protocol.minibatches)
    ready = calibrate(protocol, DIFFERENT, plan, delta=1e-4)
    for i in range(MACHINES):
        found = wanted(i, "accountant", RECORDS if batch is None else batch[i], sampler=sampler)
        assert ready.noise_std * ready.records.relative(DIFFERENT, ROUNDS)[i] == pytest.approx(found, rel=1e-9)
    spent = [guarantee(ready, DIFFERENT, plan, delta=DELTA[i]).per_machine[i] for i in range(MACHINES)]
    np.testing.assert_allclose(spent, EPSILON, rtol=1e-3)
    assert (np.array(spent) <= np.array(EPSILON) * (1 + 1e-6)).all()


def test_one_target_for_machines_that_differ_is_kept_by_all_and_reached_by_one():
    protocol = NoisyMinibatchSGD(batch=BATCH, epsilon=2.0, delta=1e-5, step_size=0.1)
    plan = draw_plan(DIFFERENT, Full(MACHINES), ROUNDS, sampler=protocol.minibatches)
    relative = calibrate(protocol, DIFFERENT, plan, delta=1e-5).records.relative(DIFFERENT, ROUNDS)
    np.testing.assert_allclose(relative, np.array(LIPSCHITZ) / 2, rtol=1e-9)
    spent = guarantee(protocol, DIFFERENT, plan, delta=1e-5).per_machine
    assert spent.max() == pytest.approx(2, rel=1e-3)
    assert spent.max() <= 2 * (1 + 1e-6)


@pytest.mark.parametrize("sampler", sparing(["subset", "disjoint"], ["disjoint"]))
def test_the_guarantee_is_that_of_the_noise_which_is_really_drawn(sampler):
    """From messages about a gradient that is 0, machine by machine, by the accountant alone."""
    protocol = NoisyMinibatchSGD(batch=(1, 3, 2), sampler=sampler, step_size=0.1, **OWN)
    plan = draw_plan(DIFFERENT, Full(MACHINES), ROUNDS, sampler=protocol.minibatches)
    stated = guarantee(calibrate(protocol, DIFFERENT, plan, delta=1e-4), DIFFERENT, plan, delta=1e-5).per_machine
    for i, std in enumerate(stds(protocol)):
        sampled = SampledReleases(sampler, RECORDS, ROUNDS, 1e-5, (1, 3, 2)[i])
        low, high = (sampled_epsilon(std * off * sampled.batch / LIPSCHITZ[i], sampled) for off in (1.06, 0.94))
        assert low < stated[i] < high


@pytest.mark.slow
def test_local_steps_are_noised_for_each_machine():
    protocol = LocalSGD(batch=4, sampler="replacement", **OWN)
    step = stds(protocol) / (0.1 * sqrt(4))  # the end of four steps
    expected = [wanted(i, "accountant", 1, 4 * ROUNDS, "replacement") for i in range(MACHINES)]
    assert max(expected) / min(expected) > 2
    np.testing.assert_allclose(step, expected, rtol=0.06)
    plan = draw_plan(DIFFERENT, Full(MACHINES), ROUNDS, sampler=protocol.minibatches)
    ready = calibrate(replace(protocol, step_size=0.1), DIFFERENT, plan, delta=1e-4)
    spent = [guarantee(ready, DIFFERENT, plan, delta=DELTA[i]).per_machine[i] for i in range(MACHINES)]
    np.testing.assert_allclose(spent, EPSILON, rtol=1e-3)


def test_some_private_and_some_not():
    with pytest.raises(ValueError, match=r"^epsilon must be finite on all machines or on none, got \[1\.0, inf\]$"):
        NoisyMinibatchSGD(epsilon=[1.0, float("inf")])


@pytest.mark.slow
def test_unequal_numbers_of_records():
    sizes = (10, 20, 40)
    shares = [np.arange(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(3)]
    rows = table(shares)[0]
    problem = linear_problem(
        np.zeros((70, FEATURES), np.float32), np.zeros(70, int), Logistic(), feature_bound=1.0, partition_table=rows
    )
    protocol = NoisyMinibatchSGD(epsilon=1.0, delta="records", batch=5, noise_rule="advanced", step_size=0.1)
    view = transcript(protocol, problem, Full(3), rounds=ROUNDS, seed=2, delta=0.01)
    releases = [SampledReleases("subset", n, ROUNDS, n**-2.0, batch=5) for n in sizes]
    expected = [noise_std("advanced", one, lipschitz=1.0, epsilon=1.0) for one in releases]
    np.testing.assert_allclose(view.messages.std(axis=(0, 2)), expected, rtol=0.06)


POOLED = linear_problem(np.eye(4, dtype=np.float32), [0, 1, 1, 0], Logistic(), feature_bound=1.0)
HINGED = linear_problem(ZEROS, ZEROS[..., 0].astype(int), Hinge(), feature_bound=1.0, constraint=Ball(1.0))
EMPTY = replace(PROBLEM, partition_table=Table(np.array([[0, 1], [2, 3], [-1, -1]])))
SGD = NoisyMinibatchSGD(batch=2, epsilon=1.0, step_size=0.1)
RELEASED = ReleasedMinibatchSGD(batch=2, epsilon=1.0, step_size=0.1)


def calibrated(protocol, problem=PROBLEM):
    return calibrate(protocol, problem, plan_of(protocol, problem), delta=1e-5)


def plan_of(protocol, problem=PROBLEM):
    return draw_plan(problem, Uniform(MACHINES, 2), 3, sampler=protocol.minibatches)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: replace(RELEASED, claimed_records=3000),
            "claimed_records must go with noise_rule 'paper_moments', got 'accountant'",
        ),
        (
            lambda: calibrated(replace(SGD, delta=(1e-6, 1e-4, 1e-6))),
            "delta must be at most 1e-05, at which ε is stated, got 0.0001",
        ),
        (
            lambda: calibrated(replace(SGD, window=5)),
            "window must be at most rounds + 1 (4), got 5",
        ),
        (
            lambda: calibrated(LocalSGD(batch=2, epsilon=1.0, step_size=0.1, window=5)),
            "window must be at most rounds + 1 (4), got 5",
        ),
        (
            lambda: calibrated(replace(RELEASED, strong_convexity=5.0, aggregate="sum")),
            "strong_convexity · step_size must be below 1, got 1",
        ),
        (
            lambda: AcceleratedMinibatchSGD(regularisation=5.0),
            "regularisation must go with the form 'regularised', got the form 'plain'",
        ),
        (
            lambda: AcceleratedMinibatchSGD(form="regularised", gap=1.0),
            "gap must go with the form 'multistage', got the form 'regularised'",
        ),
        (
            lambda: calibrated(AcceleratedMinibatchSGD(batch=2, epsilon=1.0, form="multistage")),
            "strong_convexity must be positive for the form 'multistage', got 0",
        ),
        (lambda: AcceleratedMinibatchSGD(printed="false"), "printed must be true or false, got 'false'"),
        (lambda: replace(RELEASED, acknowledged="yes"), "acknowledged must be true or false, got 'yes'"),
        (
            lambda: calibrated(replace(SGD, batch=2.5)),
            "batch must be an integer, got 2.5",
        ),
        (
            lambda: calibrate(SGD, POOLED, plan_of(SGD), delta=1e-5),
            "partition_table must be given, because machines sample minibatches from their own records",
        ),
        (
            lambda: calibrate(SGD, EMPTY, plan_of(SGD), delta=1e-5),
            "machines must have at least one record each, got none for machine 2. Leave such machines out of the data",
        ),
        (
            lambda: calibrated(replace(SGD, strong_convexity=10.0)),
            "strong_convexity · step_size must be below 1, got 1",
        ),
        (
            lambda: calibrated(replace(SGD, strong_convexity=2.0, step_scale=9.0)),
            "strong_convexity · step_size must be below 1, got 1.8",
        ),
        (
            lambda: calibrated(replace(SGD, step_size=None), HINGED),
            "step_size must be set, or the loss smoothed (see Moreau): its smoothness is unknown",
        ),
        (
            lambda: calibrated(AcceleratedMinibatchSGD(batch=2, epsilon=1.0), HINGED),
            "step_size must be set, or the loss smoothed (see Moreau): its smoothness is unknown",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(Refusal) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("method", [NoisyMinibatchSGD, AcceleratedMinibatchSGD, LocalSGD])
def test_every_plan_of_a_size_gets_the_same_noise(method):
    """The noise is sufficient for a machine that takes part in every round."""
    protocol = method(batch=2, epsilon=1.0, step_size=0.1)
    plans = [draw_plan(PROBLEM, Uniform(MACHINES, 2), ROUNDS, seed, sampler=protocol.minibatches) for seed in (0, 1)]
    assert (plans[0].schedule.participants != plans[1].schedule.participants).any()
    one, other = (calibrate(protocol, PROBLEM, plan, delta=1e-5) for plan in plans)
    assert one.noise_std == other.noise_std > 0


def sentences(protocol, problem, plan):
    return [str(assumption) for assumption in guarantee(protocol, problem, plan).assumptions]


def test_what_a_guarantee_rests_on_is_said():
    plan = draw_plan(PROBLEM, Full(MACHINES), ROUNDS, sampler=SGD.minibatches)
    assert "losses are 1-Lipschitz" in sentences(SGD, PROBLEM, plan)
    assert "machines' losses are Lipschitz with the given constants, 0.5 to 2" in sentences(SGD, DIFFERENT, plan)
    noted = replace(PROBLEM, lipschitz_note="a statistic")
    assert "losses are 1-Lipschitz (a statistic)" in sentences(SGD, noted, plan)


KNOWN = {  # how far the record used most moves all messages together, in units of 2L/K, from its uses in each message
    "mean": (NoisyMinibatchSGD(batch=8, sampler="replacement"), lambda j: (j**2).sum()),
    "subset": (NoisyMinibatchSGD(batch=8, sampler="subset"), lambda j: (j**2).sum()),
    "poisson": (AcceleratedMinibatchSGD(batch=8, sampler="poisson"), lambda j: (j**2).sum()),
    "whole": (
        ReleasedMinibatchSGD(batch=8, sampler="replacement", clip=1.0, clip_at="message"),
        lambda j: (j > 0).sum(),
    ),
    "steps": (LocalSGD(batch=8), lambda j: j.sum()),
}


@pytest.mark.parametrize("name", KNOWN)
def test_samples_that_are_known_amplify_nothing(name):
    """By counting each record's uses in the plan: the messages are Gaussian mechanisms, composed."""
    protocol, counted = KNOWN[name]
    protocol = replace(protocol, noise_std=3.0, step_size=0.1)
    plan = draw_plan(PROBLEM, Uniform(MACHINES, 2), ROUNDS, sampler=protocol.minibatches)
    secret = guarantee(protocol, PROBLEM, plan)
    known = guarantee(protocol, PROBLEM, replace(plan, secret=False))
    share = 1 if name in ("whole", "steps") else 8
    for i in range(MACHINES):
        uses = np.zeros((ROUNDS, RECORDS))
        for t, slot in zip(*np.nonzero(plan.schedule.participants == i), strict=True):
            picked = plan.samples[t, slot][plan.weights[t, slot] > 0] - i * RECORDS
            np.add.at(uses[t], picked, 1)
        worst = max(counted(uses[:, k]) for k in range(RECORDS))
        assert known.per_machine[i] == pytest.approx(float(gdp.epsilon(2 / share * sqrt(worst) / 3.0, 1e-5)), rel=1e-6)
    assert known.epsilon > secret.epsilon
    assert "which records are used is secret" in map(str, secret.assumptions)
    assert "which records are used is secret" not in map(str, known.assumptions)


@dataclass(frozen=True)
class Public(Sampler):
    """Sampler with public, fixed positions in every message."""

    batch: int
    places: tuple[int, ...]
    name: ClassVar[str] = "public"
    description: ClassVar[str] = "the same places in every message"
    repeats: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        return np.broadcast_to(self.places, (sizes.size, width)), batches


@pytest.mark.parametrize(("places", "times"), [((0, 0, 0, 0, 0), 5), ((0, 3, 3, 1), 2), ((4, 2), 1)])
def test_a_public_sampler_that_repeats_a_record_is_counted_so(places, times):
    protocol = NoisyMinibatchSGD(sampler=Public(len(places), places), noise_std=3.0, step_size=0.1)
    plan = draw_plan(PROBLEM, Full(MACHINES), ROUNDS, sampler=protocol.minibatches)
    mu = 2 * times / len(places) * sqrt(ROUNDS) / 3.0
    assert guarantee(protocol, PROBLEM, plan).epsilon == pytest.approx(float(gdp.epsilon(mu, 1e-5)), rel=1e-6)


@pytest.mark.parametrize(("sampler", "batch"), [("disjoint", 3), ("full", None)])
def test_what_settled_samplers_say_is_what_their_plans_have(sampler, batch):
    protocol = NoisyMinibatchSGD(batch=batch, sampler=sampler, noise_std=3.0, step_size=0.1)
    plan = draw_plan(PROBLEM, Uniform(MACHINES, 2), ROUNDS, sampler=protocol.minibatches)
    taken = plan.schedule.total
    uses = repeated_uses(Minibatches(plan.samples, plan.weights), PROBLEM.partition_table.rows)
    np.testing.assert_allclose(uses**2, np.minimum(taken, 1) if sampler == "disjoint" else taken, rtol=1e-12)
    mus = 2 / protocol.minibatches.batch_of(RECORDS) * uses / 3.0
    each = guarantee(protocol, PROBLEM, plan).per_machine
    np.testing.assert_allclose(each, [float(gdp.epsilon(mu, 1e-5)) if mu else 0.0 for mu in mus], rtol=1e-6)
    assert np.unique(taken).size > 1


@pytest.mark.parametrize(("sampler", "secret"), [("subset", True), ("disjoint", False), ("full", False)])
def test_what_is_seen_of_a_plan_respects_the_secret(sampler, secret):
    batch = None if sampler == "full" else 3
    protocol = NoisyMinibatchSGD(batch=batch, sampler=sampler, noise_std=1.0, step_size=0.1)
    view = transcript(protocol, PROBLEM, Full(MACHINES), rounds=ROUNDS)
    assert view.plan.secret == secret
    assert view.plan.samples.shape[2] == (0 if secret else RECORDS if sampler == "full" else 3)


def test_a_shuffler_needs_the_secret():
    protocol = NoisyMinibatchSGD(batch=1, trust="shuffler", noise_std=1.0, step_size=0.1)
    plan = draw_plan(PROBLEM, Full(MACHINES), ROUNDS, sampler=protocol.minibatches)
    with pytest.raises(ValueError, match=r"^samples must be secret with a shuffler$"):
        guarantee(protocol, PROBLEM, replace(plan, secret=False))
