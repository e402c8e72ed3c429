from . import datasets, privacy, theory
from .constraints import Ball, WholeSpace
from .datasets.as_problem import from_dataset
from .losses import Absolute, Hinge, Huber, LinearLoss, Logistic, Pinball, Softmax, Squared
from .metrics import Snapshot
from .participation import Balanced, Full, Given, Schedule, Uniform, Varying
from .privacy.calibration import calibrate, guarantee
from .problem import Problem, general_problem, linear_problem, procedural_problem
from .protocols import AcceleratedMinibatchSGD, DPMu2, LocalSGD, NoisyMinibatchSGD, NoisySGD, StaleMomentum
from .results import final, mean_interval
from .sampling import Plan, Seeds, draw_plan
from .simulate import Run, simulate
from .smoothing import Moreau, ball_envelope
from .sweep import sweep
from .transcript import Transcript, transcript

__all__ = [
    "Absolute",
    "AcceleratedMinibatchSGD",
    "Balanced",
    "Ball",
    "DPMu2",
    "Full",
    "Given",
    "Hinge",
    "Huber",
    "LinearLoss",
    "LocalSGD",
    "Logistic",
    "Moreau",
    "NoisyMinibatchSGD",
    "NoisySGD",
    "Pinball",
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
    "Varying",
    "WholeSpace",
    "ball_envelope",
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
    "procedural_problem",
    "simulate",
    "sweep",
    "theory",
    "transcript",
]
