"""What a plan is made for, from a file: a `[plan]` table, or an experiment's problem, participation and levels."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment.build import machines_of, make_participation, make_problem, present
from fedprivjax.experiment.read import load
from fedprivjax.experiment.section import THEORY
from fedprivjax.experiment.settings import Experiment
from fedprivjax.planner import Setting
from fedprivjax.privacy import gdp
from fedprivjax.problem.problem import Problem

KEYS = {each.name: each for each in fields(Setting) if each.name != "kept"}


def plan_settings(spec: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `planner.plan`: what a file says, and in its place what is given beside it.

    A `[plan]` table has the names of `planner.Setting`. An experiment gives its machines, the size and the constants of
    its problem, δ, and as ε what it sweeps.

    Raises:
        Refusal: no such file, an unknown key, or what neither the file nor the options say.

    >>> plan_settings(None, {"machines": 2, "per_round": 1, "samples": 3, "dimension": 4, "epsilon": 1.0})["samples"]
    3
    """
    settings = {**_of_file(spec, given), **given}
    for name, each in KEYS.items():
        if each.default is MISSING and settings.get(name) is None:
            raise Refusal(f"{name} must be given, as --{name.replace('_', '-')} or in a file")
    return {name: value for name, value in settings.items() if value is not None}


def _of_file(spec: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    if spec is None:
        return {}
    path = Path(spec)
    if path.suffix == ".toml" and path.is_file():
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Refusal(f"{path.name} is not valid TOML: {error}") from None
        if "plan" in raw:
            return _of_table(raw)
    return _of_experiment(load(spec), given)


def _of_table(raw: Mapping[str, Any]) -> dict[str, Any]:
    for name in raw:
        require_choice("table", name, ("plan",))
    if not isinstance(raw["plan"], Mapping):
        raise Refusal(f"plan must be a table, got {raw['plan']!r}")
    for name in raw["plan"]:
        require_choice("key in [plan]", name, KEYS)
    return dict(raw["plan"])


def _of_experiment(experiment: Experiment, given: Mapping[str, Any]) -> dict[str, Any]:
    shape, delta = experiment.shapes[0], given.get("delta", experiment.record.delta)
    machines = machines_of(experiment.participation, shape)
    problem = make_problem(experiment.problem, machines, shape.get("trial"), shape.get("records"))
    shape = present(experiment.problem, problem, shape)
    machines = machines_of(experiment.participation, shape)
    table, examples = problem.table, int(problem.examples)
    found: dict[str, Any] = {
        "machines": machines,
        "samples": max(1, examples // machines) if table is None else int(table.sizes.min()),
        "dimension": problem.dimension,
        "delta": delta,
        "epsilon": _levels(experiment, delta),
    }
    if "per_round" not in given:
        if THEORY in (experiment.participation.model_dump().get("per_round"), shape.get("per_round")):
            raise Refusal("per_round must be given, as --per-round: the file leaves it to each method's theory")
        found["per_round"] = make_participation(experiment.participation, shape)[0].per_round
    constants = {
        "lipschitz": problem.lipschitz,
        "smoothness": problem.smoothness,
        "diameter": _enclosing(problem),
    }
    for name, value in constants.items():
        if name not in given and not isfinite(value):
            raise Refusal(f"{name} must be given, as --{name}: the file's problem has none")
        found[name] = float(value)
    return found


def _enclosing(problem: Problem) -> float:
    """The diameter of a ball around the constraint set: about zero, or by Jung's theorem."""
    return float(min(2 * problem.constraint.radius, sqrt(2) * problem.constraint.diameter))


def _levels(experiment: Experiment, delta: float) -> list[float] | None:
    """The ε that are swept, or those of the GDP parameters."""
    over = experiment.real_axes
    if "epsilon" in over:
        return [float(value) for value in over["epsilon"]]
    return [float(f"{float(gdp.epsilon(mu, delta)):.4g}") for mu in over["mu"]] if "mu" in over else None
