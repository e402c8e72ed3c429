"""What somebody else says of the same release: an accountant's ε: exact, a bound, or a lower value."""

from typing import NamedTuple

EXACT, UPPER, LOWER = "exact", "upper", "lower"


class Opinion(NamedTuple):
    """An accountant's answer.

    Attributes:
        accountant: who says so, in words.
        epsilon: at the δ that was asked for.
        kind: "exact" (to its grid), "upper" (a valid ε, perhaps not the least), "lower" (no ε below it is valid).
    """

    accountant: str
    epsilon: float
    kind: str
