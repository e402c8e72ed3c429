"""Benchmarks of the protocols on this machine, as ratios of times measured in turn: `fedprivjax bench`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from fedprivjax.bench import accelerator, cell, sweeps
from fedprivjax.bench.timing import Line, machine
from fedprivjax.checks.refusal import Refusal
from fedprivjax.layout.drawing import save_figure
from fedprivjax.report.verdicts import VERDICTS

__all__ = ["Line", "as_json", "machine", "measure", "require_throughput", "save_throughput", "table"]

THROUGHPUT = "accelerator"

GROUPS: dict[str, Callable[[], Iterator[Line]]] = {
    "one run": cell.lines,
    "sweeps": sweeps.lines,
    "first result": cell.first_lines,
    "second start": cell.start_lines,
    THROUGHPUT: accelerator.lines,
    "launches": sweeps.launch_lines,
}


def measure(groups: list[str] | None = None) -> Iterator[Line]:
    """Yield the lines of some groups, or of all if None, as they are measured."""
    for name in GROUPS if groups is None else groups:
        yield from GROUPS[name]()


def table(lines: Iterable[Line], machine: Mapping[str, str]) -> Table:
    """Return a table of benchmark results, one row per measurement.

    If a measurement has a target, the row also states the target and whether the target is met.

    Args:
        lines: measurements, as `measure` yields them.
        machine: description of the machine by name, for the title (see `bench.timing.machine`).
    """
    table = Table(title=", ".join(f"{name} {value}" for name, value in machine.items()), title_justify="left")
    table.add_column("what")
    for name in ("value", "unit", "target", "met"):
        table.add_column(name, justify="left" if name == "unit" else "right")
    for line in lines:
        table.add_row(line.name, f"{line.value:.3g}", line.unit, line.target or "", VERDICTS[line.met])
    return table


def require_throughput(groups: list[str] | None) -> None:
    """Raise Refusal if the groups do not measure the throughput of sweeps on this device."""
    if jax.default_backend() == "cpu":
        raise Refusal("plot must be left out on a CPU, where the throughput of sweeps is not measured. Leave it out")
    if groups is not None and THROUGHPUT not in groups:
        raise Refusal(f"plot must have the group {THROUGHPUT!r}, got {', '.join(groups)}. Add --only {THROUGHPUT}")


def save_throughput(lines: list[Line], file: Path) -> None:
    """Write a PNG plot of the throughput of sweeps."""
    save_figure(accelerator.plot(lines, machine()["device"]), file)


def as_json(lines: list[Line]) -> dict[str, Any]:
    """Return the machine's description and the timings as JSON values."""
    return {"machine": machine(), "results": [line.as_dict() for line in lines]}
