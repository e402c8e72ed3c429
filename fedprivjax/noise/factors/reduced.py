r"""Noise of a momentum that is computed from gradients at anchors and small differences, in windows of one epoch.

Three trees with nodes [y, z] hold discounted sums: of the gradients at each epoch's first iterate (anchors), of their
differences from one epoch's anchor to the next (differences), and of the differences between the gradients at the
iterate and at its anchor (residuals). With S_t(·) the discounted noise of COMPOSE(t−N+1, t) in one of the first two
trees, and r = t mod N,

    B_t = S_t(anchors)                                                 t < 2N (t < N: of COMPOSE(1, t))
    B_t = (1−γ)·(S_t(differences) + B_{t−N}) + γ·S_t(anchors)          from then on
    H_t = (1−α)^N·H_{t−N} + B_t                                        (t < N: B_t)
    noise_t = H_t + the residuals' tree's

so two rings of N vectors represent all past nodes. Tran & Cutkosky, NeurIPS 2022, Algorithms 2 and 4. The rings are an
exact rearrangement of the sum in Algorithm 4 (Lemma 17).
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.noise.factors.interface import Path, discount
from fedprivjax.noise.factors.tree import Tree, in_node, sums_by_node, window
from fedprivjax.plan.uses import Uses

ANCHORS, DIFFERENCES, RESIDUALS = 0, 2, 4  # indices in `Groups`

ALLOCATIONS = {
    "optimal": "the smallest noise in the momentum at the target privacy",
    "paper": "the noise of Tran & Cutkosky, by their counts of the nodes that contain a record",
}


class Groups(NamedTuple):
    """One number for each group of tree nodes that have equal noise, in the mechanism `ReducedTrees`.

    `ReducedTrees` has three binary trees over rounds: of gradients at each epoch's first iterate (its anchor), of
    differences between successive anchors' gradients, and of residuals, the differences between the current gradient
    and the anchor's.

    Attributes:
        anchors: nodes of the first tree that end in the first two epochs.
        later_anchors: all later nodes of the first tree.
        differences: nodes of the second tree that end in the first two epochs.
        later_differences: all later nodes of the second tree.
        residuals: all nodes of the third tree.
    """

    anchors: Any
    later_anchors: Any
    differences: Any
    later_differences: Any
    residuals: Any


class Normals(NamedTuple):
    """Normal vectors from which the mechanism `ReducedTrees` computes the noise of one round.

    The mechanism sums gradients in binary trees over rounds, and every node of a tree has its own noise. A round uses
    the nodes that together cover the last N rounds (one epoch), in a tree of gradients at each epoch's first iterate
    (anchors) and a tree of their differences. It also uses one node of a third tree (residuals).

    Attributes:
        nodes: normals of the nodes that cover the last epoch, in the first two trees; shape [2, slots, d] for d
            parameters. There are at most `slots` such nodes. Unused slots are 0.
        age: number of rounds since the last round of each node, int [slots].
        later: True for nodes that end after round 2N, bool [slots].
        residual: normals of the node of residuals that ends in this round, [d].
    """

    nodes: Any
    age: Any
    later: Any
    residual: Any


class Rings(NamedTuple):
    """State from which the mechanism `ReducedTrees` computes its noise round by round.

    The mechanism has three binary trees over rounds: of anchors, differences and residuals. H_t is the noise of the
    momentum in round t from the first two trees. B_t is the part of H_t from nodes within the last epoch, of N rounds.

    Attributes:
        last: noise of the momentum in the last round, from all three trees; shape [d] for d parameters.
        rows: H_t and B_t of the N rounds before the last one, shape [N, 2, d]. Round t is in row t mod N.
        newest: H_t and B_t of the last round, which are not yet in `rows`; shape [2, d].
        residual: state of the tree of residuals.
    """

    last: Any
    rows: Any
    newest: Any
    residual: Path


@dataclass(frozen=True)
class ReducedTrees:
    """Noise of a momentum from three binary trees over rounds (Tran & Cutkosky 2022, Algorithm 2).

    An epoch has `epoch` rounds, and all epochs use the same records in the same order. The first iterate of an epoch is
    its anchor. Every node of a tree holds a discounted sum over its rounds, and has its own noise. There is one tree
    for each of these vectors:

    * anchors: gradients at the epoch's anchor;
    * differences: gradients at the epoch's anchor minus gradients at the previous epoch's anchor;
    * residuals: gradients at the current iterate minus gradients at the epoch's anchor.

    Nodes with equal noise form five groups: the nodes of the first and of the second tree that end in the first two
    epochs, the later nodes of each, and all nodes of the third tree.

    Attributes:
        epoch: number of rounds of an epoch.

    >>> uses = Uses(np.array([1]), np.array([0]), np.ones(1), 1)
    >>> ReducedTrees(4).squares(uses, rounds=4, alpha=1e-9, reset_rate=0.5, drift=0.1).round(3).tolist()
    [[3.0, 0.0, 0.0, 0.0, 0.0]]
    """

    epoch: int

    def init(self, dimension: int, rounds: int) -> Rings:
        """Return the state before the first round, from which `step` computes the noise round by round.

        Args:
            dimension: number of model parameters.
            rounds: number of rounds of the run.
        """
        rows, newest = jnp.zeros((self.epoch, 2, dimension)), jnp.zeros((2, dimension))
        return Rings(jnp.zeros(dimension), rows, newest, Tree().init(dimension, rounds))

    def step(self, rings: Rings, drawn: Normals, alpha: Any, reset_rate: Any, stds: Groups) -> Rings:
        """Return the state one round later. Its `last` is the noise in that round's momentum.

        The noise is a sum over nodes of three binary trees over rounds: of gradients at each epoch's first iterate
        (anchors), of differences of these between epochs, and of residuals (current gradients minus gradients at the
        epoch's first iterate). Nodes with equal noise form groups.

        Args:
            rings: state after the round before.
            drawn: standard normals of the nodes that the round uses.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ in [0, 1]. From round 2·`epoch` on, a round's noise has the nodes of anchors with weight γ.
                The weight 1 − γ is that of the noise of one epoch before plus the nodes of differences.
            stds: standard deviation of the noise of each group's nodes.
        """
        residual = Tree().step(rings.residual, drawn.residual, alpha)
        round, size = residual.round, self.epoch
        # written before it is read, so that XLA updates the rows in place
        rows = jax.lax.dynamic_update_index_in_dim(rings.rows, rings.newest, (round - 1) % size, 0)
        sums, block = jax.lax.dynamic_index_in_dim(rows, round % size, 0, keepdims=False)
        anchors, differences = self._of_window(drawn, alpha, stds)
        reset = (1 - reset_rate) * (differences + block) + reset_rate * anchors
        block = jnp.where(round < 2 * size, anchors, reset)
        sums = jnp.where(round < size, 0.0, discount(alpha, float(size), jnp)) * sums + block
        return Rings(sums + stds.residuals * residual.last, rows, jnp.stack([sums, block]), residual)

    def squares(self, uses: Uses, rounds: int, alpha: float, reset_rate: float, drift: float) -> np.ndarray:
        """Return the squared sensitivity of each group of nodes to every record; float64 [records, groups].

        The nodes are of three binary trees over rounds: of gradients at each epoch's first iterate (anchors), of
        differences of these between epochs, and of residuals (current gradients minus gradients at the epoch's first
        iterate). A group is nodes with equal noise. The sensitivity is the squared change of a node by the record,
        summed over the nodes of a group. Changes are measured in units of the largest contribution of a record of
        weight 1 to one gradient. Only nodes that some round uses are counted, since no others are released.

        Args:
            uses: which rounds use which record, with which weight.
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ in [0, 1]. From round 2·`epoch` on, a round's noise has the nodes of anchors with weight γ.
                The weight 1 − γ is that of the noise of one epoch before plus the nodes of differences.
            drift: η·L/C, for step length η, smoothness L and bound C on the gradient norm. A record's contribution to
                the difference of two gradients k steps apart is at most min(k·drift, 2) times its largest contribution
                to one gradient.
        """
        squares = np.zeros((uses.records, len(Groups._fields)))
        for level in range(self.epoch.bit_length()):
            node = (uses.round - 1) >> level
            parts = uses.weight * discount(alpha, ((node + 1) << level) - uses.round)
            for tree, touched in enumerate(self.touched(node, level, rounds)):
                if not touched.any():
                    continue
                its_node, record, sums = sums_by_node(node[touched], uses.record[touched], parts[touched])
                later = (its_node + 1) << level > 2 * self.epoch
                sums = sums if tree == 0 else sums * _moved(drift, np.array(self.epoch))
                for half in (0, 1):
                    chosen = later == half
                    own = np.bincount(record[chosen], sums[chosen] ** 2, minlength=uses.records)
                    squares[:, 2 * tree + half] += own
        moved = uses._replace(weight=uses.weight * _moved(drift, (uses.round - 1) % self.epoch))
        squares[:, RESIDUALS] = Tree().squares(moved, rounds, alpha)
        return np.where(self.released(reset_rate), squares, 0.0)

    def contributions(
        self,
        used: np.ndarray,
        weight: np.ndarray,
        rounds: int,
        alpha: float,
        reset_rate: float,
        drift: float,
        stds: Groups,
    ) -> np.ndarray:
        """Return one record's change of each tree node, divided by the node's noise; shape [nodes].

        The trees sum three kinds of vectors over rounds: gradients at each epoch's first iterate (anchors), differences
        of these between epochs, and residuals (current gradients minus those at the anchor). Nodes with equal noise
        form groups. The noise is given by its standard deviation. The result has one number per node that the record
        changes. The nodes are enumerated one by one from the rounds that use them. `squares` uses another algorithm, so
        that one checks the other.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ in [0, 1]. From round 2·`epoch` on, a round's noise has the nodes of anchors with weight γ.
                The weight 1 − γ is that of the noise of one epoch before plus the nodes of differences.
            drift: η·L/C, for step length η, smoothness L and bound C on the gradient norm.
            stds: standard deviation of the noise of each group's nodes.
        """
        level, index, filled = window(np.arange(1, rounds + 1), self.epoch)
        end = np.where(filled, (index + 1) << level, 0)
        found = []
        for tree, from_round in ((ANCHORS, 1), (DIFFERENCES, 2 * self.epoch)):
            slots = zip(level.tolist(), end[from_round - 1 :].T, strict=True)
            named = {(z, 1 << k) for k, ends in slots for z in np.unique(ends).tolist() if z}
            moved = 1.0 if tree == ANCHORS else float(_moved(drift, np.array(self.epoch)))
            for z, size in named:
                std = stds[tree + (z > 2 * self.epoch)]
                if self.released(reset_rate)[tree + (z > 2 * self.epoch)]:
                    found.append(moved * in_node(used, weight, z, size, alpha) / float(std))
        shifted = weight * _moved(drift, (used - 1) % self.epoch)
        residual = Tree().contributions(used, shifted, rounds, alpha) / float(stds[RESIDUALS])
        return np.append([part for part in found if part], residual)

    def touched(self, node: np.ndarray, level: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which nodes of one tree level some round uses, in the trees of anchors and of differences.

        The trees sum gradients at each epoch's first iterate (anchors), and differences of these between epochs. A
        round t uses the fewest nodes that together cover the last epoch, up to round t. Other nodes are never released.

        Args:
            node: indices of nodes. Node i of level k covers the rounds i·2^k + 1 to (i + 1)·2^k.
            level: k, level of the nodes.
            rounds: number of rounds of the run.

        Returns:
            Two masks of the shape of `node`, for the tree of anchors and for the tree of differences.
        """
        size = 1 << level
        first, last = node * size + 1, (node + 1) * size
        leaves = first + self.epoch - 1
        left = node % 2 == 0
        begins = np.where(left, last, np.maximum(last, leaves - size + 1))
        ends = np.minimum(np.where(left, np.minimum(last + size - 1, leaves), leaves), rounds)
        anchors = np.maximum(begins, self.epoch) <= ends
        early = left & (last < self.epoch) & (last <= rounds)  # of COMPOSE(1, t)
        return anchors | early, np.maximum(begins, 2 * self.epoch) <= ends

    def released(self, reset_rate: float) -> np.ndarray:
        """Return True for each of the five groups of nodes that is used in some release; bool [5].

        The groups are nodes with equal noise in the trees of anchors (gradients at each epoch's first iterate), of
        differences of these between epochs, and of residuals (current gradients minus gradients at the epoch's first
        iterate). With `reset_rate` 1, the nodes of differences are never used. With `reset_rate` 0, the nodes of
        anchors are used only in the first two epochs.
        """
        return np.array(Groups(True, reset_rate > 0, reset_rate < 1, reset_rate < 1, True))

    def variances(self, rounds: int, alpha: float, reset_rate: float) -> np.ndarray:
        """Return each node group's part of the momentum's noise variance in every round; float64 [rounds, groups].

        The nodes are of three binary trees over rounds: of gradients at each epoch's first iterate (anchors), of
        differences of these between epochs, and of residuals (current gradients minus gradients at the epoch's first
        iterate). The result is the variance of one coordinate, if all nodes have noise of standard deviation 1.
        Variances of groups add up.

        Args:
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ in [0, 1]. From round 2·`epoch` on, a round's noise has the nodes of anchors with weight γ.
                The weight 1 − γ is that of the noise of one epoch before plus the nodes of differences.
        """
        variances = np.zeros((rounds + 1, len(Groups._fields)))
        variances[1:, RESIDUALS] = Tree().variances(rounds, alpha)
        variances[1 :: self.epoch, RESIDUALS] -= np.arange(1, rounds + 1, self.epoch) % 2  # see `empty`
        kept, windows = discount(alpha, np.array(self.epoch)), self._window_variances(rounds, alpha)
        only_anchors = np.array([1.0, 1.0, 0.0, 0.0])
        sums = covariance = blocks = only_anchors * windows[: self.epoch]
        variances[: self.epoch, :RESIDUALS] = sums
        for start in range(self.epoch, rounds + 1, self.epoch):
            new = windows[start : start + self.epoch]
            if start > self.epoch:
                new = new * np.array([reset_rate, reset_rate, 1 - reset_rate, 1 - reset_rate]) ** 2
                old = (1 - reset_rate) * covariance[: len(new)]
                blocks = (1 - reset_rate) ** 2 * blocks[: len(new)] + new
            else:
                old, blocks = np.zeros_like(new), only_anchors * new
            sums = kept**2 * sums[: len(new)] + 2 * kept * old + blocks
            covariance = kept * old + blocks
            variances[start : start + self.epoch, :RESIDUALS] = sums
        return variances[1:]

    def _of_window(self, drawn: Normals, alpha: Any, stds: Groups) -> tuple[Any, Any]:
        """Return the noise of the two windows, [d] each."""
        age = drawn.age.astype(drawn.nodes.dtype)
        kept = discount(alpha, jnp.maximum(age, 0.0), jnp)  # empty slots may have future rounds
        anchors = kept * jnp.where(drawn.later, stds.later_anchors, stds.anchors)
        differences = kept * jnp.where(drawn.later, stds.later_differences, stds.differences)
        one, other = drawn.nodes
        return jnp.matmul(anchors, one, precision="highest"), jnp.matmul(differences, other, precision="highest")

    def _window_variances(self, rounds: int, alpha: float) -> np.ndarray:
        """Return the variances of both trees' windows at unit noise, for early and later nodes; [rounds + 1, 4].

        Row 0 is zero.
        """
        round = np.arange(rounds + 1)
        level, index, filled = window(round, self.epoch)
        end = (index + 1) << level
        squares = np.where(filled, discount(alpha, round[:, None] - end) ** 2, 0.0)
        later = end > 2 * self.epoch
        halves = np.stack([np.sum(np.where(later == half, squares, 0.0), axis=1) for half in (False, True)], axis=1)
        return np.concatenate([halves, halves], axis=1)


def _moved(drift: float, steps: np.ndarray) -> np.ndarray:
    """Return the ratio of a record's contribution to a difference of gradients `steps` apart to that to one gradient.

    Both gradients are bounded, so the ratio is at most 2.
    """
    return np.where(steps == 0, 0.0, np.minimum(drift * np.maximum(steps, 1), 2.0))


def empty(round: Any, epoch: int) -> Any:
    """Return True if a round's node of the residuals' tree is empty: a leaf at an anchor, which needs no noise."""
    return ((round - 1) % epoch == 0) & (round % 2 == 1)


def optimal_stds(squares: np.ndarray, variances: np.ndarray) -> Groups:
    """Return the standard deviations of tree nodes' noise with the least total noise at a fixed privacy loss.

    Nodes are in five groups k, whose noise has standard deviation τ_k. The momentum has the noise variance `Σ_k
    A_k·τ_k²`, and the privacy loss is `Σ_k B_k/τ_k²`. Here A_k is the mean of `variances` over rounds, and B_k the
    largest of `squares` over records. The variance is least for `τ_k² ∝ √(B_k/A_k)`. The result is scaled to 1 for the
    first group. A group that no record changes has no noise.

    Args:
        squares: squared sensitivity of each group of nodes to every record, shape [records, groups].
        variances: noise variance of each round's momentum if all nodes have noise of standard deviation 1, shape
            [rounds, groups].

    >>> optimal_stds(np.array([[16.0, 1.0, 0, 0, 0]]), np.array([[1.0, 1.0, 1.0, 0, 0]]))
    Groups(anchors=1.0, later_anchors=0.5, differences=0.0, later_differences=0.0, residuals=0.0)
    """
    exposed, weight = squares.max(axis=0), variances.mean(axis=0)
    stds = np.divide(exposed, weight, out=np.ones_like(weight), where=weight > 0) ** 0.25
    stds = np.where(exposed > 0, stds, 0.0)
    return Groups(*(stds / stds[0]).tolist())


def total_squares(squares: np.ndarray, stds: Groups) -> np.ndarray:
    """Return μ² of every record, with the parameter μ of Gaussian differential privacy; shape [records].

    It is `Σ_k B_k/τ_k²` over the five groups k of tree nodes with equal noise, with B = `squares` of the record and τ =
    `stds`. It is inf if the record changes a group that has no noise.

    Args:
        squares: B, squared sensitivity of each group of nodes to every record, shape [records, groups].
        stds: τ, standard deviation of the noise of each group's nodes.

    >>> total_squares(np.array([[4.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]]), Groups(2.0, 0.0, 1.0, 1.0, 1.0)).tolist()
    [1.0, inf]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, squares / np.square(stds), 0.0).sum(axis=1)


def paper_stds(epoch: int, rounds: int, drift: float) -> Groups:
    """Return Tran & Cutkosky's standard deviations of the noise of tree nodes, relative to the first.

    Nodes of the trees are in five groups with equal noise. The standard deviation of a group is `√V·δ`, for epochs of N
    rounds, T rounds in all, step length η, smoothness L and Lipschitz constant G:

    * V is the number of nodes that contain one record. It is a number `V_<` for nodes that end by round 2N, the first
      two epochs. For later nodes and for all residuals it is `V_> = 4T/(3N)·V_<`.
    * δ bounds the sensitivity of a node. It is 4G for nodes of anchors (gradients at an epoch's first iterate), and
      2ηNL for nodes of differences of gradients.

    Args:
        epoch: N, number of rounds of an epoch.
        rounds: T, number of rounds.
        drift: η·L/G.

    Source: Tran & Cutkosky 2022, Theorem 8.

    >>> paper_stds(epoch=8, rounds=24, drift=0.25)
    Groups(anchors=1.0, later_anchors=2.0, differences=1.0, later_differences=2.0, residuals=2.0)
    """
    later, small = sqrt(4 * rounds / (3 * epoch)), drift * epoch / 2
    return Groups(1.0, later, small, later * small, later * small)
