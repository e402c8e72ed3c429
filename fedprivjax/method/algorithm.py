"""Interface of algorithms: what machines send and what the server computes, without data, clip or noise.

An algorithm sees released numbers and public facts only. Everything that it computes is therefore post-processing, and
the guarantee of a run is a function of the privacy object and the plan, never of the algorithm.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar, NamedTuple

from flax import struct

from fedprivjax.checks.decorated import PYTREE, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import called
from fedprivjax.method.formatting import changed_settings
from fedprivjax.method.linear import Linear
from fedprivjax.method.server_step import check_optimizers, set_optimizers
from fedprivjax.privacy.terms import Assumption, lipschitz_values
from fedprivjax.problem.constraints import ConstraintSet
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import isolated
from fedprivjax.problem.random_keys import random_key


class Public(NamedTuple):
    """Public facts of a problem, which an algorithm receives.

    Attributes:
        start: initial parameters, a pytree.
        constraint: set of allowed parameters.
        lipschitz, lipschitz_note: the problem's bound on the norm of a record's gradient, and a text that names the
            source of this bound.
        smoothness: the problem's Lipschitz constant of a record's gradient.
        machines: number of machines of the federation. `LocalAlgorithm.own` may receive 1 instead, so its result must
            not depend on this number.
        key: random key for random choices. In `LocalAlgorithm.own`, it is the same key in every run. Functions that
            only read facts on the host receive None.
    """

    start: Any
    constraint: ConstraintSet
    lipschitz: float
    lipschitz_note: str
    smoothness: float
    machines: int
    key: Any

    @classmethod
    def of(cls, problem: Problem, machines: int, key: Any = None) -> "Public":
        """Return the public facts of a problem in a federation of the given number of machines."""
        stated = problem.lipschitz, problem.lipschitz_note, problem.smoothness
        return cls(problem.start, problem.constraint, *stated, machines, key)

    def with_start(self, start: Any) -> "Public":
        """Return a copy with other initial parameters, and with a fixed random key in the attribute `key`.

        Such a copy serves to compute the shapes of an algorithm's values, which are the same for every key.

        Args:
            start: initial parameters, a pytree.
        """
        return self._replace(start=start, key=random_key(0))


class At(NamedTuple):
    """Public facts of one round, which the function `serve` of an algorithm receives.

    Attributes:
        t: number of the round, from 1, float32.
        step: step size of the round: the protocol's `step_size` times its factor `step_scale`.
        project: function that projects parameters onto the constraint set.
        start: initial parameters, a pytree.
        key: random key for random choices of the server in the round.
        cohort: number of machines that take part in the round.
        public: the public facts that `init` receives, except that `key` is the random key of the round.
    """

    t: Any
    step: Any
    project: Callable[[Any], Any]
    start: Any
    key: Any
    cohort: Any
    public: Any = None


@struct.dataclass
class Mean:
    """Value of `Algorithm.reads` for a server that reads the noisy mean of each round's messages."""


@struct.dataclass
class Sum:
    """Value of `Algorithm.reads` for a server that reads the noisy running sum of all rounds' mean messages.

    In round t, the server reads s_1 + … + s_t plus noise, where s_k is the mean message of round k. The means
    themselves are never released.
    """


@struct.dataclass
class Growing:
    """Value of `Algorithm.reads` for a server that reads a noisy mean of sums that machines build up over rounds.

    Every machine i keeps a private sum q_i without noise. In the first round in which the machine takes part, q_i is
    the machine's increment u, which the method `Algorithm.increment` defines. In a later such round t, the machine
    computes a new increment u and replaces q_i by u + ((t−1)/t')·q_i. Here t' is the previous round in which the
    machine took part. In each of these rounds, the machine sends q_i plus noise.
    """


@struct.dataclass
class Momentum:
    """Value of `Algorithm.reads` for a server that reads a noisy momentum of the rounds' mean messages.

    If s_t is the mean message of round t, the momentum is m_t = (1−α)·m_{t−1} + α·s_t, starting from m_0 = 0.

    Attributes:
        alpha: α, weight of the newest mean, above 0 and at most 1.
    """

    alpha: Any


