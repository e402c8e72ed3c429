"""Isolation in private runs: what is computed for one machine or one record reaches no other, and nothing outside.

Sensitivities count the change of one message. That holds only if a function of one machine sees that machine alone:
custom batching, and sums over a mesh, see all of them. A callback hands data to the host, past every release.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.devices import MACHINES, RUNS
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import by_shapes

CALLBACKS = dict.fromkeys(
    ("pure_callback", "io_callback", "debug_callback", "debug_print", "infeed", "outfeed", "ffi_call"),
    "Remove it; metrics and iterates show values at evaluations",
)
COLLECTIVES = dict.fromkeys(
    (
        *("psum", "psum2", "psum_invariant", "pmin", "pmax", "ppermute", "all_to_all", "ragged_all_to_all"),
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "axis_index"),
        *("pbroadcast", "pvary", "psend", "precv"),
    ),
    "Remove it; sums over machines are those of the privacy object",
)
BATCHING = {"custom_vmap_call": "Write the function without custom_vmap, so that it is batched one by one"}
REFUSED = CALLBACKS | COLLECTIVES | BATCHING
AXES = [(RUNS, 1), (MACHINES, 1)]  # of a mesh: without one, a sum over them could not be traced


def isolated(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """Return `function(*arguments)`, computed from its program, once that is known to be isolated.

    Args:
        name: name of the function in messages.

    Raises:
        Refusal: if the program holds a callback, a sum over devices, custom batching, or another effect.
    """
    program, shape = _traced(function, *arguments)
    _require(program, name)
    return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(program)())


def require_isolated_records(problem: Problem) -> None:
    """Raise Refusal unless the gradient of one record's loss is isolated."""
    _require_of_model(replace(problem.traced, excess=None))


@by_shapes
def _require_of_model(problem: Problem) -> None:
    start, record = jax.eval_shape(lambda problem: (problem.start, problem.take(0)), problem)
    gradients = jax.make_jaxpr(lambda start, record: problem.model.gradients((start,), record), axis_env=AXES)
    _require(gradients(start, record), "the loss")


def isolated_record(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """Return `function(*arguments)` as `isolated`, of arrays alone, whatever the function does in another trace.

    It sees the arguments' shapes, and not the batch that they are part of.
    """
    program, shape = jax.make_jaxpr(function, axis_env=AXES, return_shape=True)(*arguments)
    _require(program, name)
    return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(program)(*jax.tree.leaves(arguments)))


def _traced(function: Callable[..., Any], *arguments: Any) -> tuple[ClosedJaxpr, Any]:
    """Return a function's program on given arguments, which it closes over, and the structure of its result."""
    return jax.make_jaxpr(lambda: function(*arguments), axis_env=AXES, return_shape=True)()


def _require(program: ClosedJaxpr, name: str) -> None:
    for equation in _equations(program.jaxpr):
        primitive = equation.primitive.name
        if primitive in REFUSED:
            raise Refusal(
                f"{name} must compute what it returns from its arguments alone in a private run, got the primitive "
                f"{primitive!r}. {REFUSED[primitive]}"
            )
    for effect in program.effects:
        raise Refusal(
            f"{name} must compute what it returns from its arguments alone in a private run, got the effect {effect}. "
            f"Write it as a function without side effects"
        )


def _equations(program: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations of a program and of all programs inside it."""
    for equation in program.eqns:
        yield equation
        for inner in _programs(list(equation.params.values())):
            yield from _equations(inner)


def _programs(value: Any) -> Iterator[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _programs(one)
