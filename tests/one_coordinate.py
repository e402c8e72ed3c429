"""One coordinate of the binomial mechanism: its exact δ, and the claims of Cheu et al. 2022 for it and for dropouts."""

from math import log, sqrt

from fedprivjax import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.privacy.accountants.binomial import accountant, paper
from fedprivjax.privacy.accountants.binomial.paper import Bits

HONEST = 1 / 3  # smallest fraction of honest users in Claim A.8
LOSSES = ("paper", "derived")


def hockey_stick(epsilon: float, total: int, probability: float, shift: int) -> float:
    """Return δ at ε of Z ~ Binomial(m, p) compared with Z + k, the larger of both directions.

        z₁ = first z with r(z) > ε:     SF(z₁−k−1) − e^ε·SF(z₁−1)
        z₂ = first z with r(z) > −ε:    CDF(z₂−1) − e^ε·CDF(z₂−1−k)

    Args:
        epsilon: ε, at least 0.
        total: m, trials of all users.
        probability: p in (0, 1).
        shift: k, at least 0.

    Source: derived for this implementation, for the mechanism of Lemma 3.1.

    >>> round(hockey_stick(0.5, 200, 0.5, 5), 8)
    0.12379326
    """
    accountant._require(total, probability, shift)
    if not epsilon >= 0:
        raise Refusal(f"epsilon must be at least 0, got {epsilon}")
    if shift == 0:
        return 0.0
    if shift > total:
        return 1.0
    up, down = accountant._tails(total, probability, shift)
    first = accountant._first(lambda z: accountant.log_ratio(z, total, probability, shift) > epsilon, shift, total + 1)
    last = accountant._first(lambda z: accountant.log_ratio(z, total, probability, shift) >= -epsilon, shift, total + 1)
    return max(accountant._spill(epsilon, *up(first)), accountant._spill(epsilon, *down(last - 1)), 0.0)


def paper_scalar(epsilon: float, delta: float, users: int, levels: int) -> Bits:
    """Return Lemma 3.1's parameters for a sum of numbers over n users.

    Raises:
        ValueError: if ε > 15, δ ≥ 1/2, g < √n, or g < ε/2.57 (a condition that the proof uses without stating it).

    >>> paper_scalar(1.0, 1e-5, users=100, levels=10).trials
    2198
    """
    paper._require_lemma(epsilon, delta, levels)
    paper._require_levels(levels, sqrt(users), "the square root of the users")
    return paper._least_bits(epsilon, delta, users, levels)


def claimed_scalar(message: Bits, users: int, delta: float, distance: float = 1.0) -> float:
    """Return the ε that Lemma 3.1 claims for records at this distance: `ε·(2/g + |x − x'|/W)`.

    Args:
        message: a user's bits.
        users: number of users who follow the protocol, n.
        delta: δ in (0, 1/2).
        distance: |x − x'|/W in [0, 1], where 1 is the full range.

    >>> round(claimed_scalar(paper_scalar(1.0, 1e-5, 100, 10), 100, 1e-5), 6)
    1.2
    """
    if not 0 <= distance <= 1:
        raise Refusal(f"distance must be in [0, 1], got {distance}")
    epsilon = paper._lemma_epsilon(message, users, delta)
    paper._require_lemma(epsilon, delta, message.levels)
    return epsilon * (2 / message.levels + distance)


def with_dropouts(epsilon: float, delta: float, levels: int, honest: float, loss: str = "derived") -> float:
    """Return ε of a sum to which only a fraction γ of the users adds noise.

        paper      ε/γ, for ε ≤ 1, g ≥ 3 and γ ≥ 1/3 (Claim A.8)
        derived    ε/√γ, by the same lemma with a = ε/(3g√γ), for 15·√γ·ln(2/δ) ≥ ε and g ≥ ε/(2.57·√γ)

    Source: Cheu et al. 2022, Claim A.8; "derived" is derived for this implementation.

    >>> with_dropouts(1.0, 1e-6, 32, 0.5, "paper"), round(with_dropouts(1.0, 1e-6, 32, 0.5), 3)
    (2.0, 1.414)
    """
    require_choice("loss", loss, LOSSES)
    paper.require_target(epsilon, delta)
    if not 0 < honest <= 1:
        raise Refusal(f"honest must be in (0, 1], got {honest}")
    if loss == "paper":
        if epsilon > 1 or honest < HONEST:
            raise Refusal(f"epsilon must be at most 1 and honest at least 1/3 in Claim A.8, got {epsilon} and {honest}")
        require_at_least("levels", levels, 3)
        return epsilon / honest
    most = 15 * sqrt(honest) * log(2 / delta)
    if most < epsilon:
        raise Refusal(f"epsilon must be at most 15·√honest·ln(2/delta) = {most:.4g}, got {epsilon}")
    paper._require_levels(levels, epsilon / (3 * paper.STEEPEST * sqrt(honest)), "epsilon/(2.57·√honest)")
    return epsilon / sqrt(honest)
