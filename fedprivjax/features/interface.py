"""What a feature map is: a function of one example alone, with a public bound on the norm of what it gives."""

from math import prod
from typing import Any, ClassVar

import jax

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined

Shape = tuple[int, ...]


class FeatureMap(Decorated):
    """A map of single examples that depends on no data, so that it costs no privacy.

    Subclasses are frozen dataclasses of their settings and say three things: the shape of what comes out, a bound on
    its norm, and the map itself. A custom map is called with one example at a time (`jax.vmap`): the bound, and with it
    every guarantee, is for each example alone.

    Attributes:
        cached: whether its output is cached on disk. Then its `repr` must state its settings.

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
        """The shape of an example's features, from that of what comes in: (height, width, channels), or (features,).

        Raises:
            Refusal: it cannot be applied to such examples.
        """
        raise Undefined(f"{type(self).__name__} must define shape(shape)")

    def bound(self, shape: Shape, bound: float) -> float:
        """A bound on the Euclidean norm of what comes out, for every example of this shape and norm at most `bound`."""
        raise Undefined(f"{type(self).__name__} must define bound(shape, bound)")

    def __call__(self, examples: Any) -> jax.Array:
        """Float32 [examples, *shape] to [examples, *self.shape(shape)]; traced; a custom map gets batches of one."""
        raise Undefined(f"{type(self).__name__} must define __call__(examples)")


def require_picture(name: str, shape: Shape) -> None:
    """Refuse examples that are no pictures.

    >>> require_picture("pooling", (7,))
    Traceback (most recent call last):
    fedprivjax.Refusal: features pooling must be of pictures, got examples of 7 numbers: give picture = [height, width]
    """
    if len(shape) != 3:
        given = "give picture = [height, width]"
        raise Refusal(f"features {name} must be of pictures, got examples of {prod(shape)} numbers: {given}")
