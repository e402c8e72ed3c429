r"""DP-μ²-FL: anytime averaging with STORM-corrected momentum, private by noise on its running sums.

Reshef & Levy, ICML 2024 (full participation, Algorithms 1 and 2) and ICML 2025 (partial participation, noise
cancellation). Weights α_t = t, β_t = 1/t. A machine that takes part in round t with a fresh sample z sends

    s_{t,i} = t·∇f(x_t; z) − (t−1)·∇f(x_{t−1}; z),        ‖s‖ ≤ S = G + 2LD, or clipped to ‖s‖ ≤ C

and the server moves by the noisy running mean of the increments:

    q_t = q_{t−1} + (1/m)·Σ_{i∈S_t} s_{t,i}        q̃_t = q_t + noise_std·z_t
    w_{t+1} = Π_K(w_t − η·q̃_t)                     x_{t+1} = x_t + 2/(t+2)·(w_{t+1} − x_t)        output x_T

The four protocols of the papers are settings of one: `trust="server"` adds fresh noise to q_t each round;
`trust="none"` has machines add and cancel their own, which at full participation is fresh noise on every machine's
running sum. Ours: the noise schedules `uniform` and `gap`, which use that participation is public beforehand, and
`clip`, with which the privacy proof needs ‖s‖ ≤ C only, so neither G, L nor D enters the guarantee.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag
from fedprivjax.noise import NOISE_SCHEDULES, Fresh, Mechanism, choose
from fedprivjax.noise.schedules import exposure, relative_std, server_std
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.grouped import Grouped, grouped_once
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.protocols.settings import check_settings, fixed_schedule
from fedprivjax.theory import reshef_levy


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
        noise_std: standard deviation of the noise at relative scale 1, per coordinate (instead of `mu`).
        step_size: η; None takes the theory's.
        step_scale: multiplies `step_size`, given or the theory's.
        clip: C, bound that each machine enforces on its increment's norm; None relies on S = G + 2LD.
        trust: "none" (every message is public) or "server" (only query points are).
        noise_schedule: how the budget is spread over messages, see `fedprivjax.noise.schedules`.
        cancel: False leaves the old noise in (the papers' fresh-noise ablation; untrusted server only).

    **Privacy**: μ-GDP per machine for replacing one of its samples, with μ = (2S/noise_std)·√Σ_k 1/r_k² over its
    messages (trusted server: 2S/m, over all rounds); S is C if clipped.
    """

    mu: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    trust: str = struct.field(pytree_node=False, default="none")
    noise_schedule: str | Sequence[float] = struct.field(pytree_node=False, default="uniform")
    cancel: bool = struct.field(pytree_node=False, default=True)

    def __post_init__(self):
        check_settings(self)
        require_flag("cancel", self.cancel)
        object.__setattr__(self, "noise_schedule", fixed_schedule(self.noise_schedule, NOISE_SCHEDULES))
        if not self.cancel and (self.trust != "none" or self.noise_schedule != "uniform"):
            raise Refusal("cancel=False must go with trust='none' and noise_schedule='uniform'")

    @property
    def traced(self):
        """Without what only the host reads, so that another schedule or trust is no other program."""
        return replace(self, noise_schedule="uniform", trust="none")

    def same_law(self, machines: int):
        """With one machine, a server's noise and the machine's own are one law."""
        return replace(self, trust="server") if machines == 1 and self.cancel and self.trust == "none" else self

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
        q = jax.tree.map(lambda q, s: q + s / inputs.samples.shape[0], state.q, total)
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
        if self.trust == "server":
            return Fresh(np.asarray(server_std(self.noise_schedule, plan.size.rounds), np.float32))
        relative, d = self._relative(plan), problem.dimension
        return choose(plan.schedule, relative, d, method, cancel=self.cancel, accumulate=not self.cancel)

    def sensitivity(self, problem: Problem, size: Size) -> float:
        bound = self._increment(problem) if self.clip is None else self.clip
        return float(2 * bound / (size.per_round if self.trust == "server" else 1))

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        exposure = self._exposure(plan)
        terms = Terms(self.trust, self._theorem(plan.size), self._assumptions(problem))
        return GaussianEvent(float(self.noise_std), self.sensitivity(problem, plan.size), exposure, terms)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        noise_std = gaussian_rule(target, self.sensitivity(problem, plan.size))
        return self.with_noise(problem, plan, noise_std, target)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        size, sensitivity = plan.size, self.sensitivity(problem, plan.size)
        mu = sensitivity / self.noise_std if self.noise_std else inf
        if not isfinite(problem.constraint.diameter):
            return inf
        settings = {
            "mu": mu,
            "per_round": size.per_round,
            "rounds": size.rounds,
            "dimension": problem.dimension,
            "diameter": problem.constraint.diameter,
            "increment": self._increment(problem) if self.clip is None else self.clip,
            "smoothness": problem.smoothness if self.clip is None or mu == inf else None,
        }
        if not isfinite(settings["increment"]):
            return inf
        if not self.cancel:
            return reshef_levy.fresh_noise_step(**settings)
        named = self.noise_schedule if isinstance(self.noise_schedule, str) else "uniform"
        return reshef_levy.step_size(trust=self.trust, noise_schedule=named, machines=size.machines, **settings)

    def _increment(self, problem: Problem) -> float:
        return problem.lipschitz + 2 * problem.smoothness * problem.constraint.diameter

    def _relative(self, plan: Plan) -> np.ndarray:
        if not self.cancel:  # a sample touches one message only
            return np.ones(plan.schedule.participants.shape)
        schedule, named = plan.schedule, self.noise_schedule
        return schedule.once(("relative", named), lambda: relative_std(named, schedule))

    def _exposure(self, plan: Plan) -> Grouped:
        schedule = plan.schedule
        takes_part = schedule.once("takes part", lambda: Grouped.of(schedule.total > 0))
        if not self.cancel:
            return takes_part
        if self.trust == "server":
            every_round = np.sqrt(np.sum(server_std(self.noise_schedule, plan.size.rounds) ** -2.0))
            return takes_part.map(lambda part: part * every_round)
        return grouped_once(schedule, self._relative(plan), exposure)

    def _theorem(self, size: Size) -> str:
        paper = "Reshef & Levy 2024" if size.per_round == size.machines else "Reshef & Levy 2025"
        kind = "trusted server" if self.trust == "server" else "untrusted server"
        change = "" if self.clip is None else ", with S replaced by the clip C"
        return f"{paper}, {kind}{change}; adaptive composition of Gaussian mechanisms"

    def _assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        if self.clip is not None:
            return (*USED_ONCE, Assumption("clipped increments", {"bound": float(self.clip)}))
        constants = {"smoothness": problem.smoothness, "diameter": float(problem.constraint.diameter)}
        smooth = Assumption("lipschitz and smooth", {**lipschitz_values(problem), **constants})
        return (*USED_ONCE, smooth, Assumption("honest but curious"))
