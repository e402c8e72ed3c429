"""Messages as data: linear combinations of one record's gradients at public points.

An algorithm says which combination a machine sends, and never holds a gradient. The privacy object evaluates it for
every record, bounds it, and adds noise.
"""

from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called

ARRAYS = int | float | complex | np.generic | np.ndarray | jax.Array
KNOWN = "A message is built of gradient(point) by +, - and products with numbers"


@final
@jax.tree_util.register_pytree_node_class
class Linear:
    """An opaque message of one record, Σ_k c_k·∇f(x_k; record). Only +, − and products with numbers are defined.

    >>> x, before = jnp.ones(2), jnp.zeros(2)
    >>> 3.0 * gradient(x) - 2.0 * gradient(before)
    a combination of 2 gradients
    """

    __array_ufunc__ = None  # NumPy scalars defer to __rmul__
    __slots__ = ("_coefficients", "_points")

    def __init__(self, coefficients: tuple, points: tuple):
        self._coefficients, self._points = coefficients, points

    def __init_subclass__(cls, **_):
        raise Refusal(f"Linear must not be subclassed, got {cls.__name__}. {KNOWN}")

    def __add__(self, other: Any) -> "Linear":
        if type(other) is not Linear:
            raise Refusal(f"a message must be added to another message, got {called(other)}. {KNOWN}")
        return Linear(self._coefficients + other._coefficients, self._points + other._points)

    def __sub__(self, other: Any) -> "Linear":
        return self + -other if type(other) is Linear else self + other

    def __neg__(self) -> "Linear":
        return -1.0 * self

    def __mul__(self, number: Any) -> "Linear":
        require_coefficient(number)
        each = (number if one is None else number * one for one in self._coefficients)
        return Linear(tuple(each), self._points)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"a combination of {len(self._points)} gradient{'s' * (len(self._points) > 1)}"

    def tree_flatten(self):
        """Return coefficients and points as children."""
        return (self._coefficients, self._points), None

    @classmethod
    def tree_unflatten(cls, _, children) -> "Linear":
        """Return the message of these children."""
        return cls(*children)


def gradient(point: Any) -> Linear:
    """Return the message that is the gradient of one record's loss at a public point.

    Args:
        point: a pytree shaped like the parameters.
    """
    return Linear((None,), (point,))


def points_of(message: Linear) -> tuple:
    """Return the points at which a message takes gradients."""
    return message._points


def is_plain(message: Linear) -> bool:
    """Return True for the gradient at one point, without a coefficient."""
    return len(message._coefficients) == 1 and message._coefficients[0] is None


def require_message(message: Any, start: Any, name: str) -> Linear:
    """Return a message as it is evaluated: a `Linear` whose coefficients and points are arrays.

    Args:
        start: parameters whose structure, shapes and types the points must have.
        name: name of the algorithm.

    Raises:
        Refusal: it is not exactly a `Linear` of real coefficients and of points like the parameters.
    """
    if type(message) is not Linear:
        raise Refusal(f"message of {name} must be a combination of gradients, got {called(message)}. {KNOWN}")
    wanted, points = _form(start), message._points
    numbers = len(message._coefficients), len(points)
    if numbers[0] != numbers[1]:
        raise Refusal(
            f"a combination of gradients must have as many coefficients as points, got {numbers[0]} and {numbers[1]}"
        )
    for found in map(_form, points):
        if found != wanted:
            raise Refusal(f"a gradient's point in {name} must be like the parameters, {wanted[1]}, got {found[1]}")
    for number in message._coefficients:
        if number is not None:
            require_coefficient(number)
    coefficients = (None if one is None else jnp.asarray(one, jnp.float32) for one in message._coefficients)
    return Linear(tuple(coefficients), jax.tree.map(jnp.asarray, points))


def require_coefficient(number: Any, name: str = "a coefficient of a message") -> None:
    """Raise Refusal unless a coefficient is one real number."""
    good = isinstance(number, ARRAYS) and not jnp.ndim(number) and jnp.issubdtype(jnp.result_type(number), jnp.number)
    if not good or jnp.iscomplexobj(number):
        raise Refusal(f"{name} must be one real number, got {called(number)}. {KNOWN}")


def of_record(message: Linear) -> Callable[[Callable], Any]:
    """Return a message as a function of one record's gradient oracle, which takes all points in one call."""

    def evaluated(oracle: Callable) -> Any:
        points = points_of(message)
        several = oracle(*points) if len(points) > 1 else (oracle(*points),)
        numbers = [None if c is None else jnp.asarray(c, jnp.float32) for c in message._coefficients]
        each = [g if c is None else c * g for c, g in zip(numbers, several, strict=True)]
        return sum(each[1:], each[0])

    return evaluated


def _form(point: Any) -> tuple:
    """Return a point's structure, and the types and shapes of its leaves."""
    leaves = jax.tree.leaves(point)
    arrays = [isinstance(leaf, ARRAYS) for leaf in leaves]
    forms = [
        (str(jnp.result_type(leaf)), jnp.shape(leaf)) if array else called(leaf)
        for leaf, array in zip(leaves, arrays, strict=True)
    ]
    return jax.tree.structure(point), forms
