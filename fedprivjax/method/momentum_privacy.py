"""Base of the privacy objects of a momentum, over epochs of machines' own records.

The server reads m_t = (1−α)·m_{t−1} + α·s_t of the mean messages s_t, with noise that is correlated over rounds. The
un-noised momentum stays in the object's memory.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import called, require_choice
from fedprivjax.method.algorithm import Momentum, Reads
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.relative_privacy import noise_of_shares, privacy_shares, shared_privacy
from fedprivjax.method.release import Limits, MessagePrivacy, Released, RunFacts
from fedprivjax.method.round import RoundInputs, add_noise, cohort_sum
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.noise.factors import Correlated
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Epochs, as_sampler
from fedprivjax.plan.uses import Uses, uses_of
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import Claim, GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import PUBLIC_PARTICIPATION, RECORD, Assumption, Terms
from fedprivjax.problem.problem import Problem


class Memory(NamedTuple):
    """State of the privacy object, which no algorithm sees.

    Attributes:
        momentum: un-noised momentum m_{t−1}.
    """

    momentum: Any


@struct.dataclass(kw_only=True)
class MomentumFields:
    """Settings of privacy objects and of methods with a momentum. `TreeMomentum` documents them."""

    clip: Any = None
    relative_privacy: Any = host_only(None)
    batch: int | Sequence[int] = host_only(1)
    sampler: str = host_only("cyclic")
    noise_rule: str = host_only("accountant")
    trust: str = host_only("server")


@struct.dataclass(kw_only=True)
class MomentumPrivacy(MomentumFields, MessagePrivacy):
    """Base of the privacy objects of a momentum. `NoisyMomentum` documents the settings.

    A subclass defines `rules`, the field `epoch` as `NoisyMomentum` does, `noise_state`, `round_noise` (which returns a
    `Correlated`), and on the host `mechanism`, `theorem`, `node_settings`, `record_squares`, `contributions`,
    `node_variances`, `paper_noise` and `claim`.

    Attributes:
        rules: description of each noise rule.
    """

    rules: ClassVar[dict[str, str]]
    if TYPE_CHECKING:  # fields of subclasses
        epoch: ClassVar[Any]

    several_epochs = True
    weighs_machines = True

    def __post_init__(self):
        for name, of in (
            ("rules", "descriptions of its noise rules"),
            ("epoch", "a field with the metadata `derived`"),
        ):
            if not hasattr(self, name):
                raise Undefined(f"{type(self).__name__} must define {name}, {of}")
        require_clip("clip", self.clip)
        require_choice("trust", self.trust, ("server", "none"))
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))
        require_choice("noise_rule", self.noise_rule, self.rules)

    # ---- traced

    def memory(self, start: Any, reads: Reads) -> Memory:
        """Return the memory before the first round."""
        self.require_momentum(reads)
        return Memory(jax.tree.map(jnp.zeros_like, start))

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits, key: Any
    ) -> Released:
        """Return the noisy momentum of the means of the cohort's messages.

        Args:
            noise: `Correlated` noise of the momentum, or None in a run without noise.
        """
        bound = self.enforced(limits, private=noise is not None)
        total, info = cohort_sum(problem, of_record(message), inputs, bound)
        count, alpha = self._count(inputs), limits.reads.alpha  # type: ignore[union-attr]
        mean = jax.tree.map(lambda g: g / count, total)
        momentum = jax.tree.map(lambda m, g: (1 - alpha) * m + alpha * g, memory.momentum, mean)
        read = add_noise(problem, momentum, None if noise is None else noise.now)
        return Released(read, memory._replace(momentum=momentum), {} if self.clip is None else info)

    def _count(self, inputs: RoundInputs) -> Any:
        """Return the divisor of the sums, E[M_r] if the number of participants varies."""
        return jnp.sum(inputs.filled) if inputs.expected is None else inputs.expected

    def messages(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, limits: Limits, key: Any
    ) -> Any:
        """Return α times the participants' bounded messages, which m_t adds to (1−α)·m_{t−1}."""
        rows = super().messages(problem, message, inputs, noise, limits, key)
        return jax.tree.map(lambda g: limits.reads.alpha * g, rows)  # type: ignore[union-attr]

    def of_message(self, own_noise: Correlated, reads: Reads) -> Any:
        """Return the noise that a message adds to (1−α)·m̂_{t−1}, which is public already; shape [per_round, d]."""
        return own_noise.fresh(reads.alpha)  # type: ignore[union-attr]

    # ---- on the host

    @property
    def minibatches(self) -> Epochs:
        """Sampler of the records of a message."""
        return as_sampler(self.sampler, self.batch)  # type: ignore[return-value]

    def require_momentum(self, reads: Reads) -> None:
        """Raise Refusal unless the server reads a momentum."""
        if type(reads) is not Momentum:
            raise Refusal(f"reads must be Momentum(alpha) with {type(self).__name__}, got {reads}")

    def check(self, facts: RunFacts, name: str) -> None:
        plan = facts.plan
        if plan.schedule.dropped is not None:
            raise Refusal(
                f"dropouts must be left out with {name}: after one, a machine uses its records in other rounds than "
                f"planned"
            )
        if self.trust == "none" and not (plan.size.per_round == plan.size.machines and plan.schedule.present.all()):
            raise Refusal(
                f"participation must be Full with trust = 'none', because a machine's tree has a leaf in every round, "
                f"got {plan.schedule.present.sum(axis=1).min()} of {plan.size.machines} machines"
            )
        self.require_momentum(facts.reads)
        self.checked_epoch(facts.problem, plan)
        self.checked_rounds_of_epoch(facts.problem, facts.reads.alpha)  # type: ignore[union-attr]

    def rounds_of_epoch(self, problem: Problem) -> int:
        """N: rounds after which a machine that takes part in every round has used each of its records."""
        if problem.partition_table is None:
            raise Refusal("partition_table must be given: each machine uses its own records")
        return int(self.minibatches.epoch(problem.partition_table.sizes).max())

    def checked_rounds_of_epoch(self, problem: Problem, alpha: Any) -> int:
        """N. Raise Refusal if `alpha` is too small for it."""
        epoch = self.rounds_of_epoch(problem)
        if alpha is not None and not 1 / epoch <= alpha * (1 + 1e-6):
            raise Refusal(f"alpha must be at least 1/{epoch}, 1/(rounds of an epoch), got {alpha:.4g}")
        return epoch

    def checked_epoch(self, problem: Problem, plan: Plan) -> int:
        """N. Raise Refusal if the run is shorter."""
        epoch = self.rounds_of_epoch(problem)
        if plan.size.rounds < epoch:
            raise Refusal(f"rounds must be at least those of one epoch ({epoch}), got {plan.size.rounds}")
        return epoch

    def planned(self, facts: RunFacts) -> dict[str, Any]:
        """Return the settings that follow from a plan, by name: N."""
        self.require_momentum(facts.reads)
        require_alpha(facts.reads.alpha)  # type: ignore[union-attr]
        return {"epoch": float(self.checked_epoch(facts.problem, facts.plan))}

    def gain(self, problem: Problem, per_round: int) -> float:
        """Factor by which the noise of a round's mean is smaller than with one record per round, at the same ε."""
        assert problem.partition_table is not None
        batch = int(self.minibatches.batches(problem.partition_table.sizes).min())
        return batch * (per_round if self.trust == "server" else 1 / self.noise_of_mean(per_round))

    def noise_of_mean(self, per_round: int) -> float:
        """Noise of a round's mean m̂_t, divided by that of one tree: 1/√M for M identical machines with own trees."""
        if self.trust == "server":
            return 1.0
        ratios = self.relative_privacy
        return (1.0 if ratios is None else noise_of_shares(ratios, len(ratios))) / sqrt(per_round)

    def shares(self, plan: Plan) -> np.ndarray:
        """Each machine's μ divided by the largest, shape [machines]. Its noise is larger by the inverse ratio."""
        return privacy_shares(self.relative_privacy, plan.size.machines)

    def sensitivity(self, facts: RunFacts) -> float:
        """L2 sensitivity of the momentum to replacing a record, in a round that uses it: 2·α·C times its weight."""
        plan, alpha = facts.plan, facts.reads.alpha  # type: ignore[union-attr]
        assert plan.weights is not None
        divisor = plan.schedule.divisor if self.trust == "server" else 1
        return 2 * float(alpha) * facts.bound.norm * float(plan.weights.max()) / divisor

    def node_settings(self, facts: RunFacts) -> tuple:
        """Settings that determine the noise of nodes, in addition to the plan."""
        raise Undefined(f"{type(self).__name__} must define node_settings(facts)")

    def record_squares(self, facts: RunFacts) -> np.ndarray:
        """Squared exposure of each record with the noise of the largest μ; float64, shape [records]."""
        raise Undefined(f"{type(self).__name__} must define record_squares(facts)")

    def contributions(self, facts: RunFacts, used: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Contributions of a record to released nodes, divided by the nodes' relative noise; shape [nodes].

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
        """
        raise Undefined(f"{type(self).__name__} must define contributions(facts, used, weight)")

    def node_variances(self, rounds: int, alpha: float) -> np.ndarray:
        """Variance of one coordinate of the noise of a tree's m̂_t, divided by `noise_std`²; float64, shape [rounds]."""
        raise Undefined(f"{type(self).__name__} must define node_variances(rounds, alpha)")

    def paper_noise(self, facts: RunFacts, target: Target) -> float:
        """Noise of the noise rule "paper"."""
        raise Undefined(f"{type(self).__name__} must define paper_noise(facts, target)")

    def claim(self, facts: RunFacts, noise_std: float) -> Claim:
        """Published claim about the noise of the noise rule "paper"."""
        raise Undefined(f"{type(self).__name__} must define claim(facts, noise_std)")

    def theorem(self) -> str:
        """Source of the guarantee."""
        raise Undefined(f"{type(self).__name__} must define theorem()")

    def assumptions(self, facts: RunFacts) -> tuple[Assumption, ...]:
        """Assumptions on the loss."""
        return facts.bound.assumptions

    def exposure(self, facts: RunFacts) -> Grouped:
        """μ of each machine, in units of sensitivity/noise_std."""
        problem, plan = facts.problem, facts.plan

        def compute():
            return Grouped.of(self.shares(plan) * most_exposed(problem, self.record_squares(facts)))

        return computed_once(problem, plan, (*self.node_settings(facts), self.relative_privacy), compute)

    def releases(self, facts: RunFacts, machine: int) -> np.ndarray:
        """Relative noise of each release that the machine's most exposed record affects; shape [releases]."""
        uses = uses_by(facts.problem, facts.plan, self.record_squares(facts), machine)
        return 1 / (self.shares(facts.plan)[machine] * self.contributions(facts, *uses))

    def needed_noise(self, facts: RunFacts, target: Target) -> float:
        """Return the smallest noise that meets a target, or that of the paper's rule."""
        if self.noise_rule != "accountant":
            return self.paper_noise(facts, target)
        largest = float(np.max(self.exposure(facts).each / self.shares(facts.plan)))
        return gaussian_rule(target, self.sensitivity(facts) * largest)

    def event(self, facts: RunFacts, noise_std: float) -> GaussianEvent:
        """Return the event of a plan's nodes."""
        self.require_momentum(facts.reads)
        assumptions = *self.assumptions(facts), Assumption("not covered")
        public = PUBLIC_PARTICIPATION, Assumption("public order")
        return GaussianEvent(
            noise_std,
            self.sensitivity(facts),
            self.exposure(facts),
            Terms(self.trust, self.theorem(), (*public, *assumptions), unit=RECORD),
            lambda machine: self.releases(facts, machine),
            self.claim(facts, noise_std) if self.noise_rule == "paper" and noise_std else None,
            None if self.relative_privacy is None else self.shares(facts.plan),
        )


def require_alpha(alpha: Any) -> None:
    """Raise Refusal unless the weight of a round's mean in a momentum is a number above 0 and at most 1."""
    if not (isinstance(alpha, int | float | np.number | jax.Array) and np.ndim(alpha) == 0 and 0 < alpha <= 1):
        raise Refusal(f"alpha must be above 0 and at most 1, got {called(alpha)}")


def record_uses(problem: Problem, plan: Plan) -> Uses:
    """Return the uses of the problem's records, with weights divided by the plan's largest."""
    assert problem.partition_table is not None
    assert plan.weights is not None
    uses = uses_of(plan, int(problem.partition_table.rows.max()) + 1)
    return uses._replace(weight=uses.weight / plan.weights.max())


def uses_by(problem: Problem, plan: Plan, squares: np.ndarray, machine: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rounds and weights, as in `record_uses`, of the machine's record with the largest square."""
    assert problem.partition_table is not None
    own = problem.partition_table.rows[machine]
    own = own[own >= 0]
    uses = record_uses(problem, plan)
    mine = uses.record == own[np.argmax(squares[own])]
    return uses.round[mine], uses.weight[mine]


def most_exposed(problem: Problem, squares: np.ndarray) -> np.ndarray:
    """Return the exposure of each machine's most exposed record, [machines], from the squares of all records."""
    assert problem.partition_table is not None
    rows = problem.partition_table.rows
    return np.sqrt(np.where(rows >= 0, squares[rows], 0).max(axis=1))


def computed_once(problem: Problem, plan: Plan, settings: tuple, compute: Callable[[], Any]) -> Any:
    """Return `compute()`, cached for this plan, partition table and settings.

    `settings` is a part of the cache key: pass different settings for different computations.
    """
    arrays = id(plan.samples), id(plan.weights), id(problem.partition_table)
    alive = plan, problem.partition_table  # keeps the ids unique: no other array can get them
    return plan.schedule.once((*settings, *arrays), lambda: (alive, compute()))[1]
