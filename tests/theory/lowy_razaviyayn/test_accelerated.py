import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedprivjax.theory import lowy_razaviyayn as lr

CONVEX_FORMS = ["convex", "tight"]


class ExactRun:
    """Exact mean and covariance of Algorithm 2 on ½Σh_i·w_i² (+ (λ/2)‖w − w_0‖²), total noise V², unconstrained."""

    def __init__(self, curvatures, start, variance, mu, regularization=0.0):
        self.h, self.start, self.mu, self.lam = curvatures, start, mu, regularization
        self.noise = variance / len(curvatures)
        self.mean = np.stack([start, start])  # of w and w^ag
        self.cov = np.zeros((len(curvatures), 2, 2))

    def stage(self, rounds, v):
        self.mean[0], self.cov[:] = self.mean[1], self.cov[:, 1:, 1:]
        for alpha, eta in zip(lr.acsa_mixing(rounds), lr.acsa_step_weights(rounds, v), strict=True):
            self.step(alpha, eta)
        return self

    def step(self, alpha, eta):
        den = eta + (1 - alpha**2) * self.mu
        on_w, on_ag = alpha * ((1 - alpha) * self.mu + eta) / den, (1 - alpha) * (self.mu + eta) / den
        keep, scale = ((1 - alpha) * self.mu + eta) / (self.mu + eta), alpha / (self.mu + eta)
        pull = scale * (self.mu - self.h - self.lam)
        w = np.stack([pull * on_w + keep, pull * on_ag], axis=1)
        ag = alpha * w + (1 - alpha) * np.array([0.0, 1.0])
        move, shift = np.stack([w, ag], axis=1), scale * self.lam * self.start
        gain = np.array([scale, alpha * scale])
        self.mean = np.einsum("iab,bi->ai", move, self.mean) + np.stack([shift, alpha * shift])
        self.cov = move @ self.cov @ move.transpose(0, 2, 1) + self.noise * np.outer(gain, gain)

    @property
    def loss(self):
        return 0.5 * np.sum(self.h * (self.mean[1] ** 2 + self.cov[:, 1, 1]))


def problem(rng, mu):
    curvatures = np.concatenate([[mu, 1.0], 10 ** rng.uniform(np.log10(mu), 0, 8)])
    return curvatures, rng.normal(size=10), 10 ** rng.uniform(-4, 2), int(rng.integers(1, 200))


def test_schedules():
    np.testing.assert_allclose(lr.acsa_mixing(4), [1, 2 / 3, 2 / 4, 2 / 5])
    np.testing.assert_allclose(lr.acsa_step_weights(3, v=1.5), [6 / 2, 6 / 6, 6 / 12])


@pytest.mark.parametrize("form", CONVEX_FORMS)
def test_v_minimises_its_bound(form):
    for variance in (1e-3, 10.0, 1e5):
        settings = {"rounds": 12, "diameter": 3.0, "variance": variance}
        v = lr.acsa_v(smoothness=0.5, form=form, **settings)
        best = minimize_scalar(
            lambda log, s=settings: lr.acsa_bound(v=np.exp(log), form=form, **s), bounds=(0.0, 15), method="bounded"
        )
        assert v == pytest.approx(np.exp(best.x), rel=1e-3)
    assert lr.acsa_v(rounds=12, diameter=3.0, variance=0.0, smoothness=0.5, form=form) == 1.0


@pytest.mark.parametrize("form", ["strong", *CONVEX_FORMS])
def test_single_stage_bounds_hold_exactly(form):
    rng, ratios = np.random.default_rng(0), []
    for _ in range(60):
        mu = 10 ** rng.uniform(-3, -0.3)
        curvatures, start, variance, rounds = problem(rng, mu)
        settings = {"rounds": rounds, "diameter": np.linalg.norm(start), "variance": variance, "form": form}
        v = lr.acsa_v(smoothness=1.0, **settings)
        run = ExactRun(curvatures, start, variance, mu if form == "strong" else 0.0).stage(rounds, v)
        ratios.append(run.loss / lr.acsa_bound(v=v, strong_convexity=mu, **settings))
    assert 0.05 < max(ratios) <= 1


