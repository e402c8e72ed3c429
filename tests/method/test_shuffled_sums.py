"""Private sums: literal bits and their fast form have the same distribution, with the stated moments."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chi2, ks_2samp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.round import slot_keys
from fedprivjax.method.shuffled_sums import VectorSum, require_countable, require_within
from fedprivjax.noise.binomial import sample_binomial_noise
from fedprivjax.plan.seeds import binomial_stream

SUM = VectorSum(2.0, levels=5, trials=7, probability=0.3)
SCALAR = VectorSum(1.5, levels=4, trials=6, probability=0.4)  # of numbers from 0 to 3, less 1.5
USERS, DIMENSION = 6, 3
VECTORS = np.random.default_rng(0).uniform(-1.1, 1.1, (USERS, DIMENSION)).astype(np.float32)
VALUES = np.linspace(0.0, 3.0, USERS, dtype=np.float32)[:, None]
LITERAL, FAST = 20_000, 100_000
UNLIKELY = 1e-6


def literal(law, data, repetitions=LITERAL, seed=1):
    """Estimates from bits, [repetitions, ...]."""
    rng = np.random.default_rng(seed)
    bits = law.randomizer(rng, np.broadcast_to(data, (repetitions, *data.shape)))
    return law.analyzer(law.shuffled(rng, bits))


def fast(law, data, repetitions=FAST, seed=1):
    """Estimates from sums of levels and host noise, [repetitions, ...]."""
    dimension = int(np.prod(data.shape[1:]))
    noise, remainder = sample_binomial_noise(
        binomial_stream(seed), np.full(repetitions, law.trials * len(data)), law.probability, dimension
    )
    noise = noise.reshape(repetitions, *data.shape[1:])
    return np.asarray(_fast(as_leaves(law), jnp.asarray(data), jax.random.key(seed), noise, np.float32(remainder)))


@jax.jit
def _fast(law, data, key, noise, remainder):
    def one(number, noise, remainder):
        total = law.rounded(jax.random.fold_in(key, number), data).sum(axis=0)
        return law.estimate(total, noise, data.shape[0], remainder)

    return jax.vmap(one)(jnp.arange(noise.shape[0]), noise, remainder)


def exact_law(vectors, law):
    """Probabilities of a coordinate's count of ones, 0 … n·(g + q), from the definition."""
    fractions = (vectors.astype(float) + law.bound) * law.levels / (2 * law.bound)
    noise = binom.pmf(np.arange(len(vectors) * law.trials + 1), len(vectors) * law.trials, law.probability)
    total = int(np.floor(fractions).sum())
    for fraction in fractions % 1:
        noise = np.convolve(noise, [1 - fraction, fraction])
    return np.concatenate([np.zeros(total), noise])


def misfit(estimates, vectors, law) -> float:
    """p-value of Pearson's χ² test of one coordinate's estimates against the exact distribution, in cells of ≥ 20."""
    users = len(vectors)
    middle = users * law.levels / 2 + users * law.trials * law.probability
    counts = np.rint(np.asarray(estimates, float) * law.levels / (2 * law.bound) + middle).astype(int)
    expected = exact_law(vectors, law) * counts.size
    observed = np.bincount(counts, minlength=expected.size)
    assert observed.size == expected.size
    kept = expected >= 20
    observed, expected = (np.append(x[kept], x[~kept].sum()) for x in (observed, expected))
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), expected.size - 1))


def of_noise_scale(law, scale):
    """The sum with its noise at so many times the standard deviation, about as near as whole trials allow."""
    return replace(law, trials=round(law.trials * scale**2))


@pytest.fixture(scope="module")
def estimates():
    return {"literal": literal(SUM, VECTORS), "fast": fast(SUM, VECTORS)}


@pytest.mark.parametrize("form", ["literal", "fast"])
def test_estimates_are_unbiased_and_have_the_stated_variance(estimates, form):
    drawn = estimates[form]
    mean, variance = SUM.moments(VECTORS)
    np.testing.assert_allclose(mean, VECTORS.sum(axis=0), rtol=1e-6)
    z = (drawn.mean(axis=0) - mean) / np.sqrt(variance / len(drawn))
    assert np.abs(z).max() < 4
    assert np.abs(drawn.var(axis=0) / variance - 1).max() < 4 * np.sqrt(2 / len(drawn))
    without_rounding = (4 / 5) ** 2 * USERS * 7 * 0.3 * 0.7
    assert (np.abs(drawn.var(axis=0) / without_rounding - 1) > 4 * np.sqrt(2 / len(drawn))).all()


