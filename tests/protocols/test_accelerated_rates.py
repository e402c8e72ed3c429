"""Convergence rates of accelerated minibatch SGD in the engine: without noise, in stages, and against its bounds."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import AcceleratedMinibatchSGD, Ball, Full, Squared, general_problem, linear_problem, simulate, sweep
from fedprivjax.theory import lowy_razaviyayn as theory


def quadratic(curvature, centre, radius):
    """½·(w − c)ᵀA(w − c) on one machine of one record, as a user would write it."""
    curvature, centre = jnp.asarray(curvature, jnp.float32), jnp.asarray(centre, jnp.float32)

    def loss(w, example):
        return 0.5 * (w - centre) @ curvature @ (w - centre) + 0.0 * example

    return general_problem(
        loss,
        jnp.zeros(1),
        jnp.zeros(centre.size),
        constraint=Ball(radius),
        lipschitz=float(2 * radius * np.linalg.norm(curvature, 2)),
        smoothness=float(np.linalg.norm(curvature, 2)),
        partition_table=np.zeros((1, 1), int),
        excess=lambda w: 0.5 * (w - centre) @ curvature @ (w - centre),
    )


def excess(protocol, problem, rounds, **settings):
    run = simulate(protocol, problem, Full(1), rounds=rounds, eval_every=rounds, metrics=("excess_risk",), **settings)
    return float(run.metrics["excess_risk"][-1])


SILENT = {"noise_std": 0.0, "sampler": "full"}


def spectrum(rounds):
    """Eigenvalues j⁻² and w*_j = j^(−1/2): nothing is gained by waiting for a small eigenvalue."""
    j = np.arange(1, 4 * rounds + 1)
    return np.diag(j**-2.0), j**-0.5


@pytest.mark.slow
def test_without_noise_the_excess_falls_with_the_square_of_the_rounds():
    counts = np.array([10, 20, 40, 80])
    scaled = []
    for rounds in counts:
        curvature, centre = spectrum(80)
        problem = quadratic(curvature, centre, 3 * np.linalg.norm(centre))
        found = excess(AcceleratedMinibatchSGD(variance=1e-12, **SILENT), problem, int(rounds))
        scaled.append(found / np.sum(centre**2))
        assert found <= theory.acsa_bound(rounds=int(rounds), v=2.0, diameter=np.linalg.norm(centre), variance=0.0)
    slope = np.polyfit(np.log(counts), np.log(scaled), 1)[0]
    assert slope == pytest.approx(-2.0, abs=0.2)


def test_plain_gradient_descent_is_slower_on_the_same_problem():
    """Control for the slope above: steps of 1/β without acceleration decrease at most as 1/R here."""
    curvature, centre = spectrum(80)
    ends = []
    for rounds in (20, 80):
        w = centre * (1 - (1 - np.diag(curvature)) ** rounds)
        ends.append(0.5 * np.sum(np.diag(curvature) * (w - centre) ** 2))
    assert np.log(ends[1] / ends[0]) / np.log(4) > -1.6


@pytest.mark.slow
def test_stages_converge_linearly_on_a_strongly_convex_loss():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    curvature = basis @ np.diag(np.geomspace(0.05, 1.0, 6)) @ basis.T
    centre = rng.normal(size=6)
    problem = quadratic(curvature, centre, 3 * np.linalg.norm(centre))
    gap = float(0.5 * centre @ curvature @ centre)
    protocol = AcceleratedMinibatchSGD(form="multistage", strong_convexity=0.05, gap=gap, variance=1e-12, **SILENT)
    stage = int(np.ceil(4 * np.sqrt(2 * 1.0 / 0.05)))
    counts = stage * np.arange(1, 6)
    found = np.array([excess(protocol, problem, int(rounds)) for rounds in counts])
    assert (found <= gap * 0.5 ** np.arange(1, 6)).all()  # each stage halves it at least
    rates = -np.diff(np.log(found)) / stage
    assert (rates > 0.5 * np.log(2) / stage).all()
    assert rates.min() > np.sqrt(0.05) / 8  # of the order of √(μ/β)


def test_rounds_left_over_change_nothing():
    problem = quadratic(np.diag([1.0, 0.5]), np.array([1.0, -1.0]), 5.0)
    protocol = AcceleratedMinibatchSGD(form="multistage", strong_convexity=0.5, gap=1.0, variance=1e-12, **SILENT)
    assert excess(protocol, problem, 16) == excess(protocol, problem, 19) > excess(protocol, problem, 24)


@pytest.mark.slow
def test_too_few_rounds_for_a_stage_are_one_stage():
    problem = quadratic(np.diag([1.0, 0.5]), np.array([1.0, -1.0]), 5.0)
    protocol = AcceleratedMinibatchSGD(form="multistage", strong_convexity=0.5, gap=1.0, variance=1e-12, **SILENT)
    plain = AcceleratedMinibatchSGD(strong_convexity=0.5, variance=1e-12, **SILENT)
    assert excess(protocol, problem, 5) == pytest.approx(excess(plain, problem, 5), rel=1e-5)


def test_the_printed_stages_miss_what_the_corrected_ones_keep():
    """With noise and μ = 0 in the steps, v = 2β is far from halving; the corrected v is within its bound."""
    stages = theory.acsa_stages(rounds=4000, gap=1.0, smoothness=1.0, strong_convexity=0.5, variance=0.5)
    printed = theory.acsa_stages(rounds=4000, gap=1.0, smoothness=1.0, strong_convexity=0.5, variance=0.5, printed=True)
    assert [s.rounds for s in stages] == [s.rounds for s in printed]
    assert all(s.v > 2 * p.v for s, p in zip(stages, printed, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["plain", "strong", "regularised"])
def test_the_explicit_bounds_are_never_exceeded(form):
    """On 200 random quadratics in all; means of 16 runs, less four standard errors."""
    rng = np.random.default_rng([3, len(form)])
    ratios = [ratio(form, rng) for _ in range(67)]
    assert max(ratios) < 1.0
    assert max(ratios) > 0.01  # not an empty statement


def ratio(form, rng, rounds=12, runs=16):
    """Mean excess over the bound, minus four standard errors."""
    dimension = 4
    low = 0.1 if form == "strong" else 0.0
    values = rng.uniform(low, 1.0, dimension)
    values[0] = 1.0
    if form == "strong":
        values[-1] = low
    x = np.diag(np.sqrt(values * dimension)).astype(np.float32)  # mean of ½(xw − y)²: curvature diag(values)
    centre = rng.normal(size=dimension)
    radius = 4 * np.linalg.norm(centre)
    problem = linear_problem(
        x[None],
        (x @ centre).astype(np.float32)[None],
        Squared(),
        constraint=Ball(radius),
        optimum=centre.astype(np.float32),
    )
    std = float(rng.uniform(0.05, 1.0))
    variance, distance = dimension * std**2, float(np.linalg.norm(centre))
    own = {"noise_std": std, "sampler": "full", "variance": variance}
    own |= {"strong_convexity": low} if form == "strong" else {}
    own |= {"form": "regularised"} if form == "regularised" else {}
    smooth = {"smoothness": 1.0}
    if form == "regularised":
        bound = theory.acsa_regularized_bound(rounds=rounds, variance=variance, diameter=distance, **smooth)
    else:
        kind = "strong" if form == "strong" else "tight"
        v = theory.acsa_v(rounds=rounds, form=kind, variance=variance, diameter=distance, **smooth)
        bound = theory.acsa_bound(
            rounds=rounds, v=v, diameter=distance, variance=variance, form=kind, strong_convexity=low or None
        )

    problem = replace(problem, own_smoothness=1.0, own_lipschitz=1.0, distance=distance)
    data = sweep(
        AcceleratedMinibatchSGD(**own),
        problem,
        Full(1),
        seeds=runs,
        rounds=rounds,
        eval_every=rounds,
        metrics=("excess_risk",),
    )
    found = data["excess_risk"].isel(round=-1).values
    return (found.mean() - 4 * found.std(ddof=1) / np.sqrt(runs)) / bound
