"""Structure of a sweep's dataset: variables, axes, kinds and attributes. A file from elsewhere may have another one."""

from numbers import Integral, Real

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_between
from fedprivjax.sweeps.kept import METHOD, PARAMETER, PARAMS, PREDICTOR, STRUCTURE, unflattened
from fedprivjax.sweeps.variable_descriptions import ALONE, CONSTANT, HALF, custom_metrics

DIVERGED, GUARANTEE = "diverged", "guarantee"
OF_RUN = (DIVERGED, "realised_mu", "realised_epsilon")  # a value for each run
OF_CONFIGURATION = ("target_epsilon", GUARANTEE)  # a value for each point of the grid
RUN_COSTS = ("sent_bytes", "gradients_per_record")  # first versions recorded no costs
COSTS = ("sent_messages", "sent_bits", "gradients_per_use", "rounds_taken", "seconds")
TEXTS = (GUARANTEE, METHOD, PREDICTOR)  # variables
REQUIRED = ("delta", "non_private_metrics", "non_private_data")  # attributes; first versions had no others
NUMBERS = {"delta": Real, "grid_points": Integral}  # attributes
TEXT_ATTRIBUTES = ("non_private_metrics", "non_private_data", "protocol", "selection", "noise", "precision", "data")
TEXT_ATTRIBUTES += ("prng", "expected", "delta_warning", "data_used", "weights", "non_private_attributes", "alone")
TEXT_ATTRIBUTES += ("selected", "unaccounted_choice", "parts")
LIMITS = (CONSTANT, "valid_min", "valid_max")  # numbers, attributes of a metric
WORDS = {"b": "truth values", "iu": "integers", "biuf": "numbers", "OTU": "texts"}  # by kinds of NumPy
REMEDY = "Open other files than results with xarray"


def require_schema(data: xr.Dataset) -> None:
    """Raise Refusal unless a dataset has the structure that `sweep` writes. Further variables must be numbers.

    >>> require_schema(xr.Dataset({"test_loss": ("seed", [0.5])}))
    Traceback (most recent call last):
    fedprivjax.Refusal: diverged must be a variable, got none. Open other files than results with xarray
    """
    for name in (DIVERGED, *OF_RUN, *OF_CONFIGURATION, *(RUN_COSTS + COSTS) * (RUN_COSTS[0] in data)):
        _require(name in data.data_vars, name, "be a variable", "none")
    for name in ("seed", "round"):
        _require(name in data.dims, name, "be an axis", "none")
    for name in map(str, data.data_vars):
        _require_variable(data[name], {str(axis) for axis in data[DIVERGED].dims})
    for name in (f"{name.removesuffix(HALF)}{HALF}" for name in map(str, data.data_vars) if name.startswith(ALONE)):
        _require(name in data.data_vars, name, "be a variable", "none")
    for name in map(str, data.dims):
        _require_axis(data, name)
    for name in REQUIRED:
        _require(name in data.attrs, name, "be an attribute", "none")
    for name in (*NUMBERS, *TEXT_ATTRIBUTES):
        _require_attribute(data.attrs.get(name), NUMBERS.get(name, str), name)
    require_between("delta", data.attrs["delta"], 0, 1)
    custom_metrics([data])  # raises Refusal
    if PARAMS in data:
        unflattened(np.zeros(data.sizes[PARAMETER]), data[PARAMS].attrs.get(STRUCTURE, ""))  # raises Refusal


def _require_variable(values: xr.DataArray, runs: set[str]) -> None:
    """Raise Refusal unless a variable has the kind and the axes of its name, and its limits are numbers.

    Args:
        runs: axes of the runs.
    """
    name, found = str(values.name), {str(axis) for axis in values.dims}
    _require_kind(values, "OTU" if name in TEXTS else "b" if name == DIVERGED else "biuf")
    if name == PARAMS:
        axes = runs | {PARAMETER}
    elif name in OF_RUN + RUN_COSTS or "round" in found:
        axes = runs | {"seed"} | found & {"round", "iterate"}
    else:
        axes = runs - {"seed"} if name in OF_CONFIGURATION + COSTS else found & runs
    _require(found == axes, name, f"have the axes {', '.join(sorted(axes))}", ", ".join(sorted(found)) or "none")
    for limit in LIMITS:
        _require_attribute(values.attrs.get(limit), Real, f"{limit} of {name}")


def _require_axis(data: xr.Dataset, name: str) -> None:
    """Raise Refusal unless an axis has distinct values of its kind, at least one. Parameters have none."""
    _require(data.sizes[name] > 0, name, "have a value", "none")
    if name == PARAMETER:
        return
    _require(name in data.coords, name, "be a coordinate", "an axis without values")
    _require_kind(data[name], {"iterate": "OTU", "round": "iu"}.get(name, "biuf"))
    distinct = bool(data[name].notnull().all()) and data.indexes[name].is_unique
    _require(distinct, name, "have distinct values", data[name].values.tolist())


def _require_kind(values: xr.DataArray, kinds: str) -> None:
    texts = values.dtype.kind != "O" or all(isinstance(one, str) for one in values.values.ravel())
    good = values.dtype.kind in kinds and texts
    _require(good, str(values.name), f"have {WORDS[kinds]}", f"values of type {values.dtype}")


def _require_attribute(value: object, kind: type, name: str) -> None:
    """Raise Refusal unless an attribute, if it is there, is of a type."""
    wanted = "be a text" if kind is str else "be a number"
    _require(value is None or isinstance(value, kind), name, wanted, called(value))


def _require(good: object, name: str, wanted: str, got: object) -> None:
    if not good:
        raise Refusal(f"{name} must {wanted}, got {got}. {REMEDY}")
