"""Experiments as data: TOML files read into checked settings, and settings into what runs."""

from fedprivjax.experiment.build import by_batch, make_participation, make_problem, make_protocol
from fedprivjax.experiment.losses import LOSSES, LossSettings
from fedprivjax.experiment.names import resolve
from fedprivjax.experiment.participation import ParticipationSettings
from fedprivjax.experiment.protocol import ProtocolSettings
from fedprivjax.experiment.read import bundle, bundled, load, parse, to_mapping
from fedprivjax.experiment.settings import TRIAL, Cell, Expected, Experiment, ProblemSettings

__all__ = [
    "LOSSES",
    "TRIAL",
    "Cell",
    "Expected",
    "Experiment",
    "LossSettings",
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
    "resolve",
    "to_mapping",
]
