r"""Normalised SGD with private momentum: Algorithm 1 of Tran & Cutkosky (NeurIPS 2022), for non-convex losses too.

With g_t the mean gradient of a round's records, in epochs over every machine's own,

    m_t = (1−α)·m_{t−1} + α·g_t                     m̂_t = m_t + noise_t
    w_{t+1} = Π_W(w_t − η·m̂_t/‖m̂_t‖)                output: one of w_1 … w_T, drawn uniformly

where noise_t comes from a tree over rounds, so that it grows with log T where fresh noise on every gradient grows with
√(1/α). A trusted server has one tree for the mean; otherwise every machine has its own and sends its own m̂_t, and the
mean of M trees is one tree with 1/√M of the noise. The paper's output index is drawn beforehand; here w_t takes the
place of what was kept with probability 1/t, which is the same law whatever T.
"""

from dataclasses import replace
from math import isfinite, sqrt

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.momentum import (
    MomentumMethod,
    computed_once,
    record_uses,
    require_level,
)
from fedprivjax.method.momentum_planning import (
    OF_RANDOM,
    PARTIAL_TREES,
    epochs_of_records,
    gradient_bound,
    momentum_constants,
)
from fedprivjax.method.planning.bounds import Bound, PlannedRun, missing
from fedprivjax.method.planning.uses import Use
from fedprivjax.noise import Mechanism, Streamed
from fedprivjax.noise.factors import FACTORS, Correlated, Factor, Path
from fedprivjax.noise.fresh import MessageInputs, PerMachine
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.calibration import SENSITIVITY_UNKNOWN
from fedprivjax.privacy.events import Claim
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import tran_cutkosky as theory

RULES = {
    "accountant": "the least noise for the places at which the plan uses each record",
    "paper": "Theorem 4's, from its count V of the nodes that hold a record and its bound on what moves them",
}
PAPER_NODES = ("tree", "sensitivity tree")


