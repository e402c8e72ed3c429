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
        lipschitz, lipschitz_note: stated bound on the norm of a record's gradient, and its source.
        smoothness: stated Lipschitz constant of a record's gradient.
        machines: number of machines.
        key: random key, for `init` of the server and `own` of a machine; None in other functions.
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
        """Return the public facts of a problem with this number of machines."""
        stated = problem.lipschitz, problem.lipschitz_note, problem.smoothness
        return cls(problem.start, problem.constraint, *stated, machines, key)

    def with_start(self, start: Any) -> "Public":
        """Return facts with this start, and the key of seed 0."""
        return self._replace(start=start, key=random_key(0))


class At(NamedTuple):
    """Public facts of a round, which `serve` receives.

    Attributes:
        t: number of the round, from 1, float32.
        step: step size η, times `step_scale`.
        project: projection onto the constraint set.
        start: initial parameters.
        key: random key for the server's own choices in the round.
        cohort: number of participants in the round.
        public: public facts of the problem, as `init` receives them.
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
    """Value of `Algorithm.reads` if the server reads the noisy mean of each round's messages."""


@struct.dataclass
class Sum:
    """Value of `Algorithm.reads` if the server reads the running sum of the rounds' mean messages, with noise.

    Only the noisy sum is ever released, not the means.
    """


@struct.dataclass
class Growing:
    """Value of `Algorithm.reads` if machines sum their own messages, and the server reads the noisy mean of the sums.

    When machine i takes part in round t, its sum becomes q_i ← u + (t−1)/t'·q_i, with u its increment
    (`Algorithm.increment`) and t' its previous round. Sums without noise stay at the machines.
    """


@struct.dataclass
class Momentum:
    """Value of `Algorithm.reads` if the server reads a momentum of the rounds' mean messages, with noise.

    With s_t the mean of round t, the momentum is m_t = (1−α)·m_{t−1} + α·s_t, from m_0 = 0.

    Attributes:
        alpha: α, above 0 and at most 1.
    """

    alpha: Any


Reads = Mean | Sum | Growing | Momentum
MEAN = Mean()


class Before(NamedTuple):
    """Facts of a machine's previous round, which `Algorithm.increment` receives.

    Attributes:
        received: what `remember` returned in that round, zeros before the first one.
        round: number of that round, 0 before the first one.
    """

    received: Any
    round: Any


class NormBound(NamedTuple):
    """Bound on the norm of a record's message, and the assumptions on which the bound relies."""

    norm: float
    assumptions: tuple[Assumption, ...]


class Part(Decorated):
    """A part of a protocol: a frozen pytree whose numbers can be swept, such as "algorithm.alpha"."""

    def __post_init__(self):
        set_optimizers(self)

    def leaves(self) -> dict[str, Any]:
        """Return the numbers that can be swept, by name, such as "alpha".

        The number b1 of an object in a field is "server.b1". With the metadata `several`, a field may be a tuple of
        numbers, of which the second is "scales.1": they count from 0.
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
        """Return a copy with other numbers, by the names of `leaves`.

        None means a setting's default, and no change of one of several numbers.
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
    """Base class of algorithms: what machines send, and what the server computes from released numbers alone.

    A subclass is a `flax.struct.dataclass` that defines `init`, `message`, `serve` and `point`.

    Attributes:
        recalls: True if a message uses gradients at several points, of which the server sends only the first. Machines
            still have the others from earlier rounds. It affects only the counted costs.

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
        """Statistic of the rounds' messages that the server reads, by default `Mean()`.

        The value is `Mean()`, `Sum()`, `Growing()` or `Momentum(alpha)`. A run asks for it once, before anything is
        compiled.
        """
        return MEAN

    def check(self, public: Public) -> None:
        """Raise Refusal if the algorithm cannot be run on the problem. Default: check the algorithm's optimisers."""
        check_optimizers(self, public.start)

    def init(self, public: Public, step: Any) -> Any:
        """Return the server's state before the first round, a pytree."""
        raise Undefined(f"{type(self).__name__} must define init(public, step)")

    def message(self, server: Any, t: Any) -> Linear:
        """Return what a machine sends for one record in round t: a combination of gradients, or `per_record(…)`.

        The combination is written as sums and multiples of `gradient(point)`.
        """
        raise Undefined(f"{type(self).__name__} must define message(server, t)")

    def smoothing(self, server: Any) -> Any:
        """Return the strength of the loss's smoothing in the next round, or None for the problem's own strength.

        The problem's loss must be a `Moreau`. Noise does not depend on the strength, because a smoothed loss keeps the
        bound on its gradient's norm.
        """
        return None

    def increment(self, server: Any, t: Any, before: Before) -> Linear:
        """Return what one record adds to its machine's sum in round t. For `Growing()`, it replaces `message`."""
        raise Undefined(f"{type(self).__name__} must define increment(server, t, before)")

    def remember(self, server: Any) -> Any:
        """Return what a machine stores of the server's state until its next `increment`, a pytree of numbers."""
        raise Undefined(f"{type(self).__name__} must define remember(server)")

    def serve(self, server: Any, read: Any, at: At) -> Any:
        """Return the server's state after a round.

        Args:
            read: the statistic named by `reads`, with noise, shaped like the parameters or the value of `per_record`.
        """
        raise Undefined(f"{type(self).__name__} must define serve(server, read, at)")

    def point(self, server: Any) -> Any:
        """Return the reported parameters."""
        raise Undefined(f"{type(self).__name__} must define point(server)")

    def iterates(self, server: Any) -> dict[str, Any]:
        """Return other iterates by name, which are evaluated in addition to the reported one. Default: none."""
        return {}

    def check_rounds(self, rounds: int) -> None:
        """Raise Refusal if a run cannot have this number of rounds. Default: any number."""

    def planned(self, rounds: int, step: float) -> Any:
        """Return a copy with values filled in that depend on the number of rounds or the step size. Default: itself."""
        return self

    def bound(self, public: Public) -> NormBound:
        """Return the bound on a message's norm if no clip is set. Private runs enforce it by clipping.

        Default: the loss's Lipschitz constant, which bounds a message that is one gradient. For other messages, an
        algorithm must define this function, or its privacy object must have a clip.
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
