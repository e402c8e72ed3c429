r"""DP-μ²-FL: anytime averaging with STORM-corrected momentum, private by noise on its running sums.

Reshef & Levy, ICML 2024 (full participation, Algorithms 1 and 2) and ICML 2025 (partial participation, noise
cancellation). Weights α_t = t, β_t = 1/t. A machine that takes part in round t with a fresh sample z sends

    s_{t,i} = t·∇f(x_t; z) − (t−1)·∇f(x_{t−1}; z),        ‖s‖ ≤ S = G + 2LD, or clipped to ‖s‖ ≤ C

and the server moves by the noisy running mean of the increments:

    q_t = q_{t−1} + (1/m)·Σ_{i∈S_t} s_{t,i}        q̃_t = q_t + noise_std·z_t        m = E|S_t|, one for all rounds
    w_{t+1} = Π_K(w_t − η·q̃_t)                     x_{t+1} = x_t + 2/(t+2)·(w_{t+1} − x_t)        output x_T

The four protocols of the papers are settings of one: `trust="server"` adds fresh noise to q_t each round;
`trust="none"` has machines add and cancel their own, which at full participation is fresh noise on every machine's
running sum. Where |S_t| varies, or asked machines drop out, m stays one constant: divided by each round's own number,
noise that stands in q̃ would be taken back over another number than it was added over, and pile up. A machine that drops
out sends nothing, keeps its noise and its sample; the guarantee is that of the messages that were planned.

Ours: the noise schedules `uniform` and `gap`, which use that participation is public beforehand;
`clip`, with which the privacy proof needs ‖s‖ ≤ C only, so neither G, L nor D enters the guarantee; and `batch`: a
machine sends the mean of K fresh samples' increments, which one of them moves by 2S/K at most. In T/K rounds, with K²
times the step, the noise in x is that of K = 1, in K times fewer messages. The default step grows so where the noise
sets it; the cap 1/(4LT) of unclipped increments grows by K only and then holds it down, and that of clipped batches,
2D/(CT), keeps a run of very few rounds from crossing the set at every step.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag
from fedprivjax.method.default_steps import gathered_reach, step_by_theory
from fedprivjax.method.interface import Protocol
from fedprivjax.method.relative_privacy import (
    asked_shares,
    exposed_once,
    fixed_relative_privacy,
    noise_of_shares,
    privacy_shares,
)
from fedprivjax.method.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.method.settings import batch_assumptions, check_settings, dealt, fixed_schedule
from fedprivjax.noise import NOISE_SCHEDULES, Fresh, Mechanism, choose
from fedprivjax.noise.schedules import exposure, relative_std, server_std
from fedprivjax.noise.sums import SUM_FACTORS, CorrelatedSums, SumFactor, Toeplitz
from fedprivjax.noise.sums.workload import anytime, anytime_workload
from fedprivjax.plan.participation import Full
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Dealt
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.per_machine import Grouped, grouped_once
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy

COMPOSED = "adaptive composition of Gaussian mechanisms"


class Mu2State(NamedTuple):
    """x_t, x_{t−1}, w_t and the running mean of increments q_{t−1}, each of the parameters' structure."""

    x: Any
    x_previous: Any
    w: Any
    q: Any


