"""P_AGD: one pass of Lan's AC-SA on shuffled sums, its bound, its batch size (Algorithm 4).

Round t = 1..T has `α_t = 2/(t + 2)` and the step `(t + 1)/(2(β + S))`, which corresponds to the penalty
`L_t·‖θ − θ_t‖²` with `L_t = (β + S)/(t + 1)`. With half of this penalty the method diverges even without noise.

Scans evaluate the bound of a pass for candidate batch sizes, on a smooth loss or on Moreau envelopes. The candidates
are few enough that a scan over n = 10⁹ users takes milliseconds.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, plain, positive, validate
from fedprivjax.theory.cheu.noise import Noise, oracle_variance

_MAX_USERS = 10**12


def agd_mixing(rounds: int) -> np.ndarray:
    """Weights of the newest iterate in the running average of accelerated SGD's iterates; shape [rounds].

    The weight of round t, counted from 1, is `2/(t + 2)`.

    >>> agd_mixing(2)
    array([0.66666667, 0.5       ])
    """
    counts(rounds=rounds)
    return 2 / np.arange(3.0, rounds + 3)


def agd_steps(*, rounds: int, smoothness: float, spread: float) -> np.ndarray:
    """Step sizes of accelerated SGD; shape [rounds].

    Args:
        rounds: T, number of rounds.
        smoothness: β, smoothness of the loss.
        spread: S ≥ 0, a number that shortens the steps. Noisier gradients need a larger S, which `agd_spread` computes.

    Returns:
        `(t + 1)/(2(β + S))` for t = 1, …, T.

    Source: Cheu et al. 2022, Algorithm 4, with the step sizes from Lan's proof of the method (AC-SA).

    >>> agd_steps(rounds=2, smoothness=1.0, spread=1.0)
    array([0.5 , 0.75])
    """
    counts(rounds=rounds)
    total = positive("smoothness", smoothness) + nonnegative("spread", spread)
    return np.arange(2.0, rounds + 2) / (2 * total)


def agd_spread(*, rounds: ArrayLike, deviation: ArrayLike, distance: ArrayLike, form: str = "optimal") -> Any:
    """Number S in the step sizes of accelerated SGD.

    Round t has the step size `(t + 1)/(2(β + S))` for the smoothness β of the loss (`agd_steps`).

    Args:
        rounds: T, number of rounds.
        deviation: σ, root mean squared error of a round's gradient (the square root of `oracle_variance`).
        distance: D, bound on the distance from the start to the minimum (root mean square for a random start).
        form: "optimal" for the S with the smallest bound on the excess loss (`agd_bound`), or "paper" for the paper's
            S.

    Returns:
        `S = (σ/(2D))·√(Σ_{t≤T} (t+1)²)` for "optimal"; `S = (T+2)^{3/2}·σ/D` for "paper".

    Source: "paper": Cheu et al. 2022, Lemma 4.4. "optimal": derived here.

    >>> agd_spread(rounds=2, deviation=1.0, distance=1.0, form="paper")
    8.0
    >>> round(agd_spread(rounds=2, deviation=2.0, distance=1.0) ** 2, 6)
    13.0
    """
    require_choice("form", form, ("optimal", "paper"))
    t = at_least_one("rounds", rounds)
    scale = nonnegative("deviation", deviation) / positive("distance", distance)
    return plain(scale * ((t + 2) ** 1.5 if form == "paper" else np.sqrt(_squares(t)) / 2))


def agd_bound(
    *,
    rounds: ArrayLike,
    smoothness: ArrayLike,
    spread: ArrayLike,
    distance: ArrayLike,
    variance: ArrayLike,
    gap: ArrayLike,
) -> Any:
    """Bound on the expected excess loss of accelerated SGD after T rounds.

    Round t has the step size `(t + 1)/(2(β + S))` (`agd_steps`).

    Args:
        rounds: T, number of rounds.
        smoothness: β, smoothness of the loss.
        spread: S ≥ 0, the number in the step size, for example from `agd_spread`. If σ > 0, S must be positive.
        distance: D, bound on the distance from the start to the minimum (root mean square for a random start).
        variance: σ², mean squared error of a round's gradient (`oracle_variance`).
        gap: bound on the excess loss at the start, such as the Lipschitz constant times D.

    Returns:
        `2/((T+1)(T+2))·[gap + (β + S)·D² + σ²·Σ_{t≤T} (t+1)²/(4S)]`. If σ = 0, the last term is 0.

    Source: derived here, by Lan's proof for AC-SA (accelerated SGD). Lemma 4.4 of Cheu et al. 2022 states the order of
    the bound.

    >>> agd_bound(rounds=2, smoothness=1.0, spread=13**0.5, distance=1.0, variance=4.0, gap=1.0)
    1.535...
    """
    t, variance = at_least_one("rounds", rounds), nonnegative("variance", variance)
    spread = nonnegative("spread", spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        noisy = np.where(variance > 0, variance * _squares(t) / (4 * spread), 0.0)
    start = (nonnegative("smoothness", smoothness) + spread) * positive("distance", distance) ** 2
    return plain(shrinkage(t) * (nonnegative("gap", gap) + start + noisy))


def shrinkage(rounds: ArrayLike) -> Any:
    """Factor of the start's contribution after T rounds: `Γ = 2/((T+1)(T+2))`.

    Here T is the number of rounds.

    >>> shrinkage(2)
    0.16666666666666666
    """
    t = at_least_one("rounds", rounds)
    return plain(2 / ((t + 1) * (t + 2)))


def _squares(rounds: np.ndarray) -> np.ndarray:
    """Return `Σ_{t≤T} (t+1)²` for T rounds."""
    return (rounds + 1) * (rounds + 2) * (2 * rounds + 3) / 6 - 1


class Phase(NamedTuple):
    """Settings of accelerated SGD in one pass over the users, and a bound on its expected excess loss.

    * `users`: number of users of the pass. If `per_round` does not divide `users`, the remaining users are not used;
    * `per_round`: number of users in a round;
    * `rounds`: number of rounds;
    * `spread`: S, a number that shortens the steps: round t has the step size `(t + 1)/(2(β + S))`, where β is
      `smoothness`;
    * `smoothness`: β, smoothness of the loss, or of its Moreau envelope;
    * `distance`: bound on the distance from the start of the pass to the minimum (root mean square for a random start);
    * `bound`: bound on the expected excess loss.
    """

    users: int
    per_round: int
    rounds: int
    spread: float
    smoothness: float
    distance: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Constants of a problem, and options for one pass of accelerated SGD over the users.

    A round has b users, where b is not an attribute. If the loss is not smooth, accelerated SGD descends on a Moreau
    envelope (`Moreau`).

    Attributes:
        lipschitz: L, Lipschitz constant of the loss.
        noise: C = E‖Z‖²/L², where Z is the noise vector that is added to a round's sum of gradients. If C depends on b,
            give a function from b to C. See `gaussian_noise_constant` and `pan_private_noise_constant`.
        smoothness: β, smoothness of the loss or of its envelope. For an envelope, None takes the β with the smallest
            bound on the excess loss at each b.
        envelope: True if an envelope replaces the loss. Bounds on the excess loss then include L²/(2β).
        sampling: True if bounds include the sampling error of a round's mean gradient.
        form: "optimal" for the step sizes with the smallest bound, or "paper" for the step sizes of the paper
            (`agd_spread`).
        paper_2L: True takes the paper's Lipschitz constant of envelopes, 2L. False takes L.
    """

    lipschitz: float
    noise: Noise
    smoothness: float | None
    envelope: bool
    sampling: bool = True
    form: str = "optimal"
    paper_2L: bool = False

    def __post_init__(self):
        require_flag("sampling", self.sampling)
        require_flag("paper_2L", self.paper_2L)
        given = ("lipschitz",) if self.smoothness is None else ("smoothness", "lipschitz")
        validate(self, **dict.fromkeys(given, partial(one, positive)))


