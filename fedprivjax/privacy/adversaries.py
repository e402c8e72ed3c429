"""Adversaries: their views of a run, and the noise in a view that hides a machine's messages.

A round's messages are x = m + z with Gaussian noise z of covariance σ²·K. A `LinearAdversary` sees A·x of a round, with
a matrix A whose first row is 1s: the sum of the messages, from which the broadcasts follow, and further linear
functions. A unit moves the message of one machine j by a vector of norm Δ. The view is then μ_j-GDP with

    μ_j = (Δ/σ)·√(Aᵀ·(A·K·Aᵀ)⁺·A)_jj

and rounds compose by the sum of squares, or by the largest if a unit moves one message of the run.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, final

import numpy as np

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import PACKAGE, Refusal, Undefined
from fedprivjax.checks.restated import of_package
from fedprivjax.checks.values import called, require_printable
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.seeds import shuffler_rng
from fedprivjax.privacy.custom_adversary import require_rows_only
from fedprivjax.privacy.terms import TRUST
from fedprivjax.privacy.views import FullView, SentNoise, View, squares_of

NAMED, HIDDEN, SUMMED = "named", "hidden", "summed"  # messages in a view: with senders, without them, functions of them


class Adversary(Decorated):
    """Base class of adversaries, each of which sees a part of a run.

    To define a custom adversary, subclass `LinearAdversary` instead.

    Attributes:
        name: name in results and files.
        sees: text that says what the adversary sees, for guarantees.
        trusts: trust models in which the adversary may be chosen, such as "none" (no trusted server).
        senders: "named" if the adversary knows who sent each message, "hidden" if not, or "summed" if it only sees
            functions of several messages.
        follows_rounds: False if the adversary sees only the final model.
        knows_seeds: True if the adversary knows the random seeds of some machines. It can compute the noise that these
            machines share with other machines.
        besides: text after "every other machine" in the guarantee's assumption "every other machine adds its noise to
            its messages". It excludes machines whose noise the adversary knows. Empty if no machine is excluded.
    """

    kind, decorator = "adversary", FROZEN
    instead = "Define a LinearAdversary"
    name: ClassVar[str] = ""
    sees: ClassVar[str] = ""
    trusts: ClassVar[tuple[str, ...]] = ()
    senders: ClassVar[str] = HIDDEN
    follows_rounds: ClassVar[bool] = True
    knows_seeds: ClassVar[bool] = False
    besides: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any):
        """Raise Refusal for a custom class that defines more than `name`, `sees` and `rows`."""
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] != PACKAGE:
            require_rows_only(cls, LinearAdversary)

    def __str__(self) -> str:
        settings = ", ".join(f"{one.name}={getattr(self, one.name)}" for one in fields(self))  # type: ignore[arg-type]
        return f"{self.name}({settings})" if settings else self.name

    @property
    def text(self) -> str:
        """Text that says what the adversary sees, for guarantees."""
        return self.sees

    @property
    def fewest_machines(self) -> int:
        """Smallest number of machines in a run for which the adversary makes sense; 1 by default."""
        return 1

    def view(self, full: FullView) -> View:
        """Return the part of a run that the adversary sees, such as broadcasts, or functions of messages.

        Args:
            full: everything that the run releases or stores.
        """
        raise Undefined(f"{type(self).__name__} must define view(full)")

    def exposures(self, sent: SentNoise, schedule: Schedule) -> np.ndarray | None:
        """Return the exposure of each machine to the adversary; float64 [machines], or None.

        The exposure of a machine is μ·`noise_std`/sensitivity, with μ of Gaussian differential privacy against this
        adversary. The result is None if the adversary sees every message, hidden by its sender's noise only.

        Args:
            sent: noise of the messages that machines send.
            schedule: participation schedule: which machines take part in each round.
        """
        return None

    def releases(self, sent: SentNoise, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the relative noise that hides each message of a machine from the adversary; [messages].

        It is the standard deviation of the noise that the adversary does not know, divided by `noise_std`; float64.

        Args:
            sent: noise of the messages that machines send.
            schedule: participation schedule: which machines take part in each round.
            machine: index of the machine.
        """
        raise Undefined(f"{type(self).__name__} must define releases(sent, schedule, machine)")

    def known(self, sent: SentNoise | None, schedule: Schedule) -> np.ndarray | None:
        """Return a mask of the messages that the adversary can compute itself, or None if there are none.

        These are the messages of machines whose data and seeds the adversary knows. The mask is bool [rounds,
        per_round]. For an adversary who knows an arbitrary choice of machines, such as a `Coalition`, the mask is for
        the choice with the weakest guarantee.

        Args:
            sent: noise of the messages that machines send, or None if it is not known.
            schedule: participation schedule: which machines take part in each round.
        """
        return None


