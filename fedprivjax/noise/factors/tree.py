r"""Noise from a binary tree: a momentum's noise at round t is the discounted noise of the nodes that cover 1…t.

A node [y, z] holds `α·Σ_{t=y}^z (1−α)^{z−t}·g_t` and its own noise. COMPOSE(1, t) takes one node for each set bit of t,
of that bit's size. With b the lowest set bit of t,

    noise_t = (1−α)^b·noise_{t−b} + s_b·z_t

Only the log₂T latest `noise_{t−b}`, by the size of their last node, are needed again. Of the 2T − 1 nodes of a tree, T
are used: [t − b + 1, t] for each t.

With restarts, a new tree begins after every `restart` rounds. Then t counts the rounds of the current tree, and noise_0
is the last noise of the tree before. F is block diagonal, so that squared sensitivities of trees add up.

Tran & Cutkosky, NeurIPS 2022, Algorithms 1 and 3. Over a trusted server's rounds (α = 0): Dwork, Naor, Pitassi &
Rothblum 2010; Chan, Shi & Song 2011; DP-FTRL, also with restarts (Kairouz et al. 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.noise.factors.interface import Factor, Path, discount
from fedprivjax.noise.factors.matrices import entries
from fedprivjax.plan.uses import Uses

NODES = {
    "uniform": "every node has the same noise",
    "sensitivity": "a node's noise is proportional to its sensitivity to one record, in cyclic order",
}


def compose(first: int, last: int) -> list[tuple[int, int]]:
    """Return the smallest set of nodes of a binary tree that together cover the rounds `first` to `last` once.

    A node is returned as the pair of its first and last round: c·2^k + 1 and (c + 1)·2^k, for integers c ≥ 0 and k ≥ 0.
    The nodes are in the order of their rounds.

    >>> compose(1, 7), compose(4, 9)
    ([(1, 4), (5, 6), (7, 7)], [(4, 4), (5, 8), (9, 9)])
    """
    level, index, filled = window(last, last - first + 1)
    nodes = zip(level[filled].tolist(), index[filled].tolist(), strict=True)
    return sorted(((i << k) + 1, (i + 1) << k) for k, i in nodes)


def window(round: Any, epoch: int, numbers: Any = np) -> tuple[np.ndarray, Any, Any]:
    """Return the smallest set of binary tree nodes that together cover the last `epoch` rounds, up to `round`.

    If `round` is less than `epoch`, the nodes cover the rounds 1 to `round`.

    Args:
        round: number of the newest round, from 1, or an array of such numbers.
        epoch: number of rounds to cover.
        numbers: module of the arrays, numpy or jax.numpy.

    Returns:
        Three arrays: `level`, int [slots]; `index`, int [..., slots]; and a mask, bool [..., slots], True for slots
        that hold a node. The node in a slot has the rounds from index·2^level + 1 to (index + 1)·2^level.

    >>> level, index, filled = window(9, 6)
    >>> [(i * 2**k + 1, (i + 1) * 2**k) for k, i in zip(level[filled].tolist(), index[filled].tolist())]
    [(4, 4), (9, 9), (5, 8)]
    """
    left, right = numbers.maximum(round - epoch, 0), numbers.asarray(round)
    index, filled = [], []
    for _ in range(epoch.bit_length()):
        taken = (left < right) & (left % 2 == 1)
        index.append(left)
        filled.append(taken)
        left = left + taken
        taken = (left < right) & (right % 2 == 1)
        right = right - taken
        index.append(right)
        filled.append(taken)
        left, right = left >> 1, right >> 1
    return np.repeat(np.arange(epoch.bit_length()), 2), numbers.stack(index, -1), numbers.stack(filled, -1)


@dataclass(frozen=True)
class Tree(Factor):
    """Noise from a binary tree over rounds: every node is a sum over successive rounds, with independent noise.

    The sum over the rounds 1 to t has the noise of at most 1 + log₂ t nodes. A run stores about log₂ R vectors of
    noise, for R rounds.

    At equal privacy, running sums have more or less noise than with independent noise, depending on the rounds in which
    machines take part.

    Attributes:
        nodes: "uniform" gives every node the same noise. "sensitivity" makes the standard deviation of a node's noise
            proportional to the largest change of the node by one record. This change is computed as if every record
            were used once per epoch, always in the same order, so the method must have epochs. The guarantee itself
            counts the actual uses of each record.
        restart: number of rounds after which a new tree begins. The noise of finished trees stays in later sums. With
            None, one tree serves all rounds.

    The examples compute the squared norm by which one record changes all nodes together. In sums, a vector that is k
    rounds old has weight (1 − alpha)^k, so alpha = 0 gives running sums:

    >>> once = Uses(round=np.array([1]), record=np.array([0]), weight=np.ones(1), records=1)
    >>> Tree().squares(once, rounds=4, alpha=0.0).tolist()  # the nodes of the rounds 1, 1 to 2, and 1 to 4
    [3.0]
    >>> Tree().squares(once, rounds=4, alpha=1.0).tolist()  # a momentum that forgets all earlier rounds
    [1.0]
    >>> twice = Uses(round=np.array([1, 3]), record=np.array([0, 0]), weight=np.ones(2), records=1)
    >>> [float(Tree(restart=r).squares(twice, rounds=4, alpha=0.0)[0]) for r in (None, 2, 1)]
    [7.0, 4.0, 2.0]
    """

    nodes: str = "uniform"
    restart: int | None = None
    name: ClassVar[str] = "tree"
    theorem: ClassVar[str] = (
        "Tran & Cutkosky 2022, Theorem 4, with every record's exact part in its nodes; composition of Gaussians"
    )

    def __post_init__(self):
        require_choice("nodes", self.nodes, NODES)
        if self.restart is not None:
            require_at_least("restart", self.restart, 1)
            object.__setattr__(self, "restart", int(self.restart))

    def _length(self, rounds: int) -> int:
        """Return the number of rounds of a tree, of which the last may have fewer."""
        return min(rounds, self.restart or rounds)

    def matrix(self, over, workload=None, /) -> np.ndarray:
        """Return the tree's matrix F for sums over rounds. Row t sums the rounds of the node that ends at t.

        Every round t is the last round of exactly one node that is used. The rounds of this node are t − b + 1 to t,
        where b is the largest power of two that divides t. For t = 6, these are the rounds 5 and 6. If the tree
        restarts, every tree has such a block on the diagonal of F, and t counts the rounds of its tree.

        Args:
            over: the participation schedule, or the number of rounds.
            workload: not used.
        """
        t = np.arange(1, entries(over) + 1)
        local = (t - 1) % self._length(t.size) + 1
        return ((t > (t - (local & -local))[:, None]) & (t <= t[:, None])).astype(float)

    def memory(self, dimension: int, rounds: int) -> jax.Array:
        """Return zeros, in which `step` then stores the noise of earlier rounds; shape [vectors, dimension].

        There are 2 + ⌊log₂ L⌋ vectors, where L is the number of rounds of one tree.

        Args:
            dimension: number of model parameters.
            rounds: number of rounds of the run.
        """
        return jnp.zeros((self._length(rounds).bit_length() + 1, dimension))

    def step(self, path: Path, normal, alpha, epoch=None) -> Path:
        done = path.round if self.restart is None else path.round % self.restart
        round = done + 1
        bit = round & -round
        # written before it is read, so that XLA updates the rows in place
        rows = jax.lax.dynamic_update_index_in_dim(path.memory, path.last, _row(done), 0)
        carried = jax.lax.dynamic_index_in_dim(rows, _row(round - bit), 0, keepdims=False)
        size = bit.astype(normal.dtype)
        last = discount(alpha, size, jnp) * carried + self._std(size, alpha, epoch, jnp) * normal
        return Path(path.round + 1, last, rows)

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        squares, length = np.zeros(uses.records), self._length(rounds)
        before = (uses.round - 1) // length * length  # rounds of finished trees
        for level in range(length.bit_length()):
            node = (uses.round - 1 - before) >> level
            end = before + ((node + 1) << level)
            kept = (node % 2 == 0) & (end <= np.minimum(before + length, rounds))  # left children
            end, record = end[kept], uses.record[kept]
            if not end.size:
                continue
            parts = uses.weight[kept] * discount(alpha, end - uses.round[kept])
            _, record, sums = sums_by_node(end, record, parts)
            sums = sums / self._std(float(1 << level), alpha, epoch, np)
            squares += np.bincount(record, sums**2, minlength=uses.records)
        return squares

    def contributions(self, used, weight, rounds, alpha, epoch=None) -> np.ndarray:
        """Return each tree node's largest change by one record, divided by the node's noise; float64 [nodes].

        A node is the sum Σ_t (1 − α)^{z−t}·x_t over its rounds t, of which z is the last. The record can change x_t by
        any vector of norm at most the record's weight in round t. Changes are L2 norms, and noise is a standard
        deviation for `noise_std` = 1. The result has one number per node with a round that uses the record.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
            rounds: number of rounds of the run.
            alpha: α, from 0 to 1. With α = 0, nodes are sums without weights.
            epoch: number of rounds per epoch. None if the nodes' noise does not depend on it.
        """
        newest = np.arange(1, rounds + 1)
        local = (newest - 1) % self._length(rounds) + 1
        first = newest - (local & -local) + 1
        found = []
        for y, z in zip(first.tolist(), newest.tolist(), strict=True):
            size = z - y + 1
            if ((used >= y) & (used <= z)).any():
                found.append(in_node(used, weight, z, size, alpha) / float(self._std(float(size), alpha, epoch, np)))
        return np.array(found)

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        length, before = self._length(rounds), np.zeros(1)
        tree = np.zeros(length + 1)
        for level in reversed(range(length.bit_length())):
            size = 1 << level
            ends = np.arange(size, length + 1, 2 * size)
            own = float(self._std(float(size), alpha, epoch, np)) ** 2
            tree[ends] = discount(alpha, np.array(2 * size)) * tree[ends - size] + own
        kept = discount(alpha, np.array(2 * length))
        for _ in range(-(-rounds // length) - 1):
            before = np.append(before, kept * before[-1] + tree[-1])
        carried = discount(alpha, 2 * np.arange(1, length + 1)) * before[:, None]
        return (carried + tree[1:]).ravel()[:rounds]

    def _std(self, size, alpha, epoch, numbers):
        """Return a node's standard deviation, by its size."""
        if self.nodes == "uniform":
            return 1.0
        if epoch is None:
            raise Refusal(f"nodes must be 'uniform' without epochs, got {self.nodes!r}. Use Tree()")
        return occurrences(size, alpha, epoch, numbers)


