"""Traces of functions: their equations, and their values with some equations replaced."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


def equations(program: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations of a program and of all programs inside it."""
    for equation in program.eqns:
        yield equation
        for inner in programs_in(equation):
            yield from equations(inner)


def programs_in(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """Yield the programs that an equation calls."""
    return _programs(list(equation.params.values()))


def _programs(value: Any) -> Iterator[Jaxpr]:
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _programs(one)


Outputs = Callable[[JaxprEqn, list[Any]], Sequence[Any]]  # values of an equation from its inputs


def values_of(equation: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
    """Return the values of an equation."""
    found: Any = equation.primitive.get_bind_params(equation.params)  # jax 0.9 and older have functions, too
    functions, options = found if isinstance(found, tuple) else ((), found)
    values = equation.primitive.bind(*functions, *inputs, **options)
    return values if equation.primitive.multiple_results else [values]


def evaluated(program: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], outputs: Outputs) -> list[Any]:
    """Return the values of a program whose equations have the values that `outputs` returns, such as `values_of`."""
    values = dict(zip((*program.constvars, *program.invars), (*constants, *arguments), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in program.eqns:
        values.update(zip(equation.outvars, outputs(equation, list(map(read, equation.invars))), strict=True))
    return list(map(read, program.outvars))
