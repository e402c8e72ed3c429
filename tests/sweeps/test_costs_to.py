"""`bytes_to` and `gradients_to`: the cost until a metric reaches a value."""

import numpy as np
import pytest
import xarray as xr

from fedprivjax import Refusal, bytes_to, gradients_to, rounds_to

CURVES = np.array([[[0.2, 0.5, 0.9], [0.1, 0.2, 0.6]], [[0.8, 0.8, 0.9], [0.1, 0.1, 0.1]]])


@pytest.fixture
def grid():
    """Accuracies of two rates and two seeds, at rounds 2, 4 and 8; bytes differ by rate, gradients also by seed."""
    return xr.Dataset(
        {
            "test_accuracy": (("rate", "seed", "round"), CURVES),
            "diverged": (("rate", "seed"), np.zeros((2, 2), bool)),
            "sent_bytes": ("rate", [800.0, 1600.0]),
            "gradients_per_record": (("seed", "rate"), [[8.0, 16.0], [24.0, 32.0]]),
            "rounds_taken": ((), 8),
        },
        {"rate": [1.0, 2.0], "seed": [0, 1], "round": [2, 4, 8]},
    )


def test_costs_are_those_of_the_rounds_until_the_value(grid):
    assert rounds_to(grid, "test_accuracy", 0.5).values.tolist()[0] == [4.0, 8.0]
    np.testing.assert_array_equal(bytes_to(grid, "test_accuracy", 0.5), [[400.0, 800.0], [400.0, np.nan]])
    found = gradients_to(grid, "test_accuracy", 0.5)
    assert found.dims == ("rate", "seed")
    np.testing.assert_array_equal(found, [[4.0, 24.0], [4.0, np.nan]])


def test_a_diverged_run_has_no_cost(grid):
    grid["diverged"][0, 0] = True
    assert np.isnan(bytes_to(grid, "test_accuracy", 0.5).sel(rate=1.0, seed=0))


def test_results_without_costs_are_refused(grid):
    with pytest.raises(Refusal, match="dataset must have sent_bytes, got one without it"):
        bytes_to(grid.drop_vars("sent_bytes"), "test_accuracy", 0.5)
    with pytest.raises(Refusal, match="'test_loss'"):
        gradients_to(grid, "test_loss", 0.5)
