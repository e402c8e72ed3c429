"""ε of one machine under secret participation: known values, dp-accounting, integrals by hand, and what is refused."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import scipy
from cases import sparing
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from restating import planted, unsealed

from fedprivjax import (
    Dropouts,
    FedAvg,
    Full,
    Participation,
    PoissonCohorts,
    Refusal,
    Scaffold,
    Schedule,
    SecretSubsets,
    Softmax,
    Uniform,
    draw_plan,
    linear_problem,
)
from fedprivjax.method.local_privacy import NoisyUpdates
from fedprivjax.plan.samplers import Poisson, Subset
from fedprivjax.privacy.accountants.dp_accounting_backend import gaussian_epsilon
from fedprivjax.privacy.accountants.records import Sampled, SampledMachines
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE

RELATIONS = REPLACE_ONE, ADD_OR_REMOVE
THEIRS = dict(zip(RELATIONS, (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE), strict=True))
MACHINES, CLIP, DELTA = 24, 0.5, 1e-5
FEATURES = np.eye(4)[np.arange(MACHINES * 3) % 4].reshape(MACHINES, 3, 4)
PROBLEM = linear_problem(FEATURES, np.arange(MACHINES * 3).reshape(MACHINES, 3) % 2, Softmax(2))
WORK = {"local_epochs": 1, "batch": 2, "step_size": 0.1}


def method(kind=FedAvg, relation=ADD_OR_REMOVE, **settings):
    return kind(**{"unit": "machine", "update_clip": CLIP, "relation": relation, **WORK, **settings})


def plan_of(scheme, rounds=100, seed=1, problem=PROBLEM):
    return draw_plan(problem, scheme, rounds, seed, sampler=method().minibatches)


def event(scheme, z, relation=ADD_OR_REMOVE, rounds=100, kind=FedAvg, seed=1):
    """Return the event of noise z·C on the sum of a cohort's updates."""
    plan = plan_of(scheme, rounds, seed)
    return event_of(method(kind, relation, noise_std=z * CLIP / plan.schedule.divisor), PROBLEM, plan)


def direct(z, rate, rounds, delta, relation):
    tree = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), rounds)
    return PLDAccountant(THEIRS[relation], 1e-4).compose(tree).get_epsilon(delta)


# ---- known values


@pytest.mark.parametrize(("relation", "epsilon"), [(ADD_OR_REMOVE, 2.0), (REPLACE_ONE, 3.81)])
def test_known_values_of_machines(relation, epsilon):
    one = event(PoissonCohorts(MACHINES, 0.1), 2.249, relation)
    assert one.epsilon(DELTA) == pytest.approx(epsilon, rel=2e-3)
    assert one.participation == PoissonCohorts(MACHINES, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("relation", "rounds", "epsilon", "renyi"),
    [
        (ADD_OR_REMOVE, 3515, 1.134, 1.281),
        (REPLACE_ONE, 14062, 4.221, None),
        (ADD_OR_REMOVE, 14062, 2.382, 2.597),
        (REPLACE_ONE, 3515, 1.928, None),
    ],
)
def test_known_values_of_records(relation, rounds, epsilon, renyi):
    accountant = Sampled(Poisson(256, rate=256 / 60_000), relation=relation)
    settings = 1.1 if relation == ADD_OR_REMOVE else 1.1 / 2, 60_000, 256, rounds
    assert accountant.epsilon(*settings, delta=DELTA) == pytest.approx(epsilon, rel=1e-3)
    others = {one.accountant: one.epsilon for one in accountant.accountant_results(*settings, delta=DELTA)}
    assert others["dp-accounting PLD"] == pytest.approx(epsilon, rel=1e-3)
    assert others.get("dp-accounting RDP") == (None if renyi is None else pytest.approx(renyi, rel=1e-3))