@final
@dataclass(frozen=True)
class Local(Adversary):
    """Adversary who sees all messages with their senders, and everything that the server broadcasts.

    If machines add noise in their local steps, the adversary also sees every local step. With trust "none" (no trusted
    server), this adversary is the default.
    """

    name, trusts, senders = "local", ("none",), NAMED
    sees = TRUST["none"]

    def view(self, full: FullView) -> View:
        return View(full.queries, full.messages, steps=full.steps)

    def exposures(self, sent: SentNoise, schedule: Schedule) -> np.ndarray | None:
        return None if sent.covariance is None else EachMessage().exposures(sent, schedule)

    def releases(self, sent: SentNoise, schedule: Schedule, machine: int) -> np.ndarray:
        return EachMessage().releases(sent, schedule, machine)


@final
@dataclass(frozen=True)
class Shuffler(Adversary):
    """Adversary who sees a round's messages in random order, after a shuffler. Default with trust "shuffler"."""

    name, trusts = "shuffler", ("shuffler",)
    sees = TRUST["shuffler"]

    def view(self, full: FullView) -> View:
        rounds, per_round = full.messages.shape[:2]
        places = np.tile(np.arange(per_round), (rounds, 1))
        order = shuffler_rng(full.seed).permuted(places, axis=1)
        return View(full.queries, full.messages[np.arange(rounds)[:, None], order])


@final
@dataclass(frozen=True)
class PanPrivate(Adversary):
    """Adversary who sees all queries, and once the server's memory. Default with trust "pan-private".

    The adversary chooses the round after which it reads the memory.
    """

    name, trusts = "pan-private", ("pan-private",)
    sees = TRUST["pan-private"]

    def view(self, full: FullView) -> View:
        return View(full.queries, internal=full.internal)


@final
@dataclass(frozen=True)
class Central(Adversary):
    """Adversary who sees all broadcasts of a trusted server, as machines do. Default with trust "server"."""

    name, trusts = "central", ("server",)
    sees = TRUST["server"]

    def view(self, full: FullView) -> View:
        return View(full.queries)


