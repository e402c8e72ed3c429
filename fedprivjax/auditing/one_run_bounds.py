"""Lower bounds on the privacy loss from one run with many canaries, by the number of correct guesses.

Each of m canaries is included or left out by its own fair coin. From the run's output alone an attacker guesses the
states of r canaries. The number r is fixed in advance, and W of these guesses are correct. A private run bounds W for
any dependence between the canaries. The claim must be for the change that a coin decides: the presence of a record, or
which of two records is present. There are two tests of whether `W ≥ v` refutes the claim:

* Binomial (`chance_of_guesses`). Given the output and the other coins, a coin is guessed right with probability at most
  e^ε/(1+e^ε), and δ of each canary comes on top.
* Trade-off curve (`refutes`). The claim is that an event of probability x has at least g(x) in a neighbouring world.
  Flipping coin i makes a right guess of it wrong; averaged over canaries and coins, for every v, as g is convex:

      E[(r − W)·1{W ≥ v−1}]/m ≥ g(E[W·1{W ≥ v}]/m)

  Start from P[W ≥ v] = level, all of it at v. The inequality gives the smallest possible probability at v−1, v−2, ...,
  0 in turn. A total above 1 refutes the claim. The curve includes δ, so no term of size m·δ is added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, expit, ndtr, ndtri

from fedprivjax.auditing.bounds import PrivacyBounds
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_number

_HALVINGS = 30
_FRACTIONS = np.geomspace(0.01, 1.0, 16)  # fractions of the canaries tried as numbers of guesses
_Curve = Callable[[np.ndarray], np.ndarray]


def chance_of_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on P[W ≥ v] for r guesses on m canaries of an (ε, δ)-DP run.

    With Ŵ binomial of r trials and success e^ε/(1+e^ε):

        P[W ≥ v] ≤ P[Ŵ ≥ v] + 2·m·δ·max_{i=1..m} P[v−i ≤ Ŵ < v]/i

    If δ = 0, this holds for every v. If δ > 0, it holds for v above Ŵ's mean only, and the result is 1 for other v.
    Counterexample for those: twelve guesses on twelve canaries can have P[W ≥ 4] = 0.92784 at ε = 0 and δ = 5·10⁻⁴,
    and the right side is 0.92765.

    Args:
        right: v.
        guesses: r.
        canaries: m, including the canaries that were not guessed.
        epsilon: at least 0.
        delta: at least 0, below 1.

    Raises:
        ValueError: if counts are impossible, epsilon is negative or delta is outside [0, 1).

    Source: Steinke, Nasr & Jagielski 2023; the theorem for approximate DP.

    >>> round(chance_of_guesses(9, 10, 10, epsilon=0.0, delta=0.0), 6)  # 11 of the 1024 outcomes of ten coins
    0.010742
    """
    require_guesses(right, guesses, canaries)
    if not epsilon >= 0:
        raise Refusal(f"epsilon must be at least 0, got {epsilon}")
    if not 0 <= delta < 1:
        raise Refusal(f"delta must be at least 0 and below 1, got {delta}")
    success, steps = expit(epsilon), np.arange(1, max(right, 1) + 1)  # more than v steps add nothing
    if delta > 0 and right <= guesses * success:
        return 1.0
    reached = _at_least(right, guesses, success)
    further = np.max((_at_least(right - steps, guesses, success) - reached) / steps)
    return float(np.minimum(reached + 2 * canaries * delta * further, 1.0))


def refutes(right: ArrayLike, guesses: ArrayLike, canaries: int, level: float, curve: _Curve) -> Any:
    """Return True where so many correct guesses have probability below `level` for every mechanism with this curve.

    Args:
        right: numbers of correct guesses; broadcasts with `guesses`.
        guesses: numbers of guesses.
        canaries: at least as large as `guesses`.
        level: inside (0, 1).
        curve: vectorised function `g`, convex and increasing on [0, 1]. `g(x) = f(1 − x)` for a symmetric trade-off
            function f.

    Raises:
        ValueError: if counts are impossible or the level is outside (0, 1).

    Source: Mahloujifar, Melis & Chaudhuri 2024.

    >>> bool(refutes(95, 100, 1000, 0.05, lambda x: ndtr(ndtri(x) - 0.7)))  # 0.7-GDP
    True
    """
    require_guesses(right, guesses, canaries)
    require_between("level", level, 0, 1)
    right, guesses = np.broadcast_arrays(np.asarray(right, float), np.asarray(guesses, float))
    limit = guesses / canaries * (1 + 1e-12)
    correct, wrong = level * right / canaries, level * (guesses - right) / canaries
    for step in range(1, int(right.max(initial=0)) + 1):
        count = right - step
        least = np.where(count >= 0, np.maximum(wrong, curve(np.minimum(correct, 1.0))), wrong)
        correct = correct + np.maximum(count, 0.0) / (guesses - count) * (least - wrong)
        unchanged, wrong = np.array_equal(least, wrong), least
        if unchanged or (correct + wrong > limit).all():
            break  # smaller counts cannot change the result
    return correct + wrong > limit