Reads = Mean | Sum | Growing | Momentum
MEAN = Mean()


class Before(NamedTuple):
    """Facts of a machine's previous participation, which `Algorithm.increment` receives.

    Attributes:
        received: values that `Algorithm.remember` returned in the round of the previous participation. All are zero if
            the machine takes part for the first time.
        round: number of the round of the previous participation, or 0 if the machine takes part for the first time.
    """

    received: Any
    round: Any


class NormBound(NamedTuple):
    """Bound on the L2 norm of a record's message (`norm`), and the assumptions from which it follows."""

    norm: float
    assumptions: tuple[Assumption, ...]


class Part(Decorated):
    """A part of a protocol: a frozen pytree whose numbers can be swept, such as "algorithm.alpha"."""

    def __post_init__(self):
        set_optimizers(self)

    def leaves(self) -> dict[str, Any]:
        """Return the numbers that can be swept, by name, such as "alpha".

        If a field holds an object with numbers of its own, the name is that of the field and that of the number:
        "server.b1" is the number b1 of the object in the field `server`. If a field with the metadata `several` holds a
        tuple of numbers, the name ends with the index, from 0: "scales.1" is the second number of `scales`.
        """
        found = {}
        for one in fields(self):  # type: ignore[arg-type]
            value, kind = getattr(self, one.name), one.metadata
            if hasattr(value, "leaves"):
                found |= {f"{one.name}.{name}": number for name, number in value.leaves().items()}
            elif isinstance(value, tuple) and kind.get("several"):
                found |= {f"{one.name}.{place}": number for place, number in enumerate(value)}
            elif kind.get("pytree_node", True) and not kind.get("derived") and ("part" not in kind or "number" in kind):
                found[one.name] = value
        return found

    def with_values(self, values: Mapping[str, Any]) -> Any:
        """Return a copy with other numbers, given by the names of `leaves`.

        None sets a number to its default. For one of several numbers in a tuple, None leaves it unchanged.
        """
        changes: dict[str, Any] = {}
        for one in fields(self):  # type: ignore[arg-type]
            inside = {name.partition(".")[2]: values[name] for name in values if name.startswith(f"{one.name}.")}
            if inside:
                held: Any = getattr(self, one.name)
                if isinstance(held, tuple):
                    given = [inside.get(str(place)) for place in range(len(held))]
                    changes[one.name] = tuple(old if new is None else new for new, old in zip(given, held, strict=True))
                else:
                    changes[one.name] = held.with_values(inside)
            elif one.name in values:
                given, default = values[one.name], one.default
                changes[one.name] = default if given is None and default is not MISSING else given
        return replace(self, **changes)  # type: ignore[type-var]

    def __str__(self) -> str:
        changed = changed_settings(self)
        return f"{type(self).__name__}({', '.join(changed)})"


