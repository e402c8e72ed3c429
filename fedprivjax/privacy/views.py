"""Releases of a run, views of adversaries, and the noise of the messages that machines send."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal

SYMMETRIC = 1e-9  # relative difference of a covariance's two halves that counts as rounding


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
        federation: number of machines, 0 if it is not needed.
    """

    queries: np.ndarray
    messages: np.ndarray
    internal: Any
    seed: int
    steps: np.ndarray | None = None
    machines: np.ndarray | None = None
    known: np.ndarray | None = None
    federation: int = 0


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
    """Gaussian or Skellam noise of the messages that machines send, independent between rounds, divided by `noise_std`.

    Attributes:
        variances: variance of one coordinate of each message, float64 [rounds, per_round].
        once: True if a unit moves one message of the run, or the event composes its messages, so that the least hidden
            one counts. False if a unit moves all messages of its machine.
        covariance: function from the machine in each slot of a round, int [n], and a mask of the slots that send and
            whose seeds are not known, bool [n], to the covariance [n, n] of one coordinate of the messages given the
            known seeds. Only rows and columns of the masked slots are read. None for independent messages.
        cancels: True if the covariance is that of the variances in the sum of any masked slots.
    """

    variances: np.ndarray
    once: bool = False
    covariance: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    cancels: bool = False

    def between(self, machines: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """Return the stated covariance of a round's messages, [n, n]. Raise Refusal if it is none where it is read.

        Args:
            hidden: slots that send, and whose seeds are not known, bool [n].
        """
        assert self.covariance is not None
        stated, n = np.asarray(self.covariance(machines, hidden), float), hidden.size
        read = stated[np.ix_(hidden, hidden)] if stated.shape == (n, n) else np.full((1, 1), np.nan)
        if not (
            np.isfinite(read).all()
            and np.allclose(read, read.T, rtol=SYMMETRIC, atol=SYMMETRIC * np.abs(read).max(initial=0.0))
        ):
            raise Refusal(
                f"covariance of sent_noise must be a symmetric matrix of finite numbers, {n} x {n}, got "
                f"{str(stated[:2])[:80]} of shape {stated.shape}"
            )
        return stated

    def check(self, slots: tuple[int, ...]) -> None:
        """Raise Refusal unless the variances are those of the messages of a schedule, [rounds, per_round]."""
        variances = np.asarray(self.variances)
        if variances.shape != slots or not np.all((variances >= 0) & np.isfinite(variances)):
            raise Refusal(
                f"variances of sent_noise must be finite, at least 0 and of shape {slots}, one for each message, got "
                f"{str(variances[:1])[:60]} of shape {variances.shape}"
            )
