"""Experiment files: TOML read into checked settings, and settings into problems, participation and protocols."""

import inspect
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedprivjax import datasets
from fedprivjax.checks import require_at_least, require_between, require_choice, require_positive
from fedprivjax.constraints import Ball, WholeSpace
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.grid import SWEPT
from fedprivjax.losses import Absolute, Hinge, Huber, LinearLoss, Logistic, Pinball, Softmax, Squared
from fedprivjax.metrics import METRICS, OF_PARAMETERS, OF_TRIALS
from fedprivjax.participation import Balanced, Full, Given, Participation, Uniform
from fedprivjax.privacy.noise_rules import moments_batch
from fedprivjax.problem import Problem
from fedprivjax.protocols import PROTOCOLS
from fedprivjax.smoothing import Moreau

LOSSES = {
    "softmax": "cross-entropy of a softmax over classes, linear predictor",
    "logistic": "binary cross-entropy, labels 0 and 1, linear predictor",
    "squared": "half the squared error, linear predictor",
    "hinge": "hinge loss, labels 0 and 1, linear predictor",
    "absolute": "absolute error, linear predictor",
    "pinball": "quantile regression at `quantile`, linear predictor",
    "huber": "squared within `huber_width` and linear beyond, linear predictor",
}
LOSS_OF = {"quantile": "pinball", "huber_width": "huber", "score_bound": "logistic"}  # whose setting it is
STRUCTURAL = {"machines": "machines in all", "per_round": "machines in a round", "rounds": "rounds"}
TRIAL = "trial"
MOMENTS = "moments"


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
    """`[participation]`: who takes part, for how many rounds, in which order samples are used."""

    kind: Literal["full", "uniform", "balanced", "given"] = "uniform"
    machines: int | None = None
    per_round: int | None = None
    rounds: int | None = None
    order: Literal["shuffled", "stored"] = "shuffled"
    reshuffle: bool = True
    schedule: list[list[int]] | None = None


class ProtocolSettings(Settings):
    """`[[protocol]]`: its name, the label it is shown under, a grid of its own, and the protocol's own settings.

    A batch "moments" is what Lowy & Razaviyayn's rule K = n·√ε/(2·√R) makes of every swept ε.
    """

    name: str
    label: str
    grid: dict[str, list[float]] = {}
    settings: dict[str, Any] = {}


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
    hold, and none may be beyond `limit` standard errors.
    """

    protocol: str
    metric: str = "test_accuracy"
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


def bundle() -> Path:
    """The folder of experiments that comes with the package."""
    checkout = Path(__file__).parent.parent
    installed = Path(sysconfig.get_path("data")) / "share" / "fedprivjax"
    return (checkout if (checkout / "pyproject.toml").is_file() else installed) / "experiments"


def bundled() -> dict[str, Path]:
    """The experiments that come with the package: name -> file."""
    folder = bundle()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def load(spec: str | Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment.

    Args:
        spec: a TOML file, or the name of a bundled experiment.
        changes: values by dotted key ("sweep.seeds", "protocol.0.clip"), applied before checking.

    Raises:
        ValueError: no such experiment (the nearest name is suggested), TOML that does not parse, an unknown key or a
            value of the wrong kind.

    >>> load("quickstart").problem.dataset
    'digits'
    """
    path = Path(spec)
    if not (path.suffix == ".toml" and path.is_file()):
        names = bundled()
        if path.suffix == ".toml":
            raise ValueError(f"no experiment file {str(spec)!r}")
        require_choice("experiment", str(spec), names)
        path = names[str(spec)]
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not valid TOML: {error}") from None
    for key, value in (changes or {}).items():
        _change(raw, key, value)
    return parse(raw)


