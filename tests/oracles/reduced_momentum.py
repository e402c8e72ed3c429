"""Tran & Cutkosky's Algorithm 2 as it stands: three gradients a round, and every round's sum over all its nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np

TREES = ("anchors", "differences", "residuals")


def dyadic(first: int, last: int) -> list[tuple[int, int]]:
    """The largest dyadic nodes that make up `first`…`last`, found from the largest down."""

    def inside(start: int, size: int) -> list[tuple[int, int]]:
        if start > last or start + size - 1 < first:
            return []
        if first <= start and start + size - 1 <= last:
            return [(start, start + size - 1)]
        return inside(start, size // 2) + inside(start + size // 2, size // 2)

    return inside(1, 1 << last.bit_length())


class Literal:
    """The three trees, filled leaf by leaf.

    Attributes:
        noise: of a node of a tree, `noise(tree, first, last)`, added to α times its sum.
        leaves: of every tree by round.
        asked: nodes of every tree that some estimate was made of.
    """

    def __init__(self, epoch: int, alpha: float, reset_rate: float, noise: Callable[..., Any]):
        self.epoch, self.alpha, self.reset_rate, self.noise = epoch, alpha, reset_rate, noise
        self.leaves: dict[str, dict[int, Any]] = {tree: {} for tree in TREES}
        self.asked: dict[str, set[tuple[int, int]]] = {tree: set() for tree in TREES}

    def add(self, now, anchor, before=None) -> None:
        """One round's gradients: at the iterate, at its epoch's anchor, and at the epoch's before."""
        round = len(self.leaves["anchors"]) + 1
        self.leaves["anchors"][round], self.leaves["residuals"][round] = anchor, now - anchor
        if before is not None:
            self.leaves["differences"][round] = anchor - before

    def node(self, tree: str, first: int, last: int):
        """What a node holds, without noise: discounted to its end."""
        parts = [(1 - self.alpha) ** (last - t) * self.leaves[tree][t] for t in range(first, last + 1)]
        return self.alpha * np.sum(parts, axis=0)

    def released(self, tree: str, first: int, last: int):
        """A stretch of rounds out of its nodes, discounted to its end."""
        total = 0.0
        for start, end in dyadic(first, last):
            self.asked[tree].add((start, end))
            node = self.node(tree, start, end) + self.noise(tree, start, end)
            total = total + (1 - self.alpha) ** (last - end) * node
        return total

    def estimate(self):
        """m̂ of the newest round."""
        t, size, kept = len(self.leaves["anchors"]), self.epoch, 1 - self.alpha
        epochs, place = divmod(t, size)
        total = self.released("residuals", 1, t)
        if place:
            total = total + kept ** (t - place) * self.released("anchors", 1, place)
        if epochs:
            powers = [kept ** (size * i) * (1 - self.reset_rate) ** (epochs - 1 - i) for i in range(epochs)]
            total = total + sum(powers) * self.released("anchors", place + 1, place + size)
        for i in range(1, epochs):
            first, last = t - i * size + 1, t - (i - 1) * size
            weight = sum((1 - self.reset_rate) ** j * kept ** (size * (i - 1 - j)) for j in range(i))
            if self.reset_rate < 1:
                total = total + weight * (1 - self.reset_rate) * self.released("differences", first, last)
            if self.reset_rate > 0:
                total = total + weight * self.reset_rate * self.released("anchors", first, last)
        return total


def asked_nodes(epoch: int, rounds: int) -> dict[str, set[tuple[int, int]]]:
    """The nodes that the method asks for, by tree."""
    trees = Literal(epoch, 0.5, 0.5, lambda *_: 0.0)
    for t in range(1, rounds + 1):
        trees.add(0.0, 0.0, 0.0 if t > epoch else None)
        trees.estimate()
    return trees.asked


def group_of(tree: str, last: int, epoch: int) -> int:
    """The place of a node among five groups: by tree, and of the first two by whether it ends after 2N."""
    return min(2 * TREES.index(tree) + int(last > 2 * epoch), 4)


def trajectory(gradient: Callable[..., Any], start, rounds: int, step: float, project: Any, **settings: Any):
    """w_1 … w_T, m̂_1 … m̂_T, and the trees; `gradient(w, t)` is that of round t's records."""
    trees, points, estimates = Literal(**settings), [start], []
    for t in range(1, rounds + 1):
        w, epoch = points[-1], (t - 1) // trees.epoch
        anchor = points[epoch * trees.epoch]
        before = gradient(points[(epoch - 1) * trees.epoch], t) if epoch else None
        trees.add(gradient(w, t), gradient(anchor, t), before)
        estimates.append(trees.estimate())
        points.append(project(w - step * estimates[-1] / np.linalg.norm(estimates[-1])))
    return np.array(points[:-1]), np.array(estimates), trees
