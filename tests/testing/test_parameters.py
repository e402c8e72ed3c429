"""Properties of the contract if parameters are a dictionary, with a fault in one of its arrays."""

import jax
import numpy as np
import pytest
from cases import POOL, SOME_MACHINES

from fedprivjax import NoisySGD, general_problem
from fedprivjax.testing import PROPERTIES, Trial, privacy

NAME = "the transcript follows the run"


def loss(params, example):
    scores = params["kernel"] @ example.features + params["bias"]
    return jax.nn.logsumexp(scores) - scores[example.label]


def test_a_transcript_is_compared_in_every_array_of_the_parameters(monkeypatch):
    features, classes = POOL.pool.features.shape[1], 3
    start = {"kernel": np.zeros((classes, features)), "bias": np.zeros(classes)}
    method = NoisySGD(noise_std=0.4, clip=0.5, step_size=0.1)
    trial = Trial(method, general_problem(loss, POOL.pool, start), SOME_MACHINES, rounds=4)
    PROPERTIES[NAME](trial)
    view = privacy.transcript(method, trial.problem, SOME_MACHINES, rounds=4, seed=trial.seed)
    wrong = view._replace(params=view.params | {"bias": view.params["bias"] + 0.01})
    monkeypatch.setattr(privacy, "transcript", lambda *_, **__: wrong)
    with pytest.raises(AssertionError, match="the transcript's point"):
        PROPERTIES[NAME](trial)
