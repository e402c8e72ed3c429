"""What an experiment file may say, section by section."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.losses import LossSettings
from fedprivjax.experiment.networks import ModelSettings
from fedprivjax.experiment.participation import ParticipationSettings
from fedprivjax.experiment.protocol import ProtocolSettings
from fedprivjax.experiment.section import STRUCTURAL, Settings, kinds, owners

TRIAL = "trial"


class PartitionSettings(Settings):
    """`[problem] partition`: how the samples are dealt over machines, with the options of `datasets.partition`.

    With `records`, machines have so many each, drawn from the data set, and nothing else is stored; else all of it is
    dealt. They may be swept, `[sweep] records`.
    """

    kind: Literal["iid", "by_label", "dirichlet"]
    seed: int = Field(default=0, ge=0)
    records: int | None = Field(default=None, ge=1)
    classes_per_machine: int | None = None
    alpha: float | None = None


class ProblemSettings(Settings):
    """`[problem]`: a data set by name with its options, a loss, a model, a ball, a split over machines.

    A loss is a name with its keys beside it (`loss = "logistic"`, `score_bound = 15.0`), or a table with its `kind`.
    `smoothing`, the strength of the Moreau envelope, goes with every loss; "theory" is what each protocol's own bound
    chooses, none where its theory needs no smooth loss. A model is a network, likewise a name with its keys beside it
    (`model = "mlp"`, `hidden = [64]`, `start_seed = 1`) or a table; none is the linear predictor. What is declared of
    the problem, and not computed: `lipschitz`, a bound on the gradient of one example's loss (one number, or one for
    each machine); `distance`, a bound on the distance from the start to the optimum; `machine_weights`, each machine's
    share of the objective, adding up to 1.
    """

    gathered = ("loss", "model")

    dataset: str
    options: dict[str, Any] = {}
    loss: LossSettings | None = None
    model: ModelSettings | None = None
    radius: float | None = None
    lipschitz: float | list[float] | None = None
    distance: float | None = None
    machine_weights: list[float] | None = None
    partition: PartitionSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        for field, union in (("loss", LossSettings), ("model", ModelSettings)):
            raw = _gathered(raw, field, owners(union), len(kinds(union)))
        return raw

    @model_validator(mode="after")
    def _check_options(self):
        datasets.check_options(self.dataset, self.options)
        if self.model is not None and self.loss is not None and self.loss.smoothing is not None:
            raise Refusal(f"problem.smoothing must be left out for model {self.model.kind!r}")
        return self


def _gathered(raw: Mapping[str, Any], field: str, keys_of: Mapping[str, list[str]], members: int) -> Mapping[str, Any]:
    """`[problem]` with a field's own keys, which stand beside its name, in a table of it."""
    keys = [key for key in raw if key in keys_of]
    if raw.get(field) is None:
        if keys:
            whose = keys_of[keys[0]]
            wanted = f"a {field}" if len(whose) == members else f"{field} {' or '.join(map(repr, whose))}"
            raise Refusal(f"problem.{keys[0]} must go with {wanted}, got none")
        return raw
    given = raw[field] if isinstance(raw[field], Mapping) else {"kind": raw[field]}
    rest = {key: value for key, value in raw.items() if key not in keys}
    return {**rest, field: {**given, **{key: raw[key] for key in keys}}}


class SweepSettings(Settings):
    """`[sweep]`: values that every protocol is run over, and how.

    With `trials`, the data set is drawn anew for each (its option `trial`), `seeds` are runs within a trial, a
    protocol's own grid is chosen from trial by trial, and a trial's figure is the mean of its runs.
    """

    gathered = ("over",)

    over: dict[str, list[float]] = {}
    seeds: int | list[int] = 8
    trials: int | None = Field(default=None, ge=1)
    common_noise: bool = True
    resample: list[str] = []
    noise_method: str = "auto"
    memory_budget: int = 2 * 2**30

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        kept = {key: value for key, value in raw.items() if key in cls.model_fields and key != "over"}
        axes = {key: value for key, value in raw.items() if key not in kept}
        return {**kept, "over": {key: value if isinstance(value, list) else [value] for key, value in axes.items()}}


class RecordSettings(Settings):
    """`[record]`: what is recorded how often.

    `iterate` is what tables, plots and `select` look at, of protocols that have it, such as "last"; else the output.
    `averaged` names the metrics of which tables and plots show the mean over a run's records, not the last; `select`
    the metric by which a protocol's own grid is chosen from. `bars` of a plot are the mean's 95% interval, or half the
    distance of the 5th and 95th percentile.
    """

    metrics: list[str] | None = None
    iterate: str = "output"
    averaged: list[str] = []
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
    output, such as "last"; "above" holds it against the same of the other protocol, or its output where it has none,
    and against a protocol's own output. `rounds` is what stands for a run: its "last" record, or the "mean" over all of
    them, as of a point drawn uniformly from the iterates. "slope" is of the exponent in a swept `axis`, of which a cell
    gives the other axes and a theorem's exponent: it allows none more than `tolerance` above.
    """

    protocol: str
    metric: str = "test_accuracy"
    iterate: str = "output"
    rounds: Literal["last", "mean"] = "last"
    source: str = ""
    rule: Literal["within", "within_sd", "within_se", "at_least", "above", "slope", "shown"] = "within"
    tolerance: float = 0.0
    share: float = 1.0
    limit: float | None = None
    other: str | None = None
    axis: str | None = None
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

    @field_validator("participation", mode="before")
    @classmethod
    def _default_kind(cls, raw: Any) -> Any:
        return {"kind": "uniform", **raw} if isinstance(raw, Mapping) else raw

    @field_validator("protocol", mode="before")
    @classmethod
    def _list(cls, raw: Any) -> Any:
        return [raw] if isinstance(raw, Mapping) else raw

    @property
    def real_axes(self) -> dict[str, list[float]]:
        """The swept real-valued settings."""
        return {name: values for name, values in self.sweep.over.items() if name not in STRUCTURAL}

    @property
    def shapes(self) -> list[dict[str, int]]:
        """Every combination of the swept integers (machines, per_round, rounds, records): one program each."""
        axes = {name: [int(v) for v in values] for name, values in self.sweep.over.items() if name in STRUCTURAL}
        if self.sweep.trials is not None:
            axes[TRIAL] = list(range(self.sweep.trials))
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
