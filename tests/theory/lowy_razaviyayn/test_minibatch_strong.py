import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

PROBLEM = {"diameter": 2.0, "smoothness": 4.0, "strong_convexity": 0.5}


def test_recursion_bound_is_the_telescoped_sum():
    """b·s̄ = bound − γ_{T−1}·r_T/(ηΓ) for any s, with equality in the recursion."""
    rng = np.random.default_rng(0)
    a, b, c, eta, rounds = 0.3, 2.0, 0.7, 0.4, 25
    s, r = rng.uniform(0, 0.01, rounds), [4.0]
    for value in s:
        r.append((1 - a * eta) * r[-1] - b * eta * value + c * eta**2)
    weights = lr.averaging_weights(rounds=rounds, step=eta, strong_convexity=a)
    bound = lr.recursion_bound(contraction=a, start=4.0, drift=c, rounds=rounds, step=eta)
    assert b * weights @ s == pytest.approx(bound - weights[-1] * r[-1] / eta, rel=1e-10)


def test_stichs_step_attains_the_lemmas_rate():
    """`g·r_0·exp(−aT/g) + (c/(aT))·(1/ln 2 + ln max{2, a²r_0T²/c})`, optimal up to logarithms if c ≤ a²r_0T."""
    rng, ratios = np.random.default_rng(1), []
    for _ in range(300):
        g, start, drift = 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-4, 2)
        a, rounds = g * 10 ** rng.uniform(-4, -0.5), int(rng.integers(1, 5000))
        shape = {"contraction": a, "start": start, "drift": drift, "rounds": rounds}
        step = lr.recursion_step(cap=g, **shape)
        log = np.log(max(2, a**2 * start * rounds**2 / drift))
        rate = g * start * np.exp(-a * rounds / g) + drift / (a * rounds) * (1 / np.log(2) + log)
        bound = lr.recursion_bound(step=step, **shape)
        best = lr.recursion_bound(step=np.geomspace(1e-6, 1, 300) / g, **shape).min()
        assert bound <= rate * (1 + 1e-9)
        if a**2 * start * rounds >= drift:
            ratios.append(bound / best / (1 + log))
    assert len(ratios) > 30
    assert max(ratios) < 3


def test_recursion_step_corners():
    common = {"contraction": 0.1, "cap": 2.0, "rounds": 10}
    assert lr.recursion_step(start=1.0, drift=0.0, **common) == 0.5
    assert lr.recursion_step(start=0.0, drift=0.0, **{**common, "rounds": 10**6}) == pytest.approx(np.log(2) / 1e5)
    found = lr.recursion_step(start=[1.0, 5e4], drift=0.1, **{**common, "rounds": 1000})
    np.testing.assert_allclose(found, np.log([1e5, 5e9]) / 100)


def test_weights():
    weights = lr.averaging_weights(rounds=6, step=0.2, strong_convexity=0.5)
    raw = 0.9 ** -np.arange(1.0, 7.0)
    np.testing.assert_allclose(weights, raw / raw.sum(), rtol=1e-12)
    np.testing.assert_allclose(lr.averaging_weights(rounds=4, step=0.2), 0.25, rtol=1e-12)


def test_weights_do_not_overflow():
    weights = lr.averaging_weights(rounds=100_000, step=0.5, strong_convexity=0.5)
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(weights[-1], 0.25, rtol=1e-12)
    np.testing.assert_allclose(weights[-2] / weights[-1], 0.75, rtol=1e-9)


def test_strong_step_by_hand():
    problem = lr.ProblemConstants(records=9, per_round=4, dimension=5, diameter=2.0, lipschitz=3.0)
    variance = lr.worst_variance(problem, batch=2, noise_std=0.5, clients=0.1)
    drift = 8 * 9 / (4 * 2) + 2 * 0.1 + 5 * 0.25 / 4
    assert lr.strong_drift(variance) == pytest.approx(drift)
    rounds = 1000
    expected = np.log(0.25 * 4 * rounds**2 / drift) / (0.5 * rounds)
    assert expected < 1 / 16
    assert lr.strong_step(rounds=rounds, variance=variance, **PROBLEM) == pytest.approx(expected)
    assert lr.strong_step(rounds=2, variance=variance, **PROBLEM) == 1 / 16