@dataclass(frozen=True)
class LinearAdversary(Adversary):
    """Base class of adversaries who see all broadcasts and linear combinations of each round's messages.

    Such an adversary always sees the sum of a round's messages. A custom adversary is a frozen dataclass that defines:

    * `name`: its name in results.
    * `sees`: text for guarantees that says what the adversary sees.
    * `rows(machines)`: method that returns the coefficients of further combinations that the adversary sees. The
      argument, int [n], has the index of the machine that sends each of a round's n messages. The result has shape
      [combinations, n].

    In this example, each of two edge servers sums the messages of its machines, and the adversary sees these sums. The
    method `exposures` returns μ of Gaussian differential privacy of each machine, divided by the μ of a machine whose
    message is seen alone.

    >>> @dataclass(frozen=True)
    ... class Edges(LinearAdversary):
    ...     number: int = 2
    ...     name, sees = "edges", "the sum of the messages of every edge server's machines"
    ...
    ...     def rows(self, machines):
    ...         return machines % self.number == np.arange(self.number)[:, None]
    >>> schedule = Schedule(4, np.array([[0, 1, 2, 3]]))
    >>> Edges().exposures(SentNoise(np.ones((1, 4))), schedule) ** 2
    array([0.5, 0.5, 0.5, 0.5])
    """

    name: ClassVar[str] = "linear"
    trusts: ClassVar[tuple[str, ...]] = ("none",)
    senders: ClassVar[str] = SUMMED

    @property
    def sums_only(self) -> bool:
        """True if the adversary sees no function of a round's messages but their sum."""
        return type(self).rows is LinearAdversary.rows and type(self)._matrix is LinearAdversary._matrix

    def rows(self, machines: np.ndarray) -> Any:
        """Return the coefficients of linear functions that the adversary sees of n messages; [functions, n].

        The adversary always sees the sum of all messages, which needs no row here. By default, there are no rows.

        Args:
            machines: index of the machine of each message, int [n]. Some of these machines may drop out and send
                nothing.
        """
        return np.zeros((0, machines.size))

    def view(self, full: FullView) -> View:
        assert full.machines is not None
        hidden = np.ones(full.machines.shape, bool) if full.known is None else ~full.known
        messages = np.where(hidden.reshape(*hidden.shape, *[1] * (full.messages.ndim - 2)), full.messages, 0)
        if self.sums_only:
            return View(full.queries, messages.sum(axis=1, keepdims=True))
        cohorts, cohort = np.unique(full.machines, axis=0, return_inverse=True)
        matrices = np.stack([self._matrix(machines) for machines in cohorts])[cohort.ravel()]
        return View(full.queries, np.einsum("tfj,tj...->tf...", matrices, messages))

    def exposures(self, sent: SentNoise, schedule: Schedule) -> np.ndarray:
        return np.sqrt(composed(self._each(sent, schedule), sent, schedule))

    def releases(self, sent: SentNoise, schedule: Schedule, machine: int) -> np.ndarray:
        each = self._each(sent, schedule)[schedule.scheduled & (schedule.participants == machine)]
        return 1 / np.sqrt(each.max(keepdims=True) if sent.once else each)

    def _each(self, sent: SentNoise, schedule: Schedule) -> np.ndarray:
        """Return (μ·σ/Δ)² of every message, float64 [rounds, per_round], also of machines that drop out, as if sent."""
        present, variances = schedule.present, sent.variances
        if is_plain_sum(self, sent):
            total = np.sum(np.where(present, variances, 0.0), axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                return np.where(schedule.scheduled, 1 / np.where(present, total, total + variances), 0.0)
        found, known, rounds = np.zeros(present.shape), {}, {}
        for t, machines in enumerate(schedule.participants):
            same = rounds.setdefault(machines.tobytes() + present[t].tobytes() + variances[t].tobytes(), t)
            if same < t:
                found[t] = found[same]
                continue
            for late in (None, *np.flatnonzero(schedule.scheduled[t] & ~present[t])):
                sending = present[t] | (np.arange(machines.size) == late)
                key = machines.tobytes() + np.where(sending, variances[t], -1.0).tobytes()
                if key not in known:
                    known[key] = self._squares(sent, machines, variances[t], sending)
                mine = sending if late is None else np.arange(machines.size) == late
                found[t, mine] = known[key][mine]
        return found

    def _matrix(self, machines: np.ndarray) -> Any:
        """Return A: the sum and the further functions of the messages of a round, float64 [functions, n].

        None stands for every message.
        """
        given = np.asarray(self.rows(machines))
        rows = np.full((0, 0), np.nan) if np.iscomplexobj(given) else given.astype(float)
        if rows.ndim != 2 or rows.shape[1] != machines.size or not np.isfinite(rows).all():
            got = f"shape {rows.shape}" if np.isfinite(rows).all() else "a number that is not finite"
            raise Refusal(
                f"rows of {type(self).__name__} must be finite numbers of shape [functions, {machines.size}], one "
                f"column for each message of a round, got {got}"
            )
        return np.vstack([np.ones(machines.size), rows])

    def _squares(self, sent: SentNoise, machines: np.ndarray, variances: np.ndarray, sending: np.ndarray) -> np.ndarray:
        """Return (μ·σ/Δ)² of every message of a round, float64 [n], 0 in slots that send nothing."""
        return squares_of(self._matrix(machines), sent, machines, variances, sending)


@final
@dataclass(frozen=True)
class SecureSum(LinearAdversary):
    """Server with secure aggregation: it sees who sends and the sum of each round's messages, but no single message.

    The noise of all messages of a round hides each of them. Random participation does not make ε smaller, because the
    server sees who sends.

    In the example, four machines send in each of two rounds. The method `exposures` returns μ of Gaussian differential
    privacy of each machine, divided by the μ of a machine whose only message is seen alone. The noise variance of a sum
    of four messages is four times that of one message, so each round adds 1/4 to μ².

    >>> schedule = Schedule(4, np.array([[0, 1, 2, 3], [0, 1, 2, 3]]))
    >>> SecureSum().exposures(SentNoise(np.ones((2, 4))), schedule) ** 2  # two rounds of four noises
    array([0.5, 0.5, 0.5, 0.5])
    """

    name: ClassVar[str] = "secure-sum"
    sees: ClassVar[str] = "every round's sum of the machines' messages, and who sends (secure aggregation)"


@final
@dataclass(frozen=True)
class ThirdParty(LinearAdversary):
    """Adversary from outside who sees all that the server broadcasts, but no messages or senders.

    If a trusted server adds the noise, the server's noise hides each message, and secret participation makes ε smaller.
    If machines add the noise, the noise of all messages of a round hides each of them.
    """

    name: ClassVar[str] = "third-party"
    sees: ClassVar[str] = "all numbers that the server sends to machines, as someone who takes no part"
    trusts: ClassVar[tuple[str, ...]] = ("none", "server", "shuffler")
    senders: ClassVar[str] = HIDDEN

    def view(self, full: FullView) -> View:
        return View(full.queries)


@final
@dataclass(frozen=True)
class FinalModel(LinearAdversary):
    """Adversary from outside who sees only the model after the last round.

    The guarantee is the one against a `ThirdParty`, who also sees all earlier models. The package computes no smaller ε
    for hidden earlier models.
    """

    name: ClassVar[str] = "final-model"
    sees: ClassVar[str] = (
        "the model after the last round alone; printed metrics, other iterates and kept states are not covered"
    )
    trusts: ClassVar[tuple[str, ...]] = ("none", "server", "shuffler")
    senders: ClassVar[str] = HIDDEN
    follows_rounds: ClassVar[bool] = False

    def view(self, full: FullView) -> View:
        return View(full.queries[:0])


@final
@dataclass(frozen=True)
class EachMessage(LinearAdversary):
    """View of every message, as functions of a round's messages."""

    def _matrix(self, machines: np.ndarray) -> None:
        return None


def composed(each: np.ndarray, sent: SentNoise, schedule: Schedule) -> np.ndarray:
    """Return the squares of each machine, [machines], from those of its messages, [rounds, per_round]."""
    found = np.zeros(schedule.machines)
    (np.maximum if sent.once else np.add).at(found, schedule.participants.ravel(), each.ravel())
    return found


def is_plain_sum(adversary: Any, sent: SentNoise) -> bool:
    """Return True if only the sum of messages is seen, in which their noise counts as independent."""
    alone = sent.covariance is None or sent.cancels
    return alone and isinstance(adversary, LinearAdversary) and adversary.sums_only


def require_adversary(adversary: Any) -> None:
    """Raise Refusal unless a setting is an adversary, or None."""
    if adversary is None:
        return
    if not isinstance(adversary, Adversary):
        raise Refusal(
            f'adversary must be an Adversary, such as SecureSum() (in a file "secure-sum"), got {called(adversary)}'
        )
    try:
        hash(adversary)
    except TypeError:
        remedy = "Use tuples instead of lists or arrays in its fields"
        raise Refusal(f"adversary must be hashable, got {adversary!r:.60}. {remedy}") from None
    if not of_package(type(adversary)):
        require_rows_only(type(adversary), LinearAdversary, own=vars(adversary))
    for name, text in {"name": adversary.name, "sees": adversary.text}.items():
        if not isinstance(text, str) or not text.strip():
            raise Refusal(f"{name} of {type(adversary).__name__} must be a text, which guarantees print, got {text!r}")
        require_printable(f"{name} of {type(adversary).__name__}", text, breaks=False)


OF_TRUST: tuple[Adversary, ...] = Local(), Shuffler(), PanPrivate(), Central()
BY_TRUST: dict[str, Adversary] = {one.trusts[0]: one for one in OF_TRUST}
UNSEEN = ("server", "pan-private")  # trust models in which no message is seen
