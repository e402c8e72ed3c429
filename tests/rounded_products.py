"""A planted fault: a function whose matrix products round their factors to bfloat16."""

import jax
from jax.extend.core import ClosedJaxpr, Literal

CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")  # evaluated in place
CALLED = ("jaxpr", "call_jaxpr")


def rounded(function):
    """Return a function of arrays that computes `function` with the factors of all products rounded to 7 bits."""

    def call(*arguments):
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        values = _evaluate(program.jaxpr, program.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), values)

    return call


def _evaluate(program, consts, arguments):
    known = dict(zip((*program.constvars, *program.invars), (*consts, *arguments), strict=True))

    def value(name):
        return name.val if isinstance(name, Literal) else known[name]

    for equation in program.eqns:
        inputs = list(map(value, equation.invars))
        if equation.primitive.name == "dot_general":
            inputs = [jax.lax.reduce_precision(each, 8, 7) for each in inputs]
        called = next((equation.params[name] for name in CALLED if name in equation.params), None)
        if called is not None and equation.primitive.name in CALLS:
            outputs = _evaluate(called.jaxpr, called.consts, inputs)
        else:
            options = {name: _inside(part) for name, part in equation.params.items()}
            outputs = equation.primitive.bind(*inputs, **options)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return list(map(value, program.outvars))


def _inside(part):
    """Return the programs of a loop or a branch with their products rounded, and anything else unchanged."""
    if isinstance(part, tuple) and part and isinstance(part[0], ClosedJaxpr):
        return tuple(map(_inside, part))
    if not isinstance(part, ClosedJaxpr):
        return part
    return jax.make_jaxpr(lambda *arguments: _evaluate(part.jaxpr, part.consts, arguments))(*part.in_avals)