@pytest.mark.parametrize("form", ["literal", "fast"])
def test_estimates_have_the_exact_law_and_not_that_of_another_scale(estimates, form):
    for j in range(DIMENSION):
        drawn, column = estimates[form][:, j], VECTORS[:, j]
        assert misfit(drawn, column, SUM) > 1e-3
        for scale in (2 / 3, 3 / 2):
            assert misfit(drawn, column, of_noise_scale(SUM, scale)) < UNLIKELY


def test_rounding_to_the_nearest_level_would_be_seen():
    rounded = np.rint((VECTORS + 2.0) * 5 / 4) * 4 / 5 - 2.0
    drawn = fast(SUM, rounded.astype(np.float32), 20_000)
    assert min(misfit(drawn[:, j], VECTORS[:, j], SUM) for j in range(DIMENSION)) < UNLIKELY


def test_literal_bits_and_the_fast_form_agree(estimates):
    """Two samples, a tie broken at random within a level."""
    level = 2 * SUM.bound / SUM.levels
    rng = np.random.default_rng(3)
    spread = {form: drawn + level * rng.uniform(-0.5, 0.5, drawn.shape) for form, drawn in estimates.items()}
    for j in range(DIMENSION):
        assert ks_2samp(spread["literal"][:, j], spread["fast"][:, j]).pvalue > 1e-3
        for scale in (2 / 3, 3 / 2):
            centre = VECTORS[:, j].sum()
            stretched = centre + scale * (spread["fast"][:, j] - centre)
            assert ks_2samp(spread["literal"][:, j], stretched).pvalue < UNLIKELY


@pytest.mark.parametrize("form", [literal, fast])
def test_the_scalar_sum_has_its_moments(form):
    drawn = form(SCALAR, VALUES - 1.5) + 1.5 * USERS
    mean, variance = VALUES.sum(), SCALAR.moments(VALUES - 1.5)[1].item()
    assert abs(drawn.mean() - mean) < 4 * np.sqrt(variance / drawn.size)
    assert abs(drawn.var() / variance - 1) < 4 * np.sqrt(2 / drawn.size)
    fractions = (VALUES * 4 / 3) % 1
    noise = USERS * 6 * 0.4 * 0.6
    assert variance == pytest.approx((3 / 4) ** 2 * ((fractions * (1 - fractions)).sum() + noise), rel=1e-5)


def test_messages_are_bits_and_shuffling_keeps_their_number():
    rng = np.random.default_rng(0)
    bits = SUM.randomizer(rng, VECTORS)
    assert bits.shape == (USERS, DIMENSION, 12)
    assert set(np.unique(bits)) == {0, 1}
    seen = SUM.shuffled(rng, bits)
    np.testing.assert_array_equal(seen.sum(axis=1), bits.sum(axis=(0, 2)))
    assert (np.diff(seen.astype(int), axis=1) > 0).any()  # of a user's bits the ones come first, here no more
    user = seen.reshape(DIMENSION, USERS, 12).sum(axis=2)
    assert (np.sort(user, axis=1) != np.sort(bits.sum(axis=2).T, axis=1)).any()


def test_costs_in_messages_and_bits():
    assert SUM.messages_per_user(3) == SUM.randomizer(np.random.default_rng(0), VECTORS)[0].size == 36
    assert SUM.bits_per_user(3, shared_shuffler=False) == 36
    assert SUM.bits_per_user(3, shared_shuffler=True) == 36 * 3
    assert SUM.bits_per_user(1, shared_shuffler=True) == 12
    assert SUM.bits_per_user(4, shared_shuffler=True) == 48 * 3
    assert SCALAR.messages_per_user(1) == 10


@pytest.mark.slow
def test_chunks_of_users_change_no_number():
    keys = slot_keys(jax.random.key(4), USERS)
    parts = [SUM.rounded_by(keys[part], VECTORS[part]) for part in (slice(0, 4), slice(4, None))]
    np.testing.assert_array_equal(np.concatenate(parts), SUM.rounded(jax.random.key(4), VECTORS))


def test_absent_users_leave_sum_count_and_centre():
    """Without participants the estimate is 0; otherwise it is that of the participants' sum."""
    key, nobody = jax.random.key(0), jnp.zeros(USERS)
    still = jnp.zeros(DIMENSION, jnp.int32)
    np.testing.assert_array_equal(SUM.estimate(still, still, jnp.sum(nobody)), 0.0)
    ends = np.where(np.arange(USERS * DIMENSION).reshape(USERS, DIMENSION) % 2, -2.0, 2.0).astype(np.float32)
    present = jnp.arange(USERS) < 4
    total = SUM.rounded(key, ends)[:4].sum(axis=0)  # ends of the range are levels: nothing is random
    np.testing.assert_allclose(SUM.estimate(total, still, present.sum()), ends[:4].sum(axis=0), atol=1e-5)


