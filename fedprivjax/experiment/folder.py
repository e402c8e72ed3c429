"""Results folders: `spec.toml`, `inputs.json`, `results.nc`, `provenance.json`, plots and a report page."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import tomli_w
import xarray as xr

from fedprivjax.atomic_write import Content, write_together
from fedprivjax.bounded_read import TOML_BYTES, Unreadable, json_value, text_of, toml_value
from fedprivjax.checks.refusal import Refusal, warn, within
from fedprivjax.experiment import Experiment, to_mapping
from fedprivjax.experiment.inputs import Inputs, read_inputs, without_callback
from fedprivjax.experiment.protocol_section import flattened
from fedprivjax.hdf5_limits import require_bounded
from fedprivjax.sweeps.chunk_store import remove_stores
from fedprivjax.sweeps.part import held
from fedprivjax.sweeps.provenance import Provenance, provenance
from fedprivjax.sweeps.schema import TEXTS, require_schema

CHUNKS, SPEC, INPUTS, RESULTS, PROVENANCE = "chunks", "spec.toml", "inputs.json", "results.nc", "provenance.json"
CHOICE = "choice"  # results folder of the tuning runs
SHOWN, WIDEST = 3, 60  # in a message: number of differing settings, characters of a value
RUN_FIRST = "Run an experiment first, such as fedprivjax run quickstart"
HOW = "fedprivjax.load(file), or xarray.open_datatree(file, engine='h5netcdf'): a group for each protocol"
ORIGIN = ("fedprivjax", "commit", "date", "experiment", "command", "device")  # texts of the provenance


def claim(
    folder: Path,
    experiment: Experiment,
    inputs: Inputs | None = None,
    source: Mapping[str, str] | None = None,
    *,
    resume: bool = False,
    shared: bool = False,
) -> None:
    """Create the folder and write `spec.toml` and `inputs.json` into it.

    Args:
        inputs: data, code and versions of the run, or None to keep the file `inputs.json`.
        source: as in `save`.
        resume: whether a run in the folder is resumed, which must have begun.
        shared: whether other processes may run the same experiment in the folder.

    Raises:
        ValueError: if the folder holds results of other settings, data or code, or an unfinished run, has nothing to
            resume, is not writable, or if a text cannot be stored.
    """
    spec, settings = folder / SPEC, to_mapping(experiment)
    _require_texts({**settings, **(source or {}), "results folder": str(folder)})
    again = resume or shared
    check_settings(folder, experiment, resume=resume, shared=shared)
    if inputs is not None:
        check_inputs(folder, inputs, again=again)
    files = {spec: tomli_w.dumps(settings)}
    if inputs is not None and not (again and _in_use(folder)):
        files[folder / INPUTS] = inputs.text()
    try:
        write_together(files)
    except OSError as error:
        raise Refusal(f"results folder {folder} must be writable: {error.strerror}") from error


def check_settings(folder: Path, experiment: Experiment, *, resume: bool = False, shared: bool = False) -> None:
    """Raise Refusal if the folder holds results of other settings or an unfinished run, or has nothing to resume.

    This reads small files only. It therefore precedes the preparation of runs, which may take minutes.

    Args:
        resume, shared: as in `claim`.
    """
    spec, own = folder / SPEC, without_callback(to_mapping(experiment))
    if resume and not shared and not begun(folder):
        raise Refusal(f"nothing to resume in {folder}. Leave out --resume (resume=True) to start a run")
    if spec.is_file() and (other := _settings(spec)) != own:
        differ = "" if other is None else f": {_differences(other, own)}"
        raise Refusal(f"results folder {folder} holds results of different settings{differ}. Choose another with --out")
    if not (resume or shared) and any(_chunks(part) for part in (folder, folder / CHOICE)):
        raise Refusal(f"results folder {folder} holds an unfinished run: add --resume, or choose another with --out")


def check_inputs(folder: Path, inputs: Inputs, *, again: bool = True) -> None:
    """Raise Refusal if the folder holds results, or chunks of results, of other data or code.

    Finished results of another version of the package or of jax give a warning, and their chunks are refused.

    Args:
        inputs: data, code and versions of the run.
        again: whether finished results are loaded; False if they are computed again.
    """
    if not _in_use(folder):
        return
    there = read_inputs(folder / INPUTS)
    remedy = "Choose another folder with --out, or delete this one"
    if there is None:
        raise Refusal(f"results folder {folder} must hold {INPUTS} as it was written, with which to compare. {remedy}")
    if changes := inputs.changes_from(there):
        wanted = f"results folder {folder} must hold results of the same data and code"
        raise Refusal(f"{wanted}, got results of other {', other '.join(changes)}. {remedy}")
    if inputs.versions == there.versions:
        return
    if _chunks(folder) and not finished(folder):
        wanted = f"the run in {folder} must be resumed by the code that began it, and it has changed"
        raise Refusal(f"{wanted}: {there.version} there and {inputs.version} here. {remedy}")
    if again:
        warn(f"{folder} holds results of {there.version}, loaded by {inputs.version}")


def _chunks(folder: Path) -> bool:
    """Return True if the folder holds a finished chunk."""
    return any((folder / CHUNKS).glob("*.npz"))


def _in_use(folder: Path) -> bool:
    """Return True if the folder holds results or finished chunks, or another process computes a chunk."""
    return (folder / RESULTS).is_file() or _chunks(folder) or held(folder / CHUNKS)


def begun(folder: Path) -> bool:
    """Return True if a run into the folder has begun."""
    return (folder / SPEC).is_file()


def finished(folder: Path) -> bool:
    """Return True if a folder holds complete and readable results of an experiment.

    They must be those of the run that the folder's file `inputs.json` describes. If the file of results is damaged, the
    result is False, with a warning.
    """
    if not (folder / RESULTS).is_file():
        return False
    try:
        attributes = read(folder)[1]
        with _readable(folder / RESULTS):
            own = _of_numbers(toml_value(str(attributes.get("settings", ""))))
    except Refusal as refusal:
        warn(f"the results in {folder} are computed again: {refusal}")
        return False
    there = _settings(folder / SPEC) if (folder / SPEC).is_file() else None
    if there is not None and own != _of_numbers(there):
        warn(f"the results in {folder} are computed again: {RESULTS} is of another experiment than {SPEC}")
        return False
    made, inputs = attributes["provenance"], read_inputs(folder / INPUTS)
    return inputs is None or all(made.get(name) == found for name, found in inputs.versions.items())


def save(
    found: Mapping[str, xr.Dataset],
    folder: Path,
    title: str = "",
    seconds: float | None = None,
    source: Mapping[str, str] | None = None,
    experiment: Experiment | None = None,
    inputs: Inputs | None = None,
) -> None:
    """Write `results.nc`, with one group per protocol label and its provenance. Remove the chunks.

    `provenance.json` is a copy for readers without netCDF. All files are written together; if that fails, the folder
    stays unchanged. The netCDF file is built in memory, because HDF5 ends the process if a write fails.

    Args:
        title: title of the experiment, an attribute of the netCDF file.
        seconds: wall time of the runs in seconds, with compilation and calibration, or None if unknown.
        source: name and command of the experiment, keys "experiment" and "command", or None if unknown.
        experiment, inputs: contents of `spec.toml` and `inputs.json`, which are written too, or None.

    Raises:
        OSError: if a file cannot be written. The chunks then stay on disk.
    """
    text = json.dumps({**provenance(found, seconds), **(source or {})}, indent=1, ensure_ascii=False)
    spec = load_settings(folder) if experiment is None else tomli_w.dumps(to_mapping(experiment))
    attributes = {"title": title, "groups": list(found), "how_to_open": HOW, "provenance": text}
    root = xr.Dataset(attrs={**attributes, **({"settings": spec} if spec else {})})
    tree = xr.DataTree.from_dict({"/": root, **found})
    netcdf = BytesIO()
    tree.to_netcdf(netcdf, engine="h5netcdf")
    begun: dict[Path, Content] = {} if experiment is None else {folder / SPEC: spec}  # somebody may have deleted it
    last = {} if inputs is None else {folder / INPUTS: inputs.text()}  # never those of a run whose results are missing
    write_together({**begun, folder / PROVENANCE: text, folder / RESULTS: netcdf.getvalue(), **last})
    remove_chunks(folder, linked=True)


def remove_chunks(folder: Path, *, linked: bool = False) -> None:
    """Remove the chunks of a finished run, unless another process still uses them.

    Args:
        linked: whether to remove chunks behind a link, if this run wrote them. The link and other files there stay.
    """
    chunks = folder / CHUNKS
    if held(chunks):
        return
    if not chunks.is_symlink():
        shutil.rmtree(chunks, ignore_errors=True)
    elif linked:
        with suppress(OSError):
            remove_stores(chunks)


def load(folder: str | Path) -> dict[str, xr.Dataset]:
    """Return the results in a folder of `fedprivjax run`, as one xarray dataset per protocol.

    The result is keyed by the protocols' labels in the experiment file. All datasets of results are read into memory.

    Raises:
        Refusal: if the file of results is missing, is a symbolic link, or cannot be read.
    """
    return read(folder)[0]


def read(folder: str | Path) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """Load the results of a folder as `load_file` does.

    Raises:
        Refusal: if the file of results is missing, is a symbolic link, or cannot be read.
    """
    file = Path(folder) / RESULTS
    if not file.is_file():
        raise Refusal(f"results folder must hold {file.name}, got {file.parent} without it. {RUN_FIRST}")
    return load_file(file, follow=False)


def load_file(file: Path, *, follow: bool = True) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """Load a netCDF file into memory: its datasets by group, and its attributes, of which "provenance" is a mapping.

    A file without groups, such as a sweep's `to_netcdf`, is one dataset under the file's name.

    Args:
        follow: whether the file may be a link, as one that the user has named.

    Raises:
        Refusal: if the file is missing, cannot be read, is not within the limits of `hdf5_limits`, or has another
            structure than results.
    """
    with _readable(file):
        require_bounded(file, follow=follow)
        with xr.open_datatree(file, engine="h5netcdf") as tree:
            groups = tree.children or {file.stem: tree}
            loaded, attributes = {label: group.to_dataset().load() for label, group in groups.items()}, tree.attrs
    named = {
        label: data.assign({name: data[name].astype(object) for name in TEXTS if name in data})
        for label, data in loaded.items()
    }
    for label, data in named.items():
        with within(f"{label!r} in {file}"):
            require_schema(data)
    return named, {**{str(name): value for name, value in attributes.items()}, "provenance": _origin(attributes, file)}


def _origin(attributes: Mapping[Any, Any], file: Path) -> Provenance:
    """Return the provenance of a file's results, or {} without one. Raise Refusal if it is not as a run writes it."""
    with _readable(file):
        found = json_value(str(attributes.get("provenance", "{}")))
    if not isinstance(found, dict):
        raise Refusal(f"provenance in {file} must be a JSON object, got {type(found).__name__}")
    for name in (*ORIGIN, "wall_seconds"):
        kind, words = (int | float, "a number") if name == "wall_seconds" else (str, "a text")
        if not isinstance(found.get(name), kind | None):
            raise Refusal(f"{name} in {file} must be {words} or null, got {_value(found, name)}")
    return found


