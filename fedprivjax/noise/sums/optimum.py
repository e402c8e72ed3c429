"""The factor of least noise for a workload, and the least noise of all factors."""

import numpy as np
import scipy


def optimal_factor(workload: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
    """F of nearly the least `tr(V·(FᵀF)⁻¹)` among lower triangular factors with columns of norm 1, float64 [n, n].

    By L-BFGS over the entries of F, with each column divided by its norm: every step is a factor.

    Args:
        workload: V = WᵀW of the workload W on the increments, [n, n].
        start: the factor that is begun from, [n, n].

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
    """`tr(V·(FᵀF)⁻¹)`: the sum over rounds of the noise's variance in one coordinate, per unit of σ."""
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    return float(np.sum(inverse * (workload @ inverse)))


def least_noise(workload: np.ndarray, factor: np.ndarray) -> float:
    """A lower bound on `noise_of` for all factors with columns of norm at most 1; close where `factor` is nearly best.

    For any positive v, `tr(V·P⁻¹) + Σ v_k·P_kk ≥ 2·tr((√v·V·√v)^½)`, and P_kk ≤ 1; v is taken from the factor, as the
    optimum's own multipliers are diag(P⁻¹·V·P⁻¹).

    >>> workload = np.array([[3.0, 1.0], [1.0, 1.0]])
    >>> best = optimal_factor(workload, np.eye(2), 50)
    >>> bool(0.999 * noise_of(workload, best) < least_noise(workload, best) <= noise_of(workload, best))
    True
    """
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    gram = inverse @ inverse.T
    multipliers = np.einsum("ij,jk,ki->i", gram, workload, gram, optimize=True)
    roots = np.sqrt(np.maximum(multipliers, 0.0))
    values = np.linalg.eigvalsh(roots[:, None] * workload * roots)
    total = np.sum(np.sqrt(np.maximum(values, 0.0)))
    return float(total**2 / multipliers.sum())  # of all multiples of v, the best
