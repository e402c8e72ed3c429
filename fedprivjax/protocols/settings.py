"""Refusals of settings that no protocol allows, and the default steps that methods share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import hypot, inf, isfinite
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import NUMBERS, require_at_least, require_choice, require_one, require_positive
from fedprivjax.noise.sums import Given, SumFactor
from fedprivjax.plan.samplers import Dealt
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.grouped import Grouped
from fedprivjax.privacy.target import LEVELS
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy

ONE_NOISE = {  # trust models in which one noise is for all machines
    "server": "whose noise is one for all machines",
    "pan-private": "whose noise is one for all users",
    "shuffler": "behind which all messages of a round hide each other alike",
}
SMALLEST_CLIP = 1e-12  # the squares of a norm's parts underflow from 1e-19 on


def check_steps(protocol) -> None:
    """Refuse steps and a clip that no protocol allows."""
    for name in (*NUMBERS, "clip"):
        if isinstance(getattr(protocol, name), list | tuple):  # arrays may be leaves of stacked protocols
            require_one(name, getattr(protocol, name))
    for name in ("step_size", "step_scale", "clip"):
        require_positive(name, getattr(protocol, name), optional=True)
    require_clip(protocol.clip)


def check_numbers(protocol, target: str) -> None:
    """Refuse a target ("mu" or "epsilon"), noise, steps and clip that no protocol allows."""
    level, noise_std = getattr(protocol, target), protocol.noise_std
    check_steps(protocol)
    if isinstance(level, list | tuple):
        raise Refusal(
            f'{target} must be one number, got {list(level)}: a sweep takes several, as over={{"{target}": [...]}}, '
            f"and profile=[...] gives every machine its own privacy"
        )
    require_positive(target, level, optional=True, infinite=True)
    require_noise_std(noise_std)
    if noise_std is not None and isinstance(level, int | float | np.number):
        raise Refusal(f"give {target} or noise_std, not both, got {target} = {level} and noise_std = {noise_std}")


def check_settings(protocol) -> None:
    """Refuse settings that no protocol with a target μ or ε allows."""
    check_numbers(protocol, "mu")
    check_numbers(protocol, "epsilon")
    require_one_level(protocol)
    require_choice("trust", protocol.trust, ("server", "none"))
    require_at_least("batch", protocol.batch, 1)


def dealt(batch: int) -> Dealt | None:
    """How `batch` fresh records of a message are dealt; of one, by the plan alone.

    >>> dealt(20), dealt(1)
    (Dealt(batch=20), None)
    """
    return Dealt(batch) if batch > 1 else None


def batch_assumptions(batch: int) -> tuple[Assumption, ...]:
    """What a guarantee says of messages of several records."""
    return (Assumption("fresh batches", {"batch": int(batch)}),) if batch > 1 else ()


def require_one_level(protocol) -> None:
    """Refuse both a μ and an ε."""
    mu, epsilon = protocol.mu, protocol.epsilon
    if all(isinstance(level, int | float | np.number) for level in (mu, epsilon)):
        raise Refusal(f"give mu or epsilon, not both, got mu = {mu} and epsilon = {epsilon}")


def require_noise_std(noise_std: Any) -> None:
    """Refuse a noise that is a number, and negative or not finite."""
    if isinstance(noise_std, int | float | np.number) and not 0 <= noise_std < np.inf:
        raise Refusal(f"noise_std must be finite and not negative, got {noise_std}")


def require_clip(clip: Any) -> None:
    """Refuse a bound so small that float32 takes norms beyond it for 0."""
    if isinstance(clip, int | float | np.number) and clip < SMALLEST_CLIP:
        raise Refusal(f"clip must be at least {SMALLEST_CLIP:g}, where norms are still numbers, got {clip}")


def fixed_profile(protocol) -> tuple[float, ...] | None:
    """A protocol's `profile` as a static setting: a tuple of positive numbers, one for each machine."""
    profile = protocol.profile
    if profile is None:
        return None
    if protocol.trust in ONE_NOISE:
        raise Refusal(f"profile must be left out with trust = {protocol.trust!r}, {ONE_NOISE[protocol.trust]}")
    if isinstance(profile, str) or not isinstance(profile, Sequence | np.ndarray):
        raise Refusal(f"profile must be a list of numbers, one for each machine, got {profile!r}")
    for value in profile:
        require_positive("profile", value)
    if not len(profile):
        raise Refusal("profile must have one number for each machine, got none")
    if np.ndim(protocol.epsilon):
        raise Refusal(f"give profile or an epsilon for each machine, not both, got epsilon = {protocol.epsilon}")
    return tuple(float(value) for value in profile)


