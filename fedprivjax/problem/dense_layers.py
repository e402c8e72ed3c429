"""Gradients of one record's loss that stay factored at the dense layers of a network.

The gradient of a dense layer's kernel is the outer product of the layer's input and of the gradient of its output. The
norm of a record's gradient follows from the norms of both ("ghost norms"), and the sum of clipped gradients is one
matrix product. The layers are found in the trace of the loss of one record: a kernel is a matrix that the loss uses
once, in a product with one vector. The gradients of all other parameters are computed for every record.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.problem.models import CLIPPINGS, Clipping, GeneralModel, Vector, length
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import by_shapes
from fedprivjax.problem.traces import evaluated, values_of

MARGIN = 1 + 1e-5  # of norms, since their rounding is not that of the vectors which are summed


@dataclass(frozen=True)
class Kernel:
    """Kernel of a dense layer.

    Attributes:
        leaf: its place among the leaves of the parameters.
        equation: number of the product's equation in the trace of the loss.
        operand: place of the kernel in the product, 0 or 1.
        flipped: True for a kernel [outputs, inputs], False for [inputs, outputs].
    """

    leaf: int
    equation: int
    operand: int
    flipped: bool


@struct.dataclass
class Layered(Vector):
    """Gradient of one record's loss, factored at dense layers.

    Attributes:
        residuals: gradient of every layer's output, [outputs] each.
        inputs: input of every layer, [inputs] each.
        others: gradients of all other parameters, a list of leaves.
        kernels: the layers' kernels.
        structure: structure of the parameters.
    """

    residuals: list[jax.Array]
    inputs: list[jax.Array]
    others: list[jax.Array]
    kernels: tuple[Kernel, ...] = struct.field(pytree_node=False)
    structure: Any = struct.field(pytree_node=False)

    def _map(self, function, *others):
        if others:
            raise TypeError("a sum of gradients of several points is not factored")
        return replace(self, residuals=[*map(function, self.residuals)], others=[*map(function, self.others)])

    def norm(self):
        """Return the Euclidean norm times `MARGIN`, in float32 without a product of matrices."""
        of_layers = [length(r) * length(x) for r, x in zip(self.residuals, self.inputs, strict=True)]
        return MARGIN * jnp.sqrt(sum(jnp.square(norm) for norm in [*of_layers, *map(length, self.others)]))

    def written_out(self):
        return jax.tree.map(lambda leaf: leaf[None], self).total()

    def total(self):
        """Return the sum over a leading axis of clipped vectors, with the parameters' structure.

        A non-finite input belongs to a vector that the clip made zero.
        """
        leaves = [jnp.sum(leaf, axis=0) for leaf in self.others]
        for kernel, residual, x in zip(self.kernels, self.residuals, self.inputs, strict=True):
            pair = [jnp.where(jnp.isfinite(x), x, 0.0), residual]
            one, other = reversed(pair) if kernel.flipped else pair
            leaves.insert(kernel.leaf, jnp.tensordot(one, other, axes=(0, 0)))
        return jax.tree.unflatten(self.structure, leaves)


def layered_gradient(loss: Callable[[Any, Any], Any], params: Any, example: Any) -> Layered:
    """Return the gradient of a loss of one example, factored at its dense layers."""
    program = jax.make_jaxpr(loss)(params, example)
    leaves, structure = jax.tree.flatten(params)
    kernels = _kernels(program, len(leaves))
    of_layers = {kernel.leaf: leaves[kernel.leaf] for kernel in kernels}
    rest = [leaf for place, leaf in enumerate(leaves) if place not in of_layers]
    products = [program.jaxpr.eqns[kernel.equation] for kernel in kernels]
    shifts = [jnp.zeros(_aval(product.outvars[0]).size) for product in products]

    def shifted(shifts, rest):
        others = iter(rest)
        every = [of_layers[place] if place in of_layers else next(others) for place in range(len(leaves))]
        return _with_inputs(program, kernels, [*every, *jax.tree.leaves(example)], shifts)

    (residuals, others), inputs = jax.grad(shifted, argnums=(0, 1), has_aux=True)(shifts, rest)
    return Layered(residuals, inputs, others, kernels, structure)


def _with_inputs(
    program: ClosedJaxpr, kernels: Sequence[Kernel], arguments: Sequence[Any], shifts: Sequence[jax.Array]
) -> tuple[Any, list[jax.Array]]:
    """Return the loss with the layers' outputs shifted, and the layers' inputs."""
    layers = {id(program.jaxpr.eqns[kernel.equation]): place for place, kernel in enumerate(kernels)}
    inputs: list[Any] = [None] * len(kernels)

    def outputs(equation: JaxprEqn, read: list[Any]) -> Sequence[Any]:
        values = values_of(equation, read)
        if (place := layers.get(id(equation))) is None:
            return values
        inputs[place] = read[1 - kernels[place].operand].ravel()
        return [values[0] + shifts[place].reshape(values[0].shape)]

    (loss,) = evaluated(program.jaxpr, program.consts, arguments, outputs)
    return loss, inputs


def _kernels(program: ClosedJaxpr, leaves: int) -> tuple[Kernel, ...]:
    """Return the kernels among the first arguments of a loss, in their order."""
    jaxpr = program.jaxpr
    read = [variable for equation in jaxpr.eqns for variable in equation.invars]
    uses = Counter(variable for variable in [*read, *jaxpr.outvars] if not isinstance(variable, Literal))
    once = {variable: place for place, variable in enumerate(jaxpr.invars[:leaves]) if uses[variable] == 1}
    found = {
        number: Kernel(once[variable], number, operand, _contracted(equation, operand) == (1,))
        for number, equation in enumerate(jaxpr.eqns)
        for operand, variable in enumerate(equation.invars)
        if not isinstance(variable, Literal) and variable in once and _is_layer(equation, operand)
    }
    return tuple(sorted(found.values(), key=lambda kernel: kernel.leaf))


def _is_layer(equation: JaxprEqn, operand: int) -> bool:
    """Return True for a product of a matrix, the given operand, with one vector, all of float32."""
    if equation.primitive.name != "dot_general" or equation.params["dimension_numbers"][1] != ((), ()):
        return False
    kernel, other, result = map(_aval, (equation.invars[operand], equation.invars[1 - operand], equation.outvars[0]))
    contracted = _contracted(equation, operand)
    if kernel.ndim != 2 or len(contracted) != 1 or {kernel.dtype, other.dtype, result.dtype} != {np.dtype(np.float32)}:
        return False
    return other.size == kernel.shape[contracted[0]] and not isinstance(equation.invars[1 - operand], Literal)


def _aval(variable: Any) -> Any:
    """Return the shape and type of a variable's values."""
    return variable.aval


