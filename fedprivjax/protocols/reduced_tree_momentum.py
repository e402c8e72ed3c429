r"""Tree momentum of reduced sensitivity: Algorithm 2 of Tran & Cutkosky (NeurIPS 2022), also for non-convex losses.

The momentum of `TreeMomentum`, for records in cyclic order, is computed from gradients at anchors a_e, the first
iterate of each epoch. With N rounds per epoch and x_t the records of round t, which are also those of round t − N,

    ∇f(w_t, x_t) = ∇f(a_e, x_t) + [∇f(w_t, x_t) − ∇f(a_e, x_t)]
    ∇f(a_e, x_t) = γ·∇f(a_e, x_t) + (1−γ)·(∇f(a_{e−1}, x_t) + [∇f(a_e, x_t) − ∇f(a_{e−1}, x_t)])

A step has length η. For an L-smooth loss, a record's sensitivity in the differences in brackets is therefore at most
2ηL per round between the two points. A noisier sum of whole gradients enters only with weight γ. Each of the three sums
has a separate tree (`noise.factors.ReducedTrees`).

Deviation: the identity is exact, so this implementation computes the exact momentum with one gradient per round, and
runs the recursion on the noises only, with two rings of N vectors. A deployment computes three gradients per round.
"""

from dataclasses import replace
from math import isfinite, log2, sqrt
from typing import Any, ClassVar

import jax
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.interface import EPOCH
from fedprivjax.method.momentum import MomentumMethod, computed_once, record_uses, require_level
from fedprivjax.method.momentum_planning import gradient_bound
from fedprivjax.method.planning.bounds import Bound
from fedprivjax.noise import Mechanism, WindowInputs, Windows
from fedprivjax.noise.factors import (
    ALLOCATIONS,
    Correlated,
    Groups,
    Normals,
    ReducedTrees,
    Rings,
    optimal_stds,
    paper_stds,
    total_squares,
)
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.uses import repeats_after
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.curve import GaussianCurve
from fedprivjax.privacy.events import Claim
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.constraints import flat
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import tran_cutkosky as theory

RULES = {
    "accountant": "the smallest noise for the rounds in which the plan uses each record",
    "paper": "that of Theorem 8, from its counts of the nodes that contain a record",
}
THEOREM = "Tran & Cutkosky 2022, Theorem 8, with records' exact contributions to nodes; composition of Gaussians"
ROUNDING = 2.0**-22  # rounding error of a step and a projection in float32, relative to a point's norm
PLANNED_EPOCHS = 4  # smallest number, required by Theorem 9
MAX_BYTES = 2 * 2**30  # memory limit of the rings


