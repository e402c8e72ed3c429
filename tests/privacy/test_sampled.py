"""Accounting of sampled Gaussian mechanisms, compared with tables, exact profiles, Monte Carlo and dp-accounting."""

from itertools import pairwise
from math import inf, log, sqrt

import dp_accounting
import numpy as np
import pytest
from cases import sparing
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom, norm

from fedprivjax.plan.samplers import Occurrences
from fedprivjax.privacy.accountants import sampled
from fedprivjax.privacy.accountants.bounds import attainable_epsilon
from fedprivjax.privacy.accountants.sampled import SampledReleases, noise_multiplier_for, sampled_epsilon

RECORDS, BATCH, ROUNDS = 1238, 443, 35
MNIST = {"records": RECORDS, "batch": BATCH, "rounds": ROUNDS, "delta": RECORDS**-2.0}
SMALL = {"records": 20, "batch": 8, "rounds": 6, "delta": 1e-5}
SAMPLERS = ["replacement", "subset", "poisson", "disjoint", "full"]

# claimed ε of the paper's experiments: lower and upper bounds, for subsets and with replacement, from another program
TRUE = {
    0.75: ((0.5906, 0.5978), (0.5963, 0.7137)),
    1.5: ((1.2695, 1.2877), (1.2981, 1.6890)),
    3.0: ((2.8180, 2.8798), (2.9840, 4.7124)),
    6.0: ((6.7465, 6.9815), (8.1283, 14.2415)),
    12.0: ((18.763, 19.650), (33.075, 47.274)),
    18.0: ((37.428, 39.218), (81.334, 101.030)),
}
POISSON = {0.75: 0.58454, 1.5: 1.22921, 3.0: 2.61024, 6.0: 5.64378, 12.0: 12.52673}
# z at which the bound is ε
NEEDED = {
    ("subset", BATCH, 0.75): 24.49889,
    ("subset", BATCH, 6.0): 4.21460,
    ("subset", BATCH, 18.0): 1.98856,
    ("replacement", BATCH, 0.75): 28.88847,
    ("replacement", BATCH, 6.0): 6.45948,
    ("replacement", BATCH, 18.0): 3.27091,
    ("poisson", BATCH, 1.5): 12.53284,
    ("poisson", BATCH, 6.0): 3.56900,
    ("subset", RECORDS, 6.0): 10.04298,
    ("replacement", RECORDS, 6.0): 13.91395,
}


def claimed(epsilon):
    """The noise multiplier of the paper's experiments: σ² = 8·L²·R·ln(1/δ)/(nε)²."""
    return sqrt(8 * ROUNDS * log(RECORDS**2)) * BATCH / (RECORDS * epsilon)


def occurrences(sampler, records, batch):
    """Numbers of occurrences of a record from 0, and their probabilities."""
    if sampler == "replacement":
        times = np.arange(40)
        return times, binom.pmf(times, batch, 1 / records)
    return np.arange(2), np.array([1 - batch / records, batch / records])


def density(x, shifts, chances, z):
    return np.sum(chances * norm.pdf(np.subtract.outer(x, shifts) / z) / z, axis=-1)


def test_the_noise_multiplier_of_the_experiments():
    assert [round(claimed(epsilon), 2) for epsilon in TRUE] == [30.13, 15.06, 7.53, 3.77, 1.88, 1.26]


@pytest.mark.parametrize("column", [0, 1], ids=["subset", "replacement"])
@pytest.mark.parametrize("epsilon", sparing(TRUE, [6.0]))
def test_realised_epsilon_of_the_experiments(epsilon, column):
    sampler, (least, most) = ("subset", "replacement")[column], TRUE[epsilon][column]
    releases = SampledReleases(sampler=sampler, **MNIST)
    assert attainable_epsilon(claimed(epsilon), releases) == pytest.approx(least, rel=0.006)
    assert sampled_epsilon(claimed(epsilon), releases) == pytest.approx(most, rel=0.002)


