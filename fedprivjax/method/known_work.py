"""Facts of an algorithm of local work, read once on the host before it is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.method.algorithm import Calls, Public
from fedprivjax.method.linear import Linear, require_gradients, require_message
from fedprivjax.method.local_algorithm import AtServer, LocalAlgorithm, Work
from fedprivjax.method.personal_part import has_personal_part, require_apart
from fedprivjax.method.traced_checks import require_floats, require_served, require_state
from fedprivjax.problem.program import by_shapes
from fedprivjax.problem.random_keys import random_key


@struct.dataclass
class KnownWork:
    """Facts of an algorithm of local work, read once on the host and enforced in the program.

    Attributes:
        limit: stated bound on a record's message, which is enforced without a clip; None if there is none.
        expected: E|S_r|, if the privacy object reads it, or None.
        encoded: bound to which encoded messages are clipped before a trusted server's noise, or None.
        first: first state of a machine that holds a part of its points, or None.
        algorithm: planned algorithm, or None if it plans nothing.
        gradients: number of gradients in a local step's message.
        plain: True if a local step's message is one gradient, without a coefficient.
        stateful: True if a machine keeps a state between rounds on which messages may depend.
        weighted: True if machines' weights follow from the plan.
        public_steps: True if what is released depends on the largest number of local steps.
        slot_classes, all_records: classes of the machines that are computed together, and padding, see `LocalRounds`.
        chunk: number of slots of a secret cohort that are computed together, see `LocalRounds`.
        versions: number of versions of its message that the server keeps for late answers, or None.
    """

    limit: Any
    expected: Any
    encoded: Any
    first: Any = None
    algorithm: Any = None
    gradients: int = struct.field(pytree_node=False, default=1)
    plain: bool = struct.field(pytree_node=False, default=True)
    stateful: bool = struct.field(pytree_node=False, default=False)
    weighted: bool = struct.field(pytree_node=False, default=False)
    public_steps: bool = struct.field(pytree_node=False, default=False)
    slot_classes: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    all_records: bool | None = struct.field(pytree_node=False, default=None)
    chunk: int | None = struct.field(pytree_node=False, default=None)
    versions: int | None = struct.field(pytree_node=False, default=None)


def asked(call: Calls, carry: Any, start: Any) -> Linear:
    """Return a local step's message. Raise Refusal unless it is one."""
    name = type(call.algorithm).__name__

    def check(message):
        return require_gradients(require_message(message, start, name), name, "in local work")

    return call("ask", carry, check=check)


def message_of(call: Calls, carry: Any, received: Any, own: Any, work: Work) -> tuple[list, Any]:
    """Return the leaves and the structure of a machine's message. Raise Refusal unless it has float32 numbers only."""
    structures = []

    def flat(message):
        leaves, structure = jax.tree.flatten(require_floats(type(call.algorithm).__name__, message))
        structures.append(structure)
        return leaves

    return call("leave", carry, received, own, work, check=flat), structures[-1]


def left(call: Calls, public: Public, planned: Any, own: Any = None) -> tuple[Any, Any]:
    """Return the message of a machine after a step with gradient 0, and what it then holds.

    Args:
        own: what it held before, by default its first state.
    """
    received = call("sends", call("init", public, jnp.float32(1)))
    own = call("own", public) if own is None else own
    work = Work(jnp.float32(1), planned, jnp.float32(1), lambda point: point)
    g = jax.tree.map(jnp.zeros_like, public.start)
    end = call("move", call("enter", received, own), g, received, own, work)
    leaves, structure = message_of(call, end, received, own, work)
    return jax.tree.unflatten(structure, leaves), call("hold", end, own)


def form(algorithm: LocalAlgorithm, public: Public) -> Any:
    """Return the pytree of a machine's message, of shapes instead of numbers."""
    return _form((algorithm, public.start), public._replace(start=None))


@by_shapes
def _form(parts: tuple[LocalAlgorithm, Any], public: Public) -> Any:
    return jax.eval_shape(lambda parts: left(Calls(parts[0]), public.with_start(parts[1]), 1.0)[0], parts)


def of_python(structure: Any) -> bool:
    """Return True if the containers of a pytree are tuples, lists and dicts."""
    node = structure.node_data()
    return (node is None or node[0] in (tuple, list, dict)) and all(map(of_python, structure.children()))


def read(algorithm: LocalAlgorithm, public: Public, *, private: bool) -> tuple[Linear, bool, bool]:
    """Return a local step's message, and two answers.

    They are True if machines keep a state that messages may depend on, and if messages or states depend on the largest
    number of steps.
    """
    return _read((algorithm, public.start), public._replace(start=None), private)


@by_shapes
def _read(parts: tuple[LocalAlgorithm, Any], public: Public, private: bool) -> tuple[Linear, bool, bool]:
    one = jnp.float32(1)

    def first(parts):
        algorithm, start = parts
        call, facts = Calls(algorithm, isolated=private), public.with_start(start)
        own = call("own", facts)
        return asked(call, call("enter", call("sends", call("init", facts, one)), own), start), own

    def results(parts, planned):
        algorithm, start = parts
        call, work = Calls(algorithm, isolated=private), Work(one, planned, one, lambda point: point)
        facts = public.with_start(start)
        server, own, (message, held) = call("init", facts, one), call("own", facts), left(call, facts, planned)
        at = AtServer(one, one, planned, one, lambda point: point, start, random_key(0))
        kept, served = call("keep", held, message, work), call("serve", server, message, at)
        require_state(type(algorithm).__name__, own, held, "hold", "own")
        require_state(type(algorithm).__name__, own, kept, "keep", "own")
        require_served(type(algorithm).__name__, server, served)
        return message, kept, served

    def require_no_leak(parts):
        algorithm, start = parts
        call, facts = Calls(algorithm, isolated=private), public.with_start(start)
        server = call("init", facts, one)

        def messages(own):
            return asked(call, call("enter", call("sends", server), own), start), left(call, facts, one, own)[0]

        require_apart(type(algorithm).__name__, messages, call("own", facts))

    if has_personal_part(parts[0]):
        jax.eval_shape(require_no_leak, parts)
    message, own = jax.eval_shape(first, parts)
    program = jax.make_jaxpr(results)(parts, one).jaxpr
    *_, planned = program.invars
    used = [one for equation in program.eqns for one in equation.invars]
    stateful = bool(jax.tree.leaves(own)) and not has_personal_part(parts[0])
    return message, stateful, any(one is planned for one in (*used, *program.outvars))