def tree_of(name: str, table: Mapping[str, Any]) -> Tree:
    """Return the tree of a setting such as {"tree": 20}, which restarts every 20 rounds.

    >>> tree_of("factor", {"tree": 20})
    Tree(nodes='uniform', restart=20)
    """
    if [*table] != ["tree"]:
        raise Refusal(f"{name} must be a name, or the rounds of a tree such as {{'tree': 20}}, got {dict(table)!r}")
    return Tree(restart=table["tree"])


def in_node(used: np.ndarray, weight: np.ndarray, end: int, size: int, alpha: float) -> float:
    """Return the discounted sum of a record's weights in the node of `size` rounds that ends at `end`."""
    low, high = np.searchsorted(used, [end - size + 1, end + 1])
    return float(np.sum(weight[low:high] * (1 - alpha) ** (end - used[low:high])))


def sums_by_node(node: np.ndarray, record: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sums of parts per node and record: (node, record, sum). The uses must be sorted by both."""
    starts = np.flatnonzero(np.append(True, (np.diff(record) != 0) | (np.diff(node) != 0)))
    return node[starts], record[starts], np.add.reduceat(parts, starts)


def occurrences(size, alpha, epoch, numbers=np):
    """Return `Σ_{j<⌈size/N⌉} (1−α)^{jN}`: the discounted number of a record's occurrences in a node, in cyclic order.

    >>> float(occurrences(8.0, 0.5, 4.0)), float(occurrences(1.0, 1.0, 4.0))
    (1.0625, 1.0)
    """
    with np.errstate(divide="ignore"):
        log = numbers.log1p(-alpha)
        return numbers.expm1(numbers.ceil(size / epoch) * epoch * log) / numbers.expm1(epoch * log)


def _row(round):
    """Return 0 for round 0, otherwise 1 plus the position of the lowest set bit."""
    return jnp.where(round > 0, jax.lax.population_count((round & -round) - 1) + 1, 0)
