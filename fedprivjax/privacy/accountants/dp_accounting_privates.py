"""Private attributes of dp-accounting that this package reads, all in this file.

`tests/privacy/test_dp_accounting_privates.py` fails if an attribute moves or changes its meaning.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

CHECKED_VERSION = "0.6.0"  # version of dp-accounting for which the attributes were checked


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