def agree(relation, settings, seed):
    rng = np.random.default_rng(seed)
    for _ in range(settings):
        rate, z = float(np.exp(rng.uniform(np.log(0.01), np.log(0.6)))), float(rng.uniform(1.0, 6.0))
        rounds, delta = int(rng.integers(1, 200)), float(10 ** rng.uniform(-8, -4))
        found = event(PoissonCohorts(MACHINES, rate), z, relation, rounds).epsilon(delta)
        assert found == pytest.approx(direct(z, rate, rounds, delta, relation), rel=1e-3)


@pytest.mark.parametrize("relation", RELATIONS)
def test_random_settings_agree_with_dp_accounting(relation):
    agree(relation, 2, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
def test_forty_random_settings_agree_with_dp_accounting(relation):
    agree(relation, 20, seed=11)


def test_all_machines_have_the_same_epsilon_whatever_schedule_is_sampled():
    for scheme in (PoissonCohorts(MACHINES, 0.1), SecretSubsets(MACHINES, 3)):
        one, other = (event(scheme, 3.0, REPLACE_ONE, seed=seed).epsilons(DELTA) for seed in (1, 2))
        np.testing.assert_array_equal(one.each, other.each)
        assert one.each.size == MACHINES
        assert np.ptp(one.each) == 0


def test_subsets_have_the_bound_of_subsets_of_records():
    found = event(SecretSubsets(MACHINES, 3), 3.0, REPLACE_ONE)
    assert found.epsilon(DELTA) == Sampled(Subset(3)).epsilon(*found._machine(0), delta=DELTA)
    assert found._machine(0) == (pytest.approx(1.5, rel=1e-6), MACHINES, 3, 100)
    public = event(Uniform(MACHINES, 3), 3.0, REPLACE_ONE)
    assert found.epsilon(DELTA) < public.epsilon(DELTA)


@pytest.mark.parametrize("relation", RELATIONS)
def test_all_machines_in_every_round_is_the_gaussian_mechanism(relation):
    found = event(PoissonCohorts(MACHINES, 1.0), 20.0, relation).epsilon(DELTA)
    assert found == pytest.approx(event(Full(MACHINES), 20.0, relation).epsilon(DELTA), rel=1e-6)


# ---- integrals by hand: the privacy profile on cells, which is never above that of the releases themselves

EDGES = np.linspace(-14, 14, 1001)


def masses(shifts, chances, z, edges=EDGES):
    """Return the probabilities of cells under a mixture of normal distributions, [cells]."""
    cdf = sum(p * scipy.special.ndtr((edges - s) / z) for s, p in zip(shifts, chances, strict=True))
    return np.diff(cdf)


def hockey_stick(one, other, epsilon):
    """Return the largest δ in both directions at ε, between probabilities of cells."""
    return max(np.maximum(a - np.exp(epsilon) * b, 0).sum() for a, b in ((one, other), (other, one)))


def profile(rate, z, rounds, epsilon, relation):
    edges = EDGES if rounds == 2 else np.linspace(-14, 14, 20_001)
    absent = (0.0, 0.0) if relation == ADD_OR_REMOVE else (0.0, -1.0)
    one, other = (masses(shifts, (1 - rate, rate), z, edges) for shifts in ((0.0, 1.0), absent))
    if rounds == 2:
        one, other = np.outer(one, one), np.outer(other, other)
    return hockey_stick(one, other, epsilon)


def require_profile(accountant, rate, z, rounds, relation, delta):
    """Assert that a claim is an upper bound, and that it is tight."""
    moved = 1 if relation == ADD_OR_REMOVE else 2
    claimed = accountant.epsilon(z / moved, MACHINES, 1, rounds, delta=delta)
    attained = profile(rate, z, rounds, claimed, relation)
    assert attained <= delta, "the claim is too small"
    assert profile(rate, z, rounds, claimed * 0.995 - 1e-3, relation) >= delta, "the claim is loose"


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("rate", "z"), sparing([(0.1, 1.0), (0.5, 1.5)], [(0.1, 1.0)]))
def test_the_profile_is_that_of_the_integral_in_both_directions(rounds, relation, rate, z):
    accountant = SampledMachines(Poisson(1, rate=rate), relation=relation)
    for delta in (1e-2, 1e-5):
        require_profile(accountant, rate, z, rounds, relation, delta)