def test_regularised_bound_holds_exactly():
    rng, ratios = np.random.default_rng(1), []
    for _ in range(60):
        curvatures, start, variance, rounds = problem(rng, 1e-4)
        settings = {"rounds": rounds, "variance": variance, "diameter": np.linalg.norm(start)}
        lam = lr.acsa_regularization(**settings)
        run = ExactRun(curvatures, start, variance, mu=lam, regularization=lam)
        loss = run.stage(rounds, lr.acsa_v(rounds=rounds, smoothness=1 + lam, form="strong")).loss
        ratios.append(loss / lr.acsa_regularized_bound(smoothness=1.0, **settings))
    assert 0.02 < max(ratios) <= 1


def test_regularization_factor():
    settings = {"rounds": 9, "variance": 4.0, "diameter": 2.0}
    assert lr.acsa_regularization(**settings) == pytest.approx(2 / (2 * 2 * 3))
    assert lr.acsa_regularization(**settings, factor=1.0) == pytest.approx(2 / (2 * 3))


def random_plan(rng, **changes):
    mu = 10 ** rng.uniform(-2, 0)
    settings = {"gap": 10 ** rng.uniform(-1, 2), "strong_convexity": mu, "variance": 10 ** rng.uniform(-4, 0)}
    beta = mu * 10 ** rng.uniform(0, 3)
    stages = lr.acsa_stages(rounds=int(rng.integers(1, 20_000)), smoothness=beta, **settings, **changes)
    return stages, beta, settings


def test_every_stage_halves_the_gap():
    rng, lengths, ratios = np.random.default_rng(2), [], []
    for _ in range(200):
        stages, beta, settings = random_plan(rng)
        if stages[0].v == 2 * beta and len(stages) == 1:
            continue
        lengths.append(len(stages))
        for k in range(1, len(stages) + 1):
            ratios.append(lr.acsa_stages_bound(stages[:k], **settings) / (settings["gap"] / 2**k))
    assert max(lengths) > 5
    assert max(ratios) <= 1


def test_stages_by_hand():
    mu, beta, gap, variance = 0.1, 2.0, 8.0, 0.5
    stages = lr.acsa_stages(rounds=10_000, gap=gap, smoothness=beta, strong_convexity=mu, variance=variance)
    for k, (rounds, v) in enumerate(stages, start=1):
        assert rounds == np.ceil(max(4 * np.sqrt(2 * beta / mu), 128 * variance / (3 * mu * gap * 2.0 ** -(k + 1))))
        cube = rounds * (rounds + 1) * (rounds + 2)
        assert v == pytest.approx(max(2 * beta, np.sqrt(mu * variance * cube / (3 * gap * 2.0 ** -(k - 1)))))
    used = sum(s.rounds for s in stages)
    longer = lr.acsa_stages(rounds=10**6, gap=gap, smoothness=beta, strong_convexity=mu, variance=variance)
    assert used <= 10_000 < used + longer[len(stages)].rounds
    assert longer[: len(stages)] == stages
    assert stages[-1].v > 2 * beta


def test_the_numerator_form_of_v_minimises_the_stages_bound():
    mu, gap, variance = 0.05, 4.0, 2.0
    stages = lr.acsa_stages(rounds=20_000, gap=gap, smoothness=1e-2 + mu, strong_convexity=mu, variance=variance)
    assert len(stages) >= 3
    for k, (rounds, v) in enumerate(stages):
        diameter = np.sqrt(2 * gap / 2**k / mu)
        settings = {"rounds": rounds, "diameter": diameter, "variance": variance, "form": "convex"}
        best = minimize_scalar(
            lambda log, s=settings: lr.acsa_bound(v=np.exp(log), **s), bounds=(-5, 15), method="bounded"
        )
        assert v == pytest.approx(np.exp(best.x), rel=1e-3)


