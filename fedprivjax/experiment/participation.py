"""`[participation]`: each kind with its own keys, and the participation that it makes at one size."""

from collections.abc import Mapping
from inspect import isclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.errors import refuse
from fedprivjax.experiment.reflection import Reflected, arguments, sections
from fedprivjax.experiment.section import THEORY, Settings
from fedprivjax.experiment.user_objects import Imported
from fedprivjax.plan.participation import SCHEMES, Cohorts, Dropouts, Participation, check_participation

IDENTITY = ("kind", "name")  # which law it is


class AnyKind(Reflected):
    """Settings of every participation scheme.

    Attributes:
        machines: number of machines, or None for the number of clients in the data.
        rounds: number of rounds, or None for as many as the samples allow; "theory" at full participation takes it from
            a protocol's own bound.
        order: order of samples of methods that use one sample a message.
        dropouts: probability with which a scheduled machine sends nothing, for all or for each.
        per_round: number of machines in a round; "theory" in one pass takes it from a protocol's own bound.
    """

    filled = ("machines", "per_round", "dropouts")
    renamed = {"participants": "schedule"}
    machines: int | None = None
    rounds: int | None = Field(default=None, ge=1)
    order: Literal["shuffled", "stored", "cyclic", "reshuffled"] = "shuffled"
    dropouts: float | list[float] = 0.0

    @property
    def planned(self) -> int | None:
        """Number of rounds that the file fixes, of a given schedule all of them by default."""
        schedule = getattr(self, "schedule", None)
        if self.rounds is None and schedule is not None:
            return len(schedule)
        return None if self.rounds == THEORY else self.rounds

    @property
    def one_pass(self) -> bool:
        """Whether a machine takes part once at most."""
        return scheme_of(type(self).maker).at_most_once is True

    def make(self, machines: int, per_round: Any) -> Participation:
        """The participation at one size, with its dropouts."""
        scheme = self.scheme(machines, per_round)
        return scheme if self.dropouts == 0 else Dropouts(scheme, self.dropouts)

    def scheme(self, machines: int, per_round: Any) -> Participation:
        """The scheme without dropouts.

        Args:
            per_round: None if neither the file nor the sweep gives it; every round's where they differ.
        """
        if "per_round" not in type(self).model_fields and per_round is not None:
            raise Refusal(f"per_round must be left out for kind {self.kind!r}, got {per_round}")
        if "per_round" in arguments(type(self).maker) and per_round is None:
            raise Refusal("participation.per_round must be given, or swept")
        made = self.made(machines=machines, per_round=per_round)
        if per_round not in (None, made.per_round):
            raise Refusal(f"per_round must be {made.per_round} for kind {self.kind!r}, got {per_round}")
        return made


class Phases(AnyKind):
    """Every machine once at most, in cohorts whose sizes a protocol's own bound chooses, phase by phase."""

    maker = Cohorts
    per_round: Literal["theory"] = "theory"

    def scheme(self, machines, per_round):
        if not isinstance(per_round, tuple):
            raise Refusal(f"per_round must be left out for kind {self.kind!r}, got {per_round}")
        return Cohorts(machines, per_round)


class Own(Imported, AnyKind):
    """Custom scheme, `kind = "module:Scheme"`, called with the machines, `per_round` if given, and `options`.

    Attributes:
        name: "module:Scheme", from beside the experiment file or installed.
        options: further arguments of the class or function.
    """

    maker, what, paths = Participation, "participation", {"found": "name"}
    name: str
    per_round: int | None = None
    options: dict[str, Any] = {}

    def scheme(self, machines, per_round):
        given = {} if per_round is None else {"per_round": per_round}
        try:
            made = self.found(machines, **given, **self.options)
        except TypeError as error:
            raise Refusal(f"participation {self.name!r} must take machines and its options, got {error}") from error
        check_participation(made)
        return made


def scheme_of(maker: Any) -> Any:
    """Return the class of a scheme's constructor."""
    return maker if isclass(maker) else maker.__self__


TheoryRounds = Annotated[int, Field(ge=1)] | Literal["theory"] | None
COHORT = {"per_round": (int | None, None)}
FILE_KEYS = {kind: COHORT for kind, maker in SCHEMES.items() if scheme_of(maker).varies is not True} | {
    "full": {**COHORT, "rounds": (TheoryRounds, None)},
    "one_pass": {"per_round": (int | Literal["theory"] | None, None)},
}
if TYPE_CHECKING:
    ParticipationSettings = AnyKind
else:
    ParticipationSettings = sections(AnyKind, {**SCHEMES, "phases": Phases, "own": Own}, FILE_KEYS)


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
