r"""Stale momentum: every machine keeps its own momentum, corrected from the point of its previous round.

The alternative to noise cancellation in Reshef & Levy 2025. With t' the machine's previous round,

    u = t·∇f(x_t; z) − (t−1)·∇f(x_{t'}; z)             (first participation: u = t·∇f(x_t; z))
    q_i ← u + (t−1)/t'·q_i                              q̃_t = (1/m)·Σ_{i∈S_t} (q_i + noise_std·Y)

and the server's steps are those of DP-μ²-FL. The paper gives the non-private form (`mu=inf`). This implementation adds
the private form: u is clipped to C, and m is the round's number of participants. A sample's weight grows by
(t_j−1)/t_{j−1} at every later message, so with a_k the product of these factors,

    μ² = max_{k₀} Σ_{k≥k₀} (2C·a_k/σ_k)².

With a batch, u is the mean over K fresh samples, each clipped, and 2C/K replaces 2C.

Dropouts are not supported, because they would increase μ above the planned value: if a machine skips t_j, its message
at t_{j+1} has grown by an additional factor t_j/(t_j−1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.method.client_method import ClientMethod, ClientState
from fedprivjax.method.clipping import clip
from fedprivjax.method.default_steps import noise_reach, step_by_theory
from fedprivjax.method.gaussian_method import GaussianMethod
from fedprivjax.method.message_noise import MessageNoise
from fedprivjax.method.planning.bounds import Bound, PlannedRun, missing
from fedprivjax.method.planning.drafts import of_pool
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.method.round import RoundInputs, add_noise, message_of, oracle
from fedprivjax.method.settings import fixed_schedule
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import OnePassPool
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.per_machine import Grouped, grouped_once
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy

THEOREM = "stale momentum with growing weights; adaptive composition of Gaussian mechanisms (derived here)"


@dataclass(frozen=True)
class GrowingNoise(MessageNoise):
    """Independent noise on messages in which a sample's weight grows from one message to the next.

    Attributes:
        noise_schedule: "uniform", or the standard deviations over a machine's messages.
    """

    noise_schedule: str | Sequence[float] = "uniform"

    def unscaled(self, schedule: Schedule) -> np.ndarray:
        ones = np.ones(schedule.participants.shape)
        if isinstance(self.noise_schedule, str):
            return np.where(schedule.scheduled, growing_exposure(ones, schedule)[schedule.participants], 1.0)
        values = np.asarray(self.noise_schedule, float)
        if values.size < schedule.total.max() or not (np.isfinite(values) & (values > 0)).all():
            raise Refusal(
                f"noise_schedule must have at least {schedule.total.max()} positive entries, got {values.size}"
            )
        relative = values[schedule.counts - 1]
        return relative * growing_exposure(relative, schedule).max()

    def divisor(self, schedule: Schedule) -> np.ndarray:
        return schedule.present.sum(axis=1)

    def exposure(self, plan: Plan) -> Grouped:
        return grouped_once(plan.schedule, self.relative(plan), growing_exposure)

    def releases(self, plan: Plan, machine: int) -> np.ndarray:
        t, j = np.nonzero(plan.schedule.scheduled & (plan.schedule.participants == machine))
        relative, growth = self.relative(plan)[t, j], t[1:] / (t[:-1] + 1.0)  # rounds are t + 1
        each = [relative[k:] / np.cumprod(np.append(1.0, growth[k:])) for k in range(t.size)]
        return max(each, key=lambda noise: float(np.sum(noise**-2.0)))


class StaleState(NamedTuple):
    """State of the server: x_t, x_{t−1}, w_t, and the round's number t, from 1."""

    x: Any
    x_previous: Any
    w: Any
    t: Any


class Held(NamedTuple):
    """State of one machine: its momentum, and the query point and number of its last round, 0 before its first."""

    momentum: Any
    seen: Any
    last_round: Any


