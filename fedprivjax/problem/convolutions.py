"""Convolutions of a loss as slices and matrix products, which a CPU computes faster.

XLA's gradients of convolutions are slow on a CPU inside a loop, and if every machine or record has its own kernel. A
loss is rewritten before it is differentiated, so that its gradients consist of slices and products. XLA still computes
the values of a differentiated convolution of several input channels.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn

from fedprivjax.problem.devices import platform
from fedprivjax.problem.program import by_shapes
from fedprivjax.problem.traces import equations, evaluated, programs_in, values_of

Convolutions = Literal["auto", "products", "xla"]
CONVOLUTIONS = ("auto", "products", "xla")
WIDEST = 512  # largest number of values that are copied side by side for a product
FEW_CHANNELS = 4  # input channels of a group from which XLA computes values, not gradients, faster than products
MOST_OFFSETS = 256  # largest number of offsets of a kernel that is rewritten
CONVOLUTION = "conv_general_dilated"
CALLS = {"jit", "pjit", "closed_call", "core_call"}
REMAT = {"remat2", "checkpoint"}


def chosen(model: Any, of: Callable[[Callable], Callable], one: tuple[Any, Any], *arguments: Any) -> Any:
    """Return `of(loss)(*arguments)` of a model's loss, or of the rewritten loss where its setting asks for products.

    Args:
        model: a `GeneralModel`.
        of: transformation of the loss, such as `jax.grad`.
        one: parameters and one example, arrays or shapes.
    """
    asked = model.convolutions == "products" or (model.convolutions == "auto" and platform() == "cpu")
    changes = asked and _has_convolutions(one, model.function)
    return of(partial(_rewritten, model.function) if changes else model.function)(*arguments)


@by_shapes
def _has_convolutions(one: tuple[Any, Any], function: Callable) -> bool:
    found = filter(_is_forward, equations(jax.make_jaxpr(function)(*one).jaxpr))
    return any(equation.primitive.name == CONVOLUTION for equation in found)


def _is_forward(equation: JaxprEqn) -> bool:
    """Return True for a convolution or pooling that is neither a transposed one nor the gradient of another."""
    params, name = equation.params, equation.primitive.name
    if name == CONVOLUTION:
        kernel: Any = equation.invars[1].aval
        offsets = prod(kernel.shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:])
        plain = params["batch_group_count"] == 1 and set(params["lhs_dilation"]) <= {1}
    elif name in POOLINGS:
        offsets, plain = prod(params["window_dimensions"]), set(params["base_dilation"]) <= {1}
    else:
        return False
    values: Any = equation.outvars[0].aval
    filled = all(0 not in one.aval.shape for one in (*equation.invars, *equation.outvars))  # type: ignore[union-attr]
    return plain and filled and offsets <= MOST_OFFSETS and jnp.issubdtype(values.dtype, jnp.floating)


def _rewritten(function: Callable, *arguments: Any) -> Any:
    """Return `function(*arguments)` with slices and products in place of convolutions."""
    program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    values = _evaluated(program.jaxpr, program.consts, *jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), values)


def _evaluated(program: Jaxpr, constants: Sequence[Any], *arguments: Any) -> list[Any]:
    return evaluated(program, constants, arguments, _outputs)


def _outputs(equation: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
    """Return an equation's values. Convolutions in other loops and in functions with custom derivatives stay."""
    name, params = equation.primitive.name, equation.params
    if _is_forward(equation):
        return [_convolved(equation, *inputs) if name == CONVOLUTION else pooled(*inputs, *POOLINGS[name], **params)]
    if any(_is_forward(inner) for program in programs_in(equation) for inner in equations(program)):
        if name in CALLS:
            inner: Any = params.get("jaxpr", params.get("call_jaxpr"))
            return _evaluated(inner.jaxpr, inner.consts, *inputs)
        if name in REMAT:
            options = {option: params[option] for option in ("prevent_cse", "policy")}
            return jax.checkpoint(partial(_evaluated, params["jaxpr"], ()), **options)(*inputs)
        if name == "cond" and not params.get("branches_platforms"):
            branches = [partial(_evaluated, branch.jaxpr, branch.consts) for branch in params["branches"]]
            return jax.lax.switch(inputs[0], branches, *inputs[1:])
        if name == "scan":
            return _scanned(equation, inputs)
    return values_of(equation, inputs)


