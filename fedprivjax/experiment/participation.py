"""`[participation]`: each kind with its own keys, and the participation that it makes at one size."""

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import Field

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.section import THEORY, Settings
from fedprivjax.plan import participation
from fedprivjax.plan.participation import Participation


class AnyKind(Settings):
    """What every kind has: machines in all, rounds (None: as many as the samples allow), and the order of samples.

    The order is of methods that use one sample a message; those with a `sampler` have their epochs by that.
    """

    machines: int | None = None
    rounds: int | None = Field(default=None, ge=1)
    order: Literal["shuffled", "stored", "cyclic", "reshuffled"] = "shuffled"

    @property
    def planned(self) -> int | None:
        """The rounds that these settings fix."""
        return self.rounds

    @abstractmethod
    def make(self, machines: int, per_round: Any) -> Participation:
        """The participation at one size; `per_round` is None where neither the file nor the sweep gives it, and every
        round's where they differ."""


class Full(AnyKind):
    """Every machine in every round; `rounds = "theory"` is what a protocol's own bound chooses."""

    kind: Literal["full"] = "full"
    per_round: int | None = None
    rounds: Annotated[int, Field(ge=1)] | Literal["theory"] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def planned(self) -> int | None:
        return None if self.rounds == THEORY else self.rounds

    def make(self, machines, per_round):
        if per_round not in (None, machines):
            raise Refusal(f"per_round must be machines ({machines}) at full participation, got {per_round}")
        return participation.Full(machines)


class Uniform(AnyKind):
    """A random subset of `per_round` machines, fresh each round."""

    kind: Literal["uniform"] = "uniform"
    per_round: int | None = None

    def make(self, machines, per_round):
        return participation.Uniform(machines, _given(per_round))


class Balanced(AnyKind):
    """Permutations of the machines cut into cohorts: a fresh one every pass with `reshuffle`, else the first again."""

    kind: Literal["balanced"] = "balanced"
    per_round: int | None = None
    reshuffle: bool = True

    def make(self, machines, per_round):
        return participation.Balanced(machines, _given(per_round), self.reshuffle)


class OnePass(AnyKind):
    """Every machine once at most, in cohorts; `per_round = "theory"` is what a protocol's own bound chooses."""

    kind: Literal["one_pass"] = "one_pass"
    per_round: int | Literal["theory"] | None = None
    dropouts: float = 0.0

    def make(self, machines, per_round):
        return participation.OnePass(machines, _given(per_round), self.dropouts)


class Phases(AnyKind):
    """Every machine once at most, in cohorts whose sizes a protocol's own bound chooses, phase by phase."""

    kind: Literal["phases"] = "phases"
    per_round: Literal["theory"] = "theory"

    def make(self, machines, per_round):
        if not isinstance(per_round, tuple):
            raise Refusal(f"per_round must be left out for kind {self.kind!r}, got {per_round}")
        return participation.Cohorts(machines, per_round)


class Given(AnyKind):
    """A schedule of one's own: the machines of each round."""

    kind: Literal["given"] = "given"
    per_round: int | None = None
    schedule: list[list[int]]

    @property
    def planned(self) -> int | None:
        return len(self.schedule) if self.rounds is None else self.rounds

    def make(self, machines, per_round):
        given = participation.Given(machines, self.schedule)
        if per_round not in (None, given.per_round):
            raise Refusal(f"per_round must be {given.per_round}, as in participation.schedule, got {per_round}")
        return given


class Binomial(AnyKind):
    """Each machine by itself with probability `rate`."""

    kind: Literal["binomial"] = "binomial"
    rate: float

    def make(self, machines, per_round):
        _left_out(self.kind, per_round)
        return participation.Varying.binomial(machines, self.rate)


class Between(AnyKind):
    """Every number of machines from `least` to `most` alike."""

    kind: Literal["between"] = "between"
    least: int
    most: int

    def make(self, machines, per_round):
        _left_out(self.kind, per_round)
        return participation.Varying.between(machines, self.least, self.most)


class Varying(AnyKind):
    """Each number of machines, from 1 up, with its probability in `sizes`."""

    kind: Literal["varying"] = "varying"
    sizes: list[float]

    def make(self, machines, per_round):
        _left_out(self.kind, per_round)
        return participation.Varying(machines, tuple(self.sizes))


ParticipationSettings = Annotated[
    Full | Uniform | Balanced | OnePass | Phases | Given | Binomial | Between | Varying, Field(discriminator="kind")
]


def _given(per_round: int | None) -> int:
    if per_round is None:
        raise Refusal("participation.per_round must be given, or swept")
    return per_round


def _left_out(kind: str, per_round: int | None) -> None:
    if per_round is not None:
        raise Refusal(f"per_round must be left out for kind {kind!r}, got {per_round}")
