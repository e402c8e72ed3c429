"""Privacy of rounds of one-record Gaussian messages behind a shuffler, for one record of one machine.

A trusted shuffler hides the senders of a round's messages. M machines with n records each send `N(x, σ²I)`, ‖x‖ ≤ L,
for one of their records each. P_0 and P_1 are the distributions of one message for a record and its replacement, and
P_i is that of another message. They are (ε₀, δ₀)-DP for the sensitivity 2L, for every ε₀ with its δ₀. With λ = e^{ε₀}:

* *Clones* (Feldman, McMillan & Talwar 2021, Theorem 3.2). If P_0 and P_1 are within the factor λ of each other, then
  P_b = (λ·Q_b + Q_{1−b})/(λ + 1) with P_0 + P_1 = Q_0 + Q_1. If also P_i ≥ (P_0 + P_1)/(2λ), another message is a
  clone, Q_0 or Q_1, with probability 1/(2λ) each. Shuffled messages then reveal no more than the numbers of Q_0 and
  Q_1: with C ~ Bin(M − 1, 1/λ), A ~ Bin(C, ½) and Δ ~ Ber(λ/(λ + 1)), the pair (A + Δ, C) and (A + 1 − Δ, C).
* *Tails.* Gaussians violate both conditions where their loss exceeds ε₀. Clip P_0/P_1 to [1/λ, λ] at equal P_0 + P_1:
  by symmetry, this moves δ₀/(λ + 1) of each. Raise P_i to (P_0 + P_1)/(2λ) where it is below: this moves at most
  ∫((P_0 + P_1)/(2λ) − P_i)₊ ≤ δ₀/λ. So the messages are within η = δ₀·((M − 1)/λ + 1/(λ + 1)) of those of clones in
  total variation, and their profile is at most δ_clones(ε) + (1 + e^ε)·η. Feldman, McMillan & Talwar 2021, Theorem 3.8,
  state (1 + e^ε)·(1 + 1/(2λ))·M·δ₀ for all (ε₀, δ₀)-DP messages.
* *Sampling.* A record is sampled with probability q: δ at ln(1 + q·(e^ε − 1)) is q times the round's δ at ε. If
  participation is public, q = 1/n and T counts the machine's own rounds. If it is secret, q = M/(nN) and T = R.
* *Rounds.* Pairs (ε, δ) of a round, for several ε₀, bound its profile. T such profiles are composed (`composition`).

Messages may be chosen from all earlier rounds: the bounds hold for any records of all other machines.
"""

from functools import cache
from math import exp, inf, log, log1p, sqrt, tanh

import numpy as np
import scipy

from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.plan.samplers import Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.composition import composed, epsilon_between, ladder, loss_of_profile
from fedprivjax.privacy.accountants.sampled import SampledReleases, require_known, sampled_epsilon
from fedprivjax.privacy.target import search_min_noise

LOCAL = np.geomspace(1e-3, 30, 2000)  # candidates of ε₀
LEVELS = 24  # values of ε₀ that are evaluated, by their η
SMALLEST, MOST = 1e-5, 0.1  # the least η, as a part of δ per use of the record, and the largest
LOSSES = np.linspace(0, 10, 31)  # values of ε, in units of a typical loss
BLOCKS = 128  # of the numbers of clones
SPACING = 0.2  # of losses, in units of the smallest point above 0
CELLS = 200_000  # largest number of cells of a loss
ROUNDED, NEGLIGIBLE = 1e-12, 1e-15  # relative and absolute allowance for rounding in binomial tails


def clone_delta(epsilon: np.ndarray, local: float, machines: int) -> np.ndarray:
    """Return an upper bound on δ at each ε of shuffled messages that are ε₀-DP each; float64, shape of ε.

    Fewer clones are less privacy. So the number of clones is rounded down to the first of its block.

    Args:
        epsilon: ε ≥ 0, shape [points].
        local: ε₀ > 0.
        machines: M, number of messages.

    >>> clone_delta(np.array([0.0, 0.5]), 1.0, 1).round(4).tolist()  # nobody else: δ of randomised response
    [0.4621, 0.2876]
    """
    factor, others = exp(local), machines - 1
    mean = others / factor
    reach = 9 * sqrt(mean * (1 - 1 / factor))
    clones = np.union1d(0, np.clip(np.rint(mean + np.linspace(-reach, reach, BLOCKS)).astype(int), 0, others))
    below = np.where(clones > 0, scipy.special.bdtr(np.maximum(clones - 1, 0), others, 1 / factor), 0.0)
    chances = np.diff(np.append(below, 1.0))
    ratio = np.exp(np.minimum(epsilon, local))
    share = (factor * ratio - 1) / ((factor - 1) * (1 + ratio))  # of clones, from which P > e^ε·Q
    total = clones[:, None]
    least = np.minimum(np.floor((total + 1) * share), total)
    own, other = scipy.special.bdtrc(least - 1, total, 0.5), scipy.special.bdtrc(least, total, 0.5)
    first, second = (factor * own + other) / (factor + 1), (own + factor * other) / (factor + 1)
    gaps = np.maximum(first - ratio * second, 0) + ROUNDED * first
    return np.where(np.asarray(epsilon) < local, chances @ gaps, 0.0) + NEGLIGIBLE


