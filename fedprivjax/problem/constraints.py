"""Constraint sets: projection, diameter, and radius (the largest norm of a point).

A custom set is a `flax.struct.dataclass` that subclasses `ConstraintSet`, convex and closed. Its numeric fields can be
swept. `projection_check` tests its projection and its sizes before every run.

    @flax.struct.dataclass
    class Halfspace(ConstraintSet):
        offset: Any

        diameter = float("inf")

        def project(self, params):
            return params - jnp.maximum(params.mean() - self.offset, 0.0)
"""

from dataclasses import fields, replace
from math import inf, sqrt
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.decorated import PYTREE, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_positive, short

LARGEST = 1e18  # largest size, whose square is finite in float32
CLOSE = 1e-6  # tolerance for float32 rounding, relative to a set's size
NEWTON_STEPS = 4  # exact once the set of positive parameters is found
FAR = 16  # more than 1, so that rounding at this distance cannot affect the projection


class ConstraintSet(Decorated):
    """Base class of convex constraint sets of parameters.

    A subclass defines `project`. For a bounded set, it also defines `diameter` and `radius`, which are infinite by
    default.

    Attributes:
        diameter: largest Euclidean distance between two points. Default step sizes, and the noise of methods without a
            clip, depend on it.
        radius: largest Euclidean norm of a point. The Lipschitz constant of a linear predictor's loss may depend on it.
    """

    kind, decorator = "constraint", PYTREE
    stated: ClassVar[Stated] = Stated(by=("diameter", "radius"), free=("described", "sizes"))
    diameter: Any = inf
    radius: Any = inf

    def project(self, params):
        """Return the nearest point of the set, with the pytree structure of `params`."""
        raise Undefined(f"{type(self).__name__} must define project(params)")

    def contains(self, params) -> bool:
        """Return True if `params` are in the set, up to float32 rounding.

        By default, `params` are compared with their projection.
        """
        before, after = flat(params), flat(self.project(params))
        return bool(np.linalg.norm(after - before) <= CLOSE * (1 + np.linalg.norm(before)))

    def within(self, other) -> bool:
        """Return True if this set is known to be a subset of the set `other`. Default: False.

        Constants that were declared for `other`, such as a Lipschitz constant, are then valid on this set, too.
        """
        return False

    def of(self, params):
        """Return the set for parameters with the shapes of `params`.

        A `Box` stores the number of parameters, on which its diameter depends. Other sets are returned unchanged.
        """
        return self

    @property
    def described(self) -> str:
        """Text that describes the set in messages and tables, by default its `repr`."""
        return f"{self}"

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the set's numeric fields, such as "radius", whose values `sweep` can vary."""
        return tuple(field.name for field in fields(self) if field.metadata.get("pytree_node", True))  # type: ignore[arg-type]


class _Round(ConstraintSet):
    """Base class of balls about zero in a norm of at least the Euclidean one: the diameter is twice the radius."""

    def __post_init__(self):
        _require_size("radius", self.radius)

    @property
    def diameter(self):  # type: ignore[override]
        return 2 * self.radius

    def within(self, other) -> bool:
        same = type(self) is type(other) and type(self) in BUILT_IN  # a subclass may be another set
        return same and bool(self.radius <= other.radius)


@struct.dataclass
class Ball(_Round):
    """Constraint set: Euclidean ball about zero, for the vector of all parameters.

    The diameter is twice the radius.

    Attributes:
        radius: largest Euclidean norm of the parameters.

    Raises:
        Refusal: if the radius is not a positive number.

    >>> Ball(0.05).diameter
    0.1
    """

    radius: Any = struct.field()  # required, unlike in the base class

    def project(self, params):
        import optax

        return optax.projections.projection_l2_ball(params, self.radius)

    def contains(self, params) -> bool:
        return bool(np.linalg.norm(flat(params)) <= float(self.radius) * (1 + CLOSE))

    @property
    def described(self) -> str:
        return f"a ball of radius {self.radius:g}"


@struct.dataclass
class Box(ConstraintSet):
    """Constraint set: parameters that each lie between `low` and `high`.

    Either bound may be infinite. For d parameters, the diameter is √d·(high − low).

    Attributes:
        low: smallest value of every parameter.
        high: largest value of every parameter.
        dimension: number of parameters d. Leave it out: a problem sets it.

    >>> Box(-1.0, 2.0, dimension=4).diameter
    6.0
    """

    low: Any
    high: Any
    dimension: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        for name in ("low", "high"):
            _require_number(name, getattr(self, name))
            _require_square(name, getattr(self, name))
        if _concrete(self.low, self.high) and not self.low < self.high:
            raise Refusal(f"high must be above low ({self.low:g}), got {self.high:g}")

    @property
    def diameter(self):  # type: ignore[override]
        return sqrt(self._known_dimension) * (self.high - self.low)

    @property
    def radius(self):  # type: ignore[override]
        return sqrt(self._known_dimension) * max(abs(self.low), abs(self.high))

    @property
    def _known_dimension(self) -> int:
        if self.dimension is None:
            raise Refusal("dimension must be given for the sizes of a Box outside a problem, got None")
        return self.dimension

    def of(self, params):
        return replace(self, dimension=flat(params).size)

    def project(self, params):
        import optax

        return jax.tree.map(lambda leaf: optax.projections.projection_box(leaf, self.low, self.high), params)

    def contains(self, params) -> bool:
        values, ends = flat(params), np.array([self.low, self.high], float)
        slack = CLOSE * np.max(np.abs(ends[np.isfinite(ends)]), initial=0.0)
        return bool(((values >= ends[0] - slack) & (values <= ends[1] + slack)).all())

    def within(self, other) -> bool:
        return bool(self.low >= other.low and self.high <= other.high) if type(other) is Box else False

    @property
    def described(self) -> str:
        return f"a box from {self.low:g} to {self.high:g}"


