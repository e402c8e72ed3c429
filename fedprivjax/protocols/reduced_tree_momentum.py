r"""Tree momentum of reduced sensitivity: Algorithm 2 of Tran & Cutkosky (NeurIPS 2022), also for non-convex losses.

The momentum of `TreeMomentum`, for records in cyclic order, is computed from gradients at anchors a_e, the first
iterate of each epoch. With N rounds per epoch and x_t the records of round t, which are also those of round t − N,

    ∇f(w_t, x_t) = ∇f(a_e, x_t) + [∇f(w_t, x_t) − ∇f(a_e, x_t)]
    ∇f(a_e, x_t) = γ·∇f(a_e, x_t) + (1−γ)·(∇f(a_{e−1}, x_t) + [∇f(a_e, x_t) − ∇f(a_{e−1}, x_t)])

A step has length η. For an L-smooth loss, a record's sensitivity in the differences in brackets is therefore at most
2ηL per round between the two points. A noisier sum of whole gradients enters only with weight γ. Each of the three sums
has a separate tree (`noise.factors.reduced.ReducedTrees`).

Deviation: the identity is exact, so this implementation computes the exact momentum with one gradient per round, and
runs the recursion on the noises only, with two rings of N vectors. A deployment computes three gradients per round.
"""

from dataclasses import replace
from math import isfinite
from typing import Any

from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.method.difference_momentum import ReducedMomentum, require_smooth
from fedprivjax.method.momentum import MomentumProtocol, momentum_step, momentum_theory, scaled_to_set
from fedprivjax.method.small_form import of_short_epochs
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import tran_cutkosky as theory

THEOREM = "Theorem 9, whose sampling term is proved for reshuffled epochs only"
PLANNED_EPOCHS = 4  # smallest number, required by Theorem 9