def round_profile(noise_multiplier: float, machines: int, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Return ε and upper bounds on δ of one round's shuffled messages, float64 [points] each.

    The last points are those of visible messages, with smaller δ than is known of shuffled ones.

    Args:
        noise_multiplier: z = σ/L.
        machines: M, number of messages.
        least: smallest η, from which ε₀ is chosen.

    >>> epsilons, deltas = round_profile(2.0, 10**5, 1e-12)
    >>> bool(np.min(deltas[epsilons > 0.1]) < 1e-9 < gdp.delta(0.1, 2 / 2.0))
    True
    """
    tails = gdp.delta(LOCAL, 2 / noise_multiplier)
    moved = tails * ((machines - 1) * np.exp(-LOCAL) + 1 / (np.exp(LOCAL) + 1)) + NEGLIGIBLE * least
    chosen = np.searchsorted(-moved, -np.geomspace(least, MOST, LEVELS))
    chosen = np.unique(chosen[chosen < LOCAL.size])
    local, moved = LOCAL[chosen], moved[chosen]
    typical = 2 * np.tanh(local / 2) / np.sqrt((machines - 1) * np.exp(-local) + 1)
    epsilons = np.minimum(LOSSES * typical[:, None], local[:, None])
    clones = np.array([clone_delta(row, one, machines) for row, one in zip(epsilons, local, strict=True)])
    deltas = clones + (1 + np.exp(epsilons)) * moved[:, None]
    rest = ladder(least)
    rest = rest[rest < np.min(deltas, initial=1.0)]
    in_sight = gdp.epsilon(2 / noise_multiplier, rest)
    return np.append(epsilons, in_sight), np.append(deltas, rest)


def shuffling(epsilon: float, failure: float, per_round: int, records: int = 1) -> float:
    """Return ε₁ of a round's shuffled messages, each of which alone is (ε₀, δ₀)-DP; inf if unknown.

        ε₁ = ln(1 + tanh(ε₀/2)·(8·√(e^{n·ε₀}·ln(4/δ')/M) + 8·e^{n·ε₀}/M))

    This holds if `n·ε₀ ≤ ln(M/(16·ln(2/δ')))`. Otherwise the result is inf. The shuffled messages are (ε₁, δ₁)-DP with
    `δ₁ = δ' + (e^{ε₁} + 1)·2·M·n·e^{(n−1)·ε₀}·δ₀`. This function does not compute δ₁.

    Args:
        epsilon: ε₀ of one message, for replacing one record.
        failure: δ' in (0, 1), which can be chosen freely.
        per_round: M, number of messages of the round.
        records: n, number of records on which one message depends.

    Source: Lowy & Razaviyayn 2023, Theorem F.2, after Feldman, McMillan & Talwar 2021, Theorem 3.8.

    >>> shuffling(0.5, 1e-6, 10**6) < 0.02
    True
    """
    if failure >= 1 or epsilon > log(per_round / (16 * log(2 / failure))) / records:
        return inf
    whole = exp(records * epsilon)
    return log1p(tanh(epsilon / 2) * (8 * sqrt(whole * log(4 / failure) / per_round) + 8 * whole / per_round))


@cache
def shuffled_epsilon(
    noise_multiplier: float,
    *,
    records: int,
    per_round: int,
    rounds: int,
    delta: float,
    machines: int | None = None,
) -> float:
    """Return an upper bound on ε at δ of `rounds` shuffled rounds, for replacing one record of one machine.

    It is never above the bound with visible senders, because shuffling is post-processing.

    Args:
        noise_multiplier: z = σ/L. A message is one record's gradient plus N(0, σ²) per coordinate.
        records: number of records of every machine, n. One of them is sampled uniformly for each message.
        per_round: number of machines in a round, M.
        rounds: number of rounds in which the machine takes part, or of all rounds if participation is secret.
        delta: δ in (0, 1).
        machines: number of machines, N, if participation is secret, or None if it is public.

    Raises:
        ValueError: if a setting is out of range.

    >>> settings = {"records": 100, "rounds": 1000, "delta": 1e-6}
    >>> shuffled_epsilon(4.0, per_round=10**6, **settings) < shuffled_epsilon(4.0, per_round=2, **settings) / 2
    True
    """
    require_positive("noise_multiplier", noise_multiplier)
    for name, value in (("records", records), ("per_round", per_round), ("rounds", rounds)):
        require_at_least(name, value, 1)
    require_between("delta", delta, 0, 1)
    rate = 1 / records
    if machines is not None:
        require_at_least("machines", machines, per_round)
        rate *= per_round / machines
    in_sight = sampled_epsilon(noise_multiplier, SampledReleases(Subset(1), records, rounds, delta))
    return in_sight if per_round == 1 else min(in_sight, _composed(noise_multiplier, rate, per_round, rounds, delta))


@cache
def shuffled_noise_multiplier(epsilon: float, *, records: int, per_round: int, rounds: int, delta: float) -> float:
    """Return the smallest z (from above) whose `shuffled_epsilon` is at most ε, for public participation.

    >>> settings = {"records": 10, "rounds": 100, "delta": 1e-6}
    >>> [round(shuffled_noise_multiplier(1.0, per_round=machines, **settings), 2) for machines in (1, 100, 10**4)]
    [9.23, 5.94, 2.3]
    """
    require_positive("epsilon", epsilon)
    settings = {"records": records, "per_round": per_round, "rounds": rounds, "delta": delta}
    return require_known(search_min_noise(lambda z: shuffled_epsilon(z, **settings), epsilon, 1.0), epsilon)


def _composed(z: float, rate: float, per_round: int, rounds: int, delta: float) -> float:
    """Return ε after all rounds of shuffled messages, by the profile of one round, or inf if δ is too small."""
    epsilons, deltas = round_profile(z, per_round, SMALLEST * min(delta / (rounds * rate), 1))
    losses = np.log1p(rate * np.expm1(epsilons))
    last = losses[np.argmin(deltas)]  # a larger loss has at most the same δ
    kept = losses <= last
    spacing = max(SPACING * losses[losses > 0].min(), last / CELLS)
    one = loss_of_profile(losses[kept], np.minimum(rate * deltas[kept], 1.0), spacing)
    return epsilon_between(composed(one, rounds), delta)[1]
