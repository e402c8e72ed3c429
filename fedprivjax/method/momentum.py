"""What methods with a private momentum of normalised steps share: settings, the step, exposures, and the event."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite, sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_choice
from fedprivjax.method.default_steps import binds, noise_reach
from fedprivjax.method.interface import Protocol
from fedprivjax.method.minibatch_round import noisy_mean, record_messages
from fedprivjax.method.relative_privacy import asked_shares, fixed_relative_privacy, noise_of_shares, privacy_shares
from fedprivjax.method.round import RoundInputs, add_noise, flat_rows
from fedprivjax.method.settings import check_numbers
from fedprivjax.method.theory_choices import TheoryChoices
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Epochs, as_sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.uses import Uses, uses_of
from fedprivjax.privacy.events import Claim, GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import RECORD, Assumption, Terms, lipschitz_values
from fedprivjax.problem.gradients import Dense
from fedprivjax.problem.problem import Problem


class MomentumState(NamedTuple):
    """w_t, m_{t−1}, and one of w_1 … w_{t−1}, each as likely (w_1 at first); pytrees like the parameters."""

    w: Any
    momentum: Any
    kept: Any


@struct.dataclass
class MomentumMethod(Protocol):
    """Normalised steps along a private momentum, over epochs of machines' own records.

    A method of this kind defines `noise_state`, `noise` (which makes a `Correlated`), and on the host `mechanism`,
    `exposure`, `calibrate`, `theorem` and `rules`. `TreeMomentum` describes the attributes.
    """

    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    alpha: Any = None
    clip: Any = None
    batch: int | Sequence[int] = struct.field(pytree_node=False, default=1)
    sampler: str = struct.field(pytree_node=False, default="cyclic")
    noise_rule: str = struct.field(pytree_node=False, default="accountant")
    trust: str = struct.field(pytree_node=False, default="server")
    relative_privacy: Sequence[float] | None = struct.field(pytree_node=False, default=None)
    epoch: Any = struct.field(default=None, metadata={"derived": True})

    several_epochs = True
    weighs_machines = True

    def __post_init__(self):
        check_numbers(self, "mu")
        check_numbers(self, "epsilon")
        require_choice("trust", self.trust, ("server", "none"))
        require_choice("noise_rule", self.noise_rule, self.rules())
        if isinstance(self.alpha, int | float) and not 0 < self.alpha <= 1:
            raise Refusal(f"alpha must be above 0 and at most 1, got {self.alpha}")
        object.__setattr__(self, "relative_privacy", fixed_relative_privacy(self))

    def rules(self) -> dict[str, str]:
        """What `noise_rule` may be, in words."""
        raise Undefined(f"{self.name} must define rules()")

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
        """α times the participants' gradients: what m_t adds to (1−α)·m_{t−1}."""
        rows = record_messages(problem, state.w, inputs, self.clip)
        return jax.tree.map(lambda g: self.alpha * g, rows)

    def sent(self, problem: Problem, state: MomentumState, inputs: RoundInputs, noise, own_noise, key):
        """What m̂_t adds to (1−α)·m̂_{t−1}, which everybody knows already, [per_round, d]."""
        rows = flat_rows(problem, self.messages(problem, state, inputs, noise, key))
        return rows if own_noise is None else rows + own_noise.fresh(self.alpha)

    # ---- on the host

    def check(self, problem: Problem, plan: Plan) -> None:
        """Refuse a plan that the guarantee does not cover, and settings that the theory does not allow on it."""
        if plan.schedule.dropped is not None:
            raise Refusal(
                f"dropouts must be left out with {self.name}: after one, a machine's records are used in other rounds "
                f"than was planned"
            )
        if self.trust == "none" and not (plan.size.per_round == plan.size.machines and plan.schedule.present.all()):
            raise Refusal(
                f"participation must be Full with trust = 'none', for a machine's tree has a leaf in every round, "
                f"got {plan.schedule.present.sum(axis=1).min()} of {plan.size.machines} machines"
            )
        self._check_alpha(self.checked_epoch(problem, plan))

    @property
    def calibrated(self) -> bool:
        return self.noise_std is not None and self.epoch is not None

    def rounds_of_epoch(self, problem: Problem) -> int:
        """N: rounds after which every machine that took part in all has used each of its records."""
        if problem.table is None:
            raise Refusal("table must be given: machines go through records of their own")
        return int(self.minibatches.epoch(problem.table.sizes).max())

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
        self._check_alpha(epoch)
        return epoch

    def _check_alpha(self, epoch: int) -> None:
        if self.alpha is not None and not 1 / epoch <= self.alpha * (1 + 1e-6):
            raise Refusal(f"alpha must be at least 1/{epoch}, one over the rounds of an epoch, got {self.alpha:.4g}")

    def checked_epoch(self, problem: Problem, plan: Plan) -> int:
        """N, refused where a run is shorter."""
        epoch = self.rounds_of_epoch(problem)
        if plan.size.rounds < epoch:
            raise Refusal(f"rounds must be at least an epoch's ({epoch}), got {plan.size.rounds}")
        return epoch

    def bound(self, problem: Problem) -> float:
        """C, the clip or the Lipschitz constant: the largest norm of a record's gradient."""
        return float(problem.lipschitz if self.clip is None else self.clip)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        """How far a record moves the momentum in a round that uses it, at most: 2·α·C times its weight in the mean."""
        assert plan.weights is not None
        divisor = plan.schedule.divisor if self.trust == "server" else 1
        return 2 * float(self.alpha) * self.bound(problem) * float(plan.weights.max()) / divisor

    def gain(self, problem: Problem, per_round: int) -> float:
        """How many times less the noise of a round's mean is, at an ε, than with one record a round."""
        assert problem.table is not None
        batch = int(self.minibatches.batches(problem.table.sizes).min())
        return batch * (per_round if self.trust == "server" else per_round**0.5 / self.wider)

    @property
    def wider(self) -> float:
        """The noise of a mean over all machines, as a multiple of that without `relative_privacy`."""
        return (
            1.0 if self.relative_privacy is None else noise_of_shares(self.relative_privacy, len(self.relative_privacy))
        )

    def shares(self, plan: Plan) -> np.ndarray:
        """Every machine's μ as a part of the largest, [machines]; its noise is as many times larger."""
        return privacy_shares(self.relative_privacy, plan.size.machines)

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        """`√Σ_nodes (contribution/standard deviation)²` of each machine's most exposed record, by `sensitivity`."""
        raise Undefined(f"{self.name} must define exposure(problem, plan)")

    def most_over_share(self, problem: Problem, plan: Plan) -> float:
        """The largest exposure of a machine over its share, so that with noise for it none has more than its part."""
        return float(np.max(self.exposure(problem, plan).each / self.shares(plan)))

    def released_noise(self, problem: Problem, plan: Plan, machine: int) -> np.ndarray:
        """The relative noise of each release that the machine's most exposed record moves, over how far, [releases]."""
        raise Undefined(f"{self.name} must define released_noise(problem, plan, machine)")

    def claim(self, problem: Problem, plan: Plan) -> Claim | None:
        """What the noise rule "paper" says of the noise."""
        return None

    def theorem(self) -> str:
        """Where the guarantee is proved."""
        raise Undefined(f"{self.name} must define theorem()")

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """What the guarantee rests on beyond the gradient's bound and the public plan."""
        return ()

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        bounded = Assumption("lipschitz", lipschitz_values(problem))
        if self.clip is not None:
            bounded = Assumption("clipped records", {"bound": float(self.clip)})
        known = Assumption("public participation"), Assumption("public order"), bounded, *self.assumptions(problem)
        terms = Terms(self.trust, self.theorem(), (*known, Assumption("not covered")), unit=RECORD)
        sensitivity, exposure = self.sensitivity(problem, plan), self.exposure(problem, plan)
        claim = self.claim(problem, plan) if self.noise_rule == "paper" and self.noise_std else None
        return GaussianEvent(
            float(self.noise_std),
            sensitivity,
            exposure,
            terms,
            lambda i: self.released_noise(problem, plan, i),
            claim,
            asked_shares(self.relative_privacy, plan.size.machines),
        )

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Theorems 6 and 9's, which leave distances out; of clipped gradients, times how far noise may carry a run: the
        momentum's lasts N rounds, so that T steps along it go as far as √(N·T)."""
        step = 1 / sqrt(self.rounds_of_epoch(problem) * plan.size.rounds)
        return noise_reach(problem, problem.travel, times=2) * step if self.scaled_to_set(problem) else step

    def scaled_to_set(self, problem: Problem) -> bool:
        """Whether the default step follows the set's size: of clipped gradients, where there is one."""
        return binds(problem, self.clip) and isfinite(problem.travel)


