"""Base of methods with normalised steps along a private momentum: settings, step, exposures, and event."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite, sqrt
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_choice
from fedprivjax.method.default_steps import binds, noise_reach
from fedprivjax.method.gaussian_method import GaussianMethod
from fedprivjax.method.interface import BATCH, EPOCH
from fedprivjax.method.minibatch_round import AtIterate, noisy_mean, record_messages
from fedprivjax.method.momentum_planning import LAST, epochs_of_records, momentum_constants
from fedprivjax.method.planning.bounds import Bound, PlannedRun, missing
from fedprivjax.method.planning.uses import Use
from fedprivjax.method.relative_privacy import noise_of_shares, privacy_shares
from fedprivjax.method.round import RoundInputs, add_noise, flat_rows
from fedprivjax.method.theory_choices import TheoryChoices
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Epochs, as_sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.uses import Uses, uses_of
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import PUBLIC_PARTICIPATION, RECORD, Assumption, Terms
from fedprivjax.problem.gradients import Dense
from fedprivjax.problem.problem import Problem
from fedprivjax.theory.tran_cutkosky import MomentumSettings, ProblemConstants


class MomentumState(NamedTuple):
    """Iterate w_t, momentum m_{t−1}, and one of w_1 … w_{t−1} sampled uniformly; pytrees like the parameters.

    Before the first round, the sampled iterate is w_1.
    """

    w: Any
    momentum: Any
    sampled: Any


@struct.dataclass(kw_only=True)
class MomentumMethod(AtIterate, GaussianMethod):
    """Normalised steps along a private momentum, over epochs of machines' own records.

    A subclass defines `rules`, `noise_state`, `noise` (which returns a `Correlated`), and on the host `mechanism`,
    `calibrate`, `theorem`, `node_settings`, `record_squares`, `contributions`, `node_variances` and `paper_noise`.
    `TreeMomentum` documents the fields.

    Attributes:
        rules: description of each noise rule.
        planned: sampler and smallest number of epochs of planned runs.
    """

    alpha: Any = None
    batch: int | Sequence[int] = struct.field(pytree_node=False, default=1)
    sampler: str = struct.field(pytree_node=False, default="cyclic")
    noise_rule: str = struct.field(pytree_node=False, default="accountant")
    trust: str = struct.field(pytree_node=False, default="server")
    epoch: Any = struct.field(default=None, metadata={"derived": True})

    several_epochs = True
    weighs_machines = True
    rules: ClassVar[dict[str, str]]
    planned: ClassVar[tuple[str, int]]
    clipped = "clipped records"
    plain: ClassVar[dict[str, Any]] = {
        **GaussianMethod.plain,
        "mu": None,
        "epsilon": None,
        "sampler": "cyclic",
        "noise_rule": "accountant",
        "trust": "server",
    }

    def __post_init__(self):
        super().__post_init__()
        require_choice("noise_rule", self.noise_rule, self.rules)
        if isinstance(self.alpha, int | float) and not 0 < self.alpha <= 1:
            raise Refusal(f"alpha must be above 0 and at most 1, got {self.alpha}")

    @property
    def minibatches(self) -> Epochs:
        return as_sampler(self.sampler, self.batch)  # type: ignore[return-value]

    # ---- traced

    def init(self, problem: Problem, size: Size, key) -> MomentumState:
        w = problem.start
        return MomentumState(w, jax.tree.map(jnp.zeros_like, w), w)

    def round(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, key):
        g, info = noisy_mean(problem, state.w, inputs, None, self.clip, constant=True)
        momentum = jax.tree.map(lambda m, g: (1 - self.alpha) * m + self.alpha * g, state.momentum, g)
        direction = normalised(add_noise(problem, momentum, None if noise is None else noise.now))
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, u: w - step * u, state.w, direction))
        return MomentumState(w, momentum, one_of(state.sampled, state.w, inputs.round, key)), info

    def output(self, state: MomentumState):
        return state.sampled

    def messages(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, key):
        """α times the participants' gradients, which m_t adds to (1−α)·m_{t−1}."""
        rows = record_messages(problem, state.w, inputs, self.clip)
        return jax.tree.map(lambda g: self.alpha * g, rows)

    def sent(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, own_noise, key):
        """Terms that m̂_t adds to (1−α)·m̂_{t−1}, which is public already; shape [per_round, d]."""
        rows = flat_rows(problem, self.messages(problem, state, inputs, noise, key))
        return rows if own_noise is None else rows + own_noise.fresh(self.alpha)

    # ---- on the host

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal if the guarantee does not cover the plan or the theory does not allow the settings."""
        if plan.schedule.dropped is not None:
            raise Refusal(
                f"dropouts must be left out with {self.name}: after one, a machine uses its records in other rounds "
                f"than planned"
            )
        if self.trust == "none" and not (plan.size.per_round == plan.size.machines and plan.schedule.present.all()):
            raise Refusal(
                f"participation must be Full with trust = 'none', because a machine's tree has a leaf in every round, "
                f"got {plan.schedule.present.sum(axis=1).min()} of {plan.size.machines} machines"
            )
        self.checked_epoch(problem, plan)
        self.checked_rounds_of_epoch(problem)

    @property
    def calibrated(self) -> bool:
        return self.noise_std is not None and self.epoch is not None

    def rounds_of_epoch(self, problem: Problem) -> int:
        """N: rounds after which a machine that takes part in every round has used each of its records."""
        if problem.partition_table is None:
            raise Refusal("partition_table must be given: each machine uses its own records")
        return int(self.minibatches.epoch(problem.partition_table.sizes).max())

    def theory_choices(self, problem: Problem) -> TheoryChoices:
        return TheoryChoices(
            rounds=partial(self.theory_rounds, problem), min_rounds=partial(self.checked_rounds_of_epoch, problem)
        )

    def theory_rounds(self, problem: Problem, machines: int, target: Target) -> int:
        """Number of rounds that the method's theorem chooses, in whole epochs."""
        raise Undefined(f"{self.name} must define theory_rounds(problem, machines, target)")

    def checked_rounds_of_epoch(self, problem: Problem) -> int:
        """N. Raise Refusal if `alpha` is too small for it."""
        epoch = self.rounds_of_epoch(problem)
        if self.alpha is not None and not 1 / epoch <= self.alpha * (1 + 1e-6):
            raise Refusal(f"alpha must be at least 1/{epoch}, 1/(rounds of an epoch), got {self.alpha:.4g}")
        return epoch

    def checked_epoch(self, problem: Problem, plan: Plan) -> int:
        """N. Raise Refusal if the run is shorter."""
        epoch = self.rounds_of_epoch(problem)
        if plan.size.rounds < epoch:
            raise Refusal(f"rounds must be at least those of one epoch ({epoch}), got {plan.size.rounds}")
        return epoch

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        """L2 sensitivity of the momentum to replacing a record, in a round that uses it: 2·α·C times its weight."""
        assert plan.weights is not None
        divisor = plan.schedule.divisor if self.trust == "server" else 1
        return 2 * float(self.alpha) * self.bound(problem) * float(plan.weights.max()) / divisor

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

    def node_settings(self, problem: Problem, plan: Plan) -> tuple:
        """Settings that determine the noise of nodes, in addition to the plan."""
        raise Undefined(f"{self.name} must define node_settings(problem, plan)")

    def record_squares(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Squared exposure of each record with the noise of the largest μ; float64, shape [records]."""
        raise Undefined(f"{self.name} must define record_squares(problem, plan)")

    def contributions(self, problem: Problem, plan: Plan, used: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Contributions of a record to released nodes, divided by the nodes' relative noise; shape [nodes].

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
        """
        raise Undefined(f"{self.name} must define contributions(problem, plan, used, weight)")

    def node_variances(self, rounds: int) -> np.ndarray:
        """Variance of one coordinate of the noise of a tree's m̂_t, divided by `noise_std`²; float64, shape [rounds]."""
        raise Undefined(f"{self.name} must define node_variances(rounds)")

    def paper_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Noise of the noise rule "paper"."""
        raise Undefined(f"{self.name} must define paper_noise(problem, plan, target)")

    def theorem(self) -> str:
        """Source of the guarantee."""
        raise Undefined(f"{self.name} must define theorem()")

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        def compute():
            return Grouped.of(self.shares(plan) * most_exposed(problem, self.record_squares(problem, plan)))

        return computed_once(problem, plan, (*self.node_settings(problem, plan), self.relative_privacy), compute)

    def released_noise(self, problem: Problem, plan: Plan, machine: int) -> np.ndarray:
        uses = uses_by(problem, plan, self.record_squares(problem, plan), machine)
        return 1 / (self.shares(plan)[machine] * self.contributions(problem, plan, *uses))

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        if self.noise_rule != "accountant":
            return self.paper_noise(problem, plan, target)
        largest = float(np.max(self.exposure(problem, plan).each / self.shares(plan)))
        return gaussian_rule(target, self.sensitivity(problem, plan) * largest)

    def noise_variances(self, size: Size) -> np.ndarray:
        """Variance of one coordinate of the calibrated noise in each round's mean m̂_t; float64, shape [rounds]."""
        scale = float(self.noise_std) * self.noise_of_mean(size.per_round)
        return scale**2 * self.node_variances(size.rounds)

    def terms(self, problem: Problem, plan: Plan) -> Terms:
        known = PUBLIC_PARTICIPATION, Assumption("public order")
        assumptions = (*known, *self.bound_assumptions(problem), Assumption("not covered"))
        return Terms(self.trust, self.theorem(), assumptions, unit=RECORD)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Step of Theorems 6 and 9, which ignore distances: 1/√(N·T).

        For clipped gradients it is multiplied by the distance that noise may move a run (`noise_reach`). The momentum's
        noise persists for N rounds, so T steps along it move √(N·T) step lengths.
        """
        step = 1 / sqrt(self.rounds_of_epoch(problem) * plan.size.rounds)
        return noise_reach(problem, problem.travel, times=2) * step if self.scaled_to_set(problem) else step

    def scaled_to_set(self, problem: Problem) -> bool:
        """True if the default step scales with the set's size: for clipped gradients in a set with a known distance."""
        return binds(problem, self.clip) and isfinite(problem.travel)

    def scaled_down(self, machines: int):
        """Scale down as in `Protocol.scaled_down`, with a momentum for short epochs."""
        alpha = None if self.alpha is None else max(float(self.alpha), 1 / EPOCH)
        return replace(super().scaled_down(machines), alpha=alpha)

    @classmethod
    def uses(cls) -> tuple[Use, ...]:
        return (Use("", epochs_of_records(cls, *cls.planned), iterate=LAST),)

    def error_bound(self, run: PlannedRun) -> Bound:
        """Bound of the method's theorem on the mean norm of the gradient over iterates."""
        if not run.setting.full:
            return missing("its theorem has all machines in every round")
        return self.momentum_bound(*momentum_constants(run))

    def momentum_bound(self, problem: ProblemConstants, settings: MomentumSettings, known: dict[str, float]) -> Bound:
        """Bound of the method's theorem for a run with all machines in every round."""
        raise Undefined(f"{self.name} must define momentum_bound(problem, settings, known)")

    @classmethod
    def audit_settings(cls) -> dict[str, Any]:
        return {**super().audit_settings(), "batch": BATCH, "alpha": 2 / EPOCH}


def require_level(target: Target, theorem: str) -> None:
    """Raise Refusal if the target has no privacy level from which the theorem could choose the rounds."""
    if target.given_noise is not None:
        raise Refusal(f"rounds must be given if the target is a noise: {theorem} chooses them from an ε or a μ")


def normalised(vector):
    """Return the vector divided by its norm; 0 stays 0."""
    norm = Dense(vector).norm()
    return jax.tree.map(lambda leaf: leaf * jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0), vector)


def one_of(sampled, newest, round, key):
    """Return the newest iterate with probability 1/t, else `sampled`: reservoir sampling, uniform over t iterates."""
    chosen = jax.random.uniform(key) * round < 1
    return jax.tree.map(lambda old, new: jnp.where(chosen, new, old), sampled, newest)


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
