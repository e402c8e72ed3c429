from . import datasets, features, noise, planner, privacy, testing, theory
from .auditing.audit import Audit, audit
from .auditing.neighbouring import Federation
from .auditing.one_run import OneRunAudit, audit_one_run
from .checks.refusal import Refusal
from .datasets.as_problem import from_dataset
from .engine.fine_tuning import fine_tuned
from .engine.finished_run import Run, SavedRun
from .engine.metric import Metric, Snapshot, of_info
from .engine.prepare import ReadyRun, ready
from .engine.simulate import simulate
from .engine.transcript import Transcript, transcript
from .experiment.results import Results, load
from .experiment.saved_runs import load_run, run_of
from .method.adaptive_clip import AdaptiveClip
from .method.algorithm import Algorithm, At, Before, Growing, Mean, Momentum, NormBound, Public, Sum
from .method.encoders import Encoder, Quantiser, Sparsifier
from .method.gossip import Gossip, GradientSteps
from .method.integer_sums import IntegerSums
from .method.linear import Linear, gradient, per_record
from .method.local_algorithm import AtServer, LocalAlgorithm, Work
from .method.local_data import LocalData, Minibatch
from .method.local_release import LocalPrivacy
from .method.noisy_messages import NoisyMessages
from .method.noisy_momentum import NoisyMomentum
from .method.noisy_records import NoisyRecords
from .method.private_mean import BitMean, GaussianMean
from .method.protocol import Protocol
from .method.record_steps import NoisyRecordSteps
from .method.release import MessagePrivacy
from .method.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from .method.server_optimizer import ServerOptimizer
from .method.shuffled_sums import ScalarSum, VectorSum
from .method.work_privacy import WorkPrivacy
from .noise.factors.of_rounds import BLT, Banded
from .noise.graphs import RandomRings, Torus
from .noise.mixing import Matchings, Mixing
from .noise.pairwise import Pairwise
from .noise.rounds import AnySchedule
from .plan.draw import draw_plan
from .plan.participation import (
    Balanced,
    Buffered,
    BySize,
    Cohorts,
    Cyclic,
    CyclicPoisson,
    Delays,
    Dropouts,
    Full,
    Given,
    OnePass,
    Participation,
    PoissonCohorts,
    SecretSubsets,
    Timed,
    Uniform,
    Varying,
    Weighted,
)
from .plan.plan import Plan
from .plan.samplers import LocalEpochs, LocalSteps, LocalWork
from .plan.schedule import Late, Schedule
from .plan.seeds import Seeds
from .privacy.accountants.binomial.accountant import BinomialSums
from .privacy.adversaries import Adversary, FinalModel, LinearAdversary, SecureSum, ThirdParty
from .privacy.calibration import calibrate, guarantee
from .privacy.coalition import Coalition
from .privacy.events import Event, GaussianEvent
from .privacy.guarantee import PrivacyGuarantee
from .privacy.neighbours import Neighbours
from .privacy.per_machine import Grouped
from .privacy.pure import PureEvent
from .privacy.target import Target
from .privacy.terms import USED_ONCE, Assumption, Terms
from .problem.build import general_problem, linear_problem, procedural_problem
from .problem.constraints import Ball, Box, ConstraintSet, L1Ball, Simplex, WholeSpace
from .problem.linear_loss import LinearLoss
from .problem.losses import Absolute, GemanMcClure, Hinge, Huber, Logistic, Pinball, Softmax, Squared, Tukey
from .problem.networks import CNN, MLP
from .problem.problem import Problem
from .problem.sequences import LSTM
from .problem.smoothing import Moreau, ball_envelope
from .protocols import (
    DSGD,
    AcceleratedMinibatchSGD,
    ControlVariates,
    Ditto,
    DPMu2,
    DPZero,
    FedAvg,
    FedDyn,
    FedExP,
    FedNova,
    FedPer,
    LocalGradientSteps,
    LocalSGD,
    MimeLite,
    NoisyMinibatchSGD,
    NoisySGD,
    ProxSkip,
    ReducedTreeMomentum,
    Scaffold,
    Staged,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
)
from .report.display import Tables, plot, table
from .report.frame import Frame, frame
from .report.leaderboard import Leaderboard, leaderboard
from .sweeps.results import averaged, bytes_to, final, gradients_to, guarantee_of, hours_to, mean_interval, rounds_to
from .sweeps.selection import select
from .sweeps.sweep import sweep
from .testing import check_protocol

