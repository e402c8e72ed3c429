"""Interface of feature maps: functions of single examples, with a public bound on the norm of their output."""

from math import prod
from typing import Any, ClassVar

import jax

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined

Shape = tuple[int, ...]


class FeatureMap(Decorated):
    """Base class of feature maps: functions of single examples that depend on no data and have no privacy cost.

    Subclasses are frozen dataclasses of their settings. They define the output's shape, a bound on its norm, and the
    map itself. A custom map is called with one example at a time (`jax.vmap`), since the bound, and with it every
    guarantee, is per example.

    Attributes:
        cached: whether the output is cached on disk. If True, the `repr` must state all settings.

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
        """Return a bound on the output's L2 norm for every example of this shape with L2 norm at most `bound`."""
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