class Runs(NamedTuple):
    """Settings and bound of one pass of accelerated SGD, for several batch sizes.

    Each is an array of shape [batch sizes].

    * `rounds`: number of rounds;
    * `spread`: S, a number that shortens the steps: round t has the step size `(t + 1)/(2(β + S))`, where β is
      `smoothness`. Noisier gradients need a larger S;
    * `smoothness`: β, smoothness of the loss, or of its Moreau envelope (a smooth lower approximation of the loss);
    * `bound`: bound on the expected excess loss.
    """

    rounds: np.ndarray
    spread: np.ndarray
    smoothness: np.ndarray
    bound: np.ndarray


def runs(
    method: Pass, users: int, per_round: np.ndarray, distance: ArrayLike, gap: float | np.ndarray = np.inf
) -> Runs:
    """Return settings and bound of one pass of accelerated SGD, for each of several batch sizes.

    Args:
        method: constants of the problem, and options.
        users: number of users, each used once.
        per_round: batch sizes (users in a round), int [batch sizes].
        distance: bound on the distance from the start to the minimum.
        gap: bound on the excess loss at the start.
    """
    rounds = users // per_round
    length = method.lipschitz * (2 if method.paper_2L else 1)
    variance = oracle_variance(per_round=per_round, lipschitz=length, noise=method.noise, sampling=method.sampling)
    distance = np.broadcast_to(np.asarray(distance, float), rounds.shape)
    spread = agd_spread(rounds=rounds, deviation=np.sqrt(variance), distance=distance, form=method.form)
    most = length * distance

    def bound(beta: np.ndarray) -> np.ndarray:
        away = method.lipschitz**2 / (2 * beta) if method.envelope else 0.0
        start = np.minimum(most, gap + away)
        settings = {"rounds": rounds, "spread": spread, "distance": distance, "variance": variance}
        return agd_bound(smoothness=beta, gap=start, **settings) + away

    tried = np.stack(_smoothness(method, rounds, distance))
    bounds = np.stack([bound(beta) for beta in tried])
    best, each = np.argmin(bounds, axis=0), np.arange(rounds.size)
    return Runs(rounds, spread, tried[best, each], bounds[best, each])


