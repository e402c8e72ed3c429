"""Privacy of released code, which is composed with its method alone."""

from typing import Any

import jax
import numpy as np
import pytest
from cases import PARTIAL, SHARES, sparing

from fedprivjax import Full, NoisyMinibatchSGD, NoisyRecords, Protocol, Refusal, linear_problem, ready, simulate
from fedprivjax.privacy.noise_rules import PaperMoments
from fedprivjax.problem.losses import Softmax
from fedprivjax.protocols import ReleasedMinibatchSGD
from fedprivjax.protocols.noisy_minibatch_sgd import MinibatchSGD
from fedprivjax.protocols.released import ReleasedRecords, SummedSGD

SETTINGS: dict[str, Any] = {"epsilon": 4.0, "clip": 0.3, "batch": 4, "sampler": "replacement", "step_size": 0.4}
STATED = 1e-3  # Lipschitz constant that is false, and too small


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def run(protocol, problem=SHARES):
    return simulate(protocol, problem, PARTIAL, rounds=4, seed=3, metrics=())


def test_means_of_clipped_records_are_those_of_noisy_minibatch_sgd():
    ours, theirs = run(ReleasedMinibatchSGD(**SETTINGS)), run(NoisyMinibatchSGD(**SETTINGS))
    np.testing.assert_array_equal(numbers(ours.params), numbers(theirs.params))
    assert ours.guarantee.to_json() == theirs.guarantee.to_json()


@pytest.mark.parametrize(("aggregate", "kind"), [("mean", MinibatchSGD), ("sum", SummedSGD)])
def test_the_parts_hold_the_settings(aggregate, kind):
    method = ReleasedMinibatchSGD(aggregate=aggregate, clip_at="message", strong_convexity=0.1, window=3, **SETTINGS)
    assert type(method.algorithm) is kind
    assert method.algorithm == kind(strong_convexity=0.1, window=3)
    own = {name: value for name, value in SETTINGS.items() if name not in ("epsilon", "step_size")}
    assert method.privacy == ReleasedRecords(aggregate=aggregate, clip_at="message", **own)


def test_no_pair_is_composed_with_it():
    for clip_at in ("record", "message", "other"):
        privacy = ReleasedRecords(clip=1.0, batch=4, sampler="replacement", clip_at=clip_at)
        with pytest.raises(Refusal, match=r"privacy must be a NoisyMessages or .* got a ReleasedRecords"):
            Protocol(MinibatchSGD(), privacy=privacy, epsilon=4.0, step_size=0.1)
    with pytest.raises(Refusal, match="ReleasedRecords must not be subclassed"):
        type("Mine", (ReleasedRecords,), {})


@pytest.mark.parametrize("aggregate", sparing(["mean", "sum"], ["sum"]))
def test_a_stated_lipschitz_constant_is_enforced_in_a_private_run(aggregate):
    features = np.full((2, 4, 3), 5.0, np.float32)
    problem = linear_problem(features, np.zeros((2, 4), int), Softmax(3), lipschitz=STATED)

    def moved(**noise):
        method = ReleasedMinibatchSGD(sampler="full", aggregate=aggregate, step_size=1.0, window=1, **noise)
        return np.linalg.norm(simulate(method, problem, Full(2), rounds=1, metrics=()).params)

    machines = 2 if aggregate == "sum" else 1
    assert moved(noise_std=1e-9) <= machines * STATED * (1 + 1e-4) < moved(epsilon=np.inf)


PAPER = {**SETTINGS, "noise_rule": PaperMoments(acknowledged=True)}
OF_PAIR = {name: value for name, value in PAPER.items() if name not in ("epsilon", "step_size")}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NoisyMinibatchSGD(**PAPER), "unknown noise_rule PaperMoments"),
        (
            lambda: Protocol(MinibatchSGD(), privacy=NoisyRecords(**OF_PAIR), epsilon=4.0, step_size=0.1),
            "MinibatchSGD must give at most ε = 4 at δ = 1e-05",
        ),
        (lambda: PaperMoments(acknowledged=1), "acknowledged must be true or false, got 1"),  # type: ignore[arg-type]
        (lambda: PaperMoments(claimed_records=0), "claimed_records must be at least 1, got 0"),
    ],
)
def test_a_claim_is_for_released_code(make, said):
    with pytest.raises(Refusal, match=said):
        ready(make(), SHARES, PARTIAL, rounds=4)
