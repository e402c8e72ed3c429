r"""Noisy SGD: one pass of projected SGD, with Gaussian noise on every gradient.

    w_{t+1} = Π_K(w_t − η·((1/m)·Σ_{i∈S_t} ∇f(w_t; z_{t,i}) + noise_std·z_t))        output w_{T+1} or (1/T)·Σ_{t≤T} w_t

The baseline of Reshef & Levy 2024 and 2025 (after Abadi et al. 2016, without amplification, for every sample is used
once). Each machine adds N(0, (2G/μ)²·I) to its own gradient, or a trusted server N(0, (2G/(mμ))²·I) to the mean; with
per-sample clipping, C takes the place of G.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.values import require_flag
from fedprivjax.noise import Fresh, choose
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.problem.gradients import clip
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs, add_noise, cohort_sum
from fedprivjax.protocols.settings import check_settings
from fedprivjax.theory import reshef_levy


class SGDState(NamedTuple):
    """w_t, and the mean of w_1 … w_{t−1}."""

    w: Any
    average: Any


@struct.dataclass
class NoisySGD:
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

    def init(self, problem: Problem, size: Size) -> SGDState:
        return SGDState(problem.start, problem.start)

    def machine(self, state: SGDState, t):
        """What one machine sends before noise, as a function of its gradient oracle."""

        def message(gradient):
            g = gradient(state.w)
            return g if self.clip is None else clip(g, self.clip)

        return message

    def round(self, problem: Problem, state: SGDState, inputs: RoundInputs, noise) -> SGDState:
        t = inputs.round.astype(jnp.float32)
        total = cohort_sum(problem, self.machine(state, t), inputs, linear=self.clip is None)
        mean = jax.tree.map(lambda g: g / inputs.samples.shape[0], total)
        direction = add_noise(problem, mean, self.noise_std, noise)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, state.w, direction))
        average = jax.tree.map(lambda a, w: a + (w - a) / t, state.average, state.w)
        return SGDState(w, average)

    def output(self, state: SGDState):
        return state.average if self.average else state.w

    def also(self, state: SGDState) -> dict[str, Any]:
        """The other iterate, recorded beside the output."""
        return {"last": state.w} if self.average else {"average": state.average}

    def query(self, state: SGDState):
        """The point that machines are asked about."""
        return state.w

    def noise(self, problem: Problem, plan: Plan, method: str = "auto"):
        if self.trust == "server":
            return Fresh(np.ones(plan.size.rounds, np.float32))
        return choose(plan.schedule, np.ones(plan.schedule.participants.shape), problem.dimension, method, cancel=False)

    def sensitivity(self, problem: Problem, size: Size) -> float:
        return 2 * self._bound(problem) / (size.per_round if self.trust == "server" else 1)

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        once = "each sample is used once; participation is public and independent of the data"
        bounded = problem.lipschitz_in_words if self.clip is None else "each gradient is clipped"
        return GaussianEvent(
            sensitivity=float(self.sensitivity(problem, plan.size)),
            exposure=(plan.schedule.total > 0).astype(float),
            trust=self.trust,
            theorem="the Gaussian mechanism, parallel composition over samples",
            assumptions=(once, bounded),
        )

    def theory_step(self, problem: Problem, size: Size, mu: float) -> float:
        # a server's noise has sensitivity 2G/m; m machines' noises, each at 2G, average to 1/√m of one
        of_mean = self.sensitivity(problem, size) / mu / (1.0 if self.trust == "server" else size.per_round**0.5)
        return reshef_levy.noisy_sgd_step(
            diameter=problem.constraint.diameter,
            rounds=size.rounds,
            lipschitz=self._bound(problem),
            dimension=problem.dimension,
            noise_std_of_mean=of_mean,
        )

    def _bound(self, problem: Problem) -> float:
        return problem.lipschitz if self.clip is None else self.clip