def parse(raw: Mapping[str, Any]) -> Experiment:
    """Check a nested mapping of settings, as TOML gives it."""
    sections = {name: _section(name, value) for name, value in raw.items()}
    _refuse_unknown("the experiment", sections, Experiment.model_fields)
    try:
        experiment = Experiment(**sections)
    except ValidationError as error:
        raise ValueError(_one_line(error)) from None
    _check(experiment)
    return experiment


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """The settings as `parse` takes them: `parse(to_mapping(experiment)) == experiment`."""
    raw = experiment.model_dump(exclude_none=True)
    raw["protocol"] = [{**{k: v for k, v in p.items() if k != "settings"}, **p["settings"]} for p in raw["protocol"]]
    raw["sweep"] = {**raw["sweep"].pop("over"), **raw["sweep"]}
    return raw


def make_problem(settings: ProblemSettings, machines: int, trial: int | None = None) -> Problem:
    """The problem of an experiment; a partition, where asked for, deals the samples over `machines`."""
    options = settings.options if trial is None else {**settings.options, TRIAL: trial}
    data = datasets.load(settings.dataset, **options)
    table = None
    if settings.partition is not None and isinstance(data, datasets.Stream):
        raise ValueError(f"problem.partition must be left out: each machine of {data.name!r} computes its own examples")
    if settings.partition is not None:
        options = dict(settings.partition)
        seed = options.pop("seed", 0)
        require_at_least("problem.partition.seed", seed, 0)
        rng = np.random.default_rng(seed)
        table = datasets.table(datasets.partition(data.labels, machines, rng=rng, **options))[0]
    elif data.machine_of is not None:
        table = datasets.table(datasets.by_machine(data.machine_of, machines))[0]
    constraint = WholeSpace() if settings.radius is None else Ball(settings.radius)
    return from_dataset(data, _loss(settings, data), constraint=constraint, table=table)


def make_participation(settings: ParticipationSettings, shape: Mapping[str, int]) -> tuple[Participation, int | None]:
    """Participation and rounds (None: as many as the samples allow) at one combination of the swept integers."""
    chosen = {**settings.model_dump(include=set(STRUCTURAL)), **shape}
    machines, per_round, rounds = chosen["machines"], chosen["per_round"], chosen["rounds"]
    if machines is None:
        raise ValueError("participation.machines must be given, or swept")
    if rounds is not None:
        require_at_least("rounds", rounds, 1)
    if settings.kind == "given":
        if settings.schedule is None:
            raise ValueError("participation.schedule must be given for kind 'given'")
        given = Given(machines, settings.schedule)
        if per_round not in (None, given.per_round):
            raise ValueError(f"per_round must be {given.per_round}, as in participation.schedule, got {per_round}")
        return given, len(settings.schedule) if rounds is None else rounds
    if settings.schedule is not None:
        raise ValueError(f"participation.schedule must go with kind 'given', got kind '{settings.kind}'")
    if settings.kind == "full":
        if per_round not in (None, machines):
            raise ValueError(f"per_round must be machines ({machines}) at full participation, got {per_round}")
        return Full(machines), rounds
    if per_round is None:
        raise ValueError("participation.per_round must be given, or swept")
    if settings.kind == "balanced":
        return Balanced(machines, per_round, settings.reshuffle), rounds
    return Uniform(machines, per_round), rounds


def make_protocol(settings: ProtocolSettings) -> Any:
    """The protocol object of one `[[protocol]]` entry."""
    return PROTOCOLS[settings.name][0](**settings.settings)


def by_batch(
    experiment: Experiment, settings: ProtocolSettings, problem: Problem, rounds: int | None
) -> list[tuple[ProtocolSettings, dict[str, float]]]:
    """A protocol's settings, with the point of the sweep where they hold: one for each ε with the batch "moments"."""
    batch = settings.settings.get("batch")
    if not isinstance(batch, str):
        return [(settings, {})]
    require_choice("batch", batch, (MOMENTS,))
    over = experiment.sweep.over.get("epsilon")
    if over is None or "epsilon" in settings.settings or rounds is None or problem.table is None:
        raise ValueError(
            f"batch {MOMENTS!r} must go with a swept epsilon, given rounds and machines of their own records"
        )
    fewest = int(problem.table.sizes.min())
    found = []
    for epsilon in over:
        own = {"epsilon": epsilon, "batch": moments_batch(records=fewest, rounds=rounds, epsilon=epsilon)}
        found.append((settings.model_copy(update={"settings": settings.settings | own}), {"epsilon": epsilon}))
    return found


