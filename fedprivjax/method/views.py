"""What the adversary of each trust model sees of a run, on the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.plan.seeds import shuffler_rng


class Observed(NamedTuple):
    """Everything of a run that some adversary might see.

    Attributes:
        queries: the points that machines are asked about, [rounds, d].
        messages: what each participant sends, noise included, [rounds, per_round, ...].
        internal: the server's memory after each round, leaves [rounds, ...].
        seed: of the noise, from which a shuffler's order follows.
        steps: every noisy local step of each participant, [rounds, per_round, steps, ...], or None if the guarantee
            counts messages only.
    """

    queries: np.ndarray
    messages: np.ndarray
    internal: Any
    seed: int
    steps: np.ndarray | None = None


class Seen(NamedTuple):
    """An adversary's view.

    Attributes:
        queries: [rounds, d].
        messages: [rounds, per_round, ...], or a round's counts [rounds, ...]; None where none are seen.
        internal: leaves [rounds, ...]; () where the server's memory is not seen.
        steps: local steps [rounds, per_round, steps, ...]; None if none are seen.
    """

    queries: np.ndarray
    messages: np.ndarray | None = None
    internal: Any = ()
    steps: np.ndarray | None = None


def in_the_clear(observed: Observed) -> Seen:
    """Every message and local step, with its sender."""
    return Seen(observed.queries, observed.messages, steps=observed.steps)


def queries_only(observed: Observed) -> Seen:
    """What a trusted server sends out."""
    return Seen(observed.queries)


def shuffled(observed: Observed) -> Seen:
    """Every message, each round's in a random order."""
    rounds, per_round = observed.messages.shape[:2]
    places = np.tile(np.arange(per_round), (rounds, 1))
    order = shuffler_rng(observed.seed).permuted(places, axis=1)
    return Seen(observed.queries, observed.messages[np.arange(rounds)[:, None], order])


def shuffled_bits(observed: Observed) -> Seen:
    """Each round's sum of messages that are sets of bits: all that the bits tell in a random order."""
    return Seen(observed.queries, observed.messages.sum(axis=1))


def pan_private(observed: Observed) -> Seen:
    """The server's memory after each round, in which an intruder may look once."""
    return Seen(observed.queries, internal=observed.internal)


UNSEEN = ("server", "pan-private")  # trust models in which no message is seen

VIEWS: dict[str, Callable[[Observed], Seen]] = {
    "none": in_the_clear,
    "server": queries_only,
    "shuffler": shuffled,
    "pan-private": pan_private,
}
