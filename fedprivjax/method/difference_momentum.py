"""Privacy of a momentum with noise of reduced sensitivity: gradients at anchors, and small differences between points.

The noise of `noise.factors.reduced` relies on the length of the way between the points of two rounds, which must
lie in the set on which the loss is smooth. The steps of `ReducedTreeMomentum` meet both, and no other algorithm can be
composed with this object.
"""

from math import isfinite, log2, sqrt
from typing import Any, final

import jax
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.algorithm import Reads
from fedprivjax.method.momentum_privacy import MomentumPrivacy, computed_once, record_uses
from fedprivjax.method.release import RunFacts
from fedprivjax.noise import Mechanism
from fedprivjax.noise.factors import Correlated
from fedprivjax.noise.factors.reduced import (
    ALLOCATIONS,
    Groups,
    Normals,
    ReducedTrees,
    Rings,
    optimal_stds,
    paper_stds,
    total_squares,
)
from fedprivjax.noise.windows import WindowInputs, Windows
from fedprivjax.plan.uses import repeats_after
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.curve import GaussianCurve
from fedprivjax.privacy.events import Claim, GaussianEvent
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.constraints import flat
from fedprivjax.problem.problem import Problem

RULES = {
    "accountant": "the smallest noise for the rounds in which the plan uses each record",
    "paper": "that of Theorem 8, from its counts of the nodes that contain a record",
}
THEOREM = "Tran & Cutkosky 2022, Theorem 8, with records' exact contributions to nodes; composition of Gaussians"
ROUNDING = 2.0**-22  # rounding error of a step and a projection in float32, relative to a point's norm
LONGEST = float(np.finfo(np.float32).max) ** 0.5  # norm whose square overflows: a clipped gradient jumps to 0 there
MAX_BYTES = 2 * 2**30  # memory limit of the rings