class Algorithm(Part):
    """Base class of algorithms: the messages of records, and the server's computation on noisy messages.

    A subclass is a `flax.struct.dataclass` that defines four functions:

    * `init` returns the server's state before the first round.
    * `message` returns the message of one record as a formula in gradients.
    * `serve` returns the server's state after a round. Its argument `read` is the noisy mean of the round's messages.
      Its argument `at` holds public facts of the round, such as the step size `at.step`.
    * `point` returns the parameters that the server reports as its result.

    The privacy object of the protocol computes the gradients, clips the messages, and adds the noise. An algorithm
    therefore never sees data.

    Attributes:
        recalls: True if machines store points that they received in earlier rounds. The attribute changes only the
            counted communication. For the message `gradient(x) - gradient(y)`, False (the default) counts that the
            server sends both x and y in the round. True counts only the first point, x.

    >>> import jax
    >>> from flax import struct
    >>> from fedprivjax import NoisyMessages, Protocol, Uniform, datasets, from_dataset, gradient, simulate
    >>> @struct.dataclass
    ... class HeavyBall(Algorithm):
    ...     beta: Any = 0.9
    ...
    ...     def init(self, public, step):
    ...         return public.start, jax.tree.map(lambda leaf: 0 * leaf, public.start)
    ...
    ...     def message(self, server, t):
    ...         return gradient(server[0])
    ...
    ...     def serve(self, server, read, at):
    ...         velocity = jax.tree.map(lambda v, g: self.beta * v + g, server[1], read)
    ...         return at.project(jax.tree.map(lambda w, v: w - at.step * v, server[0], velocity)), velocity
    ...
    ...     def point(self, server):
    ...         return server[0]
    >>> method = Protocol(HeavyBall(), privacy=NoisyMessages(clip=1.0), epsilon=8.0, step_size=0.1)
    >>> problem = from_dataset(datasets.load("digits"))
    >>> run = simulate(method, problem, Uniform(100, 10), rounds=100)
    >>> round(run.guarantee.epsilon, 2)
    8.0
    """

    kind, decorator = "algorithm", PYTREE
    recalls: ClassVar[bool] = False

    @property
    def reads(self) -> Reads:
        """Value that the server reads in a round: `Mean()` (the default), `Sum()`, `Momentum(alpha)` or `Growing()`.

        Let s_t be the mean of the messages of round t. In round t, the server reads one of these values plus noise:

        * `Mean()`: s_t.
        * `Sum()`: s_1 + … + s_t.
        * `Momentum(alpha)`: m_t = (1−α)·m_{t−1} + α·s_t, from m_0 = 0.
        * `Growing()`: the mean of q_i over the participants i of the round. Here q_i is a sum that machine i keeps
          between rounds. In the first round in which the machine takes part, q_i is the machine's increment u, which
          the method `increment` defines. In each later such round t, q_i becomes u + ((t−1)/t')·q_i with a new
          increment u. Here t' is the previous round in which the machine took part.

        The attribute must be the same in all rounds of a run.
        """
        return MEAN

    def check(self, public: Public) -> None:
        """Raise Refusal if the algorithm cannot be run on a problem with these public facts.

        The default only checks that the algorithm's optax optimisers can be run on the initial parameters.
        """
        check_optimizers(self, public.start)

    def init(self, public: Public, step: Any) -> Any:
        """Return the server's state before the first round, a pytree.

        Args:
            public: public facts of the problem, such as the initial parameters.
            step: step size of the run.
        """
        raise Undefined(f"{type(self).__name__} must define init(public, step)")

    def message(self, server: Any, t: Any) -> Linear:
        """Return the message of one record in round t, such as `gradient(x)`, as a formula.

        `gradient(x)` stands for the gradient of the record's loss at the point x. It can be added, subtracted, and
        multiplied by numbers, for example `t * gradient(x) - gradient(y)`. The formula is later evaluated for each
        record.

        A message that is no combination of gradients is `per_record(function, point)`. It stands for the value
        `function(record, point)`, where `record.loss(w)` is the loss of the record at w.

        Args:
            server: the server's state.
            t: number of the round, from 1.
        """
        raise Undefined(f"{type(self).__name__} must define message(server, t)")

    def smoothing(self, server: Any) -> Any:
        """Return the smoothness constant b of the Moreau envelope of the loss in the next round, or None.

        Machines compute gradients of the envelope. The envelope of a record's loss f is f_b(w) = min over v of f(v) +
        (b/2)·‖w − v‖². A smaller b gives a smoother envelope. None, the default, keeps the problem's own loss. If a
        number is returned, the problem's loss must be a `Moreau` object. The number replaces that object's `strength`.
        The noise does not depend on b, because one norm bound holds for the gradients of the envelopes of all b.

        Args:
            server: the server's state before the round.
        """
        return None

    def increment(self, server: Any, t: Any, before: Before) -> Linear:
        """Return the increment u_z of one record z to the sum that its machine keeps over rounds.

        Algorithms whose `reads` is `Growing()` define this function and `remember` instead of `message`. A machine's
        increment u is the mean of the clipped u_z over the records that it uses in the round.

        The increment is written as sums and multiples of `gradient(point)`, for example `2 * gradient(x) -
        gradient(before.received)`.

        Args:
            server: the server's state before the round.
            t: number of the round, from 1.
            before: facts of the machine's previous participation: its round, and the values from `remember`.
        """
        raise Undefined(f"{type(self).__name__} must define increment(server, t, before)")

    def remember(self, server: Any) -> Any:
        """Return the numbers that each participant of a round stores until it takes part again.

        Only algorithms whose `reads` is `Growing()` define this function. The method `increment(server, t, before)`
        finds the stored numbers in `before.received`.

        For example, this method may return the point x of the round.

        Args:
            server: the server's state before the round.

        Returns:
            A pytree of arrays, such as parameters.
        """
        raise Undefined(f"{type(self).__name__} must define remember(server)")

    def serve(self, server: Any, read: Any, at: At) -> Any:
        """Return the server's state after a round.

        Args:
            server: the server's state before the round.
            read: the noisy mean of the round's messages, a pytree like the parameters. The attribute `reads` of the
                algorithm can choose another noisy value, such as the running sum of all rounds' mean messages. If
                `message` returns `per_record(function, …)`, `read` has the shape of the function's value.
            at: public facts of the round, such as the step size `at.step` and the projection `at.project`.
        """
        raise Undefined(f"{type(self).__name__} must define serve(server, read, at)")

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

    def check_rounds(self, rounds: int) -> None:
        """Raise Refusal if the algorithm cannot run for this number of rounds. Default: any number is allowed."""

    def planned(self, rounds: int, step: float) -> Any:
        """Return a copy that is prepared for the run's number of rounds and step size. Default: unchanged.

        For example, the copy may have a schedule of weights that depends on the number of rounds.

        Args:
            rounds: number of rounds of the run.
            step: step size of the run.
        """
        return self

    def bound(self, public: Public) -> NormBound:
        """Return a bound on the L2 norm of one record's message, for a privacy object without a `clip`.

        If the privacy object has no `clip`, private runs clip every record's message to this bound. The default is the
        loss's Lipschitz constant, which is a bound if the message is one gradient. For other messages, the algorithm
        must define this function, or the privacy object must have a clip.
        """
        return lipschitz_bound(public)


