"""What one example takes in memory on the way to its loss: from it follows how many are computed at once."""

from math import prod
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from fedprivjax.problem.problem import Problem


def numbers_of_one(problem: Problem) -> int:
    """Numbers computed on the way from parameters and one example to its loss: as many as its gradient may keep.

    Counted in the loss's trace, nothing is run; what a loop computes again counts once.

    >>> from fedprivjax import general_problem
    >>> import jax.numpy as jnp
    >>> numbers_of_one(general_problem(lambda w, x: jnp.sum(jnp.tanh(w * x)), jnp.ones((5, 3)), jnp.zeros(3)))
    7
    """
    model: Any = problem.model
    example = jax.eval_shape(lambda: problem.take(0, 0))
    start = jax.eval_shape(lambda: problem.start)
    return _numbers(jax.make_jaxpr(model.value)(start, example).jaxpr)


def _numbers(jaxpr) -> int:
    own = sum(prod(variable.aval.shape) for equation in jaxpr.eqns for variable in equation.outvars)
    inner = (part for equation in jaxpr.eqns for part in equation.params.values() if isinstance(part, ClosedJaxpr))
    return own + sum(_numbers(part.jaxpr) for part in inner)
