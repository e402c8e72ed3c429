"""The scattering transform against its definition, its symmetries, and the bound on its norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import scattering as oracle

from fedprivjax import Refusal
from fedprivjax.features import Scattering
from fedprivjax.features.scattering import smoothing, wavelets

RNG = np.random.default_rng(0)


def applied(settings, pictures):
    """The transform as one program."""
    return np.asarray(jax.jit(settings.__call__)(pictures))


@pytest.mark.parametrize(
    ("scales", "angles", "sides"),
    [
        (1, 3, (6, 4)),
        pytest.param(2, 3, (8, 12), marks=pytest.mark.slow),
        pytest.param(3, 1, (16, 16), marks=pytest.mark.slow),
    ],
)
def test_the_transform_agrees_with_its_definition(scales, angles, sides):
    pictures = RNG.normal(size=(1, *sides, 1)).astype(np.float32)
    found = applied(Scattering(scales, angles), pictures)
    expected = np.stack([oracle.scattering(picture[:, :, 0], scales, angles) for picture in pictures.astype(float)])
    np.testing.assert_allclose(np.moveaxis(found, 3, 1), expected, atol=2e-6)
    assert np.abs(expected).max(axis=(0, 2, 3)).min() > 1e-3  # no path is empty


def test_one_order_is_the_first_channels_of_two():
    pictures = RNG.random((1, 8, 8, 1)).astype(np.float32)
    both, first = (applied(Scattering(2, 2, order), pictures) for order in (2, 1))
    assert first.shape == (1, 2, 2, 5)
    np.testing.assert_array_equal(both[..., :5], first)


def test_mnist_and_digits_have_the_shapes_of_the_literature():
    assert Scattering().shape((28, 28, 1)) == (7, 7, 81)
    assert Scattering(scales=1).shape((8, 8, 3)) == (4, 4, 27)


def test_images_and_their_channels_are_transformed_separately():
    pictures = RNG.random((2, 8, 8, 2)).astype(np.float32)
    settings = jax.jit(Scattering(1, 2).__call__)
    both = np.asarray(settings(pictures))
    for channel in (0, 1):
        alone = np.zeros_like(pictures)
        alone[0, :, :, channel] = pictures[0, :, :, channel]
        found = np.asarray(settings(alone))
        part = slice(3 * channel, 3 * channel + 3)
        np.testing.assert_allclose(found[0, ..., part], both[0, ..., part], atol=1e-6)
        assert np.abs(np.delete(found, np.arange(3 * channel, 3 * channel + 3), axis=3)).max() < 1e-6


def test_a_constant_picture_has_no_waves_and_keeps_its_mean():
    found = applied(Scattering(2, 2), np.full((1, 8, 8, 1), 0.5, np.float32))
    np.testing.assert_allclose(found[..., 0], 0.5, rtol=1e-3)
    assert np.abs(found[..., 1:]).max() < 1e-6


def test_turning_a_picture_by_a_right_angle_turns_the_angles():
    assert np.allclose(wavelets(16, 16, 1, 4)[2], wavelets(16, 16, 1, 4)[0].T)


def test_the_window_adds_up_to_one():
    np.testing.assert_allclose(smoothing(8, 4, 2, 1).sum(axis=1), 1, rtol=1e-3)
    np.testing.assert_allclose(smoothing(8, 4, 2, 2).sum(axis=1), 1, rtol=2e-2)


@pytest.mark.parametrize(
    ("scales", "angles", "order", "side"), [(1, 8, 2, 8), pytest.param(2, 2, 2, 12, marks=pytest.mark.slow)]
)
def test_no_features_exceed_the_bound(scales, angles, order, side):
    settings = Scattering(scales, angles, order)
    bound = settings.bound((side, side, 1), 1.0)
    corner = np.zeros((side, side))
    corner[1, 1] = 1
    checks = (-1.0) ** np.add.outer(np.arange(side), np.arange(side))
    start = np.stack([np.ones((side, side)), corner, checks, *RNG.normal(size=(5, side, side))])[..., None]

    @jax.jit
    def longest(pictures):
        """Return images of norm 1 after gradient ascent on the norm of their features."""

        def unit(x):
            return x / jnp.linalg.norm(x.reshape(len(x), -1), axis=1)[:, None, None, None]

        def norms(x):
            return jnp.linalg.norm(settings(x).reshape(len(x), -1), axis=1)

        def step(_, x):
            return unit(x + jnp.nan_to_num(jax.grad(lambda y: norms(y).sum())(x)))

        best = jax.lax.fori_loop(0, 40, step, unit(pictures))
        return jnp.maximum(norms(best), norms(unit(pictures))).max()

    found = float(longest(jnp.asarray(start, jnp.float32)))
    assert found <= bound * (1 + 1e-5)
    assert found >= bound / 4  # and the bound says something


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scales": 0}, "scattering scales must be at least 1, got 0"),
        ({"angles": 2.5}, "scattering angles must be an integer, got 2.5"),
        ({"order": 3}, "scattering order must be 1 or 2, got 3"),
    ],
)
def test_settings_are_refused_at_once(settings, message):
    with pytest.raises(Refusal) as caught:
        Scattering(**settings)
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [(28, 30, 1), (4, 4, 1), (2, 8, 1)])
def test_sides_that_do_not_fit_are_refused(shape):
    with pytest.raises(Refusal) as caught:
        Scattering().shape(shape)
    wanted = "scattering must be of pictures with sides that are multiples of 2^scales (4) and larger"
    assert str(caught.value) == f"{wanted}, got {shape[0]}×{shape[1]}"
