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
from functools import partial
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.method.algorithm import Algorithm, At, Before, Growing, Public, Reads
from fedprivjax.method.default_steps import noise_reach, step_by_theory
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.message_noise import MessageNoise
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.planning.drafts import of_pool
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Bound, Draft, PlannedRun, Use, missing
from fedprivjax.method.server_step import initial, optimizer_field, stepped
from fedprivjax.method.setting_checks import fixed_schedule
from fedprivjax.method.theory import Theory
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_sgd import MessageSettings
from fedprivjax.theory import reshef_levy


class StaleState(NamedTuple):
    """State of the server: x_t, x_{t−1}, w_t, the round's number t, from 1, and the state of the server optimiser."""

    x: Any
    x_previous: Any
    w: Any
    t: Any
    optimizer: Any = ()


@struct.dataclass(kw_only=True)
class Stale(Algorithm):
    """μ²-SGD with corrections from the point of a machine's previous round, which reads the mean of growing sums.

    Attributes:
        server: optimiser of the server's steps, such as `optax.adam` or "adam".
    """

    server: Any = optimizer_field()

    @property
    def reads(self) -> Reads:
        """The mean of the momenta q_i."""
        return Growing()

    def init(self, public: Public, step: Any) -> StaleState:
        x = public.start
        return StaleState(x, x, x, jnp.ones(()), initial(self.server, x, step))

    def increment(self, server: StaleState, t: Any, before: Before) -> Linear:
        again = jnp.where(before.round > 0, t - 1, 0.0)
        return t * gradient(server.x) - again * gradient(before.received)

    def remember(self, server: StaleState) -> Any:
        """The query point x_t."""
        return server.x

    def serve(self, server: StaleState, read: Any, at: At) -> StaleState:
        w, optimizer = stepped(self.server, server.optimizer, server.w, read, at.step)
        w = at.project(w)
        x = jax.tree.map(lambda x, w: x + 2 / (at.t + 2) * (w - x), server.x, w)
        return StaleState(x, server.x, w, at.t + 1, optimizer)

    def point(self, server: StaleState) -> Any:
        """x_T: after T rounds the state already holds x_{T+1}."""
        return server.x_previous


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    if not isfinite(problem.travel):
        return inf
    size, clip = plan.size, protocol.privacy.clip
    if protocol.noise_std:
        mu, theory = 1.0, partial(_noise_step, protocol, problem, plan)
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
            increment=problem.lipschitz if clip is None else clip,
        )
    return step_by_theory(problem, theory, mu=mu, clip=clip, rounds=size.rounds, batch=protocol.privacy.batch)


def _noise_step(protocol: Any, problem: Problem, plan: Plan, smoothness: float | None) -> float:
    """Return the step for which the noise in w_{T+1} has the norm `noise_reach` with `times=2`, at most D."""
    variance = float(np.sum(protocol.privacy.noise_of(Growing()).variances(plan)))
    norm = float(protocol.noise_std) * (problem.dimension * variance) ** 0.5
    return noise_reach(problem, problem.travel, times=2) / norm


def _uses(method: Any) -> tuple[Use, ...]:
    return (Use("", partial(_drafts, method)),)


def _drafts(method: Any, s: Setting) -> Iterator[Draft]:
    yield of_pool(method, s, {"clip": reshef_levy.increment_bound(s.lipschitz, s.smoothness, s.diameter)})


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    return missing("its private form has no convergence theorem")


@struct.dataclass(kw_only=True)
class StaleMomentum(MessageSettings):
    """SGD with a separate momentum at every machine (Reshef & Levy 2025).

    Let machine (client) i take part in round t, and let t' be its previous round. The machine takes a record z that was
    not used before, and computes u = t·∇f(x_t; z) − (t−1)·∇f(x_{t'}; z), where f is the loss and x_t the server's
    point. The machine updates its momentum to q_i ← u + (t−1)/t'·q_i, and sends q_i with noise. In its first round, q_i
    = u = t·∇f(x_t; z).

    The server's steps are those of `DPMu2`, along the mean of the messages.

    Attributes:
        mu: target μ of Gaussian DP. With inf, the run has no noise.
        epsilon: target ε at the run's δ, given instead of `mu`.
        noise_std: scale of the noise, given instead of `mu`. The k-th message of a machine has noise of standard
            deviation r_k·noise_std per coordinate. The factors r_k follow from `noise_schedule` and `relative_privacy`,
            and are scaled such that μ is at most 2C/(K·noise_std).
        step_size: step size of the server. Default without noise: 1/(4LT), for smoothness L and T rounds. Default with
            noise: a rule of thumb without a theorem. With a `clip`, `fedprivjax.method.default_steps.step_by_theory`
            replaces these defaults if `batch` exceeds 1, if the constraint set has no finite diameter, or if L is
            infinite in a run without noise.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of u, enforced by clipping. A run with noise needs a `clip`.
        relative_privacy: one number for each machine, proportional to the machine's own μ. The largest number belongs
            to the target μ. None gives all machines the target μ.
        batch: K, number of records in a message. The machine computes a vector u for each of these records, clips every
            vector, and uses their mean as u.
        server: optimiser of the server's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`. `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient steps.
        noise_schedule: "uniform" for equal noise in all messages of a machine, or a list of positive numbers, to which
            the factors r_1, r_2, … of a machine are proportional.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the formula of the method,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is an adversary who sees all
            messages.

    **Privacy**: μ-GDP per machine for replacing one record. A record stays in all later messages of its machine.
    """

    noise_schedule: str | Sequence[float] = host_only("uniform")
    server: Any = optimizer_field()

    theory = Theory(step=_step, bound=_bound, uses=_uses).of(Stale, NoisyMessages)

    def __post_init__(self):
        object.__setattr__(self, "noise_schedule", fixed_schedule(self.noise_schedule, ("uniform",)))
        super().__post_init__()

    @property
    def algorithm(self) -> Stale:
        """Algorithm of the method: local momenta at the machines, and averaged steps of the server."""
        return Stale(server=self.server)

    @property
    def privacy(self) -> NoisyMessages:
        """Privacy object of the method: independent noise in the machines' messages."""
        settings = {"clip": self.clip, "relative_privacy": self.relative_privacy, "batch": self.batch}
        return NoisyMessages(noise=self.noise_schedule, **settings)

    @property
    def message_noise(self) -> MessageNoise:
        """Description of the noise: its size in each message."""
        return self.privacy.noise_of(Growing())