@struct.dataclass
class TreeMomentum(MomentumMethod):
    """Normalised SGD with momentum that a tree makes private.

    Attributes:
        mu, epsilon: target, one of them; inf is non-private.
        noise_std: σ, the noise of one node of one tree (of α·g_t where the factor is "independent").
        step_size, step_scale: η, the length of every step, and a factor on it; None is Theorem 6's 1/√(N·T), times
            min(D, 2·√d·G/L) of clipped gradients in a set of diameter D (`noise_reach`; no theorem is claimed). Where
            the momentum is 0, there is no step.
        alpha: α, in [1/N, 1] with N the rounds of an epoch; None is Theorem 6's, or 1/N without an ε.
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        batch: K, records of a machine's in a round; it divides a machine's records.
        sampler: "cyclic" (every epoch in one order) or "reshuffled"; orders are public.
        noise_rule: "accountant", the least noise for the records' own places; "paper", Theorem 4's with its count V.
        trust: "server" (one tree for the mean) or "none" (every machine has its own, and takes part in every round).
        relative_privacy: where machines' μ differ, these in any unit, one for each machine: the largest is `mu`, and
            the others' noises are as many times larger as their numbers are smaller; untrusted server only. No machine
            gets more than its part of the target; those that their weights or orders expose less get less.
        factor: how the noise is made: "tree"; "sensitivity tree", whose nodes have noise in proportion to what a record
            moves them in cyclic order; "independent", fresh noise on every gradient; or a `Factor`.
        epoch: N; `calibrate` fills it in.

    **Privacy**: μ-GDP for replacing one record, `μ² = max_records Σ_nodes (2·C/K·α·Σ_{t∈node} (1−α)^{z−t} / σ)²` over
    the rounds t that use it (of a machine's own tree; a server's has C/(K·M)): nodes are Gaussian mechanisms, each
    chosen after those before, and what follows is post-processing.
    """

    factor: str | Factor = struct.field(pytree_node=False, default="tree")

    rules = RULES

    def __post_init__(self):
        super().__post_init__()
        require_choice("sampler", self.sampler, ("cyclic", "reshuffled"))
        if isinstance(self.factor, str):
            require_choice("factor", self.factor, FACTORS)
        if self.noise_rule == "paper" and self.factor not in PAPER_NODES:
            raise Refusal(f"factor must be one of {', '.join(PAPER_NODES)} with the paper's noise, got {self.factor!r}")

    def theorem(self) -> str:
        return self._factor.theorem

    def noise_state(self, dimension: int, size: Size) -> Path:
        return self._factor.init(dimension, size.rounds)

    def noise(self, state: Path, drawn, tape) -> tuple[Path, Correlated]:
        path = self._factor.step(state, drawn, self.alpha, self.epoch)
        return path, Correlated(self.noise_std * path.last, self.noise_std * state.last)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        if self.trust == "server":
            return Streamed(np.ones(plan.size.rounds, np.float32))
        if method == "materialised":
            own = 1 / self.shares(plan)[plan.schedule.participants]
            return Streamed(MessageInputs(np.asarray(own, np.float32)), PerMachine)
        return Streamed(np.full(plan.size.rounds, self.wider * plan.size.per_round**-0.5, np.float32))

    def node_settings(self, problem: Problem, plan: Plan) -> tuple:
        return self._factor, float(self.alpha), float(self.epoch)

    def record_squares(self, problem: Problem, plan: Plan) -> np.ndarray:
        settings = self.node_settings(problem, plan)

        def compute():
            return self._factor.squares(record_uses(problem, plan), plan.size.rounds, *settings[1:])

        return computed_once(problem, plan, ("squares", *settings), compute)

    def contributions(self, problem: Problem, plan: Plan, used: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return self._factor.contributions(used, weight, plan.size.rounds, float(self.alpha), float(self.epoch))

    def claim(self, problem: Problem, plan: Plan) -> Claim:
        multiplier = float(self.noise_std) / self._paper_sensitivity(problem, plan)

        def epsilon(delta: float) -> float:
            return float(theory.momentum_epsilon(noise_multiplier=multiplier, delta=delta, form="renyi"))

        return Claim("Tran & Cutkosky 2022, Theorem 4, by its count of nodes", epsilon)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        epoch, alpha = self.checked_epoch(problem, plan), self.alpha
        if alpha is None and target.given_noise is not None:
            alpha = 1 / epoch
        elif alpha is None:
            alpha = self._theorem_6(problem, plan.size.per_round, target, plan.size.rounds).alpha
        known = replace(self, alpha=float(alpha), epoch=float(epoch))
        return known.with_noise(problem, plan, known.noise_for(problem, plan, target), target)

    def theory_rounds(self, problem: Problem, machines: int, target: Target) -> int:
        """Theorem 6's, in whole epochs."""
        require_level(target, "Theorem 6")
        return self._theorem_6(problem, machines, target).rounds

    def node_variances(self, rounds: int) -> np.ndarray:
        return self._factor.variances(rounds, float(self.alpha), float(self.epoch))

    @property
    def _factor(self) -> Factor:
        return FACTORS[self.factor] if isinstance(self.factor, str) else self.factor

    def paper_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        if not isfinite(self.sensitivity(problem, plan)):
            raise Refusal(SENSITIVITY_UNKNOWN)
        return self._paper_sensitivity(problem, plan) * paper_multiplier(target)

    def _paper_sensitivity(self, problem: Problem, plan: Plan) -> float:
        """Theorem 4's, by its count of the nodes that hold a record."""
        nodes = theory.node_count(records=self.rounds_of_epoch(problem), rounds=plan.size.rounds)
        most = 2 if self.factor == "tree" else 1  # of a leaf's sensitivity, in a node
        return most * self.sensitivity(problem, plan) * sqrt(nodes)

    def _theorem_6(self, problem: Problem, per_round: int, target: Target, rounds: int | None = None):
        """Its settings, in which ε counts for `gain` times as much."""
        sizes = {"records": self.rounds_of_epoch(problem), "dimension": problem.dimension}
        epsilon = self.gain(problem, per_round) * target.worst_epsilon
        return theory.momentum_settings(epsilon=epsilon, delta=target.stated_delta, rounds=rounds, **sizes)

    @classmethod
    def uses(cls) -> tuple[Use, ...]:
        return (Use("", epochs_of_records(cls, "reshuffled", 1), iterate=OF_RANDOM),)

    def error_bound(self, run: PlannedRun) -> Bound:
        """Theorem 6's bound on the mean norm of the gradient over iterates."""
        if not run.setting.full:
            return missing(PARTIAL_TREES)
        problem, settings, known = momentum_constants(run)
        return gradient_bound(theory.momentum_bound(problem, settings, **known), "Theorem 6")


def paper_multiplier(target: Target) -> float:
    """Theorem 4's σ, by its Rényi divergences for an ε and its zCDP for a μ."""
    if target.mu is not None:
        return 1 / target.mu
    return float(theory.momentum_multiplier(epsilon=target.worst_epsilon, delta=target.stated_delta, form="renyi"))
