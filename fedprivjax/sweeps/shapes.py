"""Sweeps over integers, which need one program for each value: single sweeps, and the union of their datasets."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least
from fedprivjax.plan.participation import Participation
from fedprivjax.sweeps.variable_descriptions import CONSTANT

ROUNDS = "rounds"
OF_SHAPES = ("noise", "data_used", "expected", "weights", "alone")  # text attributes that may differ between points
INTEGERS = ("machines", "per_round", ROUNDS)  # ordered as the dimensions of a dataset


class Shape(NamedTuple):
    """One combination of swept integers: their values, and the arguments of its sweep."""

    at: dict[str, int]
    participation: Participation
    rounds: int | None


def shapes_of(participation: Participation, rounds: int | None, axes: Mapping[str, Sequence[int]]) -> list[Shape]:
    """Return every combination of the swept integers, or the given one if no integer is swept.

    Raises:
        Refusal: if values are not distinct positive integers, or are not a setting of the participation scheme.

    >>> from fedprivjax import Uniform
    >>> [shape.participation.per_round for shape in shapes_of(Uniform(10, 2), 5, {"per_round": [2, 5]})]
    [2, 5]
    """
    for name, values in axes.items():
        _check(rounds, name, values)
    shapes = []
    for point in product(*axes.values()):
        at = dict(zip(axes, map(int, point), strict=True))
        sizes = {name: value for name, value in at.items() if name != ROUNDS}
        shapes.append(Shape(at, participation.resized(**sizes) if sizes else participation, at.get(ROUNDS, rounds)))
    return shapes


def _check(rounds: int | None, name: str, values: Any) -> None:
    if isinstance(values, str | Mapping) or np.ndim(values) != 1 or len(values) == 0:
        raise Refusal(f"{name} must be swept over a list of integers, got {[] if values == [] else called(values)}")
    for value in values:
        require_at_least(name, value, 1)
    if len(set(values)) < len(values):
        raise Refusal(f"{name} must be swept over distinct integers, got {list(values)}")
    if name == ROUNDS and rounds is not None:
        raise Refusal(f"rounds must be left out if they are swept, got {rounds}")


def joined(parts: Sequence[tuple[Mapping[str, Any], xr.Dataset]]) -> xr.Dataset:
    """Join datasets at single values of some settings into one dataset with these settings as dimensions.

    Rounds that a dataset does not have are NaN.

    >>> at = [({"per_round": m}, xr.Dataset({"loss": ("round", [float(m)])}, {"round": [1]})) for m in (2, 5)]
    >>> dict(joined(at)["loss"].sizes)
    {'per_round': 2, 'round': 1}
    """
    rounds = np.unique(np.concatenate([data["round"].values for _, data in parts]))
    points = [data.reindex(round=rounds).expand_dims({k: [v] for k, v in shape.items()}) for shape, data in parts]
    whole = xr.combine_by_coords(points, data_vars="all", join="exact", combine_attrs="override")
    assert isinstance(whole, xr.Dataset)
    attributes = [data.attrs for _, data in parts]
    for name in whole.data_vars:
        constants = [data[name].attrs[CONSTANT] for _, data in parts if CONSTANT in data[name].attrs]
        whole[name].attrs.update({CONSTANT: float(np.mean(constants))} if constants else {})  # mean over trials
    several = {name: _each_once(name, attributes) for name in OF_SHAPES if name in attributes[0]}
    return whole.assign_attrs({**attributes[0], **several})


def _each_once(name: str, attributes: Sequence[Mapping[str, Any]]) -> str:
    return " / ".join(dict.fromkeys(str(each[name]) for each in attributes if name in each))