def best_phase(method: Pass, users: int, per_round: np.ndarray, distance: float, gap: float = np.inf) -> Phase:
    """Return the settings of one pass with the batch size that has the smallest bound."""
    computed = runs(method, users, per_round, distance, gap)
    best = int(computed.bound.argmin())
    rounds, spread, smoothness, bound = (values[best].item() for values in computed)
    return Phase(users, int(per_round[best]), rounds, spread, smoothness, distance, bound)


def _smoothness(method: Pass, rounds: np.ndarray, distance: np.ndarray) -> list[np.ndarray]:
    """Return candidates of the smoothness: the given one, or the minimisers of two bounds.

    One bound takes the Lipschitz constant times the distance for the excess loss at the start, the other the gap.
    """
    if method.smoothness is not None:
        return [np.full(rounds.shape, method.smoothness)]
    still = shrinkage(rounds)
    first = method.lipschitz / (distance * np.sqrt(2 * still))
    return [first, first * np.sqrt(1 + still)]


def agd_scan(
    *,
    users: int,
    distance: float,
    lipschitz: float,
    smoothness: float,
    noise: Noise,
    per_round: int | None = None,
    sampling: bool = True,
    form: str = "optimal",
) -> Phase:
    """Settings of accelerated SGD on a smooth loss, in one pass over the users, with the best batch size.

    The best batch size has the smallest bound `agd_bound`, where `variance` is `oracle_variance` and `gap` is
    `lipschitz` times `distance`.

    Args:
        users: number of users, each used once.
        distance: bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        smoothness: smoothness of the loss.
        noise: C = E‖Z‖²/L², where Z is the noise vector that is added to a batch's sum of gradients. If C depends on
            the batch size, give a function from the batch size to C.
        per_round: batch size (users in a round), or None for the best.
        sampling: True if the bound includes the sampling error of a round's mean gradient.
        form: "optimal" for the step sizes with the smallest bound, or "paper" for the step sizes of the paper
            (`agd_spread`).

    Returns:
        A `Phase`.

    Source: Cheu et al. 2022, Theorem 4.3 with explicit constants. The order of the paper's batch size is
    `agd_per_round_order`.

    >>> agd_scan(users=20_000, distance=1.0, lipschitz=1.0, smoothness=1.0, noise=862.0)[:3]
    (20000, 500, 40)
    """
    own = {"smoothness": smoothness, "envelope": False, "sampling": sampling, "form": form}
    return _scan(Pass(lipschitz=lipschitz, noise=noise, **own), users, distance, per_round)


