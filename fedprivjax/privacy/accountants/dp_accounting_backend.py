"""Google's dp-accounting: second accountant for Gaussian mechanisms, and its private attributes that are read.

All private attributes of dp-accounting that this package reads are read in this file.
`tests/privacy/test_dp_accounting_privates.py` fails if one of them moves or changes its meaning.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.privacy import gdp
from fedprivjax.privacy.relations import ADD_OR_REMOVE

if TYPE_CHECKING:
    from dp_accounting import ComposedDpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.privacy_accountant import NeighboringRelation

EXACT, UPPER, LOWER = "exact", "upper", "lower"
ACCOUNTANTS = {"pld": "privacy loss distributions, tight", "rdp": "Rényi divergences, an upper bound"}
MERGED = 64  # largest number of distinct noise multipliers, each of which needs a loss distribution
_GRID_PER_MU = 1e-3  # spacing of the loss grid divided by the loss's standard deviation; the error is of second order
CHECKED_VERSION = "0.6.0"  # version of dp-accounting for which the attributes were checked


class AccountantResult(NamedTuple):
    """ε of one accountant at the requested δ.

    Attributes:
        accountant: name of the accountant, as text.
        epsilon: ε at the requested δ.
        kind: "exact" (up to its grid), "upper" (valid, perhaps not the smallest), "lower" (no smaller ε is valid).
    """

    accountant: str
    epsilon: float
    kind: str


class LossGrid(NamedTuple):
    """A privacy-loss distribution on an equally spaced grid.

    Attributes:
        spacing: distance between losses.
        lowest: smallest loss, in units of `spacing`.
        probabilities: probability of each loss, in ascending order; float64, shape [losses].
        infinite: probability of an infinite loss.
    """

    spacing: float
    lowest: int
    probabilities: np.ndarray
    infinite: float


def symmetric_grid(loss: "PrivacyLossDistribution") -> LossGrid | None:
    """Return the pessimistic grid that serves both directions (remove and add), or None if there is none."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf, SparsePLDPmf

    one = loss._pmf_remove if loss._symmetric else None  # pyright: ignore[reportPrivateUsage]
    one = one.to_dense_pmf() if isinstance(one, SparsePLDPmf) else one
    if not (isinstance(one, DensePLDPmf) and one._pessimistic_estimate):
        return None
    return LossGrid(one._discretization, one._lower_loss, np.asarray(one._probs), one._infinity_mass)


def dp_accounting_relation(relation: str) -> "NeighboringRelation":
    """Return dp-accounting's name of a neighbouring relation."""
    from dp_accounting.privacy_accountant import NeighboringRelation

    names = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
    return names[0] if relation == ADD_OR_REMOVE else names[1]


def gaussian_event(noise_multipliers: ArrayLike) -> "ComposedDpEvent":
    """Return the composition of Gaussian mechanisms as a dp-accounting event, with equal mechanisms merged.

    Args:
        noise_multipliers: σ divided by the replace-one L2 sensitivity of each release, shape [releases]. Replacing a
            sample moves a release of increments with norm at most S by up to 2S, so this is σ/(2S).

    Raises:
        ValueError: if they are not a non-empty list of positive finite numbers.

    >>> len(gaussian_event([1.0, 2.0, 2.0]).events)
    2
    """
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent

    sigma = np.asarray(noise_multipliers, float)
    if sigma.ndim != 1 or sigma.size == 0:
        raise Refusal(f"noise_multipliers must be a non-empty list, got shape {list(sigma.shape)}")
    wrong = ~((sigma > 0) & np.isfinite(sigma))
    if wrong.any():
        raise Refusal(f"noise_multipliers must be positive and finite, got {sigma[wrong][0]}")
    values, counts = np.unique(sigma, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(value), count) for value, count in pairs])


def gaussian_epsilon(noise_multipliers: ArrayLike, delta: float, accountant: str = "pld") -> float:
    """Return dp-accounting's ε at δ of a composition of Gaussian mechanisms.

    Args:
        noise_multipliers: σ/(2S) of each release as in `gaussian_event`, shape [releases].
        delta: δ in (0, 1).
        accountant: "pld" (tight) or "rdp" (an upper bound).

    Raises:
        ValueError: if the accountant is unknown, delta is outside (0, 1), or a multiplier is not positive and finite.

    >>> round(gaussian_epsilon([2.0] * 16, 1e-5), 2)
    10.0
    """
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    require_choice("accountant", accountant, ACCOUNTANTS)
    gdp.epsilon(0.0, delta)
    event = gaussian_event(_merged(noise_multipliers))
    if accountant == "rdp":
        return float(RdpAccountant().compose(event).get_epsilon(delta))
    spacing = _GRID_PER_MU * gdp.compose(1 / np.asarray(noise_multipliers, float))
    # the relation only affects subsampling in dp-accounting; the multipliers already use replace-one sensitivity
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    return float(PLDAccountant(relation, spacing).compose(event).get_epsilon(delta))


def gaussian_results(noise_multipliers: ArrayLike, delta: float) -> tuple[AccountantResult, ...]:
    """Return both accountants' ε of a composition of Gaussian mechanisms; empty without releases or without noise.

    >>> [(one.accountant, round(one.epsilon, 2)) for one in gaussian_results([2.0] * 16, 1e-5)]
    [('dp-accounting PLD', 10.0), ('dp-accounting RDP', 10.73)]
    """
    sigma = np.asarray(noise_multipliers, float)
    if not sigma.size or not ((sigma > 0) & np.isfinite(sigma)).all():
        return ()
    kinds = {"pld": EXACT, "rdp": UPPER}
    return tuple(
        AccountantResult(f"dp-accounting {name.upper()}", gaussian_epsilon(sigma, delta, name), kind)
        for name, kind in kinds.items()
    )


def _merged(noise_multipliers: ArrayLike) -> np.ndarray:
    """Return the multipliers with at most `MERGED` distinct values. Merged neighbours share their mean precision.

    >>> sigma = np.sqrt(np.arange(1.0, 1001))
    >>> merged = _merged(sigma)
    >>> len(np.unique(merged)) <= MERGED, bool(np.isclose(np.sum(merged**-2.0), np.sum(sigma**-2.0)))
    (True, True)
    """
    sigma = np.asarray(noise_multipliers, float)
    values, place = np.unique(sigma, return_inverse=True)
    if sigma.ndim != 1 or values.size <= MERGED or not (values > 0).all() or not np.isfinite(values).all():
        return sigma
    logarithm = np.log(values)[place]
    group = np.minimum(((logarithm - logarithm.min()) / np.ptp(logarithm) * MERGED).astype(int), MERGED - 1)
    precision = np.bincount(group, sigma**-2.0, MERGED) / np.maximum(np.bincount(group, minlength=MERGED), 1)
    return precision[group] ** -0.5
