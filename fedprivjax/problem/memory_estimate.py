"""Memory of one example's loss computation, which determines the number of examples computed together."""

from math import prod
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from fedprivjax.problem.problem import Problem


def numbers_of_one(problem: Problem) -> int:
    """Return the number of intermediate values of one example's loss: an upper bound on those its gradient stores.

    They are counted in the loss's trace. Nothing is executed, and the body of a loop counts once.

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
