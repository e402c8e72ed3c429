r"""Noisy minibatch SGD: every machine of a cohort averages gradients over K of its own records and adds noise.

Lowy & Razaviyayn, ICLR 2023, Algorithm 1 (and Algorithm 3, shuffled). With S_r the cohort of M_r machines,

    g = (1/M_r)·Σ_{i∈S_r} ((1/K_i)·Σ_j ∇f(w_r; x_ij) + N(0, σ_i²·I))
    w_{r+1} = Π_W(w_r − η·g)                      output Σ_r γ_r·w_r / Σ_r γ_r over w_0 … w_{R−1}

with γ_r = 1, or (1 − μη)^{−(r+1)} for a μ-strongly convex loss. The authors' code takes the sum of messages instead of
their mean (`aggregate="sum"`), picks records with replacement, and reports the mean of the last eight iterates
(`window=8`, which counts w_R).
"""

from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.accountants.shuffled import shuffled_noise_multiplier
from fedprivjax.privacy.events import SampledEvent, ShuffledEvent
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs
from fedprivjax.protocols.records import Machines, RecordProtocol
from fedprivjax.theory import lowy_razaviyayn as theory


class MinibatchState(NamedTuple):
    """w_r; the weighted mean of the iterates before it and 1/(its last weight's share); the last `window` iterates."""

    w: Any
    average: Any
    mass: jax.Array
    last: Any