@final
@struct.dataclass(kw_only=True)
class ReducedMomentum(MomentumPrivacy):
    """Noise of reduced sensitivity on the momentum of gradients in cyclic epochs, which protects one record.

    Attributes:
        length: largest distance between the points of two consecutive rounds, without `slack`.
        slack: allowance for rounding errors and for the distance from the start to the constraint set, which is added
            to `length`; set by calibration.
        clip, batch, noise_rule, trust, relative_privacy, reset_rate, allocation: as in `ReducedTreeMomentum`.
        stds: noise of each group divided by σ; set by calibration, like `epoch`.

    **Privacy**: μ-GDP for replacing one record, as in `ReducedTreeMomentum`.

    Raises:
        Refusal: if a setting is invalid.
    """

    length: Any = None
    reset_rate: Any = None
    allocation: str = host_only("optimal")
    slack: Any = struct.field(default=None, metadata={"derived": True})
    stds: Any = struct.field(default=None, metadata={"derived": True})
    epoch: Any = struct.field(pytree_node=False, default=None, metadata={"derived": True})

    rules = RULES
    gradients_each = 3

    def __post_init__(self):
        super().__post_init__()
        if self.sampler != "cyclic":
            raise Refusal(f"sampler must be 'cyclic', so rounds N apart use the same records, got {self.sampler!r}")
        require_choice("allocation", self.allocation, ALLOCATIONS)
        if self.noise_rule == "paper" and self.allocation != "paper":
            raise Refusal(f"allocation must be 'paper' with the paper's noise, got {self.allocation!r}")
        if isinstance(self.reset_rate, int | float) and not 0 <= self.reset_rate <= 1:
            raise Refusal(f"reset_rate must be between 0 and 1, got {self.reset_rate}")

    # ---- traced

    def noise_state(self, dimension: int, rounds: int) -> Rings:
        """Return the state of the noise before the first round."""
        return self._trees.init(dimension, rounds)

    def round_noise(self, state: Rings, drawn: Normals, noise_std: Any, reads: Reads, host_noise: Any):
        """Return the state of the noise, and the noise of the momentum in this round and the last."""
        rings = self._trees.step(state, drawn, reads.alpha, self.reset_rate, self.stds)  # type: ignore[union-attr]
        return rings, Correlated(noise_std * rings.last, noise_std * state.last)

    # ---- on the host

    @property
    def _trees(self) -> ReducedTrees:
        assert self.epoch is not None  # planned
        return ReducedTrees(self.epoch)

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise by the given noise method."""
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        plan, (machines, per_round, rounds) = facts.plan, facts.plan.size
        number = np.arange(1, rounds + 1, dtype=np.int32)
        if self.trust == "server" or method != "materialised":
            of_mean = np.full(rounds, self.noise_of_mean(per_round), np.float32)
            return Windows(WindowInputs(number, of_mean), self.epoch)
        first = np.zeros(machines, np.int32)  # a machine is identified by its slot in the first round
        first[plan.schedule.participants[0]] = np.arange(per_round)
        own = np.asarray(1 / self.shares(plan)[plan.schedule.participants], np.float32)
        return Windows(WindowInputs(number, own, first[plan.schedule.participants]), self.epoch)

    def check(self, facts: RunFacts, name: str) -> None:
        """Raise Refusal if the guarantee does not cover the plan or the method does not allow the settings."""
        super().check(facts, name)
        plan, dimension = facts.plan, facts.problem.dimension
        if not repeats_after(plan, self.epoch):
            raise Refusal(
                f"participation must be Full, and epochs equally long on all machines, for rounds {self.epoch} apart "
                f"to use the same records, got {plan.size.per_round} of {plan.size.machines} machines a round"
            )
        needed = 8 * self.epoch * dimension
        if needed > MAX_BYTES:
            raise Refusal(
                f"memory for two rings of {self.epoch} · {dimension} numbers must be at most "
                f"{MAX_BYTES / 2**30:g} GiB, got {needed / 2**30:.3g} GiB. Use a larger batch"
            )

    def planned(self, facts: RunFacts) -> dict[str, Any]:
        """Return the settings that follow from a plan, by name."""
        epoch, length = int(super().planned(facts)["epoch"]), float(self.length)
        reset = min(length * epoch, 0.5) if self.reset_rate is None else float(self.reset_rate)
        found = {"epoch": epoch, "reset_rate": reset, "slack": slack_of(facts, length)}
        return found | {"stds": self.replace(**found)._stds(facts)}  # type: ignore[attr-defined]

    def theorem(self) -> str:
        return THEOREM

    def assumptions(self, facts: RunFacts) -> tuple[Assumption, ...]:
        shorter = "" if self.clip is None else f", with gradients shorter than {LONGEST:.2g} (longer ones count as 0)"
        smooth = Assumption("stated", {"text": f"losses are {facts.problem.smoothness:.4g}-smooth{shorter}"})
        return *super().assumptions(facts), smooth

    def event(self, facts: RunFacts, noise_std: float) -> GaussianEvent:
        if noise_std:
            require_smooth(facts.problem)
        return super().event(facts, noise_std)

    def drift(self, facts: RunFacts) -> float:
        """Largest change of a gradient between two rounds, divided by the gradient bound."""
        bound = facts.bound.norm
        longest = float(self.length) + float(self.slack)
        return longest * float(facts.problem.smoothness) / bound if isfinite(bound) else 0.0

    def node_settings(self, facts: RunFacts) -> tuple:
        return "reduced", *self._settings(facts), self.stds

    def record_squares(self, facts: RunFacts) -> np.ndarray:
        return total_squares(self._squares(facts), self.stds)

    def contributions(self, facts: RunFacts, used: np.ndarray, weight: np.ndarray) -> np.ndarray:
        _, alpha, reset_rate, drift = self._settings(facts)
        return self._trees.contributions(used, weight, facts.plan.size.rounds, alpha, reset_rate, drift, self.stds)

    def node_variances(self, rounds: int, alpha: float) -> np.ndarray:
        return self._trees.variances(rounds, alpha, float(self.reset_rate)) @ np.square(self.stds)

    def claim(self, facts: RunFacts, noise_std: float) -> Claim:
        mu = self._paper_sensitivity(facts) / noise_std
        return Claim("Tran & Cutkosky 2022, Theorem 8, by its counts of nodes", GaussianCurve(mu).epsilon)

    def paper_noise(self, facts: RunFacts, target: Target) -> float:
        return gaussian_rule(target, self._paper_sensitivity(facts))

    def _settings(self, facts: RunFacts) -> tuple:
        alpha = float(facts.reads.alpha)  # type: ignore[union-attr]
        return self.epoch, alpha, float(self.reset_rate), self.drift(facts)

    def _squares(self, facts: RunFacts) -> np.ndarray:
        """Squared contribution of each record to each group at unit noise, [records, groups]."""
        settings, problem, plan = self._settings(facts), facts.problem, facts.plan

        def compute():
            return self._trees.squares(record_uses(problem, plan), plan.size.rounds, *settings[1:])

        return computed_once(problem, plan, ("reduced squares", *settings), compute)

    def _stds(self, facts: RunFacts) -> Groups:
        epoch, alpha, reset_rate, drift = self._settings(facts)
        rounds = facts.plan.size.rounds
        if self.allocation == "paper":
            return paper_stds(epoch, rounds, drift)

        def compute():
            return optimal_stds(self._squares(facts), self._trees.variances(rounds, alpha, reset_rate))

        return computed_once(facts.problem, facts.plan, ("reduced stds", epoch, alpha, reset_rate, drift), compute)

    def _paper_sensitivity(self, facts: RunFacts) -> float:
        """Sensitivity in Theorem 8, by its counts of the nodes that contain a record."""
        nodes = 3 * log2(max(self.epoch, 2))
        return 2 * sqrt(3 * nodes) * self.sensitivity(facts)


def slack_of(facts: RunFacts, length: float) -> float:
    """Return the rounding error of a step of this length, plus the distance from the start to its projection."""
    problem = facts.problem
    start = sqrt(sum(float(np.sum(np.square(leaf, dtype=float))) for leaf in jax.tree.leaves(problem.start)))
    farthest = min(float(problem.constraint.radius), start + length * facts.plan.size.rounds)
    start_moves = np.linalg.norm(flat(problem.constraint.project(problem.start)) - flat(problem.start))
    return ROUNDING * farthest + float(start_moves)


def require_smooth(problem: Problem) -> None:
    """Raise Refusal unless the loss states its smoothness."""
    if not isfinite(problem.smoothness):
        raise Refusal(
            f"smoothness must be known: it bounds a record's effect on gradient differences, got {problem.smoothness}"
        )
