"""Bound of DP-μ²-FL at any step and participation, compared with the steps of its proof and with runs."""

import numpy as np
import pytest
from cases import sparing

from fedprivjax import Ball, DPMu2, Full, Squared, Uniform, calibrate, draw_plan, linear_problem, simulate
from fedprivjax.method.message_noise import growing_exposure
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.theory import anytime_bound

SETTINGS = {"step": 0.01, "rounds": 30, "per_round": 4, "radius": 2.0, "lipschitz": 1.5, "deviation": 0.7}


def written_out(step, rounds, per_round, radius, lipschitz, deviation, noise, fresh):
    """Sum of the proof, by round."""
    total = 2 * radius**2 / step
    for t in range(1, rounds + 1):
        e, z = deviation * (t / per_round) ** 0.5, noise[t - 1]
        known = t * lipschitz + e
        total += step / 2 * (known**2 + z**2 if fresh else (known + z) ** 2)
        total += radius * (e if fresh else e + z)
    return 2 * total / (rounds * (rounds + 1))


@pytest.mark.parametrize("fresh", [True, False])
def test_the_terms_are_the_proofs(fresh):
    noise = np.linspace(1, 2, 30)
    bound = anytime_bound(noise=noise, fresh=fresh, **SETTINGS)
    assert bound.total == pytest.approx(written_out(noise=noise, fresh=fresh, **SETTINGS), rel=1e-12)


def test_projected_steps_obey_the_inequality_that_the_proof_rests_on():
    rng = np.random.default_rng(0)
    radius, step, rounds = 1.0, 0.3, 40
    for _ in range(20):
        w, best = rng.normal(size=3), rng.normal(size=3)
        w, best = w / max(1, np.linalg.norm(w)), best / max(1, np.linalg.norm(best))
        regret = squares = 0.0
        for t in range(1, rounds + 1):
            q = rng.normal(size=3) * t
            regret, squares = regret + q @ (w - best), squares + q @ q
            w = w - step * q
            w = w / max(1, np.linalg.norm(w))
        assert regret <= (2 * radius) ** 2 / (2 * step) + step / 2 * squares


def squares(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(240, 3))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = features @ np.array([0.4, -0.3, 0.2])
    return linear_problem(
        features,
        labels,
        Squared(),
        feature_bound=1.0,
        constraint=Ball(1.0),
        start=np.array([-0.6, 0.6, -0.4]),
        lipschitz=2.0,
        excess=lambda w: 0.5 * ((w - np.array([0.4, -0.3, 0.2])) ** 2).sum() / 3,  # uniform directions
    )


@pytest.mark.parametrize(
    ("trust", "scale"),
    sparing([("none", 1.0), ("none", 300.0), ("server", 1.0), ("server", 100.0)], [("server", 1.0)]),
)
def test_runs_stay_below(trust, scale):
    """Several steps, some of them long, so that each term dominates in turn."""
    problem = squares(0)
    runs = [
        simulate(
            DPMu2(mu=20.0, trust=trust, step_scale=scale),
            problem,
            Uniform(12, 4),
            rounds=60,
            seed=seed,
            metrics=["excess_risk"],
        )
        for seed in range(4)
    ]
    found = np.mean([run.metrics["excess_risk"][-1] for run in runs])
    plan = runs[0].plan
    protocol = calibrate(DPMu2(mu=20.0, trust=trust), problem, plan)
    largest = problem.lipschitz + 2 * problem.smoothness * 2.0
    bound = anytime_bound(
        step=float(protocol.step_size) * scale,
        rounds=60,
        per_round=4,
        radius=1.0,
        lipschitz=problem.lipschitz,
        deviation=largest,
        noise=np.sqrt(3 * protocol.noise_variances(plan)),
        fresh=trust == "server",
    )
    assert 0 < found < bound.total


@pytest.mark.parametrize("settings", [{}, {"noise_schedule": "gap"}, {"cancel": False}, {"trust": "server"}])
@pytest.mark.parametrize("participation", [Uniform(7, 3), Full(4)])
def test_noise_variances_are_those_of_machines_that_keep_their_noise(settings, participation):
    problem = squares(1)
    plan = draw_plan(problem, participation, 12)
    protocol = calibrate(DPMu2(mu=1.0, **settings), problem, plan)
    found = protocol.noise_variances(plan)
    rounds, m = plan.schedule.participants.shape
    if privacy_of(protocol).trust == "server":
        expected = np.full(rounds, protocol.noise_std**2 * rounds)
    else:
        relative, held, expected = protocol.message_noise.relative(plan), np.zeros(plan.size.machines), []
        for t in range(rounds):
            for j, machine in enumerate(plan.schedule.participants[t]):
                held[machine] = relative[t, j] ** 2 + (0.0 if protocol.cancel else held[machine])
            expected.append(protocol.noise_std**2 * held.sum() / m**2)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_growing_exposure_machine_by_machine():
    rng = np.random.default_rng(0)
    schedule = Uniform(9, 3).draw(40, rng)
    relative = rng.uniform(0.5, 2, schedule.participants.shape)
    found = growing_exposure(relative, schedule)
    for machine in range(9):
        t, j = np.nonzero(schedule.participants == machine)
        growth = np.append(1.0, np.cumprod(t[1:] / (t[:-1] + 1)))  # rounds from 1: (t − 1)/t′
        tails = [np.sum((growth[k:] / growth[k] / relative[t, j][k:]) ** 2) for k in range(t.size)]
        assert found[machine] == pytest.approx(np.sqrt(max(tails)), rel=1e-12)
