"""Public feature maps: per-example transforms that need less noise and have no privacy cost."""

from fedprivjax.features.feature_cache import cache
from fedprivjax.features.interface import FeatureMap
from fedprivjax.features.mapped import mapped
from fedprivjax.features.registry import MAPS, as_maps
from fedprivjax.features.scattering import Scattering
from fedprivjax.features.simple_maps import Constant, GroupNorm, Pooling, UnitNorm

__all__ = [
    "MAPS",
    "Constant",
    "FeatureMap",
    "GroupNorm",
    "Pooling",
    "Scattering",
    "UnitNorm",
    "as_maps",
    "cache",
    "mapped",
]