def _scanned(equation: JaxprEqn, inputs: list[Any]) -> list[Any]:
    """Return the values of a scan. What it scans over and what it stacks has one axis more than in its body."""
    jaxpr, options = equation.params["jaxpr"], {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    scanned = sum(jnp.ndim(one) > inner.aval.ndim for one, inner in zip(inputs, jaxpr.jaxpr.invars, strict=True))
    outputs: Any = zip(equation.outvars, jaxpr.jaxpr.outvars, strict=True)
    num_carry = sum(one.aval.ndim == inner.aval.ndim for one, inner in outputs)
    num_consts = len(inputs) - num_carry - scanned
    held, carry, rows = (inputs[:num_consts], inputs[num_consts:][:num_carry], inputs[num_consts + num_carry :])

    def one(carry, row):
        values = _evaluated(jaxpr.jaxpr, jaxpr.consts, *held, *carry, *row)
        return values[:num_carry], values[num_carry:]

    carry, stacked = jax.lax.scan(one, carry, rows, **options)
    return [*carry, *stacked]


def _convolved(equation: JaxprEqn, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the values of a convolution, by products.

    A differentiated convolution of at least `FEW_CHANNELS` input channels has XLA's values, which are computed faster,
    and derivatives by products.
    """
    products = partial(convolution, **equation.params)
    if kernel.shape[equation.params["dimension_numbers"].rhs_spec[1]] < FEW_CHANNELS:
        return products(inputs, kernel)
    convolved = jax.custom_jvp(products)

    @convolved.defjvp
    def _(primals, tangents):
        (inputs, kernel), (inputs_dot, kernel_dot) = primals, tangents
        (values,) = values_of(equation, [inputs, kernel])
        return values, products(inputs_dot, kernel) + products(inputs, kernel_dot)

    return convolved(inputs, kernel)


def convolution(
    inputs: jax.Array,
    kernel: jax.Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    precision: Any = None,
    preferred_element_type: Any = None,
    **_: Any,
) -> jax.Array:
    """Return `jax.lax.conv_general_dilated` of these arguments, from slices and products.

    The values under the kernel are copied side by side along as many axes as `WIDEST` allows, and multiplied at once.
    Along the other axes, the products at every offset are added.
    """
    of_inputs, of_kernel, (batch, channel, *positions) = dimension_numbers
    x = jnp.transpose(inputs, (of_inputs[0], *of_inputs[2:], of_inputs[1]))  # [batch, positions..., channels]
    w = jnp.transpose(kernel, (*of_kernel[2:], of_kernel[1], of_kernel[0]))  # [offsets..., channels, outputs]
    sizes = w.shape[:-2]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*pair, 0) for pair in padding), (0, 0, 0)])
    x = x.reshape(*x.shape[:-1], feature_group_count, -1)
    beside = next((k for k in range(len(sizes)) if prod(sizes[k:]) * x.shape[-1] <= WIDEST), len(sizes))
    at = partial(_at, sizes=sizes, strides=window_strides, dilation=rhs_dilation)
    for axis in range(len(sizes), beside, -1):
        x = jnp.concatenate([at(x, {axis: offset}) for offset in range(sizes[axis - 1])], axis=-1)
    w = w.reshape(*sizes[:beside], x.shape[-1], feature_group_count, -1)
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    offsets = np.ndindex(*sizes[:beside])
    each = (jnp.einsum("...gc,cgo->...go", at(x, dict(enumerate(o, 1))), w[o], **options) for o in offsets)
    y = reduce(jnp.add, each)
    return jnp.transpose(y.reshape(*y.shape[:-2], -1), np.argsort((batch, *positions, channel)).tolist())


def pooled(
    inputs: jax.Array,
    empty: Any,
    merge: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    window_dilation: Sequence[int],
    **_: Any,
) -> jax.Array:
    """Return the merged values of every window of an array, from slices. `empty` is the value of the padding."""
    x = jax.lax.pad(inputs, jnp.asarray(empty, inputs.dtype), [(*pair, 0) for pair in padding])
    at = partial(_at, sizes=window_dimensions, strides=window_strides, dilation=window_dilation, first=0)
    return reduce(merge, (at(x, dict(enumerate(offsets))) for offsets in np.ndindex(*window_dimensions)))


def larger(one: jax.Array, other: jax.Array) -> jax.Array:
    """Return the elementwise maximum, NaN if one is NaN. Its derivative is that of the first of equal values."""
    return jnp.where((one >= other) | jnp.isnan(one), one, other)


POOLINGS = {"reduce_window_max": (-jnp.inf, larger), "reduce_window_sum": (0, jnp.add)}


def _at(values, offsets: dict[int, int], *, sizes, strides, dilation, first: int = 1) -> jax.Array:
    """Return the values at these offsets of all windows, by axis. `first` is the axis of the first size."""
    for axis, offset in offsets.items():
        size, stride, apart = (each[axis - first] for each in (sizes, strides, dilation))
        last = (values.shape[axis] - (size - 1) * apart - 1) // stride * stride
        values = jax.lax.slice_in_dim(values, offset * apart, offset * apart + last + 1, stride, axis)
    return values
