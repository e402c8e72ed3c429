"""Exponents of the bounds at the theorems' settings, without the sampling term 6G√α."""

import numpy as np
import pytest

from fedprivjax.theory import tran_cutkosky as tc

CLOSE = 0.05


def momentum(records, dimension, *, form="counted", logs=True, rounds=None, epsilon=1.0):
    """Bound of Theorem 6 without the sampling term 6G√α; `logs=False` divides the other terms by √log₂T."""
    settings = tc.momentum_settings(records=records, epsilon=epsilon, delta=1e-6, dimension=dimension, rounds=rounds)
    sigma = tc.momentum_multiplier(epsilon=epsilon, delta=1e-6, form="paper")
    problem = tc.ProblemConstants(records=records, dimension=dimension, lipschitz=1.0, smoothness=1.0)
    tree = {"rounds": settings.rounds, "alpha": settings.alpha}
    noise = tc.momentum_noise_norm(problem, noise_multiplier=sigma, form=form, **tree)
    bound = tc.momentum_bound(problem, settings, gap=1.0, noise=noise)
    return (bound.total - bound.variance) / (1 if logs else np.sqrt(np.log2(settings.rounds)))


def reduced(records, dimension, *, form="corrected", logs=True, rounds=None, epsilon=1.0):
    """Bound of Theorem 9 without the sampling term 6G√α; `logs=False` divides the noise by its factor log₂N."""
    settings = tc.reduced_settings(records=records, epsilon=epsilon, dimension=dimension, rounds=rounds)
    sigma = tc.momentum_multiplier(algorithm="reduced", epsilon=epsilon, delta=1e-6, form="paper")
    problem = tc.ProblemConstants(records=records, dimension=dimension, lipschitz=1.0, smoothness=1.0)
    noise = tc.reduced_noise_norm(problem, settings, noise_multiplier=sigma, form=form)
    bound = tc.reduced_bound(problem, settings, gap=1.0, noise=noise if logs else noise / np.log2(records))
    return bound.total - bound.variance


def slope(values, bound):
    return np.polyfit(np.log(values), np.log([bound(value) for value in values]), 1)[0]


def decades(low, high):
    return [10**k for k in range(low, high + 1)]


@pytest.mark.parametrize(
    ("bound", "form", "power", "root"),
    [
        (momentum, "counted", -1 / 2, 1 / 4),
        (momentum, "paper", -1 / 2, 1 / 4),
        (reduced, "corrected", -2 / 3, 1 / 3),
        (reduced, "paper", -2 / 3, 1 / 3),
    ],
)
def test_exponents(bound, form, power, root):
    """N is in 10⁵..10⁸ without logarithms and in 10¹⁰..10¹⁶ with them; d is in 1..10⁴ for both."""
    assert slope(decades(5, 8), lambda n: bound(n, 100, form=form, logs=False)) == pytest.approx(power, abs=CLOSE)
    assert slope(decades(10, 16), lambda n: bound(n, 100, form=form)) == pytest.approx(power, abs=CLOSE)
    assert slope(decades(0, 4), lambda d: bound(10**8, d, form=form)) == pytest.approx(root, abs=CLOSE)
    assert slope(decades(0, 4), lambda d: bound(10**8, d, form=form, logs=False)) == pytest.approx(root, abs=CLOSE)
    epsilons = [0.1, 0.3, 1.0, 3.0]
    assert slope(epsilons, lambda e: bound(10**8, 100, form=form, epsilon=e)) == pytest.approx(power, abs=CLOSE)


@pytest.mark.parametrize(
    ("rate", "power", "root"), [(tc.momentum_rate, -1 / 2, 1 / 4), (tc.reduced_rate, -2 / 3, 1 / 3)]
)
def test_rates_have_these_exponents_exactly(rate, power, root):
    settings = {"epsilon": 1.0, "sampling": False}
    assert slope([10, 1000], lambda n: rate(records=n, dimension=10, **settings)) == pytest.approx(power)
    assert slope([10, 1000], lambda d: rate(records=100, dimension=d, **settings)) == pytest.approx(root)
    settings = {"records": 100, "dimension": 10, "epsilon": 1.0}
    assert rate(**settings) == pytest.approx(rate(**settings, sampling=False) + 0.1)


def test_the_better_rate_needs_many_records():
    assert reduced(10**12, 100) > momentum(10**12, 100)
    assert reduced(10**13, 100) < momentum(10**13, 100)


def test_another_t_has_another_exponent():
    """For one epoch, √(N/T) of the optimisation is constant. With T = N², the exponent is above −0.6, not −2/3."""
    values = decades(5, 8)
    assert slope(values, lambda n: momentum(n, 100, rounds=n)) > -0.1
    assert slope(values, lambda n: reduced(n, 100, rounds=n**2, logs=False)) > -0.6


@pytest.mark.parametrize(("bound", "method"), [(momentum, tc.momentum_settings), (reduced, tc.reduced_settings)])
def test_the_theorems_rounds_are_near_the_best(bound, method):
    records, dimension = 10**6, 100
    extra = {"delta": 1e-6} if bound is momentum else {}
    own = method(records=records, epsilon=1.0, dimension=dimension, **extra).rounds
    scan = {own // records * 2**k // 64 * records: None for k in range(13)}
    values = [bound(records, dimension, rounds=rounds) for rounds in scan if rounds >= 4 * records]
    assert min(values) > bound(records, dimension) / 3
    assert max(values) > 2 * bound(records, dimension)
