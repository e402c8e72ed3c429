"""Protocols that `[record] baselines` adds to an experiment."""

from collections.abc import Mapping
from dataclasses import fields
from math import inf

from fedprivjax.experiment.protocol import ProtocolSettings
from fedprivjax.experiment.settings import Experiment
from fedprivjax.privacy.target import LEVELS, TARGETS

NON_PRIVATE = "non-private"
OF_PRIVACY = (*TARGETS, "profile")  # settings that say how much privacy there is


def with_baselines(experiment: Experiment) -> Experiment:
    """The experiment with the protocols of its baselines, each after those of the file; equal ones are added once."""
    if NON_PRIVATE not in experiment.record.baselines:
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
