"""Personal parts of local work: states of machines that are computed without noise, because no message depends on them.

A machine's message is computed from zeros in place of its personal part, so that nothing which leaves the machine
depends on it. Everything that other parties see is then covered by the guarantee of the messages. What a client sees in
addition is computed from this, from its own records, and from the rounds in which it took part. These are public, or
sampled independently of the other machines' rounds, so the guarantee is joint differential privacy (Kearns et al., ITCS
2014).
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Calls
from fedprivjax.method.local_algorithm import LocalAlgorithm, Work
from fedprivjax.method.local_data import LocalData, Minibatch


def has_personal_part(algorithm: LocalAlgorithm) -> bool:
    """Return True if machines keep a personal part, which `adapt` computes."""
    return getattr(algorithm.adapt, "__func__", None) is not LocalAlgorithm.adapt


def seen_by_messages(algorithm: LocalAlgorithm, own: Any) -> Any:
    """Return what a machine's message may read of what the machine holds: zeros in place of a personal part."""
    return jax.tree.map(jnp.zeros_like, own) if has_personal_part(algorithm) else own


def adapted(call: Calls, received: Any, own: Any, data: LocalData, work: Work) -> Any:
    """Return a machine's personal part after its personal steps."""

    def one(own: Any, minibatch: Minibatch) -> tuple[Any, Any]:
        g = minibatch.gradient(call("personal", received, own))
        return call("adapt", own, g, received, work), None

    return data.scan(one, own)[0]


def require_apart(name: str, messages: Any, own: Any) -> None:
    """Raise Refusal if messages depend on a personal part.

    Args:
        messages: function of the personal part, which returns all that feeds a message.
        own: the personal part.
    """
    leaves, structure = jax.tree.flatten(own)
    program = jax.make_jaxpr(lambda *leaves: messages(jax.tree.unflatten(structure, leaves)))(*leaves).jaxpr
    reached = {id(variable) for variable in program.invars}
    for equation in program.eqns:
        if any(id(variable) in reached for variable in equation.invars):
            reached |= {id(variable) for variable in equation.outvars}
    if any(id(variable) in reached for variable in program.outvars):
        raise Refusal(
            f"messages of {name} must not depend on the personal part that adapt computes without noise, and they do. "
            f"Leave own out of enter, ask, move and leave"
        )