@pytest.mark.slow
def test_claims_that_are_refuted():
    releases = SampledReleases(sampler="replacement", **MNIST)
    held = {epsilon: attainable_epsilon(claimed(epsilon), releases) < epsilon for epsilon in TRUE}
    assert list(held.values()) == [True, True, True, False, False, False]


LOSS, ONE = sampled._loss.__wrapped__, sampled.one_release.__wrapped__


def faulty(monkeypatch, distribution):
    monkeypatch.setattr(sampled, "shift_distribution", distribution)
    monkeypatch.setattr(sampled, "_loss", LOSS)  # nothing faulty is cached
    monkeypatch.setattr(sampled, "one_release", ONE)
    return sampled_epsilon.__wrapped__(claimed(6.0), SampledReleases(sampler="replacement", **MNIST))


def test_the_table_would_show_half_a_sensitivity_and_repetitions_left_out(monkeypatch):
    right, original = TRUE[6.0][1][1], sampled.shift_distribution

    def once_only(*args):
        times, chances = original(*args)
        return Occurrences(times[:1], chances[:1])

    assert sampled_epsilon(2 * claimed(6.0), SampledReleases(sampler="replacement", **MNIST)) < right / 2
    assert faulty(monkeypatch, lambda *args: Occurrences(original(*args)[0] / 2, original(*args)[1])) < right / 2
    assert faulty(monkeypatch, once_only) < 0.9 * right
    assert faulty(monkeypatch, original) == pytest.approx(right, rel=0.002)


def leak(epsilon, z, records, batch, rounds, draws=100_000):
    """δ at ε of `rounds` releases with replacement, all other records at −L: mean and standard error.

    Importance sampling: losses are sampled from a distribution tilted by e^{θ·loss}, with mean sum ε, and reweighted.
    """
    times, chances = occurrences("replacement", records, batch)
    x = np.linspace(-9 * z, 12 + 9 * z, 40_001)
    mass = density(x, 2 * times, chances, z) * (x[1] - x[0])
    loss = np.log(density(x, 2 * times, chances, z) / norm.pdf(x / z) * z)
    low, high = 0.0, 5.0
    for _ in range(50):
        tilt = (low + high) / 2
        tilted = mass * np.exp(tilt * loss)
        low, high = (tilt, high) if rounds * np.sum(tilted * loss) < epsilon * tilted.sum() else (low, tilt)
    cumulative = np.cumsum(tilted) / tilted.sum()
    drawn = np.random.default_rng(6).uniform(size=(draws, rounds))
    total = loss[np.searchsorted(cumulative, drawn).clip(0, x.size - 1)].sum(axis=1)
    found = np.exp(rounds * np.log(tilted.sum()) - tilt * total) * np.maximum(-np.expm1(epsilon - total), 0)
    return found.mean(), found.std() / sqrt(draws)


def test_monte_carlo_refutes_the_claim_of_six():
    found, error = leak(6.0, claimed(6.0), RECORDS, BATCH, ROUNDS)
    assert error < 0.02 * found
    assert found == pytest.approx(7.3e-5, abs=2 * 0.3e-5)
    assert found > 100 * MNIST["delta"]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", sparing([3.0, 6.0], [6.0]))
def test_monte_carlo_of_what_is_attained(epsilon):
    """At the attained ε, δ is reached (and slightly exceeded, as losses are rounded down). At the bound it is not."""
    z = claimed(epsilon)
    attained = attainable_epsilon(z, SampledReleases(sampler="replacement", **MNIST))
    found, error = leak(attained, z, RECORDS, BATCH, ROUNDS)
    assert error < 0.02 * found
    assert -4 * error < found - MNIST["delta"] < 0.05 * MNIST["delta"] + 4 * error
    most, error = leak(sampled_epsilon(z, SampledReleases(sampler="replacement", **MNIST)), z, RECORDS, BATCH, ROUNDS)
    assert most + 4 * error < MNIST["delta"] / 2


