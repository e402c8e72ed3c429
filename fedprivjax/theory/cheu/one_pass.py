"""P_SGD, one pass of averaged projected SGD (Theorem 4.1), and AC-SA in phases (Theorem 4.8).

The phases are for strongly convex losses. Each of them starts at the previous output.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, counts, one, plain, positive, probability
from fedprivjax.theory.cheu.agd import Pass, Phase, best_phase, candidates, runs
from fedprivjax.theory.cheu.noise import Noise, noise_at


class Choice(NamedTuple):
    """Settings of one-pass SGD (`sgd_scan`), and a bound on its expected excess loss.

    * `per_round`: number of users in a round;
    * `rounds`: number of rounds;
    * `step`: step size;
    * `bound`: bound on the expected excess loss (`sgd_bound`).
    """

    per_round: int
    rounds: int
    step: float
    bound: float


def sgd_bound(
    *, users: ArrayLike, per_round: ArrayLike, distance: ArrayLike, lipschitz: ArrayLike, noise: Noise
) -> Any:
    """Bound on the expected excess loss of one-pass SGD at its best step size (`sgd_step`).

    Args:
        users: n, number of users, each used once.
        per_round: b, number of users in a round.
        distance: D, bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        noise: C = E‖Z‖²/L², where Z is the noise vector that is added to a round's sum of gradients. If C depends on b,
            give a function from b to C.

    Returns:
        `D·L·√((1 + C/b²)/T)` for the number `T = ⌊n/b⌋` of rounds; inf if b > n.

    Source: Cheu et al. 2022, proof of Theorem 4.1. Constants are explicit.

    >>> round(sgd_bound(users=20_000, per_round=29, distance=2.0, lipschitz=1.0, noise=862.0), 4)
    0.1084
    """
    b = at_least_one("per_round", per_round)
    rounds = np.floor(at_least_one("users", users) / b)
    with np.errstate(divide="ignore"):
        return plain(positive("distance", distance) * _length(b, lipschitz, noise) / np.sqrt(rounds))


def sgd_step(
    *, rounds: ArrayLike, per_round: ArrayLike, distance: ArrayLike, lipschitz: ArrayLike, noise: Noise
) -> Any:
    """Step size of one-pass SGD with the smallest bound on the expected excess loss (`sgd_bound`).

    Args:
        rounds: T, number of rounds.
        per_round: b, number of users in a round.
        distance: D, bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        noise: C = E‖Z‖²/L², where Z is the noise vector that is added to a round's sum of gradients. If C depends on b,
            give a function from b to C.

    Returns:
        `η = D/(L·√((1 + C/b²)T))`.

    Source: Cheu et al. 2022, proof of Theorem 4.1, whose η has the same order.

    >>> sgd_step(rounds=4, per_round=1, distance=2.0, lipschitz=1.0, noise=3.0)
    0.5
    """
    length = _length(at_least_one("per_round", per_round), lipschitz, noise)
    return plain(positive("distance", distance) / (length * np.sqrt(at_least_one("rounds", rounds))))


def sgd_best_per_round(noise: ArrayLike) -> Any:
    """Number of users in a round with the smallest bound for one-pass SGD, if there are many users in all.

    The bound is on the expected excess loss (`sgd_bound`). The result is a real number.

    Args:
        noise: C = E‖Z‖²/L² for the noise vector Z in a round's sum of gradients, and the Lipschitz constant L of the
            loss.

    Returns:
        `√C`.

    Source: derived here, by minimising `sgd_bound`. For d parameters and (ε, δ)-DP, the result has the order of the
    paper's number, √d·ln(d/δ)/ε.

    >>> sgd_best_per_round(841.0)
    29.0
    """
    return plain(np.sqrt(positive("noise", noise)))


def sgd_scan(*, users: int, distance: float, lipschitz: float, noise: Noise, per_round: int | None = None) -> Choice:
    """Return the settings of one-pass SGD with the smallest `sgd_bound`, by a scan over batch sizes.

    Args:
        users: number of users, each used once.
        distance: bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        noise: C = E‖Z‖²/L², where Z is the noise vector that is added to a batch's sum of gradients. If C depends on
            the batch size, give a function from the batch size to C.
        per_round: batch size (users in a round), or None for the best.

    >>> sgd_scan(users=20_000, distance=2.0, lipschitz=1.0, noise=862.0)
    Choice(per_round=29, rounds=689, step=0.0535..., bound=0.108...)
    """
    counts(users=users)
    distance, lipschitz = one(positive, "distance", distance), one(positive, "lipschitz", lipschitz)
    problem = {"distance": distance, "lipschitz": lipschitz, "noise": noise}
    tried = candidates(users, per_round)
    bounds = np.atleast_1d(sgd_bound(users=users, per_round=tried, **problem))
    best = int(np.argmin(bounds))
    b, rounds = int(tried[best]), users // int(tried[best])
    return Choice(b, rounds, float(sgd_step(rounds=rounds, per_round=b, **problem)), float(bounds[best]))


def _length(per_round: np.ndarray, lipschitz: ArrayLike, noise: Noise) -> np.ndarray:
    """Bound on the root mean squared norm of a noisy mean gradient."""
    return positive("lipschitz", lipschitz) * np.sqrt(1 + noise_at(noise, per_round) / per_round**2)


def strong_phase_count(users: int, shrinking: float = 0.5) -> int:
    """Number of phases that suffice for accelerated SGD in phases (`strong_phases`).

    Every phase lowers the bound on the excess loss, down to a limit that no number of phases can pass. If the bound is
    q times this limit before a phase, the bound is about q^s times the limit after the phase. Here s is `shrinking`. If
    q = n before the first phase, q is at most 2 after the returned number of phases.

    Args:
        users: n, number of users.
        shrinking: s, which is 3/5 for smooth losses, and 1/2 for Moreau envelopes of other losses.

    Returns:
        `⌈ln log₂ n / ln(1/s)⌉`, at least 1.

    Source: Cheu et al. 2022, Theorem 4.8, where the number of phases is O(log log n).

    >>> [strong_phase_count(n) for n in (2, 1000, 10**5, 10**9)]
    [1, 4, 5, 5]
    >>> [strong_phase_count(n, shrinking=0.6) for n in (2, 1000, 10**5, 10**9)]
    [1, 5, 6, 7]
    """
    counts(users=users)
    shrinking = one(probability, "shrinking", shrinking)
    return max(1, int(np.ceil(np.log(max(1.0, np.log2(users))) / -np.log(shrinking))))


def strong_phases(
    *,
    users: int,
    diameter: float,
    lipschitz: float,
    strong_convexity: float,
    noise: Noise,
    smoothness: float | None = None,
    phases: int | None = None,
    per_round: int | Sequence[int] | None = None,
    sampling: bool = True,
    form: str = "optimal",
    paper_2L: bool = False,
) -> list[Phase]:
    """Settings of each phase of accelerated SGD in phases, for strongly convex losses.

    Each phase is one pass over new users, and starts at the output of the previous phase. All phases have equally many
    users and the same constraint set. If the loss is not smooth, each phase has its own Moreau envelope (`Moreau`).

    The settings of phase j depend on D_j, a bound on the distance from the start of this phase to the minimum:

    * `D_1 = min(D, 2L/λ)`;
    * `D_{j+1} = min(D_j, √(2Δ_j/λ))`, where Δ_j is the bound on the excess loss after phase j.

    Args:
        users: number of all users, each used once.
        diameter: D, diameter of the constraint set, or a bound on the distance from the first start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        strong_convexity: λ, strong convexity of the loss.
        noise: C = E‖Z‖²/L² for the noise vector Z in a batch's sum of gradients (`agd_scan`).
        smoothness: smoothness of the loss, or None for Moreau envelopes.
        phases: number of phases, or None for ⌈log₂ log₂ n⌉ at n users.
        per_round: batch size for all phases, such as `strong_per_round`. Give a sequence for one batch size per phase,
            or None for the best batch size of each phase.
        sampling, form: as in `agd_scan`.
        paper_2L: True takes the paper's Lipschitz constant of envelopes, 2L. False takes L.

    Returns:
        One `Phase` per phase j. Its `distance` is D_j, and its `bound` is Δ_j.

    Source: Cheu et al. 2022, Theorem 4.8, with explicit constants.

    >>> problem = {"diameter": 2.0, "lipschitz": 1.0, "strong_convexity": 0.5, "smoothness": 1.0, "noise": 862.0}
    >>> [(p.users, p.per_round, round(p.distance, 3)) for p in strong_phases(users=10**6, **problem)][:3]
    [(200000, 1449, 2.0), (200000, 3846, 0.169), (200000, 6666, 0.045)]
    """
    own = {"envelope": smoothness is None, "sampling": sampling, "form": form, "paper_2L": paper_2L}
    method = Pass(lipschitz=lipschitz, noise=noise, smoothness=smoothness, **own)
    count, each = _split(users, phases)
    distance, modulus = first_distance(diameter, lipschitz, strong_convexity)
    sequence, gap = [], np.inf
    for tried in _tried(each, per_round, count):
        sequence.append(best_phase(method, each, tried, distance, gap))
        gap = sequence[-1].bound
        distance = min(distance, (2 * gap / modulus) ** 0.5)
    return sequence


def strong_per_round(
    *,
    users: int,
    diameter: float,
    lipschitz: float,
    strong_convexity: float,
    noise: Noise,
    smoothness: float | None = None,
    phases: int | None = None,
    sampling: bool = True,
    form: str = "optimal",
    paper_2L: bool = False,
) -> int:
    """Best common batch size for all phases of `strong_phases`.

    The best batch size has the smallest bound on the excess loss after the last phase. The method is accelerated SGD in
    phases, for strongly convex losses.

    Args:
        users: number of all users, each used once.
        diameter: diameter of the constraint set, or a bound on the distance from the first start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        strong_convexity: strong convexity of the loss.
        noise: C = E‖Z‖²/L² for the noise vector Z in a batch's sum of gradients (`agd_scan`).
        smoothness: smoothness of the loss, or None for Moreau envelopes.
        phases: number of phases, or None for ⌈log₂ log₂ n⌉ at n users.
        sampling, form: as in `agd_scan`.
        paper_2L: True takes the paper's Lipschitz constant of envelopes, 2L. False takes L.

    >>> problem = {"diameter": 2.0, "lipschitz": 1.0, "strong_convexity": 0.5, "smoothness": 1.0, "noise": 862.0}
    >>> strong_per_round(users=10**6, **problem)
    5405
    """
    own = {"envelope": smoothness is None, "sampling": sampling, "form": form, "paper_2L": paper_2L}
    method = Pass(lipschitz=lipschitz, noise=noise, smoothness=smoothness, **own)
    count, each = _split(users, phases)
    distance, modulus = first_distance(diameter, lipschitz, strong_convexity)
    tried = candidates(each, None)
    distances, gap = np.full(tried.shape, distance), np.full(tried.shape, np.inf)
    for _ in range(count):
        gap = runs(method, each, tried, distances, gap).bound
        distances = np.minimum(distances, np.sqrt(2 * gap / modulus))
    return int(tried[gap.argmin()])


def _tried(each: int, per_round: int | Sequence[int] | None, count: int) -> list[np.ndarray]:
    """Return the candidate batch sizes of every phase."""
    if per_round is None or isinstance(per_round, int):
        return [candidates(each, per_round)] * count
    if len(per_round) != count:
        raise Refusal(f"per_round must be one batch, or one for each of {count} phases, got {len(per_round)}")
    return [candidates(each, int(batch)) for batch in per_round]


def _split(users: int, phases: int | None) -> tuple[int, int]:
    """Return the number of phases and the number of users of each."""
    counts(users=users)
    count = strong_phase_count(users) if phases is None else phases
    counts(phases=count)
    if count > users:
        raise Refusal(f"phases must be at most users ({users}), got {count}")
    return count, users // count


def first_distance(diameter: float, lipschitz: float, strong_convexity: float) -> tuple[float, float]:
    """Return the bound on the first distance, and the strong convexity."""
    modulus = one(positive, "strong_convexity", strong_convexity)
    return min(one(positive, "diameter", diameter), 2 * one(positive, "lipschitz", lipschitz) / modulus), modulus
