"""Configurations that differ in the step alone, and seeds with equal plans, share one calibration."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cases import CASES, REPRESENTATIVES, SHARES, sparing

from fedprivjax import FedAvg, Full, NoisyMinibatchSGD, NoisySGD, ReducedTreeMomentum, Uniform, draw_plan
from fedprivjax.engine import prepare
from fedprivjax.method.protocol import Protocol
from fedprivjax.plan.plan import equal_but_for_secrets
from fedprivjax.plan.samplers import Subset
from fedprivjax.sweeps import configurations
from fedprivjax.sweeps.configurations import calibrated
from fedprivjax.sweeps.prepare import ready_sweep

STEPS = {"step_scale": [0.5, 1.0, 2.0]}
OWN = ("minibatch-full", "accelerated-plain", "local-disjoint", "user-agd", "tree-none", "reduced-server")


@pytest.mark.parametrize("name", sparing(list(CASES), REPRESENTATIVES))
def test_every_configuration_is_calibrated_as_by_itself(name):
    case = CASES[name]
    over = STEPS if case.protocol.step_size is None else {**STEPS, "step_size": [0.03, 0.1]}
    start = ready_sweep(case.protocol, case.problem, case.participation, over=over, rounds=9, seeds=2, metrics=[])
    plans, shared = [[one.plan for one in start.starts]] * len(start.grid), start.configurations
    alone = calibrated([replace(one, group=number) for number, one in enumerate(start.grid)], plans)
    for found, expected in zip(jax.tree.leaves(shared.leaves), jax.tree.leaves(alone.leaves), strict=True):
        np.testing.assert_array_equal(found, expected)
    for field in ("noise_std", "step_size"):
        np.testing.assert_array_equal(getattr(shared, field), getattr(alone, field))
    for found, expected in zip(shared.realised(1e-5), alone.realised(1e-5), strict=True):
        np.testing.assert_equal(found, expected)
    assert list(map(str, shared.protocols)) == list(map(str, alone.protocols))
    events = {id(event) for events in shared.events for event in events}
    assert name not in REPRESENTATIVES or (len(events) > 2) == (name in OWN)


def test_a_sweep_calibrates_once_for_each_target_clip_and_radius(monkeypatch):
    calls = []
    calibrate_and_check = configurations.calibrate_and_check
    monkeypatch.setattr(configurations, "calibrate_and_check", lambda *a: calls.append(a) or calibrate_and_check(*a))
    over = {"mu": [1.0, 2.0], "step_scale": [1.0, 2.0], "clip": [0.5, 1.0], "step_size": [0.1, 0.2], "radius": [1, 2]}
    method = NoisySGD(clip=1.0)
    start = ready_sweep(method, SHARES, Full(4), over=over, rounds=3, metrics=[])
    assert len(calls) == 8
    targets, clips, radii = (start.axes[name] for name in ("mu", "clip", "radius"))
    shape = [axis.size for axis in start.axes.values()]
    noise = start.configurations.noise_std.reshape(shape)
    assert np.unique(noise.round(6)).size == 3  # 2·clip/mu
    np.testing.assert_allclose(noise, (2 * clips / targets[:, None])[:, None, :, None, None] + np.zeros(shape))
    assert [one.problem.constraint.radius for one in start.grid[:2]] == radii.tolist()


def test_a_guarantee_that_depends_on_the_step_is_not_shared():
    """The step of `ReducedTreeMomentum` bounds how far points move, and with that the sensitivity."""
    case = CASES["reduced-server"]
    method = case.protocol.replace(noise_std=0.4)
    start = ready_sweep(method, case.problem, case.participation, over=STEPS, rounds=4, metrics=[])
    epsilon = start.privacy()[0]["realised_epsilon"][0]
    assert isinstance(method, ReducedTreeMomentum)
    assert np.unique(epsilon.round(4)).size == 3


def test_a_step_that_is_invalid_with_its_target_is_refused_in_a_shared_calibration():
    method = FedAvg(local_epochs=1, batch=3, noise_std=0.0, step_size=0.1)
    with pytest.raises(ValueError, match="step_size must be positive"):
        ready_sweep(method, SHARES, Full(4), over={"step_size": [0.1, -0.1]}, rounds=2, metrics=[])


def test_a_custom_plan_or_calibration_is_not_shared(monkeypatch):
    case = CASES["mu2-none-clipped-uniform"]
    changes = [
        (type(case.protocol), "calibrate", lambda self, *more: Protocol.calibrate(self, *more)),
        (type(case.protocol.algorithm), "planned", lambda self, rounds, step: self),
    ]
    for kind, name, function in changes:
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, function)
            start = ready_sweep(case.protocol, case.problem, case.participation, over=STEPS, rounds=4, metrics=[])
            assert len({id(events[0]) for events in start.configurations.events}) == 3


OF_PLANS = {
    "full": (NoisyMinibatchSGD(sampler="full", clip=1.0, step_size=0.1, epsilon=2.0), Full(4), 1),
    "secret": (NoisyMinibatchSGD(batch=2, clip=1.0, step_size=0.1, epsilon=2.0), Full(4), 1),
    "schedules": (NoisyMinibatchSGD(sampler="full", clip=1.0, step_size=0.1, epsilon=2.0), Uniform(4, 2), 5),
    "samples": (NoisySGD(clip=1.0, step_size=0.1, epsilon=2.0), Full(4), 5),
}


@pytest.mark.parametrize("name", OF_PLANS)
def test_seeds_with_equal_plans_are_calibrated_once(name, monkeypatch):
    protocol, participation, calibrations = OF_PLANS[name]
    options = {"rounds": 2, "seeds": 5, "metrics": []}
    calls = []
    for module in (prepare, configurations):
        known = module.calibrate_and_check
        monkeypatch.setattr(module, "calibrate_and_check", lambda *a, known=known: calls.append(a) or known(*a))
    shared = ready_sweep(protocol, SHARES, participation, **options)
    assert len(calls) == calibrations + 1  # of the runs, and of the grid
    for module in (prepare, configurations):
        monkeypatch.setattr(module, "equal_but_for_secrets", lambda one, other: False)
    alone = ready_sweep(protocol, SHARES, participation, **options)
    for name in ("privacy", "costs", "attributes"):
        np.testing.assert_equal(getattr(shared, name)(), getattr(alone, name)())
    assert [one.seeds for one in shared.starts] == [one.seeds for one in alone.starts]
    for one, other in zip(shared.starts, alone.starts, strict=True):
        assert (str(one), str(one.guarantee)) == (str(other), str(other.guarantee))
        np.testing.assert_equal(one.inputs, other.inputs)
        assert jax.random.key_data(one.key).tolist() == jax.random.key_data(other.key).tolist()
    leaves = (jax.tree.leaves(start.configurations.leaves) for start in (shared, alone))
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)


def test_plans_whose_secret_samples_are_drawn_are_compared_with_them():
    sampler = Subset(2)
    one, other, again = (draw_plan(SHARES, Full(4), 3, seed, sampler=sampler) for seed in (0, 1, 0))
    assert equal_but_for_secrets(one, other)
    assert not np.array_equal(one.samples, other.samples)
    assert not equal_but_for_secrets(one, other)
    assert not equal_but_for_secrets(one, again)  # drawn, and not drawn
    assert np.array_equal(one.samples, again.samples)
    assert equal_but_for_secrets(one, again)
    assert not equal_but_for_secrets(one, draw_plan(SHARES, Full(4), 3, sampler=Subset(1)))
