"""Privacy statements of methods on users: uses of a record, source of the noise, target, and terms."""

import numpy as np
import pytest
from cases import sparing, unit_rows

from fedprivjax import (
    Absolute,
    Balanced,
    Ball,
    Dropouts,
    Full,
    Given,
    Huber,
    OnePass,
    UserAGD,
    UserSGD,
    draw_plan,
    linear_problem,
    simulate,
)
from fedprivjax.privacy import gdp
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.privacy.event_on_plan import event_of

DELTA, USERS, PER_ROUND, FEATURES = 1e-3, 12, 4, 3
TRUSTS = ("shuffler", "none", "server", "pan-private")
X = unit_rows(np.random.default_rng(2), USERS, FEATURES)
Y = np.random.default_rng(3).normal(size=USERS).astype(np.float32)
KNOWN = {"feature_bound": 1.0 + 1e-6, "constraint": Ball(1.0)}
OWN = linear_problem(X[:, None], Y[:, None], Huber(0.5), **KNOWN)
POOL = linear_problem(np.tile(X, (6, 1)), np.tile(Y, 6), Huber(0.5), **KNOWN)
TWO_EACH = linear_problem(X.reshape(6, 2, FEATURES), Y.reshape(6, 2), Huber(0.5), **KNOWN)
PASS = OnePass(USERS, PER_ROUND)
OFTEN = Given(3, [[0, 1], [0, 2], [0, 1], [0, 2]])  # machine 0 in every round


def planned(problem, participation, rounds, order="shuffled"):
    return draw_plan(problem, participation, rounds, seed=1, order=order)


PLANS = {
    "pass": (OWN, planned(OWN, PASS, 3), 1),
    "fresh samples": (POOL, planned(POOL, OFTEN, 4), 1),
    "full": (OWN, planned(OWN, Full(USERS), 5, "cyclic"), 5),
    "two passes": (OWN, planned(OWN, Balanced(USERS, PER_ROUND), 6, "cyclic"), 2),
    "part of a pass": (OWN, planned(OWN, Balanced(USERS, PER_ROUND), 2, "cyclic"), 1),
    "own records twice": (TWO_EACH, planned(TWO_EACH, Full(6), 3, "cyclic"), 2),
}


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("name", PLANS)
def test_a_record_is_released_as_often_as_rounds_use_it(name, trust):
    problem, plan, uses = PLANS[name]
    event = event_of(calibrate(UserSGD(noise_std=2.0, step_size=0.1, trust=trust), problem, plan), problem, plan)
    assert event.releases.messages.max() == uses
    hidden_by = {"none": 1, "server": plan.size.per_round, "pan-private": plan.size.per_round / 2}
    assert event.sensitivity == pytest.approx(1.0 / hidden_by.get(trust, 1) ** 0.5, rel=1e-5)  # 2L of 1
    if trust != "shuffler":
        mu = uses**0.5 / (2.0 * hidden_by[trust] ** 0.5)
        exact = float(gdp.epsilon(mu * (1 + 1e-5), DELTA))
        assert event.epsilon(DELTA) == pytest.approx(exact, rel=0.02)


def test_machines_out_of_the_pass_spend_nothing():
    plan = planned(OWN, OnePass(USERS, 5), 2)
    stated = guarantee(UserSGD(epsilon=1.0, step_size=0.1), OWN, plan, DELTA)
    np.testing.assert_array_equal(stated.per_machine > 0, plan.schedule.total > 0)


@pytest.mark.parametrize(("honest", "dropouts"), [(1.0, 0.0), (0.75, 0.0), (1.0, 0.4), (0.6, 0.4)])
def test_the_accountant_has_the_users_who_surely_add_noise(honest, dropouts):
    plan = planned(POOL, Dropouts(OnePass(72, 8), dropouts), 9)
    least = plan.schedule.present.sum(axis=1).min()
    assert (least < 8) == (dropouts > 0)
    protocol = calibrate(UserSGD(noise_std=2.0, step_size=0.1, honest=honest), POOL, plan)
    event = event_of(protocol, POOL, plan)
    assert event.accountant.users == int(honest * least)
    assert event.accountant.dimension == FEATURES
    assert event.accountant.levels == protocol.vector_sum.levels
    assert any(str(int(honest * least)) in str(one) and "own noise" in str(one) for one in event.terms.assumptions)


