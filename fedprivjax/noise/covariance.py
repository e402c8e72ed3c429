r"""Samplers of noise that is correlated over rounds: message by message, or from a triangular matrix over rounds.

With noise cancellation each message adds fresh noise and subtracts the noise of the machine's previous message. The
aggregate therefore contains only each machine's latest noise, `z_t = (1/m)·Σ_{i∈[M]} Y_{i,last(t)}` (Reshef & Levy
2025). If the number of participants varies, m is one constant for all rounds, because noise that is added and
subtracted with different divisors would not cancel. An absent machine adds and subtracts nothing, and its noise stays
in the aggregate.

The server's trajectory depends on the machines' noises only through z_t, whose covariance

    K(s, t) = (1/m²)·Σ_{i: last_i(s) = last_i(t)} r²_{i,last}

follows from the public schedule. `Z = B·ξ` with B the Cholesky factor of K. K is banded: zero if every machine has
taken part between s and t. Each round therefore needs one normal vector instead of one per participant, and no array
has size machines · d.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from flax import struct

from fedprivjax.noise.interface import Mechanism, MessageInputs, normals, shared
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.seeds import round_keys

ROUND_UP = 8  # bandwidths are padded to multiples of this, so that most schedules share one program
STRIPS = 6  # strips of rows; each strip is one product over the columns of its last row
AT_ONCE = 64  # number of rounds whose normals are sampled together


class Banded(Mechanism):
    """Base class of samplers of noise that a banded lower triangular matrix F correlates over rounds.

    "Banded" means that F(t, s) = 0 for s < t − `bandwidth`. A subclass says how the noise follows from F and
    independent standard normals ξ, such as F·ξ or F⁻¹ξ.

    Attributes:
        inputs: entries of F, float32 [rounds, bandwidth + 1]. Row t holds F(t, t − bandwidth), …, F(t, t).
    """

    @property
    def bandwidth(self) -> int:
        return self.inputs.shape[-1] - 1

    def align(self, others: Sequence[Any]) -> list[Any]:
        width = max(other.bandwidth for other in others)
        return [type(self)(padded(np.asarray(other.inputs), width)) for other in others]  # type: ignore[call-arg]


@struct.dataclass
class Covariance(Banded):
    """Sampler of the noise in a running sum of messages, if each machine cancels the noise of its previous message.

    The running sum of all messages, divided by a constant, contains only the latest noise of each machine. Its noise is
    therefore correlated over rounds. The participation schedule determines the covariance B·Bᵀ of the noise over
    rounds, with a lower triangular matrix B. Round t has the noise Σ_s B(t, s)·ξ_s, with one vector ξ_s of independent
    standard normals per round s.

    Attributes:
        inputs: entries of B, float32 [rounds, bandwidth + 1]. Row t holds B(t, t − bandwidth), …, B(t, t).
    """

    method: ClassVar[str] = "covariance"
    past_end = True
    inputs: Any

    def init(self, dimension: int, key):
        """Return the state before the first round: zeros of shape [bandwidth, dimension].

        The state holds the vectors of standard normals of the last `bandwidth` rounds.
        """
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
    past_end = True
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
    past_end = True
    inputs: Any

    def init(self, dimension: int, key):
        """Return the noise of all rounds, [rounds, d], and the number of rounds sampled so far."""
        keys = round_keys(key, jnp.arange(1, len(self.inputs) + 1))
        fresh = jax.lax.map(lambda key: normals(key, (dimension,)), keys, batch_size=AT_ONCE)
        return _lower_product(jnp.asarray(self.inputs), fresh), jnp.zeros((), jnp.int32)

    def draw(self, state, inputs, keys, dimension: int):
        (noise, done), count = state, keys.shape[0]
        return (noise, done + count), jnp.take(noise, done + jnp.arange(count), axis=0, mode="clip")


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


class Standing(Mechanism):
    """Base class of mechanisms whose message noises add up in the aggregate, m being the inputs' divisor."""

    def init(self, dimension: int, key):
        """Return the machines' memory and the sum [d] before the first round."""
        return self.message_memory(dimension, key), jnp.zeros(dimension)

    def draw(self, state, inputs: MessageInputs, keys, dimension: int):
        def one(state, step):
            (memory, standing), (inputs, key) = state, step
            memory, added = self.message_noise(memory, inputs, key, dimension)
            standing = standing + shared(added, inputs.divisor)
            return (memory, standing), standing

        return jax.lax.scan(one, state, (inputs, keys))

    def floats(self, dimension: int) -> int:
        return super().floats(dimension) + 3 * self.inputs.machine.shape[-1] * dimension


