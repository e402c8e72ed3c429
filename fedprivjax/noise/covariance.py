r"""Samplers of noise that is correlated over rounds, each from a triangular matrix over rounds.

Noise cancellation: the server's trajectory depends on the machines' noises only through
`z_t = (1/m)·Σ_i Y_{i,last(t)}`, whose covariance

    K(s, t) = (1/m²)·Σ_{i: last_i(s) = last_i(t)} r²_{i,last}

follows from the public schedule (m is one constant for all rounds, see `noise.cancelling`). `Z = B·ξ` with B the
Cholesky factor of K. K is banded: zero if every machine has taken part between s and t. Each round therefore needs one
normal vector instead of one per participant, and no array has size machines · d.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from flax import struct

from fedprivjax.noise.interface import Mechanism, normals
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.seeds import round_keys

ROUND_UP = 8  # bandwidths are padded to multiples of this, so that most schedules share one program
STRIPS = 6  # strips of rows; each strip is one product over the columns of its last row
AT_ONCE = 64  # number of rounds whose normals are sampled together


class Banded(Mechanism):
    """Base class of samplers from a banded triangular matrix F.

    inputs: F, float32 [rounds, bandwidth + 1]; row t holds F(t, t − bandwidth) … F(t, t).
    """

    @property
    def bandwidth(self) -> int:
        return self.inputs.shape[-1] - 1

    def align(self, others: Sequence[Any]) -> list[Any]:
        width = max(other.bandwidth for other in others)
        return [type(self)(padded(np.asarray(other.inputs), width)) for other in others]  # type: ignore[call-arg]


@struct.dataclass
class Covariance(Banded):
    """Noise `B·ξ` of a banded matrix B."""

    method: ClassVar[str] = "covariance"
    inputs: Any

    def init(self, dimension: int, key):
        """Return the last `bandwidth` normal vectors before the first round, zero; shape [bandwidth, d]."""
        return jnp.zeros((self.bandwidth, dimension))

    def draw(self, state, inputs, keys, dimension: int):
        fresh = jax.vmap(lambda key: normals(key, (dimension,)))(keys)
        vectors = jnp.concatenate([state, fresh])
        return vectors[keys.shape[0] :], jnp.matmul(_staircase(inputs), vectors, precision="highest")


@struct.dataclass
class Recursive(Banded):
    """Noise z = F⁻¹ξ of a banded matrix F, by forward substitution. It stores the last `bandwidth` vectors z.

    The substitution is backward stable: rounding is equivalent to a relative change of F's entries.
    """

    label: ClassVar[str] = "correlated over rounds"
    correlated: ClassVar[bool] = True
    inputs: Any

    def init(self, dimension: int, key):
        """Return the last vectors, [bandwidth, d], with round s in row s mod bandwidth, and the next round, from 0."""
        return jnp.zeros((self.bandwidth, dimension)), jnp.zeros((), jnp.int32)

    def draw(self, state, inputs, keys, dimension: int):
        width = self.bandwidth
        places = jnp.arange(width)

        def one(state, step):
            (last, t), (row, key) = state, step
            # round s is in place s mod width, and row[width − (t − s)] = F(t, s)
            of_place = row[width - 1 - jnp.mod(t - 1 - places, width)]
            z = (normals(key, (dimension,)) - jnp.matmul(of_place, last, precision="highest")) / row[width]
            return (jax.lax.dynamic_update_index_in_dim(last, z, jnp.mod(t, width), 0), t + 1), z

        return jax.lax.scan(one, state, (inputs, keys))


@struct.dataclass
class Triangular(Mechanism):
    """Noise `B·ξ` of all rounds from one product before the first round. Every block reads its rows of the result.

    inputs: B, lower triangular, float32 [rounds, rounds].
    """

    method: ClassVar[str] = "covariance"
    label: ClassVar[str] = "covariance"
    inputs: Any

    def init(self, dimension: int, key):
        """Return the noise of all rounds, [rounds, d], and the number of rounds sampled so far."""
        keys = round_keys(key, jnp.arange(1, len(self.inputs) + 1))
        fresh = jax.lax.map(lambda key: normals(key, (dimension,)), keys, batch_size=AT_ONCE)
        return _lower_product(jnp.asarray(self.inputs), fresh), jnp.zeros((), jnp.int32)

    def draw(self, state, inputs, keys, dimension: int):
        noise, done = state
        return (noise, done + keys.shape[0]), jax.lax.dynamic_slice_in_dim(noise, done, keys.shape[0])


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
    """Return banded rows padded with zeros on the left to a bandwidth, by default the next multiple of `ROUND_UP`."""
    stored = rows.shape[1] - 1
    width = -(-stored // ROUND_UP) * ROUND_UP if bandwidth is None else bandwidth
    return np.pad(rows, ((0, 0), (width - stored, 0)))


def banded(matrix: np.ndarray) -> np.ndarray:
    """Return a lower triangular matrix in the layout of `Banded.inputs`, float64, smallest bandwidth."""
    below, left = np.nonzero(matrix)
    width, rounds = int((below - left).max()), np.arange(len(matrix))
    column = rounds[:, None] + np.arange(-width, 1)
    return np.where(column >= 0, matrix[rounds[:, None], np.maximum(column, 0)], 0.0)


def _staircase(rows):
    """Return rows [n, b + 1] shifted right by 0, 1, … n − 1: the banded matrix [n, b + n]."""
    block, width = rows.shape
    wide = jnp.pad(rows, ((0, 0), (0, block)))
    return wide.reshape(-1)[: block * (width + block - 1)].reshape(block, width + block - 1)


def _lower_product(rows, vectors):
    """Return B·ξ, computed in place of ξ from the last rows upwards: no row above needs the overwritten entries."""
    rounds = len(rows)
    for strip in reversed(range(STRIPS)):
        first, end = rounds * strip // STRIPS, rounds * (strip + 1) // STRIPS
        made = jnp.matmul(rows[first:end, :end], vectors[:end], precision="highest")
        vectors = vectors.at[first:end].set(made)
    return vectors
