"""Comparison of this process's device with the CPU: `fedprivjax bench --check-device`."""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import jax
from rich.table import Table

from fedprivjax.bench.timing import machine
from fedprivjax.engine.compiled import FLOAT32, TF32
from fedprivjax.report.verdicts import VERDICTS
from fedprivjax.testing.device_cases import cases
from fedprivjax.testing.devices import NOISE, RUNS, SWEEP, Computer, Finding, compare, cpu, product_error

KINDS = (RUNS, SWEEP, NOISE)
ONLY_CPU = "jax found no accelerator. Optimised programs on the CPU are compared with unoptimised ones"


def findings() -> Iterator[tuple[Finding, int]]:
    """Yield the findings of all cases on the default device, each with their expected total number.

    Raises:
        Refusal: if jax was started without a CPU.
    """
    reference, chosen = cpu(), cases()
    total = len(chosen) * len(KINDS) + 2
    for finding in compare(chosen, Computer(jax.devices()[0]), reference, workers=os.cpu_count() or 1):
        yield finding, total


def description() -> dict[str, Any]:
    """Return the machine, the device, the precision of products and the largest error of a product, by name."""
    computer = Computer(jax.devices()[0])
    errors = {f"{name} product error": f"{product_error(computer, name):.1e}" for name in (FLOAT32, TF32)}
    return {**machine(), "backend": jax.default_backend(), "precision": FLOAT32, **errors}


def table(found: Iterable[Finding]) -> Table:
    """Return a table of the findings: a row for each case, and the largest allowed values in the title."""
    found = list(found)
    by_label: dict[str, dict[str, Finding]] = {}
    for one in found:
        by_label.setdefault(one.label, {})[one.kind] = one
    table = Table(title="Differences from the CPU, as fractions of the largest value (noise: in standard errors)")
    for name in ("case", *KINDS, "met"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for label, each in by_label.items():
        given = [each[kind] for kind in KINDS if kind in each] or list(each.values())
        cells = [_cell(each[kind]) if kind in each else "" for kind in KINDS]
        if given[0].kind not in KINDS:
            cells[0] = _cell(given[0])
        table.add_row(label, *cells, VERDICTS[all(one.met for one in given)])
    return table


def _cell(finding: Finding) -> str:
    if finding.error:
        return "error"
    mark = "" if finding.met else f" > {finding.limit:g}"
    return f"{finding.value:.1e}{mark}" if finding.limit < 1 else f"{finding.value:.1f}{mark}"


def as_json(found: Iterable[Finding], described: dict[str, Any]) -> dict[str, Any]:
    """Return the description and the findings as JSON values. An infinite difference is None."""
    rows = [{**one._asdict(), "met": one.met} for one in found]
    rows = [{**row, "value": row["value"] if math.isfinite(row["value"]) else None} for row in rows]
    return {"machine": described, "results": rows}