def hockey_stick(epsilon, one, other, z):
    """∫ max(p(x) − e^ε·q(x), 0) dx of two mixtures (shifts, chances), as a sum."""
    x = np.linspace(-30 - 9 * z, 30 + 9 * z, 20_001)
    return np.maximum(density(x, *one, z) - np.exp(epsilon) * density(x, *other, z), 0).sum() * (x[1] - x[0])


@pytest.mark.parametrize("sampler", ["replacement", "subset", "poisson"])
def test_one_release_attains_the_worst_of_its_pairs(sampler):
    settings, z = {**SMALL, "rounds": 1, "delta": 1e-3}, 2.0
    times, chances = occurrences(sampler, SMALL["records"], SMALL["batch"])
    alone = np.zeros(1), np.ones(1)
    pairs = [((times, chances), (-times, chances))]
    if sampler != "poisson":  # its mean reveals the sample's size if other records are not 0
        pairs += [((2 * times, chances), alone), (alone, (2 * times, chances))]
    epsilon = attainable_epsilon(z, SampledReleases(sampler=sampler, **settings))
    assert max(hockey_stick(epsilon, *pair, z) for pair in pairs) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize("sampler", ["replacement", "subset"])
def test_one_release_has_the_subsampled_profile(sampler):
    """δ(ε) = Σ_j P[j]·δ_j(ln(1 + (e^ε − 1)/η)) with the Gaussian profiles at shift 2j/z."""
    settings, z = {**SMALL, "rounds": 1}, 1.5
    epsilon = sampled_epsilon(z, SampledReleases(sampler=sampler, **settings))
    times, chances = (values[1:] for values in occurrences(sampler, SMALL["records"], SMALL["batch"]))
    inner, shift = np.log1p(np.expm1(epsilon) / chances.sum()), 2 * times / z
    profiles = norm.cdf(shift / 2 - inner / shift) - np.exp(inner) * norm.cdf(-shift / 2 - inner / shift)
    assert np.sum(chances * profiles) == pytest.approx(SMALL["delta"], rel=0.005)


@pytest.mark.parametrize("epsilon", sparing(POISSON, [1.5, 6.0]))
def test_poisson_equals_dp_accounting(epsilon):
    found = sampled_epsilon(claimed(epsilon), SampledReleases(sampler="poisson", **MNIST))
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    release = dp_accounting.PoissonSampledDpEvent(
        BATCH / RECORDS, dp_accounting.GaussianDpEvent(noise_multiplier=claimed(epsilon))
    )
    accountant.compose(release, ROUNDS)
    assert found == pytest.approx(accountant.get_epsilon(MNIST["delta"]), rel=1e-3)
    assert found == pytest.approx(POISSON[epsilon], rel=1e-3)


@pytest.mark.parametrize("z", [0.5, 2.0, 30.0])
@pytest.mark.parametrize(("sampler", "releases"), [("full", 6), ("disjoint", 1)])
def test_full_batches_and_a_single_pass_are_gaussian_mechanisms(sampler, releases, z):
    epsilon, shift = sampled_epsilon(z, SampledReleases(sampler=sampler, **SMALL)), 2 * sqrt(releases) / z
    delta = norm.cdf(shift / 2 - epsilon / shift) - np.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert attainable_epsilon(z, SampledReleases(sampler=sampler, **SMALL)) == epsilon


@pytest.mark.parametrize("z", [2.0, 30.0])
@pytest.mark.parametrize("sampler", ["subset", "poisson"])
def test_a_sample_of_all_records_is_full(sampler, z):
    full = sampled_epsilon(z, SampledReleases(sampler="full", **SMALL))
    everything = {**SMALL, "batch": SMALL["records"]}
    assert sampled_epsilon(z, SampledReleases(sampler=sampler, **everything)) == full
    assert attainable_epsilon(z, SampledReleases(sampler=sampler, **everything)) == pytest.approx(full, rel=5e-3)
    almost = sampled_epsilon(z, SampledReleases(sampler=sampler, **{**SMALL, "records": 10_000, "batch": 9_999}))
    assert almost == pytest.approx(full, rel=5e-3)


