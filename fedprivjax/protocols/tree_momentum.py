r"""Normalised SGD with private momentum: Algorithm 1 of Tran & Cutkosky (NeurIPS 2022), for non-convex losses too.

With g_t the mean gradient of a round's records, in epochs over every machine's own,

    m_t = (1−α)·m_{t−1} + α·g_t                     m̂_t = m_t + noise_t
    w_{t+1} = Π_W(w_t − η·m̂_t/‖m̂_t‖)                output: one of w_1 … w_T, drawn uniformly

where noise_t comes from a tree over rounds, so that it grows with log T where fresh noise on every gradient grows with
√(1/α). A trusted server has one tree for the mean; otherwise every machine has its own and sends its own m̂_t, and the
mean of M trees is one tree with 1/√M of the noise. The paper's output index is drawn beforehand; here w_t takes the
place of what was kept with probability 1/t, which is the same law whatever T.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise import Mechanism, Streamed
from fedprivjax.noise.factors import FACTORS, Correlated, Factor, Path
from fedprivjax.noise.fresh import PerMachine
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Epochs, as_sampler
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.grouped import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.momentum import (
    MomentumState,
    added_messages,
    before_the_first,
    check_momentum,
    check_plan,
    kept_exposure,
    momentum_event,
    momentum_sensitivity,
    momentum_step,
    most_exposed,
    record_uses,
    rounds_of_epoch,
    sent_rows,
)
from fedprivjax.protocols.round import RoundInputs

RULES = {
    "accountant": "the least noise for the places at which the plan uses each record",
    "paper": "Theorem 4's, from its count V of the nodes that hold a record and its bound on what moves them",
}
PAPER_NODES = ("tree", "sensitivity tree")
THEOREM = "Tran & Cutkosky 2022, Theorem 4, with the nodes' exact sensitivities; adaptive composition of Gaussians"


@struct.dataclass
class TreeMomentum(Protocol):
    """Normalised SGD with momentum that a tree makes private.

    Attributes:
        mu, epsilon: target, one of them; inf is non-private.
        noise_std: σ, the noise of one node of one tree (of α·g_t where the factor is "independent").
        step_size, step_scale: η, the length of every step, and a factor on it; None is Theorem 6's 1/√(N·T).
        alpha: α, in [1/N, 1] with N the rounds of an epoch; None is Theorem 6's, or 1/N without an ε.
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        batch: K, records of a machine's in a round; it divides a machine's records.
        sampler: "cyclic" (every epoch in one order) or "reshuffled"; orders are public.
        factor: how the noise is made: "tree"; "sensitivity tree", whose nodes have noise in proportion to what a record
            moves them in cyclic order; "independent", fresh noise on every gradient; or a `Factor`.
        noise_rule: "accountant", the least noise for the records' own places; "paper", Theorem 4's with its count V.
        trust: "server" (one tree for the mean) or "none" (every machine has its own, and takes part in every round).

    **Privacy**: μ-GDP for replacing one record, `μ² = max_records Σ_nodes (2·C/K·α·Σ_{t∈node} (1−α)^{z−t} / σ)²` over
    the rounds t that use it (of a machine's own tree; a server's has C/(K·M)): nodes are Gaussian mechanisms, each
    chosen after those before, and what follows is post-processing.
    """

    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    alpha: Any = None
    clip: Any = None
    epoch: Any = struct.field(default=None, metadata={"derived": True})
    batch: int | Sequence[int] = struct.field(pytree_node=False, default=1)
    sampler: str = struct.field(pytree_node=False, default="cyclic")
    factor: str | Factor = struct.field(pytree_node=False, default="tree")
    noise_rule: str = struct.field(pytree_node=False, default="accountant")
    trust: str = struct.field(pytree_node=False, default="server")

    several_epochs = True

    def __post_init__(self):
        check_momentum(self)
        require_choice("sampler", self.sampler, ("cyclic", "reshuffled"))
        require_choice("noise_rule", self.noise_rule, RULES)
        if isinstance(self.factor, str):
            require_choice("factor", self.factor, FACTORS)
        if self.noise_rule == "paper" and self.factor not in PAPER_NODES:
            raise Refusal(f"factor must be one of {', '.join(PAPER_NODES)} with the paper's noise, got {self.factor!r}")

    @property
    def minibatches(self) -> Epochs:
        return as_sampler(self.sampler, self.batch)  # type: ignore[return-value]

    @property
    def traced(self):
        host = {"mu": None, "epsilon": None, "batch": 1, "sampler": "cyclic", "noise_rule": "accountant"}
        return replace(self, **host, trust="server")

    # ---- traced

    def init(self, problem: Problem, size: Size, key) -> MomentumState:
        return before_the_first(problem)

    def round(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, key):
        return momentum_step(self, problem, state, inputs, noise, key)

    def output(self, state: MomentumState):
        return state.kept

    def query(self, state: MomentumState):
        """w_t, the point that machines are asked about."""
        return state.w

    def iterates(self, state: MomentumState) -> dict[str, Any]:
        """The last iterate, recorded beside the output."""
        return {"last": state.w}

    def messages(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, key):
        return added_messages(self, problem, state, inputs)

    def sent(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, own_noise, key):
        return sent_rows(self, problem, state, inputs, own_noise)

    def noise_state(self, dimension: int, size: Size) -> Path:
        return self._factor.init(dimension, size.rounds)

    def noise(self, state: Path, drawn, tape) -> tuple[Path, Correlated]:
        path = self._factor.step(state, drawn, self.alpha, self.epoch)
        return path, Correlated(self.noise_std * path.last, self.noise_std * state.last)

    # ---- on the host

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        if self.trust == "server":
            return Streamed(np.ones(plan.size.rounds, np.float32))
        if method == "materialised":
            return Streamed(np.ones(plan.schedule.participants.shape, np.float32), PerMachine)
        return Streamed(np.full(plan.size.rounds, plan.size.per_round**-0.5, np.float32))

    def check(self, problem: Problem, plan: Plan) -> None:
        """Refuse a plan that the guarantee does not cover, and settings that the theory does not allow on it."""
        check_plan(self, problem, plan)

    def rounds_of_epoch(self, problem: Problem) -> int:
        """N: rounds in which the machine with the most messages an epoch uses each of its records once."""
        return rounds_of_epoch(self, problem)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        """How far a record moves the noisy momentum in a round that uses it."""
        return momentum_sensitivity(self, problem, plan)

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        """`√Σ_nodes (contribution/standard deviation)²` of each machine's most exposed record."""
        settings = self._factor, float(self.alpha), float(self.epoch)
        return kept_exposure(plan, settings, lambda: self._exposures(problem, plan))

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        return momentum_event(self, problem, plan, THEOREM)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        epoch = self.rounds_of_epoch(problem)
        alpha = self._default_alpha(problem, plan, target, epoch) if self.alpha is None else float(self.alpha)
        known = replace(self, alpha=alpha, epoch=float(epoch))
        return known.with_noise(problem, plan, known._needed_noise(problem, plan, target), target)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Theorem 6's, which needs no diameter."""
        return 1 / sqrt(self.rounds_of_epoch(problem) * plan.size.rounds)

    @property
    def _factor(self) -> Factor:
        return FACTORS[self.factor] if isinstance(self.factor, str) else self.factor

    def _exposures(self, problem: Problem, plan: Plan) -> np.ndarray:
        settings = plan.size.rounds, float(self.alpha), float(self.epoch)
        return most_exposed(problem, self._factor.squares(record_uses(problem, plan), *settings))

    def _needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        sensitivity = self.sensitivity(problem, plan)
        if self.noise_rule == "accountant" or target.noise_std is not None or target.non_private:
            return gaussian_rule(target, sensitivity * self.exposure(problem, plan).max)
        return gaussian_rule(target, sensitivity)

    def _default_alpha(self, problem: Problem, plan: Plan, target: Target, epoch: int) -> float:
        return 1 / epoch
