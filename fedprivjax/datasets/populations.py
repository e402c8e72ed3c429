"""Excess population risks of synthetic data, as functions of parameters: features uniform on the unit sphere."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy

QUADRATURE_NODES = 128


@dataclass(frozen=True, eq=False)
class LeastSquaresPopulation:
    """Excess population risk `‖w − w*‖²/(2p)`, a traceable function of parameters.

    Attributes:
        optimum: w*, float32, shape [features].
        floor: population risk of the optimum.

    >>> float(LeastSquaresPopulation(np.zeros(4, np.float32), 0.5).risk(np.ones(4)))
    1.0
    """

    optimum: np.ndarray
    floor: float

    def __call__(self, params) -> jax.Array:
        return jnp.sum(jnp.square(params - self.optimum)) / (2 * self.optimum.size)

    def risk(self, params) -> jax.Array:
        """Return the population risk."""
        return self(params) + self.floor


class LogisticPopulation:
    """Excess population risk of logistic regression on the sphere, a traceable function of parameters.

    `⟨w, x⟩ = ‖w‖t` where t, one coordinate of a uniform point, has density ∝ (1 − t²)^((p−3)/2). The odd part of the
    loss is linear in w, so with `v = w*/‖w*‖`

        F(w) − F(w*) = E log cosh(‖w‖t/2) − E log cosh(‖w*‖t/2) − ⟨w − w*, v⟩·E[t·tanh(‖w*‖t/2)]/2.

    The expectations are Gaussian quadratures of 128 nodes, exact to float32 for ‖w‖ up to 30.

    Args:
        optimum: w*, shape [features], not zero.

    >>> float(LogisticPopulation(np.array([3.0, 0.0]))(np.zeros(2))) > 0
    True
    """

    def __init__(self, optimum: np.ndarray):
        nodes, weights = _coordinate_quadrature(optimum.size)
        norm = float(np.linalg.norm(optimum))
        slope = np.sum(weights * nodes * np.tanh(norm * nodes / 2)) / 2
        self.optimum = optimum.astype(np.float32)
        self._slope = (slope * optimum / norm).astype(np.float32)
        self._nodes, self._weights = nodes.astype(np.float32), weights.astype(np.float32)

    def __call__(self, params) -> jax.Array:
        here, best = (self._curved(jnp.linalg.norm(point)) for point in (params, self.optimum))
        return here - best - jnp.sum((params - self.optimum) * self._slope)

    def _curved(self, norm):
        return jnp.sum(self._weights * _log_cosh(norm * self._nodes / 2))


class LeastAbsolutePopulation:
    """Excess population risk of the absolute loss with label noise uniform on ±a, a traceable function of parameters.

    A score with error t has excess loss `E|t − z| − E|z| = t²/(2a)` for `|t| ≤ a` and `|t| − a/2` otherwise, and
    `⟨w − w*, x⟩ = ‖w − w*‖·t` with t one coordinate of a uniform point. The mean over t is a Gaussian quadrature of 128
    nodes. It is exact for ‖w − w*‖ ≤ a, and has a relative error of 10⁻⁴ otherwise.

    Args:
        optimum: w*, shape [features].
        noise: a, positive.

    >>> round(float(LeastAbsolutePopulation(np.zeros(4), 2.0)(np.ones(4))), 6)
    0.25
    """

    def __init__(self, optimum: np.ndarray, noise: float):
        nodes, weights = _coordinate_quadrature(optimum.size)
        self.optimum, self.noise = optimum.astype(np.float32), float(noise)
        self._nodes, self._weights = np.abs(nodes).astype(np.float32), weights.astype(np.float32)

    def __call__(self, params) -> jax.Array:
        off = jnp.linalg.norm(params - self.optimum) * self._nodes
        cost = jnp.where(off <= self.noise, off**2 / (2 * self.noise), off - self.noise / 2)
        return jnp.sum(self._weights * cost)


def _log_cosh(x):
    # ½·log(1 + sinh²) has full relative precision for small values; where it overflows the asymptote is exact
    size = jnp.abs(x)
    near = jnp.log1p(jnp.square(jnp.sinh(jnp.minimum(size, 10.0)))) / 2
    return jnp.where(size < 10.0, near, size - np.float32(np.log(2.0)))


def _coordinate_quadrature(features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gaussian nodes and weights for one coordinate of a uniform point on the sphere (Golub & Welsch 1969)."""
    k = np.arange(2, QUADRATURE_NODES)
    squares = k * (k + features - 3) / ((2 * k + features - 2) * (2 * k + features - 4))
    off_diagonal = np.sqrt(np.append(1 / features, squares))
    nodes, vectors = scipy.linalg.eigh_tridiagonal(np.zeros(QUADRATURE_NODES), off_diagonal)
    return nodes, vectors[0] ** 2
