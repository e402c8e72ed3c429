"""What methods with a private momentum of normalised steps share: the step, the exposure of records, and the event."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.uses import Uses, uses_of
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.grouped import Grouped
from fedprivjax.privacy.terms import RECORD, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.minibatch_round import noisy_mean, record_messages
from fedprivjax.protocols.round import RoundInputs, add_noise, flat_rows
from fedprivjax.protocols.settings import check_numbers


class MomentumState(NamedTuple):
    """w_t, m_{t−1}, and one of the iterates before, each as likely."""

    w: Any
    momentum: Any
    kept: Any


# ---- traced; protocols have the leaves step_scale, step_size, alpha and clip


def before_the_first(problem: Problem) -> MomentumState:
    """The state of every run's start."""
    w = problem.start
    return MomentumState(w, jax.tree.map(jnp.zeros_like, w), w)


def momentum_step(protocol: Any, problem: Problem, state: MomentumState, inputs: RoundInputs, noise: Any, key):
    """One round: the state after it, and what it reports; noise is a `Correlated`, or None."""
    g, info = noisy_mean(problem, state.w, inputs, None, protocol.clip)
    alpha, step = protocol.alpha, protocol.step_scale * protocol.step_size
    momentum = jax.tree.map(lambda m, g: (1 - alpha) * m + alpha * g, state.momentum, g)
    direction = normalised(add_noise(problem, momentum, None if noise is None else noise.now))
    w = problem.constraint.project(jax.tree.map(lambda w, u: w - step * u, state.w, direction))
    return MomentumState(w, momentum, one_of(state.kept, state.w, inputs.round, key)), info


def added_messages(protocol: Any, problem: Problem, state: MomentumState, inputs: RoundInputs):
    """α times the participants' gradients: what m_t adds to (1−α)·m_{t−1}, leaves [per_round, ...]."""
    rows = record_messages(problem, state.w, inputs, protocol.clip)
    return jax.tree.map(lambda g: protocol.alpha * g, rows)


def sent_rows(protocol: Any, problem: Problem, state: MomentumState, inputs: RoundInputs, own_noise: Any):
    """What m̂_t adds to (1−α)·m̂_{t−1}, which everybody knows already, [per_round, d]."""
    rows = flat_rows(problem, added_messages(protocol, problem, state, inputs))
    return rows if own_noise is None else rows + own_noise.fresh(protocol.alpha)


def normalised(vector):
    """The vector over its norm; 0 stays 0."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(vector)))
    return jax.tree.map(lambda leaf: leaf * jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0), vector)


def one_of(kept, newest, round, key):
    """The newest in place of what was kept, with probability 1/t: so that each of t is kept as likely."""
    chosen = jax.random.uniform(key) * round < 1
    return jax.tree.map(lambda old, new: jnp.where(chosen, new, old), kept, newest)


# ---- on the host


def check_momentum(protocol: Any) -> None:
    """Refuse settings that no private momentum allows."""
    check_numbers(protocol, "mu")
    check_numbers(protocol, "epsilon")
    require_choice("trust", protocol.trust, ("server", "none"))
    if isinstance(protocol.alpha, int | float) and not 0 < protocol.alpha <= 1:
        raise Refusal(f"alpha must be above 0 and at most 1, got {protocol.alpha}")


def check_plan(protocol: Any, problem: Problem, plan: Plan) -> None:
    """Refuse a plan that the guarantee does not cover, and settings that the theory does not allow on it."""
    if plan.schedule.filled is not None:
        raise Refusal(f"participation must have a fixed number of machines a round, got {plan.schedule}")
    if protocol.trust == "none" and plan.size.per_round < plan.size.machines:
        raise Refusal(
            f"participation must be Full with trust = 'none', for a machine's tree has a leaf in every round, "
            f"got {plan.size.per_round} of {plan.size.machines} machines"
        )
    epoch = rounds_of_epoch(protocol, problem)
    if plan.size.rounds < epoch:
        raise Refusal(f"rounds must be at least an epoch's ({epoch}), got {plan.size.rounds}")
    if not 1 / epoch <= protocol.alpha * (1 + 1e-6):
        raise Refusal(f"alpha must be at least 1/{epoch}, one over the rounds of an epoch, got {protocol.alpha:.4g}")


def rounds_of_epoch(protocol: Any, problem: Problem) -> int:
    """N: rounds in which the machine with the most messages an epoch uses each of its records once."""
    if problem.table is None:
        raise Refusal("table must be given: machines go through records of their own")
    return int(protocol.minibatches.epoch(problem.table.sizes).max())


def record_bound(protocol: Any, problem: Problem) -> float:
    """C, the most that a record's gradient may be."""
    return float(problem.lipschitz if protocol.clip is None else protocol.clip)


def momentum_sensitivity(protocol: Any, problem: Problem, plan: Plan) -> float:
    """How far a record moves the noisy momentum in a round that uses it."""
    assert plan.weights is not None
    divisor = plan.size.per_round if protocol.trust == "server" else 1
    return 2 * float(protocol.alpha) * record_bound(protocol, problem) * float(plan.weights.max()) / divisor


def record_uses(problem: Problem, plan: Plan) -> Uses:
    """The uses of the problem's records, with weights over the largest."""
    assert problem.table is not None
    assert plan.weights is not None
    uses = uses_of(plan, int(problem.table.rows.max()) + 1)
    return uses._replace(weight=uses.weight / plan.weights.max())


def most_exposed(problem: Problem, squares: np.ndarray) -> np.ndarray:
    """The exposure of each machine's most exposed record, [machines], from every record's square."""
    assert problem.table is not None
    rows = problem.table.rows
    return np.sqrt(np.where(rows >= 0, squares[rows], 0).max(axis=1))


def momentum_event(protocol: Any, problem: Problem, plan: Plan, theorem: str, *further: Assumption) -> GaussianEvent:
    """Every machine's exposure and what it rests on."""
    bounded = Assumption("lipschitz", lipschitz_values(problem))
    if protocol.clip is not None:
        bounded = Assumption("clipped records", {"bound": float(protocol.clip)})
    assumptions = Assumption("public participation"), Assumption("public order"), bounded, *further
    terms = Terms(protocol.trust, theorem, (*assumptions, Assumption("not covered")), unit=RECORD)
    sensitivity, exposure = protocol.sensitivity(problem, plan), protocol.exposure(problem, plan)
    return GaussianEvent(float(protocol.noise_std), sensitivity, exposure, terms)


def kept_exposure(plan: Plan, settings: tuple, compute: Callable[[], np.ndarray]) -> Grouped:
    """Machines' exposures, computed once for a plan and settings."""
    return plan.schedule.once((*settings, id(plan.samples)), lambda: (plan, Grouped.of(compute())))[1]
