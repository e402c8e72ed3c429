"""Graphs of machines: by name, matrix or networkx's interface, and refusals in one line."""

import numpy as np
import pytest
from oracles.decor import adjacency

from fedprivjax import Pairwise, RandomRings, Refusal, Torus
from fedprivjax.noise.graphs import GivenGraph, Graph, Ring, as_graph
from fedprivjax.noise.pairwise import edges_of


class NetworkxLike:
    """The part of a networkx graph that is read."""

    def __init__(self, nodes, edges, directed=False):
        self.nodes, self.edges, self.directed = nodes, edges, directed

    def is_directed(self):
        return self.directed


def matrix_of(graph, machines):
    found = np.zeros((machines, machines))
    for one, other in as_graph(graph).edges(machines):
        found[one, other] = found[other, one] = 1
    return found


@pytest.mark.parametrize("machines", [2, 3, 4, 9])
def test_named_graphs_are_those_of_independent_code(machines):
    for name in ("ring", "complete"):
        np.testing.assert_array_equal(matrix_of(name, machines), adjacency(name, machines) * (1 - np.eye(machines)))
    if machines in (4, 9):
        side = int(machines**0.5)
        np.testing.assert_array_equal(matrix_of(Torus(side, side), machines), adjacency("torus", machines))


def test_a_graph_is_the_same_by_matrix_and_by_networkx():
    matrix = adjacency("random", 8)
    edges = [(int(u), int(v), 0) for u, v in np.argwhere(np.triu(matrix))]  # with keys, as of a multigraph
    given = as_graph(matrix), as_graph(NetworkxLike(range(8), edges))
    assert given[0] == given[1]
    np.testing.assert_array_equal(matrix_of(given[0], 8), matrix)
    assert Pairwise(matrix) == Pairwise(matrix.tolist())
    assert str(Pairwise(matrix, 3.0)) == f"Pairwise(graph=8 machines and {len(edges)} edges, shared=3)"
    assert repr(Pairwise(matrix)) != repr(Pairwise(np.roll(matrix, 1, axis=(0, 1))))  # of as many edges
    assert hash(Pairwise(matrix)) == hash(Pairwise(matrix.tolist()))


def test_random_rings_are_connected_and_the_same_for_a_seed():
    graph = matrix_of(RandomRings(rings=2, seed=3), 30)
    assert graph.sum(axis=1).max() <= 4
    np.testing.assert_array_equal(graph, matrix_of({"kind": "random", "rings": 2, "seed": 3}, 30))
    assert (graph != matrix_of(RandomRings(rings=2, seed=4), 30)).any()


ALONE = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
APART = np.kron(np.eye(2), 1 - np.eye(2))
WRONG = {
    "asymmetric": ([[0, 1], [0, 0]], "graph must be symmetric, got 1 in row 0, column 1"),
    "negative": (-adjacency("ring", 3), "graph must have no negative weights, got -1 in row 0, column 1"),
    "loop": (np.ones((2, 2)), "graph must have no edge from a machine to itself, got 1 in row 0, column 0"),
    "weights": (adjacency("ring", 3) / 3, "graph must have entries 0 and 1, and no mixing weights, got 0.333333"),
    "not a number": ([[0, np.nan], [np.nan, 0]], "graph must be symmetric, got nan"),
    "not square": (np.ones((2, 3)), "graph must be 'ring', 'complete', 'torus', 'random', a square matrix"),
    "other name": ("rng", "unknown kind of graph 'rng', did you mean 'ring'"),
    "number": (3, "graph must be 'ring', .*, got 3"),
    "an empty torus": (
        {"kind": "torus", "rows": 0, "columns": 3},
        "rows must be at least 1, got 0. rows · columns is the number of machines",
    ),
    "half a torus": ("torus", "rows must be given with graph of kind 'torus', got none"),
    "other key": ({"kind": "random", "degree": 3}, "unknown key of graph 'random' 'degree'"),
    "names": (NetworkxLike("ab", [("a", "b")]), "nodes of graph must be the machines 0 to 1, .*convert_node_labels"),
    "directed": (NetworkxLike([0, 1], [(0, 1)], True), "graph must be undirected"),
    "networkx loop": (NetworkxLike([0, 1], [(0, 1), (1, 1)]), "no edge from a machine to itself, got one at machine 1"),
}


@pytest.mark.parametrize(("graph", "message"), WRONG.values(), ids=WRONG)
def test_wrong_graphs_are_refused_in_one_line(graph, message):
    with pytest.raises(Refusal, match=message) as refusal:
        Pairwise(graph)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("graph", "machines", "message"),
    [
        (ALONE, 3, "graph must be connected, got 2 pieces: machine 2 stands alone"),
        (APART, 4, r"got 2 pieces: machines \[0, 1\] are apart"),
        (Torus(4, 4), 15, "graph must have as many nodes as there are machines, 15, got 16. Use another graph"),
        (adjacency("ring", 3), 4, "graph must have as many nodes as there are machines, 4, got 3"),
        ("ring", 1, "machines of a graph must be at least 2, got 1"),
        (GivenGraph(3, ((0, 1), (1, 7))), 3, "pairs of graph must be machines 0 to 2, got 0 to 7"),
    ],
    ids=["alone", "pieces", "torus", "matrix", "one machine", "outside"],
)
def test_graphs_that_do_not_fit_the_machines_are_refused(graph, machines, message):
    with pytest.raises(Refusal, match=message):
        as_graph(graph).edges(machines)


@pytest.mark.parametrize(
    ("shared", "message"), [(0, "positive"), (-1.0, "positive"), (2e3, "at most 1000"), ("a", "number")]
)
def test_the_noise_of_an_edge_is_a_positive_number(shared, message):
    with pytest.raises(Refusal, match=f"shared must be .*{message}"):
        Pairwise("ring", shared=shared)


def test_a_custom_graph_is_hashable():
    class Path(Graph):
        __hash__ = None

    with pytest.raises(Refusal, match="graph must be hashable, got Path"):
        Pairwise(Path())


def test_a_custom_graph_has_each_edge_once_and_none_to_itself():
    class Twice(Ring):
        def edges(self, machines):
            return np.concatenate([super().edges(machines)] * 2)

    np.testing.assert_array_equal(edges_of(Twice(), 4), Ring().edges(4))

    class Loops(Ring):
        def pairs(self, machines):
            return np.stack([np.arange(machines)] * 2, axis=1)

    with pytest.raises(Refusal, match="graph must have no edge from a machine to itself, got one at machine 0"):
        Loops().edges(4)


def test_pairwise_noise_is_sampled_by_its_own_functions():
    with pytest.raises(Refusal, match=r"Pairwise must not be subclassed, .* got Smaller\. Define a Graph"):

        class Smaller(Pairwise):  # type: ignore[misc]
            def mechanism(self, schedule, relative, divisor, method):
                return super().mechanism(schedule, 0.1 * relative, divisor, method)
