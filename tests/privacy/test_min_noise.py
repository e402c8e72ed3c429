"""Cached noise: reused if valid, and recomputed if not."""

from math import inf

import numpy as np
import pytest
from cases import PARTIAL, SHARES, sparing

from fedprivjax import DPMu2, LocalSGD, NoisyMinibatchSGD, disk_cache
from fedprivjax.engine.prepare import ready
from fedprivjax.plan.samplers import Poisson, Replacement, Subset
from fedprivjax.privacy import target
from fedprivjax.privacy.accountants import bounds, sampled
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.target import Target, cached_min_noise, min_noise_for_all
from fedprivjax.privacy.terms import Terms

SIZES, SAMPLER = np.array([61, 100, 400]), Subset(10)
TARGET = Target(epsilon=2.0, delta=1e-5)


@pytest.fixture(autouse=True)
def folder(keeping):
    return keeping / "noise"


@pytest.fixture
def solved(monkeypatch):
    """List with one entry per solved noise."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return min_noise_for_all(*arguments)

    monkeypatch.setattr(target, "min_noise_for_all", counted)
    return calls


def forget():
    """Clear the caches of this process."""
    for cached in (
        sampled.sampled_epsilon,
        sampled._loss,
        sampled.one_release,
        sampled.noise_multiplier_for,
        bounds.quick_epsilon,
    ):
        cached.cache_clear()


def event(noise_std=1.0, sampler=SAMPLER, shift=0.2, sizes=SIZES, batch=10, rounds=200, group=(0, 1, 2)):
    group, ones = np.array(group), np.ones_like(sizes)
    releases = Releases(shift / sizes * sizes[0], sizes, batch * ones, rounds * ones, ones, group)
    return RecordEvent(noise_std, Sampled(sampler), releases, Terms("none", "a theorem"))


def needed(target=TARGET, **settings):
    forget()
    cache_key = *event(**settings).cache_key, *target.cache_key
    return cached_min_noise(
        cache_key, lambda noise, only=None: event(noise, **settings).target_ratio(target, None, only), 1.0
    )


def files(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def test_noise_is_solved_for_once_and_identical(folder, solved):
    assert (
        needed()
        == needed()
        == min_noise_for_all(lambda noise, only=None: event(noise).target_ratio(TARGET, None, only), 1.0)
    )
    assert len(solved) == 1
    assert len(files(folder)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda noise: np.array([0.5 * noise]),
        lambda noise: np.array([0.999999 * noise]),
        lambda noise: np.array([1.000001 * noise]),
        lambda noise: np.array([2 * noise]),
        lambda noise: np.array([0.0]),
        lambda noise: np.array([-noise]),
        lambda noise: np.array([inf]),
        lambda noise: np.array([np.nan]),
        lambda noise: np.array([noise, noise]),
        lambda noise: np.array([noise], np.float32),
        lambda noise: np.array(noise),
        lambda noise: np.array(["much"]),
    ],
)
def test_a_wrong_cached_number_is_detected_and_replaced(folder, solved, wrong):
    right = needed()
    (path,) = files(folder)
    np.save(path, wrong(right))
    assert needed() == right
    assert np.load(path).tolist() == [right]
    assert needed() == right
    assert len(solved) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"sampler": Replacement(10)},
        {"sampler": Poisson(10)},
        {"shift": 0.21},
        {"sizes": SIZES + 1},
        {"batch": 9},
        {"rounds": 201},
        {"group": (0, 1, 1)},
        {"target": Target(epsilon=2.5, delta=1e-5)},
        {"target": Target(epsilon=2.0, delta=1e-6)},
        {"target": Target(mu=0.5, delta=1e-5)},
        {"target": Target(epsilon=(2.0, 2.0, 3.0), delta=1e-5)},
    ],
)
def test_every_argument_makes_another_file(folder, other):
    needed()
    needed(**other)
    assert len(files(folder)) == 2


def test_other_code_or_another_accountant_makes_another_file(folder, solved, monkeypatch):
    needed()
    monkeypatch.setattr(target, "code_digest", lambda *folders, packages: "mended")
    needed()
    assert len(solved) == len(files(folder)) == 2


def test_the_code_is_that_of_privacy_and_of_samplers():
    names = {path.name for path in target.CODE}
    assert names == {"privacy", "samplers"}
    assert all((path / "__init__.py").exists() for path in target.CODE)


def test_fast_solutions_are_not_cached(folder, monkeypatch):
    monkeypatch.setattr(disk_cache, "SLOW", 60.0)
    needed()
    assert files(folder) == []


@pytest.mark.parametrize("calibrate_to", sparing(["plan", "rule"], ["plan"]))
@pytest.mark.parametrize("method", sparing([NoisyMinibatchSGD, LocalSGD], [NoisyMinibatchSGD]))
def test_methods_use_the_cache_and_reject_half_the_noise(folder, solved, method, calibrate_to):
    protocol = method(epsilon=2.0, batch=2, clip=1.0, sampler="replacement", step_size=0.1, calibrate_to=calibrate_to)

    def calibrated():
        forget()
        return ready(protocol, SHARES, PARTIAL, rounds=4, delta=1e-5).protocol.noise_std

    right = calibrated()
    assert calibrated() == right
    assert len(solved) == 1
    (path,) = files(folder)
    np.save(path, np.array([right / 2]))
    assert calibrated() == right
    assert len(solved) == 2


def test_noise_in_closed_form_is_not_cached(folder):
    protocol = DPMu2(mu=1.0, clip=1.0, step_size=0.1, calibrate_to="plan")
    assert ready(protocol, SHARES, PARTIAL, rounds=4).event.cache_key is None
    assert files(folder) == []
