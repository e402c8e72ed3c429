"""The weights of the canaries of one run do not depend on the coins."""

import numpy as np

from fedprivjax import Full, NoisySGD
from fedprivjax.auditing import one_run
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Logistic


def test_the_signal_that_weights_follow_from_is_the_same_whatever_the_coins(monkeypatch):
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 8)).astype(np.float32), (rng.random(40) < 0.5).astype(np.float32)
    problem = linear_problem(features, labels, Logistic(), feature_bound=10.0, constraint=Ball(100.0))
    signals, own = [], []

    def weigh(seen, signal):
        signals.append(signal)
        own.append(seen.own)
        return np.zeros(signal.shape[0]), 10.0

    monkeypatch.setattr(one_run, "weigh", weigh)
    drawn = np.random.default_rng(0).random((3, 20, 1))
    for coins in drawn[:2]:  # the attacker's own coins, the last, are the same
        monkeypatch.setattr(one_run, "_drawn_coins", lambda shape, seed, coins=coins: np.stack([coins, drawn[2]]))
        one_run.audit_one_run(NoisySGD(mu=1.0, clip=1.0, step_size=0.1), problem, Full(20), rounds=2, guesses=4)
    assert np.array_equal(*signals)
    assert not np.allclose(*own)