def _loss(settings: ProblemSettings, data: datasets.Dataset | datasets.Stream) -> LinearLoss | None:
    given = "none" if settings.loss is None else f"loss {settings.loss!r}"
    for key, owner in LOSS_OF.items():
        if getattr(settings, key) is not None and settings.loss != owner:
            raise ValueError(f"problem.{key} must go with loss {owner!r}, got {given}")
    if settings.loss is None:
        if settings.smoothing is not None:
            raise ValueError("problem.smoothing must go with a loss, got none")
        return None
    loss = _plain_loss(settings, data)
    require_positive("problem.smoothing", settings.smoothing, optional=True)
    return loss if settings.smoothing is None else Moreau(loss, settings.smoothing)


def _plain_loss(settings: ProblemSettings, data: datasets.Dataset | datasets.Stream) -> LinearLoss:
    match settings.loss:
        case "softmax":
            return Softmax(data.classes or 0)
        case "squared":
            return Squared(data.label_bound)
        case "logistic":
            return Logistic(settings.score_bound)
        case "pinball":
            return Pinball(_needed(settings, "quantile"))
        case "huber":
            return Huber(_needed(settings, "huber_width"))
    return Hinge() if settings.loss == "hinge" else Absolute()


def _needed(settings: ProblemSettings, key: str) -> float:
    value = getattr(settings, key)
    if value is None:
        raise ValueError(f"problem.{key} must be given for loss {settings.loss!r}")
    return value


def _section(name: str, value: Any) -> Any:
    """A section with its free-form parts gathered: a protocol's settings, a sweep's axes."""
    if name == "protocol":
        return [_protocol_section(entry) for entry in (value if isinstance(value, list) else [value])]
    if name == "sweep":
        return _sweep_section(value)
    models = {"problem": ProblemSettings, "participation": ParticipationSettings, "record": RecordSettings}
    if name in models:
        _refuse_unknown(f"[{name}]", value, models[name].model_fields)
    if name == "problem" and isinstance(value.get("partition"), Mapping):
        known = inspect.signature(datasets.partition).parameters
        options = [option for option in known if option not in ("labels", "machines", "rng")]
        _refuse_unknown("problem.partition", value["partition"], ["seed", *options])
    if name == "expected" and isinstance(value, list):
        for entry in value:
            _expected_section(entry)
    return value


def _sweep_section(section: Any) -> dict[str, Any]:
    own = [name for name in SweepSettings.model_fields if name != "over"]
    _refuse_unknown("[sweep]", section, [*own, *STRUCTURAL, *SWEPT])
    axes = {key: values for key, values in section.items() if key not in own}
    axes = {key: values if isinstance(values, list) else [values] for key, values in axes.items()}
    return {"over": axes, **{key: section[key] for key in own if key in section}}