def load_settings(folder: str | Path) -> str:
    """Return the text of `spec.toml`, the experiment's settings, or "" for a folder without that file.

    Raises:
        Refusal: if the file is a link or cannot be read.
    """
    file = Path(folder) / SPEC
    with _readable(file):
        return text_of(file, TOML_BYTES, follow=False) if file.is_file() else ""


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raise Refusal if the block cannot read a file. Parsers of damaged files raise exceptions of all kinds."""
    try:
        yield
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise Refusal(f"{file} must be a file as it was written, and cannot be read: {why}") from error


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Text of the keys whose values differ, the first three with both values."""
    one, other = _flat(there), _flat(here)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    each = [f"{key} = {_value(one, key)} there and {_value(other, key)} here" for key in keys[:SHOWN]]
    return ", ".join(each) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")


def _require_texts(settings: Mapping[str, Any]) -> None:
    """Raise Refusal if a text cannot be written in UTF-8, such as a name of a file in Latin-1."""
    text = tomli_w.dumps(settings)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = text[: error.end].splitlines()[-1]
        wanted = f"texts must be in UTF-8, got {wrong!r}"
        raise Refusal(f"{wanted}. If it is the name of a file or a folder, rename that") from None


def _value(settings: Mapping[str, Any], key: str) -> str:
    text = repr(settings[key]) if key in settings else "nothing"
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by dotted key. Protocols are named by their labels."""
    given = settings.get("protocol")
    entries = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return flattened({**settings, "protocol": {str(one.get("label")): one for one in entries}})


def _of_numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on which numbers depend. A data file is stated by its name: the folders may have moved."""
    kept = {key: value for key, value in without_callback(settings).items() if key not in ("title", "notes")}
    problem = kept.get("problem", {})
    return {**kept, "problem": {**problem, "dataset": Path(str(problem.get("dataset"))).name}}


def _settings(spec: Path) -> dict[str, Any] | None:
    """Return the settings of a results folder that a run must share to resume, or None if the file is damaged."""
    try:
        return without_callback(toml_value(text_of(spec, TOML_BYTES, follow=False)))
    except Unreadable:
        return None