@pytest.mark.parametrize("mu", [0.02, 1.0, 40.0])
@pytest.mark.parametrize("rounds", sparing([1, 35, 15505], [35]))
def test_the_lower_bound_is_near_the_truth_for_any_number_of_rounds(rounds, mu):
    settings = {**SMALL, "batch": SMALL["records"], "rounds": rounds}
    exact = sampled_epsilon(2 * sqrt(rounds) / mu, SampledReleases(sampler="full", **settings))
    attained = attainable_epsilon(2 * sqrt(rounds) / mu, SampledReleases(sampler="subset", **settings))
    assert 0.99 * exact < attained <= exact


@pytest.mark.slow
def test_every_local_step_released():
    """Spec section 10: 1.47 and 24.8 at the claims 0.75 and 1.5, attained by 443 × 35 steps on one record each."""
    steps = SampledReleases(**{**MNIST, "sampler": "subset", "batch": 1, "rounds": 443 * 35})
    for claim, attained in ((0.75, 1.47), (1.5, 24.8)):
        assert attainable_epsilon(claimed(claim) / sqrt(443), steps) == pytest.approx(attained, rel=0.012)


@pytest.mark.parametrize("sampler", sparing(SAMPLERS, ["subset", "poisson", "disjoint", "full"]))
@pytest.mark.parametrize(
    ("records", "batch", "rounds"), sparing([(20, 8, 6), (20, 1, 30), (500, 20, 1), (3, 3, 4)], [(20, 8, 6)])
)
def test_the_lower_bound_is_never_above_the_upper_bound(sampler, records, batch, rounds):
    for z in (1.5, 6.0, 40.0):
        releases = SampledReleases(sampler, records, rounds, 1e-5, batch)
        assert 0 <= attainable_epsilon(z, releases) <= sampled_epsilon(z, releases) < inf


def test_the_two_poisson_values_agree():
    """One pair is the worst for Poisson samples, so the attained ε equals the bound except for rounding."""
    most = sampled_epsilon(claimed(6.0), SampledReleases(sampler="poisson", **MNIST))
    assert 0.99 * most < attainable_epsilon(claimed(6.0), SampledReleases(sampler="poisson", **MNIST)) <= most


def increasing(values):
    return all(one < other for one, other in pairwise(values))


@pytest.mark.parametrize("sampler", sparing(["replacement", "subset", "poisson"], ["poisson"]))
@pytest.mark.parametrize("account", [sampled_epsilon, attainable_epsilon])
def test_monotone(sampler, account):
    def at(z=4.0, **changes):
        return account(z, SampledReleases(sampler=sampler, **{**SMALL, **changes}))

    assert increasing([at(z) for z in (16.0, 8.0, 4.0, 2.0)])
    assert increasing([at(rounds=rounds) for rounds in (1, 2, 8, 32)])
    assert increasing([at(batch=batch) for batch in (1, 2, 8, 16)])
    assert increasing([at(records=records) for records in (200, 50, 20)])
    assert increasing([at(delta=delta) for delta in (1e-2, 1e-4, 1e-6)])


def test_amplification_orders_the_samplers():
    """At most one occurrence is better than perhaps two, and a secret sample is better than all records."""
    found = {sampler: sampled_epsilon(4.0, SampledReleases(sampler=sampler, **SMALL)) for sampler in SAMPLERS}
    assert found["poisson"] < found["subset"] < found["full"] < found["replacement"]
    assert found["disjoint"] < found["subset"]


@pytest.mark.parametrize("sampler", sparing(["replacement", "subset", "poisson"], ["subset", "poisson"]))
def test_composition_is_better_than_the_sum(sampler):
    def at(rounds, delta):
        return sampled_epsilon(4.0, SampledReleases(sampler=sampler, records=20, batch=8, rounds=rounds, delta=delta))

    for once in (1, 4):
        several = at(4 * once, 1e-5)
        assert at(once, 1e-5) * 1.25 < several < 4 * at(once, 1e-5 / 4)
    # many releases of a little each are one Gaussian mechanism, whose ε is twice as large at √4 its shift or more
    assert 1.8 < at(400, 1e-5) / at(100, 1e-5) < 4


