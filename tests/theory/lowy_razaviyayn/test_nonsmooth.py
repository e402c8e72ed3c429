import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr


def random_setting(rng):
    sizes = {"records": float(rng.integers(2, 2000)), "per_round": rng.uniform(1, 30), "dimension": 10}
    return (
        sizes,
        {"diameter": 10 ** rng.uniform(-1, 1), "lipschitz": 10 ** rng.uniform(-1, 1)},
        10 ** rng.uniform(-6, 0),
    )


def test_the_constant_545_covers_the_envelopes_run():
    """The smooth bound at the envelope's step and rounds plus L²/(2b): 271.5 with L, 542.5 with the paper's 2L."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(200):
        sizes, problem, load = random_setting(rng)
        smoothness = lr.envelope_smoothness(load=load, **sizes, **problem)
        rounds = lr.nonsmooth_rounds(load=load, **sizes)
        step = lr.minibatch_step(rounds=rounds, load=load, smoothness=smoothness, **sizes, **problem)
        shape = {"per_round": sizes["per_round"], "lipschitz": problem["lipschitz"]}
        noise_std = problem["lipschitz"] * np.sqrt(256 * rounds * load)
        variance = lr.worst_variance(batch=1, dimension=10, noise_std=noise_std, **shape)
        stability = lr.uniform_stability(step=step, rounds=rounds, records=sizes["records"], **shape)
        envelope = lr.minibatch_step_bound(
            step=step,
            rounds=rounds,
            diameter=problem["diameter"],
            smoothness=smoothness,
            variance=variance,
            stability=stability,
        )
        bias = problem["lipschitz"] ** 2 / (2 * smoothness)
        worst = max(worst, (envelope + bias) / lr.nonsmooth_bound(load=load, **sizes, **problem))
    assert 0.45 < worst <= 271.5 / 545 * (1 + 1e-9)


def test_rounds_are_enough_for_the_smooth_theorem():
    rng = np.random.default_rng(1)
    for _ in range(50):
        sizes, problem, load = random_setting(rng)
        smoothness = lr.envelope_smoothness(load=load, **sizes, **problem)
        needed = lr.minibatch_rounds(batch=1, load=load, smoothness=smoothness * (1 - 1e-9), **sizes, **problem)
        assert lr.nonsmooth_rounds(load=load, **sizes) == needed


def test_informal_rounds():
    load = lr.bare_load(records=100, epsilon=0.5)
    assert lr.nonsmooth_rounds(records=100, per_round=4, dimension=200, load=load) == 4 * 0.25 * 1e4 / 200
    assert lr.nonsmooth_rounds(records=100, per_round=4, dimension=1, load=load) == 400


def test_strongly_convex_envelope():
    sizes = {"records": 100, "per_round": 4, "dimension": 25}
    smoothness = lr.envelope_strong_smoothness(strong_convexity=0.5, load=1e-3, **sizes)
    assert smoothness == pytest.approx(0.5 * 4 * 40)
    kept = lr.envelope_strong_convexity(strong_convexity=0.5, smoothness=smoothness)
    assert kept == pytest.approx(1 / (1 / 0.5 + 1 / 80))
    rounds = lr.nonsmooth_strong_rounds(strong_convexity=0.5, load=1e-3, diameter=2.0, lipschitz=3.0, **sizes)
    assert rounds == np.ceil(8 * 4 * 40 * np.log(80 * 4 * 0.5 * 4 / (25 * 9 * 1e-3)))
    few = lr.nonsmooth_strong_rounds(
        strong_convexity=0.5, load=1e-3, diameter=1e-3, lipschitz=3.0, **{**sizes, "records": 1}
    )
    assert few == 40


def test_rounds_iterate_a_load_that_grows():
    def load(rounds):
        return lr.privacy_load(records=300, epsilon=1.0, delta=1e-6, rounds=rounds)

    rounds = lr.nonsmooth_rounds(records=300, per_round=9, dimension=10, load=load)
    assert rounds >= 9 / (10 * load(rounds))
    assert rounds - 1 < 9 / (10 * load(rounds - 1))