def follows_epsilon(protocol) -> tuple[str, ...]:
    """`Protocol.noise_follows` where machines' noises follow from the ε of each."""
    return () if protocol.profile is None else LEVELS


def privacy_shares(profile: Sequence[float] | None, machines: int) -> np.ndarray:
    """Every machine's μ as a part of the largest, float64 [machines], from a `profile` in any unit; 1 without one.

    >>> privacy_shares((2.0, 1.0), 2).tolist()
    [1.0, 0.5]
    """
    if profile is None:
        return np.ones(machines)
    if len(profile) != machines:
        raise Refusal(f"profile must have one number for each of {machines} machines, got {len(profile)}")
    return np.asarray(profile, float) / max(profile)


def asked_shares(profile: Sequence[float] | None, machines: int) -> np.ndarray | None:
    """`privacy_shares` that machines are asked to keep to; None where there is no profile."""
    return None if profile is None else privacy_shares(profile, machines)


def exposed_once(schedule: Schedule, profile: Sequence[float] | None) -> Grouped:
    """Exposure of machines whose samples touch one message each: their share, 0 for those that are never asked."""
    shares = privacy_shares(profile, schedule.machines)
    return schedule.once(("takes part", profile), lambda: Grouped.of(np.where(schedule.total > 0, shares, 0.0)))


def noise_of_shares(profile: Sequence[float] | None, machines: int) -> float:
    """√(mean of 1/share²): the noise of a mean over all machines, as a multiple of that without a profile."""
    return float(np.sqrt(np.mean(privacy_shares(profile, machines) ** -2.0)))


def fixed_schedule(noise_schedule: Any, names: Iterable[str], factors: Mapping[str, type] = {}) -> Any:
    """A noise schedule as a static setting: one of `names`, a tuple of numbers, or a factor of running sums.

    Args:
        factors: kinds of `SumFactor` by name, where there may be any; given by name, as {name: its setting}, as an
            object, or as a matrix.
    """
    if isinstance(noise_schedule, SumFactor) and factors:
        return noise_schedule
    if isinstance(noise_schedule, Mapping) and factors:
        return _factor_of_table(noise_schedule, factors)
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, (*names, *factors))
        return factors[noise_schedule]() if noise_schedule in factors else noise_schedule
    if not isinstance(noise_schedule, Sequence | np.ndarray):
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}")
    try:
        if factors and np.ndim(noise_schedule) == 2:
            return Given(tuple(tuple(float(value) for value in row) for row in noise_schedule))
        return tuple(float(value) for value in noise_schedule)
    except (TypeError, ValueError) as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}") from None


def _factor_of_table(table: Mapping[str, Any], factors: Mapping[str, type]) -> SumFactor:
    if len(table) != 1:
        raise Refusal(f"noise_schedule must be one name with its setting, got {dict(table)!r}")
    ((name, value),) = table.items()
    require_choice("noise_schedule", name, factors)
    return factors[name](value)


def step_by_theory(
    problem: Problem, theory: Callable[..., float], *, mu: float, clip: Any, rounds: int, batch: int = 1
) -> float:
    """A step of μ²-SGD's theory; of clipped increments without a set's diameter, or without noise and a smoothness
    constant, the clipped step. That of clipped batches, in few rounds, is no longer than one can use.

    Args:
        theory: the step as a function of `smoothness`, None for noise alone.
    """
    if batch > 1 and clip is not None:
        longest = reshef_levy.longest_step(rounds=rounds, diameter=problem.travel, increment=clip)
        return min(longest, step_by_theory(problem, theory, mu=mu, clip=clip, rounds=rounds))
    unknown = not isfinite(problem.constraint.diameter) or (mu == inf and not isfinite(problem.smoothness))
    if clip is None or not unknown:
        return theory(smoothness=problem.smoothness if clip is None or mu == inf else None)
    of_noise = inf if mu == inf else theory(smoothness=None)
    return reshef_levy.clipped_step(rounds=rounds, diameter=problem.travel, increment=clip, noise_step=of_noise)


def binds(problem: Problem, clip: Any) -> bool:
    """Whether a clip is below the loss's own gradient bound: then what is known of the loss, its smoothness above all,
    says nothing of the clipped gradients that a step follows.

    >>> from fedprivjax import Ball, Logistic, linear_problem
    >>> problem = linear_problem([[1.0], [-1.0]], [1, 0], Logistic(), feature_bound=1.0, constraint=Ball(2.0))
    >>> binds(problem, None), binds(problem, 0.5), binds(problem, 2.0)
    (False, True, False)
    """
    return clip is not None and float(clip) < problem.lipschitz


