"""Pairwise noise on a graph (DECOR, Allouah et al. 2024).

Every machine adds its own noise, of standard deviation r·σ, to its message. The two ends of every edge also share noise
of standard deviation s·σ, from a seed that only they know: one end adds it, the other subtracts it. With everybody's
message, one coordinate of the noise has the covariance σ²·K, K = diag(r²) + s²·L, with the graph's Laplacian L. In the
sum of the messages, the shared noise cancels.

An edge has noise in a round if both of its ends are scheduled. If one of them drops out, the noise of the other one
does not cancel. Guarantees do not count it, so they also hold if the survivors later publish it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import of_table, require_choice, require_positive
from fedprivjax.noise.graphs import Graph, as_graph
from fedprivjax.noise.interface import Fresh, Mechanism, MessageInputs, PerMachine, mean_of_fresh, normals
from fedprivjax.plan.schedule import Schedule

LARGEST = 1e3  # of the shared noise: more would not be exact in float32
MOST_MACHINES = 4000  # messages of a round with a dense covariance
CHUNK_FLOATS = 2**20  # numbers of edges' noise in memory at once


@final
@dataclass(frozen=True)
class Pairwise(Decorated):
    """Noise that pairs of machines share: one machine adds it to its message, and the other subtracts it.

    The pairs are the edges of a graph. In the sum of all messages, the noise of a pair cancels, except if one of the
    two machines drops out. Each machine also adds independent noise. If the server is not trusted (trust "none"), pass
    a `Pairwise` as `noise` of `NoisyMessages`, `NoisyRecords` and `LocalPrivacy`, or as `noise_schedule` of `FedAvg`.

    Source: Allouah et al. 2024 (DECOR).

    Attributes:
        graph: "ring", "complete", a `Torus(rows, columns)`, a `RandomRings(rings, seed)`, a symmetric matrix of 0 and 1
            or a networkx graph with the machines 0 to n − 1. An experiment file may also give a table with the key
            `kind`, which is "torus" or "random".
        shared: standard deviation of the noise of one edge, divided by the standard deviation of a machine's
            independent noise.

    Raises:
        Refusal: if the graph has none of these forms, or if `shared` is not in (0, 1000].

    >>> Pairwise("ring", shared=3.0)
    Pairwise(graph=Ring(), shared=3.0)
    """

    kind, decorator, instead = "noise", FROZEN, "Define a Graph"
    graph: Any = "ring"
    shared: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "graph", as_graph(self.graph))
        require_positive("shared", self.shared)
        if self.shared > LARGEST:
            raise Refusal(f"shared must be at most {LARGEST:g}, beyond which sums lose digits, got {self.shared:g}")

    def __str__(self) -> str:
        return f"Pairwise(graph={self.graph}, shared={self.shared:g})"

    @property
    def nodes(self) -> int | None:
        """Number of machines of the graph, or None if it can be built for any number."""
        return self.graph.nodes

    def covariance(self, own: Any) -> "EdgeCovariance":
        """Return a function that computes the covariance over machines of the noise of a round's messages.

        The function takes two arrays of shape [n]: the indices of the n machines of a round, and a mask that is False
        for machines whose random seeds the adversary knows. It returns the covariance of one coordinate for
        `noise_std` = 1, float64 [n, n]. The adversary also knows the noise that other machines share with these
        machines, so that this noise does not count.

        Args:
            own: standard deviation of each machine's independent noise in units of `noise_std`, shape [machines].
        """
        return EdgeCovariance(self, tuple(np.asarray(own, float).tolist()))

    def mechanism(self, schedule: Schedule, relative: np.ndarray, divisor: Any, method: str) -> Mechanism:
        """Return the sampler of the noise in each round's sum of messages, divided by a divisor.

        Args:
            schedule: participation schedule: which machines take part in each round.
            relative: standard deviation of the independent noise in every message, in units of `noise_std`; shape
                [rounds, per_round].
            divisor: divisor of each round's sum, one number or shape [rounds].
            method: "materialised" samples the noise of every message. "auto" and "aggregate" sample only the noise of
                the sum.
        """
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        relative = np.where(schedule.present, relative, 0.0)
        edges = edges_of(self.graph, schedule.machines)
        if method != "materialised":
            left = self.shared * np.sqrt(uncancelled(schedule, edges))
            return SumOfPairwise(np.asarray(mean_of_fresh(np.column_stack([relative, left]), divisor), np.float32))
        machine = np.where(schedule.scheduled, schedule.participants, schedule.machines).astype(np.int32)
        over = np.broadcast_to(np.asarray(divisor, np.float32), schedule.size.rounds)
        inputs = MessageInputs(np.asarray(relative, np.float32), over, machine)
        of_edges = {"ends": edges.astype(np.int32), "shared": np.float32(self.shared)}
        return PairwiseNoise(inputs, machines=schedule.machines, **of_edges)


@dataclass(frozen=True)
class EdgeCovariance:
    """Covariance of one coordinate of a round's messages, given the seeds of machines whose slots are not `hidden`."""

    noise: Pairwise
    own: tuple[float, ...]

    def __call__(self, machines: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        if hidden.sum() > MOST_MACHINES:
            raise Refusal(
                f"machines of a round must be at most {MOST_MACHINES} with pairwise noise if messages are seen, got "
                f'{hidden.sum()}. Use smaller cohorts, or the adversary SecureSum(), in a file "secure-sum"'
            )
        ends, squares = self._hidden_edges(machines, hidden), self.noise.shared**2
        degrees = np.bincount(ends.ravel(), minlength=machines.size)
        found = np.diag(np.asarray(self.own)[machines] ** 2 + squares * degrees)
        found[ends[:, 0], ends[:, 1]] = found[ends[:, 1], ends[:, 0]] = -squares
        return found

    def most(self, machines: np.ndarray, hidden: np.ndarray, size: int) -> np.ndarray:
        """Return upper bounds on (K⁻¹)_jj of every message, given the seeds of any `size` other machines, float64 [n].

        If an adversary also knows the noise of all edges but those of j, the graph is a star for it: with the
        neighbours l whose seeds are secret, 1/(K⁻¹)_jj = r_j² + Σ_l s²·r_l²/(s² + r_l²). The bound leaves out the
        `size` largest terms.
        """
        ends, squares = self._hidden_edges(machines, hidden), self.noise.shared**2
        own = np.asarray(self.own)[machines] ** 2
        term = squares * own / (squares + own)
        place, other = np.concatenate([ends, ends[:, ::-1]]).T
        order = np.lexsort((-term[other], place))
        place, other = place[order], other[order]
        rank = np.arange(place.size) - np.searchsorted(place, place)
        kept = np.bincount(place, np.where(rank < size, 0.0, term[other]), machines.size)
        return np.where(hidden, 1 / (own + kept), 0.0)

    def nearest(self, machine: int) -> np.ndarray:
        """Return the other machines, the neighbours of this one first, int [machines − 1]."""
        edges = edges_of(self.noise.graph, len(self.own))
        far = np.ones(len(self.own), bool)
        far[edges[(edges == machine).any(axis=1)]] = False
        order = np.argsort(far, kind="stable")
        return order[order != machine]

    def _hidden_edges(self, machines: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """Return the slots of the two ends of every edge between hidden slots, int [edges, 2]."""
        place = np.full(len(self.own), -1)
        place[machines[hidden]] = np.flatnonzero(hidden)
        ends = place[edges_of(self.noise.graph, len(self.own))]
        return ends[(ends >= 0).all(axis=1)]


@struct.dataclass
class SumOfPairwise(Fresh):
    """Noise of a mean of messages with pairwise noise, without that of each message."""

    exchangeable = False
    label = "pairwise"


@struct.dataclass(kw_only=True)
class PairwiseNoise(PerMachine):
    """Sampler of every message's noise: independent noise, plus noise shared with neighbours in a graph.

    Standard deviations are in units of `noise_std`.

    Attributes:
        inputs: machine of each message, standard deviation of its independent noise, and divisor of each round's sum of
            messages.
        accumulate: True to return the sum of the noise of all rounds so far, instead of the noise of each round.
        summed: True if the aggregate is the sum of the messages, False if it is this sum divided by the divisor in
            `inputs`.
        ends: machines at the two ends of each edge of the graph, int32 [edges, 2].
        shared: standard deviation of the noise of an edge.
        machines: number of machines.
    """

    exchangeable = False
    label = "pairwise"
    ends: Any
    shared: Any
    machines: int = struct.field(pytree_node=False)

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        slots = inputs.relative.size
        key, seed = jax.random.split(key)
        own = inputs.relative[:, None] * normals(key, (slots, dimension))
        place = jnp.full(self.machines + 1, slots).at[inputs.machine].set(jnp.arange(slots)).at[-1].set(slots)
        size = max(1, min(len(self.ends), CHUNK_FLOATS // dimension))
        chunks = -(-len(self.ends) // size)
        padded = jnp.pad(self.ends, ((0, chunks * size - len(self.ends)), (0, 0)), constant_values=self.machines)

        def add(noise, chunk):
            ends, number = chunk
            both = jnp.all(ends < slots, axis=1)
            found = self.shared * both[:, None] * normals(jax.random.fold_in(seed, number), (size, dimension))
            return noise.at[ends[:, 0]].add(found).at[ends[:, 1]].add(-found), None

        chunked = place[padded].reshape(chunks, size, 2), jnp.arange(chunks)
        pairs = jax.lax.scan(add, jnp.zeros((slots + 1, dimension)), chunked)[0][:slots]
        return memory, own + jnp.where(inputs.relative[:, None] > 0, pairs, 0.0)

    def floats(self, dimension: int) -> int:
        edges = min(len(self.ends), max(1, CHUNK_FLOATS // dimension))
        return (4 * self.inputs.relative.shape[-1] + 2 * edges) * dimension


@lru_cache(maxsize=8)
def edges_of(graph: Graph, machines: int) -> np.ndarray:
    """Return the edges of a graph, see `Graph.edges`. They are not to be changed."""
    found = Graph.edges(graph, machines)  # each edge once, also of a custom graph
    found.flags.writeable = False
    return found


def uncancelled(schedule: Schedule, edges: np.ndarray) -> np.ndarray:
    """Return the number of edges of each round with one end that drops out, whose noise stays in the sum; [rounds]."""
    found = np.zeros(schedule.size.rounds)
    if schedule.dropped is None:
        return found
    for t in np.flatnonzero(schedule.dropped.any(axis=1)):
        state = np.zeros(schedule.machines, int)  # 1 drops out, 2 sends
        state[schedule.participants[t, schedule.scheduled[t]]] = 1
        state[schedule.participants[t, schedule.present[t]]] = 2
        found[t] = np.sum(state[edges].prod(axis=1) == 2)
    return found


def as_pairwise(noise: Any) -> Any:
    """Return a setting `noise` with a table {kind = "pairwise", …} as a `Pairwise`, and any other one as it is.

    >>> as_pairwise({"kind": "pairwise", "shared": 2.0})
    Pairwise(graph=Ring(), shared=2.0)
    """
    if not (isinstance(noise, Mapping) and noise.get("kind") == "pairwise"):
        return noise
    return of_table("noise", noise, {"pairwise": Pairwise})
