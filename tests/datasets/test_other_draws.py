"""`may_share`: synthetic datasets of different seeds have independent records, those of equal seeds do not."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import datasets
from fedprivjax.datasets.as_problem import from_dataset

STORED = ["clusters", "least_absolute", "least_squares", "logistic", "robust_regression"]
EXAMPLES, FEATURES = 2000, 12


def drawn(name, **options):
    """Training features of a synthetic dataset, float32 [examples, features]."""
    if name == "stream":
        pool = from_dataset(datasets.load(name, features=FEATURES, **options)).pool
        return np.asarray(pool.take(jnp.arange(EXAMPLES)[None], jnp.array([0]))[0][0][:, :FEATURES])
    return datasets.load(name, features=FEATURES, **{"examples": EXAMPLES, **options}).features


def common(one, other):
    """Number of records of the first array that the second has, too."""
    return len({row.tobytes() for row in one} & {row.tobytes() for row in other})


def largest_correlation(one, other):
    """Largest absolute correlation of a feature of record i with a feature of record i of the other, in deviations."""
    one, other = ((each - each.mean(axis=0)) / each.std(axis=0) for each in (one, other))
    return np.abs(one.T @ other).max() / np.sqrt(len(one))


def test_every_synthetic_dataset_is_tested():
    synthetic = {name for name, info in datasets.DATASETS.items() if not info.records_of}
    assert synthetic == {*STORED, "stream"}


@pytest.mark.parametrize("name", [*STORED, pytest.param("stream", marks=pytest.mark.slow)])
def test_another_seed_is_another_draw(name):
    one, other = drawn(name), drawn(name, seed=1)
    assert common(one, drawn(name, seed=0)) == EXAMPLES
    assert common(one, other) == 0
    assert largest_correlation(one, other) < 5  # 144 correlations: a false alarm once in 10⁴
    assert not datasets.may_share(name, name, {}, {"seed": 1})
    assert datasets.may_share(name, name, {"features": 5}, {"seed": 0})


def test_another_trial_of_clusters_is_another_draw():
    assert common(drawn("clusters"), drawn("clusters", trial=1)) == 0
    assert not datasets.may_share("clusters", "clusters", {"trial": 1}, {})
    assert not datasets.may_share("clusters", "clusters", {"trial": 1}, {"seed": 1})


def test_equal_seeds_share_records_whatever_the_other_options():
    assert common(drawn("logistic"), drawn("logistic", examples=50)) == 50
    assert common(drawn("logistic"), drawn("least_squares")) == EXAMPLES
    assert datasets.may_share("logistic", "logistic", {"examples": 50}, {"examples": 90})
    assert datasets.may_share("logistic", "least_squares")
    assert not datasets.may_share("logistic", "least_squares", {"seed": 3})


def test_seeds_that_are_no_words_of_32_bits_are_not_relied_on():
    assert common(drawn("clusters", trial=1), drawn("clusters", seed=1 << 32)) == 0  # another population
    words = [np.random.default_rng(seed).integers(1 << 60) for seed in ((0, 1), 1 << 32)]
    assert words[0] == words[1]  # and yet the same random numbers
    assert datasets.may_share("clusters", "clusters", {"trial": 1}, {"seed": 1 << 32})
    assert datasets.may_share("logistic", "logistic", {"seed": "1"})


def test_real_records_are_no_other_draw():
    assert datasets.may_share("mnist", "mnist", {"seed": 1}, {"seed": 2})
    assert datasets.may_share("mine:load", "mine:load", {"seed": 1}, {"seed": 2})