@pytest.mark.slow
def test_the_printed_form_is_the_least_v():
    """It is harmless if every stage uses μ. Without μ it misses its target, unlike the corrected form."""
    settings = {"rounds": 10_000, "gap": 12.5, "smoothness": 1.0, "strong_convexity": 0.05}
    printed = lr.acsa_stages(**settings, variance=1.0, printed=True)
    corrected = lr.acsa_stages(**settings, variance=1.0)
    assert {s.v for s in printed} == {2.0}
    assert [s.rounds for s in printed] == [s.rounds for s in corrected]
    curvatures = np.geomspace(0.05, 1.0, 20)
    start = np.sqrt(2 * 12.5 / curvatures.sum()) * np.ones(20)
    for mu, harmless in ((0.05, True), (0.0, False)):
        losses = {}
        for name, stages in (("printed", printed), ("corrected", corrected)):
            run = ExactRun(curvatures, start, 1.0, mu)
            losses[name] = [run.stage(*stage).loss / (12.5 / 2**k) for k, stage in enumerate(stages, start=1)]
        assert max(losses["corrected"]) < 1
        assert (max(losses["printed"]) < 1) == harmless


def test_stages_bound_holds_exactly():
    rng, ratios = np.random.default_rng(3), []
    for _ in range(25):
        mu = 10 ** rng.uniform(-1, -0.3)
        curvatures, start, _, _ = problem(rng, mu)
        gap, variance = 0.5 * curvatures @ start**2, 10 ** rng.uniform(-3, 0)
        settings = {"gap": gap, "strong_convexity": mu, "variance": variance}
        stages = lr.acsa_stages(rounds=int(rng.integers(1, 1500)), smoothness=1.0, **settings)
        run = ExactRun(curvatures, start, variance, mu)
        for stage in stages:
            run.stage(*stage)
        ratios.append(run.loss / lr.acsa_stages_bound(stages, **settings))
    assert 0.01 < max(ratios) <= 1


def test_no_room_for_a_stage_and_no_noise():
    settings = {"gap": 1.0, "smoothness": 2.0, "strong_convexity": 0.5}
    assert lr.acsa_stages(rounds=11, variance=0.0, **settings) == [lr.Stage(11, 4.0)]
    assert lr.acsa_stages(rounds=12, variance=1e9, **settings) == [lr.Stage(12, 4.0)]
    endless = lr.acsa_stages(rounds=12 * 1500, variance=0.0, **settings)
    assert endless == [lr.Stage(12, 4.0)] * 1500
    assert lr.acsa_stages_bound(endless, gap=1.0, strong_convexity=0.5, variance=0.0) == 0


def test_refusals():
    with pytest.raises(ValueError, match=r"diameter must be given for the form 'tight', got None"):
        lr.acsa_v(rounds=3, smoothness=1.0)
    with pytest.raises(ValueError, match=r"strong_convexity must be given for the form 'strong', got None"):
        lr.acsa_bound(rounds=3, v=2.0, diameter=1.0, variance=1.0, form="strong")
    with pytest.raises(ValueError, match="unknown form 'tigth', did you mean 'tight'"):
        lr.acsa_v(rounds=3, smoothness=1.0, form="tigth")
    with pytest.raises(ValueError, match=r"strong_convexity must be at most smoothness \(1.0\), got 2.0"):
        lr.acsa_stages(rounds=3, gap=1.0, smoothness=1.0, strong_convexity=2.0, variance=0.0)
    with pytest.raises(ValueError, match="variance must be positive and finite, got 0"):
        lr.acsa_regularized_bound(rounds=3, smoothness=1.0, variance=0.0, diameter=1.0)
