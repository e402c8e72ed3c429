"""The rounds, step and envelopes of P_GD, by its explicit bound or by the paper (Theorem 4.9)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedprivjax.theory._numbers import counts, nonnegative, one, positive, probability
from fedprivjax.theory.cheu.batches import geometric_counts
from fedprivjax.theory.cheu.gd import gd_bound, gd_step
from fedprivjax.theory.cheu.noise import paper_noise_constant
from fedprivjax.theory.cheu.strong import strong_phase_count

RoundNoise = float | Callable[[int], float]  # C of one release, or C_r as a function of the rounds


class Descent(NamedTuple):
    """One run of P_GD: how it is set, and the bound on the expected excess loss of its output.

    `round_noise` is C_r, `smoothness` β of the envelopes or the loss, `distance` the bound on the (root mean square)
    distance from the start to the minimum that the step is set for.
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
    most_rounds: int | None = None,
    tolerance: float = 0.1,
    generalization: bool = True,
) -> Descent:
    """The fewest rounds whose bound is near the least that is to be had, with their best step and envelopes.

    The bound of the best step falls with the rounds towards `L·D·√(C/n² + 2/n)`, so the cost is what limits T. Counts
    of rounds a factor 2^{1/4} apart are tried.

    Args:
        users: n, all of them in every round.
        distance: D, from the start to the minimum at most.
        noise: C of a single release at the whole budget, then `C_r = T·C` (the Gaussian limit); or C_r as a function
            of T (an exact accountant's).
        smoothness: β of a smooth loss; None takes Moreau envelopes with β = 2/η.
        most_rounds: T at most; None takes n.
        tolerance: a bound this much above the least tried is near.
        generalization: as in `gd_bound`.

    Source: ours, minimising the bound in the proof of Cheu et al. 2022, Theorem 4.9. Explicit.

    >>> gd_scan(users=1000, distance=1.0, lipschitz=1.0, noise=1e4, most_rounds=256)[:2]
    (1000, 181)
    """
    counts(users=users)
    tolerance = one(nonnegative, "tolerance", tolerance)
    tried = geometric_counts(users if most_rounds is None else most_rounds)
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
    """The groups for strongly convex losses: `n_i = ⌊2^{i−2}·n/log₂ n⌋`, i = 1..⌈log₂ log₂ n⌉, at least one user each.

    They hold two thirds to all of the users.

    Source: Feldman, Koren & Talwar 2020, Theorem 5.1, which Cheu et al. 2022 take over (Theorem 4.9).

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
    most_rounds: int | None = None,
    tolerance: float = 0.1,
    generalization: bool = True,
) -> list[Descent]:
    """Strongly convex losses: P_GD on disjoint groups, each from the last one's output.

    `D_1 = min(D, 2L/λ)`, Δ_i the bound of group i, `D_{i+1} = min(D_i, √(2Δ_i/λ))`. The last group's bound is the
    method's; every group has the whole budget.

    Args: as in `gd_scan` (`most_rounds` for each group), and

        diameter: D, of the constraint set (or a bound on the first distance).
        strong_convexity: λ.

    Source: Cheu et al. 2022, Theorem 4.9 and Lemma B.7, with explicit constants.

    >>> problem = {"diameter": 2.0, "lipschitz": 1.0, "strong_convexity": 1.0, "noise": 100.0, "most_rounds": 100}
    >>> [(g.users, round(g.distance, 3)) for g in gd_phases(users=1000, **problem)]
    [(50, 2.0), (100, 1.16), (200, 0.732), (401, 0.513)]
    """
    modulus = one(positive, "strong_convexity", strong_convexity)
    distance = min(one(positive, "diameter", diameter), 2 * one(positive, "lipschitz", lipschitz) / modulus)
    problem = {"lipschitz": lipschitz, "noise": noise, "smoothness": smoothness, "most_rounds": most_rounds}
    phases = []
    for group in gd_groups(users):
        settings = {"distance": distance, "tolerance": tolerance, "generalization": generalization}
        phases.append(gd_scan(users=group, **problem, **settings))
        distance = min(distance, (2 * phases[-1].bound / modulus) ** 0.5)
    return phases


def gd_paper_rounds(*, users: int, dimension: int, epsilon: float, delta: float, printed: bool = False) -> int:
    """The paper's rounds: `T = min(n, ε²n²/(d·K³))` with `K = ln(nd/δ)`, at least 1.

    Args:
        printed: K² in place of K³, as the paper prints it; it does not give the rate that the paper states.

    Source: Cheu et al. 2022, Lemma B.6, corrected.

    >>> gd_paper_rounds(users=10**5, dimension=100, epsilon=0.1, delta=1e-6)
    37
    """
    counts(users=users, dimension=dimension)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    log = np.log(users * dimension / delta)
    return max(1, int(min(users, (epsilon * users) ** 2 / (dimension * log ** (2 if printed else 3)))))


def gd_paper_budget(*, epsilon: float, delta: float, rounds: int) -> tuple[float, float]:
    """The paper's share of a round: `ε_r = ε/(2√(2T·ln(1/δ)))`, `δ_r = δ/(T + 1)`.

    That T of them compose to (ε, δ) is for the accountant to assert: for large ε and δ they do not.

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
    """The paper's rounds, step `η = D/(L√T)`, envelopes `β = L√T/D` and constants, with the bound that they have.

    Args:
        rounds: T in place of `gd_paper_rounds`.

    Source: Cheu et al. 2022, Algorithm 5 and Theorem 4.9.

    >>> gd_paper(users=10**5, dimension=100, epsilon=0.1, delta=1e-6, diameter=2.0, lipschitz=1.0)[:4]
    (100000, 37, 0.3287..., 3.0413...)
    """
    if rounds is None:
        rounds = gd_paper_rounds(users=users, dimension=dimension, epsilon=epsilon, delta=delta)
    budget = gd_paper_budget(epsilon=epsilon, delta=delta, rounds=rounds)
    noise = paper_noise_constant(*budget, dimension, users)
    diameter, lipschitz = one(positive, "diameter", diameter), one(positive, "lipschitz", lipschitz)
    step = float(diameter / (lipschitz * np.sqrt(rounds)))
    problem = {"users": users, "rounds": rounds, "distance": diameter, "lipschitz": lipschitz, "round_noise": noise}
    return Descent(users, rounds, step, 1 / step, noise, diameter, gd_bound(step=step, smoothness=1 / step, **problem))