@pytest.mark.parametrize("rounds", [1, 2])
def test_planted_fault_a_replaced_machine_counted_as_an_added_one(rounds):
    """The planted fault is C for 2C."""

    class Single(SampledMachines):
        def epsilon(self, ratio, records, batch, releases, *, delta):
            return super().epsilon(2 * ratio, records, batch, releases, delta=delta)

    with pytest.raises(AssertionError, match="the claim is too small"):
        require_profile(Single(Poisson(1, rate=0.3)), 0.3, 2.0, rounds, REPLACE_ONE, 1e-3)


def test_planted_fault_one_round_for_all():
    class Once(SampledMachines):
        def epsilon(self, ratio, records, batch, releases, *, delta):
            return super().epsilon(ratio, records, batch, 1, delta=delta)

    with pytest.raises(AssertionError, match="the claim is too small"):
        require_profile(Once(Poisson(1, rate=0.3), relation=ADD_OR_REMOVE), 0.3, 2.0, 2, ADD_OR_REMOVE, 1e-3)


def with_state(rate, z, mine, other):
    """Return the probabilities of both releases of two machines with state, [cells, cells].

    Args:
        mine, other: updates of each machine: in round 1, and in round 2 by whether it took part in round 1 and whether
            the first release was positive.
    """
    positive = EDGES[:-1] >= -1e-9
    total = np.zeros((positive.size, positive.size))
    for coins in product((0, 1), repeat=4):  # (mine, other) in round 1, (mine, other) in round 2
        chance = np.prod([rate if coin else 1 - rate for coin in coins])
        first = masses([coins[0] * mine[0] + coins[1] * other[0]], [chance], z)
        for sign in (0, 1):
            later = coins[2] * mine[1][coins[0]][sign] + coins[3] * other[1][coins[1]][sign]
            total += np.outer(np.where(positive == bool(sign), first, 0.0), masses([later], [1.0], z))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
def test_poisson_cohorts_with_client_state_by_exact_integrals(relation):
    """Two machines, two rounds: the updates of round 2 depend on the machine's round 1 and on the first release."""
    rng, rate, z, delta = np.random.default_rng(5), 0.4, 1.2, 1e-3
    claimed = SampledMachines(Poisson(1, rate=rate), relation=relation)
    epsilon = claimed.epsilon(z / (1 if relation == ADD_OR_REMOVE else 2), 2, 1, 2, delta=delta)
    largest = 0.0

    def updates(values):
        return rng.choice(values), rng.choice(values, (2, 2))

    for _ in range(30):
        mine, other = updates([-1.0, 1.0]), updates([-1.0, 0.0, 1.0])
        changed = (0.0, np.zeros((2, 2))) if relation == ADD_OR_REMOVE else updates([-1.0, 1.0])
        views = [with_state(rate, z, one, other) for one in (mine, changed)]
        largest = max(largest, hockey_stick(*views, epsilon))
    assert delta / 20 < largest <= delta


# ---- calibration, and the probability that is added to δ


@pytest.mark.parametrize(
    ("scheme", "relation"),
    [
        (PoissonCohorts(MACHINES, 0.1), ADD_OR_REMOVE),
        (Dropouts(PoissonCohorts(MACHINES, 0.1), 0.25), REPLACE_ONE),
        pytest.param(PoissonCohorts(MACHINES, 0.1), REPLACE_ONE, marks=pytest.mark.slow),
        pytest.param(Dropouts(PoissonCohorts(MACHINES, 0.1), 0.25), ADD_OR_REMOVE, marks=pytest.mark.slow),
    ],
)
def test_the_noise_is_the_smallest_that_meets_the_target(relation, scheme):
    plan = plan_of(scheme)
    found = calibrate(method(relation=relation), PROBLEM, plan, epsilon=2.0, delta=DELTA)
    z = found.noise_std * plan.schedule.divisor / CLIP
    assert direct(z, 0.1, 100, DELTA, relation) == pytest.approx(2.0, rel=1e-3)
    assert direct(z * 2 / 3, 0.1, 100, DELTA, relation) > 2.5
    assert guarantee(found, PROBLEM, plan, DELTA).epsilon <= 2.0
    others = event_of(found, PROBLEM, plan).accountant_results(DELTA)
    assert {one.accountant for one in others} >= {"dp-accounting PLD"}
    least = {one.accountant: one.epsilon for one in others}
    assert least["attained on a linear loss (PLD)"] <= 2.0 <= least.get("dp-accounting RDP", np.inf)


