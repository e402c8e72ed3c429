r"""Stale momentum: every machine keeps its own corrected momentum and corrects it from the point it last saw.

The alternative that Reshef & Levy 2025 set noise cancellation against. With t' the machine's previous round,

    u = t·∇f(x_t; z) − (t−1)·∇f(x_{t'}; z)             (first participation: u = t·∇f(x_t; z))
    q_i ← u + (t−1)/t'·q_i                              q̃_t = (1/m)·Σ_{i∈S_t} (q_i + noise_std·Y)

and the server's steps are DP-μ²-FL's. The paper gives the non-private form (`mu=inf`); the private one is ours: clip u
to C. A sample's weight grows by (t_j−1)/t_{j−1} at every later message, so with a_k the product of these,

    μ² = max_{k₀} Σ_{k≥k₀} (2C·a_k/σ_k)².
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
from fedprivjax.noise import Mechanism, choose
from fedprivjax.plan.participation import Schedule, Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.grouped import grouped_once
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms
from fedprivjax.problem.gradients import clip
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.round import RoundInputs, add_noise, oracle
from fedprivjax.protocols.settings import check_settings, fixed_schedule
from fedprivjax.theory import reshef_levy


class StaleState(NamedTuple):
    """The server's x_t, x_{t−1}, w_t; every machine's momentum, last query point [machines, ...] and last round."""

    x: Any
    x_previous: Any
    w: Any
    momentum: Any
    seen: Any
    last_round: jax.Array


@struct.dataclass
class StaleMomentum(Protocol):
    """Per-machine momentum with stale corrections (untrusted server). Its state is of size machines · d.

    Attributes:
        mu, noise_std, step_size, step_scale, clip: as in `DPMu2`; privacy needs `clip`.
        noise_schedule: "uniform", or a positive sequence of σ over a machine's messages.

    **Privacy**: μ-GDP per machine for replacing one sample, μ as above.
    """

    mu: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    noise_schedule: str | Sequence[float] = struct.field(pytree_node=False, default="uniform")

    trust = "none"

    def __post_init__(self):
        check_settings(self)
        object.__setattr__(self, "noise_schedule", fixed_schedule(self.noise_schedule, ("uniform",)))

    @property
    def traced(self):
        """Without what only the host reads, so that other schedules are no other program."""
        return replace(self, noise_schedule="uniform")

    def init(self, problem: Problem, size: Size, key) -> StaleState:
        x = problem.start
        rows = jax.tree.map(lambda leaf: jnp.zeros((size.machines, *leaf.shape), leaf.dtype), x)
        return StaleState(x, x, x, rows, rows, jnp.ones(size.machines))

    def machine(self, state: StaleState, t):
        """One machine's new momentum, from its oracle, its momentum, last point, last round and participation count."""

        def momentum(gradient, momentum, seen, last_round, count):
            again = (count > 1).astype(jnp.float32)
            now, before = gradient(state.x, seen)
            u = t * now - again * (t - 1) * before
            u = u if self.clip is None else clip(u, self.clip)
            growth = again * (t - 1) / last_round
            return jax.tree.map(lambda u, q: u + growth * q, u.written_out(), momentum)

        return momentum

    def round(self, problem: Problem, state: StaleState, inputs: RoundInputs, noise, key) -> tuple[StaleState, dict]:
        t = inputs.round.astype(jnp.float32)
        sent = self.messages(problem, state, inputs, noise, key)
        mean = jax.tree.map(lambda q: jnp.mean(q, axis=0), sent)
        q_noisy = add_noise(problem, mean, noise)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, q: w - step * q, state.w, q_noisy))
        x = jax.tree.map(lambda x, w: x + 2 / (t + 2) * (w - x), state.x, w)
        state = StaleState(
            x,
            state.x,
            w,
            jax.tree.map(lambda rows, q: rows.at[inputs.machine].set(q), state.momentum, sent),
            jax.tree.map(lambda rows, x: rows.at[inputs.machine].set(x), state.seen, state.x),
            state.last_round.at[inputs.machine].set(t),
        )
        return state, {}

    def messages(self, problem: Problem, state: StaleState, inputs: RoundInputs, noise, key):
        """The participants' new momenta, without noise, leaves [per_round, ...]."""
        machine = self.machine(state, inputs.round.astype(jnp.float32))

        def one(example, *mine):
            return machine(oracle(problem.model.gradients, example), *mine)

        mine = jax.tree.map(lambda rows: rows[inputs.machine], (state.momentum, state.seen, state.last_round))
        return jax.vmap(one)(problem.take(inputs.samples, inputs.machine), *mine, inputs.participation)

    def output(self, state: StaleState):
        """x_T: after T rounds the state already holds x_{T+1}."""
        return state.x_previous

    def query(self, state: StaleState):
        """The point that machines are asked about."""
        return state.x

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return choose(plan.schedule, self._relative(plan.schedule), problem.dimension, method, cancel=False)

    def sensitivity(self, problem: Problem, size: Size) -> float:
        return inf if self.clip is None else float(2 * self.clip)

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        schedule = plan.schedule
        exposure = grouped_once(schedule, self._relative(schedule), growing_exposure)
        theorem = "stale momentum with growing weights; adaptive composition of Gaussian mechanisms (derived here)"
        bounded = Assumption("clipped increments", {"bound": inf if self.clip is None else float(self.clip)})
        terms = Terms(self.trust, theorem, (*USED_ONCE, bounded))
        return GaussianEvent(float(self.noise_std), self.sensitivity(problem, plan.size), exposure, terms)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        noise_std = gaussian_rule(target, self.sensitivity(problem, plan.size))
        return self.with_noise(problem, plan, noise_std, target)

    def messages_in_memory(self, problem: Problem, size: Size) -> int:
        return size.per_round

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        if not isfinite(problem.constraint.diameter):
            return inf
        size, sensitivity = plan.size, self.sensitivity(problem, plan.size)
        mu = sensitivity / self.noise_std if self.noise_std else inf
        return reshef_levy.step_size(
            trust="none",
            noise_schedule="uniform",
            mu=mu,
            machines=size.machines,
            per_round=size.per_round,
            rounds=size.rounds,
            dimension=problem.dimension,
            diameter=problem.constraint.diameter,
            increment=problem.lipschitz if self.clip is None else self.clip,
            smoothness=problem.smoothness if self.clip is None or mu == inf else None,
        )

    def _relative(self, schedule: Schedule) -> np.ndarray:
        return schedule.once(("relative to growth", self.noise_schedule), lambda: self._of_schedule(schedule))

    def _of_schedule(self, schedule: Schedule) -> np.ndarray:
        ones = np.ones(schedule.participants.shape)
        if isinstance(self.noise_schedule, str):
            return growing_exposure(ones, schedule)[schedule.participants]
        values = np.asarray(self.noise_schedule, float)
        if values.size < schedule.total.max() or not (np.isfinite(values) & (values > 0)).all():
            raise Refusal(
                f"noise_schedule must have at least {schedule.total.max()} positive entries, got {values.size}"
            )
        relative = values[schedule.counts - 1]
        return relative * growing_exposure(relative, schedule).max()


def growing_exposure(relative: np.ndarray, schedule: Schedule) -> np.ndarray:
    """`max_{k₀} √Σ_{k≥k₀} (a_k/r_k)²` of each machine, float64 [machines], with a_k the growth since message k₀."""
    rounds = np.arange(1, schedule.size.rounds + 1)
    result = np.zeros(schedule.machines)
    for machine in np.flatnonzero(schedule.total):
        t, j = np.nonzero(schedule.participants == machine)
        growth = np.cumsum(np.append(0.0, np.log(rounds[t][1:] - 1) - np.log(rounds[t][:-1])))
        # only ratios of the growth matter, so its largest value may stand for one
        tail = np.cumsum((np.exp(growth - growth.max()) / relative[t, j])[::-1] ** 2)[::-1]
        result[machine] = np.sqrt(np.max(tail / np.exp(2 * (growth - growth.max()))))
    return result
