"""Streams that are derived from a seed: distinct, although a derived seed of 32 bits is equal to another by chance."""

import jax
import numpy as np
import pytest

from fedprivjax import Ball, NoisySGD, Squared, Uniform, linear_problem
from fedprivjax.plan.seeds import Seeds, as_seeds, configuration_seed, distinct_resamples, run_key
from fedprivjax.sweeps.configurations import seeds_of_draws
from fedprivjax.sweeps.prepare import ready_sweep

PROBLEM = linear_problem(np.eye(24, 3), np.ones(24), Squared(), constraint=Ball(1.0))


def test_resampled_seeds_that_are_equal_by_chance_are_replaced():
    first, second = as_seeds(0), as_seeds(67)
    assert first.resample(560) == second.resample(162)  # found by search
    found = distinct_resamples([first, second], [162, 560])
    assert len(set(found.values())) == 4
    assert [found[first, index] for index in (162, 560)] == [first.resample(index) for index in (162, 560)]
    assert found[second, 560] == second.resample(560)
    with_rows = seeds_of_draws([first, second], np.array([162, 560, 560]))
    assert with_rows == [found[one, row] for one in (first, second) for row in (162, 560, 560)]


def test_streams_that_are_shared_stay_shared():
    one, other = Seeds(1, 1, 1), Seeds(1, 2, 1)
    found = distinct_resamples([one, other], [4])
    assert found[one, 4].noise == found[other, 4].noise
    assert found[one, 4].samples != found[other, 4].samples


@pytest.mark.parametrize("pair", [((51, 200), (128, 452)), ((114, 127), (164, 443))])
def test_host_seeds_of_configurations_are_distinct(pair):
    """These pairs are equal in the first 32 bits."""
    one, other = (configuration_seed(as_seeds(seed), configuration) for seed, configuration in pair)
    assert one % 2**32 == other % 2**32
    assert one != other


def test_keys_of_configurations_are_folded_into_the_key_of_their_draw():
    method, over = NoisySGD(clip=1.0, step_size=0.1), {"mu": [1.0, 2.0], "step_scale": [1.0, 2.0]}
    start = ready_sweep(method, PROBLEM, Uniform(4, 2), over=over, seeds=2, rounds=3, common_noise=False)
    parted = ready_sweep(
        method, PROBLEM, Uniform(4, 2), over=over, seeds=2, rounds=3, common_noise=False, resample=["mu"]
    )
    for grid in (start, parted):
        keys = [
            (draw, configuration, jax.random.key_data(grid.arguments(draw, configuration).key).tobytes())
            for draw in range(len(grid.starts))
            for configuration in grid.index[draw % len(grid.index)].tolist()
        ]
        assert len({key for *_, key in keys}) == len(keys) == 8
        for draw, configuration, key in keys:
            folded = jax.random.fold_in(run_key(grid.starts[draw].seeds), configuration)
            assert jax.random.key_data(folded).tobytes() == key
