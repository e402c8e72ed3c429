"""`[participation]`: the keys of each kind, and the scheme that they describe."""

from collections.abc import Mapping
from inspect import isclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.names import named_errors, require_call, resolve, taken_by
from fedprivjax.experiment.section import THEORY, Imported, Reflected, Settings, arguments, refuse, sections
from fedprivjax.plan.participation import SCHEMES, Buffered, Cohorts, Delays, Dropouts, Participation, Timed


class AnyKind(Reflected):
    """Settings of every participation scheme.

    Attributes:
        machines: number of machines, or None for the number of clients in the data.
        rounds: number of rounds, or None for as many as the samples allow; "theory" at full participation takes it from
            a protocol's own bound.
        order: order of samples, for methods that use one sample per message.
        dropouts: probability with which a scheduled machine sends nothing, one number for all machines or one for each.
        per_round: number of machines in a round; "theory" in one pass takes it from a protocol's own bound.
        delays: distribution of the delays of answers, "constant", "exponential" or "log_normal", or None for no delays;
            with kind = "buffered" the default is "exponential".
        hours: mean delay of answers in simulated hours, one number for all machines or one for each.
        deviation: standard deviation of the logarithm of delays, with delays = "log_normal".
        per_record: True to multiply `hours` by the number of records that a machine holds.
    """

    what, base = "participation", Participation
    filled = ("machines", "per_round", "dropouts", "delays")
    machines: int | None = None
    rounds: int | None = Field(default=None, ge=1)
    order: Literal["shuffled", "stored", "cyclic", "reshuffled"] = "shuffled"
    dropouts: float | list[float] = 0.0
    delays: Literal["constant", "exponential", "log_normal"] | None = None
    hours: float | list[float] = 1.0
    deviation: float = 1.0
    per_record: bool = False

    @property
    def planned(self) -> int | None:
        """Number of rounds that the file fixes, by default the length of a given schedule, or None."""
        schedule = getattr(self, "schedule", None)
        if self.rounds is None and schedule is not None:
            return len(schedule)
        return None if self.rounds == THEORY else self.rounds

    @property
    def one_pass(self) -> bool:
        """True if every machine takes part at most once."""
        return scheme_of(type(self).maker).at_most_once is True

    def make(self, machines: int, per_round: Any) -> Participation:
        """Return the participation scheme at one combination of sizes, with its dropouts and delays."""
        scheme = self.scheme(machines, per_round)
        scheme = scheme if self.dropouts == 0 else Dropouts(scheme, self.dropouts)
        if self.delays is not None and not isinstance(scheme, Buffered):
            return Timed(scheme, Delays(self.delays, self.hours, self.deviation, self.per_record))
        given = (self.hours, self.deviation, self.per_record) != (1.0, 1.0, False)
        if self.delays is None and given and not isinstance(scheme, Buffered):
            raise Refusal(f"delays must be given with hours, deviation or per_record, got none for kind {self.kind!r}")
        return scheme

    def scheme(self, machines: int, per_round: Any) -> Participation:
        """Return the scheme without dropouts, and without delays unless they are a part of it.

        Args:
            per_round: machines in a round, or of each round if they differ, or None if neither the file nor the sweep
                gives it.
        """
        if "per_round" not in type(self).model_fields and per_round is not None:
            raise Refusal(f"per_round must be left out for kind {self.kind!r}, got {per_round}")
        if "per_round" in arguments(type(self).maker) and per_round is None:
            raise Refusal("participation.per_round must be given, or swept")
        delays = Delays(self.delays or Delays().kind, self.hours, self.deviation, self.per_record)
        made = self.made(machines=machines, per_round=per_round, delays=delays)
        if per_round not in (None, made.per_round):
            raise Refusal(f"per_round must be {made.per_round} for kind {self.kind!r}, got {per_round}")
        return made


class Phases(AnyKind):
    """Every machine at most once, in phases whose cohort sizes the method's theory chooses.

    It is for `UserAGD` with a positive `strong_convexity`, which runs in phases: each starts from the output of the
    previous one.

    Attributes:
        machines: number of machines, or None for the number of clients in the data.
        rounds: number of rounds, or None for as many as the samples allow.
        order: order of samples, for methods that use one sample per message.
        per_round: always "theory": the method's theory chooses the number of machines in each round.
        dropouts: probability with which a scheduled machine sends nothing, one number for all machines or one for each.
        delays: distribution of the delays of answers, "constant", "exponential" or "log_normal", or None for no delays.
        hours: mean delay of answers in simulated hours, one number for all machines or one for each.
        deviation: standard deviation of the logarithm of delays, with delays = "log_normal".
        per_record: True to multiply `hours` by the number of records that a machine holds.
    """

    maker = Cohorts
    per_round: Literal["theory"] = "theory"

    def scheme(self, machines, per_round):
        if not isinstance(per_round, tuple):
            raise Refusal(f"per_round must be left out for kind {self.kind!r}, got {per_round}")
        return Cohorts(machines, per_round)


class Own(Imported):
    """Custom scheme by import path: a class or function of the machines, `per_round` if given, and further keys.

    The module is installed or next to the experiment file. A scheme that has an argument `rounds` gets the number of
    rounds, too, if it is given.

    Attributes:
        per_round: number of machines in a round.
    """

    maker = Participation
    shared = ("machines", "per_round", "rounds")
    per_round: int | None = None
    if TYPE_CHECKING:
        rounds: int | None

    def scheme(self, machines: int, per_round: Any) -> Participation:
        """Return the custom scheme."""
        given: dict[str, Any] = {} if per_round is None else {"per_round": per_round}
        given |= {"rounds": self.rounds} if self.rounds is not None and "rounds" in taken_by(self.found) else {}
        given |= self.object_settings
        require_call(
            self.found, f"participation {self.kind!r} must take machines and its options, got", machines, **given
        )
        with named_errors("participation", self.kind):
            return self.found(machines, **given)


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
    ParticipationSettings = sections(AnyKind, {**SCHEMES, "phases": Phases}, FILE_KEYS, Own, default="uniform")


class Section(Settings):
    """Section `[participation]` alone."""

    participation: ParticipationSettings


def merged(given: AnyKind, own: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """Return `[participation]` overridden by a protocol's own keys, in the form of a file.

    If these keys change the kind, only the keys common to all kinds are inherited, without those that are arguments of
    a custom scheme.

    Args:
        given: settings of `[participation]`.
        own: keys that override them.
        context: arguments of `parse`, see `resolve`.
    """
    kept, kind = given.model_dump(exclude_none=True), own.get("kind", given.kind)
    if kind == given.kind:
        return {**kept, **own}
    inherited = AnyKind.model_fields.keys() - getattr(given, "object_settings", {}).keys()
    if isinstance(kind, str) and ":" in kind:
        inherited -= taken_by(resolve("participation", kind, {}, context)) - {*Own.shared}
    return {**{key: value for key, value in kept.items() if key in inherited}, **own}


def overlaid(given: AnyKind, own: Mapping[str, Any], context: Mapping[str, Any]) -> AnyKind:
    """Return the settings overridden by a protocol's own keys.

    Raises:
        Refusal: if the kind has no such key, or a value is invalid.
    """
    if not own:
        return given
    table = {"participation": merged(given, own, context)}
    try:
        return Section.model_validate(table, context=dict(context)).participation
    except ValidationError as error:
        refuse(error, Section, table)
