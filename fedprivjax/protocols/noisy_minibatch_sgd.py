r"""Noisy minibatch SGD: every machine of a cohort averages gradients over K of its own records and adds noise.

Lowy & Razaviyayn, ICLR 2023, Algorithm 1 (and Algorithm 3, shuffled). With S_r the cohort of M_r machines,

    g = (1/M_r)·Σ_{i∈S_r} ((1/K_i)·Σ_j ∇f(w_r; x_ij) + N(0, σ_i²·I))
    w_{r+1} = Π_W(w_r − η·g)                      output Σ_r γ_r·w_r / Σ_r γ_r over w_0 … w_{R−1}

with γ_r = 1, or (1 − μη)^{−(r+1)} for a μ-strongly convex loss. The authors' code takes the sum of messages instead of
their mean (`aggregate="sum"`), picks records with replacement, and reports the mean of the last eight iterates
(`window=8`, which counts w_R).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks import require_at_least, require_positive
from fedprivjax.participation import Size
from fedprivjax.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs
from fedprivjax.protocols.records import RecordProtocol
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

    The other attributes are `RecordProtocol`'s.

    **Privacy**: (ε_i, δ_i)-DP of machine i's transcript for replacing one of its records (ISRL-DP).
    """

    strong_convexity: Any = 0.0
    window: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        RecordProtocol.__post_init__(self)
        require_modulus(self.strong_convexity)
        if self.window is not None:
            require_at_least("window", self.window, 1)

    def init(self, problem: Problem, size: Size) -> MinibatchState:
        w = problem.start
        return MinibatchState(w, w, jnp.zeros(()), iterates(w, self.window))

    def round(self, problem: Problem, state: MinibatchState, inputs: RoundInputs, noise) -> MinibatchState:
        g = self.gradient(problem, state.w, inputs, noise)
        step = self.step_scale * self.step_size
        w = problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, state.w, g))
        mass = 1 + (1 - self.strong_convexity * step) * state.mass  # Σγ/γ_r, of which the newest iterate has one part
        average = jax.tree.map(lambda a, w: a + (w - a) / mass, state.average, state.w)
        return MinibatchState(w, average, mass, appended(state.last, w))

    def output(self, state: MinibatchState):
        return state.average if self.window is None else mean_of(state.last)

    def also(self, state: MinibatchState) -> dict[str, Any]:
        """The last iterate, recorded beside the output."""
        return {"last": state.w}

    def theory_step(self, problem: Problem, plan) -> float:
        """Theorem 2.1's, with the load that the calibrated noise has; for the mean of the messages."""
        m = self.machines(problem)
        rounds, cohort = plan.size.rounds, self.cohort(plan)
        lipschitz, distance = float(m.lipschitz.max()), self.distance(problem)
        if not np.isfinite([lipschitz, distance]).all():
            return np.inf
        smoothness = problem.smoothness if np.isfinite(problem.smoothness) else 0.0
        if self.strong_convexity and smoothness:
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


def require_modulus(value: Any) -> None:
    """Refuse a modulus of strong convexity that is negative or not finite."""
    if isinstance(value, int | float | np.number) and value != 0:
        require_positive("strong_convexity", value)


def iterates(w, window: int | None):
    """Room for the last iterates, leaves [window, ...], all of them w; None without a window."""
    return None if window is None else jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (window, *leaf.shape)), w)


def appended(last, w):
    """The last iterates with w as the newest."""
    return None if last is None else jax.tree.map(lambda rows, leaf: jnp.roll(rows, -1, 0).at[-1].set(leaf), last, w)


def mean_of(last):
    """The mean of the last iterates."""
    return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), last)
