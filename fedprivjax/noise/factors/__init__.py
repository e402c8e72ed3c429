"""Factors: how independent normals become the correlated noise of a momentum, streamed in little memory."""

from fedprivjax.noise.factors.independent import Independent
from fedprivjax.noise.factors.interface import Correlated, Factor, Path, discount
from fedprivjax.noise.factors.tree import NODES, Tree, compose

FACTORS: dict[str, Factor] = {
    "tree": Tree(),
    "sensitivity tree": Tree("sensitivity"),
    "independent": Independent(),
}

__all__ = ["FACTORS", "NODES", "Correlated", "Factor", "Independent", "Path", "Tree", "compose", "discount"]
