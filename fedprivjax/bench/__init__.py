"""How fast this machine runs the protocols, as ratios measured side by side: `fedprivjax bench`."""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import jax

from fedprivjax.bench import accelerator, cell, federation, start, sweeps
from fedprivjax.bench.timing import Line

__all__ = ["Line", "as_json", "machine", "measure"]

GROUPS: dict[str, Callable[[], Iterator[Line]]] = {
    "one run": cell.lines,
    "sweeps": sweeps.lines,
    "a million machines": federation.lines,
    "second start": start.lines,
    "accelerator": accelerator.lines,
}


def measure(groups: list[str] | None = None) -> Iterator[Line]:
    """The lines of some groups (None: of all), as they are measured."""
    for name in GROUPS if groups is None else groups:
        yield from GROUPS[name]()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    device = jax.devices()[0]
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("fedprivjax", "jax", "jaxlib", "numpy")},
    }


def as_json(lines: list[Line]) -> dict[str, Any]:
    """The machine and the lines as JSON values."""
    return {"machine": machine(), "results": [line.as_dict() for line in lines]}
