"""What an experiment file may say, section by section."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known
from fedprivjax.experiment.constraints import ConstraintSettings
from fedprivjax.experiment.data import Source
from fedprivjax.experiment.features import feature_maps
from fedprivjax.experiment.losses import LossSettings
from fedprivjax.experiment.names import resolve
from fedprivjax.experiment.networks import ModelSettings
from fedprivjax.experiment.participation import AnyKind, Section, overlaid
from fedprivjax.experiment.protocol import ProtocolSettings, flattened
from fedprivjax.experiment.section import OWN, STRUCTURAL, Settings, kinds, owners
from fedprivjax.experiment.user_objects import Imported
from fedprivjax.features import MAPS
from fedprivjax.features.mapped import as_picture
from fedprivjax.privacy.target import LEVELS

TRIAL = "trial"


class PartitionSettings(Settings):
    """`[problem] partition`: how the samples are dealt over machines, with the options of `datasets.partition`.

    With `records`, machines have so many each, drawn from the data set, and nothing else is stored; else all of it is
    dealt. They may be swept, `[sweep] records`. `column`, of a table, takes the place of the labels that a kind looks
    at. Machines left with nothing are refused, or with `empty = "drop"` left out.
    """

    kind: Literal["iid", "by_label", "dirichlet", "shards", "quantiles", "by_value"]
    seed: int = Field(default=0, ge=0)
    records: int | None = Field(default=None, ge=1)
    classes_per_machine: int | None = None
    alpha: float | None = None
    shards_per_machine: int | None = None
    column: str | None = None
    sizes: Literal["lognormal", "dirichlet"] | list[float] | None = None
    spread: float | None = None
    empty: Literal["error", "drop"] = "error"


class ProblemSettings(Settings):
    """`[problem]`: a data set by name with its options, a loss, a model, a constraint set, a split over machines.

    A data set is one of the package's, a path to a `.csv`, `.parquet` or `.npz` file, with the options of
    `datasets.read_table`, or "module:function", whose arguments the options are. A file or a module is looked for
    beside the experiment file first. A loss is a name with its keys beside it (`loss = "logistic"`, `score_bound =
    15.0`), or a table with its `kind`; or "module:name", with `loss_options`.
    `features` are public maps of examples, one after the other, before anything is fitted, such as `["scattering",
    "unit_norm"]` (see `fedprivjax.features`); a table gives a map's settings, `{ kind = "pooling", size = 2 }`; and
    `picture` is [height, width] or [height, width, channels] of examples that are one, where the data do not say.
    `smoothing`, the strength of the Moreau envelope, goes with every loss; "theory" is what each protocol's own bound
    chooses, none where its theory needs no smooth loss. A model is a network, likewise a name with its keys beside it
    (`model = "mlp"`, `hidden = [64]`, `start_seed = 1`) or a table, or "module:name", with `model_options` or
    `model_start`; none is the linear predictor. A constraint set likewise (`constraint = "box"`, `low = -1.0`, `high =
    1.0`), or "module:Set" with `constraint_options`; `radius` alone is a ball's. What is declared of the problem, and
    not computed: `lipschitz`, a bound on the gradient of one example's loss (one number, or one for each machine);
    `distance`, a bound on the distance from the start to the optimum; `machine_weights`, each machine's share of the
    objective, adding up to 1, or "sizes", in proportion to machines' numbers of records, which are then public.
    """

    gathered = ("loss", "model", "constraint")

    dataset: str
    options: dict[str, Any] = {}
    features: str | list[str | dict[str, Any]] = []
    picture: list[int] | None = None
    loss: LossSettings | None = None
    model: ModelSettings | None = None
    constraint: ConstraintSettings | None = None
    radius: float | None = None
    lipschitz: float | list[float] | None = None
    distance: float | None = None
    machine_weights: list[float] | Literal["sizes"] | None = None
    partition: PartitionSettings | None = None
    source: Any = Field(default=None, exclude=True, repr=False)
    maps: Any = Field(default=(), exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, raw: Any, info: ValidationInfo) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        if isinstance(raw.get("dataset"), str):
            source = Source.of(raw["dataset"], info.context)
            given = raw.get("options", {})
            located = {"options": source.options(given)} if isinstance(given, Mapping) else {}
            raw = {**raw, "dataset": source.name, "source": source, **located}
        raw = {**raw, "maps": feature_maps(raw.get("features", []), info.context)}
        for field, union in (("loss", LossSettings), ("model", ModelSettings), ("constraint", ConstraintSettings)):
            keys = owners(union)
            if field == "constraint" and raw.get(field) is None:
                keys.pop("radius")  # the ball's by itself
            raw = _gathered(raw, field, keys, len(kinds(union)))
        return raw

    @model_validator(mode="after")
    def _check_options(self):
        self.source.check(self.options)
        if self.picture is not None:
            as_picture(self.picture)
        if self.model is not None and self.loss is not None and self.loss.smoothing is not None:
            raise Refusal(f"problem.smoothing must be left out for model {self.model.kind!r}")
        return self

    @property
    def identity(self) -> list[Any]:
        """What tells apart things of one's own that have one name, from two folders."""
        parts = [each for each in (self.loss, self.model, self.constraint) if isinstance(each, Imported)]
        own = [each for each in self.maps if type(each) not in MAPS.values()]
        return [self.source.identity, *(id(part.found) for part in parts), *map(id, map(type, own))]


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
    if isinstance(given.get("kind"), str) and ":" in given["kind"] and given["kind"] != OWN:
        given = {**given, "kind": OWN, f"{field}_path": given["kind"]}
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
        axes = flattened({key: value for key, value in raw.items() if key not in kept})
        return {**kept, "over": {key: value if isinstance(value, list) else [value] for key, value in axes.items()}}


