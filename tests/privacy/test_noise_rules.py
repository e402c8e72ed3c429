"""Noise rules: the theorems' formulas, their conditions, and the ε that they give."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from cases import sparing

from fedprivjax.privacy import noise_rules
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.noise_rules import NOISE_RULES, minimum_batch, moments_batch, noise_std
from fedprivjax.privacy.rounding import down

DELTA = 1238**-2.0
MNIST = {"sampler": "replacement", "lipschitz": 1.0, "records": 1238, "batch": 443, "rounds": 35, "delta": DELTA}
SMALL = {"sampler": "subset", "lipschitz": 1.0, "records": 20, "batch": 8, "rounds": 6, "delta": 1e-5}
# the bound on the true ε: with the constant 256, and with the experiments' 8
ADVANCED = {0.75: 0.020825, 1.5: 0.044171, 3.0: 0.093578, 6.0: 0.198857, 12.0: 0.427714, 18.0: 0.678703}
MOMENTS = {0.75: 0.71369, 1.5: 1.68904, 3.0: 4.71240, 6.0: 14.2415, 12.0: 47.2742, 18.0: 101.0304}


def std(rule, epsilon, **changes):
    settings = {**MNIST, **changes}
    acknowledged, lipschitz = settings.pop("acknowledged", False), settings.pop("lipschitz")
    return noise_std(rule, SampledReleases(**settings), lipschitz=lipschitz, epsilon=epsilon, acknowledged=acknowledged)


def true(noise, *, lipschitz, **settings):
    releases = SampledReleases(**settings)
    return sampled_epsilon(noise * releases.batch / lipschitz, releases)


@pytest.mark.parametrize(("lipschitz", "records", "rounds", "epsilon"), [(1.0, 1238, 35, 6.0), (21.5, 600, 80, 0.5)])
def test_the_formulas(lipschitz, records, rounds, epsilon):
    changes = {"lipschitz": lipschitz, "records": records, "rounds": rounds}
    scale = lipschitz**2 * rounds / (records * epsilon) ** 2
    advanced = std("advanced", epsilon, **changes)
    assert advanced**2 == pytest.approx(256 * scale * log(2.5 * rounds / DELTA) * log(2 / DELTA), rel=1e-12)
    moments = std("paper_moments", epsilon, acknowledged=True, **changes)
    assert moments**2 == pytest.approx(8 * scale * log(1 / DELTA), rel=1e-12)


def test_one_pass_has_a_separate_rule():
    found = std("advanced", 6.0, sampler="disjoint", lipschitz=3.0, batch=7, rounds=10)
    assert found**2 == pytest.approx(32 * 9 * log(1.25 / DELTA) / 42**2, rel=1e-12)
    assert found == std("advanced", 6.0, sampler="disjoint", lipschitz=3.0, batch=7, rounds=100)


@pytest.mark.parametrize("batch", [200, 443, 1238])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 18.0])
def test_derivation_of_the_advanced_rule(epsilon, batch):
    """Each round has ε̃ and δ̃. Sampling allows ε′ per round, which the Gaussian mechanism gives. K cancels."""
    records, rounds = MNIST["records"], MNIST["rounds"]
    each, slack = epsilon / (2 * sqrt(2 * rounds * log(2 / DELTA))), DELTA / (2 * rounds)
    before = records * each / (2 * batch)
    assert before <= 1
    sensitivity = 2 / batch
    gaussian = 2 * sensitivity**2 * log(1.25 / slack) / before**2
    assert std("advanced", epsilon, batch=batch) ** 2 == pytest.approx(gaussian, rel=1e-12)
    amplified = log(1 + batch / records * (exp(before) - 1))
    assert amplified <= each * (1 + 1e-12)  # = 2·(K/n)·ε′
    composed = each * sqrt(2 * rounds * log(2 / DELTA)) + rounds * each * (exp(each) - 1)
    assert composed <= epsilon
    assert rounds * slack + DELTA / 2 == pytest.approx(DELTA)


@pytest.mark.parametrize("epsilon", [0.1, 3.0, 18.0])
def test_the_least_batch_is_where_the_gaussian_mechanism_applies(epsilon):
    settings = {"records": 1238, "rounds": 35, "epsilon": epsilon, "delta": DELTA}
    each = epsilon / (2 * sqrt(2 * 35 * log(2 / DELTA)))
    assert 1238 * each / (2 * minimum_batch(**settings)) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("epsilon", ADVANCED)
def test_the_advanced_rule_is_valid_and_conservative(epsilon):
    settings = {**MNIST, "delta": DELTA}
    assert true(std("advanced", epsilon), **settings) == pytest.approx(ADVANCED[epsilon], rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 8 * log(1e5)])
def test_the_rule_for_one_pass_is_valid_up_to_its_largest_epsilon(epsilon):
    settings = {**SMALL, "sampler": "disjoint", "batch": 3}
    given = true(std("advanced", epsilon, **settings), **settings)
    assert epsilon / 4 < given < epsilon


@pytest.mark.parametrize("epsilon", MOMENTS)
def test_realised_epsilon_of_the_experiments_rule(epsilon):
    given = true(std("paper_moments", epsilon, acknowledged=True), **MNIST)
    assert given == pytest.approx(MOMENTS[epsilon], rel=2e-3)


@pytest.mark.parametrize(
    ("sampler", "epsilon", "ratio"),
    sparing(
        [
            ("replacement", 6.0, 1.71512),
            ("replacement", 0.75, 0.95881),
            ("subset", 18.0, 1.58401),
            ("poisson", 3.0, 0.88119),
        ],
        [("replacement", 0.75, 0.95881), ("poisson", 3.0, 0.88119)],
    ),
)
def test_required_noise_as_a_multiple_of_the_experiments(sampler, epsilon, ratio):
    paper = std("paper_moments", epsilon, acknowledged=True)
    assert std("accountant", epsilon, sampler=sampler) / paper == pytest.approx(ratio, rel=2e-3)


@pytest.mark.parametrize(
    "sampler", sparing(["replacement", "subset", "poisson", "disjoint", "full"], ["subset", "disjoint", "full"])
)
def test_the_accountant_meets_the_target_tightly(sampler):
    settings = {**SMALL, "sampler": sampler, "lipschitz": 7.0}
    found = std("accountant", 2.0, **settings)
    assert true(found * (1 + 1e-12), **settings) <= 2.0 < true(found * (1 - 1e-3), **settings)


@pytest.mark.parametrize("rule", NOISE_RULES)
def test_scales(rule):
    """Noise is linear in L, and the true ε depends only on the ratio of noise to L."""
    one, seven = (std(rule, 3.0, lipschitz=lipschitz, acknowledged=True) for lipschitz in (1.0, 7.0))
    assert seven == pytest.approx(7 * one, rel=1e-12)
    of = [true(value, **{**MNIST, "lipschitz": bound}) for value, bound in ((one, 1.0), (4 * one, 4.0))]
    assert of[0] == of[1]
    assert std(rule, 1.5, acknowledged=True) > one


@pytest.mark.parametrize("rule", NOISE_RULES)
def test_an_infinite_target_needs_no_noise(rule):
    assert std(rule, inf) == 0


def test_another_constant_would_be_noticed(monkeypatch):
    """With 128 instead of 256, or ln(1/δ) instead of ln(2/δ), the true ε differs from the table."""
    right = std("advanced", 6.0)
    for wrong in (right / sqrt(2), right * sqrt(log(1 / DELTA) / log(2 / DELTA))):
        assert abs(true(wrong, **MNIST) / ADVANCED[6.0] - 1) > 0.01
    monkeypatch.setattr(noise_rules, "noise_multiplier_for", lambda *_, **__: 3.77)
    assert true(std("accountant", 6.0), **MNIST) > 14


def test_batches_of_the_experiments():
    assert moments_batch(records=1238, rounds=35, epsilon=18.0) == 443
    # insurance: 1338 records in 3, 5 and 10 parts, rounded up
    assert [moments_batch(records=-(-1338 // parts), rounds=35, epsilon=3.0) for parts in (3, 5, 10)] == [65, 39, 19]
    assert [moments_batch(records=1238, rounds=35, epsilon=e) for e in (0.75, 1.5, 3, 6, 12)] == [
        90,
        128,
        181,
        256,
        362,
    ]
    assert moments_batch(records=2, rounds=35, epsilon=0.1) == 1


def test_the_condition_on_the_batch_is_sharp():
    least = minimum_batch(records=1238, rounds=35, epsilon=18.0, delta=DELTA)
    assert int(np.ceil(least)) == 173
    assert std("advanced", 18.0, batch=173) == std("advanced", 18.0)
    with pytest.raises(
        ValueError, match=r"^batch must be at least 172\.\d for the rule 'advanced' at epsilon 18, got 172$"
    ):
        std("advanced", 18.0, batch=172)


@pytest.mark.parametrize("sampler", ["replacement", "disjoint"])
def test_the_condition_on_epsilon_is_sharp(sampler):
    most = 8 * log(1 / DELTA) if sampler == "disjoint" else 2 * log(2 / DELTA)
    assert std("advanced", most * (1 - 1e-9), sampler=sampler) > 0
    with pytest.raises(
        ValueError,
        match=rf"^epsilon must be at most {down(most, 4)} for the rule 'advanced' at delta 6.52467e-07, got \d+\.\d+$",
    ):
        std("advanced", most * (1 + 1e-9), sampler=sampler)


def test_the_range_of_the_experiments_rule_is_sharp():
    most = 2 * log(1 / DELTA)
    assert std("paper_moments", most * (1 - 1e-9), acknowledged=True) > 0
    with pytest.raises(ValueError, match=r"^epsilon must be at most 28.48 for the rule 'paper_moments', got 28\.4\d+$"):
        std("paper_moments", most * (1 + 1e-9), acknowledged=True)


@pytest.mark.parametrize("acknowledged", [False, None, 1, "yes"])
def test_the_experiments_rule_must_be_acknowledged(acknowledged):
    with pytest.raises(
        ValueError,
        match=r"^acknowledged must be true for noise_rule 'paper_moments', whose claimed ε is invalid for sampled "
        r"batches. Results report a valid ε$",
    ):
        std("paper_moments", 6.0, acknowledged=acknowledged)


@pytest.mark.parametrize(
    ("rule", "epsilon", "changes", "message"),
    [
        ("advance", 1.0, {}, "unknown noise_rule 'advance', did you mean 'advanced'.*"),
        ("accountant", 1.0, {"sampler": "subsets"}, "unknown sampler 'subsets', did you mean 'subset'.*"),
        ("accountant", 0.0, {}, "epsilon must be positive, got 0.0"),
        ("advanced", -1.0, {}, "epsilon must be positive, got -1.0"),
        ("accountant", 1.0, {"lipschitz": 0.0}, "lipschitz must be positive, got 0.0"),
        ("accountant", 1.0, {"lipschitz": inf}, "lipschitz must be finite, got inf"),
        ("advanced", 1.0, {"delta": 1.0}, "delta must be between 0 and 1, got 1.0"),
        ("advanced", 1.0, {"records": 0}, "records must be at least 1, got 0"),
        ("advanced", 1.0, {"batch": 0}, "batch must be at least 1, got 0"),
        ("advanced", 1.0, {"rounds": 0}, "rounds must be at least 1, got 0"),
        (
            "accountant",
            1.0,
            {"sampler": "subset", "batch": 1239},
            r"batch must be at most records \(1238\) for the sampler 'subset', got 1239",
        ),
    ],
)
def test_refusals(rule, epsilon, changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        std(rule, epsilon, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e5, 2e6])
def test_a_target_that_protects_nothing_is_still_calibrated(epsilon):
    z = std("accountant", epsilon, batch=20, records=100)
    assert 0 < true(z, **{**MNIST, "batch": 20, "records": 100}) <= epsilon
