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
    """Public facts about one machine's local work in one round.

    Attributes:
        step: step size of the local steps: the protocol's `step_size` times its factor `step_scale`.
        planned: largest number of local steps of any machine in a round, the same in all rounds.
        taken: number of steps that this machine takes in the round. A machine without steps has 1 instead of 0, so that
            messages can be divided by this number.
        project: function that projects parameters onto the constraint set.
    """

    step: Any
    planned: Any
    taken: Any
    project: Callable[[Any], Any]


class AtServer(NamedTuple):
    """Public facts of one round, which the function `serve` of an algorithm with local steps receives.

    Attributes:
        t: number of the round, from 1, float32.
        step: step size of the local steps: the protocol's `step_size` times its factor `step_scale`.
        planned: largest number of local steps of any machine in a round.
        cohort: number by which the sum of the round's messages was divided. The privacy object chooses it: the sum of
            the messages' weights, or the expected number of participants.
        project: function that projects parameters onto the constraint set.
        start: initial parameters, a pytree.
        key: random key for random choices of the server in the round.
    """

    t: Any
    step: Any
    planned: Any
    cohort: Any
    project: Callable[[Any], Any]
    start: Any
    key: Any


class LocalAlgorithm(Part):
    """Base class of algorithms with local steps, such as federated averaging.

    A subclass is a `flax.struct.dataclass` that defines `init`, `move`, `serve` and `point`. `init` returns the
    server's state before the first round. `point` returns the parameters that the server reports as its result. In a
    round, functions are called in this order:

    1. `sends` returns the pytree that the server sends to the participating machines. Default: the server's state.
    2. `enter` returns a machine's *carry*, the state of its local steps in this round. Default: the received point.
    3. In each local step, `ask` returns a formula, which is evaluated for each record of the minibatch. Default: the
       gradient at the machine's current point. Then `move` receives the mean of the formula's values, and returns the
       new carry.
    4. `leave` returns the message that the machine sends after its last step. Default: the machine's last point minus
       the received point. Nothing else leaves a machine.
    5. `serve` returns the server's next state. Its argument `mean` is the mean of the machines' messages.

    If the local steps have an optimiser (`local`), the carry is by default a `Walk`: the point and the optimiser's
    state.

    A machine may also keep a state between its rounds. The server never sees this state. `own` returns the state before
    the machine's first round. After the local steps of a round, `hold` receives the last carry and updates the state.
    Then `keep` receives the clipped message and updates the state again. By default, machines keep no state.

    Attributes:
        equal_weights: False by default. True averages machines' messages with equal weights, even if the privacy object
            would weight them by numbers of records.
        local: None by default. A subclass with an optimiser of the local steps stores it in a field of this name.
    """

    kind, decorator = "algorithm", PYTREE
    equal_weights = False
    local = None

    def init(self, public: Public, step: Any) -> Any:
        """Return the server's state before the first round, a pytree.

        Args:
            public: public facts of the problem, such as the initial parameters.
            step: step size of the local steps.
        """
        raise Undefined(f"{type(self).__name__} must define init(public, step)")

    def sends(self, server: Any) -> Any:
        """Return the pytree that the server sends to all machines of a round. Default: the server's state."""
        return server

    def own(self, public: Public) -> Any:
        """Return the initial state that a machine keeps between rounds.

        All machines start with the same state. The default is the empty tuple: machines keep nothing.
        """
        return ()

    def enter(self, received: Any, own: Any) -> Any:
        """Return a machine's carry, the state of its local steps, before the first step of a round.

        The default is the received point, or a `Walk` from this point if the local steps have an optimiser.

        Args:
            received: pytree that the server sent (`sends`).
            own: state that the machine keeps between rounds.
        """
        return begun(self.local, received)

    def ask(self, carry: Any) -> Linear:
        """Return a formula in gradients, which is evaluated for each record of the next minibatch.

        The formula is written as sums and multiples of `gradient(x)`, which stands for the gradient of the record's
        loss at x. An example is `gradient(x) - gradient(y)`. The mean of its values over the minibatch is the argument
        `g` of `move`. By default, the formula is the gradient at the machine's current point. If the formula has
        several gradients, the first must be at the current point.

        Args:
            carry: the machine's carry, the state of its local steps in this round. By default, it is the current point,
                or a `Walk` if the local steps have an optimiser.
        """
        return gradient(point_of(carry))

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        """Return a machine's carry, the state of its local steps, after one step.

        Args:
            carry: the carry before the step.
            g: mean of the values of the formula from `ask` over the step's minibatch. The mean has noise if the privacy
                object adds noise in local steps.
            received: pytree that the server sent in this round.
            own: state that the machine keeps between rounds.
            work: public facts, such as the step size and the projection.
        """
        raise Undefined(f"{type(self).__name__} must define move(carry, g, received, own, work)")

    def leave(self, carry: Any, received: Any, own: Any, work: Work) -> Any:
        """Return the message that a machine sends after its local steps, a pytree of floats.

        The default is the machine's last point minus `received`. The message of a machine that took no step is replaced
        by 0.

        Args:
            carry: the carry after the last local step.
            received: pytree that the server sent in this round.
            own: state that the machine keeps between rounds.
            work: public facts, such as the step size.
        """
        return sub(point_of(carry), received)

    def hold(self, carry: Any, own: Any) -> Any:
        """Return the state that a machine keeps between its rounds, updated by its local steps.

        By default, the state is unchanged. For example, a machine may store some coordinates of its last point. `keep`
        is called afterwards, and may update the state again.

        Args:
            carry: the carry (the state of the local steps) after the last local step.
            own: state that the machine kept before the round.
        """
        return own

    def keep(self, own: Any, message: Any, work: Work) -> Any:
        """Return the state that a machine keeps between its rounds, updated by its clipped message.

        By default, the state is unchanged.

        Args:
            own: the state that `hold` returned in this round. By default, it is the state before the round.
            message: the machine's message after clipping, before noise and encoding.
            work: public facts, such as the step size.
        """
        return own

    def adapt(self, own: Any, g: Any, received: Any, work: Work) -> Any:
        """Return a machine's personal parameters after one step on them. By default, machines have none.

        Personal parameters are trained without noise and never leave the machine. If an algorithm defines `adapt`, a
        machine's personal parameters are the state that it keeps between rounds (`own`). After the local steps of a
        round, a machine calls `adapt` once for each minibatch.

        A machine's message must not depend on its personal parameters. Therefore, `enter`, `move` and `leave` receive
        zeros as `own`. The functions `hold` and `keep` must not be defined together with `adapt`.

        Args:
            own: the personal parameters before the step.
            g: mean gradient of the minibatch, without clipping and noise, at the parameters that
                `personal(received, own)` returns.
            received: pytree that the server sent in this round.
            work: public facts, such as the step size.
        """
        raise Undefined(f"{type(self).__name__} must define adapt(own, g, received, work)")

    def serve(self, server: Any, mean: Any, at: AtServer) -> Any:
        """Return the server's state after a round.

        Args:
            server: the server's state before the round.
            mean: mean of the machines' messages. The mean has noise if the privacy object adds noise to messages or to
                their mean.
            at: public facts of the round.
        """
        raise Undefined(f"{type(self).__name__} must define serve(server, mean, at)")

    def point(self, server: Any) -> Any:
        """Return the parameters that the algorithm reports as its result, from the server's state."""
        raise Undefined(f"{type(self).__name__} must define point(server)")

    def iterates(self, server: Any) -> dict[str, Any]:
        """Return further parameters by name, such as a mean of iterates. Default: none.

        Metrics are evaluated at these parameters and at the result of `point`.

        Args:
            server: the server's state.
        """
        return {}

    def personal(self, point: Any, own: Any) -> Any:
        """Return the parameters of one machine's own model. Default: `point`, the same for all machines.

        Args:
            point: parameters of the common model. For metrics, it is the result of the method `point`. During the
                local work, it is the pytree that the machine received from the server (`sends`).
            own: state that the machine keeps between rounds.
        """
        return point

    def planned(self, rounds: int) -> Any:
        """Return a copy that is prepared for the run's number of rounds. Default: unchanged.

        For example, the copy may have a schedule of learning rates, one for each round.

        Args:
            rounds: number of rounds of the run.
        """
        return self

    def check(self, public: Public) -> None:
        """Raise Refusal if the algorithm cannot run on a problem with these public facts.

        The default checks that the algorithm's optax optimisers can be run on the initial parameters. It also raises
        Refusal if `adapt` is defined together with `hold` or `keep`.
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