def test_the_probability_of_too_many_machines_is_added_to_delta(monkeypatch):
    monkeypatch.setattr(PoissonCohorts, "cut", 2e-7)
    scheme = PoissonCohorts(MACHINES, 0.1)
    one = event(scheme, 2.249)
    assert one.epsilon(3e-5) == pytest.approx(direct(2.249, 0.1, 100, 1e-5, ADD_OR_REMOVE), rel=1e-3)
    assert one.epsilon(2e-5) == np.inf
    stated = str(one.guarantee(3e-5))
    assert "than there is room for with probability 2e-07, which is added to δ for each of 100 rounds" in stated
    assert str(scheme) in stated


# ---- the number of machines is public


def scales_apart(ratio, numbers, epsilon):
    """Return δ(ε) between normals of two scales with this ratio, in so many numbers: exact, by their squared norm."""
    threshold = 2 * (epsilon + numbers * np.log(ratio)) / (1 - ratio**-2)  # of the squared norm over the smaller scale²
    larger, smaller = (scipy.stats.chi2.sf(threshold / scale**2, numbers) for scale in (ratio, 1.0))
    return larger - np.exp(epsilon) * smaller


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "delta"), [(64, 0.0046), (650, 0.54), (7850, 0.99997)])
def test_noise_and_divisor_tell_the_number_of_machines(dimension, delta):
    """Noise for 100 and 101 machines differs by 1%, which 50 rounds of zero updates show: a machine is not added."""
    noises = []
    for machines in (100, 101):
        problem = linear_problem(np.ones((machines, 1, 4)), np.zeros((machines, 1), int), Softmax(2))
        plan = plan_of(PoissonCohorts(machines, 0.1), 50, problem=problem)
        noises.append(calibrate(method(), problem, plan, epsilon=2.0, delta=DELTA).noise_std)
    np.testing.assert_allclose(noises[0] / noises[1], 1.01, rtol=2e-3)
    assert scales_apart(noises[0] / noises[1], 50 * dimension, 2.0) == pytest.approx(delta, rel=0.05)


@pytest.mark.parametrize("scheme", [PoissonCohorts(MACHINES, 0.1), Uniform(MACHINES, 3)])
def test_a_machine_is_zeroed_and_their_number_an_assumption(scheme):
    stated = event(scheme, 8.0).guarantee(DELTA)
    assert str(stated).splitlines()[0].endswith("all records of one machine (add-or-remove-one (zero-out))")
    known = [one.values for one in stated.assumptions if one.name == "public machines"]
    assert known == [{"machines": MACHINES}]
    for text in (str(stated), stated.paragraph()):
        assert (
            f"the number of machines, {MACHINES}, is a public constant: a machine that is left out sends zeros" in text
        )
    assert "zero" not in str(event(scheme, 8.0, REPLACE_ONE).guarantee(DELTA))


# ---- what is refused