@pytest.mark.parametrize(
    ("sampler", "batch", "epsilon"),
    sparing(NEEDED, [(name, BATCH, 6.0) for name in ("replacement", "subset", "poisson")]),
)
def test_required_noise(sampler, batch, epsilon):
    z = noise_multiplier_for(epsilon, SampledReleases(sampler=sampler, **{**MNIST, "batch": batch}))
    assert z == pytest.approx(NEEDED[sampler, batch, epsilon], rel=2e-3)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("epsilon", sparing([0.3, 4.0], [0.3]))
def test_the_noise_for_a_target_is_sufficient_and_tight(sampler, epsilon):
    z = noise_multiplier_for(epsilon, SampledReleases(sampler=sampler, **SMALL))
    assert sampled_epsilon(z * (1 + 1e-12), SampledReleases(sampler=sampler, **SMALL)) <= epsilon
    assert sampled_epsilon(z * (1 - 5e-4), SampledReleases(sampler=sampler, **SMALL)) > epsilon


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_extremes(sampler):
    assert sampled_epsilon(inf, SampledReleases(sampler=sampler, **SMALL)) == 0
    assert attainable_epsilon(inf, SampledReleases(sampler=sampler, **SMALL)) == 0
    assert sampled_epsilon(1e7, SampledReleases(sampler=sampler, **SMALL)) < 1e-3


def test_too_little_noise_gives_infinite_epsilon():
    assert sampled_epsilon(0.01, SampledReleases(sampler="replacement", **SMALL)) == inf
    assert sampled_epsilon(0.1, SampledReleases(sampler="subset", **SMALL)) > 1000


@pytest.mark.parametrize("account", [sampled_epsilon, attainable_epsilon])
@pytest.mark.parametrize(
    ("z", "changes", "message"),
    [
        (0.0, {}, "noise_multiplier must be positive, got 0.0"),
        (-1.0, {}, "noise_multiplier must be positive, got -1.0"),
        (1.0, {"sampler": "subsets"}, "unknown sampler 'subsets', did you mean 'subset'.*"),
        (1.0, {"records": 0}, "records must be at least 1, got 0"),
        (1.0, {"batch": 0}, "batch must be at least 1, got 0"),
        (1.0, {"batch": 2.5}, "batch must be an integer, got 2.5"),
        (1.0, {"rounds": 0}, "rounds must be at least 1, got 0"),
        (1.0, {"batch": 21}, r"batch must be at most records \(20\) for the sampler 'subset', got 21"),
        (
            1.0,
            {"batch": 21, "sampler": "poisson"},
            r"batch must be at most records \(20\) for the sampler 'poisson', got 21",
        ),
        (1.0, {"delta": 0.0}, "delta must be between 0 and 1, got 0.0"),
        (1.0, {"delta": 1.0}, "delta must be between 0 and 1, got 1.0"),
        (1.0, {"delta": float("nan")}, "delta must be between 0 and 1, got nan"),
    ],
)
def test_refusals(account, z, changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        account(z, SampledReleases(**{"sampler": "subset", **SMALL, **changes}))


@pytest.mark.parametrize(
    ("epsilon", "changes", "message"),
    [
        (0.0, {}, "epsilon must be positive, got 0.0"),
        (inf, {}, "epsilon must be finite, got inf"),
        (1.0, {"batch": 21}, r"batch must be at most records \(20\) for the sampler 'subset', got 21"),
        (1.0, {"sampler": "none"}, "unknown sampler 'none'.*"),
    ],
)
def test_targets_that_are_refused(epsilon, changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        noise_multiplier_for(epsilon, SampledReleases(**{"sampler": "subset", **SMALL, **changes}))


def test_a_batch_above_the_records_is_accepted_with_replacement():
    assert sampled_epsilon(9.0, SampledReleases(sampler="replacement", **{**SMALL, "batch": 40})) < inf
