import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

CONSTANTS = {"records": 200, "per_round": 5.0, "dimension": 10, "diameter": 2.0, "lipschitz": 3.0}
PROBLEM = lr.ProblemConstants(**CONSTANTS)


def random_setting(rng):
    reaches = {"diameter": 10 ** rng.uniform(-1, 1), "lipschitz": 10 ** rng.uniform(-1, 1)}
    smoothness = 10 ** rng.uniform(-3, 1)
    sizes = {"records": float(rng.integers(2, 5000)), "per_round": rng.uniform(1, 50), "dimension": 10}
    return lr.ProblemConstants(**reaches, **sizes), smoothness, 10 ** rng.uniform(-7, 0)


def bound_at_the_theorems_step(problem, smoothness, load, rounds, batch):
    step = lr.minibatch_step(problem, rounds=rounds, smoothness=smoothness, load=load)
    noise_std = problem.lipschitz * np.sqrt(256 * rounds * load)
    return lr.minibatch_step_bound(
        step=step,
        rounds=rounds,
        diameter=problem.diameter,
        smoothness=smoothness,
        variance=lr.worst_variance(problem, batch=batch, noise_std=noise_std),
        stability=lr.uniform_stability(problem, step=step, rounds=rounds),
    )


def test_the_constant_272_covers_271():
    """The constant is 2 + 256 + 8 + 1 + 4 = 271 at the theorem's step, for its rounds or more. Noise comes close."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(300):
        problem, smoothness, load = random_setting(rng)
        batch = int(rng.integers(1, 20))
        least = lr.minibatch_rounds(problem, batch=batch, smoothness=smoothness, load=load)
        for rounds in (least, 7 * least):
            found = bound_at_the_theorems_step(problem, smoothness, load, rounds, batch)
            worst = max(worst, found / lr.minibatch_bound(problem, load=load))
    assert 0.9 < worst <= 271 / 272 * (1 + 1e-9)


def test_fewer_rounds_break_the_bound():
    problem = lr.ProblemConstants(**{**CONSTANTS, "per_round": 50.0})
    least = lr.minibatch_rounds(problem, batch=1, smoothness=1e6, load=1e-6)
    closed_form = lr.minibatch_bound(problem, load=1e-6)
    assert bound_at_the_theorems_step(problem, 1e6, 1e-6, least, 1) <= closed_form
    assert bound_at_the_theorems_step(problem, 1e6, 1e-6, least // 300, 1) > closed_form


def test_rounds_are_the_least_that_meet_a_load_that_grows():
    def load(rounds):
        return lr.privacy_load(records=200, epsilon=1.0, delta=1e-6, rounds=rounds)

    def need(rounds):
        p = min(200, 1 / (10 * load(rounds)))
        return max(400 * 2.0 * np.sqrt(5) / 3.0 * np.sqrt(p), p / 8)

    rounds = lr.minibatch_rounds(PROBLEM, batch=8, smoothness=400.0, load=load)
    assert rounds > 100
    assert rounds >= need(rounds)
    assert rounds - 1 < need(rounds - 1)


def test_informal_rounds():
    """R = max{(βD√M/L)·min{√n, εn/√d}, min{n, ε²n²/d}/K}."""
    epsilon, load = 0.3, lr.bare_load(records=200, epsilon=0.3)
    for batch, smoothness in ((1, 1e-4), (50, 30.0)):
        rounds = lr.minibatch_rounds(PROBLEM, batch=batch, smoothness=smoothness, load=load)
        first = smoothness * 2.0 * np.sqrt(5) / 3.0 * min(np.sqrt(200), epsilon * 200 / np.sqrt(10))
        assert rounds == np.ceil(max(first, min(200, (epsilon * 200) ** 2 / 10) / batch))


def test_step_by_hand():
    def step(load, smoothness=0.1):
        return lr.minibatch_step(PROBLEM, rounds=30, smoothness=smoothness, load=load)

    assert step(1e-6) == pytest.approx(2 * np.sqrt(5) / (3 * 30) * np.sqrt(200))
    assert step(1.0) == pytest.approx(2 * np.sqrt(5) / (3 * 30) / np.sqrt(10))
    assert step(0.0, smoothness=100.0) == 1 / 400
    np.testing.assert_allclose(step([0.0, 1.0], smoothness=0.0)[0], 2 * np.sqrt(5 * 200) / (3 * 30))


def test_constants_may_be_arrays():
    problem = lr.ProblemConstants(**{**CONSTANTS, "records": [50, 200], "lipschitz": [3.0, 6.0]})
    found = lr.minibatch_step(problem, rounds=30, smoothness=0.0, load=0.0)
    np.testing.assert_allclose(found, 2 * np.sqrt(5) / 30 * np.sqrt([50, 200]) / [3, 6])
    with pytest.raises(ValueError, match=r"records must be a single number, got shape \(2,\)"):
        lr.minibatch_rounds(problem, batch=1, smoothness=1.0, load=1.0)


def test_the_step_is_near_the_best_of_its_bound():
    rounds, load = 50, 0.01
    noise_std = 3.0 * np.sqrt(256 * rounds * load)
    variance = lr.worst_variance(PROBLEM, batch=1, noise_std=noise_std)

    def bound(step):
        stability = lr.uniform_stability(PROBLEM, step=step, rounds=rounds)
        return lr.minibatch_step_bound(
            step=step, rounds=rounds, diameter=2.0, smoothness=0.01, variance=variance, stability=stability
        )

    step = lr.minibatch_step(PROBLEM, rounds=rounds, smoothness=0.01, load=load)
    best = bound(np.geomspace(1e-5, 25, 400)).min()
    assert best < bound(step) < 10 * best


def quadratic_average(rounds, step, start, variance):
    """Exact E½‖mean iterate − w*‖² of w ← w − η(w − w* + noise), started at w* + start."""
    powers = (1 - step) ** np.arange(rounds)
    bias = powers.mean() * start
    reach = np.array([step * powers[: rounds - 1 - s].sum() / rounds for s in range(rounds)])
    return (bias**2 + variance * np.sum(reach**2)) / 2


@pytest.mark.parametrize("step", [0.01, 0.1, 0.25])
@pytest.mark.parametrize("deviation", [0.0, 1.0, 20.0])
def test_the_empirical_bound_holds_on_quadratics(step, deviation):
    """For means of ½‖w − x‖², β = 1 and the exact loss of the average iterate is known."""
    variance = lr.Variance(deviation**2 / 2, deviation**2 / 4, deviation**2 / 4)
    bound = lr.minibatch_step_bound(step=step, rounds=60, diameter=5.0, smoothness=1.0, variance=variance)
    assert 0 < quadratic_average(60, step, 5.0, variance.total) <= bound


def test_stability():
    problem = lr.ProblemConstants(**{**CONSTANTS, "records": 100, "per_round": 4})
    assert lr.uniform_stability(problem, step=0.1, rounds=50) == pytest.approx(2 * 9 * 50 * 0.1 / 400)
    assert lr.strong_stability(problem, strong_convexity=0.5) == pytest.approx(4 * 9 / (0.5 * 399))
    lonely = lr.ProblemConstants(**{**CONSTANTS, "records": 1, "per_round": 1})
    with pytest.raises(ValueError, match=r"records·per_round must be above 1, got 1"):
        lr.strong_stability(lonely, strong_convexity=1.0)


def test_refusals():
    variance = lr.Variance(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"step must be at most 1/\(4·smoothness\) \(0.25\), got 0.3"):
        lr.minibatch_step_bound(step=0.3, rounds=5, diameter=1.0, smoothness=1.0, variance=variance)
    with pytest.raises(ValueError, match="lipschitz must be positive and finite, got 0"):
        lr.ProblemConstants(**{**CONSTANTS, "lipschitz": 0})
    with pytest.raises(ValueError, match=r"per_round must be at least 1 and finite, got 0.5"):
        lr.ProblemConstants(**{**CONSTANTS, "per_round": 0.5})
    with pytest.raises(ValueError, match="dimension must be at least 1, got 0"):
        lr.ProblemConstants(**{**CONSTANTS, "dimension": 0})
    with pytest.raises(ValueError, match="load must be at least 0 and finite, got nan"):
        lr.minibatch_rounds(PROBLEM, batch=1, smoothness=0.7, load=lambda rounds: np.nan)