def mu_lower(right: ArrayLike, guesses: ArrayLike, canaries: int, level: float = 0.05) -> Any:
    """Return the largest μ whose μ-GDP curve, `g(x) = Φ(Φ⁻¹(x) − μ)`, is refuted, or 0 if none is.

    Args:
        right, guesses, canaries, level: as in `refutes`.

    >>> 0.78 < mu_lower(95, 100, 1000) < 0.79
    True
    """
    right, guesses = np.broadcast_arrays(right, guesses)
    return _largest(
        lambda mu: refutes(right, guesses, canaries, level, lambda x: ndtr(ndtri(x) - mu)), np.zeros(right.shape)
    )


def epsilon_lower(right: int, guesses: int, canaries: int, delta: float, level: float = 0.05) -> float:
    """Return a lower bound on ε for any mechanism: the larger bound of the two tests.

    Both tests refute an ε if W is large, so the test with the smaller critical W is wrong with probability at most its
    level, and the level need not be divided. If m·δ is far below the level, the binomial bound is larger. Otherwise the
    bound from the trade-off curve of (ε, δ)-DP is, `g(x) = max{0, e^−ε·(x − δ), 1 − δ − e^ε·(1 − x)}`.

    Args:
        right, guesses, canaries: as in `chance_of_guesses`.
        delta: inside (0, 1).
        level: upper bound on the probability that the bound exceeds the true ε.

    >>> 2.16 < epsilon_lower(95, 100, 1000, 1e-5) < 2.17
    True
    """
    require_between("delta", delta, 0, 1)
    require_between("level", level, 0, 1)

    def curve(epsilon):
        grown = np.exp(np.minimum(epsilon, 700.0))
        return lambda x: np.maximum(np.maximum((x - delta) / grown, 1 - delta - grown * (1 - x)), 0.0)

    def binomial(epsilon):
        return np.array(chance_of_guesses(right, guesses, canaries, float(epsilon), delta) <= level)

    by_curve = _largest(lambda value: refutes(right, guesses, canaries, level, curve(value)), np.zeros(()))
    return max(_largest(binomial, np.zeros(())), by_curve)


def _at_least(count: ArrayLike, trials: int, success: float) -> Any:
    """Return P[binomial ≥ count]; 1 if the count is not positive, 0 if it exceeds the trials."""
    count = np.asarray(count)
    inside = np.clip(count, 1, max(trials, 1))
    tail = betainc(inside, trials - inside + 1, success)
    return np.where(count <= 0, 1.0, np.where(count > trials, 0.0, tail))


