"""`[problem] features`: public maps of examples by name, each with its settings, or of one's own by import path."""

import inspect
from collections.abc import Mapping
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.names import Unimported, resolve, unimported
from fedprivjax.experiment.user_objects import made
from fedprivjax.features import MAPS, FeatureMap, as_maps

FEATURES = {name: (inspect.getdoc(kind) or "").partition("\n")[0] for name, kind in MAPS.items()}


def feature_maps(said: Any, context: Mapping[str, Any] | None = None) -> tuple[FeatureMap | Unimported, ...]:
    """The maps that a file names; those that are not imported, alone, if there are any.

    Args:
        said: one or several; each a name, a table of a name as `kind` with settings, or such with "module:name".
        context: what the file is read with, see `resolve`.

    >>> feature_maps(["pooling", {"kind": "unit_norm"}])
    (Pooling(size=2), UnitNorm())
    """
    found = [_own(each, context) for each in said] if isinstance(said, list) else _own(said, context)
    return tuple(unimported([found])) or as_maps(found)


def _own(said: Any, context: Mapping[str, Any] | None) -> Any:
    """A map of one's own as an object; another as it is said."""
    table = {"kind": said} if isinstance(said, str) else said
    path = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(path, str) or ":" not in path:
        return said
    found = resolve("feature map", path, {}, context)
    if isinstance(found, Unimported):
        return found
    options = {name: value for name, value in table.items() if name != "kind"}
    one = made("feature map", path, found, options, FeatureMap)
    if not isinstance(one, FeatureMap):
        raise Refusal(f"feature map {path!r} must be a fedprivjax FeatureMap, got {type(one).__name__}")
    return one
