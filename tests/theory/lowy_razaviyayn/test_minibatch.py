import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

PROBLEM = {"diameter": 2.0, "lipschitz": 3.0, "smoothness": 0.7}
SIZES = {"records": 200, "per_round": 5.0, "dimension": 10}


def random_setting(rng):
    problem = {
        "diameter": 10 ** rng.uniform(-1, 1),
        "lipschitz": 10 ** rng.uniform(-1, 1),
        "smoothness": 10 ** rng.uniform(-3, 1),
    }
    sizes = {"records": float(rng.integers(2, 5000)), "per_round": rng.uniform(1, 50), "dimension": 10}
    return problem, sizes, 10 ** rng.uniform(-7, 0)


def bound_at_the_theorems_step(problem, sizes, load, rounds, batch):
    step = lr.minibatch_step(rounds=rounds, load=load, **problem, **sizes)
    noise_std = problem["lipschitz"] * np.sqrt(256 * rounds * load)
    shape = {"per_round": sizes["per_round"], "lipschitz": problem["lipschitz"]}
    variance = lr.worst_variance(batch=batch, dimension=10, noise_std=noise_std, **shape)
    stability = lr.uniform_stability(step=step, rounds=rounds, records=sizes["records"], **shape)
    return lr.minibatch_step_bound(
        step=step,
        rounds=rounds,
        diameter=problem["diameter"],
        smoothness=problem["smoothness"],
        variance=variance,
        stability=stability,
    )


def closed_form(problem, sizes, load):
    return lr.minibatch_bound(diameter=problem["diameter"], lipschitz=problem["lipschitz"], load=load, **sizes)