def _contracted(equation: JaxprEqn, operand: int) -> tuple[int, ...]:
    return tuple(equation.params["dimension_numbers"][0][operand])


def in_layers(problem: Problem) -> int:
    """Return the number of parameters in the kernels of dense layers of a problem's loss."""
    model: Any = problem.model
    example = jax.eval_shape(lambda: problem.take(0, 0))
    start = jax.eval_shape(lambda: problem.start)
    return _in_layers((start, example), model.value)


@by_shapes
def _in_layers(one: tuple[Any, Any], loss: Callable[[Any, Any], Any]) -> int:
    leaves = jax.tree.leaves(one[0])
    return sum(leaves[kernel.leaf].size for kernel in _kernels(jax.make_jaxpr(loss)(*one), len(leaves)))


def with_clipping(problem: Problem, clipping: Clipping) -> Problem:
    """Return the problem with a computation of clipped gradients, as `general_problem` describes it.

    Raises:
        Refusal: if it is unknown, or is "ghost" and the loss has no dense layer.
    """
    require_choice("clipping", clipping, CLIPPINGS)
    model = problem.model
    if clipping == "ghost" and not (isinstance(model, GeneralModel) and in_layers(problem)):
        raise Refusal(
            "clipping must be 'auto' or 'rows' without a network that has dense layers, got 'ghost': no parameter of "
            "the loss is a matrix that it uses once, in a product with one vector. Use 'auto'"
        )
    return replace(problem, model=replace(model, clipping=clipping)) if isinstance(model, GeneralModel) else problem