@pytest.mark.parametrize("rounds", [5, 50, 500])
@pytest.mark.parametrize("deviation", [0.0, 0.3, 10.0])
def test_the_bound_holds_on_quadratics(rounds, deviation):
    """On ½‖w − w*‖² with noisy gradients, the weighted mean's exact loss is below the bound at the default step."""
    problem = {"diameter": 5.0, "smoothness": 1.0, "strong_convexity": 1.0}
    variance = lr.Variance(deviation**2 / 2, deviation**2 / 4, deviation**2 / 4)
    step = lr.strong_step(rounds=rounds, variance=variance, **problem)
    weights = lr.averaging_weights(rounds=rounds, step=step, strong_convexity=1.0)
    powers = (1 - step) ** np.arange(rounds)
    reach = [step * weights[s + 1 :] @ powers[: rounds - 1 - s] for s in range(rounds)]
    exact = ((weights @ powers * 5.0) ** 2 + deviation**2 * np.sum(np.square(reach))) / 2
    bound = lr.strong_step_bound(step=step, rounds=rounds, variance=variance, **problem)
    assert 0 < exact <= bound
    assert lr.strong_step_bound(step=step, rounds=rounds, variance=variance, stability=2.0, **problem) == 2 + bound


def test_the_rate_is_attained_up_to_logarithms():
    """The explicit bound at ten times the informal rounds is the rate up to logarithms and a factor 256."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        records, per_round, load = float(rng.integers(10, 2000)), rng.uniform(1, 30), 10 ** rng.uniform(-6, -2)
        sizes = {"records": records, "per_round": per_round, "dimension": 10}
        problem = lr.ProblemConstants(diameter=1.0, lipschitz=1.0, **sizes)
        curved = {"smoothness": 10 ** rng.uniform(0, 1), "strong_convexity": 0.5}
        rounds = 10 * lr.strong_rounds(problem, batch=1, load=load, **curved)
        variance = lr.worst_variance(problem, batch=1, noise_std=np.sqrt(256 * rounds * load))
        run = {"rounds": rounds, "diameter": 1.0, "variance": variance, **curved}
        stability = lr.strong_stability(problem, strong_convexity=0.5)
        bound = lr.strong_step_bound(step=lr.strong_step(**run), stability=stability, **run)
        rate = lr.strong_rate(problem, load=load, strong_convexity=0.5)
        assert rate < bound < 256 * 40 * rate


def test_rounds_by_hand():
    sizes = {"records": 100, "per_round": 3, "dimension": 5, "lipschitz": 2.0}
    settings = {"batch": 4, "load": 1e-3, "strong_convexity": 0.5}
    problem = lr.ProblemConstants(diameter=2.0, **sizes)
    log = 8 * 4 / 0.5 * np.log(4 * 4 * 0.5 * 3 / (5 * 4 * 1e-3))
    assert lr.strong_rounds(problem, smoothness=4.0, **settings) == np.ceil(log)
    assert lr.strong_rounds(problem, smoothness=4.0, formal=True, **settings) == np.ceil(log)
    near = lr.ProblemConstants(diameter=1e-3, **sizes)
    assert lr.strong_rounds(near, smoothness=0.5, **settings) == 100 / 4
    assert lr.strong_rounds(near, smoothness=0.5, formal=True, **settings) == 200


def test_refusals():
    variance = lr.Variance(0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"strong_convexity must be at most smoothness \(4.0\), got 5.0"):
        lr.strong_step(rounds=5, variance=variance, **{**PROBLEM, "strong_convexity": 5.0})
    with pytest.raises(ValueError, match=r"step must be at most 1/\(4·smoothness\) \(0.0625\), got 0.1"):
        lr.strong_step_bound(step=0.1, rounds=5, variance=variance, **PROBLEM)
    with pytest.raises(ValueError, match=r"strong_convexity·step must be below 1, got 1.0"):
        lr.averaging_weights(rounds=5, step=2.0, strong_convexity=0.5)
    problem = lr.ProblemConstants(records=10, per_round=1, dimension=1, diameter=2.0, lipschitz=1.0)
    with pytest.raises(ValueError, match="load must be positive enough for a finite number of rounds, got inf rounds"):
        lr.strong_rounds(problem, batch=1, smoothness=4.0, strong_convexity=0.5, load=0.0, formal=True)