def smoothed_scan(
    *,
    users: int,
    distance: float,
    lipschitz: float,
    noise: Noise,
    per_round: int | None = None,
    smoothness: float | None = None,
    sampling: bool = True,
    form: str = "optimal",
    paper_2L: bool = False,
) -> Phase:
    """Settings of accelerated SGD on a convex loss that need not be smooth, in one pass over the users.

    Accelerated SGD descends on a Moreau envelope, a smooth lower approximation of the loss. By default, the batch size
    and the smoothness β of the envelope minimise a bound on the excess loss. The bound is `agd_bound` plus `L²/(2β)`.

    Args:
        users: number of users, each used once.
        distance: bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        noise: C = E‖Z‖²/L² for the noise vector Z in a batch's sum of gradients (`agd_scan`).
        per_round: batch size (users in a round), or None for the best.
        smoothness: β, smoothness of the envelope, or None for the best.
        sampling, form: as in `agd_scan`.
        paper_2L: True takes the paper's Lipschitz constant of envelopes, 2L. False takes L.

    Returns:
        A `Phase`.

    Source: Cheu et al. 2022, Theorem 4.7 with explicit constants.

    >>> smoothed_scan(users=20_000, distance=1.0, lipschitz=1.0, noise=862.0)[:3]
    (20000, 108, 185)
    """
    own = {"smoothness": smoothness, "envelope": True, "sampling": sampling, "form": form, "paper_2L": paper_2L}
    return _scan(Pass(lipschitz=lipschitz, noise=noise, **own), users, distance, per_round)


def _scan(method: Pass, users: int, distance: float, per_round: int | None) -> Phase:
    counts(users=users)
    return best_phase(method, users, candidates(users, per_round), one(positive, "distance", distance))


def batches(users: int) -> np.ndarray:
    """Batch sizes that need to be tried to find the best one for one pass over n users; ascending.

    They are all b ≤ √n, and ⌊n/T⌋ for all numbers of rounds T ≤ √n. With batches of b users, there are `T = ⌊n/b⌋`
    rounds. Of the batch sizes with equally many rounds, the largest is always in the result. The result therefore
    contains the minimum of any bound that decreases in b at fixed T.

    Args:
        users: n, number of users.

    >>> batches(10)
    array([ 1,  2,  3,  5, 10])
    """
    counts(users=users)
    if users > _MAX_USERS:
        raise Refusal(f"users must be at most 10¹² for a scan, got {users}")
    few = np.arange(1, int(users**0.5) + 1)
    return np.unique(np.concatenate([few, users // few]))


def candidates(users: int, per_round: int | None) -> np.ndarray:
    """Return the candidate batch sizes, or the given one. Raise Refusal if it exceeds the number of users."""
    if per_round is None:
        return batches(users)
    counts(per_round=per_round)
    if per_round > users:
        raise Refusal(f"per_round must be at most the users of a phase ({users}), got {per_round}")
    return np.array([per_round])


def geometric_counts(largest: int, ratio: float = 2**0.25) -> np.ndarray:
    """Integers from 1 to `largest`, each about `ratio` times the previous one; int64, ascending.

    >>> geometric_counts(10, ratio=2)
    array([ 1,  2,  4,  8, 10])
    """
    counts(largest=largest)
    steps = np.arange(int(np.log(largest) / np.log(ratio)) + 1)
    return np.unique(np.append(np.rint(ratio**steps), largest).clip(1, largest).astype(np.int64))
