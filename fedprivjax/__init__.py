"""Differentially private federated stochastic convex optimisation, simulated as one compiled JAX program."""

from fedprivjax import datasets, privacy, theory
from fedprivjax.constraints import Ball, WholeSpace
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.losses import LinearLoss, Logistic, Softmax, Squared
from fedprivjax.metrics import Snapshot
from fedprivjax.participation import Balanced, Full, Given, Schedule, Uniform
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.problem import Problem, general_problem, linear_problem
from fedprivjax.protocols import DPMu2, NoisySGD, StaleMomentum
from fedprivjax.results import final, mean_interval
from fedprivjax.sampling import Plan, Seeds, draw_plan
from fedprivjax.simulate import Run, simulate
from fedprivjax.sweep import sweep
from fedprivjax.transcript import Transcript, transcript

__all__ = [
    "Balanced",
    "Ball",
    "DPMu2",
    "Full",
    "Given",
    "LinearLoss",
    "Logistic",
    "NoisySGD",
    "Plan",
    "Problem",
    "Run",
    "Schedule",
    "Seeds",
    "Snapshot",
    "Softmax",
    "Squared",
    "StaleMomentum",
    "Transcript",
    "Uniform",
    "WholeSpace",
    "calibrate",
    "datasets",
    "draw_plan",
    "final",
    "from_dataset",
    "general_problem",
    "guarantee",
    "linear_problem",
    "mean_interval",
    "privacy",
    "simulate",
    "sweep",
    "theory",
    "transcript",
]
