from . import datasets, privacy, theory
from .checks.refusal import Refusal
from .datasets.as_problem import from_dataset
from .engine.metric import Metric, Snapshot, of_info
from .engine.ready import ReadyRun, ready
from .engine.simulate import Run, simulate
from .engine.transcript import Transcript, transcript
from .plan.participation import Balanced, Full, Given, Schedule, Uniform, Varying
from .plan.plan import Plan, draw_plan
from .plan.seeds import Seeds
from .privacy.calibration import calibrate, guarantee
from .privacy.guarantee import PrivacyGuarantee
from .privacy.target import Target
from .problem.build import general_problem, linear_problem, procedural_problem
from .problem.constraints import Ball, WholeSpace
from .problem.losses import Absolute, Hinge, Huber, LinearLoss, Logistic, Pinball, Softmax, Squared
from .problem.problem import Problem
from .problem.smoothing import Moreau, ball_envelope
from .protocols import AcceleratedMinibatchSGD, DPMu2, LocalSGD, NoisyMinibatchSGD, NoisySGD, StaleMomentum
from .protocols.interface import Protocol
from .sweeps.results import final, guarantee_of, mean_interval
from .sweeps.sweep import sweep

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
    "Metric",
    "Moreau",
    "NoisyMinibatchSGD",
    "NoisySGD",
    "Pinball",
    "Plan",
    "PrivacyGuarantee",
    "Problem",
    "Protocol",
    "ReadyRun",
    "Refusal",
    "Run",
    "Schedule",
    "Seeds",
    "Snapshot",
    "Softmax",
    "Squared",
    "StaleMomentum",
    "Target",
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
    "guarantee_of",
    "linear_problem",
    "mean_interval",
    "of_info",
    "privacy",
    "procedural_problem",
    "ready",
    "simulate",
    "sweep",
    "theory",
    "transcript",
]
