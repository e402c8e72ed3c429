"""Privacy in the shuffle model: a trusted shuffler hides the senders of one-record noisy gradients.

Theorem 4.1 of Lowy & Razaviyayn, ICLR 2023, states the noise up to an unspecified constant. This module evaluates the
steps of its proof with explicit constants. With z = σ/L, cohorts of M machines with n records each, and T rounds:

    local       a message is (ε₀, δ₀)-DP, the Gaussian mechanism at sensitivity 2L
    shuffled    ε₁ = ln[1 + tanh(ε₀/2)·(8√(e^{ε₀}·ln(4/δ'))/√M + 8e^{ε₀}/M)],  δ₁ = δ' + (e^{ε₁}+1)(1+e^{−ε₀}/2)·M·δ₀
    sampled     ε₂ = ln(1 + q(e^{ε₁} − 1)),  δ₂ = q·δ₁
    composed    the optimal composition of T mechanisms that are (ε₂, δ₂)-DP

If participation is public, q = 1/n and T counts the machine's own rounds. If it is secret, q = M/(nN) and T = R.

With explicit constants, shuffling saves little noise below 10⁵ machines per round. For n = 10, T = 100, ε = 1 and
δ = 10⁻⁶, z is 9.2 unshuffled, 6.9 at M = 10⁵ and 3.9 at M = 10⁶.
"""

from functools import cache
from math import exp, inf, log, log1p, sqrt, tanh

from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.plan.samplers import Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.noise_search import search_min_noise
from fedprivjax.privacy.accountants.sampled import SampledReleases, require_known, sampled_epsilon

SHARES = (0.02, 0.1, 0.3)  # fractions of δ spent on each of shuffling's two parts; the best is used
LARGEST = 20.0  # upper end of the search for ε₀, far above any that shuffling amplifies
GRID = 8  # grid points per ε₂ of the composed loss


def shuffling(epsilon: float, failure: float, per_round: int, records: int = 1) -> float:
    """Return ε₁ of a round's shuffled messages, each (ε₀, ·)-DP on its own, or inf if the theorem does not apply.

    It applies for `nε₀ ≤ ln(M/(16·ln(2/δ')))`, where n is the number of records that one message depends on.

    Args:
        epsilon: ε₀.
        failure: δ'.
        per_round: M, number of messages.
        records: n.

    Source: Feldman, McMillan & Talwar 2021, Theorem 3.8.

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
    return min(in_sight, *(_composed(noise_multiplier, rate, per_round, rounds, delta, share) for share in SHARES))


@cache
def shuffled_noise_multiplier(epsilon: float, *, records: int, per_round: int, rounds: int, delta: float) -> float:
    """Return the smallest z (from above) whose `shuffled_epsilon` is at most ε, for public participation.

    >>> settings = {"records": 100, "per_round": 100_000, "rounds": 1000, "delta": 1e-6}
    >>> 0.99 < shuffled_epsilon(shuffled_noise_multiplier(1.0, **settings), **settings) <= 1.0
    True
    """
    require_positive("epsilon", epsilon)
    settings = {"records": records, "per_round": per_round, "rounds": rounds, "delta": delta}
    return require_known(search_min_noise(lambda z: shuffled_epsilon(z, **settings), epsilon, 1.0), epsilon)


def _composed(z: float, rate: float, per_round: int, rounds: int, delta: float, share: float) -> float:
    """Return ε after all rounds, with the fraction `share` of δ for each of δ' and the local δ₀, or inf if too little.

    It is inf if no ε₀ up to `LARGEST` meets these fractions.
    """
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    part = share * delta / (rounds * rate)

    def spill(epsilon: float, shuffled: float) -> float:
        local = float(gdp.delta(epsilon, 2 / z))
        return (exp(shuffled) + 1) * (1 + exp(-epsilon) / 2) * per_round * local

    low, high = 0.0, LARGEST
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        allowed = spill(middle, min(middle, shuffling(middle, part, per_round))) <= part
        low, high = (low, middle) if allowed else (middle, high)
    shuffled = shuffling(high, part, per_round)
    if shuffled == inf or spill(high, shuffled) > 2 * part:
        return inf
    sampled = log1p(rate * (exp(shuffled) - 1))
    one = privacy_loss_distribution.from_privacy_parameters(
        DifferentialPrivacyParameters(sampled, rate * (part + spill(high, shuffled))),
        value_discretization_interval=sampled / GRID,
    )
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))
