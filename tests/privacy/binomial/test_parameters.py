from math import ceil, sqrt

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.privacy.accountants.binomial.paper import Bits, bits, default_levels


@pytest.mark.parametrize("ratio", [1e-4, 0.01, 0.05, 0.37, 2.0])
@pytest.mark.parametrize("levels", [1, 7, 64, 1500])
def test_the_noise_has_the_stated_deviation_and_the_fewest_trials(ratio, levels):
    found = bits(ratio, levels)
    assert found.std == pytest.approx(ratio * levels, rel=1e-12)
    assert 0 < found.probability <= 0.5
    assert found.trials == 1 or (found.trials - 1) / 4 < (ratio * levels) ** 2  # fewer trials have less variance
    assert found.levels == levels


def test_random_ratios_keep_their_variance():
    for ratio in np.random.default_rng(0).lognormal(-3, 3, 200):
        assert bits(float(ratio), 50).std == pytest.approx(50 * ratio, rel=1e-9)


def test_default_levels():
    for users, dimension in ((1, 1), (1000, 10), (60000, 7850), (10, 10**6)):
        assert default_levels(users, dimension) == ceil(max(2 * sqrt(users), 16 * sqrt(dimension)))
        assert default_levels(users, dimension, "sqrt") == ceil(max(2 * sqrt(users), sqrt(dimension), 4))
        assert default_levels(users, dimension, "linear") == ceil(max(2 * sqrt(users), dimension, 4))


def test_a_users_variance():
    assert Bits(10, 16, 0.25).std == pytest.approx(sqrt(3))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bits(0.0, 10), "ratio must be positive"),
        (lambda: bits(1e9, 10), "ratio must need at most"),
        (lambda: bits(1.0, 0), "levels must be at least 1, got 0"),
        (lambda: default_levels(0, 10), "users must be at least 1, got 0"),
        (lambda: default_levels(10, 0), "dimension must be at least 1, got 0"),
        (lambda: default_levels(10, 10, "cubic"), "unknown rule 'cubic'"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(Refusal, match=says):
        call()
