r"""Normalised SGD with private momentum: Algorithm 1 of Tran & Cutkosky (NeurIPS 2022), also for non-convex losses.

With g_t the mean gradient of a round's records, in epochs over every machine's own records,

    m_t = (1−α)·m_{t−1} + α·g_t                     m̂_t = m_t + noise_t
    w_{t+1} = Π_W(w_t − η·m̂_t/‖m̂_t‖)                output: one of w_1 … w_T, sampled uniformly

where noise_t comes from a tree over rounds. It grows with log T, whereas fresh noise on every gradient grows with
√(1/α). A trusted server has one tree for the mean. Otherwise every machine has its own tree and sends its own m̂_t, and
the mean of M trees is one tree with 1/√M of the noise. The paper samples the index of the output before the run. Here
w_t replaces the stored iterate with probability 1/t, which gives the same distribution for every T.
"""

from dataclasses import replace
from math import isfinite, sqrt

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.momentum import MomentumMethod, computed_once, record_uses, require_level
from fedprivjax.method.momentum_planning import gradient_bound
from fedprivjax.method.planning.bounds import Bound
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
    "accountant": "the smallest noise for the rounds in which the plan uses each record",
    "paper": "that of Theorem 4, from its count V of the nodes with a record and its bound on their sensitivity",
}
PAPER_NODES = ("tree", "sensitivity tree")


@struct.dataclass(kw_only=True)
class TreeMomentum(MomentumMethod):
    """Normalised SGD with tree-aggregated momentum, for non-convex losses; any server.

    Attributes:
        mu, epsilon: privacy target, `mu` or `epsilon`; inf is non-private.
        noise_std: σ, noise of one node of one tree (with factor "independent": noise of α·g_t).
        step_scale: factor on `step_size`, given or the theory's.
        step_size: η, length of every step. None is 1/√(N·T) of Theorem 6, times
            min(D, 2·√d·G/L) for clipped gradients in a set of diameter D (`noise_reach`; no theorem is claimed). If the
            momentum is 0, no step is taken.
        alpha: α, in [1/N, 1] with N the rounds of an epoch; None is the value of Theorem 6, or 1/N without an ε.
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        batch: K, number of a machine's records in a round; it must divide the number of its records.
        sampler: "cyclic" (the same order in every epoch) or "reshuffled"; orders are public.
        noise_rule: "accountant", smallest noise for the rounds in which records are used; "paper", that of Theorem 4
            with its count V.
        trust: "server" (one tree for the mean) or "none" (one tree per machine; every machine takes part in every
            round).
        relative_privacy: relative μ of the machines in any unit, one number each: the largest corresponds to `mu`, and
            noises are inversely proportional; untrusted server only. No machine's μ exceeds its fraction of the target.
            It is smaller for machines whose weights or orders give less exposure.
        factor: factor of the noise: "tree"; "sensitivity tree", with node noise proportional to a record's sensitivity
            in cyclic order; "independent", fresh noise on every gradient; or a `Factor`.
        epoch: N; set by `calibrate`.

    **Privacy**: μ-GDP for replacing one record, `μ² = max_records Σ_nodes (2·C/K·α·Σ_{t∈node} (1−α)^{z−t} / σ)²` over
    the rounds t that use it (in a machine's own tree; a server's tree has C/(K·M)). Nodes are Gaussian mechanisms in
    adaptive composition; all else is post-processing.
    """

    factor: str | Factor = struct.field(pytree_node=False, default="tree")

    rules, planned = RULES, ("reshuffled", 1)

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

    def noise(self, state: Path, drawn, host_noise) -> tuple[Path, Correlated]:
        path = self._factor.step(state, drawn, self.alpha, self.epoch)
        return path, Correlated(self.noise_std * path.last, self.noise_std * state.last)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        if self.trust == "none" and method == "materialised":
            own = 1 / self.shares(plan)[plan.schedule.participants]
            return Streamed(MessageInputs(np.asarray(own, np.float32)), PerMachine)
        return Streamed(np.full(plan.size.rounds, self.noise_of_mean(plan.size.per_round), np.float32))

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
        """Number of rounds of Theorem 6, in whole epochs."""
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
        """Sensitivity in Theorem 4, by its count of the nodes that contain a record."""
        nodes = theory.node_count(records=self.rounds_of_epoch(problem), rounds=plan.size.rounds)
        most = 2 if self.factor == "tree" else 1  # largest sensitivity of a node, divided by that of a leaf
        return most * self.sensitivity(problem, plan) * sqrt(nodes)

    def _theorem_6(self, problem: Problem, per_round: int, target: Target, rounds: int | None = None):
        """Settings of Theorem 6, with ε multiplied by `gain`."""
        sizes = {"records": self.rounds_of_epoch(problem), "dimension": problem.dimension}
        epsilon = self.gain(problem, per_round) * target.worst_epsilon
        return theory.momentum_settings(epsilon=epsilon, delta=target.stated_delta, rounds=rounds, **sizes)

    def momentum_bound(self, problem: theory.ProblemConstants, settings: theory.MomentumSettings, known) -> Bound:
        return gradient_bound(theory.momentum_bound(problem, settings, **known), "Theorem 6")


def paper_multiplier(target: Target) -> float:
    """Return the noise multiplier of Theorem 4, by its Rényi divergences for an ε, or by its zCDP for a μ."""
    if target.mu is not None:
        return 1 / target.mu
    return float(theory.momentum_multiplier(epsilon=target.worst_epsilon, delta=target.stated_delta, form="renyi"))
