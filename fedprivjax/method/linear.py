"""Messages as data: linear combinations of one record's gradients at public points, or another function of one record.

An algorithm says which message a machine sends, and never holds a gradient or a record. The privacy object evaluates it
for every record, bounds it, and adds noise.
"""

from collections.abc import Callable
from inspect import isfunction
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called

ARRAYS = int | float | complex | np.generic | np.ndarray | jax.Array
KNOWN = "A message is built of gradient(point) by +, - and products with numbers, or is per_record(function, point)"


class Statistic(NamedTuple):
    """Function of one record that a message holds instead of gradients, and the shape of its value."""

    function: Callable[..., Any]
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """Import path of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


@final
@jax.tree_util.register_pytree_node_class
class Linear:
    """Message of one record: a combination of gradients of the record's loss at several points.

    The message is Σ_k c_k·∇f(x_k; record), with numbers c_k, public points x_k, and the loss f of the record. The
    object holds only the c_k and x_k. The privacy object computes the gradients and bounds the message.

    Messages are made by `gradient(point)`. They can be added, subtracted, and multiplied by numbers. `per_record` makes
    a message that is another function of the record.

    >>> x, before = jnp.ones(2), jnp.zeros(2)
    >>> 3.0 * gradient(x) - 2.0 * gradient(before)
    a combination of 2 gradients
    """

    __array_ufunc__ = None  # NumPy scalars defer to __rmul__
    __slots__ = ("_coefficients", "_points", "_statistic")

    def __init__(self, coefficients: tuple, points: tuple, statistic: Statistic | None = None):
        self._coefficients, self._points, self._statistic = coefficients, points, statistic

    def __init_subclass__(cls, **_):
        raise Refusal(f"Linear must not be subclassed, got {cls.__name__}. {KNOWN}")

    def __add__(self, other: Any) -> "Linear":
        if type(other) is not Linear:
            raise Refusal(f"a message must be added to another message, got {called(other)}. {KNOWN}")
        if self._statistic is not None or other._statistic is not None:
            raise Refusal(f"a sum of messages must be of gradients, got {self} and {other}. Add inside the function")
        return Linear(self._coefficients + other._coefficients, self._points + other._points)

    def __sub__(self, other: Any) -> "Linear":
        return self + -other if type(other) is Linear else self + other

    def __neg__(self) -> "Linear":
        return -1.0 * self

    def __mul__(self, number: Any) -> "Linear":
        require_coefficient(number)
        each = (number if one is None else number * one for one in self._coefficients)
        return Linear(tuple(each), self._points, self._statistic)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        if self._statistic is not None:
            return f"the function {self._statistic.name} of a record"
        return f"a combination of {len(self._points)} gradient{'s' * (len(self._points) > 1)}"

    def tree_flatten(self):
        """Return what `jax.tree_util` needs to flatten a message: its children, and its static data.

        The children are the coefficients and the points. The static data is the function given to `per_record`, or
        None.
        """
        return (self._coefficients, self._points), self._statistic

    @classmethod
    def tree_unflatten(cls, statistic, children) -> "Linear":
        """Return the message with the given static data and children, the inverse of `tree_flatten`."""
        coefficients, points = children
        return cls(coefficients, points, statistic)


def gradient(point: Any) -> Linear:
    """Return the message that is the gradient of one record's loss at a public point.

    Args:
        point: public point, a pytree shaped like the parameters.

    >>> import numpy as np
    >>> print(2.0 * gradient(np.ones(3)) - gradient(np.zeros(3)))
    a combination of 2 gradients
    """
    return Linear((None,), (point,))


def per_record(function: Callable[..., Any], point: Any, *public: Any, shape: tuple[int, ...] = ()) -> Linear:
    """Return a message that is a function of one record, such as a difference of losses.

    The function is evaluated for one record at a time, and its value is clipped as a whole.

    Args:
        function: `(record, point, *public) -> value`, defined at the top level of a module, without a closure or
            defaults. In it, `record.loss(params)` is the loss of the record, and `record.example` is the record itself.
        point: public point that machines receive, a pytree shaped like the parameters.
        public: further public arguments of the function, pytrees of numbers, which all machines receive.
        shape: shape of the function's value, a float32 array. The default is a scalar.

    >>> per_record(lambda record, w: record.loss(w), jnp.zeros(2))
    the function fedprivjax.method.linear.<lambda> of a record
    """
    statistic = Statistic(function, shape)
    _require_statistic(statistic)
    return Linear((None,), ((point, *public),), statistic)


def statistic_of(message: Linear) -> Statistic | None:
    """Return the function of one record that a message of `per_record` holds, or None."""
    return message._statistic


def form_of(statistic: Statistic | None) -> tuple[str | None, tuple[int, ...] | None]:
    """Return the name and the shape that a message's function of one record has in all rounds; None for gradients."""
    return (None, None) if statistic is None else (statistic.name, statistic.shape)