@struct.dataclass
class DPMu2(Protocol):
    """DP-μ²-FL with a trusted or an untrusted server, at any participation.

    Attributes:
        mu: GDP target from which `calibrate` computes `noise_std`; inf is non-private μ²-SGD.
        epsilon: the target as an ε, at the run's delta (instead of `mu`).
        noise_std: standard deviation of the noise at relative scale 1, per coordinate (instead of `mu`).
        step_size: η; None takes the theory's, at which the gathered noise has the norm of the set's diameter, of
            clipped increments that of `gathered_reach` (no theorem is claimed).
        step_scale: multiplies `step_size`, given or the theory's.
        clip: C, bound that each machine enforces on its increment's norm; None relies on S = G + 2LD.
        trust: "none" (every message is public) or "server" (only query points are).
        noise_schedule: how the budget is spread over messages, see `fedprivjax.noise.schedules`; or how noises of
            messages are correlated: "toeplitz", "optimal", {"toeplitz": p}, a lower triangular matrix with columns of
            norm at most 1, or any `SumFactor`, see `fedprivjax.noise.sums`.
        relative_privacy: where machines' μ differ, these in any unit, one for each machine: the largest is `mu`, and
            the others stand to it as here; untrusted server only.
        cancel: False leaves the old noise in (the papers' fresh-noise ablation; untrusted server only).
        batch: K, fresh samples of a message, which is their mean, each clipped by itself; dealt as one a message is, so
            that a machine of n samples has ⌊n/K⌋ messages at most, and what remains of a machine's own is not used.

    **Privacy**: μ-GDP per machine for replacing one of its samples, with μ = (2S/noise_std)·√Σ_k 1/r_k² over its
    messages (trusted server: 2S/m, over all rounds); S is C if clipped, and S/K stands for S with a batch.
    """

    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    trust: str = struct.field(pytree_node=False, default="none")
    noise_schedule: Any = struct.field(pytree_node=False, default="uniform")
    cancel: bool = struct.field(pytree_node=False, default=True)
    relative_privacy: Sequence[float] | None = struct.field(pytree_node=False, default=None)
    batch: int = struct.field(pytree_node=False, default=1)

    gradients_per_use = 2  # at the newest point and at the one before

    def __post_init__(self):
        check_settings(self)
        require_flag("cancel", self.cancel)
        object.__setattr__(self, "noise_schedule", fixed_schedule(self.noise_schedule, NOISE_SCHEDULES, SUM_FACTORS))
        object.__setattr__(self, "relative_privacy", fixed_relative_privacy(self))
        if not self.cancel and (self.trust != "none" or self.noise_schedule != "uniform"):
            raise Refusal("cancel=False must go with trust='none' and noise_schedule='uniform'")

    @property
    def traced(self):
        """Without what only the host reads, so that another schedule or trust is no other program."""
        return replace(super().traced, noise_schedule="uniform", trust="none", relative_privacy=None, batch=1)

    def same_law(self, machines: int):
        """With one machine, a server's noise and the machine's own are one law."""
        alone = machines == 1 and self.cancel and self.trust == "none"
        return replace(self, trust="server", relative_privacy=None) if alone else self

    @property
    def minibatches(self) -> Dealt | None:
        return dealt(self.batch)

    def init(self, problem: Problem, size: Size, key) -> Mu2State:
        x = problem.start
        return Mu2State(x, x, x, jax.tree.map(jnp.zeros_like, x))

    def machine(self, state: Mu2State, t):
        """What one machine sends before clipping and noise, as a function of its gradient oracle."""

        def increment(gradient):
            now, before = gradient(state.x, state.x_previous)
            return t * now - (t - 1) * before

        return increment

    def round(self, problem: Problem, state: Mu2State, inputs: RoundInputs, noise, key) -> tuple[Mu2State, dict]:
        t = inputs.round.astype(jnp.float32)
        total, info = cohort_sum(problem, self.machine(state, t), inputs, self.clip)
        q = jax.tree.map(lambda q, s: q + s / inputs.divisor, state.q, total)
        q_noisy = add_noise(problem, q, noise)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, q: w - step * q, state.w, q_noisy))
        x = jax.tree.map(lambda x, w: x + 2 / (t + 2) * (w - x), state.x, w)
        return Mu2State(x, state.x, w, q), info

    def output(self, state: Mu2State):
        """x_T: after T rounds the state already holds x_{T+1}."""
        return state.x_previous

    def query(self, state: Mu2State):
        """The point that machines are asked about."""
        return state.x

    def messages(self, problem: Problem, state: Mu2State, inputs: RoundInputs, noise, key):
        machine = self.machine(state, inputs.round.astype(jnp.float32))
        return cohort_messages(problem, machine, inputs, self.clip)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        if (sums := self._correlated(plan)) is not None:
            return sums.mechanism(method)
        if self.trust == "server":
            return Fresh(np.asarray(server_std(self.noise_schedule, plan.size.rounds), np.float32))
        relative, d = self._relative(plan), problem.dimension
        return choose(plan.schedule, relative, d, method, cancel=self.cancel, accumulate=not self.cancel)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        bound = self._increment(problem) if self.clip is None else self.clip
        return float(2 * bound / self.batch / (plan.schedule.divisor if self.trust == "server" else 1))

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        exposure = self._exposure(plan)
        terms = Terms(self.trust, self._theorem(plan.size), self._assumptions(problem))
        sensitivity = self.sensitivity(problem, plan)
        return GaussianEvent(
            float(self.noise_std),
            sensitivity,
            exposure,
            terms,
            lambda machine: self._sent_noise(plan, machine),
            shares=asked_shares(self.relative_privacy, plan.size.machines),
        )

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        return gaussian_rule(target, self.sensitivity(problem, plan))

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        size, sensitivity = plan.size, self.sensitivity(problem, plan)
        wider = noise_of_shares(self.relative_privacy, size.machines)
        mu = self.batch * sensitivity / (self.noise_std * wider) if self.noise_std else inf  # of one sample's increment
        if not isfinite(problem.travel):
            return inf
        settings = {
            "mu": mu,
            "per_round": max(1, round(plan.schedule.divisor)),
            "rounds": size.rounds,
            "dimension": problem.dimension,
            "diameter": problem.travel if self.clip is None else gathered_reach(problem),
            "increment": self._increment(problem) if self.clip is None else self.clip,
        }
        if not isfinite(settings["increment"]):
            return inf
        theory = partial(reshef_levy.fresh_noise_step, **settings)
        if self.cancel:
            named = self.noise_schedule if isinstance(self.noise_schedule, str) else "uniform"
            known = {"trust": self.trust, "noise_schedule": named, "machines": size.machines}
            theory = partial(reshef_levy.step_size, **known, **settings)
        theory_step = step_by_theory(problem, theory, mu=mu, clip=self.clip, rounds=size.rounds, batch=self.batch)
        return theory_step * self._less_noise(plan)

    def reported_noise(self, plan: Plan) -> np.ndarray:
        """The standard deviation of one coordinate of the noise in x_2, …, x_{T+1} of a schedule of correlated noise,
        over noise_std and the step, as if nothing were projected: float64 [rounds]."""
        sums = self._correlated(plan)
        if sums is None:
            raise Refusal(f"noise_schedule must be a factor of running sums, got {self.noise_schedule!r}")
        return np.linalg.norm(anytime(plan.size.rounds) @ sums.rows, axis=1)

    def _less_noise(self, plan: Plan) -> float:
        """How much more noise there would be in the points, in the mean over rounds, if it were uniform."""
        if self._correlated(plan) is None:
            return 1.0
        uniform = replace(self, noise_schedule=Toeplitz(1.0))

        def compute():
            means = (np.sqrt(np.mean(protocol.reported_noise(plan) ** 2)) for protocol in (uniform, self))
            return float(next(means) / next(means))

        return plan.schedule.once(("less noise", self.noise_schedule, self.trust, self.relative_privacy), compute)

    def noise_variances(self, plan: Plan) -> np.ndarray:
        """The variance of one coordinate of the noise in every round's q̃_t, calibrated, float64 [rounds]."""
        schedule, variance = plan.schedule, float(self.noise_std) ** 2
        if (sums := self._correlated(plan)) is not None:
            return variance * sums.variances
        if self.trust == "server":
            return variance * server_std(self.noise_schedule, plan.size.rounds) ** 2
        squares = np.where(schedule.present, self._relative(plan) ** 2, 0.0)
        gone = schedule.previous(squares) if self.cancel else 0.0  # a machine takes its last noise back
        return variance / schedule.divisor**2 * np.cumsum(np.sum(squares - gone, axis=1))

    def _increment(self, problem: Problem) -> float:
        return problem.lipschitz + 2 * problem.smoothness * problem.constraint.diameter

    def _correlated(self, plan: Plan) -> CorrelatedSums | None:
        """The noise of a `SumFactor`; a trusted server's is that of one machine that sends in every round."""
        kind, rounds = self.noise_schedule, plan.size.rounds
        if not isinstance(kind, SumFactor):
            return None

        def compute():
            alone = self.trust == "server"
            schedule = Full(1).draw(rounds, np.random.default_rng(0)) if alone else plan.schedule
            shares = privacy_shares(self.relative_privacy, schedule.machines)
            workload = partial(anytime_workload, schedule, shares)
            return CorrelatedSums(kind.factor(int(schedule.total.max()), workload), schedule, shares)

        return plan.schedule.once(("correlated", kind, self.trust, self.relative_privacy), compute)

    def _relative(self, plan: Plan) -> np.ndarray:
        schedule, named = plan.schedule, self.noise_schedule
        if not self.cancel and self.relative_privacy is None:  # a sample touches one message only
            return np.ones(schedule.participants.shape)

        def compute():
            shares = privacy_shares(self.relative_privacy, schedule.machines)
            return (relative_std(named, schedule) if self.cancel else 1.0) / shares[schedule.participants]

        return schedule.once(("relative", named, self.cancel, self.relative_privacy), compute)

    def _exposure(self, plan: Plan) -> Grouped:
        schedule = plan.schedule
        takes_part = exposed_once(schedule, self.relative_privacy)
        if not self.cancel:
            return takes_part
        if (sums := self._correlated(plan)) is not None:
            of_all = sums.exposure
            return takes_part.map(lambda part: part * of_all[0]) if self.trust == "server" else Grouped.of(of_all)
        if self.trust == "server":
            every_round = np.sqrt(np.sum(server_std(self.noise_schedule, plan.size.rounds) ** -2.0))
            return takes_part.map(lambda part: part * every_round)
        return grouped_once(schedule, self._relative(plan), exposure)

    def _sent_noise(self, plan: Plan, machine: int) -> np.ndarray:
        """The relative noise of each release that a sample of the machine moves, [releases]."""
        if not self.cancel:
            return 1 / privacy_shares(self.relative_privacy, plan.size.machines)[[machine]]
        if (sums := self._correlated(plan)) is not None:
            return sums.releases(0 if self.trust == "server" else machine)
        if self.trust == "server":
            return server_std(self.noise_schedule, plan.size.rounds)
        return self._relative(plan)[plan.schedule.asked & (plan.schedule.participants == machine)]

    def _theorem(self, size: Size) -> str:
        paper = "Reshef & Levy 2024" if size.per_round == size.machines else "Reshef & Levy 2025"
        kind = "trusted server" if self.trust == "server" else "untrusted server"
        change = "" if self.clip is None else ", with S replaced by the clip C"
        factored = isinstance(self.noise_schedule, SumFactor)
        composed = "one Gaussian mechanism on a factor of the running sums" if factored else COMPOSED
        return f"{paper}, {kind}{change}; {composed}"

    def _assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        batched = batch_assumptions(self.batch)
        if self.clip is not None:
            return (*USED_ONCE, Assumption("clipped increments", {"bound": float(self.clip)}), *batched)
        constants = {"smoothness": problem.smoothness, "diameter": float(problem.constraint.diameter)}
        smooth = Assumption("lipschitz and smooth", {**lipschitz_values(problem), **constants})
        return (*USED_ONCE, smooth, Assumption("honest but curious"), *batched)