class Calls(NamedTuple):
    """Calls of an algorithm's functions by name.

    Attributes:
        algorithm: an `Algorithm` or a `LocalAlgorithm`.
        isolated: True to refuse functions that reach beyond their arguments, see `fedprivjax/problem/program.py`.
    """

    algorithm: Any
    isolated: bool = False

    def __call__(self, name: str, *arguments: Any, check: Callable[[Any], Any] = lambda result: result) -> Any:
        """Return the result of a function, as `check` returns it."""

        def called(*arguments):
            return check(getattr(self.algorithm, name)(*arguments))

        if not self.isolated:
            return called(*arguments)
        return isolated(called, *arguments, name=f"{name} of {type(self.algorithm).__name__}")


def has_sums(algorithm: type[Algorithm]) -> bool:
    """Return True if the machines of a class of algorithms send growing sums."""
    return algorithm.increment is not Algorithm.increment


def planned_algorithm(algorithm: Any, *sizes: Any) -> Any:
    """Return the planned algorithm. Raise Refusal unless it has the same kind of rounds, which its guarantee is of."""
    planned = algorithm.planned(*sizes)
    if _kind(planned) != _kind(algorithm):
        name = type(algorithm).__name__
        raise Refusal(f"planned of {name} must return a {name}, got {called(planned)}. Return self.replace(…)")
    return planned


def _kind(algorithm: Any) -> tuple[type | None, bool]:
    """Return the base class of an algorithm, such as `Algorithm`, and whether its machines send growing sums."""
    kinds = type(algorithm).__mro__
    base = kinds[kinds.index(Part) - 1] if Part in kinds else None
    return base, base is Algorithm and has_sums(type(algorithm))


def lipschitz_bound(public: Public) -> NormBound:
    """Return the bound on one gradient that the loss states."""
    return NormBound(public.lipschitz, (Assumption("lipschitz", lipschitz_values(public)),))
