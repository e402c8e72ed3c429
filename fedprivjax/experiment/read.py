"""Reading of experiment files: from TOML, or a bundled experiment's name, to validated settings, and back."""

import difflib
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedprivjax.bounded_read import TOML_BYTES, Unreadable, text_of, toml_value
from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.checks.values import require_choice, require_printable
from fedprivjax.engine.metric import Metric
from fedprivjax.experiment.build import natural_machines, with_baselines
from fedprivjax.experiment.check import check
from fedprivjax.experiment.names import of_results
from fedprivjax.experiment.protocol import labelled
from fedprivjax.experiment.section import refuse
from fedprivjax.experiment.settings import Experiment, TuningSettings

IN_TUNING = "in [tuning]"  # before messages about the tuning experiment


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
    """Read an experiment.

    Args:
        spec: path of a TOML file, or name of a bundled experiment.
        changes: values by dotted key ("sweep.seeds", "protocol.0.clip"), applied before validation. None removes a key.

    Raises:
        ValueError: if the experiment does not exist (the nearest name is suggested), the file is not valid TOML, a key
            is unknown, or a value is invalid.

    >>> load("quickstart").problem.dataset
    'digits'
    """
    path = Path(spec)
    if not (path.suffix == ".toml" and path.is_file()):
        names, near = bundled(), _beside(path)
        if path.suffix == ".toml" or (near and str(spec) not in names):
            raise Refusal(f"no experiment file {str(spec)!r}{near}")
        require_choice("experiment", str(spec), names)
        path = names[str(spec)]
    raw = read_toml(path)
    for key, value in (changes or {}).items():
        _change(raw, key, value)
    return parse(raw, path.parent)


def read_toml(path: Path, *, follow: bool = True) -> dict[str, Any]:
    """Return a TOML file as a mapping. Raise Refusal if it is not valid TOML, or a link that is not to be followed."""
    text = ""
    try:
        text = text_of(path, TOML_BYTES, follow=follow)
        return toml_value(text)
    except Unreadable as error:
        _require_brackets(path.name, text)
        raise Refusal(f"{path.name} is not valid TOML: {error}") from None


def _require_brackets(file: str, text: str) -> None:
    """Raise Refusal if `[protocol]` or `[expected]` is in single brackets, naming its line."""
    heads = [line.partition("#")[0].replace(" ", "").strip() for line in text.splitlines()]
    for name in ("protocol", "expected"):
        single = [number for number, head in enumerate(heads, 1) if head == f"[{name}]"]
        if single and (len(single) > 1 or f"[[{name}]]" in heads):
            wanted = f"{file} must have every {name} under [[{name}]], got [{name}] in line {single[0]}"
            raise Refusal(f"{wanted}. Double the brackets")


def _beside(path: Path) -> str:
    """Return a hint that names the experiment file with the nearest name in the same folder, or ""."""
    near = difflib.get_close_matches(path.stem, [file.stem for file in path.parent.glob("*.toml")], n=1)
    return f", did you mean {str(path.with_name(near[0] + '.toml'))!r}?" if near else ""


def parse(
    raw: Mapping[str, Any], folder: Path | None = None, *, recorded: Mapping[str, Metric] | None = None
) -> Experiment:
    """Validate a nested mapping of settings, such as parsed TOML.

    Args:
        folder: folder that is searched first for modules of user-defined objects.
        recorded: custom metrics by name, if the settings are those of finished results. No user code is then imported
            (see `names.Unimported`), and the data need not exist. None for an experiment to run.
    """
    context = {"folder": folder, "recorded": recorded}
    try:
        experiment = Experiment.model_validate(raw, context=context)
    except ValidationError as error:
        entries = raw["protocol"] if isinstance(raw.get("protocol"), list) else []
        refuse(error, Experiment, [labelled(entry) if isinstance(entry, Mapping) else "" for entry in entries])
    experiment = with_baselines(experiment)
    if not of_results(context):
        _require_printable(experiment)
    check(experiment)
    experiment = experiment if of_results(context) else _with_machines(experiment)
    return experiment if experiment.tuning is None else _located(experiment, experiment.tuning)


def _require_printable(experiment: Experiment) -> None:
    """Raise Refusal if texts that tables and plots show have control characters."""
    require_printable("title", experiment.title, breaks=False)
    require_printable("notes", experiment.notes)
    for one in experiment.protocol:
        require_printable("label of a protocol", one.label, breaks=False)


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


def _located(experiment: Experiment, tuning: TuningSettings) -> Experiment:
    """Return the experiment with full paths of the data of `[tuning]`, as in `[problem]`."""
    other = tuning_experiment(experiment).problem
    found = {key: getattr(other, key) for key in ("dataset", "options") if key in tuning.problem}
    return experiment.but(tuning=tuning.but(problem={**tuning.problem, **found}))


def _with_machines(experiment: Experiment) -> Experiment:
    """Return the experiment with the number of machines that the data fix, if the file neither sets nor sweeps it."""
    given = experiment.participation
    if given.machines is not None or "machines" in experiment.sweep.over:
        return experiment
    return experiment.but(participation=given.but(machines=natural_machines(experiment.problem)))


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """Return the settings as a nested mapping, with `parse(to_mapping(experiment)) == experiment`."""
    given = [one for one in experiment.protocol if not one.added]
    raw = experiment.but(protocol=given).model_dump(exclude_none=True)
    raw["protocol"] = [{**{k: v for k, v in p.items() if k != "settings"}, **p["settings"]} for p in raw["protocol"]]
    raw["sweep"] = {**raw["sweep"].pop("over"), **raw["sweep"]}
    return raw


def _change(raw: Any, key: str, value: Any) -> None:
    *path, last = key.split(".")
    here = raw
    for part in path:
        found = _entry(here, part, key)
        here = here.setdefault(found, {}) if isinstance(here, dict) else here[found]
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
