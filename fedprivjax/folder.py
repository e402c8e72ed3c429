"""A results folder: `spec.toml`, `results.nc`, `provenance.json` and plots."""

import json
import os
import platform
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import tomli_w
import xarray as xr

from fedprivjax.experiment import Experiment, to_mapping


def provenance() -> dict[str, Any]:
    """Versions, platform and device of this run."""
    packages = ("fedprivjax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "xarray", "dp-accounting")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": str(jax.devices()[0].device_kind),
        "devices": jax.device_count(),
        **{name: version(name) for name in packages},
    }


def claim(folder: Path, experiment: Experiment) -> None:
    """Make the folder and write `spec.toml` into it.

    Raises:
        ValueError: the folder holds results of other settings, or cannot be written to.
    """
    spec, settings = folder / "spec.toml", to_mapping(experiment)
    if spec.is_file() and _settings(spec) != settings:
        raise ValueError(f"results folder {folder} holds results of different settings: choose another with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _whole(spec, lambda path: path.write_text(tomli_w.dumps(settings), encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"results folder {folder} must be writable: {error.strerror}") from error


def save(found: Mapping[str, xr.Dataset], folder: Path, experiment: Experiment) -> None:
    """Write `results.nc` (one group per protocol label) and `provenance.json`, each complete or not at all."""
    tree = xr.DataTree.from_dict(dict(found))
    _whole(folder / "results.nc", lambda path: tree.to_netcdf(path, engine="h5netcdf"))
    text = json.dumps(provenance(), indent=1)
    _whole(folder / "provenance.json", lambda path: path.write_text(text, encoding="utf-8"))


def load(folder: str | Path) -> dict[str, xr.Dataset]:
    """The datasets of a results folder by protocol label, in memory."""
    with xr.open_datatree(Path(folder) / "results.nc", engine="h5netcdf") as tree:
        return {label: group.to_dataset().load() for label, group in tree.children.items()}


def _settings(spec: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(spec.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None


def _whole(path: Path, write: Callable[[Path], Any]) -> None:
    aside = path.with_name(path.name + ".part")
    try:
        write(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