class TuningSettings(Settings):
    """`[tuning]`: another data set, on which the protocols' own grids are chosen from before they run on this one.

    `problem` and `participation` have keys over those of `[problem]` and `[participation]`; another data set brings its
    own options, and what is declared of this one (`lipschitz`, `distance`, `machine_weights`) need not be true of it;
    an empty `partition = {}` is none. What `participation` says goes before the protocols' own keys and what is swept.
    `sweep` has other values of what `[sweep]` has, such as fewer levels; `seeds` are of each point. A protocol goes on
    with one: that of the best mean of `evaluation.select` over all cells there, of those with the fewest diverged runs.
    """

    problem: dict[str, Any]
    participation: dict[str, Any] = {}
    sweep: dict[str, Any] = {}
    seeds: int = Field(default=3, ge=1)


class EvaluationSettings(Settings, arbitrary_types_allowed=True):
    """`[evaluation]`: what is recorded how often.

    A metric is a name, or "module:name" of a function `(problem, Snapshot) -> scalar` or a `Metric`, recorded under
    its own name.
    `iterate` is what tables, plots and `select` look at, of protocols that have it, such as "last"; else the output.
    `averaged` names the metrics of which tables and plots show the mean over a run's records, not the last; `select`
    the metric by which a protocol's own grid is chosen from. `bars` of a plot are the mean's 95% interval, or half the
    distance of the 5th and 95th percentile. `at` chooses the value of a swept setting, such as {mu = 0.5}, at which
    plots of a run's course are drawn, over rounds and against costs.
    `baselines` are shown next to the protocols, and marked or remarked on where these are worse. "constant", the
    default, always predicts the training data's most frequent class or mean label, of metrics that have such a value
    (accuracy, error, relative error). "non-private" adds each private protocol again as it is (its clip, batch, grid
    and rounds), but with ε = ∞ and hence no noise and, where no step is given, the default step of a run without noise.
    "alone" adds the mean over machines of each metric of the model that a machine fits to its own records without noise
    and without a message to anyone, by 300 full-batch gradient steps, whatever the protocol. Of more than 100 machines
    it takes a fixed random 100. It needs a partition, and neither trials nor a swept constraint set.
    """

    metrics: list[str] | None = None
    iterate: str = "output"
    averaged: list[str] = []
    every: int | None = None
    delta: float = 1e-5
    select: str = "test_accuracy"
    bars: Literal["interval", "percentiles"] = "interval"
    at: dict[str, float] = {}
    baselines: list[Literal["constant", "non-private", "alone"]] = ["constant"]
    own: dict[str, Metric] = Field(default={}, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any, info: ValidationInfo) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("metrics"), list):
            return raw
        paths = [name for name in raw["metrics"] if isinstance(name, str) and ":" in name]
        recorded = (info.context or {}).get("recorded") or {}
        return {**raw, "own": recorded or {path: _metric(path, info.context) for path in paths}}

    def known(self, name: str) -> Metric:
        """What is known of a metric by the name it is recorded under."""
        return next((metric for metric in self.own.values() if metric.name == name), known(name))

    @property
    def recordable(self) -> list[str | Metric] | None:
        """The metrics as a run takes them; None is the problem's default."""
        return None if self.metrics is None else [self.own.get(name, name) for name in self.metrics]


def _metric(path: str, context: Mapping[str, Any] | None) -> Metric:
    """A metric of one's own, which tables show."""
    found = resolve("metric", path, {}, context)
    if isinstance(found, Metric):
        return found
    if not callable(found):
        raise Refusal(f"metric {path!r} must be a function (problem, snapshot) -> scalar or a Metric, got {found!r}")
    places = ("table", "against_epsilon", "over_rounds", "against_costs")
    return Metric(path.rpartition(":")[2], found, of="round", shown=places)


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
    and against a protocol's own output. `rounds` is what stands for a run: its "last" evaluation, or the "mean" over
    all of them, as of a point drawn uniformly from the iterates. "slope" is of the exponent in a swept `axis`, of which
    a cell gives the other axes and a theorem's exponent: it allows none more than `tolerance` above.
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


class Experiment(Section):
    """A whole experiment file."""

    title: str
    notes: str = ""
    problem: ProblemSettings
    protocol: list[ProtocolSettings]
    sweep: SweepSettings = SweepSettings()
    tuning: TuningSettings | None = None
    evaluation: EvaluationSettings = EvaluationSettings()
    expected: list[Expected] = []

    @field_validator("protocol", mode="before")
    @classmethod
    def _list(cls, raw: Any) -> Any:
        return [raw] if isinstance(raw, Mapping) else raw

    @model_validator(mode="after")
    def _check_axes(self):
        for name in self.real_axes.keys() - set(LEVELS):  # beside a swept level, a protocol's own stands by itself
            if self.protocol and all(name in protocol.own for protocol in self.protocol):
                raise Refusal(f"sweep.{name} must be left out where every protocol has a {name} of its own")
        return self

    @property
    def context(self) -> dict[str, Any]:
        """What the file was read with: where user-defined objects are looked for and, of finished results, the custom
        metrics by name, see `parse`."""
        recorded = None if self.problem.source.needed else {each.name: each for each in self.evaluation.own.values()}
        return {"folder": self.problem.source.folder, "recorded": recorded}

    def participation_of(self, settings: ProtocolSettings) -> AnyKind:
        """A protocol's participation: `[participation]`, with the protocol's own keys over it.

        Raises:
            Refusal: what these keys cannot be.
        """
        try:
            return overlaid(self.participation, settings.participation, self.context)
        except Refusal as refusal:
            raise Refusal(f"in the participation of {settings.label!r}: {refusal}") from refusal

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
