"""Baselines of `[evaluation] baselines`: non-private protocols, and machines that train alone."""

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
OF_PRIVACY = (*TARGETS, "relative_privacy")  # settings of the privacy level


def with_baselines(experiment: Experiment) -> Experiment:
    """Return the experiment with its baseline protocols added after those of the file. Equal ones are added once."""
    if NON_PRIVATE not in experiment.evaluation.baselines:
        return experiment
    protocols = list(experiment.protocol)
    for settings in experiment.protocol:
        made = _non_private(settings, experiment.sweep.over)
        if made is not None and not any(_equal_but_label(made, other) for other in protocols):
            protocols.append(made)
    return experiment.but(protocol=protocols)


def _non_private(settings: ProtocolSettings, over: Mapping[str, list[float]]) -> ProtocolSettings | None:
    """Return the protocol without its privacy target and with ε = ∞, or None if it is not private.

    A user-defined protocol that is not imported counts as private if it has a target.
    """
    method, given = settings.method, {*settings.settings, *settings.grid, *over}
    known = {field.name for field in fields(method)} if isinstance(method, type) else set(LEVELS)
    level = next((name for name in LEVELS if name in known), None)
    free = any(settings.settings.get(name) == inf for name in LEVELS)
    if level is None or free or not given & set(TARGETS):
        return None
    kept = {name: value for name, value in settings.settings.items() if name not in OF_PRIVACY}
    grid = {name: values for name, values in settings.grid.items() if name not in TARGETS}
    label = f"{settings.label}, {NON_PRIVATE}"
    return settings.but(label=label, settings={**kept, level: inf}, grid=grid, added=True)


def _equal_but_label(one: ProtocolSettings, other: ProtocolSettings) -> bool:
    """Return True if two protocols are equal except for their labels."""
    return one.model_dump(exclude={"label"}) == other.model_dump(exclude={"label"})


def problem_alone(experiment: Experiment, problem: Problem, over: Collection[str]) -> Problem | None:
    """Return the problem of the baseline "alone", or None without that baseline.

    Args:
        over: names of the swept settings and of those in the protocol's grid.

    Raises:
        Refusal: if the data are not partitioned, or the constraint set is swept.
    """
    if ALONE not in experiment.evaluation.baselines:
        return None
    machines_of(problem)  # raises Refusal for a shared pool
    swept = [name for name in problem.constraint.sizes if name in over]
    if swept:
        remedy = f"Give {swept[0]} one value in [problem]"
        raise Refusal(f"evaluation.baselines must leave 'alone' out if {swept[0]} is swept, got both. {remedy}")
    return problem
