"""Theorems 4, 8 and 10: inverse conversions; the paper's σ suffices up to the stated ε and not beyond."""

from functools import partial

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.privacy import gdp
from fedprivjax.theory import tran_cutkosky as tc

FUNCTIONS = tc.momentum_epsilon, tc.momentum_multiplier, tc.momentum_max_epsilon
METHODS = {
    name: (*(partial(function, algorithm=name) for function in FUNCTIONS), groups)
    for name, groups in (("tree", 1), ("reduced", 3))
}
FORMS = ("exact", "renyi", "paper")
DELTAS = np.array([1e-2, 1e-5, 1e-12])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["exact", "renyi"])
def test_epsilon_and_multiplier_are_inverse(method, form):
    epsilon, multiplier, _, groups = METHODS[method]
    targets = np.array([0.1, 1.0, 30.0])[:, None]
    sigma = multiplier(epsilon=targets, delta=DELTAS, form=form)
    assert epsilon(noise_multiplier=sigma, delta=DELTAS, form=form) == pytest.approx(targets + 0 * DELTAS, rel=1e-6)
    assert (np.diff(sigma, axis=0) < 0).all()
    assert (np.diff(sigma, axis=1) > 0).all()
    if form == "renyi":
        log = np.log(1 / DELTAS)
        zcdp = groups / (2 * sigma**2)
        assert zcdp + 2 * np.sqrt(zcdp * log) == pytest.approx(targets + 0 * log)
        printed = np.sqrt(groups) / (np.sqrt(2 * log + 2 * targets) - np.sqrt(2 * log))
        assert sigma == pytest.approx(printed, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_paper_multiplier_is_enough_up_to_the_limit_and_not_beyond(method):
    epsilon, multiplier, most, groups = METHODS[method]
    factor, limit = {1: 2.0, 3: 4.0}[groups], most(DELTAS)
    assert limit / np.log(1 / DELTAS) == pytest.approx({1: 2.3431, 3: 4.1347}[groups], abs=1e-4)
    for part in (0.01, 0.5, 1.0):
        sigma = multiplier(epsilon=part * limit, delta=DELTAS, form="paper")
        assert (epsilon(noise_multiplier=sigma, delta=DELTAS, form="renyi") <= part * limit * (1 + 1e-9)).all()
        assert (epsilon(noise_multiplier=sigma, delta=DELTAS) < part * limit).all()
    beyond = 1.001 * limit
    sigma = factor * np.sqrt(np.log(1 / DELTAS)) / beyond
    assert (epsilon(noise_multiplier=sigma, delta=DELTAS, form="renyi") > beyond).all()
    with pytest.raises(Refusal, match="epsilon must be at most"):
        multiplier(epsilon=beyond, delta=DELTAS, form="paper")


@pytest.mark.parametrize("method", METHODS)
def test_the_condition_the_wrong_way_round_is_false_even_exactly(method):
    """δ ≥ exp(−ε) holds at ε = 12·log(1/δ), where the paper's σ gives almost no privacy."""
    groups = METHODS[method][3]
    epsilon, factor = 12 * np.log(1e5), {1: 2.0, 3: 4.0}[groups]
    sigma = factor * np.sqrt(np.log(1e5)) / epsilon
    assert gdp.delta(epsilon, np.sqrt(groups) / sigma) > 1e-2


def test_composition():
    """zCDP of V sets, order of the three ε, and the paper's condition at ρ√V = 2(2 − √2)·√log(1/δ)."""
    settings = {"nodes": 7, "delta": 1e-5}
    assert tc.composition_zcdp(nodes=7, ratio=0.3) == pytest.approx(sum([gdp.zcdp(0.3)] * 7))
    most = 2 * (2 - np.sqrt(2)) * np.sqrt(np.log(1e5) / 7)
    for ratio in (0.01, 0.5 * most, most):
        exact, renyi, paper = (tc.composition_epsilon(ratio=ratio, form=f, **settings) for f in FORMS)
        assert exact < renyi <= paper * (1 + 1e-9)
    assert renyi == pytest.approx(paper)
    with pytest.raises(Refusal, match="ratio must be at most"):
        tc.composition_epsilon(ratio=1.001 * most, form="paper", **settings)


def test_composition_is_theorem_4():
    """ρ = 1/(σ√V) gives `1/(2σ²)`-zCDP."""
    ratio = 1 / (2.0 * np.sqrt(39))
    assert tc.composition_zcdp(nodes=39, ratio=ratio) == pytest.approx(1 / 8)
    assert tc.composition_epsilon(nodes=39, ratio=ratio, delta=1e-6) == pytest.approx(
        tc.momentum_epsilon(noise_multiplier=2.0, delta=1e-6)
    )
