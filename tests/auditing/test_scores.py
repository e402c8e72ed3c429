"""An attacker's scores, compared with closed forms and with sums over every pattern of occurrences."""

from itertools import product

import numpy as np
import pytest
from audited import FEDERATION, smaller
from scipy.stats import norm

from fedprivjax import DPMu2, NoisySGD
from fedprivjax.auditing.canary_search import measured
from fedprivjax.auditing.neighbouring import worlds
from fedprivjax.auditing.scores import (
    LARGEST,
    Counting,
    ViewDistribution,
    alone,
    best_linear,
    differences,
    discriminant,
    fixed_scores,
    linear,
    mixed,
    moments,
    same_round,
    same_sender,
    separation,
    sums,
    visible,
    whitened,
)
from fedprivjax.auditing.views import Column, ViewOptions, observed
from fedprivjax.privacy.events import Mixture

COUNTING = Counting(1e-5, 1000, 0.05)


def random_law(columns=5, seed=0, kinds=None):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(columns, columns))
    named = tuple(Column("message", t + 1, machine=t % 2, slot=0) for t in range(columns)) if kinds is None else kinds
    return ViewDistribution(
        rng.normal(size=columns), rng.normal(size=columns), root @ root.T + 0.1 * np.eye(columns), named
    )


# ---- linear scores


def test_the_best_linear_score_is_the_gaussian_likelihood_ratio():
    law = random_law()
    (score,) = best_linear(law, COUNTING, None)
    views = np.random.default_rng(1).normal(size=(50, 5))
    inverse = np.linalg.inv(law.covariance)
    ratio = (views - law.middle) @ inverse @ law.shift
    mu = np.sqrt(law.shift @ inverse @ law.shift)
    np.testing.assert_allclose(score.function(views), ratio / mu + mu / 2, rtol=1e-3, atol=1e-3)
    assert score.middle == pytest.approx(mu / 2, rel=1e-4)
    assert separation(law, whitened(law)) == pytest.approx(mu, rel=1e-4)


def test_a_linear_score_is_standard_normal_in_one_world_and_mu_away_in_the_other():
    law = random_law()
    weights = np.array([1.0, -0.5, 0.0, 2.0, 0.3])
    weights *= np.sign(weights @ law.shift)
    score, mu = linear("any", law, weights, COUNTING), separation(law, weights)
    rng, root = np.random.default_rng(2), np.linalg.cholesky(law.covariance)
    for sign in (-1, 1):
        views = law.middle + sign * law.shift / 2 + rng.normal(size=(20_000, 5)) @ root.T
        found = score.function(views)
        assert found.mean() == pytest.approx(mu / 2 + sign * mu / 2, abs=0.04)
        assert found.std() == pytest.approx(1.0, abs=0.03)


def test_no_other_linear_score_separates_more():
    law = random_law(seed=4)
    best = separation(law, whitened(law))
    for weights in np.random.default_rng(0).normal(size=(200, 5)):
        assert abs(separation(law, weights)) <= best * (1 + 1e-5)


def test_whitening_some_columns_leaves_the_others_alone():
    law = random_law()
    chosen = np.array([True, False, True, False, False])
    weights = whitened(law, chosen)
    assert not weights[~chosen].any()
    part = law.covariance[np.ix_(chosen, chosen)]
    np.testing.assert_allclose(weights[chosen], np.linalg.solve(part, law.shift[chosen]), rtol=1e-3)


def test_columns_without_noise_reveal_all_or_nothing():
    law = ViewDistribution(
        np.array([0.0, 1.0]), np.zeros(2), np.diag([0.0, 0.0]), (Column("step", 1), Column("step", 2))
    )
    assert separation(law, np.array([1.0, 0.0])) == 0.0
    assert separation(law, np.array([0.0, 1.0])) == LARGEST
    assert np.isfinite(linear("sure", law, np.array([0.0, 1.0]), COUNTING).function(np.array([[0.0, 9.0]]))).all()


# ---- scores of few numbers


def test_a_message_alone_is_the_clearest_column():
    law = ViewDistribution(np.array([1.0, -3.0, 2.0]), np.zeros(3), np.diag([1.0, 1.0, 4.0]), random_law(3).columns)
    score = alone(law, COUNTING)
    np.testing.assert_allclose(score.function(np.array([[5.0, -2.0, 7.0]])), [2.0 + 1.5])


