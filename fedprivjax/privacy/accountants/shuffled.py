"""Privacy of messages whose senders a trusted shuffler hides: one record's noisy gradient from each machine.

Lowy & Razaviyayn, ICLR 2023, Theorem 4.1, states a noise with an unnamed constant. Here its proof's steps are numbers.
With z = σ/L, cohorts of M machines that own n records each, and T rounds:

    local       a message is (ε₀, δ₀)-DP, the Gaussian mechanism at sensitivity 2L
    shuffled    ε₁ = ln[1 + tanh(ε₀/2)·(8√(e^{ε₀}·ln(4/δ'))/√M + 8e^{ε₀}/M)],  δ₁ = δ' + (e^{ε₁}+1)(1+e^{−ε₀}/2)·M·δ₀
    sampled     ε₂ = ln(1 + q(e^{ε₁} − 1)),  δ₂ = q·δ₁
    composed    the optimal composition of T mechanisms that are (ε₂, δ₂)-DP

With numbers for constants, little noise is saved below 10⁵ machines a round (n = 10, T = 100, ε = 1, δ = 10⁻⁶: z is 9.2
unshuffled, 6.9 at M = 10⁵, 3.9 at M = 10⁶). Above, q = 1/n and T counts a machine's own rounds if participation
is public, and q = M/(nN), T = R if it is secret.
"""

from functools import cache
from math import exp, inf, log, log1p, sqrt, tanh

from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.plan.samplers import Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.noise_search import least_noise
from fedprivjax.privacy.accountants.sampled import require_known, sampled_epsilon

SHARES = (0.02, 0.1, 0.3)  # of δ, that shuffling may spend on each of its two parts; the best is taken
LARGEST = 20.0  # of ε₀, far above any that shuffling amplifies
GRID = 8  # places of a composed loss in ε₂


def shuffling(epsilon: float, failure: float, per_round: int, records: int = 1) -> float:
    """ε₁ of a round's shuffled messages, each (ε₀, ·)-DP by itself; inf where the theorem does not apply.

    It applies for `nε₀ ≤ ln(M/(16·ln(2/δ')))`, n the records of a machine whose whole data set a message tells of.

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
    """An upper bound on the ε of `rounds` shuffled rounds at δ, for replacing one record of one machine.

    Never above what the messages give with their senders in sight, for shuffling is post-processing.

    Args:
        noise_multiplier: z = σ/L; a message is one record's gradient plus N(0, σ²) a coordinate.
        records: n, of every machine; one of them is drawn uniformly for a message.
        per_round: M, machines in a round.
        rounds: in which the machine takes part, publicly; all rounds where participation is secret.
        machines: N, if participation is secret; None if it is public.

    Raises:
        ValueError: settings out of range.

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
    in_sight = sampled_epsilon(noise_multiplier, sampler=Subset(1), records=records, rounds=rounds, delta=delta)
    return min(in_sight, *(_composed(noise_multiplier, rate, per_round, rounds, delta, share) for share in SHARES))


@cache
def shuffled_noise_multiplier(epsilon: float, *, records: int, per_round: int, rounds: int, delta: float) -> float:
    """The least z (from above) whose `shuffled_epsilon` is at most ε, participation being public.

    >>> settings = {"records": 100, "per_round": 100_000, "rounds": 1000, "delta": 1e-6}
    >>> 0.99 < shuffled_epsilon(shuffled_noise_multiplier(1.0, **settings), **settings) <= 1.0
    True
    """
    require_positive("epsilon", epsilon)
    settings = {"records": records, "per_round": per_round, "rounds": rounds, "delta": delta}
    return require_known(least_noise(lambda z: shuffled_epsilon(z, **settings), epsilon, 1.0), epsilon)


def _composed(z: float, rate: float, per_round: int, rounds: int, delta: float, share: float) -> float:
    """ε after all rounds, with this share of δ for δ' and for the local δ₀ each; inf where nothing is amplified."""
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
