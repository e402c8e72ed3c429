"""Factor with the smallest noise for a workload, and a lower bound on the noise of all factors."""

import numpy as np
import scipy


def optimal_factor(workload: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
    """Return F that nearly minimises `tr(V·(FᵀF)⁻¹)` over lower triangular factors with unit columns; float64 [n, n].

    L-BFGS optimises the entries of F, with each column divided by its norm. Every iterate is therefore a valid factor.

    Args:
        workload: V = WᵀW for the workload W on the increments, shape [n, n].
        start: initial factor, shape [n, n].

    >>> workload = np.array([[3.0, 1.0], [1.0, 1.0]])
    >>> best = optimal_factor(workload, np.eye(2), 50)
    >>> bool(noise_of(workload, best) < noise_of(workload, np.eye(2)))
    True
    """
    entries, scale = np.tril_indices(len(start)), noise_of(workload, start)

    def noise(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        free = np.zeros_like(start)
        free[entries] = numbers
        norms = np.linalg.norm(free, axis=0)
        factor = free / norms
        inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
        part = workload @ inverse
        slope = -2 * inverse.T @ part @ inverse.T
        slope = (slope - factor * np.sum(slope * factor, axis=0)) / norms
        return float(np.sum(inverse * part) / scale), slope[entries] / scale

    begin = (start / np.linalg.norm(start, axis=0))[entries]
    found = scipy.optimize.minimize(noise, begin, jac=True, method="L-BFGS-B", options={"maxiter": iterations}).x
    factor = np.zeros_like(start)
    factor[entries] = found
    return factor / np.linalg.norm(factor, axis=0)


def noise_of(workload: np.ndarray, factor: np.ndarray) -> float:
    """Return `tr(V·(FᵀF)⁻¹)`: the noise variance of one coordinate at σ = 1, summed over rounds."""
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    return float(np.sum(inverse * (workload @ inverse)))


def noise_lower_bound(workload: np.ndarray, factor: np.ndarray) -> float:
    """Return a lower bound on `noise_of` over all factors with column norms at most 1. Tight near the optimum.

    For any positive v, `tr(V·P⁻¹) + Σ v_k·P_kk ≥ 2·tr((√v·V·√v)^½)`, and P_kk ≤ 1. The vector v is computed from the
    factor, since the multipliers at the optimum are diag(P⁻¹·V·P⁻¹).

    >>> workload = np.array([[3.0, 1.0], [1.0, 1.0]])
    >>> best = optimal_factor(workload, np.eye(2), 50)
    >>> bool(0.999 * noise_of(workload, best) < noise_lower_bound(workload, best) <= noise_of(workload, best))
    True
    """
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    gram = inverse @ inverse.T
    multipliers = np.einsum("ij,jk,ki->i", gram, workload, gram, optimize=True)
    roots = np.sqrt(np.maximum(multipliers, 0.0))
    values = np.linalg.eigvalsh(roots[:, None] * workload * roots)
    total = np.sum(np.sqrt(np.maximum(values, 0.0)))
    return float(total**2 / multipliers.sum())  # the best multiple of v
