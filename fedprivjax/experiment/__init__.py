"""Experiments as data: TOML files, their validated settings, and the runs that they describe."""

from fedprivjax.experiment.build import (
    machines_of,
    make_data,
    make_participation,
    make_problem,
    make_protocol,
    points,
    present,
)
from fedprivjax.experiment.losses import LossSettings
from fedprivjax.experiment.names import resolve
from fedprivjax.experiment.participation import ParticipationSettings
from fedprivjax.experiment.protocol import ProtocolSettings
from fedprivjax.experiment.read import bundle, bundled, load, parse, titles, to_mapping, tuning_experiment
from fedprivjax.experiment.settings import TRIAL, Cell, Expected, Experiment, ProblemSettings

__all__ = [
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
    "load",
    "machines_of",
    "make_data",
    "make_participation",
    "make_problem",
    "make_protocol",
    "parse",
    "points",
    "present",
    "resolve",
    "titles",
    "to_mapping",
    "tuning_experiment",
]
