"""Banded factors with secret groups in turn: integrals by hand, jax-privacy's event, cohorts, and what is refused."""

from itertools import product

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from frequencies import within
from scipy.stats import norm

import fedprivjax as fpj
from fedprivjax import AnySchedule, Banded, CyclicPoisson, FedAvg, PoissonCohorts, Refusal, Scaffold
from fedprivjax.experiment.read import parse
from fedprivjax.noise.server_factors import over_rounds
from fedprivjax.plan.participation import draw_schedule
from fedprivjax.plan.samplers import Poisson
from fedprivjax.privacy.accountants.records import SampledMachines
from fedprivjax.privacy.calibration import event_of
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE

CLIP, DELTA = 0.5, 1e-5
WORK = {"unit": "machine", "update_clip": CLIP, "local_epochs": 1, "batch": 2, "step_size": 0.1}


def problem_of(machines):
    labels = np.arange(2 * machines) % 2
    return fpj.linear_problem(
        np.ones((2 * machines, 2)), labels, fpj.Logistic(), partition_table=np.arange(2 * machines).reshape(machines, 2)
    )


def event(scheme, z, factor, rounds, relation=ADD_OR_REMOVE, kind=FedAvg, seed=1):
    """Return the event of noise z·C on the sum of a cohort's updates."""
    problem = problem_of(scheme.machines)
    method = kind(noise_std=z * CLIP / scheme.mean_size, relation=relation, noise_schedule=factor, **WORK)
    plan = fpj.draw_plan(problem, scheme, rounds, seed, sampler=method.minibatches)
    return event_of(method, problem, plan)


# ---- exact δ by integration


def mixture(columns, rate, signs):
    """Return the distribution of what a machine adds to F·x, as (probability, mean in the span of its columns).

    Args:
        columns: columns of F of its group's rounds in an orthonormal basis of their span, [2, rounds of its group].
        signs: function from the coins of these rounds to its messages, in units of the clip.
    """
    for coins in product((0, 1), repeat=columns.shape[1]):
        chance = np.prod([rate if coin else 1 - rate for coin in coins])
        yield chance, columns @ (np.array(coins) * signs(coins))


def delta_of(epsilon, std, first, second):
    """Return the largest δ of two mixtures of Gaussians in the plane at ε, in both directions."""
    side = np.linspace(-8 * std - 3, 8 * std + 3, 601)
    one, other = (
        sum(chance * np.multiply.outer(*(norm.pdf(side, at, std) for at in mean)) for chance, mean in each)
        for each in (first, second)
    )
    cell = (side[1] - side[0]) ** 2
    return max(np.sum(np.maximum(a - np.exp(epsilon) * b, 0)) * cell for a, b in ((one, other), (other, one)))


STRATEGIES = {  # messages of the machine in its group's rounds, from its coins
    "stateless": lambda coins: np.ones(2),
    "opposite": lambda coins: np.array([1.0, -1.0]),
    "client state": lambda coins: np.array([1.0, 1.0 if coins[0] else -1.0]),
    "silent at first": lambda coins: np.array([1.0, float(coins[0])]),
}


def attacked(strategy, relation, factor, rate, z, delta, rounds=4, kind=FedAvg):
    """Return the exact δ at the ε that is claimed at `delta`, for machine 0 of two groups of one machine each."""
    scheme = CyclicPoisson(2, groups=2, rate=rate)
    claimed = event(scheme, z, factor, rounds, relation, kind).epsilons(delta).each[0]
    matrix = factor.matrix(rounds)
    columns = np.linalg.qr(matrix[:, ::2])[1]  # in a basis of their span
    signs = STRATEGIES[strategy]
    first = list(mixture(columns, rate, signs))
    zero = [(1.0, np.zeros(2))]
    second = zero if relation == ADD_OR_REMOVE else list(mixture(columns, rate, lambda coins: -signs(coins)))
    return delta_of(claimed, z, first, second)


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE, REPLACE_ONE])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_exact_delta_is_at_most_the_claimed_one(strategy, relation):
    """T = 4 rounds, 2 groups: two rounds of the machine; constant messages reach the claim, a state does not exceed it.

    What other machines send is a function of earlier releases, which the adversary subtracts.
    """
    for rate, z, delta in ((0.3, 0.8, 1e-2), (0.7, 1.5, 1e-3)):
        exact = attacked(strategy, relation, Banded(2), rate, z, delta)
        assert exact <= delta * (1 + 1e-4)
        if strategy in ("stateless", "opposite"):
            assert exact >= 0.9 * delta