def _protocol_section(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ValueError(f"[[protocol]] must be a table with a name, got {entry!r}")
    name, grid = entry["name"], entry.get("grid", {})
    require_choice("protocol", name, PROTOCOLS)
    known = [field.name for field in fields(PROTOCOLS[name][0])]
    _refuse_unknown(f"[[protocol]] {name}", entry, ["name", "label", "grid", *known])
    _refuse_unknown(f"the grid of {name}", grid, SWEPT)
    settings = {key: value for key, value in entry.items() if key not in ("name", "label", "grid")}
    return {"name": name, "label": entry.get("label", name), "grid": grid, "settings": settings}


def _expected_section(entry: Any) -> None:
    _refuse_unknown("[[expected]]", entry, Expected.model_fields)
    cells = entry.get("cells", [])
    for cell in cells if isinstance(cells, list) else []:
        _refuse_unknown("a cell of [[expected]]", cell, Cell.model_fields)
        _refuse_unknown("a cell's place in [[expected]]", cell.get("at", {}), [*STRUCTURAL, *SWEPT])


def _refuse_unknown(where: str, section: Any, known: Iterable[str]) -> None:
    if not isinstance(section, Mapping):
        raise ValueError(f"{where} must be a table, got {section!r}")
    for key in section:
        require_choice(f"key in {where}", key, known)


def _one_line(error: ValidationError) -> str:
    """The first complaint, under the key as the file has it."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("over", "int", "list[int]"))
    if first["type"] == "missing":
        return f"{where} must be given"
    return f"{where} must {first['msg'].removeprefix('Input should ')}, got {first['input']!r}"


def _check(experiment: Experiment) -> None:
    labels = [p.label for p in experiment.protocol]
    if not labels:
        raise ValueError("protocol must have at least one entry, got []")
    for label in labels:
        if labels.count(label) > 1 or not label.strip(".") or "/" in label:
            raise ValueError(f"protocol labels must be distinct, not empty and without '/', got {label!r}")
    require_choice("dataset", experiment.problem.dataset, datasets.DATASETS)
    for axis, values in experiment.sweep.over.items():
        whole = axis not in STRUCTURAL or all(v >= 1 and v.is_integer() for v in values)
        if not values or not whole or len(set(values)) < len(values):
            kind = "distinct positive integers" if axis in STRUCTURAL else "distinct numbers"
            raise ValueError(f"sweep.{axis} must be a list of {kind}, got {values}")
        for value in values:
            require_positive(axis, value, infinite=axis in ("mu", "epsilon"))
    _check_metrics(experiment)
    for expected in experiment.expected:
        if expected.rule != "shown":  # a published figure may stand beside ours without a run of its own
            require_choice("protocol label in [[expected]]", expected.protocol, labels)
        if expected.rule == "above":
            require_choice("other protocol in [[expected]]", expected.other, labels)
    require_between("record.delta", experiment.record.delta, 0, 1)


def _check_metrics(experiment: Experiment) -> None:
    recorded = experiment.record.metrics
    for name in METRICS if recorded is None else recorded:
        require_choice("metric", name, METRICS)
    if recorded == []:
        raise ValueError("record.metrics must name at least one metric, got []")
    require_choice("record.select", experiment.record.select, METRICS)
    for expected in experiment.expected:  # a protocol's other iterate is recorded as metric_iterate
        if not expected.metric.startswith(tuple(f"{name}_" for name in OF_PARAMETERS)):
            known = METRICS if experiment.sweep.trials is None else [*METRICS, *OF_TRIALS]
            require_choice("metric in [[expected]]", expected.metric, known)


def _change(raw: Any, key: str, value: Any) -> None:
    *path, last = key.split(".")
    here = raw
    for part in path:
        here = _step(here, part, key)
    if isinstance(here, list):
        here[_index(here, last, key)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise ValueError(f"no setting {key!r} to change")


def _step(here: Any, part: str, key: str) -> Any:
    if isinstance(here, list):
        return here[_index(here, part, key)]
    if isinstance(here, dict):
        return here.setdefault(part, {})
    raise ValueError(f"no setting {key!r} to change")


def _index(entries: list, part: str, key: str) -> int:
    labels = [entry.get("label", entry.get("name")) if isinstance(entry, dict) else None for entry in entries]
    if part in labels:
        return labels.index(part)
    if part.isdigit() and int(part) < len(entries):
        return int(part)
    raise ValueError(f"no entry {part!r} in {key!r} (there are {len(entries)}, numbered from 0)")
