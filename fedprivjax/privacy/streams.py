"""Random streams of the runs that a guarantee is about. They are known in memory only."""

from typing import Any

NOISE, SAMPLES, PARTICIPATION = "noise", "samples", "participation"
NAMES = {NOISE: "noise", SAMPLES: "secret samples", PARTICIPATION: "secret participation"}


class Streams:
    """Random streams that one or several runs use, and those of them that must stay secret.

    A stream is identified by its name and seed. A seed is never printed or saved: with it, anyone could remove the
    noise. Therefore a pickled object is empty.

    Args:
        used: pairs (name, seed).
        secret: those of them that an adversary must not know.

    >>> import pickle
    >>> one, other = (Streams({(NOISE, seed), (SAMPLES, 5)}, {(NOISE, seed)}) for seed in (3, 4))
    >>> one.shared(other), one.shared(one | other), one.shared(pickle.loads(pickle.dumps(one)))
    ([], ['noise'], [])
    """

    __slots__ = ("_secret", "_used")

    def __init__(self, used: Any = (), secret: Any = ()):
        self._used, self._secret = frozenset(used), frozenset(secret)

    def __or__(self, other: "Streams") -> "Streams":
        return Streams(self._used | other._used, self._secret | other._secret)

    def shared(self, other: "Streams") -> list[str]:
        """Return the names of streams that both use, and that must stay secret for one of them."""
        both = self._used & other._used & (self._secret | other._secret)
        return sorted({NAMES[name] for name, _ in both})

    def __repr__(self) -> str:
        return "Streams()"

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, ()

    def __copy__(self) -> "Streams":
        return self

    def __deepcopy__(self, memo: Any) -> "Streams":
        return self
