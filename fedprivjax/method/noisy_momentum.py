"""Privacy of a momentum whose noise is a factor of independent normals, such as a tree over rounds."""

from collections.abc import Mapping
from functools import partial
from math import isfinite, sqrt
from typing import Any, final

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.algorithm import Reads
from fedprivjax.method.momentum_privacy import MomentumPrivacy, computed_once, record_uses
from fedprivjax.method.release import RunFacts
from fedprivjax.noise import Mechanism
from fedprivjax.noise.factors import FACTORS, Correlated, Factor, Path
from fedprivjax.noise.factors.tree import tree_of
from fedprivjax.noise.interface import MessageInputs, PerMachine
from fedprivjax.noise.windows import Streamed
from fedprivjax.privacy.calibration import SENSITIVITY_UNKNOWN
from fedprivjax.privacy.events import Claim
from fedprivjax.privacy.target import Target
from fedprivjax.theory import tran_cutkosky as theory

RULES = {
    "accountant": "the smallest noise for the rounds in which the plan uses each record",
    "paper": "that of Theorem 4, from its count V of the nodes with a record and its bound on their sensitivity",
}
PAPER_NODES = ("tree", "sensitivity tree")


@final
@struct.dataclass(kw_only=True)
class NoisyMomentum(MomentumPrivacy):
    """Gaussian noise, correlated over rounds, on a momentum of the mean messages; it protects one record.

    The server reads only the momentum m_t = (1−α)·m_{t−1} + α·s_t with noise, where s_t is the mean message of round t.

    Attributes:
        clip: C, bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, messages
            are clipped only in runs with noise, to the bound that the loss or the algorithm states.
        factor: correlation of the noise over rounds:

            * "tree": a binary tree, whose nodes are intervals of rounds. The node of the rounds y to z has the value
              α·Σ_t (1−α)^{z−t}·s_t, summed over these rounds. Each node has independent noise of standard deviation
              `noise_std`. The noise of m_t is the discounted sum of the noises of the nodes that cover the rounds 1 to
              t.
            * {"tree": r}: the same noise, but with a new tree after every r rounds.
            * "sensitivity tree": the same tree with unequal noise. The noise of a node is proportional to the largest
              change of the node's value if one record is replaced. This change is computed as if every record were used
              once per epoch, in the same order. Nodes of at most one epoch have noise of standard deviation
              `noise_std`.
            * "independent": fresh noise of standard deviation `noise_std` on every α·s_t.
            * a `Factor` object: any other correlation.
        batch: K, number of a machine's records in a round: one number for all machines, or one for each machine. K must
            divide the machine's number of records.
        sampler: "cyclic" for the same public order of records in every epoch, or "reshuffled" for a new public order in
            every epoch.
        noise_rule: "accountant" computes the smallest noise that meets the target. "paper" is the noise of Theorem 4 of
            Tran & Cutkosky 2022.
        trust: "server" for one noise on the mean, or "none" for separate noise of every machine.
        relative_privacy: one number r_i for each machine i, for trust = "none" only. The noise of machine i is
            proportional to 1/r_i. The μ of machine i is at most the target times r_i/max(r). None means equal numbers.
        epoch: number of rounds of one epoch; set by calibration.

    **Privacy**: μ-GDP for replacing one record, for any algorithm whose `reads` is `Momentum(alpha)`.

    Raises:
        Refusal: if a setting is invalid.
    """

    factor: Any = struct.field(pytree_node=False, default="tree")
    epoch: Any = struct.field(default=None, metadata={"derived": True})

    rules = RULES

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "factor", as_factor(self.factor))
        require_choice("sampler", self.sampler, ("cyclic", "reshuffled"))
        if self.noise_rule == "paper" and self.factor not in PAPER_NODES:
            raise Refusal(f"factor must be one of {', '.join(PAPER_NODES)} with the paper's noise, got {self.factor!r}")

    # ---- traced

    def noise_state(self, dimension: int, rounds: int) -> Path:
        """Return the state of the correlated noise before the first round."""
        return self._factor.init(dimension, rounds)

    def round_noise(self, state: Path, drawn: Any, noise_std: Any, reads: Reads, host_noise: Any):
        """Return the state of the correlated noise after this round, and the momentum's noise.

        The momentum's noise is a pair: the noise in the momentum of this round, and the noise in the momentum of the
        previous round, [d] each.

        Args:
            state: state of the noise after the previous round, for `noise_std` = 1.
            drawn: normal random numbers sampled for this round.
            noise_std: calibrated standard deviation, by which the noises of the result are multiplied.
            reads: the `Momentum` that the server reads, which has the weight α.
            host_noise: not used.
        """
        path = self._factor.step(state, drawn, reads.alpha, self.epoch)  # type: ignore[union-attr]
        return path, Correlated(noise_std * path.last, noise_std * state.last)

    # ---- on the host

    @property
    def _factor(self) -> Factor:
        return FACTORS[self.factor] if isinstance(self.factor, str) else self.factor

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the normals from which the correlated noise is computed.

        Args:
            facts: facts of the run, such as the problem and the participation schedule.
            method: way of sampling: "auto", "aggregate" (the noise of the mean) or "materialised" (the noise of every
                machine).
        """
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        plan = facts.plan
        if self.trust == "none" and method == "materialised":
            own = 1 / self.shares(plan)[plan.schedule.participants]
            return Streamed(MessageInputs(np.asarray(own, np.float32)), PerMachine)
        return Streamed(np.full(plan.size.rounds, self.noise_of_mean(plan.size.per_round), np.float32))

    def theorem(self) -> str:
        return self._factor.theorem

    def node_settings(self, facts: RunFacts) -> tuple:
        return self._factor, float(facts.reads.alpha), float(self.epoch)  # type: ignore[union-attr]

    def record_squares(self, facts: RunFacts) -> np.ndarray:
        settings, rounds = self.node_settings(facts), facts.plan.size.rounds

        def compute():
            return self._factor.squares(record_uses(facts.problem, facts.plan), rounds, *settings[1:])

        return computed_once(facts.problem, facts.plan, ("squares", *settings), compute)

    def contributions(self, facts: RunFacts, used: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return self._factor.contributions(used, weight, facts.plan.size.rounds, *self.node_settings(facts)[1:])

    def node_variances(self, rounds: int, alpha: float) -> np.ndarray:
        return self._factor.variances(rounds, alpha, float(self.epoch))

    def claim(self, facts: RunFacts, noise_std: float) -> Claim:
        epsilon = partial(_claimed, noise_std / self._paper_sensitivity(facts))
        return Claim("Tran & Cutkosky 2022, Theorem 4, by its count of nodes", epsilon)

    def paper_noise(self, facts: RunFacts, target: Target) -> float:
        if not isfinite(self.sensitivity(facts)):
            raise Refusal(SENSITIVITY_UNKNOWN)
        return self._paper_sensitivity(facts) * paper_multiplier(target)

    def _paper_sensitivity(self, facts: RunFacts) -> float:
        """Sensitivity in Theorem 4, by its count of the nodes that contain a record."""
        nodes = theory.node_count(records=self.rounds_of_epoch(facts.problem), rounds=facts.plan.size.rounds)
        most = 2 if self.factor == "tree" else 1  # largest sensitivity of a node, divided by that of a leaf
        return most * self.sensitivity(facts) * sqrt(nodes)


def as_factor(factor: Any) -> Any:
    """Return a factor of a momentum's noise as a static setting: a known name, or a `Factor`."""
    if isinstance(factor, Mapping):
        return tree_of("factor", factor)
    if isinstance(factor, str):
        require_choice("factor", factor, FACTORS)
    return factor


def _claimed(multiplier: float, delta: float) -> float:
    """Return the ε of Theorem 4 for a noise multiplier."""
    return float(theory.momentum_epsilon(noise_multiplier=multiplier, delta=delta, form="renyi"))


def paper_multiplier(target: Target) -> float:
    """Return the noise multiplier of Theorem 4, by its Rényi divergences for an ε, or by its zCDP for a μ."""
    if target.mu is not None:
        return 1 / target.mu
    return float(theory.momentum_multiplier(epsilon=target.worst_epsilon, delta=target.stated_delta, form="renyi"))
