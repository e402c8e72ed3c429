"""Releases of a run, views of adversaries, and the noise of the messages that machines send."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class FullView(NamedTuple):
    """Everything that a run releases or stores, from which each adversary's view is taken.

    Attributes:
        queries: points at which machines compute gradients, [rounds, d].
        messages: messages of the participants with noise, [rounds, per_round, ...], 0 in empty slots.
        internal: the server's memory after each round, leaves [rounds, ...].
        seed: seed of the noise, which also determines a shuffler's order.
        steps: every noisy local step of each participant, [rounds, per_round, steps, ...], or None if the guarantee
            counts messages only.
        machines: machine in each slot, int [rounds, per_round].
        known: slots whose messages the adversary computes itself, bool [rounds, per_round], or None.
    """

    queries: np.ndarray
    messages: np.ndarray
    internal: Any
    seed: int
    steps: np.ndarray | None = None
    machines: np.ndarray | None = None
    known: np.ndarray | None = None


class View(NamedTuple):
    """An adversary's view.

    Attributes:
        queries: points at which machines compute gradients, [rounds, d], or [0, d] if none are seen.
        messages: messages [rounds, per_round, ...], functions of a round's messages [rounds, functions, ...], or None
            if none are seen.
        internal: the server's memory, leaves [rounds, ...], or () if it is not seen.
        steps: local steps [rounds, per_round, steps, ...], or None if none are seen.
    """

    queries: np.ndarray
    messages: np.ndarray | None = None
    internal: Any = ()
    steps: np.ndarray | None = None


class SentNoise(NamedTuple):
    """Gaussian noise of the messages that machines send, independent between rounds, divided by `noise_std`.

    Attributes:
        variances: variance of one coordinate of each message, float64 [rounds, per_round].
        once: True if a unit moves one message of the run, or the event composes its messages, so that the least hidden
            one counts. False if a unit moves all messages of its machine.
        covariance: function from the machine in each slot of a round, int [n], and a mask of the slots that send and
            whose seeds are not known, bool [n], to the covariance [n, n] of one coordinate of the messages given the
            known seeds. Only rows and columns of the masked slots are read. None for independent messages.
    """

    variances: np.ndarray
    once: bool = False
    covariance: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
