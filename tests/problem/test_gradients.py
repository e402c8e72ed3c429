import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax.method.clipping import clip
from fedprivjax.problem.models import Dense, Outer, Vector, scaled

SHAPES = [(None, 1), (None, 4), (1, 3), (3, 1), (3, 5), (7, 2)]
QUICK = [(None, 4), (3, 5)]


def outer_and_dense(rng, outputs, features, *, count=None, same=None):
    """Return the same vectors in both kinds. `same` is an `Outer` whose features are reused, or None."""
    lead = () if count is None else (count,)
    residual = rng.normal(size=(*lead, *(() if outputs is None else (outputs,)))).astype(np.float32)
    x = rng.normal(size=(*lead, features)).astype(np.float32) if same is None else np.asarray(same.features)
    outer = Outer(jnp.asarray(residual), jnp.asarray(x), jnp.asarray(np.linalg.norm(x, axis=-1)))
    spelled = "...,...f->...f" if outputs is None else "...o,...f->...of"
    return outer, Dense(jnp.asarray(np.einsum(spelled, residual, x)))


def equal(outer, dense):
    np.testing.assert_allclose(outer.written_out(), dense.written_out(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("outputs", "features"), sparing(SHAPES, QUICK))
@pytest.mark.parametrize("seed", sparing([0, 1, 2], [0]))
def test_both_kinds_agree(outputs, features, seed):
    rng = np.random.default_rng([seed, features])
    a, dense_a = outer_and_dense(rng, outputs, features)
    b, dense_b = outer_and_dense(rng, outputs, features, same=a)
    scalar = float(rng.normal())
    equal(a, dense_a)
    equal(a + b, dense_a + dense_b)
    equal(a - b, dense_a - dense_b)
    equal(scalar * a, scalar * dense_a)
    equal(a * scalar, dense_a * scalar)
    equal(jnp.float32(scalar) * a, np.float32(scalar) * dense_a)
    equal(3.0 * a - 2.0 * b, 3.0 * dense_a - 2.0 * dense_b)
    combined = np.asarray(3.0 * dense_a.value - 2.0 * dense_b.value, np.float64)
    np.testing.assert_allclose((3.0 * a - 2.0 * b).norm(), np.linalg.norm(combined), rtol=1e-5)
    np.testing.assert_allclose((3.0 * dense_a - 2.0 * dense_b).norm(), np.linalg.norm(combined), rtol=1e-5)


@pytest.mark.parametrize(("outputs", "features"), sparing(SHAPES, QUICK))
def test_totals_and_clips_agree(outputs, features):
    rng = np.random.default_rng(features)
    rows, dense_rows = outer_and_dense(rng, outputs, features, count=6)
    np.testing.assert_allclose(rows.total(), dense_rows.total(), rtol=1e-5, atol=1e-5)
    norms = np.linalg.norm(np.asarray(dense_rows.value).reshape(6, -1), axis=1)
    bound = float(np.median(norms))
    clipped, dense_clipped = (jax.vmap(lambda v: clip(v, bound))(vectors) for vectors in (rows, dense_rows))
    np.testing.assert_allclose(clipped.total(), dense_clipped.total(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(lambda v: v.norm())(clipped), np.minimum(norms, bound), rtol=1e-5)
    expected = np.asarray(dense_rows.value) * np.minimum(1, bound / norms).reshape(
        6, *(1,) * (dense_rows.value.ndim - 1)
    )
    np.testing.assert_allclose(dense_clipped.value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["outer", "dense"])
def test_clip_keeps_what_is_short_and_shortens_what_is_long(kind):
    outer, dense = outer_and_dense(np.random.default_rng(1), 3, 4)
    vector = outer if kind == "outer" else dense
    norm = float(vector.norm())
    np.testing.assert_array_equal(clip(vector, 1.01 * norm).written_out(), vector.written_out())
    np.testing.assert_allclose(clip(vector, 0.1 * norm).written_out(), 0.1 * vector.written_out(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["outer", "dense"])
def test_clip_never_exceeds_the_bound(kind):
    rng = np.random.default_rng(2)
    for exponent in np.linspace(-15, 15, 31):
        outer, dense = outer_and_dense(rng, 3, 4)
        vector = np.float32(10**exponent) * (outer if kind == "outer" else dense)
        for bound in (1e-3, 1.0, 1e3):
            written = np.asarray(clip(vector, bound).written_out(), np.float64)
            assert np.linalg.norm(written) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_becomes_zero(bad):
    residual = jnp.array([1.0, bad, 2.0])
    features = jnp.array([3.0, 4.0])
    assert clip(Outer(residual, features, jnp.float32(5.0)), 1.0).written_out().tolist() == [[0.0, 0.0]] * 3
    assert clip(Dense({"a": residual, "b": features}), 1.0).value["b"].tolist() == [0.0, 0.0]
    assert clip(Outer(jnp.float32(bad), features, jnp.float32(5.0)), 1.0).written_out().tolist() == [0.0, 0.0]


def test_a_norm_that_overflows_is_not_let_through():
    for vector in (Dense(jnp.full(3, 1e30)), Outer(jnp.full(3, 1e30), jnp.ones(2), jnp.float32(2**0.5))):
        assert float(clip(vector, 1.0).norm()) <= 1 + 1e-6


def test_zero_stays_zero():
    for vector in (Dense(jnp.zeros(3)), Outer(jnp.zeros(2), jnp.ones(3), jnp.float32(3**0.5))):
        clipped = clip(vector, 1.0).written_out()
        np.testing.assert_array_equal(clipped, np.zeros_like(clipped))
    zero_features = Outer(jnp.ones(2), jnp.zeros(3), jnp.float32(0.0))
    np.testing.assert_array_equal(clip(zero_features, 1.0).written_out(), np.zeros((2, 3)))


def test_one_bad_vector_leaves_the_others_alone():
    value = jnp.array([[0.3, 0.4], [np.nan, 1.0], [3.0, 4.0]])
    clipped = jax.vmap(lambda v: clip(v, 1.0))(Dense(value))
    np.testing.assert_allclose(clipped.value, [[0.3, 0.4], [0.0, 0.0], [0.6, 0.8]], rtol=1e-6)


def test_a_pytree_has_one_norm():
    dense = Dense({"w": jnp.full((2, 2), 1.0), "b": jnp.array([2.0, 1.0])})
    assert float(dense.norm()) == pytest.approx(3.0)
    clipped = clip(dense, 1.5).value
    np.testing.assert_allclose(clipped["w"], np.full((2, 2), 0.5), rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [1.0, 0.5], rtol=1e-6)


def test_jit_and_bounds_as_traced_numbers():
    outer, dense = outer_and_dense(np.random.default_rng(8), 3, 4)
    for vector in (outer, dense):
        jitted = jax.jit(clip)(vector, 0.5)
        np.testing.assert_allclose(jitted.written_out(), clip(vector, 0.5).written_out(), rtol=1e-6)


@pytest.mark.parametrize("operation", [operator.add, lambda a, b: 2.0 * a, lambda a, b: a.norm()])
def test_an_incomplete_custom_kind_reports_the_missing_methods(operation):
    with pytest.raises(TypeError, match="a gradient must define"):
        operation(Vector(), Vector())


@pytest.mark.parametrize("kind", ["outer", "dense"])
@pytest.mark.parametrize("excess", [1.0, 1 + 1e-4, 1.01, 1.04, 1.0499])
def test_a_vector_that_is_hardly_too_long_is_clipped_too(kind, excess):
    rng = np.random.default_rng(9)
    for bound in (1e-3, 1.0, 250.0):
        outer, dense = outer_and_dense(rng, 3, 4)
        vector = outer if kind == "outer" else dense
        scaled = np.float32(excess * bound / float(vector.norm())) * vector
        written = np.asarray(clip(scaled, np.float32(bound)).written_out(), np.float64)
        assert np.linalg.norm(written) <= bound * (1 + 1e-6)
        assert np.linalg.norm(written) >= bound * (1 - 1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_of_zero_leaves_nothing(bad):
    residual, features = jnp.array([1.0, bad]), jnp.array([3.0, 4.0])
    for vector in (Outer(residual, features, jnp.float32(5.0)), Dense({"a": residual})):
        for leaf in jax.tree.leaves(scaled(vector, 0.0).written_out()):
            np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
        assert not np.isfinite(jax.tree.leaves(scaled(vector, 2.0).written_out())[0]).all()
    assert scaled(Dense(features), 0.5).value.tolist() == [1.5, 2.0]
