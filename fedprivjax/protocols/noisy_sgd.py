r"""Noisy SGD: one pass of projected SGD, with Gaussian noise on every gradient.

    w_{t+1} = Π_K(w_t − η·((1/m)·Σ_{i∈S_t} ∇f(w_t; z_{t,i}) + noise_std·z_t))        output w_{T+1} or (1/T)·Σ_{t≤T} w_t

The baseline of Reshef & Levy 2024 and 2025 (after Abadi et al. 2016, without amplification, for every sample is used
once). Each machine adds N(0, (2G/μ)²·I) to its own gradient, or a trusted server N(0, (2G/(mμ))²·I) to the mean; with
per-sample clipping, C takes the place of G.
"""

from dataclasses import replace
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.values import require_flag
from fedprivjax.noise import Fresh, Mechanism, choose
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.grouped import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.protocols.settings import check_settings
from fedprivjax.theory import reshef_levy


class SGDState(NamedTuple):
    """w_t, and the mean of w_1 … w_{t−1}."""

    w: Any
    average: Any


@struct.dataclass
class NoisySGD(Protocol):
    """Single-pass noisy SGD.

    Attributes:
        mu, noise_std, step_size, step_scale, clip, trust: as in `DPMu2`; the step's default is D/√(T·(G² + d·σ²)) with
            σ the noise of the mean gradient.
        average: report the running average instead of the last iterate; metrics of both are recorded.

    **Privacy**: μ-GDP with μ = 2G/noise_std (trusted: 2G/(m·noise_std)) for replacing one sample: a sample enters one
    message, and what follows is post-processing.
    """

    mu: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    trust: str = struct.field(pytree_node=False, default="none")
    average: bool = struct.field(pytree_node=False, default=False)

    def __post_init__(self):
        check_settings(self)
        require_flag("average", self.average)

    @property
    def traced(self):
        """Without what only the host reads, so that another trust is no other program."""
        return replace(self, trust="none")

    def same_law(self, machines: int):
        """With one machine, a server's noise and the machine's own are one law."""
        return replace(self, trust="server") if machines == 1 and self.trust == "none" else self

    def init(self, problem: Problem, size: Size, key) -> SGDState:
        return SGDState(problem.start, problem.start)

    def machine(self, state: SGDState, t):
        """What one machine sends before clipping and noise, as a function of its gradient oracle."""
        return lambda gradient: gradient(state.w)

    def round(self, problem: Problem, state: SGDState, inputs: RoundInputs, noise, key) -> tuple[SGDState, dict]:
        t = inputs.round.astype(jnp.float32)
        total, info = cohort_sum(problem, self.machine(state, t), inputs, self.clip)
        mean = jax.tree.map(lambda g: g / inputs.samples.shape[0], total)
        direction = add_noise(problem, mean, noise)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, state.w, direction))
        average = jax.tree.map(lambda a, w: a + (w - a) / t, state.average, state.w)
        return SGDState(w, average), info

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
        if self.trust == "server":
            return Fresh(np.ones(plan.size.rounds, np.float32))
        return choose(plan.schedule, np.ones(plan.schedule.participants.shape), problem.dimension, method, cancel=False)

    def sensitivity(self, problem: Problem, size: Size) -> float:
        return float(2 * self._bound(problem) / (size.per_round if self.trust == "server" else 1))

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        bounded = Assumption("lipschitz", lipschitz_values(problem))
        if self.clip is not None:
            bounded = Assumption("clipped gradients", {"bound": float(self.clip)})
        terms = Terms(self.trust, "the Gaussian mechanism, parallel composition over samples", (*USED_ONCE, bounded))
        exposure = plan.schedule.once("takes part", lambda: Grouped.of(plan.schedule.total > 0))
        return GaussianEvent(float(self.noise_std), self.sensitivity(problem, plan.size), exposure, terms)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        noise_std = gaussian_rule(target, self.sensitivity(problem, plan.size))
        return self.with_noise(problem, plan, noise_std, target)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        if not isfinite(problem.constraint.diameter):
            return inf
        # m machines' noises average to 1/√m of one
        of_mean = self.noise_std / (1.0 if self.trust == "server" else plan.size.per_round**0.5)
        return reshef_levy.noisy_sgd_step(
            diameter=problem.constraint.diameter,
            rounds=plan.size.rounds,
            lipschitz=self._bound(problem),
            dimension=problem.dimension,
            noise_std_of_mean=of_mean,
        )

    def _bound(self, problem: Problem) -> float:
        return problem.lipschitz if self.clip is None else self.clip
