"""Experiments as data: TOML files, their validated settings, and the runs that they describe."""

from fedprivjax.experiment.build import make_data, make_participation, make_problem, make_protocol
from fedprivjax.experiment.expected import Cell, Expected
from fedprivjax.experiment.protocol_section import ProtocolSettings
from fedprivjax.experiment.read import bundle, bundled, load, parse, titles, to_mapping, tuning_experiment
from fedprivjax.experiment.settings import TRIAL, Experiment, ProblemSettings

__all__ = [
    "TRIAL",
    "Cell",
    "Expected",
    "Experiment",
    "ProblemSettings",
    "ProtocolSettings",
    "bundle",
    "bundled",
    "load",
    "make_data",
    "make_participation",
    "make_problem",
    "make_protocol",
    "parse",
    "titles",
    "to_mapping",
    "tuning_experiment",
]
