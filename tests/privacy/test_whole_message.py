"""Messages that are clipped as a whole: a record moves them by up to 2C, regardless of the others.

In the worst pair all other records keep a message at −C, and the record turns it to +C if it is sampled. The adversary
distinguishes N(0) from (1 − η)·N(0) + η·N(2C), with η the probability that the record is sampled.
"""

from math import exp, expm1, log1p

import numpy as np
import pytest
from cases import sparing
from scipy.optimize import brentq
from scipy.stats import norm

from fedprivjax import Full as Everyone
from fedprivjax import Logistic, calibrate, draw_plan, general_problem, linear_problem, transcript
from fedprivjax.plan.samplers import Disjoint, Full, Poisson, Replacement, Subset
from fedprivjax.privacy.accountants.bounds import attainable_epsilon
from fedprivjax.privacy.accountants.sampled import SampledReleases, noise_multiplier_for, sampled_epsilon
from fedprivjax.privacy.noise_rules import noise_std
from fedprivjax.protocols import ReleasedMinibatchSGD

RECORDS, BATCH, DELTA = 100, 10, 1e-5
ONE = {"records": RECORDS, "rounds": 1, "delta": DELTA, "whole_message": True}
CHANCE = {
    Replacement(BATCH): 1 - (1 - 1 / RECORDS) ** BATCH,
    Subset(BATCH): BATCH / RECORDS,
    Poisson(BATCH): BATCH / RECORDS,
    Disjoint(BATCH): 1.0,
    Full(): 1.0,
}
SAMPLERS = pytest.mark.parametrize("sampler", CHANCE, ids=lambda sampler: sampler.name)


def gaussian(epsilon, shift):
    return norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)


def turned(epsilon, chance, z):
    """δ of the mixture and N(0): η·δ_{2/z}(ln(1 + (e^ε − 1)/η))."""
    return chance * gaussian(log1p(expm1(epsilon) / chance), 2 / z)


def turned_back(epsilon, chance, z):
    """δ of N(0) and the mixture, from the probabilities left of the point with density ratio e^ε."""
    rest = 1 - exp(epsilon) * (1 - chance)
    if rest <= 0:
        return 0.0
    most = z**2 / 2 * (np.log(rest / chance) - epsilon) + 1
    return rest * norm.cdf(most / z) - exp(epsilon) * chance * norm.cdf((most - 2) / z)


def attained(chance, z):
    """ε of the worse direction, at δ."""
    found = 0.0
    for profile in (turned, turned_back):
        if profile(0.0, chance, z) > DELTA:
            found = max(found, brentq(lambda e, profile=profile: profile(e, chance, z) - DELTA, 0.0, 60.0))
    return found


@pytest.mark.parametrize("chance", [0.1, 0.6, 1.0])
def test_the_closed_forms_are_the_integrals(chance):
    x = np.linspace(-12, 16, 200_001)
    one, other = (1 - chance) * norm.pdf(x) + chance * norm.pdf(x - 2), norm.pdf(x)
    for epsilon in (0.05, 0.4):
        for profile, p, q in ((turned, one, other), (turned_back, other, one)):
            integral = np.maximum(p - exp(epsilon) * q, 0).sum() * (x[1] - x[0])
            assert profile(epsilon, chance, 1.0) == pytest.approx(integral, abs=1e-6)


@pytest.mark.parametrize(("z", "epsilon"), [(1.0, 6.58), (2.0, 1.684)])
def test_a_poisson_sample_of_ten_in_a_hundred(z, epsilon):
    assert attained(0.1, z) == pytest.approx(epsilon, abs=5e-3)
    stated = sampled_epsilon(z, SampledReleases(sampler=Poisson(BATCH), **ONE))
    assert stated == pytest.approx(epsilon, abs=5e-3)
    assert sampled_epsilon(z, SampledReleases(sampler=Poisson(BATCH), **{**ONE, "whole_message": False})) < epsilon / 3


@SAMPLERS
@pytest.mark.parametrize("z", [0.5, 1.0, 2.0, 5.0, 20.0])
def test_one_messages_leakage_is_within_the_stated_epsilon(sampler, z):
    stated, truth = sampled_epsilon(z, SampledReleases(sampler=sampler, **ONE)), attained(CHANCE[sampler], z)
    assert truth * (1 - 1e-9) <= stated <= truth * 1.002 + 1e-4  # this pair is the worst


@SAMPLERS
@pytest.mark.parametrize("rounds", sparing([1, 20], [1]))
def test_attained_epsilon_is_below_the_stated(sampler, rounds):
    for z in (1.0, 4.0, 15.0):
        releases = SampledReleases(**{**ONE, "sampler": sampler, "rounds": rounds})
        least, most = attainable_epsilon(z, releases), sampled_epsilon(z, releases)
        assert 0 < least <= most * (1 + 1e-9)
        assert least > 0.85 * most  # empty Poisson samples, and the two directions together, cost the rest


@SAMPLERS
def test_noise_for_a_target(sampler):
    releases = SampledReleases(sampler=sampler, **ONE)
    z = noise_multiplier_for(2.0, releases)
    assert attained(CHANCE[sampler], z) == pytest.approx(2.0, rel=1e-3)
    std = noise_std("accountant", releases, lipschitz=3.0, epsilon=2.0)
    assert std == pytest.approx(3 * z)
    assert sampled_epsilon(std / 3, releases) == sampled_epsilon(z, releases)


