"""A results folder: `spec.toml`, `results.nc`, `provenance.json` and plots."""

import json
import os
import platform
import shutil
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import tomli_w
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment import Experiment, to_mapping
from fedprivjax.sweeps.store import code_version, write_whole

CHUNKS = "chunks"


def provenance() -> dict[str, Any]:
    """Versions, platform and device of this run."""
    packages = ("fedprivjax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "xarray", "dp-accounting")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": str(jax.devices()[0].device_kind),
        "devices": jax.device_count(),
        "code": code_version(),
        **{name: version(name) for name in packages},
    }


def claim(folder: Path, experiment: Experiment, *, resume: bool = False) -> None:
    """Make the folder and write `spec.toml` into it.

    Raises:
        ValueError: the folder holds results of other settings or an unfinished run, there is nothing to resume, or it
            cannot be written to.
    """
    spec, settings = folder / "spec.toml", to_mapping(experiment)
    if resume and not spec.is_file():
        raise Refusal(f"nothing to resume in {folder}")
    if spec.is_file() and _settings(spec) != settings:
        raise Refusal(f"results folder {folder} holds results of different settings: choose another with --out")
    if not resume and any((folder / CHUNKS).glob("*.npz")):
        raise Refusal(f"results folder {folder} holds an unfinished run: add --resume, or choose another with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(spec, lambda path: path.write_text(tomli_w.dumps(settings), encoding="utf-8"))
    except OSError as error:
        raise Refusal(f"results folder {folder} must be writable: {error.strerror}") from error


def save(found: Mapping[str, xr.Dataset], folder: Path) -> None:
    """Write `results.nc` (one group per protocol label) and `provenance.json`, each whole or not at all."""
    tree = xr.DataTree.from_dict(dict(found))
    write_whole(folder / "results.nc", lambda path: tree.to_netcdf(path, engine="h5netcdf"))
    text = json.dumps(provenance(), indent=1)
    write_whole(folder / "provenance.json", lambda path: path.write_text(text, encoding="utf-8"))
    shutil.rmtree(folder / CHUNKS, ignore_errors=True)


def load(folder: str | Path) -> dict[str, xr.Dataset]:
    """The datasets of a results folder by protocol label, in memory."""
    with xr.open_datatree(Path(folder) / "results.nc", engine="h5netcdf") as tree:
        loaded = {label: group.to_dataset().load() for label, group in tree.children.items()}
    texts = {label: data["guarantee"].astype(object) for label, data in loaded.items() if "guarantee" in data}
    return {label: data.assign(guarantee=texts[label]) if label in texts else data for label, data in loaded.items()}


def _settings(spec: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(spec.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None