def test_more_bands_than_groups_would_break_the_claim(monkeypatch):
    """The fault: the columns of a machine's rounds overlap, and its coins add up."""
    full = over_rounds(np.tril(np.ones((4, 4))) / 2)
    monkeypatch.setattr("fedprivjax.method.local_privacy.column_norm", lambda factor, schedule: 1.0)
    monkeypatch.setattr(type(full), "check", lambda self, schedule, dimension: None)
    assert attacked("stateless", ADD_OR_REMOVE, full, 0.3, 0.8, 1e-2) > 1.1e-2


def test_a_column_norm_is_not_assumed_to_be_1():
    """Twice the factor is twice the sensitivity."""
    scheme = CyclicPoisson(4, groups=2, rate=0.5)
    twice = (2 * Banded(2).matrix(6)).tolist()
    one, other = event(scheme, 1.0, Banded(2), 6), event(scheme, 2.0, twice, 6)
    assert one.epsilon(DELTA) == pytest.approx(other.epsilon(DELTA), rel=1e-6)


# ---- jax-privacy

# amplified_bandmf_event of jax-privacy 2.0.0 with dp-accounting's PLD at discretisation 2e-5:
# rate, noise multiplier, groups, rounds, δ, ε
THEIRS = [
    (0.045755, 3.292478, 10, 281, 6.127774612270373e-05, 0.235054),
    (0.015458, 1.00446, 2, 141, 4.2983707260765834e-05, 0.812521),
    (0.383728, 5.521845, 5, 245, 4.4773435820362576e-08, 2.607413),
    (0.818784, 2.789551, 5, 10, 1.4945818200135064e-08, 2.395162),
    (0.011387, 3.906617, 2, 176, 2.552805324404182e-08, 0.132240),
    (0.211865, 1.799301, 2, 128, 2.1650439482225582e-07, 5.933841),
    (0.467684, 2.300642, 5, 290, 6.927379643521408e-05, 7.128607),
    (0.026374, 1.389389, 2, 212, 3.8028304867951775e-08, 1.400281),
    (0.296306, 2.741308, 5, 42, 5.040322564706104e-06, 1.557362),
    (0.421911, 3.359906, 2, 43, 1.863097599227239e-08, 3.514344),
    (0.034771, 5.219769, 10, 68, 2.6256576871259407e-06, 0.065981),
    (0.125639, 1.60352, 3, 193, 1.3829796243059071e-06, 3.720226),
    (0.459897, 1.9729, 2, 110, 4.1583462438804834e-08, 11.649262),
    (0.107302, 1.747225, 1, 244, 3.543271554393449e-07, 5.752861),
    (0.021371, 5.776788, 5, 25, 1.900656784723697e-05, 0.022843),
    (0.090704, 5.28233, 2, 105, 5.695147187991944e-05, 0.393688),
    (0.114711, 5.014522, 5, 72, 2.9333437016101404e-08, 0.469334),
    (0.035621, 3.428707, 1, 93, 1.44066786990246e-07, 0.482675),
    (0.409424, 1.761818, 5, 222, 1.329970376350572e-08, 11.214984),
    (0.036346, 2.960529, 1, 90, 7.600703096404927e-08, 0.597265),
]


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=pytest.mark.slow) if k > 1 else one for k, one in enumerate(THEIRS)]
)
def test_epsilon_is_that_of_jax_privacy(case):
    """Three machines a group always have room in a round, so that nothing is added to δ."""
    rate, z, groups, rounds, delta, epsilon = case
    found = event(CyclicPoisson(3 * groups, groups, rate), z, Banded(groups), rounds).epsilon(delta)
    assert found == pytest.approx(epsilon, rel=1e-4, abs=2e-6)


