"""Result of a second accountant for the same release: an exact ε, an upper bound or a lower bound."""

from typing import NamedTuple

EXACT, UPPER, LOWER = "exact", "upper", "lower"


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