@struct.dataclass(kw_only=True)
class ReducedTreeMomentum(MomentumMethod):
    """Tree momentum of reduced sensitivity, from anchors and differences; cyclic order, smooth losses.

    Attributes:
        mu, epsilon: privacy target, `mu` or `epsilon`; inf is non-private.
        noise_std: σ, noise of a node in the anchors' tree that ends within two epochs; the others are proportional.
        step_scale: factor on `step_size`, given or the theory's.
        step_size: η, length of every step. None is 1/√(N·T) of Theorem 9, or for
            clipped gradients in a bounded set the smaller of `TreeMomentum`'s and C/(8NL) (no theorem is claimed).
        alpha: α, in [1/N, 1] with N the rounds of an epoch; None is 1.7/N, required by Proposition 14.
        reset_rate: γ, in [0, 1]; None is η·N, at most 1/2.
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        batch: K, number of a machine's records in a round; it must divide the number of its records.
        sampler: "cyclic", the only order for which the method is exact.
        allocation: allocation of noise to groups of nodes, "optimal" or "paper"; see `noise.factors.ALLOCATIONS`.
        noise_rule: "accountant", smallest noise for the rounds in which records are used; "paper", that of Theorem 8.
        trust: "server" (one set of trees for the mean) or "none" (one set per machine).
        relative_privacy: relative μ of the machines, as in `TreeMomentum`.
        stds: noise of each group divided by σ; set by `calibrate`, like `epoch`.

    **Privacy**: μ-GDP for replacing one record, `μ² = max_records Σ_groups Σ_nodes (contribution/std)²` over the
    released nodes. Times α/K and the discount to the node's end, a round that uses a record contributes 2C to a node of
    anchors, 2·min(ηNL, 2C) to a node of differences, and 2·min(ηpL, 2C) to a node of residuals, p rounds after the
    anchor. Clipping is a projection, so clipped gradients are L-Lipschitz in the point, like unclipped ones.
    """

    reset_rate: Any = None
    stds: Any = struct.field(default=None, metadata={"derived": True})
    epoch: int | None = struct.field(pytree_node=False, default=None, metadata={"derived": True})
    allocation: str = struct.field(pytree_node=False, default="optimal")

    rules, planned = RULES, ("cyclic", PLANNED_EPOCHS)
    plain: ClassVar = {**MomentumMethod.plain, "allocation": "optimal"}
    gradients_per_use, gradients_spared = 3, 2  # at the newest point and two anchors; the simulation needs no anchors

    def __post_init__(self):
        super().__post_init__()
        if self.sampler != "cyclic":
            raise Refusal(f"sampler must be 'cyclic', so rounds N apart use the same records, got {self.sampler!r}")
        require_choice("allocation", self.allocation, ALLOCATIONS)
        if self.noise_rule == "paper" and self.allocation != "paper":
            raise Refusal(f"allocation must be 'paper' with the paper's noise, got {self.allocation!r}")
        if isinstance(self.reset_rate, int | float) and not 0 <= self.reset_rate <= 1:
            raise Refusal(f"reset_rate must be between 0 and 1, got {self.reset_rate}")

    def theorem(self) -> str:
        return THEOREM

    def bound_assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        smooth = Assumption("stated", {"text": f"losses are {problem.smoothness:.4g}-smooth"})
        return *super().bound_assumptions(problem), smooth

    def noise_state(self, dimension: int, size: Size) -> Rings:
        return self._trees.init(dimension, size.rounds)

    def noise(self, state: Rings, drawn: Normals, host_noise) -> tuple[Rings, Correlated]:
        rings = self._trees.step(state, drawn, self.alpha, self.reset_rate, self.stds)
        return rings, Correlated(self.noise_std * rings.last, self.noise_std * state.last)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        schedule, (machines, per_round, rounds) = plan.schedule, plan.size
        number = np.arange(1, rounds + 1, dtype=np.int32)
        if self.trust == "server" or method != "materialised":
            of_mean = np.full(rounds, self.noise_of_mean(per_round), np.float32)
            return Windows(WindowInputs(number, of_mean), self._epoch)
        first = np.zeros(machines, np.int32)  # a machine is identified by its slot in the first round
        first[schedule.participants[0]] = np.arange(per_round)
        own = np.asarray(1 / self.shares(plan)[schedule.participants], np.float32)
        return Windows(WindowInputs(number, own, first[schedule.participants]), self._epoch)

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal if the guarantee does not cover the plan or the method does not allow the settings."""
        super().check(problem, plan)
        if not repeats_after(plan, self._epoch):
            raise Refusal(
                f"participation must be Full, and epochs equally long on all machines, for rounds {self._epoch} apart "
                f"to use the same records, got {plan.size.per_round} of {plan.size.machines} machines a round"
            )
        needed = 8 * self._epoch * problem.dimension
        if needed > MAX_BYTES:
            raise Refusal(
                f"memory for two rings of {self._epoch} · {problem.dimension} numbers must be at most "
                f"{MAX_BYTES / 2**30:g} GiB, got {needed / 2**30:.3g} GiB. Use a larger batch"
            )
        if self.noise_std != 0:
            _require_smooth(problem)

    def node_settings(self, problem: Problem, plan: Plan) -> tuple:
        return "reduced", *self._settings(problem, plan), self.stds

    def record_squares(self, problem: Problem, plan: Plan) -> np.ndarray:
        return total_squares(self._squares(problem, plan), self.stds)

    def contributions(self, problem: Problem, plan: Plan, used: np.ndarray, weight: np.ndarray) -> np.ndarray:
        _, alpha, reset_rate, drift = self._settings(problem, plan)
        return self._trees.contributions(used, weight, plan.size.rounds, alpha, reset_rate, drift, self.stds)

    def claim(self, problem: Problem, plan: Plan) -> Claim:
        mu = self._paper_sensitivity(problem, plan) / float(self.noise_std)
        return Claim("Tran & Cutkosky 2022, Theorem 8, by its counts of nodes", GaussianCurve(mu).epsilon)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        if not target.non_private:
            _require_smooth(problem)
        epoch = self.checked_epoch(problem, plan)
        step = self.default_step(problem, plan, target) if self.step_size is None else float(self.step_size)
        alpha = min(1.7 / epoch, 1.0) if self.alpha is None else float(self.alpha)
        reset = min(float(self.step_scale) * step * epoch, 0.5) if self.reset_rate is None else float(self.reset_rate)
        known = replace(self, epoch=epoch, step_size=step, alpha=alpha, reset_rate=reset)
        known = replace(known, stds=known._stds(problem, plan))
        return known.with_noise(problem, plan, known.noise_for(problem, plan, target), target)

    def theory_rounds(self, problem: Problem, machines: int, target: Target) -> int:
        """Number of rounds of Theorem 9, in whole epochs; it is very large."""
        require_level(target, "Theorem 9")
        epoch, epsilon = self.rounds_of_epoch(problem), self.gain(problem, machines) * target.worst_epsilon
        return theory.reduced_settings(records=epoch, epsilon=epsilon, dimension=problem.dimension).rounds

    def node_variances(self, rounds: int) -> np.ndarray:
        each = self._trees.variances(rounds, float(self.alpha), float(self.reset_rate))
        return each @ np.square(self.stds)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Step of `TreeMomentum`, for clipped gradients at most C/(8NL).

        An epoch's steps of that length change a gradient by at most C/8, so differences have less noise than gradients.
        """
        step = super().default_step(problem, plan, target)
        if not self.scaled_to_set(problem) or not isfinite(problem.smoothness):
            return step
        return min(step, self.bound(problem) / (8 * self.rounds_of_epoch(problem) * problem.smoothness))

    @property
    def _epoch(self) -> int:
        assert self.epoch is not None  # calibrated
        return self.epoch

    @property
    def _trees(self) -> ReducedTrees:
        return ReducedTrees(self._epoch)

    def _drift(self, problem: Problem, plan: Plan) -> float:
        """η·L/C: largest change of a gradient in one round's step, divided by the gradient bound.

        η includes rounding errors, and the distance from the start to its projection onto the set.
        """
        bound = self.bound(problem)
        step = float(self.step_scale) * float(self.step_size)
        start = sqrt(sum(float(np.sum(np.square(leaf, dtype=float))) for leaf in jax.tree.leaves(problem.start)))
        farthest = min(float(problem.constraint.radius), start + step * plan.size.rounds)
        start_moves = np.linalg.norm(flat(problem.constraint.project(problem.start)) - flat(problem.start))
        longest = step + ROUNDING * farthest + float(start_moves)
        return longest * float(problem.smoothness) / bound if isfinite(bound) else 0.0

    def _settings(self, problem: Problem, plan: Plan) -> tuple:
        return self._epoch, float(self.alpha), float(self.reset_rate), self._drift(problem, plan)

    def _squares(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Squared contribution of each record to each group at unit noise, [records, groups]."""
        settings = self._settings(problem, plan)

        def compute():
            return self._trees.squares(record_uses(problem, plan), plan.size.rounds, *settings[1:])

        return computed_once(problem, plan, ("reduced squares", *settings), compute)

    def _stds(self, problem: Problem, plan: Plan) -> Groups:
        epoch, alpha, reset_rate, drift = self._settings(problem, plan)
        rounds = plan.size.rounds
        if self.allocation == "paper":
            return paper_stds(epoch, rounds, drift)

        def compute():
            return optimal_stds(self._squares(problem, plan), self._trees.variances(rounds, alpha, reset_rate))

        return computed_once(problem, plan, ("reduced stds", epoch, alpha, reset_rate, drift), compute)

    def paper_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        return gaussian_rule(target, self._paper_sensitivity(problem, plan))

    def _paper_sensitivity(self, problem: Problem, plan: Plan) -> float:
        """Sensitivity in Theorem 8, by its counts of the nodes that contain a record."""
        nodes = 3 * log2(max(self._epoch, 2))
        return 2 * sqrt(3 * nodes) * self.sensitivity(problem, plan)

    def momentum_bound(self, problem: theory.ProblemConstants, settings: theory.MomentumSettings, known) -> Bound:
        with_resets = theory.ReducedSettings(*settings, reset_rate=float(self.reset_rate))
        bound = theory.reduced_bound(problem, with_resets, **known)
        return gradient_bound(bound, "Theorem 9, whose sampling term is proved for reshuffled epochs only")

    def scaled_down(self, machines: int):
        """Scale down as in `MomentumMethod.scaled_down`, with a reset rate for short epochs."""
        rate = None if self.reset_rate is None else max(float(self.reset_rate), 1 / EPOCH)
        return replace(super().scaled_down(machines), reset_rate=rate)


def _require_smooth(problem: Problem) -> None:
    if not isfinite(problem.smoothness):
        raise Refusal(
            f"smoothness must be known: it bounds a record's effect on gradient differences, got {problem.smoothness}"
        )
