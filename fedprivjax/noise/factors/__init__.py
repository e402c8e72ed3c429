"""Factors: noise that is correlated over a machine's messages, over rounds, or over the nodes of a tree.

`interface.Factor` describes all of them. `ReducedTrees` is not a `Factor`: it adds noise to the three sums from which
Algorithm 2 of Tran & Cutkosky computes a momentum.
"""

from fedprivjax.noise.factors.interface import Correlated, Factor, Independent, Path
from fedprivjax.noise.factors.tree import Tree

FACTORS: dict[str, Factor] = {
    "tree": Tree(),
    "sensitivity tree": Tree("sensitivity"),
    "independent": Independent(),
}

__all__ = ["FACTORS", "Correlated", "Factor", "Independent", "Path", "Tree"]
