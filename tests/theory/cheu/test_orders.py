"""Orders of the theorems: their exponents equal Table 1, and the paper's parameters attain them."""

from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.theory import cheu

CONSTANTS = {"users": 1e5, "dimension": 10.0, "diameter": 3.0, "lipschitz": 2.0}
TARGET = {"epsilon": 1.0, "delta": 1e-6}
CURVATURES = {"smoothness": 5.0, "strong_convexity": 0.5}
NEEDS = {
    "convex": (cheu.convex_rate, ()),
    "smooth": (cheu.smooth_rate, ("smoothness",)),
    "strong": (cheu.strong_rate, ("strong_convexity",)),
    "strong-smooth": (cheu.strong_smooth_rate, ("smoothness", "strong_convexity")),
}
FULL = {"convex": (cheu.full_rate, ()), "strong": (cheu.full_strong_rate, ("strong_convexity",))}


def settings_of(needs):
    return CONSTANTS | TARGET | {name: CURVATURES[name] for name in needs}


def value(rate, settings, **options):
    known = {name: number for name, number in settings.items() if name not in CURVATURES}
    return rate(
        cheu.ProblemConstants(**known, **options), **{name: settings[name] for name in settings if name not in known}
    )


def exponent(rate, name, settings, **options):
    values = [value(rate, {**settings, name: settings[name] * factor}, **options) for factor in (1, 2)]
    return np.log2(values[1] / values[0])


@pytest.mark.parametrize(
    ("loss", "interaction", "rate", "needs"),
    [(loss, "sequential", *entry) for loss, entry in NEEDS.items()]
    + [(loss, "full", *entry) for loss, entry in FULL.items()],
)
def test_table_1(loss, interaction, rate, needs):
    settings = settings_of(needs)
    expected = cheu.TABLE_1[loss, interaction]
    assert exponent(rate, "users", settings, sampling=False) == pytest.approx(expected.users)
    assert exponent(rate, "epsilon", settings, sampling=False) == pytest.approx(expected.epsilon)
    with_log = exponent(rate, "dimension", settings, sampling=False)
    assert 0 <= with_log - expected.dimension < 0.2
    if interaction == "sequential":
        private = exponent(rate, "dimension", settings, sampling=False, trust="pan-private")
        assert private == pytest.approx(expected.dimension)


@pytest.mark.parametrize("loss", NEEDS)
def test_units(loss):
    """The rate scales with the units of the loss, and does not depend on the units of the parameters."""
    rate, needs = NEEDS[loss]
    settings = settings_of(needs)
    units = {"diameter": 0, "lipschitz": 1, "smoothness": 1, "strong_convexity": 1}
    scaled = {name: number * 7 ** units.get(name, 0) for name, number in settings.items()}
    assert value(rate, scaled) == pytest.approx(7 * value(rate, settings))
    powers = {"diameter": 1, "lipschitz": -1, "smoothness": -2, "strong_convexity": -2}
    moved = {name: number * 7.0 ** powers.get(name, 0) for name, number in settings.items()}
    assert value(rate, moved) == pytest.approx(value(rate, settings))


def test_rates_by_hand():
    noise = np.sqrt(10) * np.log(1e7) / 1e5
    problem = cheu.ProblemConstants(**CONSTANTS, **TARGET)
    assert cheu.sgd_rate(problem) == pytest.approx(6 * np.sqrt(noise))
    assert cheu.convex_rate(problem) == pytest.approx(6 * (1e5**-0.5 + noise ** (2 / 3)))
    problem = replace(problem, sampling=False)
    private = 10**0.4 * 5**0.2 * 3**1.2 * 2**0.8 * np.log(1e7) ** 0.8 / 1e5**0.8
    assert cheu.smooth_rate(problem, smoothness=5.0) == pytest.approx(private)
    strong = 10 * 5**0.5 * 4 * np.log(1e7) ** 2 / (0.5**1.5 * 1e5**2)
    assert cheu.strong_smooth_rate(problem, **CURVATURES) == pytest.approx(strong)
    pan = 10 * 5**0.5 * 4 * np.log(1e6) / (0.5**1.5 * 1e5**2)
    found = cheu.strong_smooth_rate(replace(problem, trust="pan-private"), **CURVATURES)
    assert found == pytest.approx(pan)
    full = 6 * np.sqrt(10) * np.log(1e7) ** 1.5 / 1e5
    assert cheu.full_rate(problem) == pytest.approx(full)


