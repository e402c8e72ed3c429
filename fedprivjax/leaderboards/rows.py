"""Rows of the leaderboard: their fields, the conditions to enter, and the rows of finished results."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Literal, Self

import numpy as np
import xarray as xr
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import condition
from fedprivjax.datasets import DATASETS
from fedprivjax.disk_cache import digest
from fedprivjax.engine.fingerprint import UNSALTED
from fedprivjax.engine.metric import Metric
from fedprivjax.experiment.results import Results
from fedprivjax.layout.wording import Point, guarantees_in, of_axes, points_of
from fedprivjax.privacy.relations import RELATIONS
from fedprivjax.privacy.rounding import SLACK
from fedprivjax.privacy.target import LEVELS
from fedprivjax.privacy.terms import TRUST
from fedprivjax.report.display import summarised, usual_metric
from fedprivjax.report.summary import Cells, Summary
from fedprivjax.report.tables import run_costs
from fedprivjax.sweeps.intervals import INTERVAL
from fedprivjax.sweeps.provenance import checksums
from fedprivjax.sweeps.selection import UNACCOUNTED

Row = dict[str, Any]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Fields(BaseModel):
    """Fields of a row in their order, with the conditions to enter."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    experiment: Text
    federation: Text
    setting: dict[str, float]
    metric: Text
    better: Literal["higher", "lower"]
    target_epsilon: float | None
    method: Text
    protocol: Text
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: Text
    relation: Annotated[str, Field(pattern=rf"^({'|'.join(RELATIONS)})( \(|$)")]
    trust: Annotated[str, Field(pattern=f"^({'|'.join(TRUST)})$")]
    theorem: Text
    proved: bool
    mean: float
    half_width: Annotated[float, Field(ge=0)]
    seeds: Annotated[int, Field(ge=INTERVAL)]
    diverged: int
    rounds: Annotated[float, Field(gt=0)]
    gradients_per_record: float | None
    sent_bytes: Annotated[float, Field(ge=0)]
    tuned: str
    not_covered: str
    version: Text
    commit: Text | None
    date: Text
    command: Text

    @model_validator(mode="after")
    def _at_most_its_target(self) -> Self:
        target = self.target_epsilon
        if target is not None and self.epsilon > (1 + SLACK) * target:
            raise Refusal(f"epsilon must be at most its target {target:g}, got {self.epsilon}")
        return self


FIELDS = tuple(Fields.model_fields)
MISSING = {  # why a field is None
    "epsilon": "epsilon must be the realised ε of a private method, got none",
    "half_width": f"seeds must be at least {INTERVAL} for an interval, got fewer. Run more seeds",
}
DIGITS = 8  # significant digits of numbers in rows
OF_METHODS = ("radius", "constraint", "lipschitz", "distance")  # keys of `[problem]` that do not change the federation
COSTS = {"rounds": "rounds_taken", "gradients_per_record": "gradients_per_record", "sent_bytes": "sent_bytes"}


def faults(row: Any) -> list[str]:
    """Return a line for each reason why a row cannot enter the leaderboard. An acceptable row has none.

    >>> faults({"seeds": 2})[0]
    'experiment must be given, got none'
    """
    if not isinstance(row, Mapping):
        return [f"row must be an object, got {row!r}"]
    if row.get("diverged"):  # explains a mean that is not finite, so it comes alone
        return [f"runs must not diverge, got {row['diverged']} of {row.get('seeds')} diverged"]
    try:
        Fields.model_validate(dict(row))
    except ValidationError as failed:
        return [_fault(error) for error in failed.errors()]
    return []


def _fault(error: Any) -> str:
    """Return a validation error as a line."""
    name, given = ".".join(map(str, error["loc"])), error["input"]
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{name} must be given, got none"
    if given is None and name in MISSING:
        return MISSING[name]
    wanted = "be a known field" if error["type"] == "extra_forbidden" else condition(error["msg"])
    return f"{name} must {wanted}, got {given!r}{'. Run more seeds' * (name == 'seeds')}"


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
        axes = {name: values for name, values in this.axes.items() if name in data["diverged"].dims}
        for point in points_of(axes):
            place = ", ".join([label, *(f"{axis} {value:g}" for axis, value in point.items())])
            if label not in cells.runs:
                refused.append(f"{place}: {cells.metric.name} must be recorded, got none")
                continue
            row = {**origin, "method": label, "protocol": protocol, **_measured(data, label, cells, point)}
            row["not_covered"] = "; ".join(filter(None, (*_not_covered(data), digested)))
            found = [f"{place}: {fault}" for fault in faults(row)]
            refused += found
            rows += [] if found else [row]
    return rows, refused


def federation(results: Results) -> str:
    """Return a digest of the federation: data, their partition, loss, model and participation, without the rounds.

    Methods are comparable if their federations are equal. Constraint sets belong to the methods. Only keys that differ
    from their defaults count, so that a key of a later version does not change the digest.
    """
    given: dict[str, Any] = {"exclude_defaults": True, "exclude_none": True}
    spec = results.spec
    problem = spec.problem.model_dump(exclude=set(OF_METHODS), **given)
    if problem["dataset"] not in DATASETS:
        problem["dataset"] = checksums(results.datasets)
    participation = {"kind": spec.participation.kind, **spec.participation.model_dump(exclude={"rounds"}, **given)}
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
        **_worst_terms(at),
        "metric": cells.metric.name,
        "better": cells.metric.better,
        "mean": _number(mean),
        "half_width": _number(half) if seeds > 1 else None,
        "seeds": seeds,
        "diverged": int(at["diverged"].sum()),
        **{field: _number(costs[name]) if name in costs else None for field, name in COSTS.items()},
        "tuned": str(data.attrs.get("selected", "")),
    }


def _worst_terms(at: xr.Dataset) -> Row:
    """Return the statement of the guarantee with the largest ε, over all seeds and trials. None if no run is private.

    A claim counts as worse than any proved guarantee.
    """
    worst = max(guarantees_in(at), key=lambda one: (not one.proved, one.epsilon), default=None)
    if worst is None:
        return dict.fromkeys(("unit", "relation", "trust", "theorem", "proved"))
    terms = worst.terms
    stated = {"unit": terms.unit, "relation": terms.stated_relation, "trust": terms.trust, "theorem": terms.theorem}
    return {**stated, "proved": worst.proved}


def _not_covered(data: xr.Dataset) -> list[str]:
    """Return the choices and preparations that no guarantee covers. Texts may be empty."""
    chosen = f"{data.attrs[UNACCOUNTED]} chosen by results" if UNACCOUNTED in data.attrs else ""
    return [chosen, data.attrs.get("non_private_data", "")]


def _number(value: xr.DataArray | float) -> float | None:
    """Return a number with `DIGITS` significant digits, or None if it is not finite."""
    found = float(np.asarray(value).squeeze())
    return float(f"{found:.{DIGITS}g}") if isfinite(found) else None