def noise_reach(problem: Problem, distance: float, *, times: float = 1) -> float:
    """How far noise may carry a run, at most `distance`: `times` `√d·G/L` where G and L, the loss's bounds on its
    gradient and on its curvature, are known.

    Noise of norm r, spread evenly over d coordinates, moves a linear predictor's scores by `r·B/√d` for features of
    norm B at most. A loss of slope ρ and curvature c at most is a line again `ρ/c = G·B/L` away: scores moved farther
    are noise, however large the set is. A rule of thumb, of public quantities; of a softmax's or a logistic loss it is
    `2·√(d/L)`, and of a squared one beyond the set.

    >>> from fedprivjax import Ball, Logistic, linear_problem
    >>> problem = linear_problem([[1.0], [-1.0]], [1, 0], Logistic(), feature_bound=1.0, constraint=Ball(50.0))
    >>> noise_reach(problem, 50.0), noise_reach(problem, 3.0)
    (4.0, 3.0)
    """
    slope, curvature = problem.lipschitz, problem.smoothness
    if not (isfinite(slope) and isfinite(curvature)):
        return distance
    return min(distance, times * problem.dimension**0.5 * slope / curvature)


def gathered_reach(problem: Problem) -> float:
    """How far the noise that gathers in an iterate may carry it, where projected iterates are averaged, of clipped
    runs.

    With R the set's radius, noise of norm r that is projected back onto the set is left with `r·R/√(r² + R²)`. That
    is a half more than `noise_reach` allows, `a = 1.5·√d·G/L`, at `r = a·R/√(R² − a²)`; in a set within a any noise
    is harmless, and r is two diameters, where next to nothing more is learnt. Of a loss whose slope grows with its
    scores, such as the squared one, noise is never harmless: `noise_reach` of twice, within the set. A rule of thumb,
    of public quantities.

    >>> from fedprivjax import Ball, Logistic, linear_problem
    >>> def of_radius(radius):
    ...     constraint = Ball(radius)
    ...     return linear_problem([[1.0], [-1.0]], [1, 0], Logistic(), feature_bound=1.0, constraint=constraint)
    >>> [round(gathered_reach(of_radius(radius)), 2) for radius in (3.0, 10.0, 1000.0)]
    [12.0, 7.5, 6.0]
    """
    distance, model, bound = problem.travel, problem.model, problem.feature_bound
    if bound is None or not isfinite(model.lipschitz(bound, inf)):
        return noise_reach(problem, distance, times=2)
    harmless, radius = noise_reach(problem, inf, times=1.5), problem.constraint.radius
    within = harmless / (1 - (harmless / radius) ** 2) ** 0.5 if harmless < radius else inf
    return min(2 * distance, within)


def clipped_pace(problem: Problem, clip: float, noise: float, *, averaged: bool = False, whole: bool = False) -> float:
    """How far a step of length 1 along clipped gradients goes, of the way that a run may go: with D the reach and D_z
    that of noise, `κ = √(C²/D² + z²/D_z²)`, so that the plain step of T rounds is `1/(κ·√T)`.

    Where D_z is D, that is the step `D/√(T·(C² + z²))` of `reshef_levy.noisy_sgd_step`. No theorem is claimed: clipped
    gradients need not be those of any loss.

    Args:
        clip: C.
        noise: z, the norm of the noise of a round's mean gradient, `√d·σ`.
        averaged: whether the mean of the iterates is reported, in which a third of the last one's variance is left:
            √3 times the step, of a linear predictor.
        whole: whether every message is of all records: their mean gradient is one function's, which shrinks as a run
            goes on, and half of C stands for it, of a linear predictor.
    """
    reach, linear = problem.reach, problem.model.factored
    bound = clip / 2 if whole and linear else clip
    pace = hypot(bound / reach, noise / noise_reach(problem, reach))
    return pace / 3**0.5 if averaged and linear else pace


def plain_clipped_step(
    problem: Problem, rounds: int, clip: float, noise: float, *, averaged: bool = False, whole: bool = False
) -> float:
    """The plain step of T rounds along clipped gradients: `min(1/(κ·√T), D_z/C)`, see `clipped_pace`.

    The second term minds few rounds with little noise in a large set: no gradient goes farther than noise may.
    """
    longest = noise_reach(problem, problem.reach) / clip
    return min(1 / (clipped_pace(problem, clip, noise, averaged=averaged, whole=whole) * rounds**0.5), longest)
