"""Theorems 6 and 9: settings, bounds compared with runs, invalid arguments."""

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.theory import tran_cutkosky as tc

PROBLEM = tc.ProblemConstants(records=100, dimension=10, lipschitz=1.0, smoothness=1.0)
SETTINGS = tc.ReducedSettings(rounds=1000, alpha=0.02, step_size=1e-3, reset_rate=0.1)


def test_settings():
    """α is 1/N at the theorems' T before rounding up. With a smaller T, α is larger, and at most 1."""
    settings = tc.momentum_settings(records=60_000, dimension=7850, epsilon=2.0, delta=1e-6)
    assert settings.rounds == 19 * 60_000  # 18.2 epochs
    assert settings.alpha == 1 / 60_000
    load = 2 * 60_000**2 / np.sqrt(7850 * np.log(1e6))
    assert settings.rounds * np.log2(settings.rounds) > load
    assert (settings.rounds - 60_000) * np.log2(settings.rounds - 60_000) < load
    capped = tc.momentum_settings(records=60_000, dimension=7850, epsilon=2.0, delta=1e-6, rounds=120_000)
    assert capped.alpha == pytest.approx(load / 60_000 / (120_000 * np.log2(120_000)))
    assert capped.step_size == pytest.approx(1 / np.sqrt(60_000 * 120_000))
    assert tc.momentum_settings(records=10, dimension=1, epsilon=99.0, delta=0.1, rounds=10).alpha == 1

    paper = tc.reduced_settings(records=60_000, dimension=7850, epsilon=2.0, form="paper")
    assert paper.alpha * 60_000 == pytest.approx(1, rel=1e-3)
    assert tc.reduced_settings(records=60_000, dimension=7850, epsilon=2.0).alpha * 60_000 == pytest.approx(1.7)
    assert 60_000 * (1 + np.log(2)) <= 60_000 * 1.7  # Proposition 14's requirement on α at γ = 1/2
    assert paper.rounds == pytest.approx(60_000 ** (7 / 3) * 2 ** (4 / 3) / 7850 ** (2 / 3), rel=1e-3)
    capped = tc.reduced_settings(records=100, dimension=50, epsilon=2.0, rounds=400)
    assert capped.reset_rate == pytest.approx(capped.step_size * 100)
    assert capped.reset_rate == pytest.approx(0.5)


def run(records, rounds, alpha, step, rng, noise=0.0):
    """Run shuffled normalised SGD with momentum on the mean of sin⟨x_j, w⟩ with ‖x_j‖ = 1, so G = L = 1."""
    centres = rng.normal(size=(records, 3))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)

    def gradients(w, at):
        return at * np.cos(at @ w)[..., None]

    w, m, norms, errors, order = np.array([0.3, -0.2, 0.5]), np.zeros(3), [], [], np.arange(records)
    start = np.sin(centres @ w).mean()
    for t in range(rounds):
        if t % records == 0:
            order = rng.permutation(records)
        full = gradients(w, centres).mean(0)
        m = (1 - alpha) * m + alpha * gradients(w, centres[order[t % records]])
        noisy = m + noise * rng.normal(size=3)
        norms.append(np.linalg.norm(full))
        errors.append(np.linalg.norm(m - full))
        w = w - step * noisy / np.linalg.norm(noisy)
    return start + 1, np.mean(norms), np.mean(errors)


def test_runs_keep_the_bounds():
    """The gradient norm is below the bound, and the error of the momentum below its three terms."""
    ratios, errors = [], []
    for alpha_times, noise in ((1.0, 0.0), (4.0, 0.0), (64.0, 0.0), (4.0, 0.3)):
        records, rounds = 64, 64 * 8
        alpha, step = alpha_times / records, 1 / np.sqrt(records * rounds) / 4
        gap, norm, error = run(records, rounds, alpha, step, np.random.default_rng(3), noise)
        problem = tc.ProblemConstants(records=records, dimension=3, lipschitz=1.0, smoothness=1.0)
        settings = tc.MomentumSettings(rounds, alpha, step)
        bound = tc.momentum_bound(problem, settings, gap=gap, noise=noise * np.sqrt(3))
        ratios.append(norm / bound.total)
        errors.append(3 * error / (bound.bias + bound.variance + bound.start))
    assert max(ratios) < 1
    assert 0.2 < max(errors) < 1


def test_the_bound_as_arrays():
    rounds = np.array([100, 1000, 10_000])
    settings = tc.MomentumSettings(rounds, alpha=0.01, step_size=1 / np.sqrt(100 * rounds))
    bound = tc.momentum_bound(PROBLEM, settings, gap=1.0, noise=0.0)
    assert (np.diff(bound.total) < 0).all()
    assert bound.start == pytest.approx(3 * 0.99 / (0.01 * rounds))
    assert bound.total[1] == sum(np.broadcast_to(term, 3)[1] for term in bound)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 99}, r"rounds must be at least records \(100\), got 99"),
        ({"alpha": 0.009}, r"alpha must be between 1/records \(0.01\) and 1, got 0.009"),
        ({"alpha": 1.01}, "alpha must be between"),
    ],
)
def test_refusals_of_the_bounds(wrong, said):
    settings = SETTINGS._replace(**wrong)
    with pytest.raises(Refusal, match=said):
        tc.momentum_bound(PROBLEM, tc.MomentumSettings(*settings[:3]), gap=1.0, noise=0.0)
    with pytest.raises(Refusal, match=said):
        tc.reduced_bound(PROBLEM, settings, gap=1.0, noise=0.0)


def test_negative_noise_is_refused():
    with pytest.raises(Refusal, match="noise must be at least 0"):
        tc.reduced_bound(PROBLEM, SETTINGS, gap=1.0, noise=-1.0)


def test_refusals_of_the_settings():
    with pytest.raises(Refusal, match="reset_rate must be at most 1/2"):
        tc.reduced_bound(PROBLEM, SETTINGS._replace(reset_rate=0.51), gap=1.0, noise=0.0)
    with pytest.raises(Refusal, match="reset_rate must be at most 1/2"):
        tc.reduced_settings(records=100, dimension=10, epsilon=1.0, rounds=300)
    with pytest.raises(Refusal, match=r"rounds must be at least 4·records \(400\), the theorem's are"):
        tc.reduced_settings(records=100, dimension=1000, epsilon=0.1)
    with pytest.raises(Refusal, match=r"rounds must be at least records \(100\), the theorem's are"):
        tc.momentum_settings(records=100, dimension=1000, epsilon=0.1, delta=1e-6)
    with pytest.raises(Refusal, match="rounds must be at least records"):
        tc.momentum_settings(records=100, dimension=1000, epsilon=0.1, delta=1e-6, rounds=50)