@dataclass(frozen=True)
class Pairs(Participation):
    machines: int
    per_round = 2
    secret = True

    def draw(self, rounds, rng):
        first = 2 * rng.integers(self.machines // 2, size=rounds)
        return Schedule(self.machines, np.stack([first, first + 1], axis=1))


@pytest.mark.parametrize(
    ("kind", "relation", "scheme", "message"),
    [
        (Scaffold, REPLACE_ONE, SecretSubsets(MACHINES, 3), "PoissonCohorts or public with client state"),
        (FedAvg, ADD_OR_REMOVE, SecretSubsets(MACHINES, 3), "relation must be 'replace-one' with SecretSubsets"),
        (FedAvg, REPLACE_ONE, Pairs(MACHINES), "must be PoissonCohorts, CyclicPoisson, SecretSubsets or public"),
    ],
)
def test_secret_schemes_without_a_bound_are_refused(kind, relation, scheme, message):
    with pytest.raises(Refusal, match=message):
        event(scheme, 2.0, relation, kind=kind)


def test_correlated_noise_needs_a_public_schedule():
    correlated, plan = method(noise_schedule="tree", noise_std=1.0), plan_of(PoissonCohorts(MACHINES, 0.1))
    for stated in (event_of, lambda one, problem, plan: one.event(problem, plan)):
        with pytest.raises(Refusal, match="noise_schedule must be 'independent'"):
            stated(correlated, PROBLEM, plan)


def test_state_is_stated_in_the_theorem():
    scheme = PoissonCohorts(MACHINES, 0.1)
    assert "given the other machines' coins" in str(event(scheme, 2.0, kind=Scaffold).guarantee(DELTA))
    assert "given the other machines' coins" not in str(event(scheme, 2.0).guarantee(DELTA))
    assert event(scheme, 2.0, kind=Scaffold).epsilon(DELTA) == event(scheme, 2.0).epsilon(DELTA)


@dataclass(frozen=True)
class Amplified(NoisyUpdates):
    """The planted fault: amplification that holds for secret cohorts, on any schedule."""

    def event(self, problem, plan, noise_std):
        secret = replace(plan, schedule=replace(plan.schedule, secret=PoissonCohorts(MACHINES, 0.125)))
        return super().event(problem, secret, noise_std)


AMPLIFIED = unsealed(protecting=lambda self, **_: Amplified("server", self.update_clip, self.relation))


def secret_for_public(**settings):
    return planted(FedAvg(**settings), AMPLIFIED)


@pytest.mark.parametrize("scheme", [Uniform(MACHINES, 3), Full(MACHINES), PoissonCohorts(MACHINES, 0.2)])
def test_planted_fault_secret_for_public(scheme):
    with pytest.raises(Refusal, match=r"participation must be PoissonCohorts\(machines=24, rate=0.125\)"):
        event(scheme, 2.0, kind=secret_for_public)
    assert event(PoissonCohorts(MACHINES, 0.125), 2.0, kind=secret_for_public).participation


# ---- public schedules


def of_participations(found, schedule, z, relation):
    """Assert that μ and ε are those of every machine's k_i Gaussian mechanisms."""
    most = int(np.bincount(schedule.participants.ravel()).max())
    multiplier = z if relation == ADD_OR_REMOVE else z / 2
    expected = gaussian_epsilon(np.full(most, multiplier), DELTA)
    np.testing.assert_allclose(found.mu, np.sqrt(most) / multiplier, rtol=1e-6)
    np.testing.assert_allclose(found.epsilon(DELTA), expected, rtol=1e-3)


class CountedOnce(NoisyUpdates):
    """The planted fault: a machine is counted once, however often it takes part."""

    def event(self, problem, plan, noise_std):
        found = super().event(problem, plan, noise_std)
        return replace(found, exposure=found.exposure.map(lambda each: np.minimum(each, 1.0)))


class SingleClip(NoisyUpdates):
    """The planted fault: C for 2C."""

    def sensitivity(self, plan):
        return self.clip / plan.schedule.divisor


@pytest.mark.parametrize("relation", RELATIONS)
def test_public_schedules_count_every_participation(relation):
    schedule = plan_of(Uniform(MACHINES, 3)).schedule
    of_participations(event(Uniform(MACHINES, 3), 8.0, relation), schedule, 8.0, relation)


@pytest.mark.parametrize("fault", [CountedOnce, SingleClip])
def test_planted_faults_of_public_schedules(fault):
    plan = plan_of(Uniform(MACHINES, 3))
    wrong = fault("server", CLIP, REPLACE_ONE).event(PROBLEM, plan, 8.0 * CLIP / 3)
    with pytest.raises(AssertionError):
        of_participations(wrong, plan.schedule, 8.0, REPLACE_ONE)
