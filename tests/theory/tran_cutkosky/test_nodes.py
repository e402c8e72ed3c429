"""Node counts and sensitivities, compared with every record, node and order of small trees."""

import itertools

import numpy as np
import pytest
from oracles.reduced_momentum import dyadic

from fedprivjax import Refusal
from fedprivjax.theory import tran_cutkosky as tc

RNG = np.random.default_rng(0)


def tree(rounds):
    """Every node [first, last] of the tree."""
    return [(c * 2**k + 1, (c + 1) * 2**k) for k in range(rounds.bit_length()) for c in range(rounds >> k)]


def drawn(records, epochs, order):
    first = RNG.permutation(records)
    return np.concatenate([first if order == "cyclic" else RNG.permutation(records) for _ in range(epochs)])


def held(uses, node, record, alpha):
    """Weight of a record in the discounted sum of a node; `uses` is the record of every round."""
    times = np.arange(node[0], node[1] + 1)
    return np.sum((uses[times - 1] == record) * (1 - alpha) ** (node[1] - times))


@pytest.mark.parametrize(
    ("rounds", "records"),
    [
        (64, 8),
        (256, 16),
        pytest.param(1000, 10, marks=pytest.mark.slow),
        pytest.param(1024, 100, marks=pytest.mark.slow),
        (37, 5),
    ],
)
def test_no_record_is_in_more_nodes_than_counted(rounds, records):
    most, released = 0, {(t - (t & -t) + 1, t) for t in range(1, rounds + 1)}
    for order in ("cyclic", "reshuffled"):
        uses = drawn(records, -(-rounds // records), order)[:rounds]
        within = {node: set(uses[node[0] - 1 : node[1]]) for node in tree(rounds)}
        most = max(most, *(sum(record in held for held in within.values()) for record in range(records)))
        used = max(sum(record in within[node] for node in released) for record in range(records))
        assert used <= {"cyclic": 0.9, "reshuffled": 0.65}[order] * most  # right children are never released
    count = tc.node_count(records=records, rounds=rounds)
    assert 0.9 * count <= most <= count <= 4 * rounds / records * np.log2(rounds)


def test_the_printed_count_is_too_small():
    """With T/N instead of ⌈T/N⌉ it is 86.7 for T = 1024 and N = 100, although a record is in 92 nodes."""
    assert 7 * 1024 / 100 + sum(1024 // 2**j for j in range(7, 11)) < 87
    assert tc.node_count(records=100, rounds=1024) == 92
    assert tc.node_count(records=[8, 100], rounds=[[512], [1024]]).tolist() == [[319, 49], [639, 92]]


@pytest.mark.parametrize("order", ["cyclic", "reshuffled"])
def test_sensitivities_hold_for_all_orders_and_are_attained(order):
    records, epochs, alpha = 3, 4, 0.35
    every = list(itertools.permutations(range(records)))
    orders = itertools.product(every, repeat=epochs) if order == "reshuffled" else ([each] * epochs for each in every)
    runs = np.array([np.concatenate(each) for each in orders])
    for node in tree(records * epochs):
        span = slice(node[0] - 1, node[1])
        weights = (1 - alpha) ** np.arange(node[1] - node[0], -1.0, -1)
        worst = max(((runs[:, span] == record) @ weights).max() for record in range(records))
        stated = tc.node_sensitivity(first=node[0], last=node[1], records=records, alpha=alpha, order=order)
        assert worst == pytest.approx(stated, rel=1e-12)
        assert stated <= tc.sensitivity_cap(records=records, alpha=alpha, order=order)


def test_longer_epochs_at_random():
    records, alpha, worst = 7, 1 / 7, []
    for order in ("cyclic", "reshuffled"):
        nodes = np.array(tree(56))
        stated = tc.node_sensitivity(first=nodes[:, 0], last=nodes[:, 1], records=records, alpha=alpha, order=order)
        for _ in range(20):
            uses = drawn(records, 8, order)
            found = [max(held(uses, node, record, alpha) for record in range(records)) for node in nodes]
            assert (found <= stated + 1e-12).all()
            worst.append(np.max(found))
    cyclic = tc.node_sensitivity(first=nodes[:, 0], last=nodes[:, 1], records=records, alpha=alpha)
    assert (stated >= cyclic).all()
    assert max(worst[20:]) > cyclic.max()  # a reshuffled run that the cyclic formula does not cover


def test_caps():
    """The paper's 2 holds in cyclic order only. Both caps are approached. At α = 1 a node is its last round."""
    for times in (1.0, 2.0, 8.0):
        alpha = times / 10**5
        caps = [tc.sensitivity_cap(order=order, records=10**5, alpha=alpha) for order in ("cyclic", "reshuffled")]
        series = 1 / (1 - np.exp(-times))
        assert caps == pytest.approx([series, 1 + series], rel=1e-3)
        assert caps[0] < 2 < caps[1] or times == 8
        for cap, order in zip(caps, ("cyclic", "reshuffled"), strict=True):
            found = tc.node_sensitivity(first=1, last=40 * 10**5 + 1, records=10**5, alpha=alpha, order=order)
            assert found == pytest.approx(cap, rel=1e-4)
    assert tc.node_sensitivity(first=1, last=64, records=8, alpha=1.0, order="reshuffled") == 1


@pytest.mark.parametrize(("records", "epochs"), [(8, 8), (16, 16), (5, 9), (2, 6), (13, 4), (3, 5)])
def test_the_nodes_of_algorithm_2(records, epochs):
    """The number of nodes read by the reconstruction that contain one record is at most the corrected count."""
    rounds = records * epochs
    anchors, differences = set(), set()
    for t in range(1, rounds + 1):
        q, r = divmod(t, records)
        anchors |= set(dyadic(1, r)) | (set(dyadic(r + 1, r + records)) if q else set())
        for i in range(1, q):
            block = set(dyadic(t - i * records + 1, t - (i - 1) * records))
            anchors, differences = anchors | block, differences | block
    assert max(last - first + 1 for first, last in anchors) <= records
    residuals = {node for t in range(1, rounds + 1) for node in dyadic(1, t)}
    order = np.tile(np.arange(records), epochs)

    def most(*groups):
        count = [sum(record in order[a - 1 : b] for nodes in groups for a, b in nodes) for record in range(records)]
        return max(count)

    early, late = tc.reduced_node_counts(records=records, rounds=rounds)
    end = 2 * records
    soon = [{node for node in nodes if node[1] <= end} for nodes in (anchors, differences)]
    after = [nodes - first for nodes, first in zip((anchors, differences), soon, strict=True)]
    assert early - 3 <= most(*soon) <= early
    assert most(*after) <= late
    assert most(residuals) <= late
    if records == 16:
        assert most(*soon) > tc.reduced_node_counts(records=records, rounds=rounds, form="paper").early


def test_the_late_nodes_also_where_the_records_do_not_divide_the_rounds():
    """At most `(⌊log₂N⌋ + 1)(2⌈T/N⌉ − 1)` nodes are read, in both trees together."""
    records, rounds = (grid.ravel() for grid in np.meshgrid(np.arange(2, 100), np.arange(2, 700)))
    records, rounds = records[rounds >= records], rounds[rounds >= records]
    late = tc.reduced_node_counts(records=records, rounds=rounds).late
    assert (np.floor(np.log2(records) + 1) * (2 * np.ceil(rounds / records) - 1) <= late + 1e-9).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"records": 10, "rounds": 9}, r"rounds must be at least records \(10\), got 9"),
        ({"records": 0, "rounds": 9}, "records must be at least 1"),
    ],
)
def test_refusals_of_counts(wrong, said):
    with pytest.raises(Refusal, match=said):
        tc.node_count(**wrong)


def test_refusals_of_nodes():
    for alpha in (0.2, 1.1):
        with pytest.raises(Refusal, match="alpha must be between 1/records"):
            tc.node_sensitivity(first=1, last=8, records=4, alpha=alpha)
    with pytest.raises(Refusal, match="order"):
        tc.node_sensitivity(first=1, last=8, records=4, alpha=0.5, order="random")
    with pytest.raises(Refusal, match="last must be at least first"):
        tc.node_sensitivity(first=9, last=8, records=4, alpha=0.5)
    with pytest.raises(Refusal, match="records must be at least 2"):
        tc.reduced_node_counts(records=1, rounds=8)