@SAMPLERS
@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_the_rule_by_advanced_composition_is_valid(sampler, epsilon):
    releases = SampledReleases(**{**ONE, "rounds": 20, "sampler": sampler})
    std = noise_std("advanced", releases, lipschitz=3.0, epsilon=epsilon)
    assert 0 < sampled_epsilon(std / 3, releases) < epsilon


ZEROS = np.zeros((1, RECORDS, 2), np.float32)
PROBLEM = linear_problem(ZEROS, ZEROS[..., 0].astype(int), Logistic(), feature_bound=1.0)


def protocol(sampler, **settings):
    given = {"clip": 1.0, "clip_at": "message", "step_size": 1e-6, "batch": sampler.batch, "sampler": sampler.name}
    return ReleasedMinibatchSGD(**{**given, **settings})


@SAMPLERS
@pytest.mark.parametrize("z", sparing([1.0, 2.0], [2.0]))
def test_a_run_states_no_less(sampler, z):
    run = protocol(sampler, clip=3.0, noise_std=3.0 * z)
    plan = draw_plan(PROBLEM, Everyone(1), 1, sampler=run.minibatches)
    stated = run.event(PROBLEM, plan).guarantee(DELTA).epsilon
    assert stated == pytest.approx(attained(CHANCE[sampler], z), rel=2e-3)
    assert stated >= attained(CHANCE[sampler], z) * (1 - 1e-6)
    summary = run.event(PROBLEM, plan).summary(DELTA)
    assert 0.85 * stated < summary["ε (at least)"] <= stated * (1 + 1e-6)


@SAMPLERS
def test_a_runs_noise_is_enough(sampler):
    run = protocol(sampler, epsilon=2.0)
    plan = draw_plan(PROBLEM, Everyone(1), 1, sampler=run.minibatches)
    ready = calibrate(run, PROBLEM, plan, delta=DELTA)
    assert attained(CHANCE[sampler], ready.noise_std) == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize(
    "sampler",
    sparing([Replacement(BATCH), Subset(BATCH), Poisson(BATCH)], [Replacement(BATCH)]),
    ids=lambda one: one.name,
)
def test_one_record_turns_real_messages_round(sampler):
    """Gradients of 99 records are −100, the first is 10⁶ or −100. Messages are 1 if 10⁶ is sampled, otherwise −1."""
    sent = []
    for first in (1e6, -100.0):
        data = np.full((1, RECORDS), -100.0, np.float32)
        data[0, 0] = first
        problem = general_problem(lambda w, x: x * w[0], data, np.zeros(1, np.float32), split=True)
        view = transcript(protocol(sampler, noise_std=0.0), problem, Everyone(1), rounds=4000, seed=1, delta=DELTA)
        sent.append(np.asarray(view.messages).ravel().round(5))
    assert set(np.unique(sent[0])) <= {-1.0, 0.0, 1.0}
    assert (sent[0] > 0).mean() == pytest.approx(CHANCE[sampler], abs=4 * np.sqrt(0.1 / 4000))
    np.testing.assert_array_equal(np.where(sent[0] > 0, -1.0, sent[0]), sent[1])


def hockey_stick(epsilon, one, other, z, rate):
    """∫ max(P − e^ε·Q, 0) in the plane, of (1 − q)·N(0) + q·N(a) and the same with b, as a sum."""
    side = np.linspace(-9 * z - 1, 9 * z + 1, 501)
    x = np.stack(np.meshgrid(side, side), axis=-1)

    def density(shift):
        hit = np.exp(-np.sum((x - shift) ** 2, axis=-1) / (2 * z**2))
        return ((1 - rate) * np.exp(-np.sum(x**2, axis=-1) / (2 * z**2)) + rate * hit) / (2 * np.pi * z**2)

    return np.maximum(density(one) - exp(epsilon) * density(other), 0).sum() * (side[1] - side[0]) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "z"), [(0.1, 1.0), (0.1, 2.0), (0.6, 1.0), (0.9, 3.0)])
def test_clipped_records_in_poisson_samples_move_a_sum_about_a_fixed_centre(rate, z):
    """dp-accounting's pair, +L and −L if the record is sampled, is the worst of all pairs."""
    delta = 1e-3
    settings = {"records": 100, "rounds": 1, "delta": delta}
    epsilon = sampled_epsilon(z, SampledReleases(sampler=Poisson(int(100 * rate)), **settings))
    ends = [
        length * np.array([np.cos(angle), np.sin(angle)])
        for length in (0.5, 1.0)
        for angle in (0.0, 1.0, 2.0, 2.8, np.pi)
    ]
    attained = {
        (length, i): hockey_stick(epsilon, np.array([length, 0.0]), end, z, rate)
        for length in (0.0, 0.5, 1.0)
        for i, end in enumerate([np.zeros(2), *ends])
    }
    opposite = attained.pop((1.0, len(ends)))
    assert opposite == pytest.approx(delta, rel=0.01)
    assert max(attained.values()) < opposite
    assert hockey_stick(0.97 * epsilon, np.array([1.0, 0.0]), np.array([-1.0, 0.0]), z, rate) > 1.02 * delta
