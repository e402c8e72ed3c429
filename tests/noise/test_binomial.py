"""Every sampler of binomial noise has the binomial distribution, and approximations state their distance."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, chi2, norm

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise import binomial
from fedprivjax.noise.binomial import (
    BitNoise,
    RoundedNormal,
    product_variation,
    require_drawable,
    rounded_normal,
    sample_binomial_noise,
    total_variation,
)
from fedprivjax.plan.seeds import Seeds, binomial_stream, configuration_seed, participation_rng, round_keys

DRAWS = 40_000
SMALL, PROBABILITY = 400, 0.3  # trials of a sample, with the integer mean 120
UNLIKELY = 1e-6


def grid_variation(deviation: float) -> float:
    """Return a bound on the increase of `total_variation` by float32 normals, which take 2²³ values up to 5.42.

    Each integer in range gains or loses at most one of these equally likely values. The bound exceeds `total_variation`
    from a standard deviation near 50 on (p = 1/2). Mass moves only between neighbouring integers: no distribution
    function changes by more than 2⁻²³.
    """
    return min(1.0, (2 * 5.42 * deviation + 1) * 2.0**-24 + 2 * float(ndtr(-5.42)))


def misfit(counts, total, probability) -> float:
    """Return the p-value of Pearson's χ² test for samples of Binomial(total, probability), in about 40 cells."""
    edges = np.unique(binom.ppf(np.linspace(0, 1, 41)[1:-1], total, probability)) + 0.5
    expected = np.diff(np.r_[0.0, binom.cdf(edges, total, probability), 1.0]) * counts.size
    observed = np.bincount(np.searchsorted(edges, counts), minlength=expected.size)
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), expected.size - 1))


def by_host_noise(total, probability):
    noise = sample_binomial_noise(binomial_stream(5), [total], probability, DRAWS).integers[0]
    return noise + int(np.floor(total * probability))


def by_jax(total, probability):
    return np.asarray(BitNoise(1.0, key=jax.random.key(5)).ones(total, probability, (DRAWS,)))