def points_of(message: Linear) -> tuple:
    """Return the points at which a message takes gradients, or the public numbers of `per_record`, the query first."""
    return message._points if message._statistic is None else message._points[0]


def displacement(message: Linear, centre: Any) -> Any:
    """Return Σ_k c_k·(x_k − centre) of a message of gradients, the gradient of a quadratic around a centre."""
    numbers = [1.0 if c is None else c for c in message._coefficients]

    def one(centre, *points):
        return sum((c * (x - centre) for c, x in zip(numbers, points, strict=True)), jnp.zeros_like(centre))

    return jax.tree.map(one, centre, *message._points)


def gradients_of(message: Linear) -> int:
    """Return the number of gradients in a message."""
    return len(message._points) if message._statistic is None else 0


def is_plain(message: Linear) -> bool:
    """Return True for the gradient at one point, without a coefficient."""
    return message._statistic is None and len(message._coefficients) == 1 and message._coefficients[0] is None


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
    if message._statistic is not None:
        points = _public_of(message, name)[:1]
    for found in map(_form, points):
        if found != wanted:
            raise Refusal(f"a gradient's point in {name} must be like the parameters, {wanted[1]}, got {found[1]}")
    for number in message._coefficients:
        if number is not None:
            require_coefficient(number)
    coefficients = (None if one is None else jnp.asarray(one, jnp.float32) for one in message._coefficients)
    return Linear(tuple(coefficients), jax.tree.map(jnp.asarray, message._points), message._statistic)


def require_gradients(message: Linear, name: str, place: str) -> Linear:
    """Return a message. Raise Refusal if it is another function of one record, which a place does not take."""
    if type(message) is Linear and message._statistic is not None:
        raise Refusal(
            f"message of {name} must be a combination of gradients {place}, got {message}. Use gradient(point)"
        )
    return message


def _require_statistic(statistic: Any) -> None:
    """Raise Refusal unless a function sees its arguments alone and its value is an array.

    Numbers of an algorithm, which are traced, must not be in a closure: they would not be broadcast.
    """
    if type(statistic) is not Statistic:
        raise Refusal(f"a function of a record must be given to per_record(function, point), got {called(statistic)}")
    function, shape = statistic
    plain = isfunction(function) and not (function.__closure__ or function.__defaults__ or function.__kwdefaults__)
    if not plain:
        remedy = "Define it at the top of a module, and give it numbers as further arguments of per_record"
        raise Refusal(
            f"the function of per_record must be a function without closure and defaults, got {called(function)}. "
            f"{remedy}"
        )
    if type(shape) is not tuple or not all(type(size) is int and size > 0 for size in shape):
        raise Refusal(f"shape of per_record must be a tuple of positive integers, got {shape!r:.60}")


def _public_of(message: Linear, name: str) -> tuple:
    """Return the public arguments of the function of a message. Raise Refusal unless all are numbers."""
    _require_statistic(message._statistic)
    points = message._points
    if len(points) != 1 or type(points[0]) is not tuple or not points[0]:
        raise Refusal(f"message of {name} must be made by per_record(function, point), got {message}")
    for leaf in jax.tree.leaves(points[0][1:]):
        if not isinstance(leaf, ARRAYS):
            raise Refusal(f"a public argument of per_record in {name} must be numbers, got {called(leaf)}")
    return points[0]


def require_coefficient(number: Any, name: str = "a coefficient of a message") -> None:
    """Raise Refusal unless a coefficient is one real number."""
    good = isinstance(number, ARRAYS) and not jnp.ndim(number) and jnp.issubdtype(jnp.result_type(number), jnp.number)
    if not good or jnp.iscomplexobj(number):
        raise Refusal(f"{name} must be one real number, got {called(number)}. {KNOWN}")


def of_record(message: Linear) -> Callable[[Callable], Any]:
    """Return a message as a function of one record's gradient oracle, which takes all points in one call.

    For a message of `per_record`, the oracle is that of `sent_problem`.
    """

    def evaluated(oracle: Callable) -> Any:
        points = message._points
        several = oracle(*points) if len(points) > 1 else (oracle(*points),)
        numbers = [None if c is None else jnp.asarray(c, jnp.float32) for c in message._coefficients]
        each = [g if c is None else c * g for c, g in zip(numbers, several, strict=True)]
        return sum(each[1:], each[0])

    return evaluated


def _form(point: Any) -> tuple:
    """Return a point's structure, and the types and shapes of its leaves."""

    def form(leaf: Any) -> Any:
        return (str(jnp.result_type(leaf)), jnp.shape(leaf)) if isinstance(leaf, ARRAYS) else called(leaf)

    return jax.tree.structure(point), [form(leaf) for leaf in jax.tree.leaves(point)]
