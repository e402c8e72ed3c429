"""Regression of the random streams: the same seed gives the same run in every version."""

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    Ball,
    DPMu2,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    Seeds,
    Uniform,
    Varying,
    linear_problem,
    simulate,
    sweep,
)

RNG = np.random.default_rng(42)
X = RNG.normal(size=(4, 6, 2)).astype(np.float32)
Y = (X.sum(axis=2) > 0).astype(int)
SPLIT = linear_problem(X, Y, Logistic(), constraint=Ball(1.0))
POOLED = linear_problem(X.reshape(24, 2), Y.reshape(24), Logistic(), constraint=Ball(1.0))
SETTINGS = {"noise_std": 0.3, "clip": 0.5, "step_size": 0.1}
MU2, MINIBATCH = DPMu2(**SETTINGS), NoisyMinibatchSGD(batch=3, window=2, **SETTINGS)
SOME, HALF_OR_TWO = Uniform(4, 2), Varying(4, (0.5, 0.0, 0.5))

# values of version 0.1.0: the reported point, the last round's noise, the training loss
CASES = {
    "covariance": (MU2, POOLED, SOME, {}, [0.6064311265945435, 0.5325483083724976], 0.8646840453147888),
    "materialised": (
        MU2,
        POOLED,
        SOME,
        {"noise_method": "materialised"},
        [0.6514717936515808, 0.4480673670768738],
        1.304486870765686,
    ),
    "three seeds": (
        DPMu2(trust="server", **SETTINGS),
        POOLED,
        SOME,
        {"seed": Seeds(1, 2, 3)},
        [0.40194275975227356, 0.6330676674842834],
        1.9743249416351318,
    ),
    "minibatch": (MINIBATCH, SPLIT, HALF_OR_TWO, {}, [0.2067691683769226, 0.2062854915857315], 0.13679829239845276),
    "local": (LocalSGD(batch=3, **SETTINGS), SPLIT, SOME, {}, [0.280769407749176, 0.46444523334503174], 0.0),
}


@pytest.mark.parametrize("name", sparing(list(CASES), ["covariance", "minibatch", "three seeds"]))
def test_a_seed_gives_the_recorded_run(name):
    protocol, problem, participation, options, params, noise = CASES[name]
    options = {"rounds": 12, "seed": 5, "eval_every": 12, "metrics": ("noise_norm",), **options}
    run = simulate(protocol, problem, participation, **options)
    np.testing.assert_allclose(np.ravel(run.params), params, rtol=1e-6)
    np.testing.assert_allclose(run.metrics["noise_norm"], [noise], rtol=1e-6)


def test_noise_resampled_for_each_configuration_is_the_recorded_one():
    data = sweep(
        NoisySGD(clip=0.5, step_size=0.1),
        POOLED,
        SOME,
        over={"noise_std": [0.1, 0.4]},
        rounds=12,
        eval_every=12,
        seeds=2,
        metrics=("train_loss",),
        common_noise=False,
    )
    found = data["train_loss"].sel(iterate="output").values.squeeze()
    expected = [[0.564496636390686, 0.5696227550506592], [0.5064181089401245, 0.5638405084609985]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
