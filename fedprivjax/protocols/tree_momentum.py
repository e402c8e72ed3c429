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
from typing import Any

from flax import struct

from fedprivjax.method.momentum import MomentumProtocol, NormalisedSteps, momentum_step, momentum_theory
from fedprivjax.method.noisy_momentum import NoisyMomentum, as_factor
from fedprivjax.method.server_step import optimizer_field
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import tran_cutkosky as theory


def _theorem_6(privacy: NoisyMomentum, problem: Problem, per_round: int, target: Target, rounds: int | None = None):
    """Return the settings of Theorem 6, with ε multiplied by `gain`."""
    sizes = {"records": privacy.rounds_of_epoch(problem), "dimension": problem.dimension}
    epsilon = privacy.gain(problem, per_round) * target.worst_epsilon
    return theory.momentum_settings(epsilon=epsilon, delta=target.stated_delta, rounds=rounds, **sizes)


def _rounds(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the number of rounds of Theorem 6, in whole epochs."""
    return _theorem_6(protocol.privacy, problem, machines, target).rounds


def _bound(protocol: Any, problem: theory.ProblemConstants, settings: theory.MomentumSettings, known: Any) -> Any:
    return theory.momentum_bound(problem, settings, **known)


@struct.dataclass(kw_only=True)
class TreeMomentum(MomentumProtocol):
    """Normalised SGD along a private momentum, also for non-convex losses (Tran & Cutkosky 2022).

    Machines (clients) go through their own records in epochs of N rounds. With g_t the mean gradient of round t, the
    momentum is m_t = (1−α)·m_{t−1} + α·g_t, and m̂_t is m_t plus noise. The server takes the step w_{t+1} = Π(w_t −
    η·m̂_t/‖m̂_t‖), with step length η and the projection Π onto the constraint set. The server reports a uniformly
    random iterate.

    By default, the noise comes from a binary tree over rounds. A node is the sum Σ_t α·(1−α)^{z−t}·g_t over consecutive
    rounds t, where z is the last of these rounds. Each node has independent noise.

    Attributes:
        mu: target μ of Gaussian DP. With inf, the run has no noise.
        epsilon: target ε at the run's δ, given instead of `mu`.
        noise_std: σ, standard deviation per coordinate of the noise of one node. With the factor "independent", σ is
            the standard deviation of the noise on α·g_t.
        step_scale: factor by which the given or default step size is multiplied.
        step_size: η, length of every step. Default: 1/√(N·T) for T rounds (Theorem 6). If `clip` is below the Lipschitz
            constant, and the assumed distance to the optimum (`problem.travel`) is finite, the default is a rule of
            thumb without a theorem.
        alpha: α, weight of a new gradient in the momentum, in [1/N, 1]. None is the value of Theorem 6, or 1/N without
            a finite target.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        batch: K, number of a machine's records in a round: one number for all machines, or one for each machine. K must
            divide the machine's number of records.
        sampler: "cyclic" for the same order of records in every epoch, or "reshuffled" for a new random order in every
            epoch. The order is public.
        noise_rule: "accountant" computes the smallest noise that meets the target. "paper" is the noise of Theorem 4.
        trust: "server" for one tree, whose nodes are sums of the mean gradients g_t. "none" for one tree per machine,
            which needs every machine in every round.
        relative_privacy: one number r_i for each machine i, for trust = "none" only. The μ of machine i is at most the
            target times r_i/max(r). None is r_i = 1 for all machines.
        factor: correlation of the noise over rounds:

            * "tree": one tree over all rounds, with equal noise of all nodes.
            * {"tree": r}: as "tree", with a new tree after every r rounds.
            * "sensitivity tree": one tree over all rounds. The noise of a node of n rounds has standard deviation σ·Σ_j
              (1−α)^{j·N}, with the sum over j = 0, …, ⌈n/N⌉ − 1.
            * "independent": fresh noise on every α·g_t.
            * A `Factor` object: any other correlation.
        server: optimiser of the server's steps, which receives m̂_t/‖m̂_t‖ as its gradient. The learning rate of
            `optax.adam` (or "adam") is `step_size`. `ServerOptimizer` lists all forms. If `server` is None, the server
            takes the step above.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" follows `noise_rule`. "plan" is
            the smallest noise that meets the target on the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.
        epoch: N; set by `calibrate`.

    **Privacy**: μ-GDP for replacing one record. A record changes all nodes with a round that uses it.

    Raises:
        Refusal: if a setting is invalid, or more than one of `epsilon`, `mu` and `noise_std` is given.

    >>> import numpy as np
    >>> from fedprivjax import Ball, Full, datasets, from_dataset, ready
    >>> rows = np.arange(1420).reshape(20, 71)  # 20 machines of 71 records
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=rows)
    >>> method = TreeMomentum(epsilon=8.0, clip=1.6, batch=71)
    >>> round(ready(method, problem, Full(20), rounds=10).guarantee.epsilon, 3)
    8.0
    """

    factor: Any = struct.field(pytree_node=False, default="tree")
    server: Any = optimizer_field()

    def __post_init__(self):
        object.__setattr__(self, "factor", as_factor(self.factor))
        super().__post_init__()

    theory = momentum_theory("reshuffled", 1, "Theorem 6", _rounds, _bound, momentum_step)
    theory = theory.of(NormalisedSteps, NoisyMomentum)

    @property
    def privacy(self) -> NoisyMomentum:
        """Privacy object of the method: noise on the momentum, correlated over rounds by `factor`."""
        return NoisyMomentum(factor=self.factor, **self._shared)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        epoch, alpha = self.privacy.checked_epoch(problem, plan), self.alpha
        if alpha is None and target.given_noise is not None:
            alpha = 1 / epoch
        elif alpha is None:
            alpha = _theorem_6(self.privacy, problem, plan.size.per_round, target, plan.size.rounds).alpha
        return super(TreeMomentum, replace(self, alpha=float(alpha))).calibrate(problem, plan, target)
