"""Canaries: given gradients that replace those of records, in problems of any kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import POOL, sparing
from jax.flatten_util import ravel_pytree

from fedprivjax import Ball, general_problem
from fedprivjax.auditing.canaries import direction, with_canaries
from fedprivjax.problem.models import Example

ROWS, CHARGES = np.array([3, 7]), np.array([2.0, -5.0])


def general():
    """Return a model whose parameters are a pytree of two leaves."""

    def value(params, example):
        return jnp.sum((params["slope"] @ example.features + params["level"] - example.label) ** 2) / 2

    rng = np.random.default_rng(0)
    pool = Example(
        rng.normal(size=(20, 5)).astype(np.float32), rng.normal(size=20).astype(np.float32), np.ones(20, np.float32)
    )
    start = {"slope": jnp.ones((3, 5)), "level": jnp.zeros(3)}
    return general_problem(value, pool, start, constraint=Ball(9.0), lipschitz=1.0, smoothness=1.0)


PROBLEMS = {"factored": POOL, "tree": general()}


def gradient(problem, row):
    """Return one record's gradient at the start, as a vector."""
    example = jax.tree.map(lambda leaf: leaf[row], problem.pool)
    return np.asarray(ravel_pytree(problem.model.gradients((problem.start,), example)[0].written_out())[0])


@pytest.mark.parametrize("name", sparing(list(PROBLEMS), ["tree"]))
def test_gradients_of_canaries_are_their_own_and_others_stay(name):
    plain = PROBLEMS[name]
    planted = with_canaries(plain, ROWS, CHARGES)
    for number, (row, charge) in enumerate(zip(ROWS, CHARGES, strict=True)):
        expected = charge * np.asarray(direction(number, plain.dimension))
        np.testing.assert_allclose(gradient(planted, row), expected, rtol=1e-5, atol=1e-6)
        assert np.linalg.norm(gradient(planted, row)) == pytest.approx(abs(charge), rel=1e-5)
    for row in (0, 4):
        np.testing.assert_allclose(gradient(planted, row), gradient(plain, row), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sparing(list(PROBLEMS), ["factored"]))
def test_sums_hold_canaries_and_data(name):
    plain, rows = PROBLEMS[name], np.array([0, 3, 4, 7])
    planted = with_canaries(plain, ROWS, CHARGES)
    weights = jnp.array([1.0, 0.5, 2.0, 1.0])
    examples = jax.tree.map(lambda leaf: leaf[rows], planted.pool)
    found = planted.model.summed_gradients((plain.start,), examples, weights)[0].written_out()
    expected = sum(weight * gradient(planted, row) for weight, row in zip(np.asarray(weights), rows, strict=True))
    np.testing.assert_allclose(ravel_pytree(found)[0], expected, rtol=1e-4, atol=1e-5)
    assert jax.tree.structure(found) == jax.tree.structure(plain.start)


@pytest.mark.parametrize("name", PROBLEMS)
def test_data_and_losses_stay_where_they_are(name):
    plain = PROBLEMS[name]
    planted = with_canaries(plain, ROWS, CHARGES)
    assert planted.pool.example is plain.pool
    example = jax.tree.map(lambda leaf: leaf[3], planted.pool)
    assert planted.model.value(plain.start, example) == plain.model.value(plain.start, example.example)
    assert planted.dimension == plain.dimension
    assert (planted.lipschitz, planted.smoothness) == (plain.lipschitz, plain.smoothness)
    np.testing.assert_array_equal(np.flatnonzero(planted.pool.charge), ROWS)


def test_directions_are_unit_vectors_of_their_own():
    every = np.asarray(jax.vmap(lambda number: direction(number, 4000))(np.arange(20)))
    products = every @ every.T
    np.testing.assert_allclose(np.diag(products), 1.0, rtol=1e-4)
    assert np.abs(products - np.diag(np.diag(products))).max() < 5 / np.sqrt(4000)
    assert np.abs(every.sum(axis=1)).max() < 5
