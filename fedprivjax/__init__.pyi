from . import datasets, noise, privacy, testing, theory
from .checks.refusal import Refusal
from .datasets.as_problem import from_dataset
from .engine.metric import Metric, Snapshot, of_info
from .engine.ready import ReadyRun, ready
from .engine.simulate import Run, simulate
from .engine.transcript import Transcript, transcript
from .plan.participation import Balanced, Cohorts, Full, Given, OnePass, Schedule, Uniform, Varying
from .plan.plan import Plan, draw_plan
from .plan.seeds import Seeds
from .privacy.accountants.binomial import BinomialSums
from .privacy.calibration import calibrate, guarantee
from .privacy.events import Event, GaussianEvent
from .privacy.grouped import Grouped
from .privacy.guarantee import PrivacyGuarantee
from .privacy.target import Target
from .privacy.terms import USED_ONCE, Assumption, Terms
from .problem.build import general_problem, linear_problem, procedural_problem
from .problem.constraints import Ball, WholeSpace
from .problem.losses import Absolute, GemanMcClure, Hinge, Huber, LinearLoss, Logistic, Pinball, Softmax, Squared, Tukey
from .problem.networks import CNN, MLP
from .problem.problem import Problem
from .problem.smoothing import Moreau, ball_envelope
from .protocols import (
    AcceleratedMinibatchSGD,
    DPMu2,
    LocalSGD,
    NoisyMinibatchSGD,
    NoisySGD,
    ReducedTreeMomentum,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
)
from .protocols.interface import Protocol
from .protocols.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from .protocols.sums import ScalarSum, VectorSum
from .sweeps.results import averaged, final, guarantee_of, mean_interval
from .sweeps.sweep import sweep
from .testing import check_protocol

__all__ = [
    "CNN",
    "MLP",
    "USED_ONCE",
    "Absolute",
    "AcceleratedMinibatchSGD",
    "Assumption",
    "Balanced",
    "Ball",
    "BinomialSums",
    "Cohorts",
    "DPMu2",
    "Event",
    "Full",
    "GaussianEvent",
    "GemanMcClure",
    "Given",
    "Grouped",
    "Hinge",
    "Huber",
    "LinearLoss",
    "LocalSGD",
    "Logistic",
    "Metric",
    "Moreau",
    "NoisyMinibatchSGD",
    "NoisySGD",
    "OnePass",
    "Pinball",
    "Plan",
    "PrivacyGuarantee",
    "Problem",
    "Protocol",
    "ReadyRun",
    "ReducedTreeMomentum",
    "Refusal",
    "RoundInputs",
    "Run",
    "ScalarSum",
    "Schedule",
    "Seeds",
    "Snapshot",
    "Softmax",
    "Squared",
    "StaleMomentum",
    "Target",
    "Terms",
    "Transcript",
    "TreeMomentum",
    "Tukey",
    "Uniform",
    "UserAGD",
    "UserSGD",
    "Varying",
    "VectorSum",
    "WholeSpace",
    "add_noise",
    "averaged",
    "ball_envelope",
    "calibrate",
    "check_protocol",
    "cohort_messages",
    "cohort_sum",
    "datasets",
    "draw_plan",
    "final",
    "from_dataset",
    "general_problem",
    "guarantee",
    "guarantee_of",
    "linear_problem",
    "mean_interval",
    "noise",
    "of_info",
    "privacy",
    "procedural_problem",
    "ready",
    "simulate",
    "sweep",
    "testing",
    "theory",
    "transcript",
]
