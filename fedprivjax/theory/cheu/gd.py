"""P_GD: projected gradient descent with every user in every round, averaged over iterates (Algorithm 5, Theorem 4.9).

`round_noise` is C_r, the noise constant of one round's sum at its part of the privacy budget: `T·C` in the Gaussian
limit. The T sums of a user compose, so C_r grows with the rounds, unlike C in the one-pass methods. Rounds, step and
envelopes are those of the explicit bound, or those of the paper.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, plain, positive, probability
from fedprivjax.theory.cheu.agd import geometric_counts
from fedprivjax.theory.cheu.noise import paper_noise_constant
from fedprivjax.theory.cheu.one_pass import first_distance, strong_phase_count

RoundNoise = float | Callable[[int], float]  # C of a single release, or a function from T to C_r


def gd_bound(
    *,
    users: ArrayLike,
    rounds: ArrayLike,
    step: ArrayLike,
    distance: ArrayLike,
    lipschitz: ArrayLike,
    round_noise: ArrayLike,
    smoothness: ArrayLike,
    envelope: bool = True,
    generalization: bool = True,
) -> Any:
    """Bound on the expected excess population loss of gradient descent with all users in every round.

    Args:
        users: n, number of users.
        rounds: T, number of rounds.
        step: η, step size; at most 2/β.
        distance: D, bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        round_noise: C_r = E‖Z‖²/L², where Z is the noise vector that is added to one round's sum of gradients.
        smoothness: β, smoothness of the loss, or of its Moreau envelopes (smooth lower approximations).
        envelope: False for a smooth loss. The bound then has no term L²/(2β).
        generalization: False omits the term L²Tη/n. The bound is then on the excess empirical loss.

    Returns:
        `D²/(2ηT) + (η/2)·L²(1 + C_r/n²) + L²Tη/n + L²/(2β)`. The third term is proved by uniform stability, except for
        noise from rounding, which depends on the data.

    Raises:
        Refusal: if η > 2/β.

    Source: Cheu et al. 2022, Lemmas B.4 and B.5, proof of Theorem 4.9. Constants are explicit.

    >>> gd_bound(users=100, rounds=25, step=0.25, distance=1.0, lipschitz=1.0, round_noise=1e4, smoothness=4.0)
    0.5175
    """
    n, t, eta = at_least_one("users", users), at_least_one("rounds", rounds), positive("step", step)
    beta, squared = positive("smoothness", smoothness), positive("lipschitz", lipschitz) ** 2
    wrong = eta * beta > 2 * (1 + 1e-9)
    if wrong.any():
        raise Refusal(f"step must be at most 2/smoothness, got step·smoothness = {(eta * beta)[wrong].flat[0]:.6g}")
    descent = positive("distance", distance) ** 2 / (2 * eta * t)
    noisy = eta / 2 * (1 + nonnegative("round_noise", round_noise) / n**2)
    stable = t * eta / n if generalization else 0.0
    smoothing = 1 / (2 * beta) if envelope else 0.0
    return plain(descent + squared * (noisy + stable + smoothing))


def gd_step(
    *,
    users: ArrayLike,
    rounds: ArrayLike,
    distance: ArrayLike,
    lipschitz: ArrayLike,
    round_noise: ArrayLike,
    smoothness: ArrayLike | None = None,
    generalization: bool = True,
) -> Any:
    """Step size η that minimises `gd_bound`, the bound for gradient descent with all users in every round.

    If the loss is not smooth, gradient descent uses a Moreau envelope (`Moreau`) of smoothness 2/η.

    Args:
        users: n, number of users.
        rounds: T, number of rounds.
        distance: D, bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        round_noise: C_r = E‖Z‖²/L² for the noise vector Z in a round's sum of gradients.
        smoothness: β, smoothness of the loss, or None to use an envelope.
        generalization: True for the excess population loss, False for the excess empirical loss.

    Returns:
        The step size depends on the loss.

        * for an envelope: `η = D/(L·√(T·(1 + C_r/n² + 2T/n + 1/2)))`;
        * for a smooth loss: `η = min{D/(L·√(T·(1 + C_r/n² + 2T/n))), 2/β}`.

        If `generalization` is False, the term 2T/n is omitted.

    Source: derived here, by minimising `gd_bound`. The paper's `η = D/(L√T)` is of the same order.

    >>> round(gd_step(users=100, rounds=25, distance=1.0, lipschitz=1.0, round_noise=1e4), 6)
    0.11547
    """
    n, t = at_least_one("users", users), at_least_one("rounds", rounds)
    terms = 1 + nonnegative("round_noise", round_noise) / n**2 + (2 * t / n if generalization else 0.0)
    if smoothness is None:
        terms = terms + 0.5
    best = positive("distance", distance) / (positive("lipschitz", lipschitz) * np.sqrt(t * terms))
    return plain(best if smoothness is None else np.minimum(best, 2 / positive("smoothness", smoothness)))


class Descent(NamedTuple):
    """Settings of gradient descent with all users in every round, and a bound on its expected excess loss.

    * `users`: number of users;
    * `rounds`: number of rounds;
    * `step`: step size;
    * `smoothness`: smoothness of the loss, or of its Moreau envelope (a smooth lower approximation of the loss);
    * `round_noise`: E‖Z‖²/L² for the noise vector Z in one round's sum of gradients, and the Lipschitz constant L of
      the loss;
    * `distance`: bound on the distance from the start to the minimum (root mean square for a random start);
    * `bound`: bound on the expected excess loss (`gd_bound`).
    """

    users: int
    rounds: int
    step: float
    smoothness: float
    round_noise: float
    distance: float
    bound: float


def gd_scan(
    *,
    users: int,
    distance: float,
    lipschitz: float,
    noise: RoundNoise,
    smoothness: float | None = None,
    max_rounds: int | None = None,
    tolerance: float = 0.1,
    generalization: bool = True,
) -> Descent:
    """Settings of gradient descent with the fewest rounds for which the bound is nearly the smallest.

    The bound is on the expected excess loss (`gd_bound`). Evaluated numbers of rounds are a factor of about 2^{1/4}
    apart.

    Args:
        users: number of users, all in every round.
        distance: bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        noise: E‖Z‖²/L², where Z is the noise vector that is added to one round's sum of gradients. Give a number or a
            function:

            * a number: E‖Z‖²/L² for a single round. If T rounds share the privacy budget, E‖Z‖²/L² is taken to be T
              times this number. The factor T is exact for Gaussian noise.
            * a function, for other noise, from the number of rounds to E‖Z‖²/L² of each round.
        smoothness: smoothness of a smooth loss, or None to use Moreau envelopes.
        max_rounds: upper limit of the rounds, or None for the number of users.
        tolerance: a bound is nearly the smallest if it is at most (1 + `tolerance`) times the smallest evaluated bound.
        generalization: False for a bound on the excess empirical loss instead of the excess population loss.

    Returns:
        A `Descent`.

    Source: derived here, by minimising the bound in the proof of Cheu et al. 2022, Theorem 4.9. Constants are explicit.

    >>> gd_scan(users=1000, distance=1.0, lipschitz=1.0, noise=1e4, max_rounds=256)[:2]
    (1000, 181)
    """
    counts(users=users)
    tolerance = one(nonnegative, "tolerance", tolerance)
    tried = geometric_counts(users if max_rounds is None else max_rounds)
    known = {"users": users, "distance": distance, "lipschitz": lipschitz, "generalization": generalization}

    def descent(rounds: int) -> Descent:
        constant = one(nonnegative, "noise", noise(rounds) if callable(noise) else rounds * noise)
        settings = {**known, "rounds": rounds, "round_noise": constant}
        step = gd_step(smoothness=smoothness, **settings)
        beta = 2 / step if smoothness is None else smoothness
        bound = gd_bound(step=step, smoothness=beta, envelope=smoothness is None, **settings)
        return Descent(users, rounds, step, beta, constant, distance, bound)

    every = [descent(int(rounds)) for rounds in tried]
    enough = (1 + tolerance) * min(each.bound for each in every)
    return next(each for each in every if each.bound <= enough)


def gd_groups(users: int) -> list[int]:
    """Sizes of the disjoint groups of users for gradient descent on a strongly convex loss (`gd_phases`).

    Gradient descent runs on one group after the other, and starts at the output for the previous group. Users in no
    group are not used. For large n, at least about half of the users are in a group.

    Args:
        users: n, number of users.

    Returns:
        `⌊2^{i−2}·n/log₂ n⌋`, at least 1, for i = 1, …, ⌈log₂ log₂ n⌉.

    Source: Feldman, Koren & Talwar 2020, Theorem 5.1, as used by Cheu et al. 2022, Theorem 4.9.

    >>> gd_groups(1000)
    [50, 100, 200, 401]
    """
    counts(users=users)
    share = users / max(1.0, np.log2(users))
    return [max(1, int(2.0 ** (i - 2) * share)) for i in range(1, strong_phase_count(users) + 1)]


def gd_phases(
    *,
    users: int,
    diameter: float,
    lipschitz: float,
    strong_convexity: float,
    noise: RoundNoise,
    smoothness: float | None = None,
    max_rounds: int | None = None,
    tolerance: float = 0.1,
    generalization: bool = True,
) -> list[Descent]:
    """Settings of gradient descent on successive disjoint groups of users, for strongly convex losses.

    On each group, gradient descent starts at the output for the previous group. Each group may spend the whole privacy
    budget, because no user is in two groups.

    The settings for group j depend on D_j, a bound on the distance from the start for this group to the minimum:

    * `D_1 = min(D, 2L/λ)`;
    * `D_{j+1} = min(D_j, √(2Δ_j/λ))`, where Δ_j is the bound on the excess loss after group j.

    Args:
        users: number of all users. `gd_groups` splits them into groups.
        diameter: D, diameter of the constraint set, or a bound on the distance from the first start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        strong_convexity: λ, strong convexity of the loss.
        noise: E‖Z‖²/L² for the noise vector Z in a group's sum of gradients (`gd_scan`).
        smoothness: smoothness of a smooth loss, or None to use Moreau envelopes.
        max_rounds: largest number of rounds of each group, or None for the number of users in the group.
        tolerance: as in `gd_scan`.
        generalization: False for bounds on the excess empirical loss instead of the excess population loss.

    Returns:
        One `Descent` per group j. Its `distance` is D_j, and its `bound` is Δ_j.

    Source: Cheu et al. 2022, Theorem 4.9 and Lemma B.7, with explicit constants.

    >>> problem = {"diameter": 2.0, "lipschitz": 1.0, "strong_convexity": 1.0, "noise": 100.0, "max_rounds": 100}
    >>> [(g.users, round(g.distance, 3)) for g in gd_phases(users=1000, **problem)]
    [(50, 2.0), (100, 1.16), (200, 0.732), (401, 0.513)]
    """
    distance, modulus = first_distance(diameter, lipschitz, strong_convexity)
    problem = {"lipschitz": lipschitz, "noise": noise, "smoothness": smoothness, "max_rounds": max_rounds}
    settings = {"tolerance": tolerance, "generalization": generalization}
    phases = []
    for group in gd_groups(users):
        phases.append(gd_scan(users=group, distance=distance, **problem, **settings))
        distance = min(distance, (2 * phases[-1].bound / modulus) ** 0.5)
    return phases


def gd_paper_rounds(*, users: int, dimension: int, epsilon: float, delta: float, printed: bool = False) -> int:
    """Number of rounds of gradient descent with all users in every round, by the paper's formula.

    Args:
        users: n, number of users.
        dimension: d, number of parameters.
        epsilon: ε of the whole run.
        delta: δ of the whole run.
        printed: True uses the paper's K² instead of K³ in the formula below. With K², the method does not have the rate
            that the paper states.

    Returns:
        `T = min(n, ε²n²/(d·K³))` with `K = ln(nd/δ)`, at least 1.

    Source: Cheu et al. 2022, Lemma B.6, corrected.

    >>> gd_paper_rounds(users=10**5, dimension=100, epsilon=0.1, delta=1e-6)
    37
    """
    counts(users=users, dimension=dimension)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    log = np.log(users * dimension / delta)
    return max(1, int(min(users, (epsilon * users) ** 2 / (dimension * log ** (2 if printed else 3)))))


def gd_paper_budget(*, epsilon: float, delta: float, rounds: int) -> tuple[float, float]:
    """Privacy budget of one round of gradient descent in the paper: ε and δ of the round.

    If ε and δ are large, the rounds together can exceed the budget of the run. Check the run with an accountant.

    Args:
        epsilon: ε of the whole run.
        delta: δ of the whole run.
        rounds: T, number of rounds.

    Returns:
        `ε/(2√(2T·ln(1/δ)))` and `δ/(T + 1)`.

    Source: Cheu et al. 2022, Algorithm 5.

    >>> [round(share, 9) for share in gd_paper_budget(epsilon=1.0, delta=1e-6, rounds=99)]
    [0.009559913, 1e-08]
    """
    counts(rounds=rounds)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    return float(epsilon / (2 * np.sqrt(2 * rounds * np.log(1 / delta)))), delta / (rounds + 1)


def gd_paper(
    *,
    users: int,
    dimension: int,
    epsilon: float,
    delta: float,
    diameter: float,
    lipschitz: float,
    rounds: int | None = None,
) -> Descent:
    """Settings of gradient descent with all users in every round, by the paper's formulas.

    The loss need not be smooth. Gradient descent uses the gradients of a Moreau envelope (`Moreau`).

    Args:
        users: number of users.
        dimension: number of parameters.
        epsilon: ε of the whole run.
        delta: δ of the whole run.
        diameter: D, bound on the distance from the start to the minimum.
        lipschitz: L, Lipschitz constant of the loss.
        rounds: T, number of rounds, or None for `gd_paper_rounds`.

    Returns:
        A `Descent`. Its `step` is `D/(L√T)`. Its `smoothness` is `L√T/D`, the smoothness of the Moreau envelope. Its
        `round_noise` is from `paper_noise_constant`, at the budget of one round (`gd_paper_budget`).

    Source: Cheu et al. 2022, Algorithm 5 and Theorem 4.9.

    >>> settings = gd_paper(users=10**5, dimension=100, epsilon=0.1, delta=1e-6, diameter=2.0, lipschitz=1.0)
    >>> settings.rounds, round(settings.step, 3), round(settings.smoothness, 3)
    (37, 0.329, 3.041)
    """
    if rounds is None:
        rounds = gd_paper_rounds(users=users, dimension=dimension, epsilon=epsilon, delta=delta)
    budget = gd_paper_budget(epsilon=epsilon, delta=delta, rounds=rounds)
    noise = paper_noise_constant(*budget, dimension, users)
    diameter, lipschitz = one(positive, "diameter", diameter), one(positive, "lipschitz", lipschitz)
    step = float(diameter / (lipschitz * np.sqrt(rounds)))
    problem = {"users": users, "rounds": rounds, "distance": diameter, "lipschitz": lipschitz, "round_noise": noise}
    return Descent(users, rounds, step, 1 / step, noise, diameter, gd_bound(step=step, smoothness=1 / step, **problem))