def test_the_accountant_is_told_how_it_is_asked():
    plan = PLANS["pass"][1]
    settings = {"rounding": "coupled", "accounting": "gaussian-limit", "levels": 40}
    protocol = calibrate(UserSGD(epsilon=1.0, step_size=0.1, **settings), OWN, plan, delta=DELTA)
    accountant = event_of(protocol, OWN, plan).accountant
    assert (accountant.rounding, accountant.accounting, accountant.levels) == ("coupled", "gaussian-limit", 40)
    assert protocol.vector_sum.levels == 40
    assert "not a proof" in event_of(protocol, OWN, plan).terms.theorem


def test_fewer_honest_users_need_more_noise():
    plan = PLANS["pass"][1]
    noises = [calibrate(UserSGD(epsilon=1.0, honest=h), OWN, plan, delta=DELTA).noise_std for h in (1.0, 0.5)]
    assert noises[1] > 1.3 * noises[0]


TARGETS = [(name, trust, 1.0) for name in PLANS for trust in TRUSTS] + [("pass", "shuffler", 0.2), ("pass", "none", 8)]


@pytest.mark.parametrize(
    ("name", "trust", "epsilon"), sparing(TARGETS, [*((name, "shuffler", 1.0) for name in PLANS), TARGETS[1]])
)
def test_the_target_is_met_and_hardly_missed(name, trust, epsilon):
    problem, plan, _ = PLANS[name]
    stated = guarantee(UserSGD(epsilon=epsilon, step_size=0.1, trust=trust), problem, plan, DELTA)
    assert epsilon * (1 - 1e-4) <= stated.epsilon <= epsilon * (1 + 1e-6)
    both = guarantee(UserAGD(epsilon=epsilon, step_size=0.1, trust=trust), problem, plan, DELTA)
    assert both.epsilon == stated.epsilon


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("name", ["pass", "full"])
def test_terms(name, trust):
    problem, plan, uses = PLANS[name]
    stated = guarantee(UserSGD(noise_std=1.0, step_size=0.1, trust=trust), problem, plan, DELTA)
    assert (stated.trust, stated.unit, stated.relation) == (trust, "one record of one machine", "replace-one")
    composed = {1: "parallel composition", 5: "adaptive composition"}[uses]
    assert stated.theorem.endswith(composed)
    named = {"shuffler": "Theorem 3.2", "pan-private": "Theorem C.3"}.get(trust, "Gaussian mechanism")
    assert named in stated.theorem
    names = {one.name for one in stated.assumptions}
    assert ("used once" in names) == (name == "pass")
    assert ("honest users" in names) == (trust == "shuffler")
    assert ("one intrusion" in names) == (trust == "pan-private")
    assert {"public participation", "lipschitz"} <= names
    clipped = guarantee(UserSGD(noise_std=1.0, step_size=0.1, trust=trust, clip=0.1), problem, plan, DELTA)
    assert {"clipped records"} == {one.name for one in clipped.assumptions} - names
    assert clipped.epsilon < stated.epsilon


@pytest.mark.parametrize("trust", ["shuffler", "none", "server", "pan-private"])
@pytest.mark.parametrize("problem", sparing(["shares", "pool"], ["pool"]))
def test_an_absent_users_record_may_be_anything(trust, problem):
    """Users who fail to take part move no number of the run, a transcript's messages among them."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(24, 3)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)

    def run(features):
        own = (features[:, None], x[:, None, 0]) if problem == "shares" else (features, x[:, 0])
        made = linear_problem(*own, Absolute(), feature_bound=10.0, constraint=Ball(1.0))
        protocol = UserSGD(trust=trust, noise_std=0.0, step_size=0.3, clip=1.0)
        options = {"rounds": 3, "seed": 4, "order": "stored", "eval_every": 1}
        return simulate(protocol, made, Dropouts(OnePass(24, 8), 0.5), metrics=["clipped_share"], **options)

    first = run(x)
    present = first.plan.schedule.present
    assert not present.all()
    other = x.copy()
    other[first.plan.samples.reshape(present.shape)[~present]] = [3.0, -4.0, 5.0]
    second = run(other)
    np.testing.assert_array_equal(first.params, second.params)
    np.testing.assert_array_equal(first.metrics["clipped_share"], second.metrics["clipped_share"])
