r"""Noise cancellation by covariance: `Z = B·ξ` with B the Cholesky factor of the aggregate's covariance over rounds.

The server's trajectory depends on the machines' noises only through `z_t = (1/m)·Σ_i Y_{i,last(t)}`, whose covariance

    K(s, t) = (1/m²)·Σ_{i: last_i(s) = last_i(t)} r²_{i,last}

follows from the public schedule (m is one constant for all rounds, see `noise.cancelling`). It is banded: zero if every
machine has taken part between s and t. Each round therefore needs one normal vector instead of one per participant, and
no array has size machines · d.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from flax import struct

from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals
from fedprivjax.plan.schedule import Schedule

ROUND_UP = 8  # bandwidths are padded to multiples of this, so that most schedules share one program


@struct.dataclass
class Covariance(Mechanism):
    """Correlated noise from its banded factor.

    inputs: B, float32 [rounds, bandwidth + 1]; row t holds B(t, t − bandwidth) … B(t, t).
    """

    method: ClassVar[str] = "covariance"
    inputs: Any

    @property
    def bandwidth(self) -> int:
        return self.inputs.shape[-1] - 1

    def init(self, dimension: int, key):
        """Return the last `bandwidth` normal vectors before the first round, zero; shape [bandwidth, d]."""
        return jnp.zeros((self.bandwidth, dimension))

    def draw(self, state, inputs, keys, dimension: int):
        fresh = jax.vmap(lambda key: normals(key, (dimension,)))(keys)
        vectors = jnp.concatenate([state, fresh])
        return vectors[keys.shape[0] :], jnp.matmul(_staircase(inputs), vectors, precision="highest")

    def align(self, others: Sequence[Any]) -> list[Any]:
        width = max(other.bandwidth for other in others)
        return [Covariance(padded(np.asarray(other.inputs), width)) for other in others]


def factor(schedule: Schedule, relative: np.ndarray) -> np.ndarray:
    """Return the rows of B in the layout of `Covariance.inputs`, float64 [rounds, bandwidth + 1], smallest bandwidth.

    >>> from fedprivjax.plan.participation import Full
    >>> factor(Full(4).draw(3, np.random.default_rng(0)), np.ones((3, 4))).tolist()  # all noise is fresh: bandwidth 0
    [[0.5], [0.5], [0.5]]
    """
    lower = scipy.linalg.cholesky_banded(covariance_bands(schedule, relative), lower=True)  # [lag, column]
    lags, rounds = lower.shape
    rows = np.zeros((rounds, lags))
    for lag in range(lags):  # B(t, t − lag) = lower[lag, t − lag]
        rows[lag:, lags - 1 - lag] = lower[lag, : rounds - lag]
    return rows


def covariance_bands(schedule: Schedule, relative: np.ndarray) -> np.ndarray:
    """Return K by diagonals, float64 [lags, rounds]: entry (lag, s) is K(s + lag, s), zero past the end."""
    _, per_round, rounds = schedule.size
    start = np.repeat(np.arange(rounds), per_round)
    length = schedule.gaps.ravel()  # 0 in empty slots
    weight = relative.ravel() ** 2 / schedule.divisor**2
    bands = np.zeros((length.max(), rounds))
    for lag in range(bands.shape[0]):
        # noise present in rounds start … start + length − 1 is common to s and s + lag for s ≤ start + length − 1 − lag
        long = length > lag
        start, length, weight = start[long], length[long], weight[long]
        edges = np.bincount(start, weight, rounds + 1) - np.bincount(start + length - lag, weight, rounds + 1)
        bands[lag] = np.cumsum(edges)[:rounds]
        bands[lag, rounds - lag :] = 0.0
    return bands


def padded(rows: np.ndarray, bandwidth: int | None = None) -> np.ndarray:
    """Return rows of B padded with zeros on the left to a bandwidth, by default the next multiple of `ROUND_UP`."""
    stored = rows.shape[1] - 1
    width = -(-stored // ROUND_UP) * ROUND_UP if bandwidth is None else bandwidth
    return np.pad(rows, ((0, 0), (width - stored, 0)))


def _staircase(rows):
    """Return rows [n, b + 1] shifted right by 0, 1, … n − 1: the banded matrix [n, b + n]."""
    block, width = rows.shape
    wide = jnp.pad(rows, ((0, 0), (0, block)))
    return wide.reshape(-1)[: block * (width + block - 1)].reshape(block, width + block - 1)
