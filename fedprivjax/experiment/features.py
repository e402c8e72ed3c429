"""`[problem] features`: public feature maps by name with their settings, or custom ones by import path."""

import inspect
from collections.abc import Mapping
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.names import Unimported, resolve, unimported
from fedprivjax.experiment.user_objects import made
from fedprivjax.features import MAPS, FeatureMap, as_maps

FEATURES = {name: (inspect.getdoc(kind) or "").partition("\n")[0] for name, kind in MAPS.items()}


def feature_maps(given: Any, context: Mapping[str, Any] | None = None) -> tuple[FeatureMap | Unimported, ...]:
    """Return the feature maps that a file names. If some are not imported, return only those, as `Unimported`.

    Args:
        given: one map or a list of them, each a name or a table with its `kind` and settings. A custom map has the name
            "module:name".
        context: arguments of `parse`, see `resolve`.

    >>> feature_maps(["pooling", {"kind": "unit_norm"}])
    (Pooling(size=2), UnitNorm())
    """
    found = [_own(each, context) for each in given] if isinstance(given, list) else _own(given, context)
    return tuple(unimported([found])) or as_maps(found)


def _own(given: Any, context: Mapping[str, Any] | None) -> Any:
    """Return the object of a custom map, and the settings of a built-in one unchanged."""
    table = {"kind": given} if isinstance(given, str) else given
    path = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(path, str) or ":" not in path:
        return given
    found = resolve("feature map", path, {}, context)
    if isinstance(found, Unimported):
        return found
    options = {name: value for name, value in table.items() if name != "kind"}
    one = made("feature map", path, found, options, FeatureMap)
    if not isinstance(one, FeatureMap):
        raise Refusal(f"feature map {path!r} must be a fedprivjax FeatureMap, got {type(one).__name__}")
    return one
