"""Lemmas 7 and 12: noise in the momentum, compared with the exact variance and the printed constants."""

import numpy as np
import pytest
from oracles.reduced_momentum import dyadic

from fedprivjax.theory import tran_cutkosky as tc


def test_the_noise_is_at_most_what_the_appendix_makes_of_it():
    """Theorem 6's noise is 48αG·log₂T·√(dT·log(1/δ))/(ε√N), not 12…; with counted V in cyclic order it is less."""
    for records, epochs in ((64, 7), (1000, 30), (60_000, 18)):
        problem = tc.ProblemConstants(records=records, dimension=9, lipschitz=2.0, smoothness=1.0)
        sigma = tc.momentum_multiplier(epsilon=1.0, delta=1e-6, form="paper")
        settings = {"rounds": records * epochs, "alpha": 1 / records, "noise_multiplier": sigma}
        paper = tc.momentum_noise_norm(problem, form="paper", **settings)
        rounds, log = records * epochs, np.log(1e6)
        assert 3 * paper == pytest.approx(
            48 / records * 2 * np.log2(rounds) * np.sqrt(9 * rounds * log) / np.sqrt(records)
        )
        cyclic, reshuffled = (tc.momentum_noise_norm(problem, order=o, **settings) for o in ("cyclic", "reshuffled"))
        assert 12 / 48 * paper < cyclic < paper
        assert cyclic < reshuffled < 1.7 * cyclic


def exact_reduced_variance(records, rounds, alpha, gamma, stds):
    """Largest noise variance of Lemma 17 over rounds, per coordinate and over α², by the nodes' coefficients."""
    early, late, differences, residuals = stds
    keep, epoch, most = 1 - alpha, (1 - alpha) ** records, 0.0

    def block(low, high, first, rest):
        return sum(keep ** (2 * (high - z)) * (first if z <= 2 * records else rest) ** 2 for _, z in dyadic(low, high))

    for t in range(1, rounds + 1):
        q, r = divmod(t, records)
        total = epoch ** (2 * q) * block(1, r, early, late) + block(1, t, residuals, residuals)
        if q:
            total += sum(epoch**i * (1 - gamma) ** (q - 1 - i) for i in range(q)) ** 2 * block(
                r + 1, r + records, early, late
            )
        for i in range(1, q):
            weight = sum((1 - gamma) ** j * epoch ** (i - 1 - j) for j in range(i)) ** 2
            span = (t - i * records + 1, t - (i - 1) * records)
            total += weight * (
                gamma**2 * block(*span, early, late) + (1 - gamma) ** 2 * block(*span, differences, differences)
            )
        most = max(most, total)
    return most


@pytest.mark.parametrize("form", ["corrected", "paper"])
def test_lemma_7_covers_the_noise(form):
    """The bound covers the exact variance of every round by a small factor, also at α = 1/N."""
    records, rounds = 8, 8 * 16
    settings = tc.reduced_settings(records=records, epsilon=0.1, dimension=1, rounds=rounds, form=form)
    problem = tc.ProblemConstants(records=records, dimension=1, lipschitz=1.0, smoothness=0.5)
    delta = tc.reduced_sensitivities(problem, step_size=settings.step_size, form="corrected")
    early, late = np.sqrt(tc.reduced_node_counts(records=records, rounds=rounds))
    stds = (early * delta.anchors, late * delta.anchors, late * delta.differences, late * delta.residuals)
    exact = exact_reduced_variance(records, rounds, settings.alpha, settings.reset_rate, stds)
    bound = tc.reduced_noise_norm(problem, settings, noise_multiplier=1.0)
    assert 0.3 < settings.alpha * np.sqrt(exact) / bound <= 1


@pytest.mark.parametrize(("alpha", "gamma"), [(1 / 64, 0.5), (1.7 / 64, 0.5), (1 / 64, 0.05), (0.5, 0.3)])
def test_the_weights_of_old_epochs(alpha, gamma):
    """Without smoothness only C² remains in the bound. The exact weights over (1−γ)^{q−1} approach C from below."""
    problem = tc.ProblemConstants(records=64, dimension=1, lipschitz=1.0, smoothness=0.0)
    settings = tc.ReducedSettings(rounds=64 * 50, alpha=alpha, step_size=1.0, reset_rate=gamma)
    noise = tc.reduced_noise_norm(problem, settings, noise_multiplier=1.0)
    early, late = tc.reduced_node_counts(records=64, rounds=64 * 50)
    squared = ((noise / alpha / 4) ** 2 - 6 * early) / (14 * (early + late * gamma / (2 - gamma)))
    epoch = (1 - alpha) ** 64
    weights = [
        sum(epoch**i * (1 - gamma) ** (q - 1 - i) for i in range(q)) / (1 - gamma) ** (q - 1) for q in (1, 5, 50)
    ]
    assert (np.diff(weights) >= 0).all()
    assert weights[-1] == pytest.approx(np.sqrt(squared), rel=1e-6)
    assert weights[-1] <= 3.8


def test_the_residuals_count_the_nodes_of_a_round():
    """With α = 1 and tiny gradients, one node per bit of t and the differences of one epoch remain."""
    problem = tc.ProblemConstants(records=64, dimension=1, lipschitz=1e-9, smoothness=1.0)
    settings = tc.ReducedSettings(rounds=64 * 50, alpha=1.0, step_size=1.0, reset_rate=0.5)
    delta = tc.reduced_sensitivities(problem, step_size=1.0)
    noise = tc.reduced_noise_norm(problem, settings, noise_multiplier=1.0)
    late = tc.reduced_node_counts(records=64, rounds=64 * 50).late
    most = max(t.bit_count() for t in range(1, 64 * 50 + 1))
    assert noise**2 == pytest.approx(late * (most * delta.residuals**2 + 14 / 3 * delta.differences**2))
