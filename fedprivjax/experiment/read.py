"""Experiment files: TOML, or a bundled experiment's name, into checked settings, and back."""

import inspect
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metrics import METRICS, OF_TRIALS, known
from fedprivjax.experiment.settings import (
    STRUCTURAL,
    Cell,
    Expected,
    Experiment,
    ParticipationSettings,
    ProblemSettings,
    RecordSettings,
    SweepSettings,
)
from fedprivjax.protocols import PROTOCOLS
from fedprivjax.sweeps.members import SWEPT


def bundle() -> Path:
    """The folder of experiments that comes with the package."""
    checkout = Path(__file__).parents[2]
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
            raise Refusal(f"no experiment file {str(spec)!r}")
        require_choice("experiment", str(spec), names)
        path = names[str(spec)]
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"{path.name} is not valid TOML: {error}") from None
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
        raise Refusal(_one_line(error)) from None
    _check(experiment)
    return experiment


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """The settings as `parse` takes them: `parse(to_mapping(experiment)) == experiment`."""
    raw = experiment.model_dump(exclude_none=True)
    raw["protocol"] = [{**{k: v for k, v in p.items() if k != "settings"}, **p["settings"]} for p in raw["protocol"]]
    raw["sweep"] = {**raw["sweep"].pop("over"), **raw["sweep"]}
    return raw


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
        if "kind" not in value["partition"]:
            raise Refusal("problem.partition.kind must be given")
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
        raise Refusal(f"[[protocol]] must be a table with a name, got {entry!r}")
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
        raise Refusal(f"{where} must be a table, got {section!r}")
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
        raise Refusal("protocol must have at least one entry, got []")
    for label in labels:
        if labels.count(label) > 1 or not label.strip(".") or "/" in label:
            raise Refusal(f"protocol labels must be distinct, not empty and without '/', got {label!r}")
    require_choice("dataset", experiment.problem.dataset, datasets.DATASETS)
    if experiment.sweep.trials is not None:
        require_at_least("sweep.trials", experiment.sweep.trials, 1)
    for axis, values in experiment.sweep.over.items():
        whole = axis not in STRUCTURAL or all(v >= 1 and v.is_integer() for v in values)
        if not values or not whole or len(set(values)) < len(values):
            kind = "distinct positive integers" if axis in STRUCTURAL else "distinct numbers"
            raise Refusal(f"sweep.{axis} must be a list of {kind}, got {values}")
        for value in values:
            require_positive(axis, value, infinite=axis in ("mu", "epsilon"))
    _check_metrics(experiment)
    _check_selection(experiment)
    for expected in experiment.expected:
        if expected.rule != "shown":  # a published figure may stand beside ours without a run of its own
            require_choice("protocol label in [[expected]]", expected.protocol, labels)
        if expected.rule == "above":
            require_choice("other protocol in [[expected]]", expected.other, labels)
    require_between("record.delta", experiment.record.delta, 0, 1)


def _check_selection(experiment: Experiment) -> None:
    swept = [*experiment.real_axes, *(name for settings in experiment.protocol for name in settings.grid)]
    for name in experiment.sweep.anew:
        require_choice("axis in sweep.anew", name, swept)
    for expected in experiment.expected:
        for cell in expected.cells if expected.rule == "within_se" else []:
            if cell.value is None or not cell.sd or not cell.runs or cell.runs < 2:
                raise Refusal(f"expected cell {cell.at} must have a value, an sd and at least two runs")


def _check_metrics(experiment: Experiment) -> None:
    recorded = experiment.record.metrics
    for name in METRICS if recorded is None else recorded:
        require_choice("metric", name, METRICS)
    if recorded == []:
        raise Refusal("record.metrics must name at least one metric, got []")
    require_choice("record.select", experiment.record.select, METRICS)
    for expected in experiment.expected:
        choices = METRICS if experiment.sweep.trials is None else [*METRICS, *OF_TRIALS]
        require_choice("metric in [[expected]]", expected.metric, choices)
        if known(expected.metric).of == "round":
            require_choice(f"iterate of '{expected.metric}' in [[expected]]", expected.iterate, [OUTPUT])


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
        raise Refusal(f"no setting {key!r} to change")


def _step(here: Any, part: str, key: str) -> Any:
    if isinstance(here, list):
        return here[_index(here, part, key)]
    if isinstance(here, dict):
        return here.setdefault(part, {})
    raise Refusal(f"no setting {key!r} to change")


def _index(entries: list, part: str, key: str) -> int:
    labels = [entry.get("label", entry.get("name")) if isinstance(entry, dict) else None for entry in entries]
    if part in labels:
        return labels.index(part)
    if part.isdigit() and int(part) < len(entries):
        return int(part)
    raise Refusal(f"no entry {part!r} in {key!r} (there are {len(entries)}, numbered from 0)")
