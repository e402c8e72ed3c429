import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr


def random_setting(rng):
    sizes = {"records": float(rng.integers(2, 2000)), "per_round": rng.uniform(1, 30), "dimension": 10}
    reaches = {"diameter": 10 ** rng.uniform(-1, 1), "lipschitz": 10 ** rng.uniform(-1, 1)}
    return lr.ProblemConstants(**sizes, **reaches), 10 ** rng.uniform(-6, 0)


def test_the_constant_545_covers_the_envelopes_run():
    """The smooth bound for the envelope plus L²/(2b) has the constant 271.5 with L, and 542.5 with the paper's 2L."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(200):
        problem, load = random_setting(rng)
        smoothness = lr.envelope_smoothness(problem, load=load)
        rounds = lr.nonsmooth_rounds(problem, load=load)
        step = lr.minibatch_step(problem, rounds=rounds, smoothness=smoothness, load=load)
        noise_std = problem.lipschitz * np.sqrt(256 * rounds * load)
        envelope = lr.minibatch_step_bound(
            step=step,
            rounds=rounds,
            diameter=problem.diameter,
            smoothness=smoothness,
            variance=lr.worst_variance(problem, batch=1, noise_std=noise_std),
            stability=lr.uniform_stability(problem, step=step, rounds=rounds),
        )
        bias = problem.lipschitz**2 / (2 * smoothness)
        worst = max(worst, (envelope + bias) / lr.nonsmooth_bound(problem, load=load))
    assert 0.45 < worst <= 271.5 / 545 * (1 + 1e-9)


def test_rounds_are_enough_for_the_smooth_theorem():
    rng = np.random.default_rng(1)
    for _ in range(50):
        problem, load = random_setting(rng)
        smoothness = lr.envelope_smoothness(problem, load=load)
        needed = lr.minibatch_rounds(problem, batch=1, smoothness=smoothness * (1 - 1e-9), load=load)
        assert lr.nonsmooth_rounds(problem, load=load) == needed


def test_informal_rounds():
    load = lr.bare_load(records=100, epsilon=0.5)
    for dimension, rounds in ((200, 4 * 0.25 * 1e4 / 200), (1, 400)):
        sizes = {"records": 100, "per_round": 4, "dimension": dimension}
        problem = lr.ProblemConstants(diameter=1.0, lipschitz=1.0, **sizes)
        assert lr.nonsmooth_rounds(problem, load=load) == rounds


def test_strongly_convex_envelope():
    sizes, curved = {"per_round": 4, "dimension": 25}, {"strong_convexity": 0.5, "load": 1e-3}
    problem = lr.ProblemConstants(records=100, diameter=2.0, lipschitz=3.0, **sizes)
    smoothness = lr.envelope_strong_smoothness(problem, **curved)
    assert smoothness == pytest.approx(0.5 * 4 * 40)
    kept = lr.envelope_strong_convexity(strong_convexity=0.5, smoothness=smoothness)
    assert kept == pytest.approx(1 / (1 / 0.5 + 1 / 80))
    rounds = lr.nonsmooth_strong_rounds(problem, **curved)
    assert rounds == np.ceil(8 * 4 * 40 * np.log(80 * 4 * 0.5 * 4 / (25 * 9 * 1e-3)))
    near = lr.ProblemConstants(records=1, diameter=1e-3, lipschitz=3.0, **sizes)
    assert lr.nonsmooth_strong_rounds(near, **curved) == 40


def test_rounds_iterate_a_load_that_grows():
    def load(rounds):
        return lr.privacy_load(records=300, epsilon=1.0, delta=1e-6, rounds=rounds)

    problem = lr.ProblemConstants(records=300, per_round=9, dimension=10, diameter=1.0, lipschitz=1.0)
    rounds = lr.nonsmooth_rounds(problem, load=load)
    assert rounds >= 9 / (10 * load(rounds))
    assert rounds - 1 < 9 / (10 * load(rounds - 1))
