"""Calibration time for 59 machines of 59 sizes, without and with cached noise."""

import os
from importlib import import_module

import numpy as np
import pytest

from fedprivjax import Ball, LocalSGD, NoisyMinibatchSGD, Seeds, Uniform, datasets, from_dataset
from fedprivjax.plan.draw import draw_plan
from fedprivjax.privacy.accountants import bounds, sampled
from fedprivjax.privacy.calibration import calibrate


def federation():
    sizes = np.round(61 + 702 * np.linspace(0, 1, 59) ** 1.526).astype(int)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(sizes.sum(), 5))
    features /= 1.001 * np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.arange(len(features)) % 2
    machine = np.repeat(np.arange(59), sizes)
    data = datasets.from_arrays(features, labels, feature_bound=1.0, classes=2, machine_of=machine)
    return from_dataset(data, constraint=Ball(1.0))


def seconds(protocol, problem, plan):
    """CPU seconds over all threads, as in a new process that has imported dp-accounting, and the noise."""
    import_module("dp_accounting.pld.privacy_loss_distribution")
    for cached in (sampled.sampled_epsilon, sampled._loss, sampled.one_release, bounds.quick_epsilon):
        cached.cache_clear()
    before = os.times()
    noise_std = calibrate(protocol, problem, plan, epsilon=2.0, delta=1e-5).noise_std
    after = os.times()
    return after.user + after.system - before.user - before.system, noise_std


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize(("method", "most"), [(NoisyMinibatchSGD, 2.0), (LocalSGD, 4.0)])
def test_it_takes_seconds_once_and_then_a_part_of_one(method, most, keeping):
    protocol = method(batch=10, clip=1.0, sampler="replacement", step_size=0.1, calibrate_to="plan", delta=1e-5)
    problem = federation()
    plan = draw_plan(problem, Uniform(59, 30), 200, Seeds(1, 1, 1), sampler=protocol.minibatches)
    first, noise_std = seconds(protocol, problem, plan)
    assert len(list(keeping.rglob("*.npy"))) == 1
    second, again = seconds(protocol, problem, plan)
    assert again == noise_std
    assert first < most
    assert second < first / 1.5
