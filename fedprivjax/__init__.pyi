from . import datasets as datasets
from . import features as features
from . import noise as noise
from . import planner as planner
from . import privacy as privacy
from . import testing as testing
from . import theory as theory
from .auditing.audit import Audit as Audit
from .auditing.audit import audit as audit
from .auditing.neighbouring import Federation as Federation
from .auditing.one_run import OneRunAudit as OneRunAudit
from .auditing.one_run import audit_one_run as audit_one_run
from .checks.refusal import Refusal as Refusal
from .datasets.as_problem import from_dataset as from_dataset
from .engine.fine_tuning import fine_tuned as fine_tuned
from .engine.finished_run import Run as Run
from .engine.finished_run import SavedRun as SavedRun
from .engine.metric import Metric as Metric
from .engine.metric import Snapshot as Snapshot
from .engine.metric import of_info as of_info
from .engine.prepare import ReadyRun as ReadyRun
from .engine.prepare import ready as ready
from .engine.simulate import simulate as simulate
from .engine.transcript import Transcript as Transcript
from .engine.transcript import transcript as transcript
from .experiment.results import Results as Results
from .experiment.results import load as load
from .leaderboards.leaderboard import Leaderboard as Leaderboard
from .leaderboards.leaderboard import leaderboard as leaderboard
from .method.adaptive_clip import AdaptiveClip as AdaptiveClip
from .method.algorithm import Algorithm as Algorithm
from .method.algorithm import At as At
from .method.algorithm import Before as Before
from .method.algorithm import Growing as Growing
from .method.algorithm import Mean as Mean
from .method.algorithm import Momentum as Momentum
from .method.algorithm import NormBound as NormBound
from .method.algorithm import Public as Public
from .method.algorithm import Sum as Sum
from .method.encoders import Encoder as Encoder
from .method.encoders import Quantiser as Quantiser
from .method.encoders import Sparsifier as Sparsifier
from .method.gossip import Gossip as Gossip
from .method.gossip import GradientSteps as GradientSteps
from .method.integer_sums import IntegerSums as IntegerSums
from .method.linear import Linear as Linear
from .method.linear import gradient as gradient
from .method.linear import per_record as per_record
from .method.local_algorithm import AtServer as AtServer
from .method.local_algorithm import LocalAlgorithm as LocalAlgorithm
from .method.local_algorithm import Work as Work
from .method.local_data import LocalData as LocalData
from .method.local_data import Minibatch as Minibatch
from .method.local_release import LocalPrivacy as LocalPrivacy
from .method.noisy_messages import NoisyMessages as NoisyMessages
from .method.noisy_momentum import NoisyMomentum as NoisyMomentum
from .method.noisy_records import NoisyRecords as NoisyRecords
from .method.private_mean import GaussianMean as GaussianMean
from .method.protocol import Protocol as Protocol
from .method.record_steps import NoisyRecordSteps as NoisyRecordSteps
from .method.release import MessagePrivacy as MessagePrivacy
from .method.round import RoundInputs as RoundInputs
from .method.round import add_noise as add_noise
from .method.round import cohort_messages as cohort_messages
from .method.round import cohort_sum as cohort_sum
from .method.server_optimizer import ServerOptimizer as ServerOptimizer
from .method.shuffled_bits import BitMean as BitMean
from .method.shuffled_sums import VectorSum as VectorSum
from .method.work_privacy import WorkPrivacy as WorkPrivacy
from .noise.factors.of_rounds import BLT as BLT
from .noise.factors.of_rounds import Banded as Banded
from .noise.graphs import RandomRings as RandomRings
from .noise.graphs import Torus as Torus
from .noise.mixing import Matchings as Matchings
from .noise.mixing import Mixing as Mixing
from .noise.pairwise import Pairwise as Pairwise
from .noise.server_factors import AnySchedule as AnySchedule
from .plan.draw import draw_plan as draw_plan
from .plan.participation import (
    Balanced as Balanced,
)
from .plan.participation import (
    Buffered as Buffered,
)
from .plan.participation import (
    BySize as BySize,
)
from .plan.participation import (
    Cohorts as Cohorts,
)
from .plan.participation import (
    Cyclic as Cyclic,
)
from .plan.participation import (
    CyclicPoisson as CyclicPoisson,
)
from .plan.participation import (
    Delays as Delays,
)
from .plan.participation import (
    Dropouts as Dropouts,
)
from .plan.participation import (
    Full as Full,
)
from .plan.participation import (
    Given as Given,
)
from .plan.participation import (
    OnePass as OnePass,
)
from .plan.participation import (
    Participation as Participation,
)
from .plan.participation import (
    PoissonCohorts as PoissonCohorts,
)
from .plan.participation import (
    SecretSubsets as SecretSubsets,
)
from .plan.participation import (
    Timed as Timed,
)
from .plan.participation import (
    Uniform as Uniform,
)
from .plan.participation import (
    Varying as Varying,
)
from .plan.participation import (
    Weighted as Weighted,
)
from .plan.plan import Plan as Plan
from .plan.samplers import LocalEpochs as LocalEpochs
from .plan.samplers import LocalSteps as LocalSteps
from .plan.samplers import LocalWork as LocalWork
from .plan.schedule import Late as Late
from .plan.schedule import Schedule as Schedule
from .plan.seeds import Seeds as Seeds
from .privacy.accountants.binomial.accountant import BinomialSums as BinomialSums
from .privacy.adversaries import Adversary as Adversary
from .privacy.adversaries import FinalModel as FinalModel
from .privacy.adversaries import LinearAdversary as LinearAdversary
from .privacy.adversaries import SecureSum as SecureSum
from .privacy.adversaries import ThirdParty as ThirdParty
from .privacy.calibration import calibrate as calibrate
from .privacy.calibration import guarantee as guarantee
from .privacy.coalition import Coalition as Coalition
from .privacy.events import Event as Event
from .privacy.events import GaussianEvent as GaussianEvent
from .privacy.guarantee import PrivacyGuarantee as PrivacyGuarantee
from .privacy.neighbours import Neighbours as Neighbours
from .privacy.per_machine import Grouped as Grouped
from .privacy.pure import PureEvent as PureEvent
from .privacy.target import Target as Target
from .privacy.terms import USED_ONCE as USED_ONCE
from .privacy.terms import Assumption as Assumption
from .privacy.terms import Terms as Terms
from .problem.build import general_problem as general_problem
from .problem.build import linear_problem as linear_problem
from .problem.build import procedural_problem as procedural_problem
from .problem.constraints import Ball as Ball
from .problem.constraints import Box as Box
from .problem.constraints import ConstraintSet as ConstraintSet
from .problem.constraints import L1Ball as L1Ball
from .problem.constraints import Simplex as Simplex
from .problem.constraints import WholeSpace as WholeSpace
from .problem.linear_loss import LinearLoss as LinearLoss
from .problem.losses import Absolute as Absolute
from .problem.losses import GemanMcClure as GemanMcClure
from .problem.losses import Hinge as Hinge
from .problem.losses import Huber as Huber
from .problem.losses import Logistic as Logistic
from .problem.losses import Pinball as Pinball
from .problem.losses import Softmax as Softmax
from .problem.losses import Squared as Squared
from .problem.losses import Tukey as Tukey
from .problem.networks import CNN as CNN
from .problem.networks import MLP as MLP
from .problem.problem import Problem as Problem
from .problem.sequences import LSTM as LSTM
from .problem.smoothing import Moreau as Moreau
from .problem.smoothing import ball_envelope as ball_envelope
from .protocols import (
    DSGD as DSGD,
)
from .protocols import (
    AcceleratedMinibatchSGD as AcceleratedMinibatchSGD,
)
from .protocols import (
    ControlVariates as ControlVariates,
)
from .protocols import (
    Ditto as Ditto,
)
from .protocols import (
    DPMu2 as DPMu2,
)
from .protocols import (
    DPZero as DPZero,
)
from .protocols import (
    FedAvg as FedAvg,
)
from .protocols import (
    FedDyn as FedDyn,
)
from .protocols import (
    FedExP as FedExP,
)
from .protocols import (
    FedNova as FedNova,
)
from .protocols import (
    FedPer as FedPer,
)
from .protocols import (
    LocalGradientSteps as LocalGradientSteps,
)
from .protocols import (
    LocalSGD as LocalSGD,
)
from .protocols import (
    MimeLite as MimeLite,
)
from .protocols import (
    NoisyMinibatchSGD as NoisyMinibatchSGD,
)
from .protocols import (
    NoisySGD as NoisySGD,
)
from .protocols import (
    ProxSkip as ProxSkip,
)
from .protocols import (
    ReducedTreeMomentum as ReducedTreeMomentum,
)
from .protocols import (
    Scaffold as Scaffold,
)
from .protocols import (
    Staged as Staged,
)
from .protocols import (
    StaleMomentum as StaleMomentum,
)
from .protocols import (
    TreeMomentum as TreeMomentum,
)
from .protocols import (
    UserAGD as UserAGD,
)
from .protocols import (
    UserSGD as UserSGD,
)
from .report.display import Tables as Tables
from .report.display import plot as plot
from .report.display import table as table
from .report.frame import Frame as Frame
from .report.frame import frame as frame
from .sweeps.intervals import mean_interval as mean_interval
from .sweeps.results import averaged as averaged
from .sweeps.results import bytes_to as bytes_to
from .sweeps.results import final as final
from .sweeps.results import gradients_to as gradients_to
from .sweeps.results import guarantee_of as guarantee_of
from .sweeps.results import hours_to as hours_to
from .sweeps.results import rounds_to as rounds_to
from .sweeps.saved_runs import load_run as load_run
from .sweeps.saved_runs import run_of as run_of
from .sweeps.selection import select as select
from .sweeps.sweep import sweep as sweep
from .testing import check_protocol as check_protocol

__version__: str
__all__: list[str]
