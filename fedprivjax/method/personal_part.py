"""Personal parts of local work: what a machine holds that is not computed from its messages alone.

A state that `adapt` computes has no noise, because no message depends on it. A machine's message is computed from zeros
in its place, so that nothing which leaves the machine depends on it. Everything that other parties see is then covered
by the guarantee of the messages. What a client sees in addition is computed from this, from its own records, and from
the rounds in which it took part. These are public, or sampled independently of the other machines' rounds, so the
guarantee is joint differential privacy (Kearns et al., ITCS 2014).

What `hold` returns is a part of the machine's point after its local steps, and its next messages may depend on it. This
is covered if the whole machine is protected, by bounded messages, or if every local step has noise.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Calls
from fedprivjax.method.local_algorithm import LocalAlgorithm, Work, defines
from fedprivjax.method.local_data import LocalData, Minibatch


def has_personal_part(algorithm: LocalAlgorithm) -> bool:
    """Return True if machines keep a personal part, which `adapt` computes."""
    return defines(algorithm, "adapt")


def holds_part(algorithm: LocalAlgorithm) -> bool:
    """Return True if machines hold a part of their points, on which later messages may depend."""
    return defines(algorithm, "hold") and not has_personal_part(algorithm)


def seen_by_messages(algorithm: LocalAlgorithm, own: Any) -> Any:
    """Return what a machine's message may read of what the machine holds: zeros in place of a personal part."""
    return jax.tree.map(jnp.zeros_like, own) if has_personal_part(algorithm) else own


def adapted(call: Calls, received: Any, own: Any, data: LocalData, work: Work) -> Any:
    """Return a machine's personal part after its personal steps."""

    def one(own: Any, minibatch: Minibatch) -> tuple[Any, Any]:
        g = minibatch.gradient(call("personal", received, own))
        return call("adapt", own, g, received, work), None

    return data.scan(one, own)[0]


def require_covered(algorithm: LocalAlgorithm, privacy: Any) -> None:
    """Raise Refusal if machines hold a part of points on which one record acts without noise.

    With unit = "machine" all that a machine holds is its own, and its messages are bounded for every value of it.
    """
    if privacy.unit == "record" and holds_part(algorithm) and not privacy.noisy_steps:
        raise Refusal(
            f"privacy must add noise to every local step for {type(algorithm).__name__} with unit = 'record', because "
            f"messages depend on what machines hold of their points, got {type(privacy).__name__}. Use LocalPrivacy"
        )


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
