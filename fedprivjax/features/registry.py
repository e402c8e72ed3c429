"""Registry of feature maps by name, and their construction from names and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_choice
from fedprivjax.features.interface import FeatureMap
from fedprivjax.features.scattering import Scattering
from fedprivjax.features.simple_maps import Constant, GroupNorm, Pooling, UnitNorm

Said = FeatureMap | str | Mapping[str, Any]

MAPS: dict[str, type[FeatureMap]] = {
    "pooling": Pooling,
    "scattering": Scattering,
    "group_norm": GroupNorm,
    "unit_norm": UnitNorm,
    "constant": Constant,
}


def as_maps(said: Said | Sequence[Said]) -> tuple[FeatureMap, ...]:
    """Return feature maps as objects.

    >>> as_maps(["scattering", {"kind": "group_norm", "groups": 27}])
    (Scattering(scales=2, angles=8, order=2), GroupNorm(groups=27, floor=1e-05))
    >>> as_maps("scatering")
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown feature map 'scatering', did you mean 'scattering'? (known: ...)
    """
    one = isinstance(said, FeatureMap | str | Mapping)
    if not (one or isinstance(said, Sequence)):
        raise Refusal(f"features must be a list of maps, such as ['scattering', 'unit_norm'], got {called(said)}")
    return tuple(as_map(each) for each in ([said] if one else said))


def as_map(said: Any) -> FeatureMap:
    """Return a feature map as an object, from a name or a table of its `kind` and settings."""
    if isinstance(said, FeatureMap):
        require_decorated(said)
        return said
    table = {"kind": said} if isinstance(said, str) else said
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        shown = repr(dict(said)) if isinstance(said, Mapping) else called(said)
        raise Refusal(f"a feature map must be a name, or a table with its name as kind, got {shown}")
    kind, settings = table["kind"], {name: value for name, value in table.items() if name != "kind"}
    require_choice("feature map", kind, MAPS)
    names = [each.name for each in fields(MAPS[kind])]  # pyright: ignore[reportArgumentType]
    for name in settings:
        if not names:
            raise Refusal(f"feature map {kind!r} takes no settings, got {name!r}")
        require_choice(f"setting of feature map {kind}", name, names)
    return MAPS[kind](**settings)


def built_in(each: FeatureMap) -> bool:
    """Return True for the package's own maps, which never mix the examples of a batch. False for their subclasses.

    >>> built_in(UnitNorm())
    True
    """
    return type(each) in MAPS.values()