def test_epsilon_is_that_of_one_event_for_each_round_of_a_group():
    tree = SelfComposedDpEvent(PoissonSampledDpEvent(0.4, GaussianDpEvent(1.5)), 3)
    direct = PLDAccountant(value_discretization_interval=1e-4).compose(tree).get_epsilon(DELTA)
    each = event(CyclicPoisson(12, 3, 0.4), 1.5, Banded(3), 7).epsilons(DELTA).each
    assert each[0] == pytest.approx(direct, rel=1e-4)
    assert (each[1::3] < each[0]).all(), "groups with fewer rounds"
    np.testing.assert_array_equal(each[0::3], each[0])


# ---- cohorts


def test_a_group_takes_part_in_its_rounds_with_the_rate_and_in_no_other():
    scheme, rounds = CyclicPoisson(6, groups=3, rate=0.3), 6000
    schedule = draw_schedule(scheme, rounds, np.random.default_rng(3))
    who = np.zeros((rounds, 6))
    which = np.broadcast_to(np.arange(rounds)[:, None], schedule.present.shape)
    who[which[schedule.present], schedule.participants[schedule.present]] = 1
    turn = np.arange(rounds)[:, None] % 3 == np.arange(6) % 3
    assert not who[~turn].any()
    for machine in range(6):
        own = who[turn[:, machine], machine]
        assert within(own, 0.3)
        assert not within(own, 0.2)
        assert within(own[1:] * own[:-1], 0.09)
    assert within(who[::3, 0] * who[::3, 3], 0.09)
    assert schedule.divisor == pytest.approx(0.6)
    np.testing.assert_array_equal(scheme.turns(rounds), turn.sum(axis=0))


def test_one_group_is_poisson_cohorts():
    one, other = CyclicPoisson(20, 1, 0.2), PoissonCohorts(20, 0.2)
    found, expected = (draw_schedule(each, 30, np.random.default_rng(1)) for each in (one, other))
    np.testing.assert_array_equal(found.participants, expected.participants)
    np.testing.assert_array_equal(found.filled, expected.filled)
    assert event(one, 2.0, "independent", 30).epsilon(DELTA) == event(other, 2.0, "independent", 30).epsilon(DELTA)
    assert event(one, 2.0, Banded(1), 30).epsilon(DELTA) == pytest.approx(
        event(other, 2.0, "independent", 30).epsilon(DELTA)
    )


def test_the_noise_does_not_depend_on_who_takes_part():
    """F follows from the groups' turns, not from the secret schedule."""
    scheme, found = CyclicPoisson(12, 3, 0.5), []
    for seed in range(2):
        for factor in (Banded(3), AnySchedule("toeplitz", 3)):
            method = FedAvg(noise_std=1.0, noise_schedule=factor, **WORK)
            start = fpj.ready(method, problem_of(12), scheme, rounds=9, seed=seed, metrics=())
            found.append(np.asarray(start.mechanism.inputs))
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_a_run_states_the_theorem_and_the_groups():
    method = FedAvg(epsilon=4.0, relation=ADD_OR_REMOVE, noise_schedule=Banded(2), **WORK)
    run = fpj.ready(method, problem_of(8), CyclicPoisson(8, 2, 0.5), rounds=4, seed=1, metrics=())
    text = str(run.guarantee)
    assert run.guarantee.epsilon == pytest.approx(4.0, rel=1e-4)
    assert "banded matrix mechanism, amplified" in text
    assert "the 2 groups of machines are public" in text
    assert "participation is public" not in text


