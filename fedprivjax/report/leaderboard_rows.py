"""Rows of the leaderboard: their fields, the conditions to enter, and the rows of finished results."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import DATASETS
from fedprivjax.disk_cache import digest
from fedprivjax.engine.fingerprint import UNSALTED
from fedprivjax.engine.metric import Metric
from fedprivjax.experiment import to_mapping
from fedprivjax.experiment.inputs import checksums
from fedprivjax.experiment.results import Results
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.target import LEVELS
from fedprivjax.privacy.terms import RELATIONS, TRUST
from fedprivjax.report.cells import Cells, Point
from fedprivjax.report.costs import run_costs
from fedprivjax.report.display import summarised, usual_metric
from fedprivjax.report.summary import TOLERANCE, Summary
from fedprivjax.report.wording import guarantees_in, of_axes, points_of
from fedprivjax.sweeps.results import INTERVAL
from fedprivjax.sweeps.selection import UNACCOUNTED

Row = dict[str, Any]
TEXT, NUMBER, WHOLE = (str,), (int, float), (int,)
OPTIONAL_TEXT, OPTIONAL_NUMBER = (str, type(None)), (int, float, type(None))
FIELDS: dict[str, tuple[type, ...]] = {
    "experiment": TEXT,
    "federation": TEXT,
    "setting": (dict,),
    "metric": TEXT,
    "better": TEXT,
    "target_epsilon": OPTIONAL_NUMBER,
    "method": TEXT,
    "protocol": TEXT,
    "epsilon": NUMBER,
    "delta": NUMBER,
    "unit": TEXT,
    "relation": TEXT,
    "trust": TEXT,
    "theorem": TEXT,
    "proved": (bool,),
    "mean": NUMBER,
    "half_width": NUMBER,
    "seeds": WHOLE,
    "diverged": WHOLE,
    "rounds": NUMBER,
    "gradients_per_record": OPTIONAL_NUMBER,
    "sent_bytes": NUMBER,
    "tuned": (str,),
    "not_covered": (str,),
    "version": TEXT,
    "commit": OPTIONAL_TEXT,
    "date": TEXT,
    "command": TEXT,
}
MAY_BE_EMPTY = ("tuned", "not_covered")
CHOICES = {"better": ("higher", "lower"), "trust": tuple(TRUST), "relation": tuple(RELATIONS)}
NAMES = {str: "text", float: "a number", int: "an integer", bool: "true or false", dict: "an object"}
DIGITS = 8  # significant digits of numbers in rows
OF_METHODS = ("radius", "constraint", "lipschitz", "distance")  # keys of `[problem]` that do not change the federation
COSTS = {"rounds": "taken", "gradients_per_record": "gradients", "sent_bytes": "bytes"}


def faults(row: Any) -> list[str]:
    """Return a line for each reason why a row cannot enter the leaderboard. An acceptable row has none.

    >>> faults({"seeds": 2})[0]
    'experiment must be given, got none'
    """
    if not isinstance(row, Mapping):
        return [f"row must be an object, got {row!r}"]
    if row.get("diverged"):  # explains a mean that is not finite, so it comes alone
        return [f"runs must not diverge, got {row['diverged']} of {row.get('seeds')} diverged"]
    found = [_fault(name, row[name]) for name in FIELDS if name in row]
    found = [f"{name} must be given, got none" for name in FIELDS if name not in row] + [each for each in found if each]
    found += [f"{name} must be a known field, got {row[name]!r}" for name in row if name not in FIELDS]
    return found or _limits(dict(row))


def _fault(name: str, value: Any) -> str:
    """Return why a field's value is not acceptable, or ""."""
    types = FIELDS[name]
    if name == "epsilon" and value is None:
        return "epsilon must be the realised ε of a private method, got none"
    if name == "half_width" and value is None:
        return f"seeds must be at least {INTERVAL} for an interval, got fewer"
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if wrong or (isinstance(value, float) and not isfinite(value)):
        wanted = NAMES[float] if float in types else NAMES[types[0]]
        return f"{name} must be {wanted}, got {value!r}"
    if isinstance(value, str) and not value.strip() and name not in MAY_BE_EMPTY:
        return f"{name} must not be empty, got {value!r}"
    given = str(value).partition(" (")[0] if name == "relation" else value
    if name in CHOICES and given not in CHOICES[name]:
        return f"{name} must be one of {list(CHOICES[name])}, got {value!r}"
    return ""


def _limits(row: Row) -> list[str]:
    """Return the faults of numbers whose fields are acceptable one by one."""
    target = row["target_epsilon"]
    conditions = {
        f"seeds must be at least {INTERVAL}, got {row['seeds']}": row["seeds"] >= INTERVAL,
        f"epsilon must be positive, got {row['epsilon']}": row["epsilon"] > 0,
        f"delta must be in (0, 1), got {row['delta']}": 0 < row["delta"] < 1,
        f"half_width must be at least 0, got {row['half_width']}": row["half_width"] >= 0,
        f"rounds must be positive, got {row['rounds']}": row["rounds"] > 0,
        f"sent_bytes must be at least 0, got {row['sent_bytes']}": row["sent_bytes"] >= 0,
        f"setting must hold numbers, got {row['setting']}": all(isinstance(v, NUMBER) for v in row["setting"].values()),
    }
    if target is not None:
        text = f"epsilon must be at most its target {target:g}, up to {TOLERANCE:.0%}, got {row['epsilon']}"
        conditions[text] = row["epsilon"] <= (1 + TOLERANCE) * target
    return [text for text, holds in conditions.items() if not holds]


