"""Accounting of integer noise: the authors' numbers, exact values, and the noise of others that an adversary misses."""

from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from oracles.integer_noise import AUTHORS, AUTHORS_ORDERS, PROBABILITIES, exact_delta
from scipy.special import logsumexp

from fedprivjax import Coalition, FinalModel, LinearAdversary, SecureSum, ThirdParty
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.accountants.integer_sums import (
    BETA,
    DISTRIBUTIONS,
    Norms,
    distance_from_discrete_gaussian,
    epsilon_of_rdp,
    integer_epsilon,
    norms_of,
    rounded_norm,
)
from fedprivjax.privacy.adversaries import Local
from fedprivjax.privacy.against import event_against
from fedprivjax.privacy.integer_event import IntegerEvent
from fedprivjax.privacy.terms import Terms
from fedprivjax.privacy.views import SentNoise

BOTH = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


def setting(number):
    rng = np.random.default_rng(number)
    scale = float(10 ** rng.uniform(0, 4))
    return {
        "scale": scale,
        "local_std": float(10 ** rng.uniform(-0.1, 1.0 if number % 2 else 0.2)) / scale,
        "machines": int(10 ** rng.uniform(0, 3)),
        "clip": float(10 ** rng.uniform(-1, 0.3)) / (10 if number % 4 else 1),
        "beta": [0.0, BETA, 0.1][number % 3],
        "dimension": int(2 ** rng.integers(1, 18)),
        "rounds": int(10 ** rng.uniform(0, 3)),
        "delta": float(10 ** -rng.uniform(4, 8)),
    }


@BOTH
@pytest.mark.parametrize("number", range(20))
def test_epsilon_is_that_of_the_authors_accountant(number, distribution):
    s = setting(number)
    dimension = s["dimension"]
    norms = norms_of(rounded_norm(s["scale"] * s["clip"], s["beta"], dimension), dimension, 1)
    noise, orders = ((s["scale"] * s["local_std"]) ** 2, s["machines"]), np.array(AUTHORS_ORDERS, float)
    divergences = s["rounds"] * DISTRIBUTIONS[distribution].rdp(orders, norms, *noise)
    theirs = AUTHORS[distribution](**s)
    assert epsilon_of_rdp(orders, divergences, s["delta"]) == pytest.approx(theirs, rel=1e-9)
    assert integer_epsilon(distribution, norms, *noise, s["rounds"], s["delta"]) <= theirs * (1 + 1e-9)


@pytest.mark.parametrize("shift", [[1], [3], [5], [1, 1], [3, -2], [2, 2]], ids=str)
@pytest.mark.parametrize(
    ("distribution", "variance", "machines"),
    [
        *(("skellam", variance, 1) for variance in (1.0, 4.0, 25.0, 100.0)),
        *(("discrete-gaussian", *one) for one in ((0.1, 3), (0.25, 2), (0.25, 8), (0.4, 5), (0.7, 3), (1.0, 20))),
        *(("discrete-gaussian", *one) for one in ((25.0, 1), (5.0, 5))),
    ],
)
def test_the_exact_epsilon_is_never_above_the_claimed_one(distribution, variance, machines, shift):
    norms = Norms(float(np.linalg.norm(shift)), float(np.abs(shift).sum()), len(shift))
    reach = 150
    exact = PROBABILITIES[distribution](variance, machines, reach)
    for delta in (1e-3, 1e-6):
        claimed = integer_epsilon(distribution, norms, variance, machines, 1, delta)
        assert exact_delta(shift, claimed, exact) <= delta
        if variance * machines >= 25:  # half the noise is refuted
            half = PROBABILITIES[distribution](variance / 4, machines, reach)
            assert exact_delta(shift, claimed, half) > delta


@pytest.mark.parametrize("machines", [2, 3, 8])
@pytest.mark.parametrize("variance", [0.25, 0.3, 0.5, 1.0])
def test_tau_bounds_the_distance_from_a_discrete_gaussian(variance, machines):
    """It is at least twice the largest logarithm of a ratio of probabilities, and below seven times that for two."""
    tau = distance_from_discrete_gaussian(variance, machines)
    total = variance * machines
    reach = int(6 * total**0.5)
    exact = PROBABILITIES["discrete-gaussian"](variance, machines, 12 * reach)[11 * reach : 13 * reach + 1]
    one = PROBABILITIES["discrete-gaussian"](total, 1, 12 * reach)[11 * reach : 13 * reach + 1]
    largest = np.abs(np.log(exact / one)).max()
    assert 2 * largest <= tau
    assert machines > 2 or tau <= 7 * largest


