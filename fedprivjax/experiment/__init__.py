"""Experiments as data: TOML files read into checked settings, and settings into what runs."""

from fedprivjax.experiment.build import LOSSES, by_batch, make_participation, make_problem, make_protocol
from fedprivjax.experiment.read import bundle, bundled, load, parse, to_mapping
from fedprivjax.experiment.settings import (
    TRIAL,
    Cell,
    Expected,
    Experiment,
    ParticipationSettings,
    ProblemSettings,
    ProtocolSettings,
)

__all__ = [
    "LOSSES",
    "TRIAL",
    "Cell",
    "Expected",
    "Experiment",
    "ParticipationSettings",
    "ProblemSettings",
    "ProtocolSettings",
    "bundle",
    "bundled",
    "by_batch",
    "load",
    "make_participation",
    "make_problem",
    "make_protocol",
    "parse",
    "to_mapping",
]