def test_the_constant_272_covers_271():
    """2 + 256 + 8 + 1 + 4 = 271, at the theorem's step, for its rounds and for more; noise alone comes near it."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(300):
        problem, sizes, load = random_setting(rng)
        batch = int(rng.integers(1, 20))
        least = lr.minibatch_rounds(batch=batch, load=load, **problem, **sizes)
        for rounds in (least, 7 * least):
            found = bound_at_the_theorems_step(problem, sizes, load, rounds, batch)
            worst = max(worst, found / closed_form(problem, sizes, load))
    assert 0.9 < worst <= 271 / 272 * (1 + 1e-9)


def test_fewer_rounds_break_the_bound():
    problem, sizes = {**PROBLEM, "smoothness": 1e6}, {**SIZES, "per_round": 50.0}
    least = lr.minibatch_rounds(batch=1, load=1e-6, **problem, **sizes)
    assert bound_at_the_theorems_step(problem, sizes, 1e-6, least, 1) <= closed_form(problem, sizes, 1e-6)
    assert bound_at_the_theorems_step(problem, sizes, 1e-6, least // 300, 1) > closed_form(problem, sizes, 1e-6)


def test_rounds_are_the_least_that_meet_a_load_that_grows():
    def load(rounds):
        return lr.privacy_load(records=200, epsilon=1.0, delta=1e-6, rounds=rounds)

    def need(rounds):
        p = min(200, 1 / (10 * load(rounds)))
        return max(400 * 2.0 * np.sqrt(5) / 3.0 * np.sqrt(p), p / 8)

    rounds = lr.minibatch_rounds(batch=8, load=load, **{**PROBLEM, "smoothness": 400.0}, **SIZES)
    assert rounds > 100
    assert rounds >= need(rounds)
    assert rounds - 1 < need(rounds - 1)


def test_informal_rounds():
    """R = max{(βD√M/L)·min{√n, εn/√d}, min{n, ε²n²/d}/K}."""
    epsilon, load = 0.3, lr.bare_load(records=200, epsilon=0.3)
    for batch, smoothness in ((1, 1e-4), (50, 30.0)):
        rounds = lr.minibatch_rounds(batch=batch, load=load, **{**PROBLEM, "smoothness": smoothness}, **SIZES)
        first = smoothness * 2.0 * np.sqrt(5) / 3.0 * min(np.sqrt(200), epsilon * 200 / np.sqrt(10))
        assert rounds == np.ceil(max(first, min(200, (epsilon * 200) ** 2 / 10) / batch))


def test_step_by_hand():
    common = {"rounds": 30, **PROBLEM, "smoothness": 0.1, **SIZES}
    assert lr.minibatch_step(load=1e-6, **common) == pytest.approx(2 * np.sqrt(5) / (3 * 30) * np.sqrt(200))
    assert lr.minibatch_step(load=1.0, **common) == pytest.approx(2 * np.sqrt(5) / (3 * 30) / np.sqrt(10))
    cap = lr.minibatch_step(load=0.0, **{**common, "smoothness": 100.0})
    assert cap == 1 / 400
    free = {**common, "smoothness": 0.0}
    np.testing.assert_allclose(lr.minibatch_step(load=[0.0, 1.0], **free)[0], 2 * np.sqrt(5 * 200) / (3 * 30))


def test_the_step_is_near_the_best_of_its_bound():
    rounds, load = 50, 0.01
    noise_std = 3.0 * np.sqrt(256 * rounds * load)
    variance = lr.worst_variance(lipschitz=3.0, batch=1, per_round=5.0, dimension=10, noise_std=noise_std)

    def bound(step):
        settings = {"rounds": rounds, "records": 200, "per_round": 5.0, "lipschitz": 3.0}
        stability = lr.uniform_stability(step=step, **settings)
        return lr.minibatch_step_bound(
            step=step, rounds=rounds, diameter=2.0, smoothness=0.01, variance=variance, stability=stability
        )

    step = lr.minibatch_step(rounds=rounds, load=load, **{**PROBLEM, "smoothness": 0.01}, **SIZES)
    best = bound(np.geomspace(1e-5, 25, 400)).min()
    assert best < bound(step) < 10 * best


def quadratic_average(rounds, step, start, variance):
    """E½‖mean iterate − w*‖² of w ← w − η(w − w* + noise) from w* + start, exactly."""
    powers = (1 - step) ** np.arange(rounds)
    bias = powers.mean() * start
    reach = np.array([step * powers[: rounds - 1 - s].sum() / rounds for s in range(rounds)])
    return (bias**2 + variance * np.sum(reach**2)) / 2


@pytest.mark.parametrize("step", [0.01, 0.1, 0.25])
@pytest.mark.parametrize("deviation", [0.0, 1.0, 20.0])
def test_the_empirical_bound_holds_on_quadratics(step, deviation):
    """Means of ½‖w − x‖²: β = 1 and the exact loss of the average iterate is known."""
    variance = lr.Variance(deviation**2 / 2, deviation**2 / 4, deviation**2 / 4)
    bound = lr.minibatch_step_bound(step=step, rounds=60, diameter=5.0, smoothness=1.0, variance=variance)
    assert 0 < quadratic_average(60, step, 5.0, variance.total) <= bound


def test_stability():
    settings = {"records": 100, "per_round": 4, "lipschitz": 3.0}
    assert lr.uniform_stability(step=0.1, rounds=50, **settings) == pytest.approx(2 * 9 * 50 * 0.1 / 400)
    assert lr.strong_stability(strong_convexity=0.5, **settings) == pytest.approx(4 * 9 / (0.5 * 399))
    with pytest.raises(ValueError, match=r"records·per_round must be above 1, got 1"):
        lr.strong_stability(records=1, per_round=1, lipschitz=1.0, strong_convexity=1.0)


def test_refusals():
    variance = lr.Variance(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"step must be at most 1/\(4·smoothness\) \(0.25\), got 0.3"):
        lr.minibatch_step_bound(step=0.3, rounds=5, diameter=1.0, smoothness=1.0, variance=variance)
    with pytest.raises(ValueError, match="lipschitz must be positive and finite, got 0"):
        lr.minibatch_step(rounds=5, load=0.1, **{**PROBLEM, "lipschitz": 0}, **SIZES)
    with pytest.raises(ValueError, match=r"per_round must be at least 1 and finite, got 0.5"):
        lr.minibatch_bound(diameter=1.0, lipschitz=1.0, load=0.1, **{**SIZES, "per_round": 0.5})
    with pytest.raises(ValueError, match="load must be at least 0 and finite, got nan"):
        lr.minibatch_rounds(batch=1, load=lambda rounds: np.nan, **PROBLEM, **SIZES)
