"""Search for the smallest noise, and its speed-ups: bounds that skip machines, and convolutions."""

from math import inf

import numpy as np
import pytest

from fedprivjax.plan.samplers import Poisson, Replacement, Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants import sampled
from fedprivjax.privacy.accountants.bounds import quick_epsilon
from fedprivjax.privacy.accountants.composition import composed, epsilon_between
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.accountants.sampled import SampledReleases
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.target import CLOSE, Target, TargetRatio, min_noise_for_all, search_min_noise
from fedprivjax.privacy.terms import Terms

SETTINGS = [
    (Subset(10), 61, 200, 3.5),
    (Subset(1), 5, 1, 3.0),
    (Subset(2), 400, 1000, 0.9),
    (Replacement(1), 400, 2000, 0.8),
    (Replacement(10), 300, 20, 2.0),
    (Poisson(10), 300, 200, 1.0),
]


@pytest.mark.parametrize(
    ("epsilon_of", "asked"),
    [
        (lambda noise: 3 / noise**2, 1.0),
        (lambda noise: 3 / noise + 4 / noise**2 + 1e-3 / noise**4, 2.0),
        (lambda noise: inf if noise < 0.3 else 2 / noise, 1.0),
    ],
)
@pytest.mark.parametrize("guess", [0.01, 2.0, 1e3])
def test_the_found_noise_meets_the_target_tightly(epsilon_of, asked, guess):
    found = search_min_noise(epsilon_of, asked, guess)
    assert asked * (1 - 1e-6) < epsilon_of(found) <= asked


def test_targets_that_no_noise_or_any_noise_meets():
    assert search_min_noise(lambda noise: inf, 1.0, 1.0) == inf
    assert search_min_noise(lambda noise: 0.0, 1.0, 1.0) < 1e-12


@pytest.mark.parametrize(("sampler", "records", "rounds", "z"), SETTINGS)
@pytest.mark.parametrize("whole", [False, True])
def test_the_quick_bound_is_slightly_above_the_fine_one(sampler, records, rounds, z, whole):
    for delta in (1e-3, 1e-8):
        settings = {"sampler": sampler, "records": records, "rounds": rounds, "delta": delta, "whole_message": whole}
        releases = SampledReleases(**settings)
        assert 1 <= quick_epsilon(z, releases) / sampled.sampled_epsilon(z, releases) < 1.02


@pytest.mark.parametrize(
    ("sampler", "records", "rounds", "z", "delta"),
    [
        (Poisson(1), 673, 4, 0.8982298215790355, 1.39e-12),
        (Replacement(4), 3, 15, 1.2424336357168826, 2.05e-12),
        (Poisson(64), 490, 867, 2.5948488340141346, 1.1097763302554793e-12),
        (Subset(2), 518, 3599, 0.08876885252081407, 1.2685104983075312e-12),
    ],
)
def test_the_quick_bound_is_not_below_for_tiny_delta(sampler, records, rounds, z, delta):
    settings = {"sampler": sampler, "records": records, "rounds": rounds, "delta": delta, "whole_message": True}
    assert quick_epsilon(z, SampledReleases(**settings)) >= sampled.sampled_epsilon(z, SampledReleases(**settings))


@pytest.mark.parametrize(
    ("rounds", "mu", "delta"),
    [(2033, 2.0070858722024636, 1.3361364249513011e-12), (4411, 3.4482709689657214, 3.214959292137856e-12)],
)
def test_rounding_makes_no_bound_less_than_the_gaussian_mechanism_s_own(rounds, mu, delta):
    """Two samples of a machine's only record give no amplification, and are composed like any others."""
    settings = {"sampler": Replacement(2), "records": 1, "rounds": rounds, "delta": delta, "whole_message": True}
    bound = sampled.sampled_epsilon(2 * rounds**0.5 / mu, SampledReleases(**settings))
    assert 1 <= bound / gdp.epsilon(mu, delta) < 1.1


