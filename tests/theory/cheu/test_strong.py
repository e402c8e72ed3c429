"""Phases for strongly convex losses: their recursion, and runs below its bounds."""

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.theory import cheu

PROBLEM = {"diameter": 2.0, "lipschitz": 1.0, "strong_convexity": 0.5, "noise": 800.0}


@pytest.mark.parametrize("smoothness", [None, 2.0])
@pytest.mark.parametrize("per_round", [None, 50])
def test_the_recursion_by_hand(smoothness, per_round):
    """D_j follows from the last bound; S, rounds and the bound equal those of one pass from there."""
    phases = cheu.strong_phases(users=10_000, smoothness=smoothness, per_round=per_round, **PROBLEM)
    distance, gap = 2.0, np.inf
    assert [phase.users for phase in phases] == [2500] * 4
    for phase in phases:
        assert phase.distance == pytest.approx(distance)
        assert phase.rounds == 2500 // phase.per_round
        variance = cheu.oracle_variance(per_round=phase.per_round, lipschitz=1.0, noise=800.0)
        spread = cheu.agd_spread(rounds=phase.rounds, deviation=np.sqrt(variance), distance=distance)
        assert phase.spread == pytest.approx(spread)
        away = 0.0 if smoothness else 1 / (2 * phase.smoothness)
        settings = {"rounds": phase.rounds, "smoothness": phase.smoothness, "spread": spread, "variance": variance}
        value = cheu.agd_bound(distance=distance, gap=min(distance, gap + away), **settings) + away
        assert phase.bound == pytest.approx(value)
        gap = phase.bound
        distance = min(distance, np.sqrt(2 * gap / 0.5))
    assert per_round is None or {phase.per_round for phase in phases} == {per_round}
    assert phases[-1].distance < 2.0


def test_envelopes_are_the_best_for_their_batch():
    """No fixed β does better in the last phase than the chosen one, from the same start."""
    phases = cheu.strong_phases(users=10**6, **PROBLEM)
    before, last = phases[-2:]
    betas = last.smoothness * np.geomspace(0.2, 5, 2001)
    away = 1 / (2 * betas)
    variance = cheu.oracle_variance(per_round=last.per_round, lipschitz=1.0, noise=800.0)
    settings = {"rounds": last.rounds, "spread": last.spread, "distance": last.distance, "variance": variance}
    gap = np.minimum(last.distance, before.bound + away)
    values = cheu.agd_bound(smoothness=betas, gap=gap, **settings) + away
    assert last.bound == pytest.approx(values.min(), rel=1e-6)


@pytest.mark.parametrize("smoothness", [2.0, pytest.param(None, marks=pytest.mark.slow)])
def test_one_batch_for_all_phases(smoothness):
    settings = {"users": 3000, "smoothness": smoothness, **PROBLEM}
    best = cheu.strong_per_round(**settings)
    bounds = [cheu.strong_phases(per_round=b, **settings)[-1].bound for b in range(1, 751)]
    assert cheu.strong_phases(per_round=best, **settings)[-1].bound == pytest.approx(min(bounds), rel=1e-9)
    assert cheu.strong_phases(**settings)[-1].bound <= min(bounds) * (1 + 1e-9)


def test_a_batch_for_each_phase():
    settings = {"users": 10_000, "smoothness": 2.0, **PROBLEM}
    own = cheu.strong_phases(**settings)
    batches = [phase.per_round for phase in own]
    assert batches[0] < batches[-1]
    assert cheu.strong_phases(per_round=batches, **settings) == own
    with pytest.raises(Refusal, match="per_round must be one batch, or one for each of 4 phases, got 3"):
        cheu.strong_phases(per_round=batches[1:], **settings)


def test_runs_keep_the_bounds():
    """Exact means and covariances on ½Σh·θ², with each phase started at the random output of the last."""
    curvatures = np.concatenate([[0.5, 1.0], np.random.default_rng(0).uniform(0.5, 1, 8)])
    noise, lipschitz = 300.0, 2.0
    problem = {"diameter": 2.0, "lipschitz": lipschitz, "strong_convexity": 0.5, "smoothness": 1.0, "noise": noise}
    mean, cov = np.zeros((10, 2)), np.zeros((10, 2, 2))
    mean[0] = 2.0
    ratios = []
    for phase in cheu.strong_phases(users=100_000, **problem):
        mean, cov = mean[:, 1:].repeat(2, 1), cov[:, 1:, 1:].repeat(2, 1).repeat(2, 2)
        variance = cheu.oracle_variance(per_round=phase.per_round, lipschitz=lipschitz, noise=noise)
        steps = cheu.agd_steps(rounds=phase.rounds, smoothness=phase.smoothness, spread=phase.spread)
        for alpha, step in zip(cheu.agd_mixing(phase.rounds), steps, strict=True):
            theta = np.stack([1 - step * alpha * curvatures, -step * (1 - alpha) * curvatures], axis=1)
            move = np.stack([theta, alpha * theta + (1 - alpha) * np.array([0.0, 1.0])], axis=1)
            gain = -step * np.array([1.0, alpha])
            mean = np.einsum("iab,ib->ia", move, mean)
            cov = move @ cov @ move.transpose(0, 2, 1) + variance / 10 * np.outer(gain, gain)
        loss = 0.5 * np.sum(curvatures * (mean[:, 1] ** 2 + cov[:, 1, 1]))
        ratios.append(loss / phase.bound)
    assert len(ratios) == 5
    assert 0.02 < max(ratios) <= 1


def test_the_first_distance_knows_the_strong_convexity():
    first = cheu.strong_phases(users=1000, diameter=100.0, lipschitz=1.0, strong_convexity=0.5, noise=1.0)[0]
    assert first.distance == 4.0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"users": 10_000, "per_round": 2501}, r"per_round must be at most the users of a phase \(2500\), got 2501"),
        ({"users": 10, "phases": 11}, r"phases must be at most users \(10\), got 11"),
        ({"users": 10, "phases": 0}, "phases must be at least 1"),
    ],
)
def test_refusals(settings, line):
    with pytest.raises(Refusal, match=line):
        cheu.strong_phases(**settings, **PROBLEM)
