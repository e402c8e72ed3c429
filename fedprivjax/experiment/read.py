"""Reading of experiment files: from TOML, or a bundled experiment's name, to validated settings, and back.

Settings are validated section by section, and then across sections.
"""

import re
import sysconfig
from collections.abc import Mapping
from math import inf, isnan
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedprivjax.bounded_read import TOML_BYTES, Unreadable, text_of, toml_value
from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.checks.values import require_between, require_choice, require_printable
from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import METRICS, OF_MEAN, recorded_name
from fedprivjax.experiment.build import ALONE, natural_machines, with_baselines
from fedprivjax.experiment.expected import ALONG_AXIS, Expected
from fedprivjax.experiment.names import of_results
from fedprivjax.experiment.section import STRUCTURAL, Imported, labelled, refuse
from fedprivjax.experiment.settings import Experiment, ProblemSettings, SweepSettings
from fedprivjax.privacy.target import LEVELS, NO_TARGET, SET_TARGET, UNLIMITED
from fedprivjax.problem.checks import require_constraint

LIST = "See fedprivjax list experiments"
IN_TUNING = "in [tuning]"  # before messages about the tuning experiment


def check(experiment: Experiment) -> None:
    """Raise Refusal if settings of an experiment are invalid, or contradict settings of another section.

    The message names the setting as in the experiment file.
    """
    require_printable("title", experiment.title, breaks=False)
    require_printable("notes", experiment.notes)
    for one in experiment.protocol:
        require_printable("label of a protocol", one.label, breaks=False)
    _check_problem(experiment.problem)
    _check_sweep(experiment)
    _check_participation(experiment)
    _check_metrics(experiment)
    _check_expected(experiment)
    if ALONE in experiment.evaluation.baselines and (trials := experiment.sweep.trials) is not None:
        wanted = f"evaluation.baselines must leave 'alone' out of trials, got {trials} trials"
        raise Refusal(f"{wanted}. Sweep seeds instead")
    for name in experiment.evaluation.at:
        require_choice("key in evaluation.at", name, experiment.real_axes)
    require_between("evaluation.delta", experiment.evaluation.delta, 0, 1)


def _check_labels(labels: list[str]) -> None:
    if not labels:
        raise Refusal("protocol must have at least one entry, got []")
    for label in labels:
        if labels.count(label) > 1 or not label.strip(".") or "/" in label:
            raise Refusal(f"protocol labels must be distinct, not empty and without '/', got {label!r}")


def _check_problem(problem: ProblemSettings) -> None:
    if problem.radius is not None and problem.constraint is not None:
        raise Refusal(f"problem.radius must be left out next to a constraint, got {problem.radius}")
    if problem.model is not None and problem.loss is not None and problem.loss.smoothing is not None:
        raise Refusal(f"problem.loss.smoothing must be left out for model {problem.model.kind!r}")


def _check_sweep(experiment: Experiment) -> None:
    sweep = experiment.sweep
    options = [name for name in SweepSettings.model_fields if name != "over"]
    for axis, values in sweep.over.items():
        require_choice("key in [sweep]", axis, [*options, *_axes(experiment)])
        _check_distinct(f"sweep.{axis}", values, whole=axis in STRUCTURAL)
    for name in experiment.real_axes.keys() - set(LEVELS):  # a protocol may set a level that is swept for others
        if all(name in settings.fixed for settings in experiment.protocol):
            raise Refusal(f"sweep.{name} must be left out if every protocol sets {name}")
    for settings in experiment.protocol:
        for axis, values in settings.grid.items():
            with within(settings.place):
                require_choice("key in its grid", axis, settings.sweepable)
            _check_distinct(f"the grid's {axis} of {settings.label!r}", values)
        for axis in experiment.real_axes.keys() - settings.fixed - settings.grid.keys():
            if axis not in (*settings.sweepable, *_custom_sizes(experiment)):
                raise Refusal(
                    f"sweep.{axis} must be a setting of every protocol, and {settings.label!r} has none. "
                    f"Move it to the grid of the protocols that do"
                )
        with settings.within(experiment):
            settings.check_values(experiment.real_axes)
    if "records" in sweep.over and experiment.problem.partition is None:
        raise Refusal("sweep.records must go with [problem.partition], got none")
    swept = [*experiment.real_axes, *(name for settings in experiment.protocol for name in settings.grid)]
    for name in sweep.resample:
        require_choice("axis in sweep.resample", name, swept)


