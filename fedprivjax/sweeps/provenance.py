"""Provenance of results: versions, commit, date, machine, device, and checksums of the data."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from fedprivjax.bounded_read import json_value
from fedprivjax.disk_cache import code_version
from fedprivjax.engine.fingerprint import UNSALTED
from fedprivjax.problem.random_keys import random_settings

PACKAGES = ("fedprivjax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "xarray", "dp-accounting")
Digests = dict[str, list[str]]
Provenance = dict[str, Any]


def provenance(found: Mapping[str, xr.Dataset], seconds: float | None = None) -> Provenance:
    """Return versions, commit, date, wall time, machine and device, settings of jax, and checksums of the data.

    Of algorithms with a privacy object, the classes of both are named, by label.

    Args:
        found: results by label, whose attribute `data` has the checksums.
        seconds: wall time of the runs in seconds, or None if unknown.
    """
    parts = {label: str(data.attrs["parts"]) for label, data in found.items() if "parts" in data.attrs}
    return {
        **{name: version(name) for name in PACKAGES},
        "commit": commit(Path(__file__).parents[2]),
        "code": code_version(),
        "date": datetime.now(UTC).isoformat(timespec="microseconds"),
        "wall_seconds": None if seconds is None else round(seconds, 3),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "cpus": os.cpu_count(),
        "device": str(jax.devices()[0].device_kind),
        "devices": jax.device_count(),
        **random_settings(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "precision": ", ".join(dict.fromkeys(str(data.attrs.get("precision", "")) for data in found.values())),
        **({"parts": parts} if parts else {}),
        "data_sha256": checksums(found),
        "not_covered": UNSALTED.format("data_sha256"),
    }


def commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, with "+" if tracked files differ from it, or None without a commit or git.

    >>> commit(Path("/"))
    """
    if not (checkout / ".git").exists():
        return None
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        return head + ("+" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def cpu() -> str:
    """Return the processor's name, or its architecture if the system does not report a name."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def checksums(found: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """Return the distinct checksums of the data by array name, a list if there are several datasets, such as trials."""
    texts = [text for data in found.values() for text in str(data.attrs.get("data", "")).splitlines()]
    by_name = distinct([json_value(text) for text in dict.fromkeys(texts)])
    return {name: found if len(found) > 1 else found[0] for name, found in by_name.items()}


def distinct(found: Sequence[Mapping[str, str]]) -> Digests:
    """Return the distinct values by name."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: list(dict.fromkeys(each[name] for each in found if name in each)) for name in names}


def _git(checkout: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
