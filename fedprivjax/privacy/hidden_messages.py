"""Noise that hides messages from an adversary who sees linear functions of them, see `adversaries`."""

from math import inf

import numpy as np

from fedprivjax.privacy.views import SentNoise

ROUNDING = float(np.finfo(float).eps)
UNSEEN_PART = 1e-9  # largest part of a message outside of the noisy directions that counts as rounding


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
    """Return (μ·σ/Δ)² of every message j for the view A·x: (Aᵀ·(A·K·Aᵀ)⁺·A)_jj, or inf if no noise hides it.

    Args:
        matrix: A, float64 [functions, n]. None is the identity.
        covariance: K, float64 [n, n], positive semidefinite.

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
