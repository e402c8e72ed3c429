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
    """Batch size (users in a round) of one-pass SGD, rounds, step, and bound on the expected excess loss."""

    per_round: int
    rounds: int
    step: float
    bound: float


def sgd_bound(
    *, users: ArrayLike, per_round: ArrayLike, distance: ArrayLike, lipschitz: ArrayLike, noise: Noise
) -> Any:
    """Bound on the expected excess loss of one-pass SGD at its best step: `D·L·√((1 + C/b²)/T)`.

    Here L is the Lipschitz constant and `T = ⌊n/b⌋` the number of rounds. The bound is inf if b > n.

    Args:
        users, per_round: number n of users, and b of them in a round.
        distance: D, bound on the distance from the start to the minimum (in the paper, the diameter).
        noise: C, the noise variance of a round's sum of gradients over all coordinates, divided by L².

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
    """Step of one-pass SGD that attains `sgd_bound`: `η = D/(L·√((1 + C/b²)T))`.

    Here D is the distance from the start to the minimum, L the Lipschitz constant, b the number of users in a round,
    and T the number of rounds. C is `noise`, the noise variance of a round's sum over all coordinates, divided by L².

    Source: Cheu et al. 2022, proof of Theorem 4.1, whose η has the same order.

    >>> sgd_step(rounds=4, per_round=1, distance=2.0, lipschitz=1.0, noise=3.0)
    0.5
    """
    length = _length(at_least_one("per_round", per_round), lipschitz, noise)
    return plain(positive("distance", distance) / (length * np.sqrt(at_least_one("rounds", rounds))))


def sgd_best_per_round(noise: ArrayLike) -> Any:
    """Number of users in a round that minimises `sgd_bound` if there are many users: `√C`, a real number.

    Here C is `noise`: the noise variance of a round's sum of gradients over all coordinates, divided by the squared
    Lipschitz constant.

    Source: derived here, by minimising `sgd_bound`. The paper's number of users, √d·ln(d/δ)/ε for d parameters and
    (ε, δ)-DP, is of the same order.

    >>> sgd_best_per_round(841.0)
    29.0
    """
    return plain(np.sqrt(positive("noise", noise)))


def sgd_scan(*, users: int, distance: float, lipschitz: float, noise: Noise, per_round: int | None = None) -> Choice:
    """Return the batch size of one-pass SGD with the smallest `sgd_bound`, and its rounds, step and bound.

    Arguments are as for `sgd_bound`, but `per_round` is the batch size to take, or None for the best.

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
    """Number of phases of `strong_phases` for n users: `⌈ln log₂ n / ln(1/shrinking)⌉`, at least 1.

    The bounds of the phases approach a limit. Each phase multiplies the logarithm of the bound's ratio to its limit by
    `shrinking`, which is 1/2 on Moreau envelopes and 3/5 for smooth losses. With 1/2, the number is `⌈log₂ log₂ n⌉`.
    With 3/5, the bound after k phases decreases like n^{−2(1 − 0.6^k)} instead of n^{−2}, which is n^{−1.84} for k = 5.

    Source: Cheu et al. 2022, Theorem 4.8, whose k is O(log log n).

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
    """Settings of accelerated SGD in phases, for strongly convex losses; one `Phase` for each.

    Each of the k phases is one pass over `⌊n/k⌋` new users, and starts at the output of the phase before. Phases differ
    in their steps, and in the Moreau envelopes of a loss that is not smooth, but not in the constraint set.

    Steps and envelopes of phase j depend on D_j, a bound on the distance from its start to the minimum. It is
    `D_1 = min(D, 2L/λ)`, with L the Lipschitz constant, and then `D_{j+1} = min(D_j, √(2Δ_j/λ))`. Here Δ_j is the bound
    on the excess loss after phase j, and the last one is the bound of the method. The bound Δ_j uses that the excess
    loss at the start of phase j is at most `min(L·D_j, Δ_{j−1})`, or `min(L·D_j, Δ_{j−1} + L²/(2β))` on envelopes.

    Args:
        users: n in all, each used once.
        diameter: D, diameter of the constraint set, or a bound on the first distance.
        strong_convexity: λ.
        smoothness: β of the loss, or None for Moreau envelopes.
        phases: k, or None for ⌈log₂ log₂ n⌉.
        per_round: one batch size for all phases (`strong_per_round` finds the best), one for each phase, or None for
            the best of each phase.
        noise, sampling, form, paper_2L: as for `smoothed_scan`.

    Source: Cheu et al. 2022, Theorem 4.8, with explicit constants and the smaller of two bounds at a phase's start.

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
    """Return the batch size with the smallest bound of `strong_phases`, if all phases have the same batch size.

    Participation schemes with a fixed number of users in a round need one batch size. Arguments are as for
    `strong_phases`.

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
    """Return the first distance and λ."""
    modulus = one(positive, "strong_convexity", strong_convexity)
    return min(one(positive, "diameter", diameter), 2 * one(positive, "lipschitz", lipschitz) / modulus), modulus
