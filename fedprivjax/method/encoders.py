"""Encoders: compression of a machine's message after its own noise and before it is sent.

An encoded message is written as the vector that the server reads from it, so that the server sums encoded messages.
A machine's own noise is added before, so encoding is post-processing. A trusted server's noise comes after, so its
sensitivity is that of the encoded messages.
"""

from dataclasses import dataclass
from math import ceil, inf, log2, sqrt
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_at_least, require_probability

FLOAT = 32  # bits of a number


class Encoder(Decorated):
    """Base class of encoders, which compress machines' messages before they are sent.

    A custom encoder is a frozen dataclass that defines `encode` and `bits`. In the example, an encoded message consists
    of the signs and the mean absolute value of the coordinates. The mean is a float32 number of `FLOAT` = 32 bits.

    >>> from fedprivjax import FedAvg
    >>> @dataclass(frozen=True)
    ... class Signs(Encoder):
    ...     def encode(self, message, key):
    ...         return jnp.mean(jnp.abs(message)) * jnp.sign(message)
    ...
    ...     def bits(self, dimension):
    ...         return FLOAT + dimension
    >>> method = FedAvg(local_epochs=1, batch=10, step_size=0.1, encoder=Signs())
    """

    kind, decorator = "encoder", FROZEN
    stated: ClassVar[Stated] = Stated(by=("norm_bound",), free=("bits",))

    def encode(self, message: jax.Array, key: jax.Array) -> jax.Array:
        """Return the vector that the server decodes from an encoded message, float32 [d].

        Encoding and decoding are one function, because a simulation needs only the result of both.

        Args:
            message: the machine's message after the machine added its own noise, if any; float32 [d].
            key: random key of the machine.
        """
        raise Undefined(f"{type(self).__name__} must define encode(message, key)")

    def bits(self, dimension: int) -> float:
        """Return the number of bits of one encoded message.

        Args:
            dimension: number of coordinates of the message.
        """
        raise Undefined(f"{type(self).__name__} must define bits(dimension)")

    def norm_bound(self, norm: float, dimension: int) -> float:
        """Return a bound on the L2 norm of every message after encoding and decoding. Default: infinity.

        A trusted server's noise is calibrated to this bound. With a trusted server, the bound must therefore be finite.

        Args:
            norm: bound on the L2 norm of the message before encoding.
            dimension: number of coordinates of the message.
        """
        return inf


@dataclass(frozen=True)
class Quantiser(Encoder):
    r"""Unbiased random rounding of coordinates to few levels: QSGD of Alistarh et al., NeurIPS 2017.

    With s = `levels`, a coordinate x_j of a message x becomes ‖x‖·sign(x_j)·ξ_j/s. The integer ξ_j is s·abs(x_j)/‖x‖,
    rounded up or down at random.

    For d coordinates, the expected squared error is at most min(d/s², √d/s)·‖x‖². The decoded message has a norm of at
    most (1 + √d/s)·‖x‖. An encoded message consists of ‖x‖ as a float32, and of ⌈log₂(2s + 1)⌉ bits for the sign and
    the level of each coordinate.

    Attributes:
        levels: s, number of levels above 0.

    Raises:
        Refusal: if `levels` is below 1.

    >>> Quantiser(levels=16).bits(1000)
    6032.0
    """

    levels: int = 16

    def __post_init__(self):
        require_at_least("levels", self.levels, 1)

    def encode(self, message, key):
        norm = jnp.linalg.norm(message)
        scaled = self.levels * jnp.abs(message) / jnp.where(norm > 0, norm, 1.0)
        low = jnp.floor(scaled)
        up = jax.random.uniform(key, message.shape) < scaled - low
        return norm / self.levels * jnp.sign(message) * (low + up)

    def bits(self, dimension: int) -> float:
        return float(FLOAT + dimension * ceil(log2(2 * self.levels + 1)))

    def norm_bound(self, norm: float, dimension: int) -> float:
        return norm * (1 + sqrt(dimension) / self.levels)


@dataclass(frozen=True)
class Sparsifier(Encoder):
    """Unbiased sparsification: randomly chosen coordinates are scaled up, and the others are set to 0.

    If k of the d coordinates of a message x are chosen, each of them is multiplied by d/k. The expected squared error
    is (d/k − 1)·‖x‖². The decoded message has a norm of at most (d/k)·‖x‖. Only the k values are sent. Their positions
    need no bits, because they follow from a seed that the server knows.

    Attributes:
        fraction: k/d, fraction of the coordinates that are sent, in (0, 1]. The number k is rounded to an integer, and
            is at least 1.

    Raises:
        Refusal: if `fraction` is not in (0, 1].

    >>> Sparsifier(fraction=0.01).bits(1000)
    320.0
    """

    fraction: float = 0.1

    def __post_init__(self):
        require_probability("fraction", self.fraction)

    def encode(self, message, key):
        kept = self._kept(message.size)
        places = jax.random.choice(key, message.size, (kept,), replace=False)
        return jnp.zeros_like(message).at[places].set(message.size / kept * message[places])

    def bits(self, dimension: int) -> float:
        return float(FLOAT * self._kept(dimension))

    def norm_bound(self, norm: float, dimension: int) -> float:
        return norm * dimension / self._kept(dimension)

    def _kept(self, dimension: int) -> int:
        return max(1, round(self.fraction * dimension))


ENCODERS: dict[str, type[Encoder]] = {"quantiser": Quantiser, "sparsifier": Sparsifier}
