"""Baselines that `[evaluation] baselines` adds to an experiment: protocols, and machines that train alone."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from math import inf

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.alone import machines_of
from fedprivjax.experiment.protocol import ProtocolSettings
from fedprivjax.experiment.settings import Experiment
from fedprivjax.privacy.target import LEVELS, TARGETS
from fedprivjax.problem.problem import Problem

NON_PRIVATE = "non-private"
ALONE = "alone"
OF_PRIVACY = (*TARGETS, "relative_privacy")  # settings that say how much privacy there is


def with_baselines(experiment: Experiment) -> Experiment:
    """The experiment with the protocols of its baselines, each after those of the file; equal ones are added once."""
    if NON_PRIVATE not in experiment.evaluation.baselines:
        return experiment
    protocols = list(experiment.protocol)
    for settings in experiment.protocol:
        made = _non_private(settings, experiment.sweep.over)
        if made is not None and not any(_alike(made, other) for other in protocols):
            protocols.append(made)
    return experiment.model_copy(update={"protocol": protocols})


def _non_private(settings: ProtocolSettings, over: Mapping[str, list[float]]) -> ProtocolSettings | None:
    """The protocol without its privacy target and with ε = ∞, or None if it is not private.

    Of a user-defined protocol that is not imported, the target alone tells whether it is.
    """
    method, given = settings.method, {*settings.settings, *settings.grid, *over}
    known = {field.name for field in fields(method)} if isinstance(method, type) else set(LEVELS)
    level = next((name for name in LEVELS if name in known), None)
    free = any(settings.settings.get(name) == inf for name in LEVELS)
    if level is None or free or not given & set(TARGETS):
        return None
    kept = {name: value for name, value in settings.settings.items() if name not in OF_PRIVACY}
    grid = {name: values for name, values in settings.grid.items() if name not in TARGETS}
    own = {"label": f"{settings.label}, {NON_PRIVATE}", "settings": {**kept, level: inf}, "grid": grid}
    return settings.model_copy(update={**own, "added": True})


def _alike(one: ProtocolSettings, other: ProtocolSettings) -> bool:
    """Whether two protocols differ in their labels at most."""
    return one.model_dump(exclude={"label"}) == other.model_dump(exclude={"label"})


def problem_alone(experiment: Experiment, problem: Problem, over: Collection[str]) -> Problem | None:
    """The problem whose machines train alone, or None if the experiment does not ask for that.

    Args:
        over: the swept settings and those of the protocol's grid.

    Raises:
        Refusal: machines own no records, or the constraint set is swept.
    """
    if ALONE not in experiment.evaluation.baselines:
        return None
    machines_of(problem)  # refuses a shared pool
    swept = [name for name in problem.constraint.sizes if name in over]
    if swept:
        remedy = f"Give {swept[0]} one value in [problem]"
        raise Refusal(f"evaluation.baselines must leave 'alone' out where {swept[0]} is swept, got both. {remedy}")
    return problem
