"""The linear predictor of an audit: the canary's loss, its direction, and parameters in one or two arrays."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.problem.gradients import Outer
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.models import Example, LinearModel

AXES = 4  # audited directions: the canary's, then noise-only directions


@dataclass(frozen=True)
class CanaryLoss(LinearLoss):
    """The loss `label·(score + curvature·score²/2)`, with gradient `label·(1 + curvature·score)·features`.

    With curvature 0, the linear loss, the gradient is the same at every point.
    """

    curvature: float = 0.0

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.curvature == 0  # not convex for a negative label otherwise

    def value(self, score, label):
        return label * (score + self.curvature * score**2 / 2)

    def lipschitz(self, feature_bound: float, radius: float = np.inf) -> float:
        return feature_bound * (1 + self.curvature * feature_bound * radius if self.curvature else 1)

    def smoothness(self, feature_bound: float) -> float:
        return self.curvature * feature_bound**2

    def label_range(self):
        return (-1.0, 1.0)


# ---- directions


def canary_direction(dimension: int, *, dense: bool) -> np.ndarray:
    """Return a canary's unit vector, float64 [dimension]: the first axis or, if dense, a vector without a 0.

    Magnitudes alternate between 1 and 2, so that both of two arrays of parameters hold half of it. Signs are random.

    >>> canary_direction(4, dense=False).tolist()
    [1.0, 0.0, 0.0, 0.0]
    >>> np.abs(canary_direction(4, dense=True) * 10**0.5).round(9).tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    if not dense:
        return np.eye(dimension)[0]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], dimension)
    vector = signs * (1 + np.arange(dimension) % 2)
    return vector / np.linalg.norm(vector)


def audited_directions(canary: np.ndarray) -> np.ndarray:
    """Return orthonormal directions, float32 [`AXES`, d]: the canary's, then noise-only ones.

    They are the first axes after the reflection that maps the first axis to the canary's direction.

    Args:
        canary: any multiple of the canary's direction, [d]. Zero counts as the first axis.
    """
    axes = np.eye(canary.size)
    length = np.linalg.norm(canary.astype(float))
    normal = axes[0] - (canary / length if length > 0 else axes[0])
    squared = normal @ normal
    reflection = axes - 2 * np.multiply.outer(normal, normal) / squared if squared > 0 else axes
    return reflection[:AXES].astype(np.float32)


# ---- two arrays of parameters


def halves(vector) -> dict[str, Any]:
    """Return a vector of parameters, [d], as a bias and a kernel, which is a matrix with one column."""
    first = vector.shape[-1] // 2
    return {"bias": vector[..., :first], "kernel": vector[..., first:, None]}


def joined(params: dict[str, Any]) -> Any:
    """Return the vector of `halves`, [d]."""
    return jnp.concatenate([params["bias"], params["kernel"][..., 0]], axis=-1)


@struct.dataclass
class SplitOuter(Outer):
    """A factored gradient of two arrays of parameters, see `halves`."""

    def written_out(self) -> Any:
        return halves(super().written_out())

    def total(self) -> Any:
        return halves(super().total())


@dataclass(frozen=True)
class SplitLinearModel(LinearModel):
    """A linear predictor with its parameters in two arrays."""

    def value(self, params, example: Example):
        return super().value(joined(params), example)

    def gradients(self, points: tuple[Any, ...], example: Example) -> tuple[SplitOuter, ...]:
        rows = super().gradients(tuple(joined(point) for point in points), example)
        return tuple(SplitOuter(row.residual, row.features, row.feature_norm) for row in rows)

    def correct(self, params, example: Example):
        return super().correct(joined(params), example)
