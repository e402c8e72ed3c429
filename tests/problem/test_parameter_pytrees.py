"""Parameters of any structure: a run on them equals the run on one vector of the same numbers."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import Ball, DPMu2, Full, Refusal, general_problem, simulate
from fedprivjax.problem.constraints import flat

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(24, 7)).astype(np.float32)
WEIGHTS = RNG.normal(size=7).astype(np.float32)


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def structured(v):
    """Return dicts, lists, tuples, a NamedTuple and scalars, with leaves in the order of the vector."""
    return {"a": [v[0], (v[1:3].reshape(2, 1), {})], "b": Layer(v[3:6].reshape(1, 3), v[6])}


def vector_loss(w, row):
    return jnp.tanh(jnp.sum((w - row) ** 2))


def structured_loss(params, row):
    a, (b, _) = params["a"]
    parts = [jnp.ravel(leaf) for leaf in (a, b, params["b"].kernel, params["b"].bias)]
    return vector_loss(jnp.concatenate(parts), row)


@pytest.mark.parametrize("constraint", sparing([None, Ball(5.0)], [Ball(5.0)]), ids=["free", "ball"])
def test_a_run_on_a_structure_is_the_run_on_the_vector(constraint):
    flat_one = general_problem(vector_loss, ROWS, WEIGHTS, constraint=constraint)
    deep = general_problem(structured_loss, ROWS, structured(WEIGHTS), constraint=constraint)
    assert deep.dimension == 7
    protocol = DPMu2(mu=5.0, clip=0.5)
    runs = [simulate(protocol, each, Full(4), rounds=5, metrics=["train_loss"]) for each in (flat_one, deep)]
    np.testing.assert_allclose(flat(runs[1].params), runs[0].params, rtol=1e-5, atol=1e-6)
    assert not np.allclose(runs[0].params, WEIGHTS, atol=1e-3)


def test_plain_numbers_and_wide_or_narrow_floats_are_parameters():
    problem = general_problem(
        lambda p, row: p[0] * row.sum() + p[1][0], ROWS, (0.5, np.ones(1, np.float64)), constraint=Ball(2.0)
    )
    assert {leaf.dtype for leaf in problem.start} == {jnp.float32.dtype}
    half = general_problem(lambda p, row: jnp.sum(p * row), ROWS, jnp.ones(7, jnp.bfloat16))
    assert half.start.dtype == jnp.float32


@pytest.mark.parametrize(
    ("function", "start", "message"),
    [
        (vector_loss, {"w": np.ones(7), "n": 3}, "start must be floating-point numbers, got int64"),
        (vector_loss, [np.ones(7, np.int32)], "start must be floating-point numbers, got int32"),
        (vector_loss, {}, "start must have at least one parameter, got {}"),
        (vector_loss, ["w"], "start must be numbers, got <U1"),
        (lambda w, row: w - row, WEIGHTS, "the loss must return a scalar for one example, got shape (7,)"),
        (lambda w, row: (jnp.sum(w), row), WEIGHTS, "the loss must return a scalar for one example, got a tuple"),
        (lambda w, row: None, WEIGHTS, "the loss must return a scalar for one example, got a NoneType"),
        (
            lambda w, row: jnp.argmax(w * row),
            WEIGHTS,
            "the loss must return a floating-point number, to be differentiated, got int32",
        ),
    ],
)
def test_refusals(function, start, message):
    with pytest.raises(Refusal) as caught:
        general_problem(function, ROWS, start)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
