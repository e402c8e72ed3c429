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
    """One number for each group of nodes that have equal noise, in the three trees of `ReducedTrees`.

    The trees of anchors and of differences have two groups each: nodes that end in the first two epochs, and later
    nodes. All nodes of the tree of residuals are one group.
    """

    anchors: Any
    later_anchors: Any
    differences: Any
    later_differences: Any
    residuals: Any


class Normals(NamedTuple):
    """Standard normals from which a round's noise of `ReducedTrees` is computed.

    Attributes:
        nodes: normals of the nodes that cover the last N rounds (an epoch), in the trees of anchors and of differences;
            0 in empty slots, [2, slots, d].
        age: number of rounds since each node's last round, int [slots].
        later: True for nodes that end after round 2N, bool [slots].
        residual: normals of the newest node in the tree of residuals, [d].
    """

    nodes: Any
    age: Any
    later: Any
    residual: Any


class Rings(NamedTuple):
    """State from which `ReducedTrees` computes its noise round by round.

    An epoch has N rounds. H_t is the noise of the momentum in round t, without the noise of the tree of residuals. B_t
    is the part of H_t from the nodes that cover the last N rounds.

    Attributes:
        last: noise of the last round, [d].
        rows: H_t and B_t of the latest round t at every position in an epoch, [N, 2, d].
        newest: H and B of the last round, not yet written to `rows`, [2, d].
        residual: state of the tree of residuals.
    """

    last: Any
    rows: Any
    newest: Any
    residual: Path


@dataclass(frozen=True)
class ReducedTrees:
    """Noise of a momentum from three binary trees (Tran & Cutkosky 2022, Algorithm 2).

    All epochs have `epoch` rounds, which use the same records in the same order. The first iterate of an epoch is its
    anchor. There is one tree for sums of each of these:

    * anchors: gradients at the anchor;
    * differences: gradients at the anchor minus gradients at the previous anchor;
    * residuals: gradients at the current iterate minus gradients at the anchor.

    >>> uses = Uses(np.array([1]), np.array([0]), np.ones(1), 1)
    >>> ReducedTrees(4).squares(uses, rounds=4, alpha=1e-9, reset_rate=0.5, drift=0.1).round(3).tolist()
    [[3.0, 0.0, 0.0, 0.0, 0.0]]
    """

    epoch: int

    def init(self, dimension: int, rounds: int) -> Rings:
        """Return the state before the first round."""
        rows, newest = jnp.zeros((self.epoch, 2, dimension)), jnp.zeros((2, dimension))
        return Rings(jnp.zeros(dimension), rows, newest, Tree().init(dimension, rounds))

    def step(self, rings: Rings, drawn: Normals, alpha: Any, reset_rate: Any, stds: Groups) -> Rings:
        """Return the state one round later. Its `last` is that round's noise.

        Args:
            drawn: normals of the round, with standard deviation 1.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: weight in [0, 1] of whole gradients at a new anchor, against gradients at the previous anchor
                plus differences.
            stds: standard deviation of each group's nodes.
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
        """Return how much every record changes the nodes of each group, squared; float64 [records, groups].

        The changes are relative to noise of standard deviation 1 in every node, and their squares are summed over
        nodes. Only nodes in the window of some round are counted, since no others are released.

        Args:
            uses: uses of the records. A record of weight 1 contributes 1 to the anchors' leaf of a round that uses it.
            alpha, reset_rate: as in `step`.
            drift: η·L/C, for step length η, smoothness L and bound C on the gradient norm. It bounds a record's
                contribution to the difference of two gradients one step apart, divided by the largest contribution to
                one gradient. At k steps the bound is min(k·drift, 2).
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
        """Return one record's contribution to each node that it changes, divided by the node's noise; [nodes].

        The nodes are enumerated one by one from the windows of all rounds, independently of `squares`.
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
        """Return masks of a level's nodes that are in some round's window, for the trees of anchors and of differences.

        A round's window is the nodes that cover the last epoch. A node is in the window from its end until its first
        round leaves, except while its parent is in the window.
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
        """Return a mask of the groups whose nodes are used in some release, bool [groups]."""
        return np.array(Groups(True, reset_rate > 0, reset_rate < 1, reset_rate < 1, True))

    def variances(self, rounds: int, alpha: float, reset_rate: float) -> np.ndarray:
        """Return each group's part of the noise variance of one coordinate in every round, float64 [rounds, groups].

        It is for nodes with noise of standard deviation 1.
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
    """Return the standard deviations of the nodes' noise, one per group, with the least noise at a fixed privacy loss.

    For standard deviations τ_k of the groups k, the momentum has the noise variance `Σ A_k·τ_k²`, and the privacy loss
    is `Σ B_k/τ_k²`. Here A_k is the mean of `variances` over rounds, and B_k the largest of `squares` over records. The
    variance is least for `τ_k² ∝ √(B_k/A_k)`. A group that contains no record has no noise.

    Args:
        squares: squared norm by which every record changes the nodes of each group, shape [records, groups].
        variances: noise variance of each round's momentum from nodes of standard deviation 1, shape [rounds, groups].

    >>> optimal_stds(np.array([[16.0, 1.0, 0, 0, 0]]), np.array([[1.0, 1.0, 1.0, 0, 0]]))
    Groups(anchors=1.0, later_anchors=0.5, differences=0.0, later_differences=0.0, residuals=0.0)
    """
    exposed, weight = squares.max(axis=0), variances.mean(axis=0)
    stds = np.divide(exposed, weight, out=np.ones_like(weight), where=weight > 0) ** 0.25
    stds = np.where(exposed > 0, stds, 0.0)
    return Groups(*(stds / stds[0]).tolist())


def total_squares(squares: np.ndarray, stds: Groups) -> np.ndarray:
    """Return μ² of every record, with the parameter μ of Gaussian differential privacy; [records].

    It is `Σ_k B_k/τ_k²` over the groups k, with B = `squares` of the record and τ = `stds`. It is inf if a group that
    contains the record has no noise.

    Args:
        squares: B, squared norm by which every record changes the nodes of each group, shape [records, groups].
        stds: τ, standard deviation of the nodes' noise of each group.

    >>> total_squares(np.array([[4.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]]), Groups(2.0, 0.0, 1.0, 1.0, 1.0)).tolist()
    [1.0, inf]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, squares / np.square(stds), 0.0).sum(axis=1)


def paper_stds(epoch: int, rounds: int, drift: float) -> Groups:
    """Return the paper's standard deviations of the nodes' noise, one per group, relative to the first.

    They are `√V·δ`, for epochs of N rounds, T rounds in all, step length η, smoothness L and Lipschitz constant G:

    * V counts the nodes that contain a record. For nodes that end by round 2N it is a number `V_<`. For later nodes and
      for all residuals it is `V_> = 4T/(3N)·V_<`.
    * δ bounds the sensitivity of a node. It is 4G for anchors and 2ηNL for other nodes.

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
