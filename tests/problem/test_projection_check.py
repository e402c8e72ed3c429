"""Custom constraint sets whose projection or sizes are not what they declare are refused before a run."""

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from flax import struct

from fedprivjax import Ball, ConstraintSet, DPMu2, Full, NoisySGD, Refusal, Softmax, linear_problem
from fedprivjax.engine.prepare import ready
from fedprivjax.problem.constraints import Box, L1Ball, Simplex
from fedprivjax.problem.projection_check import _projections, require_true_projection
from fedprivjax.sweeps.prepare import ready_sweep

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(2, 8, 3)).astype(np.float32), RNG.integers(0, 2, (2, 8))
START = jnp.zeros((2, 3))


@struct.dataclass
class Custom(ConstraintSet):
    """A set with any declared sizes and any projection."""

    radius: Any = np.inf
    diameter: Any = np.inf
    size: Any = 1.0
    projection: Any = struct.field(pytree_node=False, default=None)

    def project(self, params):
        return self.projection(params, self.size)


@struct.dataclass
class Unprojected(Ball):
    """A built-in set with another projection."""

    def project(self, params):
        return params


@struct.dataclass
class Product(ConstraintSet):
    """A product of two sets, one for each half of the parameters."""

    one: Any
    two: Any

    @property
    def radius(self):
        return jnp.sqrt(self.one.radius**2 + self.two.radius**2)

    @property
    def diameter(self):
        return 2 * self.radius

    def project(self, params):
        half = params.shape[0] // 2
        return jnp.concatenate([self.one.project(params[:half]), self.two.project(params[half:])])


def ball(params, radius):
    return Ball(radius).project(params)


def sphere(params, radius):
    norm = jnp.linalg.norm(params)
    return jnp.where(norm > 0, params * radius / jnp.where(norm > 0, norm, 1.0), params)


def ellipsoid(params, _):
    """Return the nearest point of {Σ x_i²/a_i² ≤ 1} by bisection, with one axis of length 3 and others of 1."""
    squares = jnp.ones(params.size).at[4].set(9.0).reshape(params.shape)
    low, high = jnp.zeros(()), jnp.sum(jnp.abs(params)) * 3.0 + 1e-6

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        outside = jnp.sum(squares * params**2 / (squares + middle) ** 2) > 1
        return jnp.where(outside, middle, ends[0]), jnp.where(outside, ends[1], middle)

    _, high = jax.lax.fori_loop(0, 60, halve, (low, high))
    return jnp.where(jnp.sum(params**2 / squares) > 1, squares * params / (squares + high), params)


def test_the_radius_and_the_diameter_that_noise_follows_from_are_tried():
    """The noise of DP-μ²-FL on a set that is a thousand times larger than declared."""
    small = Custom(radius=0.01, diameter=0.02, size=10.0, projection=ball)
    problem = linear_problem(X, Y, Softmax(2), feature_bound=10.0, constraint=small)
    says = r"Custom\.project must return points of norm at most its radius \(0\.01\), got a point of norm 10\. Declare"
    with pytest.raises(Refusal, match=says):
        ready(DPMu2(mu=1.0), problem, Full(2), rounds=3)


def test_sizes_are_tried_as_they_are_swept():
    """The sizes are correct at the problem's size and wrong at a swept one. Other fields keep their values."""
    right = Custom(radius=1.0, diameter=2.0, size=1.0, projection=ball)
    problem = linear_problem(X, Y, Softmax(2), feature_bound=10.0, constraint=right)
    options = {"seeds": 1, "rounds": 3}
    assert ready_sweep(DPMu2(mu=1.0, clip=1.0), problem, Full(2), over={"size": [0.5, 1.0]}, **options).configurations
    with pytest.raises(Refusal, match=r"norm at most its radius \(1\), got a point of norm 4"):
        ready_sweep(DPMu2(mu=1.0, clip=1.0), problem, Full(2), over={"size": [1.0, 4.0]}, **options)


def scaled(params, long):
    """Return a point of an ellipsoid by scaling, not the nearest. Two axes have length `long`, others 1."""
    axes = jnp.ones(params.size).at[-2:].set(long).reshape(params.shape)
    return params / jnp.maximum(1.0, jnp.linalg.norm(params / axes))


def shrunk(params, radius):
    """Return points of a ball unchanged, and other points projected to a smaller ball."""
    norm = jnp.linalg.norm(params)
    return jnp.where(norm > radius, params * 0.9 * radius / jnp.where(norm > 0, norm, 1.0), params)


NEAR = jnp.full((2, 3), 0.1)
WRONG = [
    (Custom(radius=5.0, projection=lambda w, _: w), "norm at most its radius (5), got a point of norm"),
    (Unprojected(0.5), "Unprojected.project must return points of norm at most its radius (0.5)"),
    (Custom(diameter=1.0, size=1.0, projection=ball), "at most its diameter (1) apart, got 2. Declare"),
    (Custom(radius=1.5, diameter=9.0, projection=ellipsoid), "norm at most its radius (1.5), got a point of norm 2."),
    (Custom(radius=3.0, diameter=4.0, projection=ellipsoid), "at most its diameter (4) apart, got 5.99"),
    (Custom(projection=lambda w, _: w / 2), "leave points of the set in place, got one moved by"),
    (Custom(radius=1.0, projection=sphere), "must not move points apart, got"),
    (Custom(projection=lambda w, _: jnp.round(w)), "must not move points apart, got"),
    (Custom(projection=lambda w, _: jnp.where(jnp.abs(w) == jnp.abs(w).max(), w, 0.0)), "must not move points apart"),
    (Custom(radius=10.0, diameter=20.0, size=10.0, projection=scaled), "must not move points apart, got"),
    (Custom(radius=1.0, diameter=2.0, projection=shrunk), "must not move points apart, got"),
    (Custom(projection=lambda w, _: w / jnp.linalg.norm(w)), "must return finite parameters"),
    (Custom(projection=lambda w, _: jnp.maximum(w, 1.0)), "must leave the start in place, got one moved by"),
    (Custom(radius=-1.0, projection=ball), "radius of Custom must be a positive number, got -1.0"),
    (Custom(radius="1", projection=ball), "Custom.project must take parameters [2, 3] in a jax program"),
    (Product(Ball(1.0), Unprojected(1.0)), "Product.project must return points of norm at most its radius (1.41421)"),
]