def leaderboard_rows(results: Results) -> tuple[list[Row], list[str]]:
    """Return the rows of finished results, and a line for each method and point that cannot enter, with the reason.

    The metric is `evaluation.select` as tables show it, or if it was not recorded the first one that the command line
    draws.

    Raises:
        Refusal: if the results have no `spec.toml`, or do not state the command that made them.
    """
    origin = _origin(results)
    this = summarised(results, None)
    cells = this.cells(_metric_of(results, this))
    digested = "" if results.spec.problem.dataset in DATASETS else UNSALTED.format("federation")
    rows, refused = [], []
    for label, data in this.best.items():
        protocol = next(one.name for one in results.spec.protocol if one.label == label)
        for point in points_of(_own_axes(this, data)):
            place = ", ".join([label, *(f"{axis} {value:g}" for axis, value in point.items())])
            if label not in cells.runs:
                refused.append(f"{place}: {cells.metric.name} must be recorded, got none")
                continue
            row = {**origin, "method": label, "protocol": protocol, **_measured(data, label, cells, point)}
            row["not_covered"] = "; ".join(filter(None, (row["not_covered"], digested)))
            found = [f"{place}: {fault}" for fault in faults(row)]
            refused += found
            rows += [] if found else [row]
    return rows, refused


def federation(results: Results) -> str:
    """Return a digest of the federation: data, their partition, loss, model and participation, without the rounds.

    Methods are comparable if their federations are equal. Constraint sets belong to the methods.
    """
    raw = to_mapping(results.spec)
    problem = {key: value for key, value in raw["problem"].items() if key not in OF_METHODS}
    if problem["dataset"] not in DATASETS:
        problem["dataset"] = checksums(results.datasets)
    participation = {key: value for key, value in raw["participation"].items() if key != "rounds"}
    return digest(_sorted(problem), _sorted(participation))[:12]


def _sorted(value: Any) -> Any:
    """Return a nested mapping with its keys in alphabetical order."""
    return {key: _sorted(value[key]) for key in sorted(value)} if isinstance(value, Mapping) else value


def _origin(results: Results) -> Row:
    """Return the fields that all rows of the results share."""
    made = results.provenance
    for name in ("command", "experiment", "fedprivjax", "date"):
        if not made.get(name):
            raise Refusal(
                f"results in {results.folder} must state the {name} that made them, got none. Run the experiment with "
                f"fedprivjax run"
            )
    return {
        "experiment": made["experiment"],
        "federation": federation(results),
        "version": made["fedprivjax"],
        "commit": made.get("commit"),
        "date": made["date"],
        "command": made["command"],
    }


def _metric_of(results: Results, this: Summary) -> Metric:
    """Return the metric by which methods are ranked."""
    selected = results.spec.evaluation.select
    metric = this.metric(selected if this.recorded(selected) else usual_metric(this))
    return metric.of_mean or metric


def _own_axes(this: Summary, data: xr.Dataset) -> dict[str, list[float]]:
    """Return the swept axes that the protocol's results have."""
    return {name: values for name, values in this.axes.items() if name in data["diverged"].dims}


def _measured(data: xr.Dataset, label: str, cells: Cells, point: Point) -> Row:
    """Return the fields of a row that differ between methods and points."""
    at = data.sel(point)
    mean, half = (each.sel(of_axes(each, point)) for each in cells.intervals[label])
    seeds = cells.runs[label].sizes["seed"]
    costs = run_costs(at) if "sent_bytes" in at else {}
    return {
        "setting": {name: value for name, value in point.items() if name not in LEVELS},
        "target_epsilon": _number(at["target_epsilon"].max()),
        "epsilon": _number(at["realised_epsilon"].max("seed", skipna=False)),
        "delta": float(data.attrs["delta"]),
        **_terms(_worst_guarantee(at)),
        "metric": cells.metric.name,
        "better": cells.metric.better,
        "mean": _number(mean),
        "half_width": _number(half) if seeds > 1 else None,
        "seeds": seeds,
        "diverged": int(at["diverged"].sum()),
        **{field: _number(costs[name]) if name in costs else None for field, name in COSTS.items()},
        "tuned": str(data.attrs.get("selected", "")),
        "not_covered": _not_covered(data),
    }


def _worst_guarantee(at: xr.Dataset) -> PrivacyGuarantee | None:
    """Return the guarantee with the largest ε, over all seeds and trials, or None if no run is private.

    A claim counts as worse than any proved guarantee.
    """
    return max(guarantees_in(at), key=lambda one: (not one.proved, one.epsilon), default=None)


def _terms(guarantee: PrivacyGuarantee | None) -> Row:
    if guarantee is None:
        return dict.fromkeys(("unit", "relation", "trust", "theorem", "proved"))
    terms = guarantee.terms
    stated = {"unit": terms.unit, "relation": terms.stated_relation, "trust": terms.trust, "theorem": terms.theorem}
    return {**stated, "proved": guarantee.proved}


def _not_covered(data: xr.Dataset) -> str:
    """Return the choices and preparations that no guarantee covers, as text, or ""."""
    chosen = f"{data.attrs[UNACCOUNTED]} chosen by results" if UNACCOUNTED in data.attrs else ""
    return "; ".join(text for text in (chosen, data.attrs.get("non_private_data", "")) if text)


def _number(value: xr.DataArray | float) -> float | None:
    """Return a number with `DIGITS` significant digits, or None if it is not finite."""
    found = float(np.asarray(value).squeeze())
    return float(f"{found:.{DIGITS}g}") if isfinite(found) else None
