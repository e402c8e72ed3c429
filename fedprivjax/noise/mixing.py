"""Mixing matrices of gossip: public weights with which machines average with their neighbours, in every round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import of_table, require_at_least
from fedprivjax.noise.graphs import Graph, as_graph, require_connected

SUMS = 1e-6  # largest distance of a row's or column's sum from 1
MOST_WEIGHTS = 2**26  # numbers in the matrices of all rounds


@final
@dataclass(frozen=True)
class Matchings:
    """Random pairs of machines for gossip, sampled again for each round: an argument of `Mixing`.

    The two machines of a pair continue with the mean of their vectors. With an odd number of machines, one machine of
    each round has no partner.

    Attributes:
        rounds: number of rounds for which pairs are sampled. After these rounds, the pairs repeat.
        seed: seed of the pairs, which is public.

    >>> Mixing(Matchings(rounds=50)).weights(4).shape
    (50, 4, 4)
    """

    rounds: int
    seed: int = 0
    nodes = None

    def __post_init__(self):
        require_at_least("rounds of matchings", self.rounds, 1)
        require_at_least("seed", self.seed, 0)

    def __str__(self) -> str:
        return f"matchings of {self.rounds} rounds, seed {self.seed}"

    def matrices(self, machines: int) -> np.ndarray:
        """Return the averaging weights of every round, float64 [rounds, machines, machines].

        Machine i of a round continues with Σ_j W_ij·x_j, with the round's matrix W and the vectors x_j that machines j
        send.
        """
        rng = np.random.default_rng(self.seed)
        orders = (rng.permutation(machines)[: machines // 2 * 2].reshape(-1, 2) for _ in range(self.rounds))
        return np.stack([metropolis(pairs, machines) for pairs in orders])


@dataclass(frozen=True)
class GivenWeights:
    """A mixing matrix, as the bytes of its float64 numbers."""

    nodes: int
    numbers: bytes

    def __str__(self) -> str:
        return f"weights of {self.nodes} machines"

    def matrices(self, machines: int) -> np.ndarray:
        """Return the weights, float64 [1, machines, machines]."""
        return np.frombuffer(self.numbers).reshape(1, self.nodes, self.nodes)


@final
@dataclass(frozen=True, init=False)
class Mixing:
    """Public weights by which machines average with their neighbours in gossip, for each round.

    Machine i continues with Σ_j W_ij·x_j, where x_j is the vector that machine j sends. Rows and columns of W sum to 1.
    If a graph is given instead of W, the weights are Metropolis-Hastings weights: neighbours i and j have W_ij = 1/(1 +
    max(degree_i, degree_j)).

    Args:
        *turns: graphs, matrices W or `Matchings`, for one round after another. After the last one, the first is used
            again. A graph is given as for `Pairwise`, such as "ring". A matrix of 0 and 1 counts as a graph.

    >>> Mixing("ring").weights(4)[0].round(2).tolist()[0]
    [0.33, 0.33, 0.0, 0.33]
    """

    turns: tuple[Any, ...]

    def __init__(self, *turns: Any):
        if not turns:
            raise Refusal("mixing must have a graph or a matrix, got none. Give one, such as 'ring'")
        object.__setattr__(self, "turns", tuple(map(_turn, turns)))

    def __str__(self) -> str:
        return ", then ".join(map(str, self.turns)) if len(self.turns) < 4 else f"{len(self.turns)} graphs in turn"

    @property
    def nodes(self) -> int | None:
        """Number of machines for which the weights are defined, or None if it can be any number."""
        return next((turn.nodes for turn in self.turns if turn.nodes is not None), None)

    def weights(self, machines: int) -> np.ndarray:
        """Return the weight matrix W of each round, float64 [period, machines, machines].

        After `period` rounds, the first matrix is used again.

        Raises:
            Refusal: if the graphs of all rounds together do not connect all machines, if a graph is for another number
                of machines, or if the matrices would be too large.
        """
        for turn in self.turns:
            if turn.nodes not in (None, machines):
                raise Refusal(
                    f"mixing must be of all machines, {machines}, got {turn} of {turn.nodes}. Use another graph, or "
                    f"{turn.nodes} machines"
                )
        period = sum(getattr(turn, "rounds", 1) for turn in self.turns)
        if period * machines**2 > MOST_WEIGHTS:
            raise Refusal(
                f"mixing must have at most {MOST_WEIGHTS} weights, got {period} matrices of {machines} machines. Use "
                f"fewer rounds or machines"
            )
        found = np.concatenate([_matrices(turn, machines) for turn in self.turns])
        require_connected(np.argwhere(np.triu(found.sum(axis=0) + found.sum(axis=0).T, 1)), machines, "mixing")
        return found


def metropolis(edges: np.ndarray, machines: int) -> np.ndarray:
    """Return the Metropolis-Hastings weights of a graph, float64 [machines, machines].

    >>> metropolis(np.array([[0, 1]]), 3).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    degree, found = np.bincount(edges.ravel(), minlength=machines), np.zeros((machines, machines))
    one, other = edges.T
    found[one, other] = found[other, one] = 1 / (1 + np.maximum(degree[one], degree[other]))
    return found + np.diag(1 - found.sum(axis=1))


def as_mixing(given: Any) -> Mixing:
    """Return a mixing from itself, one graph or matrix, or a list of them.

    >>> str(as_mixing(["ring", "complete"])), str(as_mixing([[0.5, 0.5], [0.5, 0.5]]))
    ('ring, then complete', 'weights of 2 machines')
    """
    if isinstance(given, Mixing):
        return given
    if not isinstance(given, list | tuple):
        return Mixing(given)
    rows = [isinstance(one, list | tuple | np.ndarray) and np.ndim(one) == 1 for one in given]
    return Mixing(given) if rows and all(rows) else Mixing(*given)


def _matrices(turn: Any, machines: int) -> np.ndarray:
    return metropolis(turn.links(machines), machines)[None] if isinstance(turn, Graph) else turn.matrices(machines)


def _turn(given: Any) -> Any:
    """Return one graph, `Matchings` or weights, from one of them, a table of its settings, or a matrix."""
    if isinstance(given, Matchings | GivenWeights):
        return given
    if isinstance(given, Mapping) and given.get("kind") == "matchings":
        return of_table("mixing", given, {"matchings": Matchings})
    try:
        matrix = np.zeros(0) if hasattr(given, "nodes") else np.asarray(given, float)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.ndim != 2 or np.isin(matrix, (0, 1)).all():
        return as_graph(given)
    _require_stochastic(matrix)
    return GivenWeights(len(matrix), np.ascontiguousarray(matrix).tobytes())


def _require_stochastic(matrix: np.ndarray) -> None:
    """Raise Refusal unless a matrix is square, without negative weights, and its rows and columns sum to 1."""
    if matrix.shape[0] != matrix.shape[1]:
        raise Refusal(f"mixing must be a square matrix, got shape {list(matrix.shape)}. Give one row for each machine")
    if not (matrix >= 0).all():
        u, v = np.argwhere(~(matrix >= 0))[0]
        got = f"{matrix[u, v]:g} in row {u}, column {v}"
        raise Refusal(f"mixing must have no negative weights, got {got}. Use weights from 0 to 1")
    for axis, name in ((1, "row"), (0, "column")):
        sums = matrix.sum(axis=axis)
        if not np.allclose(sums, 1, rtol=0, atol=SUMS):
            place = int(np.argmax(np.abs(sums - 1)))
            raise Refusal(
                f"mixing must have rows and columns that sum to 1, got {sums[place]:g} in {name} {place}. Balance the "
                f"weights, because push-sum is not available, or give the graph"
            )
