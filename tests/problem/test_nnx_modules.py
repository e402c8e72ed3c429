"""Flax nnx modules as models: the graph is fixed, the parameters are the run's, and state is rejected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from fedprivjax import MLP, DPMu2, Full, Refusal, from_dataset, simulate
from fedprivjax.datasets import from_arrays

RNG = np.random.default_rng(7)
ROWS, CLASSES = RNG.uniform(size=(24, 4)).astype(np.float32), RNG.integers(0, 3, 24)
DATA = from_arrays(ROWS, CLASSES, ROWS[:6], CLASSES[:6], feature_bound=2.0, classes=3)


class Twin(nnx.Module):
    """`MLP((5,))` written in nnx."""

    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, inputs):
        return self.last(jnp.tanh(self.first(inputs)))


class Stateful(nnx.Module):
    def __init__(self, layer):
        self.dense, self.layer = nnx.Linear(4, 3, rngs=nnx.Rngs(0)), layer

    def __call__(self, inputs):
        return self.layer(self.dense(inputs))


class LinenDropout(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(inputs))


class Bare(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return inputs[:, :3]


def test_an_nnx_module_runs_as_its_linen_twin():
    module = Twin(nnx.Rngs(1))
    ours = from_dataset(DATA, network=module)
    assert ours.dimension == 4 * 5 + 5 + 5 * 3 + 3
    twin = {"Dense_0": ours.start["first"], "Dense_1": ours.start["last"]}
    linen = from_dataset(DATA, network=MLP((5,)), start=twin)
    protocol = DPMu2(mu=np.inf, clip=0.3, step_size=0.05)
    runs = [simulate(protocol, each, Full(4), rounds=4, metrics=["test_loss"]) for each in (ours, linen)]
    np.testing.assert_allclose(runs[0].metrics["test_loss"], runs[1].metrics["test_loss"], rtol=1e-5)
    np.testing.assert_allclose(runs[0].params["last"]["bias"], runs[1].params["Dense_1"]["bias"], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(module.first.kernel[...], ours.start["first"]["kernel"])


def test_equal_modules_are_one_program():
    one, other = (from_dataset(DATA, network=Twin(nnx.Rngs(seed))) for seed in (1, 2))
    assert one.model == other.model
    assert hash(one.model) == hash(other.model)
    assert not np.array_equal(one.start["first"]["kernel"], other.start["first"]["kernel"])


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (
            lambda: Stateful(nnx.BatchNorm(3, rngs=nnx.Rngs(0))),
            {},
            "network must have parameters only, since records must not share state, got ['BatchStat']",
        ),
        (
            lambda: Stateful(nnx.Dropout(0.5, rngs=nnx.Rngs(0))),
            {},
            "network must have parameters only, since records must not share state, got ['RngCount', 'RngKey']",
        ),
        (lambda: LinenDropout(), {}, "network must not use random numbers (such as dropout) when it is called:"),
        (lambda: Bare(), {}, "network must have parameters, got none in Bare"),
        (lambda: Twin, {}, "network must be a flax.linen.Module or a flax.nnx.Module, got the class Twin"),
        (
            lambda: Twin(nnx.Rngs(0)),
            {"start_seed": 3},
            "start_seed must be left out for an nnx module, which has parameters already, got 3",
        ),
        (
            lambda: nnx.Linear(4, 2, rngs=nnx.Rngs(0)),
            {},
            "network must give scores of shape [1, 3] for one example, got [1, 2]",
        ),
    ],
)
def test_refusals(network, options, message):
    with pytest.raises(Refusal) as caught:
        from_dataset(DATA, network=network(), **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_module_with_start_given_takes_no_seed():
    start = from_dataset(DATA, network=Twin(nnx.Rngs(5))).start
    problem = from_dataset(DATA, network=Twin(nnx.Rngs(0)), start=start, start_seed=3)
    assert jax.tree.all(jax.tree.map(np.array_equal, problem.start, start))