def _rounds(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the number of rounds of Theorem 9, in whole epochs; it is very large."""
    epoch = protocol.privacy.rounds_of_epoch(problem)
    epsilon = protocol.privacy.gain(problem, machines) * target.worst_epsilon
    return theory.reduced_settings(records=epoch, epsilon=epsilon, dimension=problem.dimension).rounds


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the step of `TreeMomentum`, for clipped gradients at most C/(8NL).

    An epoch's steps of that length change a gradient by at most C/8, so differences have less noise than gradients.
    """
    step = momentum_step(protocol, problem, plan, target)
    if not scaled_to_set(protocol, problem) or not isfinite(problem.smoothness):
        return step
    return min(step, float(protocol.clip) / (8 * protocol.privacy.rounds_of_epoch(problem) * problem.smoothness))


def _bound(protocol: Any, problem: theory.ProblemConstants, settings: theory.MomentumSettings, known: Any) -> Any:
    with_resets = theory.ReducedSettings(*settings, reset_rate=float(protocol.reset_rate))
    return theory.reduced_bound(problem, with_resets, **known)


@struct.dataclass(kw_only=True)
class ReducedTreeMomentum(MomentumProtocol):
    """Tree momentum with less noise, for smooth losses and records in cyclic order (Tran & Cutkosky 2022, Algorithm 2).

    Machines (clients) go through their records in epochs of N rounds, always in the same order. As in `TreeMomentum`,
    the server takes steps of fixed length η along a noisy momentum. The *anchor* of an epoch is its first iterate. The
    momentum is computed from three sums over rounds:

    * gradients at anchors,
    * differences: the gradient at an anchor minus the gradient of the same records at the previous anchor,
    * residuals: the gradient at an iterate minus the gradient of the same records at the anchor of its epoch.

    Each sum has the noise of a separate binary tree over rounds. A node of a tree is a weighted sum over successive
    rounds, with independent noise.

    Attributes:
        mu: target μ of Gaussian DP. With inf, the run has no noise.
        epsilon: target ε at the run's δ, given instead of `mu`.
        noise_std: σ, standard deviation per coordinate of a node's noise. The first tree, for gradients at anchors, has
            this noise in all nodes whose last round is in the first two epochs. In its other nodes, and in the other
            trees, the noise has standard deviation σ times a number in `stds`.
        step_scale: factor by which the given or default step size is multiplied.
        step_size: η, length of every step. Default: 1/√(N·T) for T rounds (Theorem 9). If gradients are clipped below
            the Lipschitz constant, and the assumed distance to the optimum (`problem.travel`) is finite, the default is
            a rule of thumb without a theorem.
        alpha: α, weight of a new gradient in the momentum, in [1/N, 1]. The default None is 1.7/N.
        reset_rate: γ in [0, 1], weight of the first tree in the estimate of gradients at anchors. Let a_e be the
            gradient at the anchor of epoch e. Let A be a_e with noise of the first tree, and D be a_e − a_{e−1} with
            noise of the second tree. The estimate of a_e is G_e = γ·A + (1 − γ)·(G_{e−1} + D). None is min(η·N, 1/2).
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        batch: K, number of a machine's records in a round: one number for all machines, or one for each machine. K must
            divide the machine's number of records.
        sampler: "cyclic", the only order of records for which the method is exact.
        allocation: division of the noise between the trees, "optimal" or "paper". "optimal" gives the smallest noise in
            the momentum at the target privacy. "paper" is the division of the paper.
        noise_rule: "accountant" computes the smallest noise that meets the target. "paper" is the noise of Theorem 8.
        trust: "server" for three trees whose nodes are sums of means over the machines. "none" for three trees per
            machine.
        relative_privacy: one number r_i for each machine i, for trust = "none" only. The μ of machine i is at most the
            target times r_i/max(r). None is r_i = 1 for all machines.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" follows `noise_rule`. "plan" is
            the smallest noise that meets the target on the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.
        stds: noise of the nodes divided by σ, for each of five groups of nodes with equal noise; set by `calibrate`.
        epoch: N; set by `calibrate`.
        slack: allowance for rounding errors and for the distance from the start to the constraint set, added to bounds
            on the distance between two points; set by `calibrate`.

    **Privacy**: μ-GDP for replacing one record. The loss must be L-smooth, for the smoothness L that the problem
    states.

    Raises:
        Refusal: if a setting is invalid, or more than one of `epsilon`, `mu` and `noise_std` is given.
    """

    reset_rate: Any = struct.field(default=None, metadata={"small": of_short_epochs})
    stds: Any = struct.field(default=None, metadata={"derived": True})
    slack: Any = struct.field(default=None, metadata={"derived": True})
    epoch: int | None = struct.field(pytree_node=False, default=None, metadata={"derived": True})
    allocation: str = host_only("optimal")

    theory = momentum_theory("cyclic", PLANNED_EPOCHS, THEOREM, _rounds, _bound, _step)
    gradients_spared = 2  # the simulation needs no gradients at anchors

    @property
    def privacy(self) -> ReducedMomentum:
        """Privacy object of the method: noise on gradients at anchors and on differences of gradients.

        The anchor of an epoch is its first iterate. The differences are between gradients at nearby points. Their
        sensitivity is small, because consecutive points are at most one step apart.
        """
        found = self._privacy_without_step
        return found if self.step_size is None else replace(found, length=self.step_scale * self.step_size)

    @property
    def _privacy_without_step(self) -> ReducedMomentum:
        own = {name: getattr(self, name) for name in ("reset_rate", "stds", "slack", "allocation")}
        return ReducedMomentum(length=None, **own, **self._shared)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        if not target.non_private:
            require_smooth(problem)
        epoch = self.privacy.checked_epoch(problem, plan)
        step = _step(self, problem, plan, target) if self.step_size is None else float(self.step_size)
        alpha = min(1.7 / epoch, 1.0) if self.alpha is None else float(self.alpha)
        known = replace(self, step_size=step, alpha=alpha)
        return super(ReducedTreeMomentum, known).calibrate(problem, plan, target)