@struct.dataclass
class Simplex(ConstraintSet):
    """Constraint set: parameters that are at least zero and add up to `scale`.

    The Euclidean diameter is √2·scale.

    Attributes:
        scale: sum of the parameters.

    >>> Simplex(1.0).project(jnp.array([3.0, -1.0])).tolist()
    [1.0, 0.0]
    """

    scale: Any = 1.0

    def __post_init__(self):
        _require_size("scale", self.scale)

    @property
    def diameter(self):  # type: ignore[override]
        return sqrt(2) * self.scale

    @property
    def radius(self):  # type: ignore[override]
        return self.scale

    def of(self, params):
        if flat(params).size < 2:
            raise Refusal("a simplex must have at least two parameters, got one")
        return self

    def project(self, params):
        values, unravel = ravel_pytree(params)
        return unravel(_on_simplex(values, self.scale))

    def contains(self, params) -> bool:
        values, slack = flat(params), CLOSE * float(self.scale)
        return bool((values >= -slack).all() and abs(values.sum() - float(self.scale)) <= 10 * slack)

    def within(self, other) -> bool:
        return bool(self.scale == other.scale) if type(other) is Simplex else False

    @property
    def described(self) -> str:
        return f"a simplex of scale {self.scale:g}"


@struct.dataclass
class L1Ball(_Round):
    """Constraint set: parameters whose absolute values add up to at most `radius`.

    The Euclidean diameter is twice the radius.

    Attributes:
        radius: largest sum of absolute values.

    >>> L1Ball(1.0).project(jnp.array([3.0, -3.0])).tolist()
    [0.5, -0.5]
    """

    radius: Any = struct.field()  # required, unlike in the base class

    def project(self, params):
        values, unravel = ravel_pytree(params)
        sizes = jnp.abs(values)
        nearest = jnp.sign(values) * _on_simplex(sizes, self.radius)
        return unravel(jnp.where(jnp.sum(sizes) <= self.radius, values, nearest))

    def contains(self, params) -> bool:
        return bool(np.abs(flat(params)).sum() <= float(self.radius) * (1 + 10 * CLOSE))

    @property
    def described(self) -> str:
        return f"an l1 ball of radius {self.radius:g}"


@struct.dataclass
class WholeSpace(ConstraintSet):
    """No constraint: the projection is the identity and the diameter is inf."""

    def project(self, params):
        return params

    def contains(self, params) -> bool:
        return True

    @property
    def described(self) -> str:
        return "the whole space"


CONSTRAINTS = {"ball": Ball, "box": Box, "simplex": Simplex, "l1_ball": L1Ball}  # by name in experiment files
BUILT_IN = (*CONSTRAINTS.values(), WholeSpace)  # exact types: a subclass may override `project`
ABOUT_ZERO = (Ball, L1Ball, WholeSpace)  # exact types of sets that contain zero


def flat(params) -> np.ndarray:
    """Return concrete parameters as one vector, float64 [d].

    >>> flat({"a": 1.0, "b": np.zeros((2, 2))}).shape
    (5,)
    """
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(params)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def _on_simplex(values, scale):
    """Return the nearest point of the simplex: optax's threshold τ, then Newton steps on Σ_i max(0, v_i − τ) = scale.

    Without the Newton steps the float32 error is a per cent for 10⁵ parameters, and guarantees need points in the set.
    Values more than `FAR` scales below the largest are projected to 0, so the first τ does not need them.
    """
    import optax

    largest = jnp.max(values)
    first = optax.projections.projection_simplex(jnp.maximum(values - largest, -FAR * scale), scale)
    above = values - (largest - jnp.max(first))
    for _ in range(NEWTON_STEPS):
        over = jnp.sum(jnp.maximum(above, 0.0)) - scale
        above = above - over / jnp.maximum(jnp.sum(above > 0), 1)
    return jnp.maximum(above, 0.0)


def _require_size(name: str, value: Any) -> None:
    """Raise Refusal unless a size is positive, with a square that float32 holds."""
    _require_square(name, value)
    require_positive(name, value)


def _require_square(name: str, value: Any) -> None:
    """Raise Refusal if a concrete finite size has a square beyond float32."""
    if isinstance(value, int | float | np.number) and LARGEST < abs(value) < inf:
        raise Refusal(f"{name} must be at most {LARGEST:g}, whose square float32 holds, got {short(value)}")


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool | np.bool_ | str | list | tuple | dict) or value is None:
        raise Refusal(f"{name} must be a number, got {value!r}")
    if isinstance(value, int | float | np.number) and value != value:
        raise Refusal(f"{name} must be a number, got nan")


def _concrete(*values: Any) -> bool:
    return all(isinstance(value, int | float | np.number) for value in values)