def test_a_dropout_counts_as_sent():
    scheme = CyclicPoisson(8, 2, 0.5)
    method = FedAvg(noise_std=0.5, noise_schedule=Banded(2), **WORK)
    found = [fpj.ready(method, problem_of(8), one, rounds=4, metrics=()) for one in (scheme, fpj.Dropouts(scheme, 0.5))]
    stds = [one.event.sensitivity * one.plan.schedule.divisor for one in found]
    assert stds[0] == pytest.approx(stds[1]), "the same sum, with another public divisor"
    with pytest.raises(Refusal, match="dropouts must be one rate"):
        fpj.ready(method, problem_of(8), fpj.Dropouts(scheme, np.linspace(0, 0.5, 8)), rounds=4, metrics=())


def test_client_state_is_covered_by_joint_convexity():
    one, other = (event(CyclicPoisson(4, 2, 0.5), 1.0, Banded(2), 4, kind=kind) for kind in (FedAvg, Scaffold))
    assert "by joint convexity" in other.terms.theorem
    assert other.epsilon(DELTA) == one.epsilon(DELTA)


GROUPS = CyclicPoisson(4, 2, 0.5)
REFUSED = {
    "bands": (Banded(3), GROUPS, r"at most as many bands as participation has groups, got 3 bands and CyclicP"),
    "tree": ("tree", GROUPS, r"as many bands as participation has groups, got 4 bands .* Use Banded\(2\)"),
    "matrix": (np.tril(np.ones((4, 4))), GROUPS, "got 4 bands"),
    "poisson": (Banded(1), PoissonCohorts(4, 0.5), "under secret participation, .* Use a public scheme, or Cyclic"),
    "subsets": (Banded(1), fpj.SecretSubsets(4, 2), "under secret participation"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    factor, scheme, message = REFUSED[name]
    with pytest.raises(Refusal, match=message):
        fpj.ready(FedAvg(noise_std=1.0, noise_schedule=factor, **WORK), problem_of(4), scheme, rounds=4, metrics=())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": 3}, r"groups must divide machines \(4\), got 3"),
        ({"groups": 0}, "groups must be at least 1, got 0"),
        ({"rate": 1.5}, "rate must be"),
    ],
)
def test_invalid_schemes(settings, message):
    with pytest.raises(Refusal, match=message):
        CyclicPoisson(**{"machines": 4, "groups": 2, "rate": 0.5} | settings)


@pytest.mark.parametrize("kind", ["balls_in_bins", "b_min_sep"])
def test_other_sampling_is_refused_by_name(kind):
    file = {
        "title": "sampling",
        "problem": {"dataset": "logistic", "options": {"examples": 12, "features": 2}},
        "participation": {"kind": kind, "machines": 4, "rounds": 4},
        "protocol": [{"name": "fedavg", "mu": 1.0, **WORK}],
    }
    with pytest.raises(Refusal, match=rf"unknown .*'{kind}', did you mean 'cyclic_poisson'\? .* has no guarantee here"):
        parse(file)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [False, True])
def test_an_audit_refutes_a_tenth_of_the_rate_only(fault, monkeypatch):
    def of_a_tenth(sampler, **settings):
        return SampledMachines(Poisson(1, rate=sampler.rate / 10), **settings)

    if fault:
        monkeypatch.setattr("fedprivjax.method.local_privacy.SampledMachines", of_a_tenth)
    method = FedAvg(epsilon=1.0, relation=ADD_OR_REMOVE, noise_schedule=Banded(2), **WORK)
    found = fpj.audit(method, fpj.Federation(CyclicPoisson(4, 2, 0.5), rounds=8, records=4), runs=2000)
    assert bool(found.refuted) == fault


def test_groups_of_machines_have_the_general_bound_only():
    """Machines of different groups move different rounds, so that no pair of mixtures of one round covers them."""
    one = event(CyclicPoisson(8, 2, 0.5), 4.0, Banded(2), 4).guarantee(1e-6)
    with pytest.raises(Refusal, match="participation must treat machines alike for an exact group, got CyclicPoisson"):
        one.for_group(2, exact=True)
    assert one.for_group(2).delta > one.delta
