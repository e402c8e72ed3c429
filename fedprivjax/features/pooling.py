"""Average pooling over squares of pixels."""

from dataclasses import dataclass

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.features.interface import FeatureMap, require_picture


@dataclass(frozen=True)
class Pooling(FeatureMap):
    """Means over disjoint squares of `size × size` pixels.

    The mean of k numbers is at most the root of their summed squares divided by √k, so the norm is divided by at least
    `size`.

    Attributes:
        size: side of a square in pixels. Both sides of an image must be multiples of it.

    >>> import numpy as np
    >>> Pooling(2)(np.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
    [[2.5, 4.5], [10.5, 12.5]]
    >>> Pooling(2).bound((4, 4, 1), 8.0)
    4.0
    """

    size: int = 2

    def __post_init__(self):
        require_at_least("pooling size", self.size, 1)

    def shape(self, shape):
        require_picture("pooling", shape)
        height, width, channels = shape
        if height % self.size or width % self.size:
            raise Refusal(f"pooling size must divide the picture's sides ({height}×{width}), got {self.size}")
        return height // self.size, width // self.size, channels

    def bound(self, shape, bound):
        return bound / self.size

    def __call__(self, examples):
        _, height, width, channels = examples.shape
        squares = (-1, height // self.size, self.size, width // self.size, self.size, channels)
        return examples.reshape(squares).mean(axis=(2, 4))
