import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

SIZES = {"machines": 2000, "per_round": 800, "records": 30}
PROBLEM = lr.ProblemConstants(records=30, per_round=800, dimension=20, diameter=2.0, lipschitz=3.0)
LOGS = np.log(500 * 800**2 / (2000 * 1e-6)) * np.log(500 / 1e-6) * np.log(1e6)


def load(**changes):
    return lr.shuffled_load(**{"rounds": 500, "epsilon": 0.5, "delta": 1e-6, **SIZES, **changes})


def test_load_by_hand():
    assert load() == pytest.approx(800 * LOGS / (0.5 * 30 * 2000) ** 2)
    assert load() == pytest.approx(LOGS * lr.shuffled_bare_load(epsilon=0.5, **SIZES))


def test_noise_step_and_rates_are_the_papers():
    """σ²/(C·L²) = R·M·logs/(nNε)², and the step and rates of Theorem 4.1, computed from the load."""
    scale = 0.5 * 30 * 2000
    assert 500 * load() == pytest.approx(500 * 800 * LOGS / scale**2)
    step = lr.minibatch_step(PROBLEM, rounds=500, smoothness=0.8, load=load())
    private = scale / np.sqrt(20 * 800 * LOGS)
    assert step == pytest.approx(min(1 / 3.2, 2 * np.sqrt(800) / (3 * 500) * min(np.sqrt(30), private)))
    rate = 6 * (1 / np.sqrt(30 * 800) + np.sqrt(20 * LOGS) / scale)
    assert lr.shuffled_rate(PROBLEM, load=load()) == pytest.approx(rate)
    strong = 9 / 0.5 * (1 / (30 * 800) + 20 * LOGS / scale**2)
    assert lr.strong_rate(PROBLEM, strong_convexity=0.5, load=load()) == pytest.approx(strong)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3, 0.02])
@pytest.mark.parametrize("smoothness", [1e-3, 50.0, 1e5])
def test_rounds_by_hand(epsilon, smoothness):
    settings = {"machines": 2000, "epsilon": epsilon, "smoothness": smoothness}
    total = epsilon * 30 * 2000
    common = [total**2 / 800, 2000 / 800, min(30, total**2 / (20 * 800))]
    convex = smoothness * 2 / 3 * min(np.sqrt(30 * 800), total / np.sqrt(20))
    assert lr.shuffled_rounds(PROBLEM, **settings) == np.ceil(max(*common, convex) * (1 - 1e-12))
    mu = 1e-3
    strong = 8 * smoothness / mu * np.log(smoothness * 4 * mu * total**2 / (20 * 9))
    assert lr.shuffled_rounds(PROBLEM, strong_convexity=mu, **settings) == np.ceil(max(*common, strong) * (1 - 1e-12))


def test_shuffling_beats_no_shuffling():
    """With all machines and the same ε, shuffling divides the load by N, up to logarithms."""
    plain = lr.bare_load(records=30, epsilon=0.5)
    assert lr.shuffled_bare_load(machines=50, per_round=50, records=30, epsilon=0.5) == pytest.approx(plain / 50)


def test_refusals():
    with pytest.raises(ValueError, match=r"epsilon must be at most ln\(2/delta\) \(14.5086.*\), got 15.0"):
        load(epsilon=15.0)
    with pytest.raises(ValueError, match=r"per_round must be at least 16·ln\(18RM²/\(Nδ\)\) \(.*\), got 300"):
        load(per_round=300)
    with pytest.raises(ValueError, match=r"per_round must be at most machines \(2000\), got 2001"):
        load(per_round=2001)
