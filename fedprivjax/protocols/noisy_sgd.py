r"""Noisy SGD: one pass of projected SGD, with Gaussian noise on every gradient.

    w_{t+1} = Π_K(w_t − η·((1/m)·Σ_{i∈S_t} ∇f(w_t; z_{t,i}) + noise_std·z_t))        output w_{T+1} or (1/T)·Σ_{t≤T} w_t

The baseline of Reshef & Levy 2024 and 2025 (after Abadi et al. 2016, without amplification, for every sample is used
once). Each machine adds N(0, (2G/μ)²·I) to its own gradient, or a trusted server N(0, (2G/(mμ))²·I) to the mean; with
per-sample clipping, C takes the place of G. Where |S_t| varies, m stays one constant, E|S_t|: every sample weighs
alike, and what one of them moves does not follow the round's number. A machine's gradient may be the mean over K fresh
samples, each clipped, with 2G/K for 2G.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import hypot, inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.values import require_flag
from fedprivjax.method.default_steps import binds, plain_clipped_step
from fedprivjax.method.interface import Protocol
from fedprivjax.method.relative_privacy import (
    asked_shares,
    exposed_once,
    fixed_relative_privacy,
    noise_of_shares,
    privacy_shares,
)
from fedprivjax.method.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.server_step import check_server, initial, require_server, scaled_step, stepped
from fedprivjax.method.settings import batch_assumptions, check_settings, dealt
from fedprivjax.noise import Fresh, Mechanism, choose
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Dealt
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy


class SGDState(NamedTuple):
    """w_t, the mean of w_1 … w_{t−1}, and the server optimiser's state."""

    w: Any
    average: Any
    server: Any


@struct.dataclass
class NoisySGD(Protocol):
    """Single-pass noisy SGD.

    Attributes:
        mu, epsilon, noise_std, step_size, step_scale, clip, trust: as in `DPMu2`; the step's default is
            D/√(T·(G² + d·σ²)) with D the diameter and σ the noise of the mean gradient; of clipped gradients
            1/√(T·(C²/D² + d·σ²/D_z²)) with D the distance from the start and D_z = min(D, √d·G/L), √3 times as long
            with `average` (at most D_z/C, see `plain_clipped_step`; no theorem is claimed).
        relative_privacy, batch: as in `DPMu2`.
        average: report the running average instead of the last iterate; metrics of both are recorded.
        server: a `ServerOptimizer` in the place of the plain step, whose learning rate is the step; the step's default
            is then as long along a constant direction, see `scaled_step`.

    **Privacy**: μ-GDP with μ = 2G/noise_std (trusted: 2G/(m·noise_std)) for replacing one sample: a sample enters one
    message, and what follows is post-processing.
    """

    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    trust: str = struct.field(pytree_node=False, default="none")
    average: bool = struct.field(pytree_node=False, default=False)
    relative_privacy: Sequence[float] | None = struct.field(pytree_node=False, default=None)
    batch: int = struct.field(pytree_node=False, default=1)
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})

    def __post_init__(self):
        check_settings(self)
        require_flag("average", self.average)
        require_server(self.server)
        object.__setattr__(self, "relative_privacy", fixed_relative_privacy(self))

    @property
    def traced(self):
        """Without what only the host reads, so that another trust is no other program."""
        return replace(super().traced, trust="none", relative_privacy=None, batch=1)

    def same_law(self, machines: int):
        """With one machine, a server's noise and the machine's own are one law."""
        return replace(self, trust="server", relative_privacy=None) if machines == 1 and self.trust == "none" else self

    @property
    def minibatches(self) -> Dealt | None:
        return dealt(self.batch)

    def init(self, problem: Problem, size: Size, key) -> SGDState:
        start = problem.start
        return SGDState(start, start, initial(self.server, start, self.step_scale * self.step_size))

    def machine(self, state: SGDState, t):
        """What one machine sends before clipping and noise, as a function of its gradient oracle."""
        return lambda gradient: gradient(state.w)

    def round(self, problem: Problem, state: SGDState, inputs: RoundInputs, noise, key) -> tuple[SGDState, dict]:
        t = inputs.round.astype(jnp.float32)
        total, info = cohort_sum(problem, self.machine(state, t), inputs, self.clip)
        mean = jax.tree.map(lambda g: g / inputs.divisor, total)
        direction = add_noise(problem, mean, noise)
        step = self.step_scale * self.step_size
        w, server = stepped(self.server, state.server, state.w, direction, step)
        w = problem.constraint.project(w)
        average = jax.tree.map(lambda a, w: a + (w - a) / t, state.average, state.w)
        return SGDState(w, average, server), info

    def output(self, state: SGDState):
        return state.average if self.average else state.w

    def iterates(self, state: SGDState) -> dict[str, Any]:
        """The other iterate, recorded beside the output."""
        return {"last": state.w} if self.average else {"average": state.average}

    def query(self, state: SGDState):
        """The point that machines are asked about."""
        return state.w

    def messages(self, problem: Problem, state: SGDState, inputs: RoundInputs, noise, key):
        machine = self.machine(state, inputs.round.astype(jnp.float32))
        return cohort_messages(problem, machine, inputs, self.clip)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        schedule = plan.schedule
        if self.trust == "server":
            return Fresh(np.ones(plan.size.rounds, np.float32))
        relative = 1 / privacy_shares(self.relative_privacy, schedule.machines)[schedule.participants]
        return choose(schedule, relative, problem.dimension, method, cancel=False)

    def check(self, problem: Problem, plan: Plan) -> None:
        check_server(self.server, problem)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        return float(2 * self._bound(problem) / self.batch / (plan.schedule.divisor if self.trust == "server" else 1))

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        bounded = Assumption("lipschitz", lipschitz_values(problem))
        if self.clip is not None:
            bounded = Assumption("clipped gradients", {"bound": float(self.clip)})
        known = (*USED_ONCE, bounded, *batch_assumptions(self.batch))
        terms = Terms(self.trust, "the Gaussian mechanism, parallel composition over samples", known)
        exposure = exposed_once(plan.schedule, self.relative_privacy)
        shares = privacy_shares(self.relative_privacy, plan.size.machines)
        sensitivity = self.sensitivity(problem, plan)
        return GaussianEvent(
            float(self.noise_std),
            sensitivity,
            exposure,
            terms,
            lambda machine: 1 / shares[[machine]],
            shares=asked_shares(self.relative_privacy, plan.size.machines),
        )

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        return gaussian_rule(target, self.sensitivity(problem, plan))

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        if not isfinite(problem.travel):
            return inf
        # m machines' noises average to 1/√m of one
        of_mean = (
            self.noise_std
            * noise_of_shares(self.relative_privacy, plan.size.machines)
            / (1.0 if self.trust == "server" else plan.schedule.divisor**0.5)
        )
        bound, noise = self._bound(problem), problem.dimension**0.5 * of_mean
        step = self._plain_step(problem, plan.size.rounds, of_mean)
        return scaled_step(self.server, step, problem, plan.size.rounds, hypot(bound, noise))

    def _plain_step(self, problem: Problem, rounds: int, of_mean: float) -> float:
        bound = self._bound(problem)
        if binds(problem, self.clip):
            noise = problem.dimension**0.5 * of_mean
            return plain_clipped_step(problem, rounds, bound, noise, averaged=self.average)
        return reshef_levy.noisy_sgd_step(
            diameter=problem.travel,
            rounds=rounds,
            lipschitz=bound,
            dimension=problem.dimension,
            noise_std_of_mean=of_mean,
        )

    def _bound(self, problem: Problem) -> float:
        return problem.lipschitz if self.clip is None else self.clip
