"""Explicit bound of AC-SA, compared with exact expected losses of runs, and the penalty that the bound requires."""

import numpy as np
import pytest

from fedprivjax.theory import cheu

CURVATURES = np.concatenate([np.linspace(0.001, 1, 49), [1.0]])


class ExactRun:
    """Mean and covariance of AC-SA on ½Σh·θ² without constraint; `shorter` divides its steps."""

    def __init__(self, curvatures, start):
        self.h = curvatures
        self.mean = np.stack([start, start])  # of θ and θ^ag
        self.cov = np.zeros((start.size, 2, 2))

    def run(self, *, rounds, smoothness, spread, variance, shorter=1.0):
        self.mean[0], self.cov[:] = self.mean[1], self.cov[:, 1:, 1:]
        steps = cheu.agd_steps(rounds=rounds, smoothness=smoothness, spread=spread) / shorter
        for alpha, step in zip(cheu.agd_mixing(rounds), steps, strict=True):
            theta = np.stack([1 - step * alpha * self.h, -step * (1 - alpha) * self.h], axis=1)
            move = np.stack([theta, alpha * theta + (1 - alpha) * np.array([0.0, 1.0])], axis=1)
            gain = -step * np.array([1.0, alpha])
            self.mean = np.einsum("iab,bi->ai", move, self.mean)
            self.cov = move @ self.cov @ move.transpose(0, 2, 1) + variance / self.h.size * np.outer(gain, gain)
        return self

    @property
    def loss(self):
        return 0.5 * np.sum(self.h * (self.mean[1] ** 2 + self.cov[:, 1, 1]))


def random_start(seed=0):
    start = np.random.default_rng(seed).normal(size=CURVATURES.size)
    return start / np.linalg.norm(start)


def bound(start, **settings):
    gap = 0.5 * np.sum(CURVATURES * start**2)
    return cheu.agd_bound(distance=np.linalg.norm(start), gap=gap, **settings)


@pytest.mark.parametrize("form", ["optimal", pytest.param("paper", marks=pytest.mark.slow)])
def test_the_bound_holds_with_noise(form):
    rng, ratios = np.random.default_rng(1), []
    for _ in range(60):
        start, variance, rounds = random_start(rng), 10 ** rng.uniform(-5, 2), int(rng.integers(1, 300))
        settings = {"rounds": rounds, "smoothness": 1.0, "variance": variance}
        settings["spread"] = cheu.agd_spread(rounds=rounds, deviation=np.sqrt(variance), distance=1.0, form=form)
        settings["spread"] *= 10 ** rng.uniform(-0.3, 0.3)
        ratios.append(ExactRun(CURVATURES, start).run(**settings).loss / bound(start, **settings))
    assert 0.05 < max(ratios) <= 1


def test_without_noise_it_converges_and_with_half_the_penalty_it_diverges():
    start, right, wrong = random_start(), [], []
    for rounds in (5, 20, 80, 320):
        settings = {"rounds": rounds, "smoothness": 1.0, "spread": 0.0, "variance": 0.0}
        right.append(ExactRun(CURVATURES, start).run(**settings).loss / bound(start, **settings))
        wrong.append(ExactRun(CURVATURES, start).run(**settings, shorter=0.5).loss)
    assert max(right) <= 1
    assert wrong[1] > 1e4
    assert wrong[2] > 1e12


def test_the_mean_of_projected_runs_keeps_the_bound():
    """½‖θ − c‖² over the unit ball for c outside the ball. The minimum is c/‖c‖, and the constraint is active."""
    rng, dimension, runs, rounds = np.random.default_rng(2), 8, 400, 60
    centre, best = np.eye(dimension)[0] * 1.5, np.eye(dimension)[0]
    for deviation in (0.0, 0.3, 3.0):
        spread = cheu.agd_spread(rounds=rounds, deviation=deviation, distance=2.0)
        theta = average = np.tile(-best, (runs, 1))
        steps = cheu.agd_steps(rounds=rounds, smoothness=1.0, spread=spread)
        for alpha, step in zip(cheu.agd_mixing(rounds), steps, strict=True):
            middle = alpha * theta + (1 - alpha) * average
            noise = deviation / np.sqrt(dimension) * rng.normal(size=theta.shape)
            theta = theta - step * (middle - centre + noise)
            theta = theta / np.maximum(1, np.linalg.norm(theta, axis=1, keepdims=True))
            average = alpha * theta + (1 - alpha) * average
        excess = 0.5 * np.sum((average - centre) ** 2, axis=1) - 0.125
        gap = 0.5 * 2.5**2 - 0.125
        settings = {"rounds": rounds, "smoothness": 1.0, "spread": spread, "distance": 2.0}
        most = cheu.agd_bound(variance=deviation**2, gap=gap, **settings)
        assert 0 <= excess.mean() + 3 * excess.std() / np.sqrt(runs) <= most


def test_the_optimal_spread_minimises_the_bound():
    for rounds in (1, 9, 400):
        settings = {"rounds": rounds, "smoothness": 1.0, "distance": 2.0, "variance": 9.0, "gap": 1.0}
        best = cheu.agd_spread(rounds=rounds, deviation=3.0, distance=2.0)
        spreads = best * np.geomspace(0.1, 10, 401)
        assert spreads[np.argmin(cheu.agd_bound(spread=spreads, **settings))] == pytest.approx(best)
    assert best == pytest.approx(402**1.5 * 3 / (np.sqrt(12) * 2), rel=0.01)


def test_leading_constants():
    rounds, values = 10**6, []
    for form in ("optimal", "paper"):
        spread = cheu.agd_spread(rounds=rounds, deviation=1.0, distance=1.0, form=form)
        settings = {"rounds": rounds, "spread": spread, "smoothness": 1e-9, "gap": 0.0}
        values.append(cheu.agd_bound(distance=1.0, variance=1.0, **settings) * np.sqrt(rounds))
    assert values == pytest.approx([1.155, 2.167], abs=1e-3)
    assert cheu.agd_bound(rounds=9, smoothness=1.0, spread=0.0, distance=1.0, variance=1.0, gap=0.0) == np.inf