def test_settings_are_leaves_of_one_program():
    """Another number of noise bits, of levels or another bound is no other program; leaves may be float32."""
    traces = []

    @jax.jit
    def run(law, key):
        traces.append(1)
        return law.estimate(law.rounded(key, VECTORS).sum(axis=0), jnp.zeros(DIMENSION, jnp.int32), USERS)

    for law in (SUM, replace(SUM, trials=10**9), replace(SUM, levels=1000), replace(SUM, bound=3.0)):
        expected = law.estimate(law.rounded(jax.random.key(0), VECTORS).sum(axis=0), np.zeros(3, np.int32), USERS)
        np.testing.assert_allclose(run(as_leaves(law), jax.random.key(0)), expected, rtol=1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize("levels", [1, 2, 99_999, 100_000])
def test_levels_stay_in_range_and_are_fair(levels):
    """At the ends of the ball and next to them; elsewhere the mean over users is that of the number itself."""
    law, users = replace(SUM, levels=levels), 20_000
    ends = np.array([-2.0, 2.0, np.nextafter(np.float32(-2), 0), np.nextafter(np.float32(2), 0)], np.float32)
    values = np.r_[ends, np.full(users, 2 * 0.123456, np.float32)][:, None]
    rounded = np.asarray(_rounded(as_leaves(law), values))
    np.testing.assert_array_equal(rounded[:2, 0], [0, levels])
    assert 0 <= rounded.min() <= rounded.max() <= levels
    scaled = (float(values[-1, 0]) + 2.0) * levels / 4
    variance = scaled % 1 * (1 - scaled % 1)
    assert abs(rounded[4:].mean(dtype=float) - scaled) < 4 * np.sqrt(variance / users) + 2**-24 * levels / 4
    assert set(np.unique(rounded[4:])) == {int(scaled), int(scaled) + 1}


@jax.jit
def _rounded(law, values):
    return law.rounded(jax.random.key(0), values)


def test_large_sums_are_centred_before_they_are_float32():
    """2·10⁹ levels and noise of 10⁴: float32 alone would round to 128 levels."""
    law, users = VectorSum(1.0, 2000, 1, 0.5), 10**6
    total = jnp.array([10**9 + 3], jnp.int32)
    estimate = law.estimate(total, jnp.array([10_001], jnp.int32), jnp.int32(users), 0.5)
    np.testing.assert_allclose(estimate, [10_003.5 / 1000], rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VectorSum(1.0, 0, 1, 0.5), "levels must be positive, got 0"),
        (lambda: VectorSum(1.0, 0.5, 1, 0.5), "levels must be an integer of at least 1, got 0.5"),
        (lambda: VectorSum(1.0, 2.5, 1, 0.5), "levels must be an integer of at least 1, got 2.5"),
        (lambda: VectorSum(1.0, 2, 0, 0.5), "trials must be positive, got 0"),
        (lambda: VectorSum(-1.0, 2, 1, 0.5), "bound must be positive"),
        (lambda: VectorSum(1.0, 2, 1, 1.5), "probability must be between 0 and 1, got 1.5"),
        (lambda: require_countable(2**31 // SUM.levels + 1, SUM.levels), "below 2³¹"),
        (lambda: require_within(1.0, np.array([[0.0, 0.0], [1.0, 0.1]])), r"at most 1, got 1.00499 \(row 1\). Clip"),
        (lambda: require_within(1.0, np.array([[np.nan, 0.0]])), "at most 1, got nan"),
        (lambda: SUM.randomizer(np.random.default_rng(0), 2 * VECTORS), "vectors must have norm at most 2"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(Refusal, match=message):
        call()


def test_what_is_allowed():
    require_countable(2**31 // 5, 5)
    require_within(1.0, np.float32([[0.6, 0.8]]))


def test_a_sum_costs_the_same_however_many_bits_a_message_has():
    """The number of trials enters no operation of the device, so the compiled work is one."""

    def work(trials):
        law = replace(SUM, trials=trials)
        run = jax.jit(law.rounded)
        return run.lower(jax.random.key(0), VECTORS).compile().cost_analysis()["flops"]

    assert work(10) == work(10**8)
