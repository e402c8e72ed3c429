"""Arguments of `planner.plan` from an experiment: its problem, participation and privacy levels."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from math import isfinite, sqrt
from typing import Any, NamedTuple

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.experiment.build import machines_of, make_participation, make_protocol, problem_at
from fedprivjax.experiment.read import load
from fedprivjax.experiment.section import THEORY
from fedprivjax.experiment.settings import TRIAL, Experiment, ProtocolSettings
from fedprivjax.method.planning.setting import SIZES, Setting
from fedprivjax.privacy import gdp
from fedprivjax.privacy.rounding import up
from fedprivjax.problem.problem import Table

KEYS = {each.name: each for each in fields(Setting) if each.name != "cached"}
UNIFORM = ("full", "uniform")  # kinds of participation that the planner models exactly


class PlanSettings(NamedTuple):
    """Arguments of a method comparison, from an experiment and the command line.

    Attributes:
        arguments: keyword arguments of `planner.plan`.
        replaced: phrases that describe the settings of an experiment which the comparison simplifies.
    """

    arguments: dict[str, Any]
    replaced: list[str]


def plan_settings(spec: str | None, given: Mapping[str, Any]) -> PlanSettings:
    """Return the arguments of `planner.plan`: an experiment's settings, overridden by `given`.

    An experiment gives its machines, the size and constants of its problem, δ, and its swept ε. The comparison assumes
    equal machines, so all have the size of the smallest.

    Args:
        spec: path of an experiment file, name of a bundled experiment, or None.
        given: options of the command line by key.

    Raises:
        Refusal: if the file does not exist, or a required setting is not given.

    >>> given = {"machines": 2, "per_round": 1, "samples": 3, "dimension": 4, "epsilon": 1.0}
    >>> plan_settings(None, given).arguments == given
    True
    """
    found, replaced = PlanSettings({}, []) if spec is None else _of_experiment(load(spec), given)
    settings = {**found, **given}
    for name, each in KEYS.items():
        if name in SIZES and name in given:  # an invalid size is named before a missing one
            require_at_least(name, given[name], 1)
        if each.default is MISSING and settings.get(name) is None:
            raise Refusal(f"{name} must be given, as --{name.replace('_', '-')} or by an experiment")
    return PlanSettings({name: value for name, value in settings.items() if value is not None}, replaced)


def _of_experiment(experiment: Experiment, given: Mapping[str, Any]) -> PlanSettings:
    problem, shape = problem_at(experiment, experiment.shapes[0])
    machines, delta = machines_of(experiment.participation, shape), given.get("delta", experiment.evaluation.delta)
    table, examples = problem.partition_table, int(problem.examples)
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
    diameter = min(2 * problem.constraint.radius, sqrt(2) * problem.constraint.diameter)  # of the ball, or of Jung's
    constants = {"lipschitz": problem.lipschitz, "smoothness": problem.smoothness, "diameter": diameter}
    for name, value in constants.items():
        if name not in given and not isfinite(value):
            raise Refusal(f"{name} must be given, as --{name}: the file's problem has none")
        found[name] = float(value)
    if all(one.settings.get("unit") == "machine" for one in experiment.protocol):
        found["unit"] = "machine"
    return PlanSettings(found, list(_replaced(experiment, table, given)))


def _replaced(experiment: Experiment, table: Table | None, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield phrases that describe the parts of an experiment that are simplified."""
    participation, first = experiment.participation, experiment.shapes[0]
    for name, value in first.items():
        swept = {shape[name] for shape in experiment.shapes}
        if len(swept) > 1 and name not in given and name not in (TRIAL, "rounds"):
            yield f"{len(swept)} swept values of {name} by the first ({value})"
    if table is not None and not {"machines", "samples"} & given.keys() and table.sizes.min() < table.sizes.max():
        smallest, largest = int(table.sizes.min()), int(table.sizes.max())
        yield (
            f"{table.sizes.sum()} records on {table.sizes.size} machines, {smallest} to {largest} each, "
            f"by {smallest} each: the smallest machine sets noise, guarantee and rounds"
        )
    if participation.kind not in UNIFORM:
        yield f"participation {participation.kind!r} by uniformly random subsets, or all machines"
    if participation.dropouts != 0:
        yield "its dropouts by machines that are always there"
    settings = [one.settings for one in experiment.protocol]
    for adversary in dict.fromkeys(str(one["adversary"]) for one in settings if one.get("adversary") is not None):
        yield f"the adversary {adversary} by that of the trust model"
    trusted = [trust for trust in map(_trust, experiment.protocol) if trust != "none"]
    if trusted and "trust" not in given:
        words = " and ".join(dict.fromkeys(trusted))
        yield f"trust {words} by none, the strictest (--trust {trusted[0]} keeps it)"
    units = {one.get("unit", "record") for one in settings}
    if units == {"record", "machine"} and "unit" not in given:
        yield "guarantees for machines by guarantees for one record"
    rounds = first.get("rounds", participation.planned)
    if rounds is not None and "rounds" not in given:
        yield f"{rounds} rounds by each method's own (--rounds {rounds} keeps them)"


def _trust(settings: ProtocolSettings) -> str:
    """Return the trust model of a `[[protocol]]` entry, with unit = "machine" that of the method's own default."""
    given = settings.settings
    if "trust" in given or given.get("unit") != "machine":
        return str(given.get("trust", "none"))
    return str(getattr(make_protocol(settings).privacy, "trust", "none"))


def _levels(experiment: Experiment, delta: float) -> list[float] | None:
    """Return the swept values of ε, converted from μ and rounded up if that is swept, or None."""
    over = experiment.real_axes
    if "epsilon" in over:
        return [float(value) for value in over["epsilon"]]
    return [float(up(float(gdp.epsilon(mu, delta)), 4)) for mu in over["mu"]] if "mu" in over else None
