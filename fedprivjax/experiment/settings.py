"""Sections of an experiment file and their keys."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

from pydantic import Field

from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.datasets.partition import KINDS, partition
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import TRIAL, known
from fedprivjax.experiment.expected import Expected
from fedprivjax.experiment.names import callback_of, of_results, resolve
from fedprivjax.experiment.participation_section import AnyKind, Section, overlaid
from fedprivjax.experiment.problem_section import ConstraintSettings, LossSettings, ModelSettings, Source, feature_maps
from fedprivjax.experiment.protocol_section import ProtocolSettings, flattened
from fedprivjax.experiment.section import STRUCTURAL, Reflected, Settings
from fedprivjax.sweeps.memory import MEMORY_BUDGET, MIN_CHUNKS

OF_KIND = ("classes_per_machine", "alpha", "shards_per_machine", "spread")  # options of kinds of partitions


class PartitionSettings(Reflected):
    """`[problem] partition`: assignment of the records to machines, with the options of `datasets.partition`.

    Attributes:
        kind: rule of the assignment, as in `fedprivjax list partitions`.
        seed: seed of the assignment.
        records: records of each machine, sampled from the dataset; None assigns all records.
        column: column of a table that the kind uses in place of the labels.
        sizes: distribution of dataset sizes, or a number for each machine, for kinds "iid" and "quantiles".
        empty: "error" rejects machines without records, "drop" leaves them out.
    """

    maker = partition
    keys = OF_KIND
    kind: Literal[tuple(KINDS)]  # pyright: ignore[reportInvalidTypeForm]
    seed: int = Field(default=0, ge=0)
    records: int | None = Field(default=None, ge=1)
    column: str | None = None
    sizes: Literal["lognormal", "dirichlet"] | list[float] | None = None
    empty: Literal["error", "drop"] = "error"
    classes_per_machine: int | None = None
    alpha: float | None = None
    shards_per_machine: int | None = None
    spread: float | None = None


class ProblemSettings(Settings):
    """`[problem]`: a dataset with its options, a loss, a model, a constraint set and a partition over machines.

    A loss, a model and a constraint set are each a name, such as `loss = "logistic"`, or a table of the name and its
    settings, such as `loss = { kind = "logistic", score_bound = 15.0 }`. The name is built-in, or "module:name".

    Attributes:
        dataset: name of a dataset, path of a `.csv`, `.parquet` or `.npz` file, or "module:function".
        options: options of the dataset, columns of the table, or arguments of the function.
        features: public feature maps of examples, applied in this order, each a name or a table with its `kind`.
        picture: [height, width] or [height, width, channels] of examples that are pictures.
        loss: loss of one example; None is the usual one for the dataset's labels.
        model: network in place of the linear predictor.
        constraint: constraint set of the parameters.
        radius: radius of a ball about zero, without `constraint`.
        lipschitz: declared bound on the gradient norm of one example's loss, for all machines or for each.
        distance: declared bound on the distance from the start to the optimum.
        machine_weights: weight of each machine in the objective, with sum 1, or "sizes", in proportion to the
            (then public) dataset sizes.
        partition: assignment of the records to machines.
    """

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

    @classmethod
    def prepared(cls, raw: Mapping[str, Any], context: Any) -> Any:
        if isinstance(raw.get("dataset"), str):
            source = Source.of(raw["dataset"], context)
            given = raw.get("options", {})
            located = {"options": source.options(given)} if isinstance(given, Mapping) else {}
            raw = {**raw, "dataset": source.name, "source": source, **located}
        return {**raw, "maps": () if of_results(context) else feature_maps(raw.get("features", []), context)}


class SweepSettings(Settings):
    """`[sweep]`: values that every protocol is run with, seeds, and execution.

    With `trials`, the dataset is sampled again for each trial (its option `trial`), and `seeds` are the runs within a
    trial. A protocol's own grid is tuned in each trial separately. The value of a trial is the mean of its runs.

    Attributes:
        over: swept settings by name, each with its values, in a file keys of `[sweep]` itself.
        seeds: number of seeds, or their list.
        trials: number of sampled datasets, for datasets with an option `trial`.
        common_noise: whether configurations share the noise of a seed.
        resample: swept settings along which participation, samples and noise are sampled again.
        noise_method: sampler of the machines' noise; "auto" is the cheapest exact one.
        precision: precision of products on an accelerator, "float32" or the faster "tf32".
        memory_budget: approximate memory of a chunk of runs on a device, in bytes.
        min_chunks: smallest number of chunks, if there are as many runs for each device.
        mesh: numbers of devices that divide the runs and the machines of every run, such as
            `{ runs = 2, machines = 4 }`; all devices divide the runs by default.
        keep: `["params"]` stores the parameters of every run in the results, for `run_of`.
    """

    over: dict[str, list[float]] = {}
    seeds: int | list[int] = 8
    trials: int | None = Field(default=None, ge=1)
    common_noise: bool = True
    resample: list[str] = []
    noise_method: str = "auto"
    precision: str = "float32"
    memory_budget: int = MEMORY_BUDGET
    min_chunks: int = Field(default=MIN_CHUNKS, ge=1)
    mesh: dict[str, int] | None = None
    keep: list[Literal["params"]] = []

    @classmethod
    def prepared(cls, raw: Mapping[str, Any], context: Any) -> Any:
        kept = {key: value for key, value in raw.items() if key in cls.model_fields and key != "over"}
        axes = flattened({key: value for key, value in raw.items() if key not in kept})
        return {**kept, "over": {key: value if isinstance(value, list) else [value] for key, value in axes.items()}}


class TuningSettings(Settings):
    """`[tuning]`: another dataset, on which the protocols' own grids are tuned before they run on this one.

    `problem` and `participation` override keys of `[problem]` and `[participation]`. Another dataset brings its own
    options. Declared numbers of this dataset (`lipschitz`, `distance`, `machine_weights`) are not inherited, except
    `machine_weights = "sizes"`. An empty `partition = {}` removes the partition. Keys of `participation` also override
    the protocols' own keys and swept values. The chosen point has the fewest diverged runs and, among these, the best
    mean of `evaluation.select` over all configurations.

    Attributes:
        problem: keys of `[problem]` that differ, such as another dataset.
        participation: keys of `[participation]` that differ.
        sweep: keys of `[sweep]` that differ, such as fewer privacy levels.
        seeds: number of seeds of each point.
    """

    problem: dict[str, Any]
    participation: dict[str, Any] = {}
    sweep: dict[str, Any] = {}
    seeds: int = Field(default=3, ge=1)


class EvaluationSettings(Settings, arbitrary_types_allowed=True):
    """`[evaluation]`: metrics, how often they are computed, and which of them tables and plots show.

    The baseline "constant" predicts the most frequent class or the mean label of the training data. "non-private" adds
    every private protocol with ε = ∞, hence without noise; where no step is given, it takes the default step of a run
    without noise. "alone" adds the mean over machines of the metrics of a model that each machine fits to its own
    records by 300 full-batch gradient steps, without noise or messages. With more than 100 machines, it uses a fixed
    random 100 of them; it needs a partition, and neither trials nor a swept constraint set.

    Attributes:
        metrics: names of metrics, or "module:name" of a function `(problem, Snapshot) -> scalar` or a `Metric`; None is
            the problem's default.
        iterate: iterate that tables, plots and `select` show, of protocols that have it, such as "last".
        averaged: metrics shown as the mean over a run's evaluations, in place of the last one.
        rounds_to: values of metrics by name, such as {test_accuracy = 0.97}. A table shows the first evaluated round at
            which a run reaches the value.
        every: rounds between evaluations; None evaluates about 20 times.
        delta: δ at which ε is stated.
        select: metric by which a protocol's own grid is tuned.
        at: values of swept settings at which plots without an axis of these are drawn, such as {mu = 0.5}.
        baselines: baselines shown next to the protocols.
        callback: "module:function" of a function `(index, round, metrics)` that `run` calls for every evaluation when
            a chunk of runs arrives. It may differ when a run is resumed.
    """

    metrics: list[str] | None = None
    iterate: str = "output"
    averaged: list[str] = []
    rounds_to: dict[str, float] = {}
    every: int | None = Field(default=None, ge=1)
    delta: float = 1e-5
    select: str = "test_accuracy"
    at: dict[str, float] = {}
    baselines: list[Literal["constant", "non-private", "alone"]] = ["constant"]
    callback: str | None = None
    custom_metrics: dict[str, Metric] = Field(default={}, exclude=True, repr=False)
    on_evaluation: Any = Field(default=None, exclude=True, repr=False)

    @classmethod
    def prepared(cls, raw: Mapping[str, Any], context: Any) -> Any:
        if of_results(context):
            return {**raw, "custom_metrics": context["recorded"]}
        if isinstance(raw.get("callback"), str):
            raw = {**raw, "on_evaluation": callback_of(raw["callback"], context)}
        if not isinstance(raw.get("metrics"), list):
            return raw
        paths = [name for name in raw["metrics"] if isinstance(name, str) and ":" in name]
        return {**raw, "custom_metrics": {path: _metric(path, context) for path in paths}}

    def known(self, name: str) -> Metric:
        """Return the metric that is recorded under this name, custom metrics included."""
        return next((metric for metric in self.custom_metrics.values() if metric.name == name), known(name))

    @property
    def chosen_metrics(self) -> list[str | Metric] | None:
        """The `metrics` argument of a run, or None for the problem's default."""
        return None if self.metrics is None else [self.custom_metrics.get(name, name) for name in self.metrics]


