"""Scans, compared with brute force and with the specification's numbers, and monotonicity."""

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.theory import cheu

PROBLEM = {"distance": 1.0, "lipschitz": 1.0}
EXACT = cheu.gaussian_noise_constant(1.0, 1e-6, 10, levels_ratio=1 + 1 / np.sqrt(100))  # K/g as at n = 1000
PAPER = cheu.paper_noise_constant(1.0, 1e-6, 10)


def agd_value(users, per_round, smoothness, noise, lipschitz=1.0, distance=1.0):
    """Explicit bound at the optimal S, computed directly."""
    rounds = users // per_round
    deviation = lipschitz * np.sqrt(1 / per_round + noise / per_round**2)
    squares = sum((t + 1) ** 2 for t in range(1, rounds + 1))
    start = lipschitz * distance + smoothness * distance**2 + deviation * distance * np.sqrt(squares)
    return 2 / ((rounds + 1) * (rounds + 2)) * start


@pytest.mark.parametrize("users", [7, 60, 997])
@pytest.mark.parametrize("noise", [0.0, 3.0, 800.0])
def test_scans_find_the_integer_optimum(users, noise):
    every = range(1, users + 1)
    sgd = min(cheu.sgd_bound(users=users, per_round=b, noise=noise, **PROBLEM) for b in every)
    assert cheu.sgd_scan(users=users, noise=noise, **PROBLEM).bound == pytest.approx(sgd, rel=1e-12)
    agd = min(agd_value(users, b, 2.0, noise) for b in every)
    scanned = cheu.agd_scan(users=users, smoothness=2.0, noise=noise, **PROBLEM)
    assert scanned.bound == pytest.approx(agd, rel=1e-12)
    assert scanned.bound == pytest.approx(agd_value(users, scanned.per_round, 2.0, noise))


@pytest.mark.parametrize("noise", [1.0, 800.0])
def test_the_joint_scan_beats_a_grid(noise):
    betas = np.geomspace(0.3, 300, 4000)
    grid = min((agd_value(500, b, betas, noise) + 1 / (2 * betas)).min() for b in range(1, 501))
    scanned = cheu.smoothed_scan(users=500, noise=noise, **PROBLEM)
    assert scanned.bound <= grid * (1 + 1e-12)
    assert scanned.bound == pytest.approx(grid, rel=1e-5)


def test_a_billion_users():
    assert cheu.smoothed_scan(users=10**9, noise=EXACT, **PROBLEM).rounds > 10**4
    large = cheu.sgd_scan(users=10**9, noise=EXACT, **PROBLEM)
    assert large.per_round == pytest.approx(np.sqrt(EXACT), abs=1)


def test_bounds_of_the_reference_outcomes():
    """Section A4.7 of the specification: distance 2 for P_SGD on a unit ball, and 1 for P_AGD, which starts at 0."""
    wide = {"distance": 2.0, "lipschitz": 1.0}
    sgd = cheu.sgd_scan(users=20_000, noise=EXACT, **wide)
    assert sgd[:2] == (29, 689)
    assert sgd.bound == pytest.approx(0.108, abs=5e-4)
    alone = cheu.sgd_scan(users=20_000, noise=PAPER, per_round=12643, **wide)
    assert alone.rounds == 1
    assert alone.bound == pytest.approx(2.8, abs=0.05)
    assert cheu.sgd_scan(users=200_000, noise=PAPER, per_round=12643, **wide).rounds == 15
    assert cheu.sgd_scan(users=200_000, noise=EXACT, per_round=29, **wide).rounds == 6896
    smoothed = [cheu.smoothed_scan(users=n, noise=EXACT, **PROBLEM).bound for n in (20_000, 200_000)]
    assert smoothed == pytest.approx([0.035, 0.008], abs=5e-4)


def test_the_paper_pays():
    """A larger noise constant, twice the Lipschitz constant, the paper's S or fewer users never improve the bound."""
    best = cheu.smoothed_scan(users=10_000, noise=EXACT, **PROBLEM)
    worse = [
        cheu.smoothed_scan(users=9_000, noise=EXACT, **PROBLEM),
        cheu.smoothed_scan(users=10_000, noise=2 * EXACT, **PROBLEM),
        cheu.smoothed_scan(users=10_000, noise=EXACT, distance=1.1, lipschitz=1.0),
        cheu.smoothed_scan(users=10_000, noise=EXACT, form="paper", **PROBLEM),
        cheu.smoothed_scan(users=10_000, noise=EXACT, paper_2L=True, **PROBLEM),
        cheu.smoothed_scan(users=10_000, noise=EXACT, per_round=2 * best.per_round, **PROBLEM),
        cheu.smoothed_scan(users=10_000, noise=EXACT, smoothness=2 * best.smoothness, **PROBLEM),
    ]
    assert all(other.bound > best.bound for other in worse)
    assert cheu.smoothed_scan(users=10_000, noise=EXACT, sampling=False, **PROBLEM).bound < best.bound


def test_scales():
    """Bounds scale as L·D and β of the envelopes as L/D, while batch sizes do not change."""
    one = cheu.smoothed_scan(users=10_000, noise=EXACT, **PROBLEM)
    other = cheu.smoothed_scan(users=10_000, noise=EXACT, distance=0.2, lipschitz=5.0)
    assert other.per_round == one.per_round
    assert other.bound == pytest.approx(one.bound)
    assert other.smoothness == pytest.approx(25 * one.smoothness)


def test_noise_of_each_user_favours_single_users():
    """With C = b·C₁, as in local privacy, larger batches of P_SGD have no advantage."""
    assert cheu.sgd_scan(users=1000, noise=lambda b: 70 * b, **PROBLEM).per_round == 1


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: cheu.sgd_scan(users=10, noise=1.0, per_round=11, **PROBLEM),
            r"per_round must be at most .*\(10\), got 11",
        ),
        (lambda: cheu.sgd_scan(users=10**13, noise=1.0, **PROBLEM), "users must be at most 10¹²"),
        (lambda: cheu.smoothed_scan(users=10, noise=-1.0, **PROBLEM), "noise must be at least 0"),
        (lambda: cheu.agd_scan(users=0, noise=1.0, smoothness=1.0, **PROBLEM), "users must be at least 1"),
        (lambda: cheu.agd_scan(users=9, noise=1.0, smoothness=0.0, **PROBLEM), "smoothness must be positive"),
        (lambda: cheu.agd_scan(users=9, noise=1.0, smoothness=1.0, form="papr", **PROBLEM), "did you mean 'paper'"),
    ],
)
def test_refusals(call, line):
    with pytest.raises(Refusal, match=line) as refusal:
        call()
    assert "\n" not in str(refusal.value)