@pytest.mark.parametrize(("which", "says"), WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_wrong_sets(which, says):
    with pytest.raises(Refusal) as caught:
        require_true_projection(which, START)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_few_long_axes_among_many_are_found():
    """A bias may be ten times as large as 2,000 weights: the radius is too small, or distances grow."""
    start = {"weights": jnp.zeros((1000, 2)), "bias": jnp.zeros(2)}

    def of_all(params, long):
        vector, unravel = jax.flatten_util.ravel_pytree((params["weights"], params["bias"]))
        return dict(zip(("weights", "bias"), unravel(scaled(vector, long)), strict=True))

    for radius, says in (
        (1.5, r"norm at most its radius \(1\.5\), got a point of norm"),
        (10.0, "not move points apart"),
    ):
        with pytest.raises(Refusal, match=says):
            require_true_projection(Custom(radius=radius, diameter=20.0, size=10.0, projection=of_all), start)


LIMIT = 1.0


@struct.dataclass
class Global(ConstraintSet):
    """A ball with a global variable as size, declared as that variable or as 1."""

    follows: bool = struct.field(pytree_node=False, default=True)

    @property
    def radius(self):
        return LIMIT if self.follows else 1.0

    @property
    def diameter(self):
        return 2 * self.radius

    def project(self, params):
        return ball(params, LIMIT)


def test_a_global_that_changes_is_read_again(monkeypatch):
    """Checks and programs of its earlier value are not reused. Without a change, programs are reused."""
    compiled = jax.jit(lambda constraint, params: constraint.project(params))
    forgotten = []
    monkeypatch.setattr(
        jax, "clear_caches", lambda: [forgotten.append(1), compiled.clear_cache(), _projections.clear_cache()]
    )
    far = jnp.full((2, 3), 1e3)
    for _ in range(2):
        for follows in (False, True):
            require_true_projection(Global(follows), START)
            assert jnp.linalg.norm(compiled(Global(follows), far)) < 1.01
    assert not forgotten
    monkeypatch.setitem(globals(), "LIMIT", 100.0)
    with pytest.raises(Refusal, match=r"norm at most its radius \(1\), got a point of norm 100"):
        require_true_projection(Global(follows=False), START)
    require_true_projection(Global(), START)
    assert jnp.linalg.norm(compiled(Global(), far)) > 99
    monkeypatch.setitem(globals(), "LIMIT", 1.0)
    require_true_projection(Global(), START)
    assert jnp.linalg.norm(compiled(Global(), far)) < 1.01


@struct.dataclass
class Shifted(ConstraintSet):
    """A ball around another centre than 0."""

    centre: Any
    size: Any

    @property
    def diameter(self):
        return 2 * self.size

    def project(self, params):
        return jax.tree.map(jnp.add, self.centre, ball(jax.tree.map(jnp.subtract, params, self.centre), self.size))


@struct.dataclass
class SubBox(Box):
    """A subclass that changes nothing."""


TREE = {"a": jnp.full(3, 0.2), "b": jnp.full((2, 2), -0.1)}
RIGHT = [
    (Custom(radius=1.0, diameter=2.0, projection=ball), TREE),
    (Custom(radius=3.0, diameter=6.0, projection=ellipsoid), jnp.full((2, 3), 0.1)),
    (Custom(projection=lambda w, _: w), START),
    (SubBox(-1.0, 2.0, dimension=6), START),
    (Shifted(jax.tree.map(lambda leaf: 100 * leaf, TREE), 0.5), jax.tree.map(lambda leaf: 100 * leaf, TREE)),
    (Product(L1Ball(1e-3), Ball(2.0)), START),
    (Custom(radius=2.0, diameter=2.0**1.5, projection=lambda w, _: Simplex(2.0).project(w)), jnp.full((2, 3), 1 / 3)),
]


@pytest.mark.parametrize("place", sparing([*range(len(RIGHT))], [0, 2, 3, 4, 6]))
def test_right_sets(place):
    require_true_projection(*RIGHT[place])


def test_a_set_is_tried_once(monkeypatch):
    which = Custom(radius=7.0, diameter=14.0, size=7.0, projection=ball)
    require_true_projection(which, START)
    monkeypatch.setattr("fedprivjax.problem.projection_check._Trial", None)
    require_true_projection(which.replace(), START)
    require_true_projection(Ball(1.0), START)  # never
    with pytest.raises(TypeError):
        require_true_projection(which.replace(size=8.0), START)


def test_a_set_that_moves_points_apart_is_refused_where_no_size_is_declared():
    problem = linear_problem(X, Y, Softmax(2), feature_bound=10.0, constraint=Custom(projection=lambda w, _: w / 2))
    with pytest.raises(Refusal, match="must leave points of the set in place"):
        ready(NoisySGD(mu=1.0, clip=1.0, step_size=50.0), problem, Full(2), rounds=3)