def test_differences_cancel_common_noise():
    """Two messages of one sender share noise, and the canary changes one of them."""
    columns = (Column("message", 1, 0), Column("message", 2, 0), Column("message", 1, 1, 1))
    covariance = np.array([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 1.0]])
    law = ViewDistribution(np.array([1.0, 0.0, 0.0]), np.zeros(3), covariance, columns)
    score = differences("d", law, same_sender, COUNTING)
    moved = score.function(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 9.0]]))
    assert moved[0] - moved[1] == pytest.approx(1 / np.sqrt(2 * 0.01))
    assert moved[2] == pytest.approx(moved[1])
    machines = differences("d", law, same_round, COUNTING)
    found = machines.function(np.array([[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]))
    assert found[0] == found[1]  # the other round's message has no effect
    lonely = law._replace(shift=law.shift[:1], columns=columns[:1], middle=np.zeros(1), covariance=np.eye(1))
    assert differences("d", lonely, same_sender, COUNTING) is None


def test_what_may_be_compared():
    message = Column("message", 1, 3, 0)
    assert same_sender(message, message._replace(round=2))
    assert not same_sender(message, message._replace(round=2, machine=1))
    assert not same_sender(message, message)
    assert same_round(message, message._replace(machine=1))
    assert not same_round(message, message._replace(machine=1, round=2))
    assert not same_round(Column("step", 1), Column("step", 1))


def test_no_score_looks_into_the_memory_at_two_rounds():
    """An intruder sees the memory once. Query points are visible in every round."""
    kinds = (
        *(Column("memory", t, slot=100 * s) for t in (1, 2, 3) for s in (0, 1)),
        Column("step", 1),
        Column("step", 2),
    )
    law = random_law(8, kinds=kinds)
    rounds = np.array([column.round if column.kind == "memory" else 0 for column in kinds])
    assert [sorted(set(rounds[seen])) for seen in visible(law)] == [[0, 1], [0, 2], [0, 3]]
    fitted = discriminant([moments_of(law, sign) for sign in (-1, 1)], law.columns, COUNTING)
    for score in (*fixed_scores(law, COUNTING, None), fitted):
        moved = score.function(np.eye(8)) - score.function(np.zeros((1, 8)))
        assert len(set(rounds[np.abs(moved) > 1e-9]) - {0}) <= 1, score.name


def test_memory_at_several_rounds_is_what_a_score_without_the_rule_would_take():
    law = random_law(2, kinds=(Column("memory", 1), Column("memory", 2)))
    assert not same_sender(*law.columns)
    assert differences("d", law, same_sender, COUNTING) is None


# ---- the discriminant


def moments_of(law, sign, runs=3000):
    root = np.linalg.cholesky(law.covariance)
    views = law.middle + sign * law.shift / 2 + np.random.default_rng(sign + 7).normal(size=(runs, len(root))) @ root.T
    return moments(*sums(views, law.middle), runs, law.middle)


def test_moments_add_up():
    views = np.random.default_rng(0).normal(3.0, 2.0, size=(70, 4))
    origin = np.full(4, 2.5)
    joined = (one + other for one, other in zip(sums(views[:30], origin), sums(views[30:], origin), strict=True))
    mean, covariance = moments(*joined, 70, origin)
    np.testing.assert_allclose(mean, views.mean(axis=0))
    np.testing.assert_allclose(covariance, np.cov(views.T, bias=True))


def test_the_discriminant_finds_the_likelihood_ratio():
    law = random_law()
    fitted = discriminant([moments_of(law, sign) for sign in (-1, 1)], law.columns, COUNTING)
    views = law.middle + np.random.default_rng(1).normal(size=(400, 5)) @ np.linalg.cholesky(law.covariance).T
    best = best_linear(law, COUNTING, None)[0].function(views)
    assert np.corrcoef(fitted.function(views), best)[0, 1] > 0.99


# ---- messages whose mean depends on occurrences


@pytest.mark.parametrize(("times", "chances"), [([1.0], [0.25]), ([1.0, 2.0], [0.3, 0.1])])
def test_the_mixtures_score_is_its_log_likelihood_ratio(times, chances):
    """Two messages: the densities of both datasets, summed over the canary's occurrences in each message."""
    claim, shift = Mixture(0.7, 2, np.array(times), np.array(chances)), 1.3
    columns = (Column("message", 1, 0), Column("message", 1, 1, 1), Column("message", 2, 0))
    law = ViewDistribution(np.zeros(3), np.array([0.2, 0.0, -0.1]), np.eye(3), columns)
    score = mixed("mixed", law, claim, 0, shift, COUNTING)
    views = np.random.default_rng(3).normal(0, 1.5, size=(40, 3))
    occurs, odds = [0.0, *times], [1 - sum(chances), *chances]

    def density(sign):
        total = np.zeros(40)
        for one, other in product(range(len(occurs)), repeat=2):
            part = np.full(40, odds[one] * odds[other])
            for column, count in ((0, occurs[one]), (2, occurs[other])):
                mean = law.middle[column] + sign * count * shift / 2
                part *= norm.pdf(views[:, column], mean, claim.ratio * shift)
            total += part
        return total

    np.testing.assert_allclose(score.function(views), np.log(density(1) / density(-1)), rtol=1e-8, atol=1e-10)
    assert score.middle == 0.0


# ---- the engine's own views


def closed_form(start, machine, found):
    """Return each protocol's closed form: running sums for cancelling noise, the first message for fresh."""
    own = np.array([column.kind == "message" and column.machine == machine for column in found.columns])
    messages = found.values[:, own]
    if isinstance(start.protocol, NoisySGD):
        return messages[:, 0]
    inputs = getattr(start.mechanism.inputs, "relative", start.mechanism.inputs)
    relative = np.asarray(inputs, float)[start.plan.schedule.participants == machine]
    return np.cumsum(messages, axis=1) @ relative**-2.0


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(DPMu2(mu=2.0, clip=0.3), id="uniform", marks=pytest.mark.slow),
        pytest.param(DPMu2(mu=2.0, clip=0.3, noise_schedule="proportional"), id="proportional", marks=pytest.mark.slow),
        pytest.param(NoisySGD(mu=2.0, clip=0.3, step_size=0.01), id="sgd"),
    ],
)
def test_the_measured_likelihood_ratio_is_the_closed_form(protocol, monkeypatch):
    smaller(monkeypatch)
    pair = worlds(protocol, FEDERATION, 0, delta=1e-5)
    law = measured(pair, 0, ViewOptions())
    score = best_linear(law, COUNTING, pair.start.guarantee.mu)[0]
    found = observed(pair.start, 9, 0, ViewOptions())[0]
    expected = closed_form(pair.start, pair.machine, found)
    assert np.corrcoef(score.function(found.values), expected)[0, 1] > 0.99
    assert separation(law, whitened(law)) == pytest.approx(pair.start.guarantee.per_machine[pair.machine], rel=0.06)
