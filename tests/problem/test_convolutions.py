"""Convolutions as slices and products: values and gradients of XLA's convolutions, and losses that stay as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from flax import linen as nn

from fedprivjax import MLP, FedAvg, Full, Refusal, Softmax, datasets, from_dataset, general_problem, simulate
from fedprivjax.datasets import from_arrays
from fedprivjax.method.round import machines_at_once
from fedprivjax.problem.devices import programs_for
from fedprivjax.problem.models import GeneralModel

RNG = np.random.default_rng(0)
LAST, FIRST = ("NWC", "NHWC", "NDHWC"), ("NCW", "NCHW", "NCDHW")
KERNELS = {LAST: ("WIO", "HWIO", "DHWIO"), FIRST: ("OIW", "OIHW", "OIDHW")}
SIZES, OFFSETS = (9, 8, 7), (3, 2, 3)


def both(function, *arguments):
    """Return values and gradients of a loss by products and by XLA."""
    models = [GeneralModel(function, convolutions=choice) for choice in ("products", "xla")]
    return [jax.jit(jax.value_and_grad(model.value, (0, 1)))(*arguments) for model in models]


def close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


CASES = [  # axes, layout, stride, padding, dilation, groups
    (1, LAST, 2, "SAME", 1, 1),
    (1, FIRST, 1, [(2, 1)], 2, 3),
    (2, LAST, 1, "SAME", 1, 1),
    (2, LAST, 2, "VALID", 2, 1),
    (2, FIRST, 1, [(1, 2), (0, 3)], 1, 3),
    (2, FIRST, 3, "SAME", 1, 1),
    (3, LAST, 1, "VALID", 1, 3),
    (3, FIRST, 2, "SAME", 1, 1),
]


QUICK = [CASES[1], CASES[3], CASES[4], CASES[7]]


@pytest.mark.parametrize(("axes", "layout", "stride", "padding", "dilation", "groups"), sparing(CASES, QUICK))
@pytest.mark.parametrize("widest", [512, 1])
def test_products_are_convolutions(axes, layout, stride, padding, dilation, groups, widest, monkeypatch):
    monkeypatch.setattr("fedprivjax.problem.convolutions.WIDEST", widest)
    form = layout[axes - 1], KERNELS[layout][axes - 1], layout[axes - 1]
    sizes = dict(zip("DHW"[3 - axes :], SIZES, strict=False)) | {"N": 2, "C": 2 * groups}
    offsets = dict(zip("DHW"[3 - axes :], OFFSETS, strict=False)) | {"I": 2, "O": 4 * groups}
    x, w = (
        RNG.normal(size=[lengths[axis] for axis in letters]).astype(np.float32) / 4
        for letters, lengths in zip(form, (sizes, offsets), strict=False)
    )
    options = {"rhs_dilation": (dilation,) * axes, "dimension_numbers": form, "feature_group_count": groups}

    def loss(w, x):
        return jnp.sum(jnp.sin(jax.lax.conv_general_dilated(x, w, (stride,) * axes, padding, **options)))

    close(*both(loss, w, x))
    gradient = jax.make_jaxpr(lambda *given: GeneralModel(loss, convolutions="products").gradients(given[:1], given[1]))
    assert "conv_general_dilated" not in str(gradient(w, x))


@pytest.mark.parametrize("groups", sparing([1, 2], []))
def test_xla_computes_values_of_several_channels_once_and_products_their_derivatives(groups):
    """Values, gradients of all arguments, gradients under `vmap` over kernels, and products with the Hessian."""

    def loss(w, x):
        return jnp.sum(jnp.sin(jax.lax.conv_general_dilated(x, w, (2, 1), "SAME", feature_group_count=groups)))

    x = RNG.normal(size=(2, 4 * groups, 6, 5)).astype(np.float32) / 4
    w = RNG.normal(size=(3, 2 * groups, 4, 3, 2)).astype(np.float32) / 4
    close(*both(loss, w[0], x))
    models = [GeneralModel(loss, convolutions=choice) for choice in ("products", "xla")]
    gradients = [jax.grad(model.value) for model in models]
    close(*(jax.vmap(gradient, (0, None))(w, x) for gradient in gradients))
    close(*(jax.jvp(lambda w, gradient=gradient: gradient(w, x), (w[0],), (w[1],))[1] for gradient in gradients))
    assert str(jax.make_jaxpr(gradients[0])(w[0], x)).count("conv_general_dilated") == 1
    assert str(jax.make_jaxpr(gradients[1])(w[0], x)).count("conv_general_dilated") == 2


def test_a_convolution_without_values_stays():
    """A kernel that is longer than its inputs."""

    def loss(w, x):
        one, none = (jax.lax.conv(values, w, (2, 2), "VALID") for values in (x, x[:, :, :1, :1]))
        return jnp.sum(jnp.sin(one)) + jnp.sum(none)

    close(*both(loss, jnp.ones((2, 2, 3, 3)), jnp.ones((1, 2, 5, 5))))


@pytest.mark.slow
@pytest.mark.parametrize("pool", [nn.max_pool, nn.avg_pool])
def test_pooling_beside_a_convolution_is_made_of_slices(pool):
    def loss(w, x):
        pooled = pool(nn.relu(x), (3, 2), strides=(2, 1), padding="SAME")  # zeros of relu are ties
        return jnp.sum(jnp.sin(jax.lax.conv(pooled.transpose(0, 3, 1, 2), w, (1, 1), "SAME")))

    x, w = jnp.round(RNG.normal(size=(2, 6, 5, 2))), RNG.normal(size=(3, 2, 2, 2))
    close(*both(loss, w.astype(jnp.float32), x.astype(jnp.float32)))
    broken = x.astype(jnp.float32).at[0, 0, 0, 0].set(jnp.nan)
    assert np.isnan(both(loss, w.astype(jnp.float32), broken)[0][0])


def test_convolutions_in_nested_programs_are_rewritten():
    @jax.checkpoint
    def layer(w, x):
        return jax.jit(lambda x: jnp.tanh(jax.lax.conv(x, w, (1, 1), "SAME")))(x)

    def loss(w, x):
        x = jax.lax.scan(lambda x, _: (layer(w, x), None), x, None, length=2)[0]
        x = jax.lax.cond(jnp.sum(x) > 0, lambda x: layer(w, x), lambda x: -layer(w, x), x)
        return jnp.sum(jax.nn.relu(x) ** 2)

    w, x = (RNG.normal(size=shape).astype(np.float32) for shape in ((2, 2, 3, 3), (1, 2, 5, 5)))
    close(*both(loss, w, x))
    assert "conv_general" not in str(jax.make_jaxpr(jax.grad(GeneralModel(loss, convolutions="products").value))(w, x))


def transposed(w, x):
    return jnp.sum(jnp.sin(jax.lax.conv_transpose(x, w, (2, 2), "SAME")))


def dense(w, x):
    return jnp.sum(jnp.tanh(x.reshape(-1) @ w.reshape(x.size, -1)))


@pytest.mark.parametrize("loss", [transposed, dense])
def test_losses_without_convolutions_have_the_same_program(loss):
    w, x = RNG.normal(size=(2, 2, 3, 3)), RNG.normal(size=(1, 2, 2, 3))
    models = [GeneralModel(loss, convolutions=choice) for choice in ("auto", "products", "xla")]
    programs = [str(jax.make_jaxpr(lambda w, x: model.gradients((w,), x))(w, x)) for model in models]  # noqa: B023
    assert programs[0] == programs[1] == programs[2]


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(3, (3, 3))(x)), (2, 2), strides=(2, 2))
        return nn.Dense(2)(x.reshape(x.shape[0], -1))


def problem_of(**options):
    rows = np.arange(24).reshape(3, 8)
    pictures = np.random.default_rng(1).uniform(size=(24, 6, 6)).astype(np.float32)
    data = from_arrays(pictures, np.arange(24) % 2, feature_bound=6.0, classes=2)
    return from_dataset(data, Softmax(2), network=Net(), partition_table=rows, **options)


def ends(choice):
    method = FedAvg(local_epochs=1, batch=4, step_size=0.2)
    return simulate(method, problem_of(convolutions=choice), Full(3), rounds=2, metrics=["train_loss"]).params


def test_a_run_of_a_convolutional_network_does_not_depend_on_the_choice():
    close(ends("auto"), ends("xla"))


@pytest.mark.slow
def test_products_are_chosen_on_a_cpu():
    assert jax.tree.all(jax.tree.map(np.array_equal, ends("auto"), ends("products")))


@pytest.mark.slow
def test_machines_with_large_activations_are_computed_one_after_another():
    rows = np.arange(1400).reshape(10, 140)
    small = from_dataset(datasets.load("digits"), network=MLP((64,)), partition_table=rows)
    assert machines_at_once(small, 4, 20) > 100
    assert machines_at_once(problem_of(), 4, 4) > 100
    assert machines_at_once(problem_of(), 4, 4000) == 1
    with programs_for("gpu"):
        assert machines_at_once(problem_of(), 4, 4000) > 100


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(Refusal, match="unknown convolutions 'fft'"):
        general_problem(dense, np.ones((2, 3)), np.ones((3, 2)), convolutions="fft")
    with pytest.raises(Refusal, match="convolutions must be 'auto' for a linear predictor"):
        from_dataset(datasets.load("digits"), convolutions="xla")
