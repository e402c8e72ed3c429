"""Swept integers: the participation scheme for each value."""

import pytest
import xarray as xr

from fedprivjax import Dropouts, Full, OnePass, Refusal, Uniform, Varying
from fedprivjax.sweeps.sweep import joined, shapes_of


@pytest.mark.parametrize(
    ("law", "axes", "found"),
    [
        (Uniform(10, 2), {"machines": [20, 10]}, [Uniform(20, 2), Uniform(10, 2)]),
        (OnePass(10, 2), {"per_round": [5]}, [OnePass(10, 5)]),
        (Varying.between(10, 1, 2), {"machines": [4]}, [Varying.between(4, 1, 2)]),
        (Uniform(10, 2), {}, [Uniform(10, 2)]),
    ],
)
def test_a_scheme_for_every_size(law, axes, found):
    assert [shape.participation for shape in shapes_of(law, 5, axes)] == found


def test_sizes_are_those_of_the_scheme_with_dropouts():
    shapes = shapes_of(Dropouts(Uniform(10, 2), 0.25), None, {"per_round": [2, 5], "rounds": [7]})
    assert [(shape.participation.scheme, shape.participation.rate, shape.rounds) for shape in shapes] == [
        (Uniform(10, 2), 0.25, 7),
        (Uniform(10, 5), 0.25, 7),
    ]


@pytest.mark.parametrize("law", [Full(6), Dropouts(Full(6), 0.5)])
def test_a_size_that_is_no_setting_is_refused(law):
    with pytest.raises(Refusal, match=r"^per_round must be a setting of the participation to be swept, got Full\("):
        shapes_of(law, None, {"per_round": [2]})


def test_rates_of_other_machines_are_refused():
    with pytest.raises(Refusal, match=r"^dropouts must be one rate or one for each of 3 machines, got 2$"):
        shapes_of(Dropouts(Uniform(2, 1), [0.1, 0.2]), None, {"machines": [3]})


def test_differing_attributes_are_listed_for_each_shape():
    words = [("fresh", "2 of 9"), ("fresh", "5 of 9")]
    parts = [
        ({"per_round": m}, xr.Dataset({"loss": ("round", [1.0])}, {"round": [1]}, {"noise": noise, "data_used": used}))
        for m, (noise, used) in zip((2, 5), words, strict=True)
    ]
    whole = joined(parts)
    assert (whole.attrs["noise"], whole.attrs["data_used"]) == ("fresh", "2 of 9 / 5 of 9")
    assert joined(parts[:1]).attrs["data_used"] == "2 of 9"