def require_level(target: Target, theorem: str) -> None:
    """Refuse a target from whose privacy level a theorem cannot choose the rounds."""
    if target.given_noise is not None:
        raise Refusal(f"rounds must be given without an ε or a μ, for which {theorem} chooses them")


def normalised(vector):
    """The vector over its norm; 0 stays 0."""
    norm = Dense(vector).norm()
    return jax.tree.map(lambda leaf: leaf * jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0), vector)


def one_of(kept, newest, round, key):
    """The newest in place of what was kept, with probability 1/t: after round t, each of t iterates is as likely."""
    chosen = jax.random.uniform(key) * round < 1
    return jax.tree.map(lambda old, new: jnp.where(chosen, new, old), kept, newest)


def record_uses(problem: Problem, plan: Plan) -> Uses:
    """The uses of the problem's records, with weights relative to the plan's largest."""
    assert problem.table is not None
    assert plan.weights is not None
    uses = uses_of(plan, int(problem.table.rows.max()) + 1)
    return uses._replace(weight=uses.weight / plan.weights.max())


def uses_by(problem: Problem, plan: Plan, squares: np.ndarray, machine: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and weights of the machine's record with the largest square, as `record_uses`."""
    assert problem.table is not None
    own = problem.table.rows[machine]
    own = own[own >= 0]
    uses = record_uses(problem, plan)
    mine = uses.record == own[np.argmax(squares[own])]
    return uses.round[mine], uses.weight[mine]


def most_exposed(problem: Problem, squares: np.ndarray) -> np.ndarray:
    """The exposure of each machine's most exposed record, [machines], from every record's square."""
    assert problem.table is not None
    rows = problem.table.rows
    return np.sqrt(np.where(rows >= 0, squares[rows], 0).max(axis=1))


def computed_once(problem: Problem, plan: Plan, settings: tuple, compute: Callable[[], Any]) -> Any:
    """What follows from a plan, who owns which record, and settings alone, computed at the first call; different things
    have other settings."""
    arrays = id(plan.samples), id(plan.weights), id(problem.table)
    kept = plan, problem.table  # so that no other array has their ids
    return plan.schedule.once((*settings, *arrays), lambda: (kept, compute()))[1]
