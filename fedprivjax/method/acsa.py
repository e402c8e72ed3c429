r"""AC-SA, accelerated stochastic approximation (Lan 2012; Ghadimi & Lan 2012): the update of accelerated methods.

With α_r = 2/(r+1), η_r = 4v/(r(r+1)), μ the modulus of the objective, and g a gradient estimate at w_md,

    w_md = [(1−α)(μ+η)·w_ag + α((1−α)μ+η)·w] / (η + (1−α²)μ)
    w    = Π_W([αμ·w_md + ((1−α)μ+η)·w − α·g] / (μ+η))
    w_ag ← α·w + (1−α)·w_ag                                                output w_ag

The papers state the step on w as an argmin. It equals this projection exactly, because its Hessian is (μ+η)·I. If
μ = 0, the step on w is r/(2v)·g.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.default_steps import clipped_pace
from fedprivjax.problem.problem import Problem

NO_DISTANCE = "distance must be given, or a ball: the theory's step needs a distance to the optimum"


class AcceleratedState(NamedTuple):
    """Iterate w, its running average w_ag, the number of finished rounds, and the state of the server optimiser."""

    w: Any
    average: Any
    rounds: jax.Array
    optimizer: Any = ()


class Step(NamedTuple):
    """Points and factors of one round's step.

    Attributes:
        w: iterate, or w_ag in the first round of a stage.
        middle: w_md.
        alpha, eta, modulus: α, η and μ.
        counts: True if the round belongs to a stage; other rounds leave the state unchanged.
    """

    w: Any
    middle: Any
    alpha: Any
    eta: Any
    modulus: Any
    counts: Any


class Places(NamedTuple):
    """Rounds of one stage: their number, r of the first round, and v."""

    rounds: int
    first: int
    v: float


def schedule_of(stages: Sequence[Places], rounds: int) -> np.ndarray:
    """Return r within the stage, v, and 1 if a stage begins, for every round; float32, shape [rounds, 3].

    Rounds after the last stage have r = 0: machines are queried at w_ag, and no step is taken.
    """
    rows = [(stage.first + t, stage.v, t == 0) for stage in stages for t in range(stage.rounds)]
    rows += [(0, stages[-1].v, True)] * (rounds - len(rows))
    return np.array(rows, np.float32)


def clipped_v(problem: Problem, clip: float, noise: float, rounds: int, *, whole: bool = False) -> float:
    """Return v for clipped gradients, `κ·√(2R³/105)` with κ from `default_steps.clipped_pace`. No theorem is claimed.

    Without a modulus, noise of norm z per round has a norm of about `z·√(2R³/105)/v` in w_ag, after R steps r/(2v) with
    weights r. This v makes that norm the distance that noise may move a run.

    Args:
        clip, noise, whole: as in `clipped_pace`.

    >>> from fedprivjax import Ball, Logistic, linear_problem
    >>> problem = linear_problem([[1.0], [-1.0]], [1, 0], Logistic(), feature_bound=1.0, constraint=Ball(0.5))
    >>> clipped_v(problem, problem.reach, 0.0, 105)
    148.4...
    """
    if not isfinite(problem.reach):
        raise Refusal(NO_DISTANCE)
    return float(clipped_pace(problem, clip, noise, whole=whole) * (2 * rounds**3 / 105) ** 0.5)


def required_distance(problem: Problem) -> float:
    """Return the distance to the optimum. Raise Refusal if it is unknown."""
    if not isfinite(problem.distance_to_optimum):
        raise Refusal(NO_DISTANCE)
    return problem.distance_to_optimum


def without_bound(name: str) -> Refusal:
    """Return the refusal of a setting whose default needs a finite bound on gradients, which the loss lacks."""
    return Refusal(
        f"{name} must be given, or clip, because the loss has no finite gradient bound here, got none. Set one"
    )


def begun(start: Any, optimizer: Any) -> AcceleratedState:
    """Return the state before the first round."""
    return AcceleratedState(start, start, jnp.zeros((), jnp.int32), optimizer)


def next_step(state: AcceleratedState, row: Any, modulus: Any, step_scale: Any) -> Step:
    """Return the points and factors of the next round.

    Args:
        row: the round's row of the schedule, see `schedule_of`.
        modulus: μ of the objective whose gradients the steps use.
        step_scale: factor on the steps: a larger one means a smaller v.
    """
    place, v, begins = row
    r = jnp.maximum(place, 1.0)
    w = jax.tree.map(lambda w, average: jnp.where(begins > 0, average, w), state.w, state.average)
    alpha, eta = 2 / (r + 1), 4 * v / (step_scale * r * (r + 1))
    total = eta + (1 - alpha**2) * modulus
    of_average, of_w = (1 - alpha) * (modulus + eta) / total, alpha * ((1 - alpha) * modulus + eta) / total
    middle = jax.tree.map(lambda a, w: of_average * a + of_w * w, state.average, w)
    return Step(w, middle, alpha, eta, modulus, place > 0)


def advanced(
    state: AcceleratedState, step: Step, gradient: Any, project: Callable[[Any], Any], server: Any
) -> AcceleratedState:
    """Return the state after a round with the given gradient estimate at w_md, and the projection onto the set.

    Args:
        server: optimiser whose learning rate is α/η, the length r/(2v) of a step without a modulus, or None for
            the plain step.
    """
    alpha, eta, mu = step.alpha, step.eta, step.modulus
    keep = (1 - alpha) * mu + eta
    optimizer = state.optimizer
    if server is None:
        moved = jax.tree.map(
            lambda m, w, g: (alpha * mu * m + keep * w - alpha * g) / (mu + eta), step.middle, step.w, gradient
        )
    else:
        moved, optimizer = server.step(optimizer, step.w, gradient, alpha / eta)
    moved = project(moved)
    average = jax.tree.map(lambda w, a: alpha * w + (1 - alpha) * a, moved, state.average)
    new, old = (moved, average, optimizer), (state.w, state.average, state.optimizer)
    w, average, optimizer = jax.tree.map(lambda new, old: jnp.where(step.counts, new, old), new, old)
    return AcceleratedState(w, average, state.rounds + 1, optimizer)