@struct.dataclass
class NoisyMinibatchSGD(RecordProtocol):
    """Noisy minibatch SGD.

    Attributes:
        strong_convexity: modulus μ of the loss; positive, it makes the averaging weights grow and the step follow.
        window: report the mean of this many last iterates (w_R with them) instead of the weighted mean.
        trust: "none", or "shuffler": a round's messages, of one record each, are seen without their senders, so that
            less noise will do. Machines must be alike, and as many in every round.

    The other attributes are `RecordProtocol`'s.

    **Privacy**: (ε_i, δ_i)-DP of machine i's transcript for replacing one of its records (ISRL-DP); with a shuffler,
    of all shuffled messages for replacing one record of one machine.
    """

    strong_convexity: Any = 0.0
    trust: str = struct.field(pytree_node=False, default="none")  # type: ignore[assignment]
    window: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        RecordProtocol.__post_init__(self)
        require_modulus(self.strong_convexity)
        if self.window is not None:
            require_at_least("window", self.window, 1)
        require_choice("trust", self.trust, ("none", "shuffler"))
        if self.trust == "shuffler":
            self._check_shuffled()

    def _host_settings(self) -> dict[str, Any]:
        return {**super()._host_settings(), "trust": "none"}

    def init(self, problem: Problem, size: Size) -> MinibatchState:
        w = problem.start
        return MinibatchState(w, w, jnp.zeros(()), iterates(w, self.window))

    def round(self, problem: Problem, state: MinibatchState, inputs: RoundInputs, noise) -> MinibatchState:
        g = self.gradient(problem, state.w, inputs, noise)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, state.w, g))
        whole = step * jnp.sum(inputs.present) if self.aggregate == "sum" else step
        mass = 1 + (1 - self.strong_convexity * whole) * state.mass  # Σγ/γ_r, of which the newest iterate has one part
        average = jax.tree.map(lambda a, w: a + (w - a) / mass, state.average, state.w)
        return MinibatchState(w, average, mass, appended(state.last, w))

    def output(self, state: MinibatchState):
        return state.average if self.window is None else mean_of(state.last)

    def also(self, state: MinibatchState) -> dict[str, Any]:
        """The last iterate, recorded beside the output."""
        return {"last": state.w}

    def event(self, problem: Problem, plan: Plan) -> SampledEvent:
        plain = RecordProtocol.event(self, problem, plan)
        if self.trust == "none":
            return plain
        self._alike(self.machines(problem))
        if plan.schedule.filled is not None:
            raise Refusal("participation must have a fixed number of machines a round with a shuffler")
        if not plan.secret:
            raise Refusal("samples must be secret with a shuffler")
        settings = {field.name: getattr(plain, field.name) for field in fields(plain)}
        return ShuffledEvent(**settings, per_round=plan.size.per_round)

    @property
    def theorem(self) -> str:
        if self.trust == "none":
            return super().theorem
        return "Lowy & Razaviyayn 2023, Theorem 4.1 with its proof's steps in numbers; sampled among a machine's own"

    def calibrated(self, problem: Problem, plan, *, epsilon=None, delta: float | None = None):
        """As `RecordProtocol.calibrated`, with a step that the weights of the average allow."""
        ready: Any = RecordProtocol.calibrated(self, problem, plan, epsilon=epsilon, delta=delta)
        size = getattr(plan, "size", plan)
        require_window(self.window, size.rounds)
        whole = size.per_round if self.aggregate == "sum" else 1
        shrinkage = float(ready.strong_convexity) * ready.step_size * float(ready.step_scale) * whole
        if shrinkage >= 1:
            raise Refusal(f"strong_convexity · step_size must be below 1, got {shrinkage:.4g}")
        return ready

    def default_step(self, problem: Problem, size: Size, cohort: float) -> float:
        """Theorem 2.1's, with the load that the calibrated noise has; for the mean of the messages."""
        m, rounds = self.machines(problem), size.rounds
        lipschitz, distance = float(m.lipschitz.max()), self.distance(problem)
        if not np.isfinite([lipschitz, distance]).all():
            return np.inf
        smoothness = require_smooth(problem)
        if self.strong_convexity:
            noise = problem.dimension * float(self.noise_std) ** 2 / cohort
            variance = theory.Variance(4 * lipschitz**2 / (cohort * m.batch.min()), 0.0, noise)
            curved = {"smoothness": smoothness, "strong_convexity": float(self.strong_convexity)}
            step = theory.strong_step(rounds=rounds, diameter=distance, variance=variance, **curved)
        else:
            load = theory.equivalent_load(noise_std=float(self.noise_std), lipschitz=lipschitz, rounds=rounds)
            step = theory.minibatch_step(
                rounds=rounds,
                records=int(m.records.min()),
                per_round=cohort,
                dimension=problem.dimension,
                diameter=distance,
                lipschitz=lipschitz,
                smoothness=smoothness,
                load=load,
            )
        return float(step) / (cohort if self.aggregate == "sum" else 1.0)

    def _noise_std(self, problem: Problem, size: Size, delta: float | None) -> float:
        m = self.machines(problem, delta)
        if self.trust == "none" or np.isinf(m.epsilon).all():
            return super()._noise_std(problem, size, delta)
        self._alike(m)
        sizes = {"records": int(m.records[0]), "per_round": size.per_round, "rounds": size.rounds}
        z = shuffled_noise_multiplier(float(m.epsilon[0]), delta=float(m.delta[0]), **sizes)
        return float(m.lipschitz[0]) * z

    def _alike(self, m: Machines) -> None:
        for name, values in m._asdict().items():
            if np.unique(values).size > 1:
                raise Refusal(f"{name} must be alike on all machines with a shuffler, got {np.unique(values)[:3]}")

    def _check_shuffled(self) -> None:
        if self.batch != 1 or self.sampler not in ("replacement", "subset"):
            raise Refusal(f"batch must be 1, drawn anew each time, with a shuffler, got {self.batch} {self.sampler}")
        if self.noise_rule != "accountant":
            raise Refusal(f"noise_rule must be 'accountant' with a shuffler, got {self.noise_rule!r}")
        if self.clip_at != "record":
            raise Refusal(f"clip_at must be 'record' with a shuffler, got {self.clip_at!r}")


def require_modulus(value: Any) -> None:
    """Refuse a modulus of strong convexity that is negative or not finite."""
    if isinstance(value, int | float | np.number) and value != 0:
        require_positive("strong_convexity", value)


def require_smooth(problem: Problem) -> float:
    """The smoothness that a default step needs.

    Raises:
        ValueError: where it is not known.
    """
    if not np.isfinite(problem.smoothness):
        raise Refusal("step_size must be set, or the loss smoothed (see Moreau): its smoothness is not known")
    return problem.smoothness


def require_window(window: int | None, rounds: int) -> None:
    """Refuse to average more iterates than a run has."""
    if window is not None and window > rounds + 1:
        raise Refusal(f"window must be at most rounds + 1 ({rounds + 1}), got {window}")


def iterates(w, window: int | None):
    """Room for the last iterates, leaves [window, ...], all of them w; None without a window."""
    return None if window is None else jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (window, *leaf.shape)), w)


def appended(last, w):
    """The last iterates with w as the newest."""
    return None if last is None else jax.tree.map(lambda rows, leaf: jnp.roll(rows, -1, 0).at[-1].set(leaf), last, w)


def mean_of(last):
    """The mean of the last iterates."""
    return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), last)
