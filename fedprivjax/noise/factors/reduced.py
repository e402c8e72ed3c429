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
    """Values for the five groups of tree nodes in `ReducedTrees`, such as noise standard deviations.

    The nodes of a group have equal noise. `ReducedTrees` sums three kinds of vectors in three binary trees over rounds.
    With N rounds per epoch, round t adds to

    * the first tree: a_t, the gradient at the first iterate of the epoch;
    * the second tree: d_t, the difference a_t − a_{t−N};
    * the third tree: r_t, the gradient at the current iterate minus a_t.

    Attributes:
        anchors: value for the nodes of the first tree whose last round is at most 2N.
        later_anchors: value for all other nodes of the first tree.
        differences: value for the nodes of the second tree whose last round is at most 2N.
        later_differences: value for all other nodes of the second tree.
        residuals: value for all nodes of the third tree.
    """

    anchors: Any
    later_anchors: Any
    differences: Any
    later_differences: Any
    residuals: Any


class Normals(NamedTuple):
    """Vectors of standard normals from which the mechanism `ReducedTrees` computes the noise of one round.

    A round uses one new node of the third tree. Of the first two trees, it uses the nodes that together cover the last
    N rounds (one epoch).

    Attributes:
        nodes: normals of the used nodes of the first two trees; shape [2, slots, d] for d parameters. A round uses at
            most `slots` nodes of a tree. Unused slots are 0.
        age: number of rounds since the last round of each used node, int [slots].
        later: True for nodes whose last round is after round 2N, bool [slots].
        residual: normals of the third tree's new node, shape [d].
    """

    nodes: Any
    age: Any
    later: Any
    residual: Any


class Rings(NamedTuple):
    """State from which the mechanism `ReducedTrees` computes the noise of a momentum round by round.

    The momentum of round t is the sum of the gradients of all rounds s ≤ t, with weights α·(1 − α)^{t−s}.
    `ReducedTrees` defines N, a and r. Let H_t be the noise in the weighted sum of a_1, …, a_t. Let B_t be the noise in
    the weighted sum of the last N vectors, a_{t−N+1}, …, a_t.

    Attributes:
        last: noise of the momentum of the latest round, shape [d] for d parameters.
        rows: H_t and B_t of the N rounds before the latest one, shape [N, 2, d]. Round t is in row t mod N.
        newest: H_t and B_t of the latest round, which are not yet in `rows`; shape [2, d].
        residual: state from which the noise in the weighted sum of r_1, …, r_t is computed.
    """

    last: Any
    rows: Any
    newest: Any
    residual: Path


