"""The default steps that methods share, and how far noise may carry a run: rules of thumb, of public quantities."""

from collections.abc import Callable
from math import hypot, inf, isfinite
from typing import Any

from fedprivjax.problem.problem import Problem
from fedprivjax.theory import reshef_levy


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