@pytest.mark.parametrize(("sampler", "records", "rounds", "z"), SETTINGS)
def test_convolutions_are_dp_accountings(sampler, records, rounds, z):
    one = sampled.one_release(z, sampler, records, False)
    theirs = one.self_compose(rounds)
    for delta in (1e-3, 1e-6):
        low, high = epsilon_between(composed(one, rounds), delta)
        assert low == high == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-6, abs=1e-12)


def machines(noise_std, sizes, rounds=200):
    """Event of machines with these numbers of records and noise proportional to 1/records."""
    shift, kinds = 0.2 * sizes / sizes.min(), np.arange(sizes.size)
    releases = Releases(shift, sizes, np.full(sizes.size, 10), np.full(sizes.size, rounds), np.ones_like(kinds), kinds)
    return RecordEvent(noise_std, Sampled(Subset(10)), releases, Terms("none", "a theorem"))


def test_few_of_many_different_machines_are_evaluated_exactly(monkeypatch):
    """59 machines of 59 sizes: the noise is the largest needed by any of them, found with few slow evaluations."""
    sizes, looked = np.round(61 + 702 * np.linspace(0, 1, 59) ** 1.526).astype(int), []
    target, inner = Target(epsilon=2.0, delta=1e-5), Sampled.epsilon

    def counted(self, *machine, delta):
        looked.append(machine)
        return inner(self, *machine, delta=delta)

    monkeypatch.setattr(Sampled, "epsilon", counted)
    found = min_noise_for_all(lambda noise, only=None: machines(noise, sizes).target_ratio(target, None, only), 1.0)
    assert len(set(looked)) < 15  # 595 if each machine is solved for separately
    each = machines(found, sizes[::6]).epsilons(1e-5).each
    assert max(*each, machines(found, sizes).epsilon(1e-5)) <= 2.0
    assert machines(found * (1 - 1e-6), sizes).epsilon(1e-5) > 2.0


def test_a_machine_that_is_worst_at_the_end_alone_is_found():
    """One of two machines is worse at the first noise, the other at the smallest noise that is enough for both."""
    curves = {"steep": lambda noise: 30 / noise**3, "flat": lambda noise: 4 / noise}

    def target_ratio(noise, only=None):
        return max(TargetRatio(curves[one](noise), one) for one in ([only] if only else curves))

    assert target_ratio(1.0).worst == "steep"
    found = min_noise_for_all(target_ratio, 1.0)
    assert 1 - 1e-6 < target_ratio(found).ratio <= 1
    assert found == pytest.approx(4.0, rel=1e-5)


def test_the_search_starts_where_the_quick_bound_meets_the_target():
    slow = []

    def target_ratio(noise, only=None):
        slow.append(noise)
        return TargetRatio(3 / noise**2, "one")

    found = min_noise_for_all(target_ratio, 1e-3, lambda noise, only=None: TargetRatio(3.02 / noise**2, "one"))
    assert 1 - CLOSE <= 3 / found**2 <= 1
    assert len(slow) <= 6  # 12 from the first guess
    assert min(slow) > 0.99 * found


def test_a_quick_bound_that_no_noise_meets_is_not_used():
    def target_ratio(noise, only=None):
        return TargetRatio(3 / noise**2, "one")

    found = min_noise_for_all(target_ratio, 1.0, lambda noise, only=None: TargetRatio(inf, "one"))
    assert found == min_noise_for_all(target_ratio, 1.0)


def test_the_quick_bound_of_a_single_kind_of_machine_is_not_computed(monkeypatch):
    one = machines(1.0, np.array([61]))
    expected = one.epsilons(1e-5).max
    monkeypatch.setattr(Sampled, "quick_epsilon", lambda *_, **__: pytest.fail("it is not needed"))
    assert one.epsilon(1e-5) == expected


def test_epsilon_above_600_is_bracketed():
    loss = composed(sampled.one_release(0.1, Subset(2), 400, False), 1000)
    low, high = epsilon_between(loss, 1e-6)
    assert 600 < low < high < low * (1 + 2e-6)
    assert loss.get_delta_for_epsilon(high) <= 1e-6 < loss.get_delta_for_epsilon(low)
