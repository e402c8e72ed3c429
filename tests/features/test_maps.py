"""Pooling, norms within an example, constants: what they compute, and that their bounds hold for any example."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.features import Constant, FeatureMap, GroupNorm, Pooling, Scattering, UnitNorm, as_maps

RNG = np.random.default_rng(0)
SHAPE = (4, 6, 4)
EVERY = [Pooling(2), GroupNorm(), GroupNorm(2), UnitNorm(), Constant(0.5)]


def extremes(shape):
    """Return examples that stress a bound: constants, single pixels, checkerboards, huge, tiny and random numbers."""
    checks = np.broadcast_to(((-1.0) ** np.indices(shape[:2]).sum(axis=0))[:, :, None], shape)
    corner = np.zeros(shape)
    corner[0, 0, 0] = 1.0
    normal = RNG.normal(size=(3, *shape))
    return np.stack([np.zeros(shape), np.ones(shape), -np.ones(shape), checks, corner, *normal]).astype(np.float32)


def norms(examples):
    return np.linalg.norm(np.asarray(examples, float).reshape(len(examples), -1), axis=1)


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_bounds_and_shapes_hold_for_every_example_by_itself(one):
    """Some example of size 1 reaches the bound. All calls have one shape, which is compiled once."""
    for size in (1e-12, 1.0, 1e12):
        examples = extremes(SHAPE) * np.float32(size)
        found = np.asarray(one(examples))
        assert found.shape == (len(examples), *one.shape(SHAPE))
        assert np.isfinite(found).all()
        bounds = np.array([one.bound(SHAPE, max(float(norm), 1e-30)) for norm in norms(examples)])
        assert (norms(found) <= bounds * (1 + 1e-5)).all()
        if size == 1.0:
            assert (norms(found) / bounds).max() == pytest.approx(1.0, rel=1e-4)

    examples = extremes(SHAPE)[::-1]
    others = np.concatenate([examples[:1], 100 * RNG.normal(size=(len(examples) - 1, *SHAPE)).astype(np.float32)])
    np.testing.assert_allclose(np.asarray(one(examples))[0], np.asarray(one(others))[0], atol=1e-6)


def test_pooling_is_the_mean_of_squares():
    pictures = RNG.normal(size=(2, *SHAPE))
    expected = [[pictures[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean(axis=(1, 2)) for j in range(3)] for i in (0, 1)]
    np.testing.assert_allclose(np.asarray(Pooling(2)(pictures)), np.moveaxis(expected, 2, 0), atol=1e-12)


def test_group_norm_has_mean_zero_and_variance_one_in_every_group():
    found = np.asarray(GroupNorm(2, floor=1e-9)(3 + RNG.normal(size=(5, *SHAPE)).astype(np.float32)))
    for part in (found[..., :2], found[..., 2:]):
        np.testing.assert_allclose(part.mean(axis=(1, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(part.var(axis=(1, 2, 3)), 1, rtol=1e-4)


def test_no_groups_is_a_group_for_each_channel():
    examples = RNG.normal(size=(2, *SHAPE)).astype(np.float32)
    np.testing.assert_array_equal(GroupNorm()(examples), GroupNorm(4)(examples))


@dataclass(frozen=True)
class Squares(FeatureMap):
    def shape(self, shape):
        return shape


def test_a_custom_map_must_state_its_bound():
    with pytest.raises(Refusal, match=r"Squares must define bound\(shape, bound\)"):
        Squares().bound((3,), 1.0)
    assert as_maps(Squares()) == (Squares(),)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("polling", "unknown kind of feature map 'polling', did you mean 'pooling'?"),
        ([{"kind": "pooling", "sise": 2}], "unknown key of feature map 'pooling' 'sise', did you mean 'size'?"),
        ([{"kind": "unit_norm", "size": 2}], "unknown key of feature map 'unit_norm' 'size'"),
        ([{"size": 2}], "a feature map must be a name, or a table with its name as kind, got {'size': 2}"),
        ([3], "a feature map must be a name, or a table with its name as kind, got 3"),
        (3, "features must be a list of maps, such as ['scattering', 'unit_norm'], got 3"),
        ([{"kind": "pooling", "size": 0}], "pooling size must be at least 1, got 0"),
        ([{"kind": "pooling", "size": "2"}], "pooling size must be an integer, got '2'"),
        ([{"kind": "group_norm", "groups": 1.5}], "group_norm groups must be an integer, got 1.5"),
        ([{"kind": "group_norm", "floor": 0.0}], "group_norm floor must be positive, got 0.0"),
        ([{"kind": "constant", "value": "1"}], "constant value must be a number, got '1'"),
        ([{"kind": "constant", "value": -1.0}], "constant value must be positive, got -1.0"),
    ],
)
def test_names_and_settings_are_refused(said, message):
    with pytest.raises(Refusal) as caught:
        as_maps(said)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "shape", "message"),
    [
        (Pooling(3), (28, 28, 1), "pooling size must divide the picture's sides (28×28), got 3"),
        (GroupNorm(5), (7, 7, 81), "group_norm groups must divide the 81 channels, got 5"),
        *(
            (
                one,
                (7,),
                f"features {name} must be of pictures, got examples of 7 numbers: give picture = [height, width]",
            )
            for one, name in ((Pooling(), "pooling"), (Scattering(), "scattering"), (GroupNorm(), "group_norm"))
        ),
    ],
)
def test_examples_that_do_not_fit_are_refused(one, shape, message):
    with pytest.raises(Refusal) as caught:
        one.shape(shape)
    assert str(caught.value) == message
