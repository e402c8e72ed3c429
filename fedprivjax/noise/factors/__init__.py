"""Factors: maps from independent normals to the correlated noise of a momentum, streamed in little memory.

A `Factor` adds noise to the momentum itself, see `interface`. `ReducedTrees` is not a `Factor`: it adds noise to the
three sums from which Algorithm 2 of Tran & Cutkosky computes a momentum.
"""

from fedprivjax.noise.factors.allocation import ALLOCATIONS, optimal_stds, paper_stds, total_squares
from fedprivjax.noise.factors.independent import Independent
from fedprivjax.noise.factors.interface import Correlated, Factor, Path, discount
from fedprivjax.noise.factors.reduced import Groups, ReducedTrees, Rings
from fedprivjax.noise.factors.tree import NODES, Tree, compose
from fedprivjax.noise.factors.window import Normals, window

FACTORS: dict[str, Factor] = {
    "tree": Tree(),
    "sensitivity tree": Tree("sensitivity"),
    "independent": Independent(),
}

__all__ = [
    "ALLOCATIONS",
    "FACTORS",
    "NODES",
    "Correlated",
    "Factor",
    "Groups",
    "Independent",
    "Normals",
    "Path",
    "ReducedTrees",
    "Rings",
    "Tree",
    "compose",
    "discount",
    "optimal_stds",
    "paper_stds",
    "total_squares",
    "window",
]
