"""Factors: how independent normals become the correlated noise of a momentum, streamed in little memory."""

from fedprivjax.noise.factors.allocation import ALLOCATIONS, optimal, paper, shared
from fedprivjax.noise.factors.independent import Independent
from fedprivjax.noise.factors.interface import Correlated, Factor, Path, discount, power
from fedprivjax.noise.factors.tree import NODES, Tree, compose
from fedprivjax.noise.factors.windowed import Groups, Normals, Rings, Windowed, window

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
    "Rings",
    "Tree",
    "Windowed",
    "compose",
    "discount",
    "optimal",
    "paper",
    "power",
    "shared",
    "window",
]