def check_targets(experiment: Experiment) -> None:
    """Raise Refusal, naming all protocols without a privacy target, if there are any."""
    bare = [one.label for one in experiment.protocol if not one.has_target(experiment.real_axes)]
    if bare:
        raise Refusal(
            f"{NO_TARGET} for every [[protocol]], got none for {', '.join(map(repr, bare))}. "
            f"{SET_TARGET}, there or in [sweep]; {UNLIMITED}"
        )


def _check_participation(experiment: Experiment) -> None:
    for settings in experiment.protocol:
        experiment.participation_of(settings)
        for key, value in settings.participation.items():
            if key == "machines":
                raise Refusal(f"machines must be left out of the participation of {settings.label!r}, got {value}")
            if key in experiment.sweep.over:
                raise Refusal(f"{key} must be swept or in the participation of {settings.label!r}, not both")


def _axes(experiment: Experiment) -> list[str]:
    """Return the names of all settings that can be swept for at least one protocol."""
    names = [*STRUCTURAL, *(name for settings in experiment.protocol for name in settings.sweepable)]
    return list(dict.fromkeys([*names, *_custom_sizes(experiment)]))


def _custom_sizes(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the numbers of a custom constraint set, which can be swept."""
    if not isinstance(experiment.problem.constraint, Imported):
        return ()
    constraint = experiment.problem.constraint.made()
    require_constraint(constraint)
    return constraint.sizes


def _check_distinct(name: str, values: list[float], *, whole: bool = False) -> None:
    if not values or len(set(values)) < len(values) or (whole and not all(v >= 1 and v.is_integer() for v in values)):
        kind = "distinct positive integers" if whole else "distinct numbers"
        raise Refusal(f"{name} must be a list of {kind}, got {values}")


def _check_metrics(experiment: Experiment) -> None:
    evaluation, own = experiment.evaluation, [one.name for one in experiment.evaluation.custom_metrics.values()]
    names = [*METRICS, *OF_MEAN, *own]
    if evaluation.metrics == []:
        raise Refusal("evaluation.metrics must name at least one metric, got []")
    require_choice("evaluation.select", evaluation.select, [*METRICS, *own])
    for metric in evaluation.averaged:
        require_choice("metric in evaluation.averaged", metric, names)
    for metric, value in evaluation.rounds_to.items():
        require_choice("metric in evaluation.rounds_to", metric, names)
        require_between(f"evaluation.rounds_to.{metric}", value, -inf, inf)
    if evaluation.rounds_to and (trials := experiment.sweep.trials) is not None:
        raise Refusal(f"evaluation.rounds_to must be left out of trials, got {trials} trials. Sweep seeds instead")
    for expected in experiment.expected:
        _check_expected_metric(expected, experiment, names)


def _check_expected_metric(expected: Expected, experiment: Experiment, names: list[str]) -> None:
    known, trials = experiment.evaluation.known, experiment.sweep.trials
    require_choice("metric in [[expected]]", expected.metric, names)
    if axis := known(expected.metric).axis:
        wanted = f"metric in [[expected]] must be a scalar, got {expected.metric!r} with the axis {axis!r}"
        raise Refusal(f"{wanted}. Use {expected.metric}_mean" if axis == "client" else wanted)
    if known(recorded_name(expected.metric)).of in ("round", "own", "models"):
        require_choice(f"iterate of '{expected.metric}' in [[expected]]", expected.iterate, [OUTPUT])
    if expected.rounds_to is not None:
        require_between(f"rounds_to of {expected.protocol!r} in [[expected]]", expected.rounds_to, -inf, inf)
        if expected.rounds != "last" or trials is not None:
            wanted = "rounds_to in [[expected]] must go without rounds = 'mean' and trials"
            raise Refusal(f"{wanted}, got {expected.rounds!r} and {trials} trials")


def _check_expected(experiment: Experiment) -> None:
    labels = [settings.label for settings in experiment.protocol]
    for expected in experiment.expected:
        if expected.rule != "shown":  # "shown": a published number may be listed without a run
            require_choice("protocol label in [[expected]]", expected.protocol, labels)
        if expected.rule in ("above", "paired_above"):
            require_choice("other protocol in [[expected]]", expected.other, labels)
        if (expected.rule in ALONG_AXIS) != (expected.axis is not None):
            wanted = "axis in [[expected]] must go with rule 'slope', 'increases' or 'decreases'"
            raise Refusal(f"{wanted}, got {expected.axis!r} with {expected.rule!r}")
        if not 0 <= expected.tolerance < inf:
            raise Refusal(f"tolerance in [[expected]] must be finite and not negative, got {expected.tolerance}")
        for cell in expected.cells:
            if any(isnan(number) for number in (*cell.at.values(), cell.value or 0.0)):
                raise Refusal(f"expected cell {cell.at} must have numbers, got nan")
            if expected.axis in cell.at:
                raise Refusal(f"expected cell {cell.at} must leave {expected.axis} out: it is the rule's axis")
            for name in cell.at:
                require_choice("key in a cell's place in [[expected]]", name, _axes(experiment))
            if expected.rule == "within_se" and (cell.value is None or not cell.sd or not cell.runs or cell.runs < 2):
                raise Refusal(f"expected cell {cell.at} must have a value, an sd and at least two runs")


def bundle() -> Path:
    """Return the folder of bundled experiments."""
    checkout = Path(__file__).parents[2]
    installed = Path(sysconfig.get_path("data")) / "share" / "fedprivjax"
    return (checkout if (checkout / "pyproject.toml").is_file() else installed) / "experiments"


def bundled() -> dict[str, Path]:
    """Return the files of the bundled experiments, by name."""
    folder = bundle()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def titles() -> dict[str, str]:
    """Return the titles of the bundled experiments, by name. The files are not validated."""
    return {name: read_toml(path)["title"] for name, path in bundled().items()}


def load(spec: str | Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Return the settings of an experiment from its TOML file, after validation.

    Args:
        spec: path of a TOML file, or name of a bundled experiment.
        changes: values by dotted key ("sweep.seeds", "protocol.0.clip"), applied before validation. The value None
            removes a key.

    Raises:
        ValueError: if the experiment does not exist (the nearest name is suggested), the file is not valid TOML, a key
            is unknown, or a value is invalid.

    >>> load("quickstart").problem.dataset
    'digits'
    """
    path = Path(spec)
    if not (path.suffix == ".toml" and path.is_file()):
        names = bundled()
        if path.suffix == ".toml":
            raise Refusal(f"no experiment file {str(spec)!r}. {LIST}")
        if str(spec) not in names and path.exists():
            raise Refusal(f"experiment must be a .toml file or a bundled name, got {str(spec)!r}. {LIST}")
        require_choice("experiment", str(spec), names)
        path = names[str(spec)]
    raw = read_toml(path)
    for key, value in (changes or {}).items():
        _change(raw, key, value)
    return parse(raw, path.parent.resolve())


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file as a mapping. Raise Refusal if it is not valid TOML."""
    text = ""
    try:
        text = text_of(path, TOML_BYTES)
        return toml_value(text)
    except Unreadable as error:
        single = re.search(r"^\s*\[(protocol|expected)\]", text, re.MULTILINE)
        remedy = f". Write every [{single[1]}] as [[{single[1]}]]" if single else ""
        raise Refusal(f"{path.name} is not valid TOML: {error}{remedy}") from None


def parse(
    raw: Mapping[str, Any], folder: Path | None = None, *, recorded: Mapping[str, Metric] | None = None
) -> Experiment:
    """Validate a nested mapping of settings, such as parsed TOML.

    Args:
        folder: folder that is searched first for modules of user-defined objects.
        recorded: custom metrics by name, if the settings are those of finished results. Methods and user-defined
            objects are then not made (see `names.Unimported`), and the data need not exist. None for an experiment to
            run.
    """
    context = {"folder": folder, "recorded": recorded}
    try:
        experiment = Experiment.model_validate(raw, context=context)
    except ValidationError as error:
        refuse(error, Experiment, raw)
    experiment = with_baselines(experiment)
    _check_labels([settings.label for settings in experiment.protocol])
    if of_results(context):
        return experiment
    check(experiment)
    given = experiment.participation
    if given.machines is None and "machines" not in experiment.sweep.over:
        experiment = experiment.but(participation=given.but(machines=natural_machines(experiment.problem)))
    if (tuning := experiment.tuning) is not None:  # full paths of its data, as in `[problem]`
        other = tuning_experiment(experiment).problem
        located = {key: getattr(other, key) for key in ("dataset", "options") if key in tuning.problem}
        experiment = experiment.but(tuning=tuning.but(problem={**tuning.problem, **located}))
    return experiment


def tuning_experiment(experiment: Experiment) -> Experiment:
    """Return the tuning experiment: the grids of the protocols, on the dataset of `[tuning]`.

    Raises:
        Refusal: if there is no `[tuning]`, no grid has several points, the data are the same, or settings are invalid.
    """
    from fedprivjax.experiment.tuning import check_other_data, tuning_mapping

    if experiment.tuning is None:
        raise Refusal("an experiment must have [tuning] to choose on other data, got none")
    with within(IN_TUNING):
        raw = tuning_mapping(experiment, experiment.tuning, to_mapping(experiment))
        other = parse(raw, **experiment.context)
        check_other_data(experiment.problem, other.problem)
    return other


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """Return the settings as a nested mapping, with `parse(to_mapping(experiment)) == experiment`."""
    given = [one for one in experiment.protocol if not one.added]
    raw = experiment.but(protocol=given).model_dump(exclude_none=True)
    raw["protocol"] = [{**{k: v for k, v in p.items() if k != "settings"}, **p["settings"]} for p in raw["protocol"]]
    raw["sweep"] = {**raw["sweep"].pop("over"), **raw["sweep"]}
    return raw


def _change(raw: Any, key: str, value: Any) -> None:
    *path, last = key.split(".")
    here: Any = raw
    for part in path:
        found = _entry(here, part, key)
        inside: Any = here.setdefault(found, {}) if isinstance(here, dict) else here[found]
        if isinstance(inside, str) and here is not raw:  # a name without settings, such as a loss
            inside = here[found] = {"kind": inside}
        here = inside
    found = _entry(here, last, key)
    if value is None and isinstance(here, dict):
        here.pop(found, None)
    else:
        here[found] = value


def _entry(here: Any, part: str, key: str) -> Any:
    """Return the key of a table, or the index of a list's entry, that a part of a dotted key names."""
    if isinstance(here, dict):
        return part
    if not isinstance(here, list):
        raise Refusal(f"no setting {key!r} to change")
    tables = [entry if isinstance(entry, dict) else {} for entry in here]
    for names in ([labelled(table) or None for table in tables], [table.get("name") for table in tables]):
        if part in names:
            return names.index(part)
    if part.isdigit() and int(part) < len(here):
        return int(part)
    raise Refusal(f"no entry {part!r} in {key!r} (there are {len(here)}, numbered from 0)")
