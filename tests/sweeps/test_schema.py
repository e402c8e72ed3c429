"""Structure of results: a sweep's is accepted, any other is refused by the name that differs."""

import json

import numpy as np
import pytest
import xarray as xr
from small_results import small_results

from fedprivjax import Refusal, select
from fedprivjax.sweeps.schema import COSTS, OF_RUN, PARAMS, REQUIRED, RUN_COSTS, STRUCTURE, require_schema

GOOD = small_results()
SHAPES = {"tree": "array", "shapes": [[3]]}


def with_params(structure) -> xr.Dataset:
    data = GOOD.assign({PARAMS: (("mu", "seed", "parameter"), np.zeros((1, 2, 3)))})
    data[PARAMS].attrs[STRUCTURE] = structure
    return data


def test_the_structures_of_sweeps_are_accepted():
    require_schema(GOOD)
    require_schema(GOOD.assign_attrs(mine=[1, 2], grid_points=3, selected="clip"))
    require_schema(GOOD.isel(mu=0))
    require_schema(GOOD.drop_vars([*RUN_COSTS, *COSTS, "noise_std"]))  # of the first versions
    require_schema(select(xr.concat([GOOD, GOOD.assign_coords(mu=[2.0])], "mu"), "mu", "test_loss"))
    require_schema(small_results(np.ones((2, 1, 3, 2))))
    require_schema(with_params(json.dumps(SHAPES)))


def refused(data: xr.Dataset) -> str:
    with pytest.raises(Refusal, match=r"^[^\n]+$") as caught:
        require_schema(data)
    assert len(str(caught.value)) < 400
    return str(caught.value)


@pytest.mark.parametrize("name", [*OF_RUN, "target_epsilon", "guarantee", *RUN_COSTS[1:], *COSTS])
def test_each_variable_has_its_axes_and_kind(name):
    values = GOOD[name]
    assert refused(GOOD.drop_vars(name)).startswith(f"{name} must be a variable, got none")
    for spoilt in (values.isel(mu=0, drop=True), values.expand_dims(other=[1, 2])):
        said = refused(GOOD.assign({name: spoilt}))
        assert "must have the axes" in said
        assert said.startswith(name) or name == "diverged"  # whose axes are those of all others
    wrong = np.full(values.shape, 3 if name == "guarantee" else "x", object)
    assert refused(GOOD.assign({name: (values.dims, wrong)})).startswith(f"{name} must have ")


@pytest.mark.parametrize("name", ["seed", "round", "mu"])
def test_each_axis_has_distinct_values_of_its_kind(name):
    size = GOOD.sizes[name]
    for wrong, said in ((["x"] * size, "numbers|integers"), ([np.nan] * size, "distinct|integers"), ([], "a value")):
        data = GOOD.isel({name: slice(len(wrong))}).assign_coords({name: wrong})
        with pytest.raises(Refusal, match=f"^{name} must have ({said})"):
            require_schema(data)
    assert refused(GOOD.drop_vars(name)).startswith(f"{name} must be a coordinate")
    assert "must have distinct values" in refused(xr.concat([GOOD, GOOD], name, data_vars="minimal"))
    if name != "mu":
        assert refused(GOOD.isel({name: 0})).startswith(f"{name} must be an axis, got none")


@pytest.mark.parametrize("name", REQUIRED)
def test_each_attribute_has_its_kind(name):
    lacking = GOOD.copy()
    del lacking.attrs[name]
    assert refused(lacking).startswith(f"{name} must be an attribute, got none")
    for wrong in ([1, 2], 3, "x"):
        if name == "delta" or wrong != "x":
            assert refused(GOOD.assign_attrs({name: wrong})).startswith(f"{name} must be ")


def test_attributes_of_metrics_and_the_structure_of_parameters_are_checked():
    data = GOOD.copy()
    data["test_loss"].attrs["valid_max"] = "x"
    assert refused(data).startswith("valid_max of test_loss must be a number, got 'x'")
    said = refused(GOOD.assign(alone_test_loss=1.0))
    assert said.startswith("alone_test_loss_interval must be a variable, got none")
    require_schema(GOOD.assign(alone_test_loss=1.0, alone_test_loss_interval=0.5))
    dated = GOOD.assign(test_loss=GOOD["test_loss"].astype("datetime64[ns]"))
    assert refused(dated).startswith("test_loss must have numbers, got values of type datetime64")
    for wrong in ("x", "[" * 1000, 3, "[]", json.dumps(SHAPES | {"shapes": [[4]]}), json.dumps(SHAPES | {"tree": 1})):
        assert refused(with_params(wrong)).startswith("structure of params must be as a run writes it, for 3 numbers")
