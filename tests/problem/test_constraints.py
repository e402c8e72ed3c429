from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax.problem.constraints import ABOUT_ZERO, Ball, L1Ball, WholeSpace

CENTRES = [0.0, 0.3, 0.999, 1.001, 5.0, 1e4]


def vector(rng, norm, size=6):
    raw = rng.normal(size=size)
    return (norm * raw / np.linalg.norm(raw)).astype(np.float32)


def inside(rng, count, radius, size=6):
    raw = rng.normal(size=(count, size))
    raw /= np.linalg.norm(raw, axis=1, keepdims=True)
    return raw * radius * rng.uniform(size=(count, 1)) ** (1 / size)


@pytest.mark.parametrize("norm", CENTRES)
@pytest.mark.parametrize("radius", [1.0, 0.05])
def test_projection_is_the_nearest_point(norm, radius):
    rng = np.random.default_rng(3)
    point = vector(rng, norm * radius)
    projected = np.asarray(Ball(radius).project(point), np.float64)
    assert np.linalg.norm(projected) <= radius * (1 + 1e-6)
    apart = np.linalg.norm(projected - point)
    others = np.vstack([inside(rng, 300, radius), projected + 1e-3 * radius * rng.normal(size=(300, 6))])
    others *= np.minimum(1, radius / np.linalg.norm(others, axis=1, keepdims=True))
    # every point of the set is at an obtuse angle to the projection
    scale = 1e-5 * radius * max(1.0, norm) * radius
    assert (np.linalg.norm(others - point, axis=1) >= apart * (1 - 1e-6) - 1e-7 * radius).all()
    assert ((others - projected) @ (point - projected) <= scale).all()


@pytest.mark.parametrize("norm", [0.0, 0.3, 0.999])
def test_points_inside_stay_and_points_outside_reach_the_boundary(norm):
    rng = np.random.default_rng(4)
    point = vector(rng, norm)
    np.testing.assert_array_equal(Ball(1.0).project(point), point)
    far = vector(rng, 3.0)
    np.testing.assert_allclose(Ball(1.0).project(far), far / 3, rtol=1e-6)


@pytest.mark.parametrize("norm", CENTRES)
def test_projection_is_idempotent(norm):
    once = Ball(1.0).project(vector(np.random.default_rng(5), norm))
    np.testing.assert_allclose(Ball(1.0).project(once), once, rtol=1e-6)


def test_a_pytree_is_projected_as_one_vector():
    rng = np.random.default_rng(6)
    params = {"kernel": rng.normal(size=(2, 3)).astype(np.float32), "bias": rng.normal(size=3).astype(np.float32)}
    flat = np.concatenate([params["bias"], params["kernel"].ravel()])
    projected = Ball(0.5).project(params)
    assert jax.tree.structure(projected) == jax.tree.structure(params)
    np.testing.assert_allclose(
        np.concatenate([projected["bias"], projected["kernel"].ravel()]), Ball(0.5).project(flat), rtol=1e-6
    )
    assert Ball(0.5).contains(projected)
    assert not Ball(0.5).contains(params)


def test_the_radius_may_be_vmapped():
    point = jnp.array([3.0, 4.0])
    radii = jnp.array([1.0, 2.0, 10.0])
    projected = jax.jit(jax.vmap(lambda radius: Ball(radius).project(point)))(radii)
    np.testing.assert_allclose(projected, [[0.6, 0.8], [1.2, 1.6], [3.0, 4.0]], rtol=1e-6)


def test_contains_is_sharp_up_to_rounding():
    direction = vector(np.random.default_rng(7), 1.0).astype(np.float64)
    assert Ball(2.0).contains(2.0 * (1 + 1e-7) * direction)
    assert not Ball(2.0).contains(2.0 * (1 + 1e-5) * direction)
    assert Ball(2.0).contains(np.zeros(6))
    assert not Ball(2.0).contains(np.array([np.nan, 0.0]))


def test_diameter():
    assert Ball(0.05).diameter == 0.1
    assert float(Ball(jnp.float32(3.0)).diameter) == 6.0
    assert (WholeSpace().radius, WholeSpace().diameter) == (inf, inf)


def test_the_whole_space_changes_nothing():
    params = {"w": np.full(3, 1e30, np.float32)}
    assert WholeSpace().project(params) is params
    assert WholeSpace().contains(params)
    assert jax.tree.leaves(WholeSpace()) == []
    assert jax.tree.leaves(Ball(2.0)) == [2.0]


@pytest.mark.parametrize(
    ("radius", "message"),
    [
        (0.0, "radius must be positive, got 0.0"),
        (-1, "radius must be positive, got -1"),
        (np.nan, "radius must be positive, got nan"),
        (np.inf, "radius must be finite, got inf"),
        (None, "radius must be a positive number, got None"),
    ],
)
def test_no_ball_without_a_positive_finite_radius(radius, message):
    with pytest.raises(ValueError, match="radius") as caught:
        Ball(radius)
    assert str(caught.value) == message


@pytest.mark.parametrize("constraint", [Ball(2.0), L1Ball(2.0), WholeSpace()])
def test_sets_about_zero_leave_it_as_it_is(constraint):
    zero = np.zeros((2, 3), np.float32)
    assert type(constraint) in ABOUT_ZERO
    np.testing.assert_array_equal(constraint.project(zero), zero)
