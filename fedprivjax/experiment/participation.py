"""`[participation]`: each kind with its own keys, and the participation that it makes at one size."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.errors import refuse
from fedprivjax.experiment.names import resolve
from fedprivjax.experiment.section import THEORY, Settings, summaries
from fedprivjax.plan import participation
from fedprivjax.plan.participation import Participation

IDENTITY = ("kind", "name")  # which law it is


class AnyKind(Settings):
    """Settings of every participation scheme.

    Attributes:
        machines: number of machines, or None for the number of clients in the data.
        rounds: number of rounds, or None for as many as the samples allow.
        order: order of samples of methods that use one sample a message.
        dropouts: probability with which a scheduled machine sends nothing, for all or for each.
        per_round: number of machines in a round.
        shares: messages of each machine, or None for those that its records allow.
        one_pass: whether a machine takes part once at most.
    """

    one_pass: ClassVar[bool] = False
    machines: int | None = None
    rounds: int | None = Field(default=None, ge=1)
    order: Literal["shuffled", "stored", "cyclic", "reshuffled"] = "shuffled"
    dropouts: float | list[float] = 0.0

    @property
    def planned(self) -> int | None:
        """The rounds that these settings fix."""
        return self.rounds

    def make(self, machines: int, per_round: Any) -> Participation:
        """The participation at one size, with its dropouts."""
        law = self.law(machines, per_round)
        return law if self.dropouts == 0 else participation.Dropouts(law, self.dropouts)

    @abstractmethod
    def law(self, machines: int, per_round: Any) -> Participation:
        """Who is asked; `per_round` is None where neither the file nor the sweep gives it, and every round's where they
        differ."""


class Full(AnyKind):
    """Every machine in every round; `rounds = "theory"` is what a protocol's own bound chooses."""

    kind: Literal["full"] = "full"
    per_round: int | None = None
    rounds: Annotated[int, Field(ge=1)] | Literal["theory"] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def planned(self) -> int | None:
        return None if self.rounds == THEORY else self.rounds

    def law(self, machines, per_round):
        if per_round not in (None, machines):
            raise Refusal(f"per_round must be machines ({machines}) at full participation, got {per_round}")
        return participation.Full(machines)


class Uniform(AnyKind):
    """A random subset of `per_round` machines, fresh each round."""

    kind: Literal["uniform"] = "uniform"
    per_round: int | None = None

    def law(self, machines, per_round):
        return participation.Uniform(machines, _given(per_round))


class Balanced(AnyKind):
    """Permutations of the machines cut into cohorts: a fresh one every pass with `reshuffle`, else the first again.

    Attributes:
        reshuffle: True samples a permutation for every pass.
    """

    kind: Literal["balanced"] = "balanced"
    per_round: int | None = None
    reshuffle: bool = True

    def law(self, machines, per_round):
        return participation.Balanced(machines, _given(per_round), self.reshuffle)


class OnePass(AnyKind):
    """Every machine once at most, in cohorts; `per_round = "theory"` is what a protocol's own bound chooses."""

    one_pass: ClassVar[bool] = True
    kind: Literal["one_pass"] = "one_pass"
    per_round: int | Literal["theory"] | None = None

    def law(self, machines, per_round):
        return participation.OnePass(machines, _given(per_round))


class Phases(AnyKind):
    """Every machine once at most, in cohorts whose sizes a protocol's own bound chooses, phase by phase."""

    one_pass: ClassVar[bool] = True
    kind: Literal["phases"] = "phases"
    per_round: Literal["theory"] = "theory"

    def law(self, machines, per_round):
        if not isinstance(per_round, tuple):
            raise Refusal(f"per_round must be left out for kind {self.kind!r}, got {per_round}")
        return participation.Cohorts(machines, per_round)


class Given(AnyKind):
    """A given schedule: the machines of each round.

    Attributes:
        schedule: list of the machines' indices for each round.
    """

    kind: Literal["given"] = "given"
    per_round: int | None = None
    schedule: list[list[int]]

    @property
    def planned(self) -> int | None:
        return len(self.schedule) if self.rounds is None else self.rounds

    def law(self, machines, per_round):
        given = participation.Given(machines, self.schedule)
        if per_round not in (None, given.per_round):
            raise Refusal(f"per_round must be {given.per_round}, as in participation.schedule, got {per_round}")
        return given


class Binomial(AnyKind):
    """Each machine by itself with probability `rate`, at least one, and no more than `tail` standard deviations above
    the mean.

    Attributes:
        rate: probability that a machine takes part in a round.
        tail: largest cohort, in standard deviations above the mean.
    """

    kind: Literal["binomial"] = "binomial"
    rate: float
    tail: float = participation.TAIL

    def law(self, machines, per_round):
        _left_out(self.kind, per_round)
        return participation.Varying.binomial(machines, self.rate, self.tail)


class Bernoulli(Binomial):
    """ "binomial", by its other name."""

    kind: Literal["bernoulli"] = "bernoulli"  # pyright: ignore[reportIncompatibleVariableOverride]


class Between(AnyKind):
    """Every number of machines from `min_machines` to `max_machines`, equally likely.

    Attributes:
        min_machines: smallest number of machines in a round.
        max_machines: largest number of machines in a round.
    """

    kind: Literal["between"] = "between"
    min_machines: int
    max_machines: int

    def law(self, machines, per_round):
        _left_out(self.kind, per_round)
        return participation.Varying.between(machines, self.min_machines, self.max_machines)


