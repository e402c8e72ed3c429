"""Federations for the planted faults: small ones, and some with a fault in the federation itself."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax import (
    Ball,
    Full,
    Given,
    Uniform,
    general_problem,
)
from fedprivjax.auditing.federation import RADIUS, SMOOTHNESS, Federation
from fedprivjax.problem.models import Example

SMALL = Federation(Uniform(3, 2), rounds=6, records=12, dimension=4, dense=False)
EVERYONE = Federation(Full(3), rounds=6, records=6, dimension=4, dense=False)
MU, CLIP = 2.0, 1.0
TARGET = {"mu": MU, "clip": CLIP}


class DependsOnData(Federation):
    """Participation depends on the data: a machine with a positive label comes first."""

    def taking_part(self, problem):
        rows = np.array([[0, 1], [1, 2], [2, 0], [0, 1], [1, 2], [2, 0]])
        return Given(3, rows[::-1] if np.asarray(problem.pool.label).sum() > 0 else rows)


@dataclass(frozen=True)
class Leaves(Federation):
    """The same linear loss with parameters in two leaves, and the canary's gradient in the first.

    Attributes:
        first: "bias" or "kernel".
    """

    first: str = "bias"

    def problem(self, clip, split, canary, label):
        plain = super().problem(clip, split, canary, label)
        shapes = {"0 bias": (1,), "1 kernel": (3, 1)} if self.first == "bias" else {"0 kernel": (1, 1), "1 bias": (3,)}
        start = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        options = {"constraint": Ball(RADIUS), "smoothness": SMOOTHNESS}
        return general_problem(linear_loss, plain.pool, start, **options)


def linear_loss(params, example: Example):
    return example.label * (jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]) @ example.features)


LEAVES = {first: Leaves(Uniform(3, 2), rounds=6, records=12, dimension=4, first=first) for first in ("bias", "kernel")}
SELDOM = Federation(Uniform(6, 2), rounds=12, records=6, dimension=4)
CHOSEN = DependsOnData(Uniform(3, 2), rounds=6, records=12, dimension=4)
EDGE = replace(SMALL, canary=1.04)