def _largest(refuted: Callable[[np.ndarray], np.ndarray], low: np.ndarray) -> Any:
    """Return the largest refuted value, by bisection: the lower end of the last bracket."""
    high = low + 1.0
    while (beyond := refuted(high)).any():
        low, high = np.where(beyond, high, low), np.where(beyond, 2 * high, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = refuted(middle)
        low, high = np.where(found, middle, low), np.where(found, high, middle)
    return low.item() if low.ndim == 0 else low


def require_guesses(right: ArrayLike, guesses: ArrayLike, canaries: int) -> None:
    """Raise Refusal if the counts are impossible."""
    require_at_least("canaries", canaries, 1)
    for name, values, low, high in (("guesses", guesses, 1, canaries), ("right", right, 0, guesses)):
        values, high = np.broadcast_arrays(values, high)
        bad = (values < low) | (values > high)
        if values.dtype.kind not in "iu":
            raise Refusal(f"{name} must be an integer, got {values.flat[0]}")
        if bad.any():
            raise Refusal(f"{name} must be between {low} and {high[bad][0]}, got {values[bad][0]}")


@dataclass(frozen=True)
class OneRunBounds(PrivacyBounds):
    """Lower bounds from the correct guesses on one run's canaries.

    Attributes:
        right: number of correct guesses.
        guesses: number of guessed canaries.
        canaries: number of canaries.
    """

    right: int
    guesses: int
    canaries: int


def one_run_bounds(
    scores: ArrayLike, included: ArrayLike, guesses: int, delta: float, level: float = 0.05
) -> OneRunBounds:
    """Return both bounds from the scores of one run's canaries.

    Args:
        scores: shape [canaries], computed from the run's output without the coins; larger if a canary seems included.
        included: shape [canaries], bool results of fair and independent coins.
        guesses: number of guesses, fixed before the run (see `expected_guesses`).
        delta: inside (0, 1).
        level: probability that a bound exceeds the true value.

    Raises:
        ValueError: if scores are not finite, coins are not bool, there are more guesses than canaries, or delta or
            level is outside (0, 1).

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> found = one_run_bounds(rng.normal(2.0 * coins, 1), coins, guesses=100, delta=1e-5)
    >>> 1.0 < found.mu_lower < 2.0
    True
    """
    right, canaries = right_guesses(scores, included, guesses), np.size(scores)
    epsilon = epsilon_lower(right, guesses, canaries, delta, level)
    mu = mu_lower(right, guesses, canaries, level)
    return OneRunBounds(epsilon, mu, float(delta), float(level), right, int(guesses), canaries)


def right_guesses(scores: ArrayLike, included: ArrayLike, guesses: int) -> int:
    """Return the number of correct guesses: "in" for the largest scores, "out" for the smallest, half of them each.

    >>> right_guesses([0.3, -2.0, 5.0, 1.0], [True, False, True, True], guesses=3)
    3
    """
    scores, included = np.asarray(scores, float), np.asarray(included)
    if scores.ndim != 1 or scores.size < 1:
        raise Refusal(f"scores must be a list of numbers, got shape {list(scores.shape)}")
    if not np.isfinite(scores).all():
        raise Refusal(f"scores must be finite, got {scores[~np.isfinite(scores)][0]}")
    if included.shape != scores.shape or included.dtype != bool:
        raise Refusal(f"included must be {scores.size} flags, got {included.dtype} of shape {list(included.shape)}")
    require_guesses(0, guesses, scores.size)
    order = np.argsort(scores, kind="stable")
    said_out, said_in = order[: guesses // 2], order[scores.size - (guesses - guesses // 2) :]
    return int(included[said_in].sum() + (~included[said_out]).sum())


def expected_guesses(mu: float, canaries: int, delta: float | None = None, level: float = 0.05) -> int:
    """Return the best number of guesses for a bound, if scores are independent N(0, 1) and N(μ, 1) as claimed.

    Args:
        mu: claimed separation, above 0.
        canaries: number of canaries.
        delta: δ of `epsilon_lower`, the bound to maximise, or None to maximise `mu_lower`.
        level: level of the bound.

    Returns:
        An even number that maximises the bound on a grid. The bound is averaged over one standard deviation less and
        more than the expected number of correct guesses.

    >>> expected_guesses(1.0, 1000)
    158
    """
    require_number("mu", mu)
    if not 0 < mu < np.inf:
        raise Refusal(f"mu must be positive and finite, got {mu}")
    require_at_least("canaries", canaries, 2)
    require_between("level", level, 0, 1)
    guesses = np.unique(np.maximum(2 * np.round(canaries * _FRACTIONS / 2), 2).astype(int))
    guesses = guesses[guesses <= canaries]
    accuracy = np.array([_accuracy(mu, part) for part in guesses / canaries])
    spread = np.sqrt(guesses * accuracy * (1 - accuracy))
    ends = [np.clip(np.floor(guesses * accuracy + side * spread), 0, guesses).astype(int) for side in (-1, 1)]
    if delta is None:
        bounds = [mu_lower(end, guesses, canaries, level) for end in ends]
    else:
        bounds = [
            [epsilon_lower(*pair, canaries, delta, level) for pair in zip(end, guesses, strict=True)] for end in ends
        ]
    return int(guesses[np.argmax(np.sum(bounds, axis=0))])


def _accuracy(mu: float, fraction: float) -> float:
    """Return the accuracy of guesses on `fraction` of an equal mixture of N(0, 1) and N(μ, 1), the extremes first."""
    low, high = mu / 2 - 40, mu / 2 + 40
    for _ in range(60):
        threshold = (low + high) / 2
        low, high = (threshold, high) if ndtr(-threshold) + ndtr(mu - threshold) > fraction else (low, threshold)
    return float(ndtr(mu - low) / fraction)