def by_rounded_normal(total, probability):
    mean = total * probability
    deviation, remainder = np.sqrt(mean * (1 - probability)), mean - np.floor(mean)
    drawn = (
        RoundedNormal(())
        .draw((), jnp.ones(2), round_keys(jax.random.key(5), np.arange(1, 3)), DRAWS // 2)[1]
        .normal.reshape(-1)
    )
    return np.asarray(rounded_normal(drawn, deviation, remainder)) + int(np.floor(total * probability))


@pytest.mark.parametrize("draw", [by_host_noise, by_jax, by_rounded_normal])
def test_samples_have_the_distribution_and_no_other_scale(draw):
    total, probability = (10**6, 0.5) if draw is by_rounded_normal else (SMALL, PROBABILITY)
    counts = draw(total, probability)
    assert misfit(counts, total, probability) > 1e-3
    for scale in (2 / 3, 3 / 2):  # another number of trials with the same mean
        mean = total * probability
        stretched = np.rint(mean + scale * (counts - mean)).astype(int)
        assert misfit(stretched, total, probability) < UNLIKELY


def test_the_skewness_of_the_binomial_tells_it_from_its_rounded_normal():
    """At 30 trials the approximation is off by 6%, which the same test detects."""
    assert misfit(by_host_noise(30, 0.1), 30, 0.1) > 1e-3
    assert misfit(by_rounded_normal(30, 0.1), 30, 0.1) < UNLIKELY


@pytest.mark.parametrize("total", [65_000_000_001, 10**14])
def test_host_noise_is_exact_for_huge_totals(total):
    noise, remainder = sample_binomial_noise(binomial_stream(2), [total], 0.49999, 100_000)
    deviation = np.sqrt(total * 0.49999 * 0.50001)
    centred = noise.astype(float) - remainder[:, None]
    assert abs(centred.mean()) < 4 * deviation / np.sqrt(centred.size)
    assert abs(centred.var() / deviation**2 - 1) < 4 * np.sqrt(2 / centred.size)
    assert 0 < np.mean(noise % 2) - 0.49 < 0.02  # every integer is reached


def test_host_noise_follows_the_totals_of_its_rounds():
    totals = np.array([0, 1000, 4001])
    noise, remainder = sample_binomial_noise(binomial_stream(0), totals, 0.25, 20_000)
    assert noise.dtype == np.int32
    assert remainder.dtype == np.float64
    np.testing.assert_array_equal(noise[0], 0)
    np.testing.assert_array_equal(remainder, [0.0, 0.0, 0.25])
    variance = totals[1:] * 0.25 * 0.75
    np.testing.assert_allclose(noise[1:].var(axis=1), variance, rtol=4 * np.sqrt(2 / 20_000))
    np.testing.assert_array_less(np.abs((noise - remainder[:, None])[1:].mean(axis=1)), 4 * np.sqrt(variance / 20_000))


def test_host_noises_repeat_and_differ_over_seeds_and_members():
    def host_noise(*of):
        return sample_binomial_noise(binomial_stream(*of), np.full(4, 10**6), 0.4, 5).integers

    seeds = Seeds(1, 1, 1)
    sources = [(1,), (2,), (configuration_seed(seeds, 0),), (configuration_seed(seeds, 1),)]
    assert len({host_noise(*of).tobytes() for of in sources}) == len(sources)
    for of in sources:
        np.testing.assert_array_equal(host_noise(*of), host_noise(*of))


def test_the_stream_differs_from_the_others():
    streams = [participation_rng(Seeds(1, 1, 1)), np.random.default_rng(1), np.random.default_rng(binomial_stream(1))]
    assert len({int(rng.integers(2**62)) for rng in streams}) == 3


@pytest.mark.parametrize(
    ("total", "probability", "stated"),
    [(400, 0.5, 1.9e-4), (10**6, 0.5, 7.6e-8), (10**4, 0.1, 3.4e-3), (10**6, 0.1, 3.4e-4), (10**6, 0.4, 5.1e-5)],
)
def test_total_variation_has_the_specified_values(total, probability, stated):
    variation = total_variation(total, probability)
    assert variation == pytest.approx(stated, rel=0.02)
    variance = total * probability * (1 - probability)
    form = 0.0191 / variance if probability == 0.5 else 0.126 * abs(1 - 2 * probability) / np.sqrt(variance)
    assert variation == pytest.approx(form, rel=0.003)


@pytest.mark.parametrize(("total", "probability"), [(3_900_000, 0.5), (3_900_001, 0.49), (4_500_000, 0.3)])
def test_total_variation_is_continuous_where_its_expansion_starts(total, probability, monkeypatch):
    values = []
    for limit in (0.0, np.inf):
        monkeypatch.setattr(binomial, "EXACT_DEVIATION", limit)
        values.append(total_variation(total, probability))
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_the_rounded_normal_is_on_the_binomials_lattice():
    """At 401 trials the mean is 200.5. Rounding around an integer would be a hundred times less accurate."""
    counts = np.arange(402)
    law = binom.pmf(counts, 401, 0.5)
    deviation = np.sqrt(401) / 2
    about = {mean: norm.cdf((counts + 0.5 - mean) / deviation) - norm.cdf((counts - 0.5 - mean) / deviation)
             for mean in (200.5, 200.0)}  # fmt: skip
    off = {mean: 0.5 * np.abs(law - normal).sum() for mean, normal in about.items()}
    assert total_variation(401, 0.5) == pytest.approx(off[200.5], rel=1e-6)
    assert off[200.0] > 100 * off[200.5]


@pytest.mark.slow
def test_float32_normals_are_off_by_more_than_exact_ones_but_within_the_bound():
    """Uses all 2²³ equally likely values of jax's normals."""
    low = np.nextafter(np.float32(-1), np.float32(0))
    uniforms = np.arange(2**23, dtype=np.float32) * np.float32(2.0**-23) * (np.float32(1) - low) + low
    values = np.float32(np.sqrt(2)) * jax.lax.erf_inv(jnp.asarray(uniforms))
    total, deviation = 40_000, 100.0
    counts = np.bincount(np.asarray(rounded_normal(values, deviation)) + 20_000, minlength=40_001)
    off = 0.5 * np.abs(counts / 2**23 - binom.pmf(np.arange(40_001), total, 0.5)).sum()
    exact = total_variation(total, 0.5)
    assert 5 * exact < off < exact + grid_variation(deviation)


def test_the_bound_of_a_run_adds_up_and_stops_at_one():
    each = [total_variation(total, 0.2) for total in (1000, 2000)]
    assert product_variation([1000, 2000, 1000], 0.2, 7) == pytest.approx(7 * (2 * each[0] + each[1]))
    assert product_variation([1000] * 100, 0.2, 7) == 1.0
    assert total_variation(0, 0.3) == total_variation(50, 0.0) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample_binomial_noise(binomial_stream(0), [10**18], 0.5, 1000), "must stay below 2³⁰ levels, got"),
        (lambda: sample_binomial_noise(binomial_stream(0), [2 * 10**18], 0.5, 3), "totals must be between 0 and 1e18"),
        (lambda: sample_binomial_noise(binomial_stream(0), [-1], 0.5, 3), "totals must be between 0 and 1e18"),
        (lambda: sample_binomial_noise(binomial_stream(0), [1.5], 0.5, 3), "totals must be integers"),
        (lambda: sample_binomial_noise(binomial_stream(0), [5], 1.5, 3), "probability must be between 0 and 1"),
        (lambda: require_drawable(10**6 + 1), "at most 1e[+]06 to be drawn in float32"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(Refusal, match=message):
        call()


@pytest.mark.slow
def test_double_precision_draws_more_trials():
    with jax.enable_x64(True):
        drawn = np.asarray(BitNoise(1.0, key=jax.random.key(0)).ones(10**8, 0.4999, (20_000,))).astype(float)
        with pytest.raises(Refusal, match="float64"):
            require_drawable(10**14 + 1, "float64")
    variance = 10**8 * 0.4999 * 0.5001
    assert abs(drawn.mean() - 0.4999e8) < 4 * np.sqrt(variance / drawn.size)
    assert abs(drawn.var() / variance - 1) < 4 * np.sqrt(2 / drawn.size)


def test_host_noise_costs_the_same_however_many_trials():
    def seconds(total):
        start = time.process_time()
        sample_binomial_noise(binomial_stream(0), np.full(1000, total), 0.4999, 100)
        return time.process_time() - start

    few, many = (min(seconds(total) for _ in range(5)) for total in (10**4, 10**12))
    assert many < 3 * few


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "right"), [(10**6, True), (10**7, False), (10**9, False)])
def test_why_float32_is_refused_beyond_a_million_trials(trials, right):
    draws = 2_000_000
    drawn = jax.random.binomial(jax.random.key(1), jnp.float32(trials), jnp.float32(0.4999), (draws,), jnp.float32)
    probability = float(np.float32(0.4999))
    ratio = np.asarray(drawn, np.float64).var() / (trials * probability * (1 - probability))
    assert (abs(ratio - 1) < 4 * np.sqrt(2 / draws)) == right
