r"""Projected SGD on batches of users: P_SGD and P_GD of Cheu, Joseph, Mao & Peng (ICLR 2022), in four trust models.

With b users of one record each in a round,

    g = (private sum of ∇f(w_t; x_i) over the batch)/b
    w_{t+1} = Π_W(w_t − η·g)                                    output (w_0 + … + w_{T−1})/T

Every user once, in batches, is P_SGD (Algorithm 3): `OnePass` participation. All users in every round is P_GD
(Algorithm 5): `Full`, with `order="cyclic"`. The paper's listings have w + ηg, where g estimates the gradient.
"""

from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise import Mechanism
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.releases import Release
from fedprivjax.protocols.releases.choice import check_release, noise_for, release_of
from fedprivjax.protocols.round import RoundInputs
from fedprivjax.theory import cheu


class UserState(NamedTuple):
    """w_t, and the mean of the iterates before it."""

    w: Any
    average: Any


@struct.dataclass
class UserSGD(Protocol):
    """Private projected SGD on batches of users, one record a message.

    Attributes:
        epsilon: target of every record, at the run's δ; inf is non-private.
        noise_std: σ, the noise of one message: the sum of n has σ·√n in each coordinate, whoever adds it.
        step_size, step_scale: η, of which None takes the theory's, and a factor on it.
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        trust: "shuffler" (sums of one-bit messages with binomial noise), "none" (Gaussian noise on every message),
            "server" (Gaussian noise on the sum) or "pan-private" (twice on the sum: an intruder may look in once).
        levels: g, fixed-point levels of the bits; None is the accounting's rule.
        rounding: how neighbours' rounding is coupled in the accounting: "averaged", "coupled" or "independent".
        accounting: of the bits: "exact", "gaussian-limit" (named, not proved) or "paper".
        honest: share of a round's users that surely add their noise; the guarantee is for this share.
        sums: of the shuffled bits; `calibrate` fills them in.

    `noise_method="normal"` takes rounded normals for the binomial noise, a shortcut that the guarantee does not cover.

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of `trust`: a record enters one message in
    each round that uses it.
    """

    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    sums: Any = struct.field(default=None, metadata={"derived": True})
    trust: str = struct.field(pytree_node=False, default="shuffler")
    levels: int | None = struct.field(pytree_node=False, default=None)
    rounding: str = struct.field(pytree_node=False, default="averaged")
    accounting: str = struct.field(pytree_node=False, default="exact")
    honest: float = struct.field(pytree_node=False, default=1.0)

    several_epochs = True
    varying_cohorts = True

    def __post_init__(self):
        check_release(self)

    @property
    def release(self) -> Release:
        """Who adds which noise."""
        return release_of(self)

    @property
    def traced(self):
        return replace(self, epsilon=None, levels=None, rounding="averaged", accounting="exact", honest=1.0)

    # ---- one run, traced

    def init(self, problem: Problem, size: Size, key) -> UserState:
        return UserState(problem.start, problem.start)

    def round(self, problem: Problem, state: UserState, inputs: RoundInputs, noise, key) -> tuple[UserState, dict]:
        g, info = self.release.mean(problem, state.w, inputs, noise, key)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, state.w, g))
        t = inputs.round.astype(jnp.float32)
        average = jax.tree.map(lambda a, w: a + (w - a) / t, state.average, state.w)
        return UserState(w, average), info

    def output(self, state: UserState):
        return state.average

    def query(self, state: UserState):
        """The point that users are asked about."""
        return state.w

    def iterates(self, state: UserState) -> dict[str, Any]:
        """The last iterate, recorded beside the output."""
        return {"last": state.w}

    def internal(self, state: UserState):
        return state

    def messages(self, problem: Problem, state: UserState, inputs: RoundInputs, noise, key):
        return self.release.messages(problem, state.w, inputs, noise, key)

    # ---- noise and privacy

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.release.mechanism(plan, method)

    def noise(self, state: Any, drawn: Any, tape: Any) -> tuple[Any, Any]:
        return state, self.release.noise(self.noise_std, drawn, tape)

    def tape(self, plan: Plan, dimension: int, seed: int) -> Any:
        return self.release.tape(plan, dimension, seed)

    def view(self, observed):
        return self.release.view(observed)

    def costs(self, problem: Problem) -> dict[str, float]:
        return self.release.costs(problem, super().costs(problem))

    def event(self, problem: Problem, plan: Plan) -> RecordEvent:
        return self.release.event(problem, plan, self.noise_std)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """As `Protocol.calibrate`, with the levels and noise bits of shuffled sums."""
        noise_std = noise_for(self, problem, plan, target)
        ready = self.with_noise(problem, plan, noise_std, target)
        return replace(ready, sums=self.release.chosen(problem, plan, noise_std))

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """The step of Theorem 4.1's proof, or of Theorem 4.9's where records are used again and again."""
        distance, lipschitz = problem.distance_to_optimum, self.release.bound(problem)
        if not (isfinite(distance) and isfinite(lipschitz)):
            return np.inf
        noise, per_round = self.noise_constant(problem, plan), plan.size.per_round
        known = {"rounds": plan.size.rounds, "distance": distance, "lipschitz": lipschitz}
        if not plan.repeats:
            return float(cheu.sgd_step(**known, per_round=per_round, noise=noise))
        smoothness = problem.smoothness if isfinite(problem.smoothness) else None
        return float(cheu.gd_step(**known, users=per_round, round_noise=noise, smoothness=smoothness))

    def noise_constant(self, problem: Problem, plan: Plan) -> float:
        """C of the bounds in `theory.cheu`: noise and rounding of a sum, all coordinates together, over the bound²."""
        return self.release.noise_constant(problem, plan, float(self.noise_std))

    def best_per_round(self, problem: Problem, machines: int, target: Target) -> int:
        """b with the least bound of P_SGD."""
        known: Any = {"distance": problem.distance_to_optimum, "lipschitz": self.release.bound(problem)}
        return cheu.sgd_scan(users=machines, noise=self.release.noise_constants(problem, target), **known).per_round

    def best_rounds(self, problem: Problem, machines: int, target: Target) -> int:
        """T with the least bound of P_GD."""
        known: Any = {"distance": problem.distance_to_optimum, "lipschitz": self.release.bound(problem)}
        noise = float(self.release.noise_constants(problem, target)(machines))
        return cheu.gd_scan(users=machines, noise=noise, **known).rounds

    def messages_in_memory(self, problem: Problem, size: Size) -> int:
        return size.per_round if self.trust == "shuffler" else 0
