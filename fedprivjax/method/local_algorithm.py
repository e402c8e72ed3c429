"""Interface of algorithms with local work: what a machine does between two messages, and what the server computes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedprivjax.checks.decorated import PYTREE
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.method.algorithm import Part, Public
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.server_step import check_optimizers, initial, stepped


class Work(NamedTuple):
    """Public facts of a machine's local work in a round.

    Attributes:
        step: step size η, times `step_scale`.
        planned: largest number of local steps of any machine in a round, a constant.
        taken: number of steps that this machine takes in the round.
        project: projection onto the constraint set.
    """

    step: Any
    planned: Any
    taken: Any
    project: Callable[[Any], Any]


class AtServer(NamedTuple):
    """Public facts of a round, which `serve` receives.

    Attributes:
        t: number of the round, from 1, float32.
        step: step size η of the local steps, times `step_scale`.
        planned: largest number of local steps of any machine in a round.
        cohort: public divisor of the messages' sum, or the sum of their weights.
        project: projection onto the constraint set.
        start: initial parameters.
        key: random key for the server's own choices in the round.
    """

    t: Any
    step: Any
    planned: Any
    cohort: Any
    project: Callable[[Any], Any]
    start: Any
    key: Any


class LocalAlgorithm(Part):
    """Base class of algorithms with local work. A subclass is a `flax.struct.dataclass`.

    It defines `init`, `move`, `serve` and `point`. In a round, `enter` returns a machine's carry, the state of its
    local steps. Each step evaluates the message of `ask` for every record of a minibatch, and `move` updates the carry
    by their mean. The machine then sends the message of `leave`, and nothing else. By default, the carry is a point
    that starts at the received one (in a `Walk` if the local steps have an optimiser). `ask` then returns the gradient
    at this point, and `leave` the last point minus the received one.

    Attributes:
        equal_weights: True to average messages with equal weights, also if the privacy object would weigh them by the
            machines' numbers of records.
        local: optimiser of the local steps of an algorithm with such a field, else None.
    """

    kind, decorator = "algorithm", PYTREE
    equal_weights = False
    local = None

    def init(self, public: Public, step: Any) -> Any:
        """Return the server's state before the first round, a pytree."""
        raise Undefined(f"{type(self).__name__} must define init(public, step)")

    def sends(self, server: Any) -> Any:
        """Return what the server sends to all machines of a round, a pytree. Default: its state."""
        return server

    def own(self, public: Public) -> Any:
        """Return the state of a machine before its first round, which it keeps between rounds. Default: (), none."""
        return ()

    def enter(self, received: Any, own: Any) -> Any:
        """Return the carry before a machine's first local step. Default: the received point, or a `Walk` from it.

        Args:
            received: what the server sent, as `sends` returned it.
            own: the machine's state.
        """
        return begun(self.local, received)

    def ask(self, carry: Any) -> Linear:
        """Return the message of one record in the next local step. Default: the gradient at the machine's point.

        The message's first gradient must be at the machine's point, because metrics and transcripts report this point.
        """
        return gradient(point_of(carry))

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        """Return the carry after a local step.

        Args:
            g: mean of the step's messages over the minibatch, with noise if records are protected.
        """
        raise Undefined(f"{type(self).__name__} must define move(carry, g, received, own, work)")

    def leave(self, carry: Any, received: Any, own: Any, work: Work) -> Any:
        """Return the machine's message after its local steps, a pytree of floats. A machine without a step sends 0.

        Default: the machine's point minus `received`.
        """
        return sub(point_of(carry), received)

    def hold(self, carry: Any, own: Any) -> Any:
        """Return the machine's state after its local steps, such as a part of its point. Default: unchanged."""
        return own

    def keep(self, own: Any, message: Any, work: Work) -> Any:
        """Return the machine's state after the round. Default: the state that `hold` returned.

        Args:
            own: the state that `hold` returned.
            message: the machine's message after clipping, before noise and encoding.
        """
        return own

    def adapt(self, own: Any, g: Any, received: Any, work: Work) -> Any:
        """Return a machine's personal parameters after a step on them. Default: machines have none.

        The state of a machine (`own`) is then its personal parameters, and the algorithm defines no `hold` and `keep`.
        Messages must not depend on them: `enter`, `move` and `leave` receive zeros in their place.

        Args:
            g: mean gradient of the step's minibatch at `personal(received, own)`, without clipping and noise.
        """
        raise Undefined(f"{type(self).__name__} must define adapt(own, g, received, work)")

    def serve(self, server: Any, mean: Any, at: AtServer) -> Any:
        """Return the server's state after a round.

        Args:
            mean: mean of the machines' messages, with noise if machines are protected.
        """
        raise Undefined(f"{type(self).__name__} must define serve(server, mean, at)")

    def point(self, server: Any) -> Any:
        """Return the reported parameters."""
        raise Undefined(f"{type(self).__name__} must define point(server)")

    def iterates(self, server: Any) -> dict[str, Any]:
        """Return other iterates by name, which are evaluated in addition to the reported one. Default: none."""
        return {}

    def personal(self, point: Any, own: Any) -> Any:
        """Return the parameters of a machine's model, from the reported point and its state. Default: the point."""
        return point

    def planned(self, rounds: int) -> Any:
        """Return a copy with values filled in that depend on the number of rounds. Default: itself."""
        return self

    def check(self, public: Public) -> None:
        """Raise Refusal if the algorithm cannot run on the problem, before anything is traced.

        Default: checks of its optimisers, and that it does not define `adapt` together with `hold` or `keep`.
        """
        check_optimizers(self, public.start)
        unused = [name for name in ("hold", "keep") if defines(self, name)]
        if unused and defines(self, "adapt"):
            raise Refusal(
                f"{type(self).__name__} must define {unused[0]} or adapt, got both. Compute the whole state in adapt, "
                f"or leave adapt out"
            )


