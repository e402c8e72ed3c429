"""What an experiment file may say, section by section."""

from itertools import product
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

STRUCTURAL = {"machines": "machines in all", "per_round": "machines in a round", "rounds": "rounds"}
TRIAL = "trial"


class Settings(BaseModel):
    """A section of an experiment file: unknown keys and other types are refused, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ProblemSettings(Settings):
    """`[problem]`: a data set by name with its options, a loss, a ball, a split over machines.

    `smoothing` is the strength of the loss's Moreau envelope, `score_bound` what a logistic score is clipped to.
    """

    dataset: str
    options: dict[str, Any] = {}
    loss: Literal["softmax", "logistic", "squared", "hinge", "absolute", "pinball", "huber"] | None = None
    smoothing: float | None = None
    quantile: float | None = None
    huber_width: float | None = None
    score_bound: float | None = None
    radius: float | None = None
    partition: dict[str, Any] | None = None


class ParticipationSettings(Settings):
    """`[participation]`: who takes part, for how many rounds, in which order samples are used.

    Random numbers of machines, for minibatch protocols: "binomial" with its `rate`, "between" with `least` and `most`,
    "varying" with `sizes`, the probability of each number from 1 up.
    """

    kind: Literal["full", "uniform", "balanced", "given", "binomial", "between", "varying"] = "uniform"
    machines: int | None = None
    per_round: int | None = None
    rounds: int | None = None
    order: Literal["shuffled", "stored"] = "shuffled"
    reshuffle: bool = True
    schedule: list[list[int]] | None = None
    rate: float | None = None
    least: int | None = None
    most: int | None = None
    sizes: list[float] | None = None


class ProtocolSettings(Settings):
    """`[[protocol]]`: its name, the label it is shown under, a grid of its own, and the protocol's own settings.

    A batch "moments" is what Lowy & Razaviyayn's rule K = n·√ε/(2·√R) makes of every swept ε.
    """

    name: str
    label: str
    grid: dict[str, list[float]] = {}
    settings: dict[str, Any] = {}

    @property
    def own(self) -> set[str]:
        """What is set here, and no sweep reaches: of privacy targets, one stands for all."""
        targets = {"mu", "epsilon", "noise_std"}
        return set(self.settings) | (targets if targets & set(self.settings) else set())


class SweepSettings(Settings):
    """`[sweep]`: values that every protocol is run over, and how.

    With `trials`, the data set is drawn anew for each (its option `trial`), `seeds` are runs within a trial, a
    protocol's own grid is chosen from trial by trial, and a trial's figure is the mean of its runs.
    """

    over: dict[str, list[float]] = {}
    seeds: int | list[int] = 8
    trials: int | None = None
    common_noise: bool = True
    anew: list[str] = []
    noise_method: str = "auto"
    memory_budget: int = 2 * 2**30


class RecordSettings(Settings):
    """`[record]`: what is recorded how often, the metric by which a protocol's own grid is chosen from, and what a
    plot's bars are: the mean's 95% interval, or half the distance of the 5th and 95th percentile."""

    metrics: list[str] | None = None
    every: int | None = None
    delta: float = 1e-5
    select: str = "test_accuracy"
    bars: Literal["interval", "percentiles"] = "interval"


class Cell(Settings):
    """One published or measured number: where it stands in the sweep, its value, and its sd over how many runs."""

    at: dict[str, float] = {}
    value: float | None = None
    sd: float | None = None
    runs: int | None = None


class Expected(Settings):
    """`[[expected]]`: numbers to compare a protocol's metric with, and the rule of the verdict.

    "within_se" allows `tolerance` standard errors of the difference of two means; a `share` of all such cells must
    hold, and none may be beyond `limit` standard errors. `iterate` names another iterate of the protocol than its
    output, such as "last"; "above" holds it against the other protocol's output.
    """

    protocol: str
    metric: str = "test_accuracy"
    iterate: str = "output"
    source: str = ""
    rule: Literal["within", "within_sd", "within_se", "at_least", "above", "shown"] = "within"
    tolerance: float = 0.0
    share: float = 1.0
    limit: float | None = None
    other: str | None = None
    cells: list[Cell] = []


class Experiment(Settings):
    """A whole experiment file."""

    title: str
    notes: str = ""
    problem: ProblemSettings
    participation: ParticipationSettings
    protocol: list[ProtocolSettings]
    sweep: SweepSettings = SweepSettings()
    record: RecordSettings = RecordSettings()
    expected: list[Expected] = []

    @property
    def real_axes(self) -> dict[str, list[float]]:
        """The swept real-valued settings."""
        return {name: values for name, values in self.sweep.over.items() if name not in STRUCTURAL}

    @property
    def shapes(self) -> list[dict[str, int]]:
        """Every combination of the swept integers (machines, per_round, rounds): one program each."""
        axes = {name: [int(v) for v in values] for name, values in self.sweep.over.items() if name in STRUCTURAL}
        if self.sweep.trials is not None:
            axes[TRIAL] = list(range(self.sweep.trials))
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