class Varying(AnyKind):
    """Each number of machines, from 1 up, with its probability in `sizes`.

    Attributes:
        sizes: probability of each number of machines, from 1 up.
    """

    kind: Literal["varying"] = "varying"
    sizes: list[float]

    def law(self, machines, per_round):
        _left_out(self.kind, per_round)
        return participation.Varying(machines, tuple(self.sizes))


class Cyclic(AnyKind):
    """The machines in turn, in the stored order."""

    kind: Literal["cyclic"] = "cyclic"
    per_round: int | None = None

    def law(self, machines, per_round):
        return participation.Cyclic(machines, _given(per_round))


class Weighted(AnyKind):
    """Distinct machines by public weights, a list of a number for each machine, or a list of such lists, of rounds in
    turn; each at most `max_uses` times in all (one integer, or one for each).

    Attributes:
        weights: weight of each machine, or such a list for each round in turn.
        max_uses: largest number of rounds of a machine, for all or for each.
    """

    kind: Literal["weighted"] = "weighted"
    per_round: int | None = None
    weights: list[float] | list[list[float]]
    max_uses: int | list[int] | None = None

    def law(self, machines, per_round):
        return participation.Weighted(machines, _given(per_round), self.weights, self.max_uses)


class Diurnal(AnyKind):
    """Machines that come and go by the hour: `peaks` is each one's best round of the `period`, and `strength` how much
    rarer it is drawn at other hours, from 1 on at some not at all; `max_uses` as with "weighted".

    Attributes:
        peaks: best round of the period for each machine.
        strength: amplitude of the weights about their mean.
        period: number of rounds of a day.
        max_uses: largest number of rounds of a machine, for all or for each.
    """

    kind: Literal["diurnal"] = "diurnal"
    per_round: int | None = None
    peaks: list[float]
    strength: float = 1.0
    period: int = 24
    max_uses: int | list[int] | None = None

    def law(self, machines, per_round):
        given = _given(per_round)
        return participation.Weighted.diurnal(machines, given, self.peaks, self.strength, self.period, self.max_uses)


class BySize(AnyKind):
    """Machines by what remains of their shares, which are the data's, or `shares` messages each."""

    kind: Literal["by_size"] = "by_size"
    per_round: int | None = None
    shares: list[int] | None = None

    def law(self, machines, per_round):
        return participation.BySize(machines, _given(per_round), self.shares)


class Own(AnyKind):
    """A custom scheme, `kind = "module:Law"`, called with the machines, `per_round` if given, and `options`.

    Attributes:
        name: "module:Law", from beside the experiment file or installed.
        options: further arguments of the class or function.
    """

    kind: Literal["own"] = "own"
    name: str
    per_round: int | None = None
    options: dict[str, Any] = {}
    made_by: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any, info: ValidationInfo) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
            return raw
        return {**raw, "made_by": resolve("participation", raw["name"], {}, info.context)}

    def law(self, machines, per_round):
        given = {} if per_round is None else {"per_round": per_round}
        try:
            made = self.made_by(machines, **given, **self.options)
        except TypeError as error:
            raise Refusal(f"participation {self.name!r} must take machines and its options, got {error}") from error
        participation.check_participation(made)
        return made


ParticipationSettings = Annotated[
    Full
    | Uniform
    | Balanced
    | Cyclic
    | OnePass
    | Phases
    | Given
    | Binomial
    | Bernoulli
    | Between
    | Varying
    | Weighted
    | Diurnal
    | BySize
    | Own,
    Field(discriminator="kind"),
]
PARTICIPATIONS = summaries(ParticipationSettings)


class Section(Settings):
    """`[participation]` by itself; a kind that is left out is "uniform", and one with a colon is one's own."""

    participation: ParticipationSettings

    @field_validator("participation", mode="before")
    @classmethod
    def _default_kind(cls, raw: Any) -> Any:
        return _named(raw) if isinstance(raw, Mapping) else raw


def merged(given: AnyKind, own: Mapping[str, Any]) -> dict[str, Any]:
    """`[participation]` with keys of one's own over it, as a file says it; beside another kind, what every kind has."""
    kept = given.model_dump(exclude_none=True)
    other = "kind" in own and any(kept.get(key) != value for key, value in _named(own).items() if key in IDENTITY)
    return {**{key: value for key, value in kept.items() if not other or key in AnyKind.model_fields}, **own}


def overlaid(given: AnyKind, own: Mapping[str, Any], context: Mapping[str, Any]) -> AnyKind:
    """The settings with keys of one's own over them.

    Raises:
        Refusal: a key that the kind has not, or a value of the wrong kind.
    """
    if not own:
        return given
    try:
        return Section.model_validate({"participation": merged(given, own)}, context=dict(context)).participation
    except ValidationError as error:
        refuse(error, Section)


def _named(raw: Mapping[str, Any]) -> dict[str, Any]:
    """With the kind that a file leaves out, or gives by an import path."""
    kind = raw.get("kind", "uniform")
    return {**raw, "kind": "own", "name": kind} if ":" in str(kind) else {**raw, "kind": kind}


def _given(per_round: int | None) -> int:
    if per_round is None:
        raise Refusal("participation.per_round must be given, or swept")
    return per_round


def _left_out(kind: str, per_round: int | None) -> None:
    if per_round is not None:
        raise Refusal(f"per_round must be left out for kind {kind!r}, got {per_round}")
