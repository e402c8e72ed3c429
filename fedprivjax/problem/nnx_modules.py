"""Flax nnx modules as functions of their parameters: a fixed graph and a separate pytree of parameters."""

import sys
from dataclasses import dataclass, field
from typing import Any

import jax

from fedprivjax.checks.refusal import Refusal


@dataclass(frozen=True)
class SplitModule:
    """An nnx module without its parameters, with the interface of a linen module. Equal modules share one program.

    Attributes:
        name: name of the module's class.
        graph: the graph definition from `flax.nnx.split`.
        start: initial parameters of the module, nested dicts of arrays.
    """

    name: str
    graph: Any = field(repr=False)
    start: Any = field(repr=False, compare=False)

    def apply(self, variables, inputs):
        """Return the scores of a batch. Changes that the module makes to its state are discarded."""
        from flax import nnx

        return nnx.merge(self.graph, nnx.State(variables["params"]))(inputs)


def is_nnx(network: Any) -> bool:
    """Return True if `network` is an nnx module. flax.nnx is not imported unless the caller has imported it.

    >>> is_nnx("mlp")
    False
    """
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(network, nnx.Module)


def split_module(module: Any) -> SplitModule:
    """Split an nnx module into graph and parameters.

    Raises:
        Refusal: if the module has state besides parameters. Running means would be shared between records, and the
            random state of dropout would be the same in every round.

    >>> from flax import nnx
    >>> split_module(nnx.Linear(4, 2, rngs=nnx.Rngs(0))).start["kernel"].shape
    (4, 2)
    """
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    is_variable = {"is_leaf": lambda leaf: isinstance(leaf, nnx.Variable)}
    others = sorted({type(leaf).__name__ for leaf in jax.tree.leaves(rest, **is_variable)})
    if others:
        raise Refusal(f"network must have parameters only, since records must not share state, got {others}")
    return SplitModule(type(module).__name__, graph, nnx.to_pure_dict(params))
