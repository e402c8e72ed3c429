"""Feature maps: functions of single examples with a public bound on the norm of their output. Base class, closed forms.

Maps with closed forms are group norms, unit norm, a constant, and average pooling over squares of pixels.
"""

from dataclasses import dataclass
from math import hypot, prod, sqrt
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_at_least, require_number, require_positive

Shape = tuple[int, ...]


class FeatureMap(Decorated):
    """Base class of feature maps: fixed functions of single examples.

    Subclasses are frozen dataclasses of their settings. They define the methods `shape`, `bound` and `__call__`. A
    feature map has no privacy cost, because its output for an example depends on no other example. To ensure this,
    custom maps are called under `jax.vmap`, with one example at a time.

    Attributes:
        cached: True for a slow map, whose output is stored on disk. The map's `repr` identifies the stored output, and
            must therefore show all settings.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halved(FeatureMap):
    ...     def shape(self, shape):
    ...         return shape
    ...     def bound(self, shape, bound):
    ...         return bound / 2
    ...     def __call__(self, examples):
    ...         return examples / 2
    >>> Halved().bound((3,), 1.0)
    0.5
    """

    kind, decorator = "feature map", FROZEN
    cached: ClassVar[bool] = False

    def shape(self, shape: Shape) -> Shape:
        """Return the shape of an example's output for an input shape (height, width, channels) or (features,).

        Raises:
            Refusal: if the map cannot be applied to such examples.
        """
        raise Undefined(f"{type(self).__name__} must define shape(shape)")

    def bound(self, shape: Shape, bound: float) -> float:
        """Return a bound on the output's L2 norm for every example of shape `shape` with L2 norm at most `bound`."""
        raise Undefined(f"{type(self).__name__} must define bound(shape, bound)")

    def __call__(self, examples: Any) -> jax.Array:
        """Map float32 [examples, *shape] to [examples, *self.shape(shape)]. Traced. Custom maps get batches of one."""
        raise Undefined(f"{type(self).__name__} must define __call__(examples)")


def require_picture(name: str, shape: Shape) -> None:
    """Raise Refusal unless examples are images.

    >>> require_picture("pooling", (7,))
    Traceback (most recent call last):
    fedprivjax.Refusal: features pooling must be of pictures, got examples of 7 numbers: give picture = [height, width]
    """
    if len(shape) != 3:
        given = "give picture = [height, width]"
        raise Refusal(f"features {name} must be of pictures, got examples of {prod(shape)} numbers: {given}")


@dataclass(frozen=True)
class GroupNorm(FeatureMap):
    r"""Feature map of group normalisation: each group of an image's channels gets mean 0 and variance 1.

        x ↦ (x − mean)/√(variance + floor)        over all positions and channels of one group of one example

    A normalised group of n numbers has L2 norm below √n. No statistic over several examples is used.

    Attributes:
        groups: number of groups of neighbouring channels, all of equal size. With None, every channel is a group.
        floor: constant added to the variance, so that a group of equal numbers becomes zero.

    Source: Wu & He 2018, Group Normalization.

    >>> import numpy as np
    >>> GroupNorm(1)(np.array([[[[0.0, 2.0]], [[2.0, 0.0]]]])).round(3).ravel().tolist()
    [-1.0, 1.0, 1.0, -1.0]
    >>> GroupNorm().bound((7, 7, 81), 100.0)
    63.0
    """

    groups: int | None = None
    floor: float = 1e-5

    def __post_init__(self):
        if self.groups is not None:
            require_at_least("group_norm groups", self.groups, 1)
        require_number("group_norm floor", self.floor)
        require_positive("group_norm floor", self.floor)

    def shape(self, shape):
        require_picture("group_norm", shape)
        if self.groups is not None and shape[2] % self.groups:
            raise Refusal(f"group_norm groups must divide the {shape[2]} channels, got {self.groups}")
        return shape

    def bound(self, shape, bound):
        return sqrt(prod(shape))

    def __call__(self, examples):
        _, height, width, channels = examples.shape
        groups = channels if self.groups is None else self.groups
        grouped = examples.reshape(-1, height * width, groups, channels // groups)
        centred = grouped - grouped.mean(axis=(1, 3), keepdims=True)
        variance = jnp.square(centred).mean(axis=(1, 3), keepdims=True)
        return (centred / jnp.sqrt(variance + self.floor)).reshape(examples.shape)


@dataclass(frozen=True)
class UnitNorm(FeatureMap):
    """Feature map that divides every example by its L2 norm. An example of zeros is unchanged.

    >>> import numpy as np
    >>> UnitNorm()(np.array([[3.0, 4.0], [0.0, 0.0]])).round(3).tolist()
    [[0.6..., 0.8...], [0.0, 0.0]]
    """

    def shape(self, shape):
        return shape

    def bound(self, shape, bound):
        return 1.0

    def __call__(self, examples):
        flat = examples.reshape(len(examples), -1)
        largest = jnp.max(jnp.abs(flat), axis=1, keepdims=True)
        flat = flat / jnp.where(largest > 0, largest, 1.0)  # squares of small numbers are zero in float32
        norms = jnp.linalg.norm(flat, axis=1, keepdims=True)
        return (flat / jnp.where(norms > 0, norms, 1.0)).reshape(examples.shape)


@dataclass(frozen=True)
class Constant(FeatureMap):
    """Feature map that appends a constant feature, which serves as a linear predictor's intercept.

    Attributes:
        value: value of the feature. If the other features have norm 1, the default 1 contributes half of the squared
            norm.

    >>> import numpy as np
    >>> Constant(0.5)(np.array([[3.0, 4.0]])).tolist(), Constant(0.75).bound((2,), 1.0)
    ([[3.0, 4.0, 0.5]], 1.25)
    """

    value: float = 1.0

    def __post_init__(self):
        require_number("constant value", self.value)
        require_positive("constant value", self.value)

    def shape(self, shape):
        return (prod(shape) + 1,)

    def bound(self, shape, bound):
        return hypot(bound, self.value)

    def __call__(self, examples):
        flat = jnp.asarray(examples).reshape(len(examples), -1)
        return jnp.concatenate([flat, jnp.full_like(flat[:, :1], self.value)], axis=1)


@dataclass(frozen=True)
class Pooling(FeatureMap):
    """Feature map of average pooling: means over disjoint squares of `size × size` pixels.

    The mean of the k = size² numbers in a square is at most √(sum of their squares)/√k in absolute value. Pooling
    therefore divides the norm of an image by at least `size`.

    Attributes:
        size: side of a square in pixels. Both sides of an image must be multiples of `size`.

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
