"""A sweep's dataset made by hand: one value of mu, two seeds."""

import numpy as np
import xarray as xr

from fedprivjax import Grouped, PrivacyGuarantee, Terms
from fedprivjax.sweeps.results import sweep_dataset
from fedprivjax.sweeps.schema import COSTS, OF_RUN, RUN_COSTS

GUARANTEE = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0])).to_json()


def small_results(loss: np.ndarray | None = None) -> xr.Dataset:
    """Return results with a metric "test_loss".

    Args:
        loss: its values, [seeds, configurations, rounds] or [seeds, configurations, rounds, 2 iterates]. Default: ones.
    """
    loss = np.ones((2, 1, 3)) if loss is None else loss
    values = {
        "test_loss": loss,
        **{name: np.ones((2, 1)) for name in (*OF_RUN, *RUN_COSTS)},
        "diverged": np.zeros((2, 1)),
    }
    configurations = {name: np.ones(1) for name in ("noise_std", "step_size", "target_epsilon", *COSTS)}
    axes = {
        "mu": np.ones(1),
        "seed": np.arange(2),
        "round": np.arange(loss.shape[2]),
        "iterate": np.array(["output", "last"]),
    }
    attributes = {"protocol": "DPMu2", "delta": 1e-5, "non_private_metrics": "", "non_private_data": ""}
    return sweep_dataset(values, configurations | {"guarantee": np.array([GUARANTEE], object)}, axes, attributes)
