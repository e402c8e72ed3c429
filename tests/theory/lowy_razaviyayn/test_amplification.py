import numpy as np
import pytest
from scipy import stats

from fedprivjax.privacy import gdp
from fedprivjax.theory import lowy_razaviyayn as lr


def test_hybrid_target_undoes_group_privacy():
    for records in (1, 2, 50):
        one = lr.hybrid_target(epsilon=3.0, delta=1e-5, records=records)
        assert lr.group_privacy(epsilon=one.epsilon, delta=one.delta, records=records) == pytest.approx((3.0, 1e-5))
    assert one.delta < 1e-5 / 50 / np.exp(2.9)  # the paper's δ/n is e^{(n−1)ε/n} times this


@pytest.mark.parametrize("mu", [0.05, 0.5])
@pytest.mark.parametrize("records", [2, 5])
def test_group_privacy_holds_for_a_gaussian_mechanism(mu, records):
    for epsilon in (0.2, 1.0, 2.0):
        group = lr.group_privacy(epsilon=epsilon, delta=max(gdp.delta(epsilon, mu), 1e-300), records=records)
        assert gdp.delta(group.epsilon, records * mu) <= group.delta


def test_compositionality():
    """d = 2C² rounds of ε each that use every record once are (ε, δ)-private, but √2·C-compositional."""
    assert lr.compositionality(round_epsilons=[0.3] * 18, epsilon=0.3) == pytest.approx(np.sqrt(2) * 3)
    epsilon, delta, rounds = 1.0, 1e-6, 100
    each = epsilon / (2 * np.sqrt(2 * rounds * np.log(2 / delta)))
    assert lr.compositionality(round_epsilons=[each] * rounds, epsilon=epsilon) < 1


def shuffled_answers_delta(epsilon, machines, total):
    """Exact hockey-stick divergence of the number of ones among shuffled randomised responses, for one changed bit."""
    lie = 1 / (1 + np.exp(epsilon))
    others = stats.binom.pmf(np.arange(machines), machines - 1, lie)
    zero, one = np.append(others, 0.0), np.append(0.0, others)
    first, second = (1 - lie) * zero + lie * one, lie * zero + (1 - lie) * one
    return max(np.maximum(p - np.exp(total) * q, 0).sum() for p, q in ((first, second), (second, first)))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_amplification_covers_shuffled_randomised_answers(epsilon):
    bound = lr.shuffled_machines(epsilon=epsilon, delta=0.0, failure=1e-4, machines=4000, records=1)
    assert bound.delta == pytest.approx(1e-4)
    assert bound.epsilon < epsilon
    assert shuffled_answers_delta(epsilon, 4000, bound.epsilon) <= 1e-4
    assert shuffled_answers_delta(epsilon, 4000, bound.epsilon / 20) > 1e-4


def test_one_round_by_hand():
    found = lr.shuffled_machines(epsilon=0.02, delta=1e-12, failure=1e-7, machines=5000, records=10)
    ratio = (np.exp(0.02) - 1) / (np.exp(0.02) + 1)
    inner = 8 * np.sqrt(np.exp(0.2) * np.log(4e7)) / np.sqrt(5000) + 8 * np.exp(0.2) / 5000
    assert found.epsilon == pytest.approx(np.log(1 + ratio * inner))
    spill = 2 * 5000 * 10 * np.exp(0.18) * 1e-12
    assert found.delta == pytest.approx(1e-7 + (np.exp(found.epsilon) + 1) * spill)
    printed = lr.shuffled_machines(epsilon=0.02, delta=1e-12, failure=1e-7, machines=5000, records=10, printed=True)
    assert printed.delta == pytest.approx(1e-7 + spill)


def test_printed_delta_of_a_round_is_at_most_seven():
    settings = {"epsilon": 0.01, "delta": 1e-13, "failure": 5e-8, "machines": 5000, "records": 100}
    found = lr.shuffled_machines(**settings, printed=True)
    assert 6 < found.delta / (5000 * 100 * 1e-13) <= 7


def rounds_privacy(**changes):
    settings = {"epsilon": 1.0, "round_epsilons": [0.01] * 5, "round_deltas": [1e-13] * 5, "machines": 5000}
    return lr.shuffled_rounds_privacy(**{**settings, "records": 10, **changes})


def test_all_rounds_by_hand():
    each = lr.shuffled_machines(epsilon=0.01, delta=1e-13, failure=5e-9, machines=5000, records=10)
    slack = 5 * 5e-9
    epsilon = 5 * each.epsilon * np.expm1(each.epsilon) / (np.exp(each.epsilon) + 1)
    epsilon += np.sqrt(2 * 5 * each.epsilon**2 * np.log(1 / slack))
    assert rounds_privacy() == pytest.approx((epsilon, slack + 5 * each.delta))
    assert slack < rounds_privacy().delta <= 14 * 5e4 * 5e-13


def test_all_rounds_shrink_like_one_over_root_machines():
    """With ε_r = ε/√R the central ε is about ε·ln(1/(nNδ))/√N."""
    few, many = (
        rounds_privacy(round_epsilons=[0.01] * 100, round_deltas=[1e-8 / n] * 100, epsilon=0.1, machines=n).epsilon
        for n in (10**6, 10**8)
    )
    assert 9.9 < few / many < 10.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 71.0}, r"epsilon must be at most √machines \(70.71.*\), got 71.0"),
        ({"round_epsilons": [0.11] * 5}, r"round_epsilons must be at most 1/records \(0.1\), got 0.11"),
        ({"round_deltas": [1e-6] * 5}, r"round_deltas must be at most 1/\(14·records·machines·rounds\)"),
        ({"machines": 300}, r"2·exp\(−machines/16\)/\(machines·records\) must be at most round_deltas"),
        ({"round_deltas": [1e-13] * 4}, "round_deltas must be as many as round_epsilons"),
        (
            {"machines": 520, "round_epsilons": [0.1] * 5},
            r"epsilon must be at most ln\(machines/\(16·ln\(2/failure\)\)\)/records \(.*\) for amplification",
        ),
    ],
)
def test_refuses_outside_the_corollary(changes, message):
    with pytest.raises(ValueError, match=message):
        rounds_privacy(**changes)


def test_refuses_outside_the_theorem():
    settings = {"delta": 0.0, "failure": 1e-6, "machines": 1000, "records": 2}
    most = np.log(1000 / (16 * np.log(2e6))) / 2
    lr.shuffled_machines(epsilon=most * (1 - 1e-12), **settings)
    with pytest.raises(ValueError, match=r"epsilon must be at most .* \(0.730211\) .*, got 0.74"):
        lr.shuffled_machines(epsilon=0.74, **settings)
    with pytest.raises(ValueError, match=r"delta must be at least 0 and below 1, got -0.1"):
        lr.shuffled_machines(epsilon=0.1, **{**settings, "delta": -0.1})