__version__: str

__all__ = [
    "BLT",
    "CNN",
    "DSGD",
    "LSTM",
    "MLP",
    "USED_ONCE",
    "Absolute",
    "AcceleratedMinibatchSGD",
    "AdaptiveClip",
    "Adversary",
    "Algorithm",
    "AnySchedule",
    "Assumption",
    "At",
    "AtServer",
    "Audit",
    "Balanced",
    "Ball",
    "Banded",
    "Before",
    "BinomialSums",
    "BitMean",
    "Box",
    "Buffered",
    "BySize",
    "Coalition",
    "Cohorts",
    "ConstraintSet",
    "ControlVariates",
    "Cyclic",
    "CyclicPoisson",
    "DPMu2",
    "DPZero",
    "Delays",
    "Ditto",
    "Dropouts",
    "Encoder",
    "Event",
    "FedAvg",
    "FedDyn",
    "FedExP",
    "FedNova",
    "FedPer",
    "Federation",
    "FinalModel",
    "Frame",
    "Full",
    "GaussianEvent",
    "GaussianMean",
    "GemanMcClure",
    "Given",
    "Gossip",
    "GradientSteps",
    "Grouped",
    "Growing",
    "Hinge",
    "Huber",
    "IntegerSums",
    "L1Ball",
    "Late",
    "Leaderboard",
    "Linear",
    "LinearAdversary",
    "LinearLoss",
    "LocalAlgorithm",
    "LocalData",
    "LocalEpochs",
    "LocalGradientSteps",
    "LocalPrivacy",
    "LocalSGD",
    "LocalSteps",
    "LocalWork",
    "Logistic",
    "Matchings",
    "Mean",
    "MessagePrivacy",
    "Metric",
    "MimeLite",
    "Minibatch",
    "Mixing",
    "Momentum",
    "Moreau",
    "Neighbours",
    "NoisyMessages",
    "NoisyMinibatchSGD",
    "NoisyMomentum",
    "NoisyRecordSteps",
    "NoisyRecords",
    "NoisySGD",
    "NormBound",
    "OnePass",
    "OneRunAudit",
    "Pairwise",
    "Participation",
    "Pinball",
    "Plan",
    "PoissonCohorts",
    "PrivacyGuarantee",
    "Problem",
    "Protocol",
    "ProxSkip",
    "Public",
    "PureEvent",
    "Quantiser",
    "RandomRings",
    "ReadyRun",
    "ReducedTreeMomentum",
    "Refusal",
    "Results",
    "RoundInputs",
    "Run",
    "SavedRun",
    "Scaffold",
    "ScalarSum",
    "Schedule",
    "SecretSubsets",
    "SecureSum",
    "Seeds",
    "ServerOptimizer",
    "Simplex",
    "Snapshot",
    "Softmax",
    "Sparsifier",
    "Squared",
    "Staged",
    "StaleMomentum",
    "Sum",
    "Tables",
    "Target",
    "Terms",
    "ThirdParty",
    "Timed",
    "Torus",
    "Transcript",
    "TreeMomentum",
    "Tukey",
    "Uniform",
    "UserAGD",
    "UserSGD",
    "Varying",
    "VectorSum",
    "Weighted",
    "WholeSpace",
    "Work",
    "WorkPrivacy",
    "add_noise",
    "audit",
    "audit_one_run",
    "averaged",
    "ball_envelope",
    "bytes_to",
    "calibrate",
    "check_protocol",
    "cohort_messages",
    "cohort_sum",
    "datasets",
    "draw_plan",
    "features",
    "final",
    "fine_tuned",
    "frame",
    "from_dataset",
    "general_problem",
    "gradient",
    "gradients_to",
    "guarantee",
    "guarantee_of",
    "hours_to",
    "leaderboard",
    "linear_problem",
    "load",
    "load_run",
    "mean_interval",
    "noise",
    "of_info",
    "per_record",
    "planner",
    "plot",
    "privacy",
    "procedural_problem",
    "ready",
    "rounds_to",
    "run_of",
    "select",
    "simulate",
    "sweep",
    "table",
    "testing",
    "theory",
    "transcript",
]