def test_divergences_of_discrete_gaussian_sums_are_never_above_the_bound():
    """Small noise of several machines, where τ dominates, at several orders."""
    orders = np.array([2.0, 3.0, 8.0, 32.0])
    for variance, machines, shift in [(0.25, 2, 1), (0.3, 4, 2), (0.5, 3, 1), (0.5, 3, 4), (1.0, 2, 1)]:
        p = PROBABILITIES["discrete-gaussian"](variance, machines, 90)[30:-30]
        q = PROBABILITIES["discrete-gaussian"](variance, machines, 90)[30 - shift : -30 - shift]
        seen = (p > 1e-280) & (q > 1e-280)
        logs = np.log(p[seen])[:, None] * orders + np.log(q[seen])[:, None] * (1 - orders)
        exact = logsumexp(logs, axis=0) / (orders - 1)
        rdp = DISTRIBUTIONS["discrete-gaussian"].rdp
        assert (exact <= rdp(orders, Norms(shift, shift, 1), variance, machines) + 1e-9).all()


@BOTH
def test_two_sums_compose_as_one_of_two_coordinates(distribution):
    """Two sums that move by 2 and 3 are one sum that moves by the vector (2, 3), and exact values hold for it."""
    orders, rdp = np.arange(2.0, 200.0), DISTRIBUTIONS[distribution].rdp
    divergences = rdp(orders, Norms(2, 2, 1), 5.0, 5) + rdp(orders, Norms(3, 3, 1), 5.0, 5)
    claimed = epsilon_of_rdp(orders, divergences, 1e-4)
    assert exact_delta([2, 3], claimed, PROBABILITIES[distribution](5.0, 5, 150)) <= 1e-4


# ---- against adversaries

MESSAGES = SentNoise(np.ones((2, 4)), once=True)
FOUR = Schedule(4, np.array([[0, 1, 2, 3], [0, 1, 2, 3]]))


NORMS = Norms(5.0, 25.0, 16)


def event(distribution="skellam", deviation=10.0):
    return IntegerEvent(distribution, deviation, NORMS, FOUR.total, Terms("none", "the mechanism"))


def against(adversary, schedule=FOUR, **noise):
    return event_against(adversary, event(**noise), MESSAGES, schedule, independent=True)


@pytest.mark.parametrize(("distribution", "deviation"), [("skellam", 10.0), ("discrete-gaussian", 0.8)])
@pytest.mark.parametrize(
    ("adversary", "noises"),
    [(Local(), 1), (SecureSum(), 4), (ThirdParty(), 4), (FinalModel(), 4), (Coalition(1), 3), (Coalition(3), 1)],
    ids=str,
)
def test_the_noise_of_all_senders_but_colluders_counts(adversary, noises, distribution, deviation):
    expected = integer_epsilon(distribution, NORMS, deviation**2, noises, 2, 1e-5)
    found = against(adversary, distribution=distribution, deviation=deviation)
    assert found.epsilons(1e-5).each == pytest.approx([expected] * 4, rel=1e-9)


def test_the_fewest_survivors_count():
    dropped = np.array([[False, True, True, False], [False] * 4])
    late = Schedule(4, FOUR.participants, dropped=dropped)
    found = against(SecureSum(), late).epsilons(1e-5).each
    assert found[0] == pytest.approx(integer_epsilon("skellam", NORMS, 100.0, 2, 2, 1e-5), rel=1e-9)


@dataclass(frozen=True)
class Pairs(LinearAdversary):
    name, sees = "pairs", "the sums of even and of odd machines"

    def rows(self, machines):
        return machines % 2 == np.arange(2)[:, None]


def test_the_theorem_is_of_plain_sums():
    """Other linear functions have the guarantee of the messages, by post-processing."""
    assert against(Pairs()).epsilon(1e-5) == pytest.approx(event().epsilon(1e-5))


@BOTH
def test_without_noise_nothing_is_guaranteed(distribution):
    assert integer_epsilon(distribution, Norms(1.0, 1.0, 1), 0.0, 5, 1, 1e-5) == inf
    assert integer_epsilon(distribution, Norms(1.0, 1.0, 1), 1.0, 0, 1, 1e-5) == inf
