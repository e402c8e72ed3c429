import itertools

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.theory import cheu

PROBLEM = {"distance": 2.0, "lipschitz": 3.0}


@pytest.mark.parametrize("generalization", [True, False])
@pytest.mark.parametrize("smoothness", [None, 4.0, 100.0])
def test_the_step_minimises_the_bound(generalization, smoothness):
    settings = {"users": 500, "rounds": 80, "round_noise": 1e5, "generalization": generalization, **PROBLEM}
    step = cheu.gd_step(smoothness=smoothness, **settings)

    def bound(steps):
        beta = 2 / steps if smoothness is None else smoothness
        return cheu.gd_bound(step=steps, smoothness=beta, envelope=smoothness is None, **settings)

    most = 10 * step if smoothness is None else min(10 * step, 2 / smoothness)
    steps = np.append(np.geomspace(step / 10, most, 4000), step)
    assert bound(step) == pytest.approx(bound(steps).min(), rel=1e-12)
    assert (step == 0.02) == (smoothness == 100.0)


def test_the_bound_by_hand():
    value = cheu.gd_bound(users=100, rounds=50, step=0.1, round_noise=2e4, smoothness=20.0, **PROBLEM)
    assert value == pytest.approx(4 / (2 * 0.1 * 50) + 0.05 * 9 * 3 + 9 * 50 * 0.1 / 100 + 9 / 40)
    smooth = cheu.gd_bound(users=100, rounds=50, step=0.1, round_noise=2e4, smoothness=20.0, envelope=False, **PROBLEM)
    assert smooth == pytest.approx(value - 9 / 40)


def test_more_rounds_approach_the_limit_and_the_scan_stops_nearby():
    settings = {"users": 2000, "noise": 5000.0, **PROBLEM}
    bounds = [cheu.gd_scan(max_rounds=most, tolerance=0.0, **settings).bound for most in (10, 100, 1000, 10**7)]
    limit = 6 * np.sqrt(5000 / 2000**2 + 2 / 2000)
    assert sorted(bounds, reverse=True) == bounds
    assert limit < bounds[-1] < 1.001 * limit
    near = cheu.gd_scan(max_rounds=10**7, tolerance=0.1, **settings)
    assert near.bound <= 1.1 * bounds[-1]
    assert near.rounds < 10**5
    assert near.round_noise == near.rounds * 5000.0
    assert near.step * near.smoothness == pytest.approx(2)


def test_a_given_composition():
    """The scan accepts noise that grows faster than the rounds."""
    steep = cheu.gd_scan(users=2000, noise=lambda rounds: 10.0 * rounds**2, **PROBLEM)
    linear = cheu.gd_scan(users=2000, noise=10.0, **PROBLEM)
    assert steep.round_noise == 10.0 * steep.rounds**2
    assert steep.rounds < linear.rounds
    assert steep.bound > linear.bound


def test_runs_keep_the_bound():
    """A linear loss over a ball, the worst case for the mean of the iterates, without the generalisation term."""
    rng, runs, dimension = np.random.default_rng(0), 200, 10
    scanned = cheu.gd_scan(users=300, noise=2000.0, smoothness=1e-3, generalization=False, max_rounds=300, **PROBLEM)
    slope, start = 3.0 * np.eye(dimension)[0], np.eye(dimension)[0]
    theta, mean = np.tile(start, (runs, 1)), np.zeros((runs, dimension))
    deviation = 3.0 * np.sqrt(scanned.round_noise / dimension) / 300
    for _ in range(scanned.rounds):
        mean += theta / scanned.rounds
        theta = theta - scanned.step * (slope + deviation * rng.normal(size=theta.shape))
        theta /= np.maximum(1, np.linalg.norm(theta, axis=1, keepdims=True))
    excess = mean @ slope + 3.0
    assert 0.1 * scanned.bound < excess.mean() <= scanned.bound


def test_groups():
    for users, fraction in ((10**3, 0.75), (10**5, 0.93), (10**7, 0.67)):
        groups = cheu.gd_groups(users)
        assert len(groups) == cheu.strong_phase_count(users)
        assert sum(groups) / users == pytest.approx(fraction, abs=0.01)
    assert cheu.gd_groups(2) == [1]


def test_phases_shrink_by_their_bounds():
    problem = {"lipschitz": 1.0, "noise": 100.0, "max_rounds": 500}
    phases = cheu.gd_phases(users=10**6, diameter=3.0, strong_convexity=0.5, **problem)
    assert [phase.users for phase in phases] == cheu.gd_groups(10**6)
    for before, after in itertools.pairwise(phases):
        assert after.distance == pytest.approx(min(before.distance, np.sqrt(4 * before.bound)))
        again = cheu.gd_scan(users=after.users, distance=after.distance, **problem)
        assert after == again
    assert phases[-1].distance < 1


@pytest.mark.parametrize(
    ("users", "dimension", "epsilon", "delta"), [(10**5, 100, 0.1, 1e-6), (10**6, 10**4, 0.05, 1e-2)]
)
def test_the_papers_rounds_need_the_cube(users, dimension, epsilon, delta):
    """With K³ the bound is at most 1.55 times the theorem's order; with the printed K² it is more than 2 times."""
    log, ratios = np.log(users * dimension / delta), []
    noise = dimension * log**3 / (users * epsilon) ** 2
    target = 1 / np.sqrt(users) + np.sqrt(noise)
    for printed in (False, True):
        settings = {"users": users, "dimension": dimension, "epsilon": epsilon, "delta": delta}
        rounds = cheu.gd_paper_rounds(printed=printed, **settings)
        step = 1 / np.sqrt(rounds)
        ratios.append((1 / (2 * step * rounds) + step / 2 * (1 + rounds * noise) + rounds * step / users) / target)
    assert 1.3 < ratios[0] < 1.55
    assert ratios[1] > 2.0


def test_the_papers_setting():
    target = {"epsilon": 1.0, "delta": 1e-6}
    setting = cheu.gd_paper(users=20_000, dimension=10, diameter=2.0, lipschitz=1.0, rounds=300, **target)
    epsilon, delta = cheu.gd_paper_budget(rounds=300, **target)
    assert epsilon == pytest.approx(1 / (2 * np.sqrt(600 * np.log(1e6))))
    assert delta == pytest.approx(1e-6 / 301)
    assert setting.round_noise == cheu.paper_noise_constant(epsilon, delta, 10, 20_000)
    assert (setting.step, setting.smoothness) == pytest.approx((2 / np.sqrt(300), np.sqrt(300) / 2))
    scanned = cheu.gd_scan(users=20_000, distance=2.0, lipschitz=1.0, noise=862.0, max_rounds=300)
    assert scanned.bound < setting.bound / 100


def test_steps_that_are_not_stable_are_refused():
    with pytest.raises(Refusal, match=r"step must be at most 2/smoothness, got step·smoothness = 2\.5"):
        cheu.gd_bound(users=9, rounds=3, step=0.5, round_noise=1.0, smoothness=5.0, **PROBLEM)
