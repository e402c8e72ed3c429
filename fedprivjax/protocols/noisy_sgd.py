r"""Noisy SGD: one pass of projected SGD with Gaussian noise on every gradient.

    w_{t+1} = Π_K(w_t − η·((1/m)·Σ_{i∈S_t} ∇f(w_t; z_{t,i}) + noise_std·z_t))        output w_{T+1} or (1/T)·Σ_{t≤T} w_t

The baseline of Reshef & Levy 2024 and 2025, after Abadi et al. 2016. There is no amplification, because every sample is
used once. Each machine adds N(0, (2G/μ)²·I) to its own gradient, or a trusted server adds N(0, (2G/(mμ))²·I) to the
mean. With per-sample clipping, C replaces G. If |S_t| varies, m is the constant E|S_t|, so that all samples have the
same weight and the sensitivity does not depend on the round. A machine's gradient may be the mean over K fresh samples,
each clipped; 2G/K then replaces 2G.
"""

from dataclasses import replace
from math import hypot, inf, isfinite
from typing import Any, ClassVar, NamedTuple

import jax
from flax import struct

from fedprivjax.checks.values import require_flag
from fedprivjax.method.algorithm import Algorithm, At, Public
from fedprivjax.method.composed import Composed
from fedprivjax.method.default_steps import binds, plain_clipped_step, plain_step
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.planning.bounds import POPULATION, Bound, PlannedRun, explicit
from fedprivjax.method.planning.drafts import one_pass
from fedprivjax.method.planning.uses import Use
from fedprivjax.method.relative_privacy import noise_of_shares
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.server_step import initial, require_server, scaled_step, stepped
from fedprivjax.method.settings import check_numbers
from fedprivjax.method.theory import Theory
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy


class SGDState(NamedTuple):
    """Iterate w_t, mean of w_1 … w_{t−1}, and state of the server optimiser."""

    w: Any
    average: Any
    server: Any


@struct.dataclass(kw_only=True)
class SGD(Algorithm):
    """Projected SGD with any server optimiser.

    Attributes:
        average: True to report the running average instead of the last iterate.
        server: `ServerOptimizer` instead of the plain step, or None.
    """

    average: bool = struct.field(pytree_node=False, default=False)
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})

    def check(self, public: Public) -> None:
        if self.server is not None:
            self.server.check(public.start)

    def init(self, public: Public, step: Any) -> SGDState:
        return SGDState(public.start, public.start, initial(self.server, public.start, step))

    def message(self, server: SGDState, t: Any) -> Linear:
        return gradient(server.w)

    def serve(self, server: SGDState, read: Any, at: At) -> SGDState:
        w, optimizer = stepped(self.server, server.server, server.w, read, at.step)
        average = jax.tree.map(lambda a, w: a + (w - a) / at.t, server.average, server.w)
        return SGDState(at.project(w), average, optimizer)

    def point(self, server: SGDState) -> Any:
        return server.average if self.average else server.w

    def iterates(self, server: SGDState) -> dict[str, Any]:
        """The iterate that is not the reported one, evaluated in addition to it."""
        return {"last": server.w} if self.average else {"average": server.average}


def _equivalent(protocol: Any, machines: int):
    """Return the trusted-server form for one machine, whose noise then has the same distribution."""
    alone = machines == 1 and protocol.trust == "none"
    return replace(protocol, trust="server", relative_privacy=None) if alone else protocol


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    if not isfinite(problem.travel):
        return inf
    # the mean of m machines' noises has 1/√m of one machine's noise
    of_mean = (
        protocol.noise_std
        * noise_of_shares(protocol.relative_privacy, plan.size.machines)
        / (1.0 if protocol.trust == "server" else plan.schedule.divisor**0.5)
    )
    bound, noise = protocol.bound(problem, plan.size.machines).norm, problem.dimension**0.5 * of_mean
    step = _plain_step(protocol, problem, plan.size.rounds, bound, of_mean)
    return scaled_step(protocol.server, step, problem, plan.size.rounds, hypot(bound, noise))


def _plain_step(protocol: Any, problem: Problem, rounds: int, bound: float, of_mean: float) -> float:
    if binds(problem, protocol.clip):
        noise = problem.dimension**0.5 * of_mean
        return plain_clipped_step(problem, rounds, bound, noise, averaged=protocol.average)
    return plain_step(problem, rounds, bound, of_mean)


def _uses(method: Any) -> tuple[Use, ...]:
    return (Use("", one_pass(method, "none", "server", average=True)),)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of projected SGD on the average of the iterates."""
    s, size = run.setting, run.plan.size
    of_mean = float(protocol.noise_std) / (1.0 if protocol.trust == "server" else size.per_round**0.5)
    known = {"diameter": s.diameter, "rounds": size.rounds, "lipschitz": s.lipschitz, "dimension": s.dimension}
    steps = reshef_levy.noisy_sgd_bound(noise_std_of_mean=0.0, **known)
    total = reshef_levy.noisy_sgd_bound(noise_std_of_mean=of_mean, **known)
    return explicit(POPULATION, "projected SGD (Zinkevich 2003)", optimisation=steps, noise=total - steps)


@struct.dataclass(kw_only=True)
class NoisySGD(Composed):
    """Single-pass noisy SGD, trusted or untrusted server, with or without per-sample clipping.

    Attributes:
        mu, epsilon, noise_std, step_size, step_scale, clip, trust: as in `DPMu2`. The default step is
            D/√(T·(G² + d·σ²)) with D the diameter and σ the noise of the mean gradient. For clipped gradients it is
            1/√(T·(C²/D² + d·σ²/D_z²)) with D the distance from the start and D_z = min(D, √d·G/L), √3 times as long
            with `average`, and at most D_z/C (see `plain_clipped_step`; no theorem is claimed).
        relative_privacy, batch: as in `DPMu2`.
        average: True to report the running average instead of the last iterate; both are evaluated.
        server: `ServerOptimizer` instead of the plain step, with the step as its learning rate. The default step then
            moves equally far along a constant direction, see `scaled_step`.

    **Privacy**: μ-GDP with μ = 2G/noise_std (trusted: 2G/(m·noise_std)) for replacing one sample. A sample affects one
    message; all else is post-processing.
    """

    clip: Any = None
    relative_privacy: Any = struct.field(pytree_node=False, default=None)
    mu: Any = None
    batch: int = struct.field(pytree_node=False, default=1)
    trust: str = struct.field(pytree_node=False, default="none")
    average: bool = struct.field(pytree_node=False, default=False)
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})

    plain: ClassVar = {"relative_privacy": None, "batch": 1, "trust": "none"}
    theory = Theory(step=_step, bound=_bound, uses=_uses, equivalent=_equivalent)

    def __post_init__(self):
        check_numbers(self, "mu", "epsilon")
        object.__setattr__(self, "relative_privacy", self.privacy.relative_privacy)
        require_flag("average", self.average)
        require_server(self.server)

    @property
    def algorithm(self) -> SGD:
        """Projected SGD."""
        return SGD(average=self.average, server=self.server)

    @property
    def privacy(self) -> NoisyMessages:
        """Fresh noise on every message."""
        settings = {"clip": self.clip, "trust": self.trust, "relative_privacy": self.relative_privacy}
        return NoisyMessages(batch=self.batch, **settings)
