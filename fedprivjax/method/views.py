"""View of a run by the adversary of each trust model, on the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.plan.seeds import shuffler_rng


class FullView(NamedTuple):
    """Everything that a run releases or stores, from which each adversary's view is taken.

    Attributes:
        queries: points at which machines compute gradients, [rounds, d].
        messages: messages of the participants with noise, [rounds, per_round, ...].
        internal: the server's memory after each round, leaves [rounds, ...].
        seed: seed of the noise, which also determines a shuffler's order.
        steps: every noisy local step of each participant, [rounds, per_round, steps, ...], or None if the guarantee
            counts messages only.
    """

    queries: np.ndarray
    messages: np.ndarray
    internal: Any
    seed: int
    steps: np.ndarray | None = None


class View(NamedTuple):
    """An adversary's view.

    Attributes:
        queries: points at which machines compute gradients, [rounds, d].
        messages: messages [rounds, per_round, ...] or counts per round [rounds, ...], or None if none are seen.
        internal: the server's memory, leaves [rounds, ...], or () if it is not seen.
        steps: local steps [rounds, per_round, steps, ...], or None if none are seen.
    """

    queries: np.ndarray
    messages: np.ndarray | None = None
    internal: Any = ()
    steps: np.ndarray | None = None


def in_the_clear(full: FullView) -> View:
    """Return every message and local step, with its sender."""
    return View(full.queries, full.messages, steps=full.steps)


def queries_only(full: FullView) -> View:
    """Return the points that a trusted server sends."""
    return View(full.queries)


def shuffled(full: FullView) -> View:
    """Return every message, in a random order within each round."""
    rounds, per_round = full.messages.shape[:2]
    places = np.tile(np.arange(per_round), (rounds, 1))
    order = shuffler_rng(full.seed).permuted(places, axis=1)
    return View(full.queries, full.messages[np.arange(rounds)[:, None], order])


def shuffled_bits(full: FullView) -> View:
    """Return each round's sum of bit messages, which is all that shuffled bits reveal."""
    return View(full.queries, full.messages.sum(axis=1))


def pan_private(full: FullView) -> View:
    """Return the server's memory after each round, which an intruder may read once."""
    return View(full.queries, internal=full.internal)


UNSEEN = ("server", "pan-private")  # trust models in which no message is seen

VIEWS: dict[str, Callable[[FullView], View]] = {
    "none": in_the_clear,
    "server": queries_only,
    "shuffler": shuffled,
    "pan-private": pan_private,
}
