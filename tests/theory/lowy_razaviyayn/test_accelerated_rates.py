import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

SIZES = {"per_round": 5.0, "dimension": 20, "lipschitz": 3.0}


def need(load, batch, spread=2.0):
    psi = 9 * load
    return np.sqrt(5) / np.sqrt(20 * psi), spread / (20 * psi) / batch


def test_convex_rounds_by_hand():
    for load, smoothness in ((1e-8, 40.0), (1e-5, 1e6)):
        shape, sampling = need(load, 7)
        problem = {"diameter": 2.0, "smoothness": smoothness, "load": load, "batch": 7, "spread": 2.0}
        rounds = lr.accelerated_rounds(**problem, **SIZES)
        assert rounds == np.ceil(max(np.sqrt(smoothness * 2.0 * shape), sampling))
        formal = lr.accelerated_rounds(**problem, **SIZES, formal=True)
        assert formal == np.ceil(max(np.sqrt(smoothness * 2.0 * shape), 7 * sampling))


def test_strong_rounds_by_hand():
    problem = {"smoothness": 40.0, "strong_convexity": 0.1, "gap": 6.0, "batch": 7, "load": 1e-6}
    log = np.sqrt(400) * np.log(6.0 * 0.1 * 5 / (20 * 9e-6))
    assert lr.accelerated_strong_rounds(spread=0.0, **problem, **SIZES) == np.ceil(log)
    assert lr.accelerated_strong_rounds(spread=2.0, **problem, **SIZES) == np.ceil(need(1e-6, 7)[1])


def test_nonsmooth_rounds_are_the_smooth_ones_at_the_envelope():
    """Theorem 2.4 is Theorem E.1 at smoothness b with Φ̂² := L²."""
    common = {"batch": 3, "load": 2e-6}
    smoothness = lr.accelerated_envelope_smoothness(diameter=2.0, load=2e-6, **SIZES)
    rounds = lr.accelerated_rounds(smoothness=smoothness * (1 - 1e-9), diameter=2.0, spread=9.0, **common, **SIZES)
    shape = {"per_round": 5.0, "dimension": 20}
    assert lr.nonsmooth_accelerated_rounds(**common, **shape) == rounds
    strong = lr.accelerated_envelope_strong_smoothness(strong_convexity=0.1, load=2e-6, **shape)
    rest = {"strong_convexity": 0.1, "gap": 6.0, **common, **SIZES}
    smooth = lr.accelerated_strong_rounds(smoothness=strong, spread=9.0, **rest)
    assert lr.nonsmooth_accelerated_strong_rounds(**rest) == smooth


def test_informal_nonsmooth_rounds():
    """R = max{√M·εn/√d, ε²n²/(Kd)}, the second only where records are sampled."""
    load = lr.bare_load(records=1000, epsilon=0.5)
    settings = {"per_round": 16, "dimension": 100, "load": load, "batch": 2}
    assert lr.nonsmooth_accelerated_rounds(**settings) == 500**2 / 200
    assert lr.nonsmooth_accelerated_rounds(**settings, sampled=False) == 4 * 500 / 10
    assert lr.nonsmooth_accelerated_rounds(**settings, formal=True) == 500**2 / 100


def test_the_prescribed_rounds_bring_the_rate_to_its_floor():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = {"per_round": rng.uniform(1, 30), "dimension": 20, "lipschitz": 3.0, "load": 10 ** rng.uniform(-7, -3)}
        problem = {"smoothness": 10 ** rng.uniform(0, 3), "batch": int(rng.integers(1, 9)), "spread": 9.0}
        rounds = lr.accelerated_rounds(diameter=2.0, **problem, **sizes)
        floor = lr.empirical_rate(diameter=2.0, **sizes)
        assert floor < lr.accelerated_rate(rounds=rounds, diameter=2.0, **problem, **sizes) <= 3 * floor
        strong = {"strong_convexity": 0.5, "gap": 6.0}
        rounds = lr.accelerated_strong_rounds(**strong, **problem, **sizes)
        floor = lr.empirical_strong_rate(strong_convexity=0.5, **sizes)
        rate = lr.accelerated_strong_rate(rounds=rounds, **strong, **problem, **sizes)
        assert floor < rate <= 3 * floor * (1 + 1e-9)


def test_a_growing_load_is_iterated():
    def load(rounds):
        return lr.privacy_load(records=400, epsilon=1.0, delta=1e-6, rounds=rounds)

    rounds = lr.nonsmooth_accelerated_rounds(per_round=400, dimension=20, load=load, batch=400)
    for some, holds in ((rounds, True), (rounds - 1, False)):
        needed = max(np.sqrt(400 / (20 * load(some))), 1 / (20 * load(some) * 400))
        assert (some >= needed) == holds


def test_refusals():
    with pytest.raises(ValueError, match="load must be positive and finite, got 0"):
        lr.accelerated_envelope_smoothness(diameter=1.0, load=0, **SIZES)
    with pytest.raises(ValueError, match="finite number of rounds, got inf rounds"):
        lr.nonsmooth_accelerated_rounds(per_round=1, dimension=1, load=0.0, batch=1)
    with pytest.raises(ValueError, match=r"strong_convexity must be at most smoothness \(1.0\), got 2.0"):
        lr.accelerated_strong_rounds(
            smoothness=1.0, strong_convexity=2.0, gap=1.0, batch=1, load=1.0, spread=0.0, **SIZES
        )
