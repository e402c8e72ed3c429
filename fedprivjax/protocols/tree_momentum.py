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
from math import isfinite, sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
from fedprivjax.plan.uses import uses_of
from fedprivjax.privacy.calibration import SENSITIVITY_UNKNOWN, gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.grouped import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import RECORD, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.minibatch_round import noisy_mean, record_messages
from fedprivjax.protocols.round import RoundInputs, add_noise, flat_rows
from fedprivjax.protocols.settings import check_numbers
from fedprivjax.theory import tran_cutkosky as theory

RULES = {
    "accountant": "the least noise for the places at which the plan uses each record",
    "paper": "Theorem 4's, from its count V of the nodes that hold a record and its bound on what moves them",
}
PAPER_NODES = ("tree", "sensitivity tree")
THEOREM = "Tran & Cutkosky 2022, Theorem 4, with the nodes' exact sensitivities; adaptive composition of Gaussians"


class MomentumState(NamedTuple):
    """w_t, m_{t−1}, and one of the iterates before, each as likely."""

    w: Any
    momentum: Any
    kept: Any


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
        check_numbers(self, "mu")
        check_numbers(self, "epsilon")
        require_choice("trust", self.trust, ("server", "none"))
        require_choice("sampler", self.sampler, ("cyclic", "reshuffled"))
        require_choice("noise_rule", self.noise_rule, RULES)
        if isinstance(self.factor, str):
            require_choice("factor", self.factor, FACTORS)
        if self.noise_rule == "paper" and self.factor not in PAPER_NODES:
            raise Refusal(f"factor must be one of {', '.join(PAPER_NODES)} with the paper's noise, got {self.factor!r}")
        if isinstance(self.alpha, int | float) and not 0 < self.alpha <= 1:
            raise Refusal(f"alpha must be above 0 and at most 1, got {self.alpha}")

    @property
    def minibatches(self) -> Epochs:
        return as_sampler(self.sampler, self.batch)  # type: ignore[return-value]

    @property
    def traced(self):
        host = {"mu": None, "epsilon": None, "batch": 1, "sampler": "cyclic", "noise_rule": "accountant"}
        return replace(self, **host, trust="server")

    # ---- traced

    def init(self, problem: Problem, size: Size, key) -> MomentumState:
        w = problem.start
        return MomentumState(w, jax.tree.map(jnp.zeros_like, w), w)

    def round(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, key):
        g, info = noisy_mean(problem, state.w, inputs, None, self.clip)
        momentum = jax.tree.map(lambda m, g: (1 - self.alpha) * m + self.alpha * g, state.momentum, g)
        direction = normalised(add_noise(problem, momentum, None if noise is None else noise.now))
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, u: w - step * u, state.w, direction))
        return MomentumState(w, momentum, one_of(state.kept, state.w, inputs.round, key)), info

    def output(self, state: MomentumState):
        return state.kept

    def query(self, state: MomentumState):
        """w_t, the point that machines are asked about."""
        return state.w

    def iterates(self, state: MomentumState) -> dict[str, Any]:
        """The last iterate, recorded beside the output."""
        return {"last": state.w}

    def messages(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, key):
        """α times the participants' gradients: what m̂_t adds to (1−α)·m̂_{t−1}, which everybody knows already."""
        rows = record_messages(problem, state.w, inputs, self.clip)
        return jax.tree.map(lambda g: self.alpha * g, rows)

    def sent(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, own_noise, key):
        rows = flat_rows(problem, self.messages(problem, state, inputs, noise, key))
        return rows if own_noise is None else rows + own_noise.fresh(self.alpha)

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
        if plan.schedule.filled is not None:
            raise Refusal(f"participation must have a fixed number of machines a round, got {plan.schedule}")
        if self.trust == "none" and plan.size.per_round < plan.size.machines:
            raise Refusal(
                f"participation must be Full with trust = 'none', for a machine's tree has a leaf in every round, "
                f"got {plan.size.per_round} of {plan.size.machines} machines"
            )
        epoch = self._checked_epoch(problem, plan)
        if not 1 / epoch <= self.alpha * (1 + 1e-6):
            raise Refusal(f"alpha must be at least 1/{epoch}, one over the rounds of an epoch, got {self.alpha:.4g}")

    def _checked_epoch(self, problem: Problem, plan: Plan) -> int:
        epoch = self.rounds_of_epoch(problem)
        if plan.size.rounds < epoch:
            raise Refusal(f"rounds must be at least an epoch's ({epoch}), got {plan.size.rounds}")
        return epoch

    def rounds_of_epoch(self, problem: Problem) -> int:
        """N: rounds in which the machine with the most messages an epoch uses each of its records once."""
        if problem.table is None:
            raise Refusal("table must be given: machines go through records of their own")
        return int(self.minibatches.epoch(problem.table.sizes).max())

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        """How far a record moves the noisy momentum in a round that uses it."""
        bound = float(problem.lipschitz if self.clip is None else self.clip)
        assert plan.weights is not None
        divisor = plan.size.per_round if self.trust == "server" else 1
        return 2 * float(self.alpha) * bound * float(plan.weights.max()) / divisor

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        """`√Σ_nodes (contribution/standard deviation)²` of each machine's most exposed record."""
        settings = self._factor, float(self.alpha), float(self.epoch), id(plan.samples)
        return plan.schedule.once(settings, lambda: (plan, Grouped.of(self._exposures(problem, plan))))[1]

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        bounded = Assumption("lipschitz", lipschitz_values(problem))
        if self.clip is not None:
            bounded = Assumption("clipped records", {"bound": float(self.clip)})
        assumptions = (Assumption("public participation"), Assumption("public order"), bounded)
        terms = Terms(self.trust, THEOREM, (*assumptions, Assumption("not covered")), unit=RECORD)
        sensitivity, exposure = self.sensitivity(problem, plan), self.exposure(problem, plan)
        return GaussianEvent(float(self.noise_std), sensitivity, exposure, terms)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        epoch = self._checked_epoch(problem, plan)
        alpha = self.alpha
        if alpha is None and (target.noise_std is not None or target.non_private):
            alpha = 1 / epoch
        elif alpha is None:
            alpha = self._theorem(problem, plan.size.per_round, target, plan.size.rounds).alpha
        known = replace(self, alpha=float(alpha), epoch=float(epoch))
        return known.with_noise(problem, plan, known._needed_noise(problem, plan, target), target)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Theorem 6's, which needs no diameter."""
        return 1 / sqrt(self.rounds_of_epoch(problem) * plan.size.rounds)

    def best_rounds(self, problem: Problem, machines: int, target: Target) -> int:
        """Theorem 6's, in whole epochs."""
        if target.noise_std is not None or target.non_private:
            raise Refusal("rounds must be given without an ε or a μ, for which Theorem 6 chooses them")
        return self._theorem(problem, machines, target).rounds

    @property
    def _factor(self) -> Factor:
        return FACTORS[self.factor] if isinstance(self.factor, str) else self.factor

    def _exposures(self, problem: Problem, plan: Plan) -> np.ndarray:
        assert problem.table is not None
        assert plan.weights is not None
        rows = problem.table.rows
        uses = uses_of(plan, int(rows.max()) + 1)
        uses = uses._replace(weight=uses.weight / plan.weights.max())
        squares = self._factor.squares(uses, plan.size.rounds, float(self.alpha), float(self.epoch))
        return np.sqrt(np.where(rows >= 0, squares[rows], 0).max(axis=1))

    def _needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        sensitivity = self.sensitivity(problem, plan)
        if self.noise_rule == "accountant" or target.noise_std is not None or target.non_private:
            return gaussian_rule(target, sensitivity * self.exposure(problem, plan).max)
        if not isfinite(sensitivity):
            raise Refusal(SENSITIVITY_UNKNOWN)
        nodes = theory.node_count(records=self.rounds_of_epoch(problem), rounds=plan.size.rounds)
        most = 2 if self.factor == "tree" else 1  # of a leaf's sensitivity, in a node
        return most * sensitivity * sqrt(nodes) * paper_multiplier(target)

    def _theorem(self, problem: Problem, per_round: int, target: Target, rounds: int | None = None):
        """Theorem 6's settings; ε counts for as much more as a round's mean moves less than one record's gradient."""
        assert problem.table is not None
        batch = int(self.minibatches.batches(problem.table.sizes).min())
        gain = batch * per_round ** (1.0 if self.trust == "server" else 0.5)
        level = {"epsilon": gain * target.worst_epsilon, "delta": target.stated_delta}
        sizes = {"records": self.rounds_of_epoch(problem), "rounds": rounds, "dimension": problem.dimension}
        return theory.momentum_settings(**sizes, **level)


def paper_multiplier(target: Target) -> float:
    """Theorem 4's σ, by its Rényi divergences for an ε and its zCDP for a μ."""
    if target.mu is not None:
        return 1 / target.mu
    return float(theory.momentum_multiplier(epsilon=target.worst_epsilon, delta=target.stated_delta, form="renyi"))


def normalised(vector):
    """The vector over its norm; 0 stays 0."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(vector)))
    return jax.tree.map(lambda leaf: leaf * jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0), vector)


def one_of(kept, newest, round, key):
    """The newest in place of what was kept, with probability 1/t: so that each of t is kept as likely."""
    chosen = jax.random.uniform(key) * round < 1
    return jax.tree.map(lambda old, new: jnp.where(chosen, new, old), kept, newest)