def defines(algorithm: Any, name: str) -> bool:
    """Return True if an algorithm overrides an optional function of `LocalAlgorithm`."""
    return getattr(getattr(algorithm, name), "__func__", None) is not getattr(LocalAlgorithm, name)


class Walk(NamedTuple):
    """Carry of local steps with an optimiser: the machine's point v, and the optimiser's state."""

    v: Any
    optimizer: Any


def begun(local: Any, point: Any) -> Any:
    """Return a machine's point before its first step of a round, or its `Walk` with a reset optimiser."""
    return point if local is None else Walk(point, initial(local, point))


def point_of(carry: Any) -> Any:
    """Return the point of a walk."""
    return carry.v if isinstance(carry, Walk) else carry


def walked(local: Any, carry: Any, direction: Any, work: Work) -> Any:
    """Return the walk after a step.

    The step is −η times the direction, or η times the optimiser's update at learning rate 1.
    """
    v = point_of(carry)
    if local is None:
        return work.project(stepped(None, (), v, direction, work.step)[0])
    updates, optimizer = local.made().update(direction, carry.optimizer, v)
    v, _ = stepped(None, (), v, mul(-1.0, updates), work.step)
    return Walk(work.project(v), optimizer)


def add(one: Any, other: Any) -> Any:
    """Return the sum of two pytrees."""
    return jax.tree.map(lambda a, b: a + b, one, other)


def sub(one: Any, other: Any) -> Any:
    """Return the difference of two pytrees."""
    return jax.tree.map(lambda a, b: a - b, one, other)


def mul(number: Any, tree: Any) -> Any:
    """Return a pytree times a number."""
    return jax.tree.map(lambda leaf: number * leaf, tree)


def zeros(tree: Any) -> Any:
    """Return zeros shaped like a pytree."""
    return jax.tree.map(lambda leaf: 0 * leaf, tree)
