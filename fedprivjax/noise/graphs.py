"""Graphs of machines, by name or by edges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import called, of_table, require_at_least


class Graph:
    """Base class of graphs whose nodes are machines.

    A subclass is a frozen dataclass that defines `pairs`. Two machines that an edge connects can share noise or
    exchange messages.

    Attributes:
        nodes: number of machines of the graph, or None if it can be built for any number.
    """

    nodes: int | None = None

    def pairs(self, machines: int) -> Any:
        """Return the indices of the two machines of every edge, int [edges, 2]. Subclasses define this method.

        The order of the two machines does not matter, and edges may occur several times.
        """
        raise Undefined(f"{type(self).__name__} must define pairs(machines)")

    def edges(self, machines: int) -> np.ndarray:
        """Return every edge once, as the indices of its two machines, the smaller index first; int [edges, 2].

        Raises:
            Refusal: if the graph is not connected, has an edge from a machine to itself, or is for another number of
                machines.
        """
        found = self.links(machines)
        require_connected(found, machines)
        return found

    def links(self, machines: int) -> np.ndarray:
        """Return every edge once, as the indices of its two machines; int [edges, 2].

        The graph may be in several pieces. Use `edges` instead if the graph must be connected.
        """
        require_at_least("machines of a graph", machines, 2)
        if self.nodes not in (None, machines):
            raise Refusal(
                f"graph must have as many nodes as there are machines, {machines}, got {self.nodes}. Use another "
                f"graph, or {self.nodes} machines"
            )
        found = np.unique(np.sort(np.asarray(self.pairs(machines), int).reshape(-1, 2), axis=1), axis=0)
        _require_no_loops(found)
        if found.size and not 0 <= found.min() <= found.max() < machines:
            raise Refusal(f"pairs of graph must be machines 0 to {machines - 1}, got {found.min()} to {found.max()}")
        return found


def require_connected(edges: np.ndarray, machines: int, name: str = "graph") -> None:
    """Raise Refusal if a graph of machines is in pieces."""
    links = coo_array((np.ones(len(edges)), tuple(edges.T)), shape=(machines, machines))
    pieces, piece = connected_components(links, directed=False)
    if pieces > 1:
        smallest = int(np.argmin(np.bincount(piece)))
        some = np.flatnonzero(piece == smallest)
        who = f"machine {some[0]} stands alone" if some.size == 1 else f"machines {some[:5].tolist()} are apart"
        raise Refusal(f"{name} must be connected, got {pieces} pieces: {who}. Add edges between the pieces")


@dataclass(frozen=True)
class Ring(Graph):
    """Every machine is a neighbour of the next one, and the last of the first.

    >>> Ring().edges(4).tolist()
    [[0, 1], [0, 3], [1, 2], [2, 3]]
    """

    def __str__(self) -> str:
        return "ring"

    def pairs(self, machines: int) -> Any:
        return np.stack([np.arange(machines), (np.arange(machines) + 1) % machines], axis=1)


@dataclass(frozen=True)
class Complete(Graph):
    """All machines are neighbours."""

    def __str__(self) -> str:
        return "complete"

    def pairs(self, machines: int) -> Any:
        return np.stack(np.triu_indices(machines, 1), axis=1)


@dataclass(frozen=True)
class Torus(Graph):
    """Graph of machines on a grid: the neighbours of a machine are to its left and right, above and below.

    The grid wraps around: the first and last machine of a row or column are neighbours, too.

    Attributes:
        rows, columns: numbers of rows and columns of the grid. Their product is the number of machines, at least 2.

    >>> Torus(4, 4).edges(16).shape
    (32, 2)
    """

    rows: int
    columns: int

    def __post_init__(self):
        for name in ("rows", "columns"):
            require_at_least(name, getattr(self, name), 1, "rows · columns is the number of machines")

    def __str__(self) -> str:
        return f"torus {self.rows} x {self.columns}"

    @property
    def nodes(self) -> int:  # type: ignore[override]
        return self.rows * self.columns

    def pairs(self, machines: int) -> Any:
        place = np.arange(machines).reshape(self.rows, self.columns)
        both = [np.stack([place, np.roll(place, -1, axis=axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)]
        found = np.concatenate(both)
        return found[found[:, 0] != found[:, 1]]  # a row of one machine has no edges


@dataclass(frozen=True)
class RandomRings(Graph):
    """Random graph: a union of rings, each of which goes through all machines in a random order.

    The graph is connected, and a machine has at most `2·rings` neighbours.

    Attributes:
        rings: number of rings.
        seed: seed of the graph, which is public.

    >>> int(np.bincount(RandomRings(rings=2).edges(20).ravel()).max())
    4
    """

    rings: int = 2
    seed: int = 0

    def __post_init__(self):
        require_at_least("rings", self.rings, 1)
        require_at_least("seed", self.seed, 0)

    def __str__(self) -> str:
        return f"random of {self.rings} rings, seed {self.seed}"

    def pairs(self, machines: int) -> Any:
        rng = np.random.default_rng(self.seed)
        orders = [rng.permutation(machines) for _ in range(self.rings)]
        return np.concatenate([np.stack([order, np.roll(order, -1)], axis=1) for order in orders])


@dataclass(frozen=True)
class GivenGraph(Graph):
    """A graph by its edges.

    Attributes:
        size: number of machines.
        ends: the two ends of each edge.
    """

    size: int
    ends: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{self.size} machines and {len(self.ends)} edges"

    @property
    def nodes(self) -> int:  # type: ignore[override]
        return self.size

    def pairs(self, machines: int) -> Any:
        return self.ends


GRAPHS: dict[str, Callable[..., Graph]] = {"ring": Ring, "complete": Complete, "torus": Torus, "random": RandomRings}


def as_graph(graph: Any) -> Graph:
    """Return a graph from a name, a table with `kind`, a symmetric matrix of 0 and 1, or a networkx graph.

    Raises:
        Refusal: it is none of these.

    >>> as_graph({"kind": "torus", "rows": 2, "columns": 3})
    Torus(rows=2, columns=3)
    >>> as_graph([[0, 1], [1, 0]])
    GivenGraph(size=2, ends=((0, 1),))
    """
    if isinstance(graph, Graph):
        if type(graph).__hash__ is None:
            raise Refusal(f"graph must be hashable, got {type(graph).__name__}. Make it a frozen dataclass")
        return graph
    if isinstance(graph, str):
        graph = {"kind": graph}
    if isinstance(graph, Mapping) and "kind" in graph:
        return of_table("graph", graph, GRAPHS)
    if hasattr(graph, "nodes") and hasattr(graph, "edges"):
        return _of_networkx(graph)
    return _of_matrix(graph)


def _of_networkx(graph: Any) -> Graph:
    nodes, wanted = list(graph.nodes), set(range(len(graph.nodes)))
    if set(nodes) != wanted:
        raise Refusal(
            f"nodes of graph must be the machines 0 to {len(nodes) - 1}, got {str(nodes)[:60]}. Use "
            f"networkx.convert_node_labels_to_integers"
        )
    if graph.is_directed():
        raise Refusal("graph must be undirected, got a directed one. Use graph.to_undirected()")
    ends = [(int(edge[0]), int(edge[1])) for edge in graph.edges]
    _require_no_loops(ends)
    return GivenGraph(len(nodes), tuple(ends))


def _require_no_loops(ends: Any) -> None:
    loops = [one for one, other in ends if one == other]
    if loops:
        raise Refusal(f"graph must have no edge from a machine to itself, got one at machine {loops[0]}")


def _of_matrix(given: Any) -> Graph:
    try:
        matrix: Any = np.atleast_1d(np.asarray(given, float))
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.shape != (len(matrix),) * 2:
        known = "', '".join(GRAPHS)
        raise Refusal(f"graph must be '{known}', a square matrix or a networkx graph, got {called(given)}")
    problems = {
        "be symmetric": matrix != matrix.T,
        "have no negative weights": matrix < 0,
        "have entries 0 and 1, and no mixing weights": ~np.isin(matrix, (0, 1)),
        "have no edge from a machine to itself": np.diag(np.diag(matrix)) != 0,
    }
    for needed, wrong in problems.items():
        if wrong.any():
            u, v = np.argwhere(wrong)[0]
            raise Refusal(f"graph must {needed}, got {matrix[u, v]:g} in row {u}, column {v}")
    return GivenGraph(len(matrix), tuple((int(u), int(v)) for u, v in np.argwhere(np.triu(matrix))))
