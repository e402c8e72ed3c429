"""Releases of a run, views of adversaries, and the noise of the messages that machines send."""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal

SYMMETRIC = 1e-9  # relative difference of a covariance's two halves that counts as rounding
ROUNDING = float(np.finfo(float).eps)
UNSEEN_PART = 1e-9  # largest part of a message outside of the noisy directions that counts as rounding


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
    """Noise of the messages that machines send: Gaussian or Skellam, and independent between rounds.

    Attributes:
        variances: noise variance of one coordinate of each message, divided by the square of the protocol's
            `noise_std`; float64 [rounds, per_round]. The variances exclude shared noise that cancels (see `cancels`).
        once: True if the protected unit changes only one message of the run. False if the unit may change all messages
            of its machine. Also set `once` to True if the run's `Event` itself composes the messages, and only needs
            the message with the least noise.
        covariance: None if the noise of different messages is independent. Otherwise, it is a function
            `covariance(machines, hidden)` that returns the covariance of the noise of a round's n messages in one
            coordinate; [n, n]. The result is divided by `noise_std` squared. `machines` has the index of each message's
            machine, int [n]. `hidden` is True for messages that are sent and whose random seeds the adversary does not
            know, bool [n].
        cancels: True if machines share noise that cancels in the sum of a round's messages, as with `Pairwise`. The
            noise variance of the sum is then the sum of `variances`. For an adversary who knows the seeds of some
            machines, it is the sum over the other machines.
    """

    variances: np.ndarray
    once: bool = False
    covariance: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    cancels: bool = False

    def between(self, machines: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """Return the covariance of one coordinate of the noise of a round's n messages; float64 [n, n].

        Args:
            machines: index of the machine of each message, int [n].
            hidden: True for messages that are sent and whose seeds the adversary does not know, bool [n]. Only the
                rows and columns of these messages are used.

        Raises:
            Refusal: if the result is not a finite symmetric matrix for the hidden messages.
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
        """Raise Refusal unless `variances` has one finite number, at least 0, for each message of a schedule.

        Args:
            slots: required shape, (rounds, per_round).
        """
        variances = np.asarray(self.variances)
        if variances.shape != slots or not np.all((variances >= 0) & np.isfinite(variances)):
            raise Refusal(
                f"variances of sent_noise must be finite, at least 0 and of shape {slots}, one for each message, got "
                f"{str(variances[:1])[:60]} of shape {variances.shape}"
            )


def squares_of(
    matrix: np.ndarray | None, sent: SentNoise, machines: np.ndarray, variances: np.ndarray, hidden: np.ndarray
) -> np.ndarray:
    """Return `squares` of every message of a round, float64 [n], 0 for those that are not hidden.

    Args:
        hidden: slots that send, and whose seeds are not known, bool [n].
    """
    covariance = np.diag(variances) if sent.covariance is None else sent.between(machines, hidden)
    found = np.zeros(machines.size)
    if hidden.any():
        seen = None if matrix is None else matrix[:, hidden]
        found[hidden] = squares(seen, covariance[np.ix_(hidden, hidden)])
    return found


def squares(matrix: np.ndarray | None, covariance: np.ndarray) -> np.ndarray:
    """Return the squared exposure of n messages to an adversary who sees linear functions of the messages; float64 [n].

    For message j, the result s_j is `(Aᵀ·(A·K·Aᵀ)⁺·A)_jj` with A = `matrix`, K = `covariance` and the pseudoinverse ⁺.
    It is inf if no noise hides the message. The μ of Gaussian differential privacy of message j is √s_j · sensitivity /
    `noise_std`.

    Args:
        matrix: A, coefficients of the functions, float64 [functions, n]. None is the identity: every message is seen.
        covariance: K, covariance of the messages' noise for `noise_std` = 1, float64 [n, n], positive semidefinite.

    >>> squares(np.ones((1, 4)), np.eye(4))
    array([0.25, 0.25, 0.25, 0.25])
    >>> squares(np.eye(2), np.array([[1.0, -1.0], [-1.0, 1.0]]))  # the noise of both cancels in their sum
    array([inf, inf])
    """
    if matrix is None:
        found = _of_inverse(covariance)
        if found is not None:
            return found
        matrix = np.eye(len(covariance))
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    _, parts, seen = np.linalg.svd(matrix / np.where(lengths > 0, lengths, 1.0), full_matrices=False)
    seen = seen[parts > ROUNDING * matrix.size * parts.max(initial=0.0)]  # what is seen, whatever the scale of each row
    values, vectors = np.linalg.eigh(seen @ covariance @ seen.T)
    noisy = values > UNSEEN_PART * max(float(values.max(initial=0.0)), np.finfo(float).tiny)
    seen = vectors.T @ seen
    found = np.sum(seen[noisy] ** 2 / values[noisy, None], axis=0)
    bare = np.sum(seen[~noisy] ** 2, axis=0) > UNSEEN_PART**2
    return np.where(bare, inf, found)


def _of_inverse(covariance: np.ndarray) -> np.ndarray | None:
    """Return the diagonal of K⁻¹, or None if K is not clearly positive definite."""
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    if np.diag(factor).min() ** 2 <= UNSEEN_PART * np.diag(covariance).max():
        return None
    return np.sum(np.linalg.inv(factor) ** 2, axis=0)
