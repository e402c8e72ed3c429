"""Accounting of Skellam noise: the authors' numbers, exact values, and the noise of others that an adversary misses."""

from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from oracles.skellam import AUTHORS_ORDERS, authors_epsilon, exact_delta

from fedprivjax import Coalition, FinalModel, LinearAdversary, SecureSum, ThirdParty
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.accountants.skellam import (
    BETA,
    Norms,
    epsilon_of_rdp,
    norms_of,
    rounded_norm,
    skellam_epsilon,
    skellam_rdp,
)
from fedprivjax.privacy.adversaries import Local
from fedprivjax.privacy.against import event_against
from fedprivjax.privacy.skellam_event import SkellamEvent
from fedprivjax.privacy.terms import Terms
from fedprivjax.privacy.views import SentNoise


def setting(number):
    rng = np.random.default_rng(number)
    return {
        "scale": float(10 ** rng.uniform(0, 4)),
        "central_std": float(10 ** rng.uniform(-0.3, 1.5)),
        "clip": float(10 ** rng.uniform(-1, 0.3)),
        "beta": [0.0, BETA, 0.1][number % 3],
        "dimension": int(2 ** rng.integers(1, 18)),
        "rounds": int(10 ** rng.uniform(0, 3)),
        "delta": float(10 ** -rng.uniform(4, 8)),
    }


@pytest.mark.parametrize("number", range(20))
def test_epsilon_is_that_of_the_authors_accountant(number):
    s = setting(number)
    dimension = s["dimension"]
    norms = norms_of(rounded_norm(s["scale"] * s["clip"], s["beta"], dimension), dimension, 1)
    variance, orders = (s["scale"] * s["central_std"]) ** 2, np.array(AUTHORS_ORDERS, float)
    at_their_orders = epsilon_of_rdp(orders, s["rounds"] * skellam_rdp(orders, norms, variance), s["delta"])
    theirs = authors_epsilon(**s)
    assert at_their_orders == pytest.approx(theirs, rel=1e-9)
    assert skellam_epsilon(norms, variance, s["rounds"], s["delta"]) <= theirs * (1 + 1e-9)


@pytest.mark.parametrize("shift", [[1], [3], [5], [1, 1], [3, -2], [2, 2]], ids=str)
@pytest.mark.parametrize("variance", [1.0, 4.0, 25.0, 100.0])
def test_the_exact_epsilon_is_never_above_the_claimed_one(variance, shift):
    norms = Norms(float(np.linalg.norm(shift)), float(np.abs(shift).sum()))
    for delta in (1e-3, 1e-6):
        claimed = skellam_epsilon(norms, variance, 1, delta)
        assert exact_delta(shift, variance, claimed) <= delta
        if variance >= 25:  # half the noise is refuted
            assert exact_delta(shift, variance / 4, claimed) > delta


def test_two_sums_compose_as_one_of_two_coordinates():
    """Two sums that move by 2 and 3 are one sum that moves by the vector (2, 3), and exact values hold for it."""
    claimed = epsilon_of_rdp(
        orders := np.arange(2.0, 200.0),
        skellam_rdp(orders, Norms(2, 2), 25.0) + skellam_rdp(orders, Norms(3, 3), 25.0),
        1e-4,
    )
    assert exact_delta([2, 3], 25.0, claimed) <= 1e-4


# ---- against adversaries

MESSAGES = SentNoise(np.ones((2, 4)), once=True)
FOUR = Schedule(4, np.array([[0, 1, 2, 3], [0, 1, 2, 3]]))


def event(deviation=10.0):
    return SkellamEvent(deviation, Norms(5.0, 25.0), FOUR.total, Terms("none", "the Skellam mechanism"))


def against(adversary, schedule=FOUR):
    return event_against(adversary, event(), MESSAGES, schedule, independent=True)


@pytest.mark.parametrize(
    ("adversary", "noises"),
    [(Local(), 1), (SecureSum(), 4), (ThirdParty(), 4), (FinalModel(), 4), (Coalition(1), 3), (Coalition(3), 1)],
    ids=str,
)
def test_the_noise_of_all_senders_but_colluders_counts(adversary, noises):
    expected = skellam_epsilon(Norms(5.0, 25.0), 100.0 * noises, 2, 1e-5)
    assert against(adversary).epsilons(1e-5).each == pytest.approx([expected] * 4, rel=1e-9)


def test_the_fewest_survivors_count():
    dropped = np.array([[False, True, True, False], [False] * 4])
    late = Schedule(4, FOUR.participants, dropped=dropped)
    found = against(SecureSum(), late).epsilons(1e-5).each
    assert found[0] == pytest.approx(skellam_epsilon(Norms(5.0, 25.0), 200.0, 2, 1e-5), rel=1e-9)


@dataclass(frozen=True)
class Pairs(LinearAdversary):
    name, sees = "pairs", "the sums of even and of odd machines"

    def rows(self, machines):
        return machines % 2 == np.arange(2)[:, None]


def test_the_theorem_is_of_plain_sums():
    """Other linear functions have the guarantee of the messages, by post-processing."""
    assert against(Pairs()).epsilon(1e-5) == pytest.approx(event().epsilon(1e-5))


def test_without_noise_nothing_is_guaranteed():
    assert skellam_epsilon(Norms(1.0, 1.0), 0.0, 1, 1e-5) == inf
