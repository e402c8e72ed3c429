"""Flax nnx modules as functions of their parameters: the graph is fixed, the parameters are a pytree beside it."""

import sys
from dataclasses import dataclass, field
from typing import Any

import jax

from fedprivjax.checks.refusal import Refusal


@dataclass(frozen=True)
class SplitModule:
    """An nnx module without its parameters, called as a linen module is: equal ones are one program.

    Attributes:
        name: of its class.
        graph: what `flax.nnx.split` leaves beside the parameters.
        start: the parameters that it was made with, nested dicts of arrays.
    """

    name: str
    graph: Any = field(repr=False)
    start: Any = field(repr=False, compare=False)

    def apply(self, variables, inputs):
        """The scores of a batch; what the module writes into itself on the way is dropped."""
        from flax import nnx

        return nnx.merge(self.graph, nnx.State(variables["params"]))(inputs)


def is_nnx(network: Any) -> bool:
    """Whether it is an nnx module, without an import where nobody has made one.

    >>> is_nnx("mlp")
    False
    """
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(network, nnx.Module)


def split_module(module: Any) -> SplitModule:
    """An nnx module's graph and parameters.

    Raises:
        Refusal: a module that keeps more than parameters: running means would be shared between records, and a
            dropout's random state would be the same in every round.

    >>> from flax import nnx
    >>> split_module(nnx.Linear(4, 2, rngs=nnx.Rngs(0))).start["kernel"].shape
    (4, 2)
    """
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    is_variable = {"is_leaf": lambda leaf: isinstance(leaf, nnx.Variable)}
    others = sorted({type(leaf).__name__ for leaf in jax.tree.leaves(rest, **is_variable)})
    if others:
        raise Refusal(f"network must have parameters only, for records may share nothing else, got {others}")
    return SplitModule(type(module).__name__, graph, nnx.to_pure_dict(params))
