"""Clipping must hold for features so small that the squares of their norm underflow in float32."""

import numpy as np
import pytest

from fedprivjax import Full, NoisyMinibatchSGD, Squared, TreeMomentum, linear_problem, transcript


@pytest.mark.parametrize(
    "protocol",
    [
        NoisyMinibatchSGD(noise_std=1e-9, step_size=1e-3, clip=1.0, batch=1, sampler="cyclic"),
        pytest.param(
            TreeMomentum(noise_std=1e-9, step_size=1e-3, clip=1.0, alpha=1.0, trust="none"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_clip_holds_where_the_norm_of_features_underflows(protocol):
    features, labels = np.eye(2, 4, dtype=np.float32)[None], np.zeros((1, 2))
    features[0, 0], labels[0, 0] = 1e-23, 1e30  # a gradient of 2·10⁷
    seen = transcript(protocol, linear_problem(features, labels, Squared()), Full(1), rounds=2)
    assert np.linalg.norm(seen.messages, axis=-1).max() < 1.001