@struct.dataclass(kw_only=True)
class StaleMomentum(ClientMethod, GaussianMethod):
    """Per-machine momentum with stale corrections, the paper's alternative 1.

    Its state has machines · d numbers.

    Attributes:
        mu, epsilon, noise_std, step_size, step_scale, clip: as in `DPMu2`; privacy needs `clip`. The default step of a
            private run is the one for which the noise in w_T has the norm of `noise_reach` (no theorem is claimed).
        relative_privacy, batch: as in `DPMu2`.
        noise_schedule: "uniform", or a positive sequence of σ over a machine's messages.

    **Privacy**: μ-GDP per machine for replacing one sample, μ as above.
    """

    batch: int = struct.field(pytree_node=False, default=1)
    noise_schedule: str | Sequence[float] = struct.field(pytree_node=False, default="uniform")

    trust = "none"
    gradients_per_use = 2  # at the newest point and at the machine's last
    plain: ClassVar = {**GaussianMethod.plain, "noise_schedule": "uniform"}

    def __post_init__(self):
        super().__post_init__()
        require_at_least("batch", self.batch, 1)
        object.__setattr__(self, "noise_schedule", fixed_schedule(self.noise_schedule, ("uniform",)))

    def server_init(self, problem: Problem, size: Size, key) -> StaleState:
        x = problem.start
        return StaleState(x, x, x, jnp.ones(()))

    def client_init(self, problem: Problem) -> Held:
        zeros = jax.tree.map(jnp.zeros_like, problem.start)
        return Held(zeros, zeros, jnp.zeros(()))

    def local_data(self, problem: Problem, inputs: RoundInputs, longest: Any = None) -> tuple[Problem, RoundInputs]:
        return problem, inputs  # a message has no local steps

    @property
    def uneven(self) -> bool:
        return False

    def steps_of_machines(self, problem: Problem, plan: Plan) -> np.ndarray:
        return np.ones(plan.size.machines, int)

    def client(self, server: StaleState, own: Held, data: Any, noise, key):
        """Return the machine's new momentum, which is both its message and held."""
        problem, inputs = data
        again = (own.last_round > 0).astype(jnp.float32)

        def correction(gradient):
            now, before = gradient(server.x, own.seen)
            return server.t * now - again * (server.t - 1) * before

        examples = problem.take(inputs.samples, inputs.machine)
        if inputs.weights is None:
            u = correction(oracle(problem.model.gradients, examples))
            u = (u if self.clip is None else clip(u, self.clip)).written_out()
        else:
            u = message_of(problem, correction, examples, inputs.weights, self.clip)
        growth = again * (server.t - 1) / jnp.maximum(own.last_round, 1.0)
        sent = jax.tree.map(lambda u, q: u + growth * q, u, own.momentum)
        return sent, Held(sent, server.x, server.t), {}

    def serve(self, problem: Problem, server: StaleState, total, weight, inputs: RoundInputs, noise) -> StaleState:
        q = add_noise(problem, jax.tree.map(lambda total: total / weight, total), noise)
        step, t = self.step_scale * self.step_size, server.t
        w = problem.constraint.project(jax.tree.map(lambda w, q: w - step * q, server.w, q))
        x = jax.tree.map(lambda x, w: x + 2 / (t + 2) * (w - x), server.x, w)
        return StaleState(x, server.x, w, t + 1)

    def output(self, state: ClientState):
        """x_T: after T rounds the state already holds x_{T+1}."""
        return state.server.x_previous

    def query(self, state: ClientState):
        """The point at which machines compute gradients."""
        return state.server.x

    @property
    def minibatches(self) -> OnePassPool | None:
        return OnePassPool(self.batch) if self.batch > 1 else None

    @property
    def message_noise(self) -> GrowingNoise:
        """Noise of the messages."""
        return GrowingNoise(self.trust, self.relative_privacy, noise_schedule=self.noise_schedule)

    def check(self, problem: Problem, plan: Plan) -> None:
        if plan.schedule.dropped is not None:
            raise Refusal(
                "dropouts must be left out with StaleMomentum: after one, a machine's earlier samples weigh more in "
                "its next message than planned"
            )

    def unclipped_bound(self, problem: Problem) -> float:
        return inf

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.message_noise.mechanism(plan, problem.dimension, method)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        return 2 * self.bound(problem) / self.batch

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        return self.message_noise.exposure(plan)

    def released_noise(self, problem: Problem, plan: Plan, machine: int) -> np.ndarray:
        return self.message_noise.releases(plan, machine)

    def terms(self, problem: Problem, plan: Plan) -> Terms:
        clipped = Assumption("clipped increments", {"bound": self.bound(problem)})
        batches = (Assumption("fresh batches", {"batch": int(self.batch)}),) if self.batch > 1 else ()
        return Terms(self.trust, THEOREM, (*USED_ONCE, clipped, *batches))

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        return gaussian_rule(target, self.sensitivity(problem, plan))

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return size.per_round if problem.model.factored else max(size.per_round, rows)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        if not isfinite(problem.travel):
            return inf
        size = plan.size
        if self.noise_std:
            mu, theory = 1.0, partial(self._noise_step, problem, plan)
        else:
            mu = inf
            theory = partial(
                reshef_levy.step_size,
                trust="none",
                noise_schedule="uniform",
                mu=mu,
                machines=size.machines,
                per_round=max(1, round(plan.schedule.cohort)),
                rounds=size.rounds,
                dimension=problem.dimension,
                diameter=problem.travel,
                increment=problem.lipschitz if self.clip is None else self.clip,
            )
        return step_by_theory(problem, theory, mu=mu, clip=self.clip, rounds=size.rounds, batch=self.batch)

    def _noise_step(self, problem: Problem, plan: Plan, smoothness: float | None) -> float:
        """Step for which the noise in w_T has the norm `noise_reach` with `times=2`, at most the set's diameter."""
        variance = float(np.sum(self.message_noise.variances(plan)))
        norm = float(self.noise_std) * (problem.dimension * variance) ** 0.5
        return noise_reach(problem, problem.travel, times=2) / norm

    @classmethod
    def uses(cls) -> tuple[Use, ...]:
        return (Use("", cls._drafts),)

    @classmethod
    def _drafts(cls, s: Setting) -> Iterator[Draft]:
        yield of_pool(cls, s, {"clip": reshef_levy.increment_bound(s.lipschitz, s.smoothness, s.diameter)})

    def error_bound(self, run: PlannedRun) -> Bound:
        return missing("its private form has no convergence theorem")


def growing_exposure(relative: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Return `max_{k₀} √Σ_{k≥k₀} (a_k/r_k)²` of each machine, float64 [machines], with a_k the growth since message k₀.

    The recursion `b_k = 1/r_k² + ((t_{k+1} − 1)/t_k)²·b_{k+1}` runs backwards from each machine's last message, for all
    machines at once.
    """
    rounds = np.broadcast_to(np.arange(1.0, schedule.size.rounds + 1)[:, None], schedule.participants.shape)
    machines, k = schedule.participants.ravel(), np.where(schedule.scheduled, schedule.counts, 0).ravel()
    order = np.argsort(-k, kind="stable")
    ends = np.cumsum(np.bincount(k)[:0:-1])
    tail, following, most = (np.zeros(schedule.machines) for _ in range(3))
    for entries in np.split(order[: ends[-1]], ends[:-1]):  # k-th messages, of machines with at least k
        who, t = machines[entries], rounds.ravel()[entries]
        growth = np.where(following[who] > 0, (following[who] - 1) / t, 0.0)
        tail[who] = relative.ravel()[entries] ** -2.0 + growth**2 * tail[who]
        most[who], following[who] = np.maximum(most[who], tail[who]), t
    return np.sqrt(most)