def _metric(path: str, context: Mapping[str, Any] | None) -> Metric:
    """Return a custom metric. A plain function becomes a `Metric` that tables and plots show."""
    found = resolve("metric", path, {}, context)
    if isinstance(found, Metric):
        return found
    if not callable(found):
        raise Refusal(f"metric {path!r} must be a function (problem, snapshot) -> scalar or a Metric, got {found!r}")
    places = ("table", "against_epsilon", "over_rounds", "against_costs")
    return Metric(path.rpartition(":")[2], found, of="round", shown=places)


class Experiment(Section):
    """Validated settings of an experiment file. Each field is a key or a section of the file.

    Attributes:
        title: title of the experiment's tables, plots and HTML page.
        notes: text that follows the title.
        problem: section `[problem]`: dataset, loss, model, constraint set and partition.
        participation: section `[participation]`: which machines take part in a round, and the number of rounds.
        protocol: sections `[[protocol]]`, one for each method, with its privacy target and hyper-parameters.
        sweep: section `[sweep]`: values of swept settings, and seeds.
        tuning: section `[tuning]`: choice of hyper-parameters on other data. None if there is no such section.
        evaluation: section `[evaluation]`: metrics, δ, and comparison with baselines.
        expected: sections `[[expected]]`: numbers with which results are compared, such as those of a paper.
    """

    title: str
    notes: str = ""
    problem: ProblemSettings
    protocol: list[ProtocolSettings]
    sweep: SweepSettings = SweepSettings()
    tuning: TuningSettings | None = None
    evaluation: EvaluationSettings = EvaluationSettings()
    expected: list[Expected] = []

    @property
    def context(self) -> dict[str, Any]:
        """The arguments `folder` and `recorded` of the function that parsed the experiment file, by name.

        The same arguments are needed to parse a part of the file again. `folder` is the folder in which modules of
        user-defined objects are searched. If the experiment is to be run, `recorded` is None. If the file belongs to
        finished results, `recorded` has the custom metrics of these results by name.
        """
        source, custom = self.problem.source, self.evaluation.custom_metrics.values()
        return {"folder": source.folder, "recorded": None if source.needed else {each.name: each for each in custom}}

    def participation_of(self, settings: ProtocolSettings) -> AnyKind:
        """Return the participation settings of one protocol.

        They are those of the section `[participation]`. Keys of participation in the protocol's section override them.

        Args:
            settings: section `[[protocol]]` of the protocol.

        Raises:
            Refusal: if the protocol's keys of participation are invalid.
        """
        with within(f"in the participation of {settings.label!r}"):
            return overlaid(self.participation, settings.participation, self.context)

    @property
    def real_axes(self) -> dict[str, list[float]]:
        """Values of the swept settings that are real numbers, such as a clip, by name.

        Swept integers such as the number of rounds are in `shapes`.
        """
        return {name: values for name, values in self.sweep.over.items() if name not in STRUCTURAL}

    @property
    def shapes(self) -> list[dict[str, int]]:
        """All combinations of the swept sizes, each as a dictionary such as {"machines": 20, "rounds": 100}.

        Sizes are integers that change the shapes of arrays: `machines`, `per_round`, `rounds` and `records`. If
        datasets are sampled several times (`trials`), the number of the sample is one of them. Each combination is
        compiled separately.
        """
        axes = {name: [int(v) for v in values] for name, values in self.sweep.over.items() if name in STRUCTURAL}
        if self.sweep.trials is not None:
            axes[TRIAL] = list(range(self.sweep.trials))
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
