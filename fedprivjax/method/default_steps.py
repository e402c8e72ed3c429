"""Default steps that methods share, and the distance that noise may move a run: rules of thumb."""

from collections.abc import Callable
from math import hypot, inf, isfinite
from typing import Any

from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy


def step_by_theory(
    problem: Problem, theory: Callable[..., float], *, mu: float, clip: Any, rounds: int, batch: int = 1
) -> float:
    """Return the step of μ²-SGD's theory, or the clipped step for clipped increments with unknown constants.

    The clipped step is used if the set has no diameter, or if there is neither noise nor a smoothness constant. The
    step of clipped batches is at most `reshef_levy.longest_step`, which is the smaller one in very short runs.

    Args:
        theory: function of `smoothness` that returns the step; None is for the noise alone.
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
    """Return True if the clip is below the gradient bound of the loss.

    The constants of the loss, such as its smoothness, do not hold for the clipped gradients in that case.

    >>> from fedprivjax import Ball, Logistic, linear_problem
    >>> problem = linear_problem([[1.0], [-1.0]], [1, 0], Logistic(), feature_bound=1.0, constraint=Ball(2.0))
    >>> binds(problem, None), binds(problem, 0.5), binds(problem, 2.0)
    (False, True, False)
    """
    return clip is not None and float(clip) < problem.lipschitz


def noise_reach(problem: Problem, distance: float, *, times: float = 1) -> float:
    """Return the distance that noise may move a run: `times·√d·G/L`, but at most `distance`.

    G and L are the loss's bounds on its gradient and its curvature. If one is unknown, the result is `distance`.

    Noise of norm r, spread evenly over d coordinates, moves a linear predictor's scores by `r·B/√d` for features of
    norm at most B. A loss of slope at most ρ and curvature at most c is nearly linear beyond a score of `ρ/c = G·B/L`,
    so larger changes of scores are only noise, for sets of any size. This is a rule of thumb from public quantities.
    For the softmax and logistic losses it is `2·√(d/L)`, and for the squared loss it lies beyond the set.

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
    """Return the distance that accumulated noise may move an iterate, for clipped runs with projection and averaging.

    With R the radius of the set, noise of norm r has the norm `r·R/√(r² + R²)` after projection onto the set. That is
    1.5 times `noise_reach`, `a = 1.5·√d·G/L`, at `r = a·R/√(R² − a²)`. If R is at most a, any noise is harmless, and r
    is two diameters, beyond which runs hardly learn more. If the slope of the loss grows with its scores, as in the
    squared loss, noise is never harmless: r is `noise_reach` with `times=2`, within the set. This is a rule of thumb
    from public quantities.

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
    """Return κ with `κ = √(C²/D² + z²/D_z²)`: the plain step of T rounds along clipped gradients is `1/(κ·√T)`.

    D is the distance to the optimum and D_z the distance that noise may move a run (`noise_reach`). If D_z = D, the
    step equals `D/√(T·(C² + z²))`, that of `reshef_levy.noisy_sgd_step`. No theorem is claimed: clipped gradients need
    not be the gradients of any loss.

    Args:
        clip: C.
        noise: z, norm of the noise in a round's mean gradient, `√d·σ`.
        averaged: True if the mean of the iterates is reported, which has a third of the last iterate's variance. The
            step of a linear predictor is then √3 times as long.
        whole: True if every message uses all records. The mean gradient then belongs to one function and shrinks during
            the run, so a linear predictor's C is replaced by C/2.
    """
    reach, linear = problem.reach, problem.model.factored
    bound = clip / 2 if whole and linear else clip
    pace = hypot(bound / reach, noise / noise_reach(problem, reach))
    return pace / 3**0.5 if averaged and linear else pace


def plain_step(problem: Problem, rounds: int, lipschitz: float, noise_std_of_mean: float) -> float:
    """Return the plain step of T rounds along noisy gradients of norm at most G, see `reshef_levy.noisy_sgd_step`."""
    known = {"diameter": problem.travel, "dimension": problem.dimension, "noise_std_of_mean": noise_std_of_mean}
    return float(reshef_levy.noisy_sgd_step(rounds=rounds, lipschitz=lipschitz, **known))


def plain_clipped_step(
    problem: Problem, rounds: int, clip: float, noise: float, *, averaged: bool = False, whole: bool = False
) -> float:
    """Return the plain step of T rounds along clipped gradients: `min(1/(κ·√T), D_z/C)`, see `clipped_pace`.

    The second term matters in short runs with little noise in a large set: one step moves at most D_z.
    """
    longest = noise_reach(problem, problem.reach) / clip
    return min(1 / (clipped_pace(problem, clip, noise, averaged=averaged, whole=whole) * rounds**0.5), longest)