def test_constants_are_checked():
    with pytest.raises(Refusal, match="unknown trust 'shuffle', did you mean 'shuffler'"):
        cheu.ProblemConstants(trust="shuffle", **CONSTANTS, **TARGET)
    with pytest.raises(Refusal, match="sampling must be true or false"):
        cheu.ProblemConstants(sampling=0.5, **CONSTANTS, **TARGET)
    with pytest.raises(Refusal, match="delta must be between 0 and 1"):
        cheu.ProblemConstants(**CONSTANTS, epsilon=1.0, delta=1.0)
    with pytest.raises(Refusal, match="trust must be 'shuffler' for all users in every round, got 'pan-private'"):
        cheu.full_rate(cheu.ProblemConstants(trust="pan-private", **CONSTANTS, **TARGET))


@pytest.mark.parametrize("trust", ["shuffler", "pan-private"])
def test_the_papers_parameters_balance_its_orders(trust):
    """With the paper's b and β, βD²/T² + σD/√T + L²/β has the order of the theorem."""
    problem = cheu.ProblemConstants(**CONSTANTS, **TARGET, trust=trust, sampling=False)
    log = np.log(1e7) if trust == "shuffler" else np.sqrt(np.log(1e6))

    def excess(b, beta):
        rounds = 1e5 / b
        return beta * 9 / rounds**2 + np.sqrt(10) * 2 * log / b * 3 / np.sqrt(rounds)

    batch = cheu.agd_per_round_order(problem, smoothness=5.0)
    assert excess(batch, 5.0) == pytest.approx(2 * cheu.smooth_rate(problem, smoothness=5.0))
    beta = cheu.smoothed_smoothness_order(problem)
    batch = cheu.agd_per_round_order(problem, smoothness=beta)
    assert batch == pytest.approx(cheu.smoothed_per_round_order(problem))
    rate = cheu.convex_rate(problem)
    assert excess(batch, beta) == pytest.approx(2 * rate)
    assert 4 / beta == pytest.approx(rate)


def test_costs():
    sums = {"dimension": 784, "levels": 490, "trials": 113}
    assert cheu.messages_per_user(**sums) == 784 * 603
    assert cheu.bits_per_user(**sums) == 784 * 603 * 11
    assert cheu.bits_per_user(labelled=False, **sums) == 784 * 603
    assert cheu.bits_per_user(dimension=1, levels=9, trials=1) == 10
    assert cheu.messages_per_user(sums=3, **sums) == 3 * 784 * 603


def test_cost_orders():
    """The corrected order grows like the trials per user in the paper; the printed order grows more slowly in d/δ."""
    ratios = {True: [], False: []}
    for delta in (1e-3, 1e-9, 1e-27):
        log, doubled = np.log(11 / delta), np.log(2 * 11 / delta)
        bits = 10 * (2 * np.sqrt(1000) + 4 * 180 * 324 * log * doubled)
        for printed in (True, False):
            settings = {"summed": 1000, "dimension": 10, "epsilon": 1.0, "delta": delta, "printed": printed}
            ratios[printed].append(bits / cheu.bits_rate(**settings))
    assert max(ratios[False]) / min(ratios[False]) < 1.3
    assert max(ratios[True]) / min(ratios[True]) > 4


def test_cost_order_of_many_sums():
    """Each of T sums that share a budget costs as much as a single sum at the paper's ε_r."""
    share, _ = cheu.gd_paper_budget(epsilon=1.0, delta=1e-6, rounds=30)
    single = cheu.bits_rate(summed=1000, dimension=10, epsilon=share, delta=1e-6)
    assert cheu.bits_rate(summed=1000, dimension=10, epsilon=1.0, delta=1e-6, rounds=30) == pytest.approx(30 * single)
