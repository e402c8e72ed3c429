import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
sys.path.append(str(Path(__file__).parent))  # for `oracles`

import jax
import numpy as np
import pytest

from fedprivjax import Ball, Softmax, general_problem, linear_problem
from fedprivjax.problem.models import Example

jax.config.update("jax_numpy_rank_promotion", "raise")

CLASSES = 3


def unit_rows(rng, count, features):
    rows = rng.normal(size=(count, features))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def data():
    """Features [60, 5] of unit norm and labels in 0..2, for training; 12 more for testing."""
    rng = np.random.default_rng(2024)
    teacher = rng.normal(size=(5, CLASSES))
    features = unit_rows(rng, 72, 5)
    labels = np.argmax(features @ teacher + 0.3 * rng.normal(size=(72, CLASSES)), axis=1)
    return features[:60], labels[:60], features[60:], labels[60:]


@pytest.fixture(scope="session")
def softmax_problem(data):
    """Softmax regression, d = 15, on the ball of radius 1."""
    features, labels, *test = data
    return linear_problem(features, labels, Softmax(CLASSES), feature_bound=1.0, constraint=Ball(1.0), test=tuple(test))


@pytest.fixture(scope="session")
def general_twin(softmax_problem):
    """A function that makes the same problem through `general_problem`, as a program of its own at each call."""

    def make(constraint=None):
        loss = Softmax(CLASSES)

        def value(params, example: Example):
            return loss.value(params @ example.features, example.label)

        def hit(params, example: Example):
            return loss.correct(params @ example.features, example.label)

        return general_problem(
            value,
            softmax_problem.pool,
            softmax_problem.start,
            constraint=constraint or softmax_problem.constraint,
            lipschitz=softmax_problem.lipschitz,
            smoothness=softmax_problem.smoothness,
            hit=hit,
            test=softmax_problem.test,
        )

    return make