@struct.dataclass
class Cancelling(Standing):
    """Sampler of the noise of every message, if each machine cancels the noise of its previous message.

    A message adds new noise and subtracts the noise of the machine's previous message. The sampler stores the latest
    noise of each machine, an array of shape [machines, d] for d parameters. Use it to inspect single messages. If only
    sums of messages are needed, other samplers are cheaper.

    Attributes:
        inputs: machine of each message, standard deviation of its noise in units of `noise_std`, and divisor of each
            round's sum of messages.
        machines: number of machines.
    """

    method: ClassVar[str] = "materialised"
    inputs: MessageInputs
    machines: int = struct.field(pytree_node=False)

    def message_memory(self, dimension: int, key):
        """Return the stored noise before the first round: zeros of shape [machines, dimension]."""
        return jnp.zeros((self.machines, dimension))

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Sample one round: return the new memory and the noise that each participant adds to its message.

        A participant's noise is its new noise minus the noise of its previous message.

        Args:
            memory: latest noise of every machine, shape [machines, dimension].
            inputs: noise (standard deviation in units of `noise_std`) and machine of each message of the round.
            key: random key of the round.
            dimension: number of model parameters.

        Returns:
            Memory [machines, dimension], and noise [per_round, dimension].
        """
        fresh = inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))
        old = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        return memory.at[inputs.machine].set(fresh, mode="drop"), fresh - old


@struct.dataclass
class Written(Standing):
    """Noise `r·(F⁻¹ξ)_k` in a machine's k-th message, see `noise.message_factors`. The only sampler of such messages.

    All normals are stored, [machines, messages, d].

    Attributes:
        rows: F⁻¹, shape [messages, messages].
        machines: number of machines.
    """

    method: ClassVar[str] = "materialised"
    inputs: MessageInputs
    rows: Any
    machines: int = struct.field(pytree_node=False)

    def message_memory(self, dimension: int, key):
        """Return every machine's normals before the first round, zero; shape [machines, messages, d]."""
        return jnp.zeros((self.machines, len(self.rows), dimension))

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Return each participant's added noise in one round: (memory, noise [per_round, d])."""
        fresh = jax.random.normal(key, (*inputs.machine.shape, dimension))
        message = inputs.count - 1
        memory = memory.at[inputs.machine, message].set(fresh, mode="drop")
        own = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        added = jnp.einsum("pk,pkd->pd", jnp.asarray(self.rows)[message], own, precision="highest")
        return memory, inputs.relative[:, None] * added

    def align(self, others: Sequence[Any]) -> list[Any]:
        most = max(len(other.rows) for other in others)
        return [replace(other, rows=np.pad(other.rows, (0, most - len(other.rows)))) for other in others]

    def floats(self, dimension: int) -> int:
        return super().floats(dimension) + self.inputs.machine.shape[-1] * len(self.rows) * dimension


@struct.dataclass
class Replayed(Standing):
    """Sampler of noise that machines cancel later. It stores no noise: old noise is computed again.

    A message adds new noise and subtracts the noise of the machine's previous message. The random key of a noise vector
    follows from the machine and the place of the message among the machine's messages. The old noise can therefore be
    sampled again when it is subtracted.

    Attributes:
        inputs: machine of each message, its place among the machine's messages, and divisor of each round's sum of
            messages. Also, in units of `noise_std`, the standard deviation of the noise of each message and of the
            machine's previous message.
    """

    method: ClassVar[str] = "replayed"
    inputs: MessageInputs

    def message_memory(self, dimension: int, key):
        """Return the random key from which the keys of all noise vectors are derived."""
        return jax.random.fold_in(key, 0)  # rounds are numbered from 1: key 0 is free

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Sample one round: return the memory and the noise that each participant adds to its message.

        A participant's noise is its new noise minus the noise of its previous message, which is sampled again from its
        key.

        Args:
            memory: key from which all noise is derived. It does not change.
            inputs: for each message of the round, its machine, its place among the machine's messages, and the standard
                deviations of its noise and of the noise of the machine's previous message, in units of `noise_std`.
            key: not used.
            dimension: number of model parameters.

        Returns:
            Memory, and noise [per_round, dimension].
        """

        def one(machine, count, relative, before):
            machine_key = jax.random.fold_in(memory, machine)
            new, old = (normals(jax.random.fold_in(machine_key, k), (dimension,)) for k in (count, count - 1))
            return relative * new - before * old

        return memory, jax.vmap(one)(inputs.machine, inputs.count, inputs.relative, inputs.before)