@dataclass(frozen=True)
class ReducedTrees:
    """Noise of a momentum from three binary trees over rounds (Tran & Cutkosky 2022, Algorithm 2).

    All epochs have N rounds and use the same records in the same order. The anchor of an epoch is its first iterate.
    The gradient of round t is a_t + r_t, with

    * a_t, the gradient at the anchor of the epoch;
    * d_t = a_t − a_{t−N}, the change of this gradient since the previous anchor;
    * r_t, the residual: the gradient at the current iterate minus a_t.

    The momentum is a weighted sum of gradients over rounds, computed from noisy sums of a and r. Each of the sequences
    a, d and r has a binary tree over rounds. A node is a weighted sum over its rounds, with independent noise.

    A noisy sum of a over the last N rounds can be computed in two ways. Let A be the sum of nodes of a. Let S be the
    sum of nodes of d, plus the noisy sum that was used N rounds before. Before round 2N, the noisy sum is A. From round
    2N on, it is γ·A + (1 − γ)·S. The argument `reset_rate` of methods is γ.

    Nodes of a group have equal noise variances. `Groups` lists the five groups.

    Attributes:
        epoch: N, number of rounds of an epoch.

    The example returns the squared sensitivity of the five groups of nodes to a record that is used in round 1. The
    record changes three nodes of the first tree by 1:

    >>> uses = Uses(round=np.array([1]), record=np.array([0]), weight=np.ones(1), records=1)
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
        """Return the state after one more round. Its field `last` holds the noise of this round's momentum.

        A node's noise has weight (1 − α)^k in the k-th round after the node's last round. The noise of round t is H_t,
        plus the noise of the nodes of r for the rounds 1 to t. With B_t of `Rings`, H_t = (1 − α)^N·H_{t−N} + B_t.

        Args:
            rings: state after the round before.
            drawn: standard normals of the nodes that the round uses.
            alpha: α, weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ of `ReducedTrees`, from 0 to 1.
            stds: standard deviation of the noise of each group of nodes, as `Groups` defines them.
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
        """Return the squared sensitivity of each group of tree nodes to every record; float64 [records, 5].

        `ReducedTrees` defines N, a, d, r and γ. The groups are in the order of `Groups`.

        The squared sensitivity of a group is a sum over its nodes: of the squared norm by which the record can change
        the node. The unit of norms is the largest change of one gradient by a record of weight 1. Nodes that no round
        uses are not counted, with one exception: with γ = 0, nodes of the first group count even if only rounds from 2N
        on would use them.

        Args:
            uses: which rounds use which record, with which weight.
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ, from 0 to 1. With γ = 1, nodes of d are not used. With γ = 0, the second group is not used.
            drift: η·L/C, for step length η, smoothness L and bound C on the gradient norm of one record. Two gradients
                of a record, at iterates k steps apart, differ by at most C·min(k·drift, 2).
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
        """Return each tree node's largest change by one record, divided by the node's noise; float64 [nodes].

        `ReducedTrees` defines N, a, d, r and γ. The result has one number per node that the record changes and that
        some round uses. With γ = 0, it also has numbers for the nodes of the first two epochs that only rounds from 2N
        on would use. Changes are L2 norms. Their unit is the largest change of one gradient by a record of weight 1.
        Noise is a standard deviation in this unit.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ, from 0 to 1. With γ = 1, nodes of d are not used. With γ = 0, nodes of a whose last round is
                after 2N are not used.
            drift: η·L/C, for step length η, smoothness L and bound C on the gradient norm of one record. Two gradients
                of a record, at iterates k steps apart, differ by at most C·min(k·drift, 2).
            stds: standard deviation of the noise of each group of nodes, as `Groups` defines them.
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
        """Return two masks of the nodes of one tree level that some round uses, each of the shape of `node`.

        Let N = `epoch`. Round t uses the fewest nodes that together cover the rounds from t − N + 1 to t, or from 1 if
        t < N. The first mask is for this rule. The second mask is for a tree that only the rounds t ≥ 2N use.

        Args:
            node: indices of nodes, int. Node i of level k covers the rounds i·2^k + 1 to (i + 1)·2^k.
            level: k, level of the nodes.
            rounds: number of rounds of the run.
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
        """Return a mask of the groups of tree nodes that some round uses; bool [5].

        `ReducedTrees` defines N, a, d, r and γ. The groups are in the order of `Groups`.

        Args:
            reset_rate: γ, from 0 to 1. With γ = 1, the nodes of d are never used. With γ = 0, the second group is never
                used.
        """
        return np.array(Groups(True, reset_rate > 0, reset_rate < 1, reset_rate < 1, True))

    def variances(self, rounds: int, alpha: float, reset_rate: float) -> np.ndarray:
        """Return each node group's part of the momentum's noise variance in every round; float64 [rounds, 5].

        The groups are in the order of `Groups`.

        The result is the variance of one coordinate, if the noise of every node has standard deviation 1. The parts of
        the groups add up.

        Args:
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1].
            reset_rate: γ of `ReducedTrees`, from 0 to 1.
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
    """Return the noise standard deviations of tree nodes that minimise a momentum's noise at a fixed privacy loss.

    The nodes are in five groups, which `Groups` describes. Group k has the standard deviation τ_k. Let B_k be the
    largest entry of column k of `squares`, and let A_k be the mean of column k of `variances`. At a fixed privacy loss
    Σ_k B_k/τ_k², the noise variance Σ_k A_k·τ_k² is least for τ_k² ∝ √(B_k/A_k). The result is scaled to τ = 1 for the
    first group. A group that no record changes has τ = 0.

    Args:
        squares: squared norm of the change of all nodes of a group, for each record and group; shape [records, 5].
        variances: contribution of each group to the noise variance of each round's momentum, if all τ are 1; shape
            [rounds, 5].

    >>> optimal_stds(np.array([[16.0, 1.0, 0, 0, 0]]), np.array([[1.0, 1.0, 1.0, 0, 0]]))
    Groups(anchors=1.0, later_anchors=0.5, differences=0.0, later_differences=0.0, residuals=0.0)
    """
    exposed, weight = squares.max(axis=0), variances.mean(axis=0)
    stds = np.divide(exposed, weight, out=np.ones_like(weight), where=weight > 0) ** 0.25
    stds = np.where(exposed > 0, stds, 0.0)
    return Groups(*(stds / stds[0]).tolist())


def total_squares(squares: np.ndarray, stds: Groups) -> np.ndarray:
    """Return μ² of every record, with the parameter μ of Gaussian differential privacy; float64 [records].

    The result is Σ_k B_k/τ_k², where B_k is the record's entry in column k of `squares`, and τ_k is the k-th entry of
    `stds`. The columns are groups of tree nodes with equal noise, in the order of `Groups`. If the record changes a
    group that has no noise, the result is inf.

    Args:
        squares: squared norm of the change of all nodes of a group, for each record and group; shape [records, 5].
        stds: τ, standard deviation of the noise of each group's nodes.

    >>> total_squares(np.array([[4.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]]), Groups(2.0, 0.0, 1.0, 1.0, 1.0)).tolist()
    [1.0, inf]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, squares / np.square(stds), 0.0).sum(axis=1)


def paper_stds(epoch: int, rounds: int, drift: float) -> Groups:
    """Return Tran & Cutkosky's noise standard deviations of groups of tree nodes, as multiples of the first.

    `ReducedTrees` defines a, d and r. With T rounds in all, let ρ = √(4T/(3N)) and s = η·L·N/(2G), for step length η,
    smoothness L and Lipschitz constant G. The result is

    * 1 for nodes of a whose last round is at most 2N, and ρ for all other nodes of a;
    * s for nodes of d whose last round is at most 2N, and ρ·s for all other nodes of d;
    * ρ·s for all nodes of r.

    Args:
        epoch: N, number of rounds of an epoch.
        rounds: T, number of rounds of the run.
        drift: η·L/G.

    Source: Tran & Cutkosky 2022, Theorem 8.

    >>> paper_stds(epoch=8, rounds=24, drift=0.25)
    Groups(anchors=1.0, later_anchors=2.0, differences=1.0, later_differences=2.0, residuals=2.0)
    """
    later, small = sqrt(4 * rounds / (3 * epoch)), drift * epoch / 2
    return Groups(1.0, later, small, later * small, later * small)
