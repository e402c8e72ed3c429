"""Public feature maps: per-example transforms that need less noise and have no privacy cost."""

from fedprivjax.features.mapped import MAPS, as_maps, cache, mapped
from fedprivjax.features.maps import Constant, FeatureMap, GroupNorm, Pooling, UnitNorm
from fedprivjax.features.scattering import Scattering

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
