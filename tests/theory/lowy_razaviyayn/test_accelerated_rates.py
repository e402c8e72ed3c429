import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

SIZES = {"records": 100, "per_round": 5.0, "dimension": 20}
PROBLEM = lr.ProblemConstants(diameter=2.0, lipschitz=3.0, **SIZES)


def need(load, batch, spread=2.0):
    psi = 9 * load
    return np.sqrt(5) / np.sqrt(20 * psi), spread / (20 * psi) / batch


def test_convex_rounds_by_hand():
    for load, smoothness in ((1e-8, 40.0), (1e-5, 1e6)):
        shape, sampling = need(load, 7)
        settings = {"smoothness": smoothness, "load": load, "batch": 7, "spread": 2.0}
        rounds = lr.accelerated_rounds(PROBLEM, **settings)
        assert rounds == np.ceil(max(np.sqrt(smoothness * 2.0 * shape), sampling))
        formal = lr.accelerated_rounds(PROBLEM, **settings, formal=True)
        assert formal == np.ceil(max(np.sqrt(smoothness * 2.0 * shape), 7 * sampling))


def test_strong_rounds_by_hand():
    settings = {"smoothness": 40.0, "strong_convexity": 0.1, "gap": 6.0, "batch": 7, "load": 1e-6}
    log = np.sqrt(400) * np.log(6.0 * 0.1 * 5 / (20 * 9e-6))
    assert lr.accelerated_strong_rounds(PROBLEM, spread=0.0, **settings) == np.ceil(log)
    assert lr.accelerated_strong_rounds(PROBLEM, spread=2.0, **settings) == np.ceil(need(1e-6, 7)[1])


def test_nonsmooth_rounds_are_the_smooth_ones_at_the_envelope():
    """Theorem 2.4 equals Theorem E.1 at smoothness b with Φ̂² := L²."""
    common = {"batch": 3, "load": 2e-6}
    smoothness = lr.accelerated_envelope_smoothness(PROBLEM, load=2e-6)
    rounds = lr.accelerated_rounds(PROBLEM, smoothness=smoothness * (1 - 1e-9), spread=9.0, **common)
    assert lr.nonsmooth_accelerated_rounds(PROBLEM, **common) == rounds
    strong = lr.accelerated_envelope_strong_smoothness(PROBLEM, strong_convexity=0.1, load=2e-6)
    rest = {"strong_convexity": 0.1, "gap": 6.0, **common}
    smooth = lr.accelerated_strong_rounds(PROBLEM, smoothness=strong, spread=9.0, **rest)
    assert lr.nonsmooth_accelerated_strong_rounds(PROBLEM, **rest) == smooth


def test_informal_nonsmooth_rounds():
    """R = max{√M·εn/√d, ε²n²/(Kd)}, with the second term only if records are sampled."""
    load = lr.bare_load(records=1000, epsilon=0.5)
    problem = lr.ProblemConstants(records=1000, per_round=16, dimension=100, diameter=1.0, lipschitz=1.0)
    settings = {"load": load, "batch": 2}
    assert lr.nonsmooth_accelerated_rounds(problem, **settings) == 500**2 / 200
    assert lr.nonsmooth_accelerated_rounds(problem, **settings, sampled=False) == 4 * 500 / 10
    assert lr.nonsmooth_accelerated_rounds(problem, **settings, formal=True) == 500**2 / 100


def test_the_prescribed_rounds_bring_the_rate_to_its_floor():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes, load = {**SIZES, "per_round": rng.uniform(1, 30)}, 10 ** rng.uniform(-7, -3)
        problem = lr.ProblemConstants(diameter=2.0, lipschitz=3.0, **sizes)
        settings = {
            "smoothness": 10 ** rng.uniform(0, 3),
            "batch": int(rng.integers(1, 9)),
            "spread": 9.0,
            "load": load,
        }
        rounds = lr.accelerated_rounds(problem, **settings)
        floor = lr.empirical_rate(problem, load=load)
        assert floor < lr.accelerated_rate(problem, rounds=rounds, **settings) <= 3 * floor
        strong = {"strong_convexity": 0.5, "gap": 6.0}
        rounds = lr.accelerated_strong_rounds(problem, **strong, **settings)
        floor = lr.empirical_strong_rate(problem, strong_convexity=0.5, load=load)
        rate = lr.accelerated_strong_rate(problem, rounds=rounds, **strong, **settings)
        assert floor < rate <= 3 * floor * (1 + 1e-9)


def test_a_growing_load_is_iterated():
    def load(rounds):
        return lr.privacy_load(records=400, epsilon=1.0, delta=1e-6, rounds=rounds)

    problem = lr.ProblemConstants(records=400, per_round=400, dimension=20, diameter=1.0, lipschitz=1.0)
    rounds = lr.nonsmooth_accelerated_rounds(problem, load=load, batch=400)
    for some, holds in ((rounds, True), (rounds - 1, False)):
        needed = max(np.sqrt(400 / (20 * load(some))), 1 / (20 * load(some) * 400))
        assert (some >= needed) == holds


def test_refusals():
    with pytest.raises(ValueError, match="load must be positive and finite, got 0"):
        lr.accelerated_envelope_smoothness(PROBLEM, load=0)
    with pytest.raises(ValueError, match="finite number of rounds, got inf rounds"):
        lr.nonsmooth_accelerated_rounds(PROBLEM, load=0.0, batch=1)
    with pytest.raises(ValueError, match=r"strong_convexity must be at most smoothness \(1.0\), got 2.0"):
        lr.accelerated_strong_rounds(
            PROBLEM, smoothness=1.0, strong_convexity=2.0, gap=1.0, batch=1, load=1.0, spread=0.0
        )
