"""Default steps without a theory: for networks, from the clip, the noise, the rounds and the public start."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import (
    MLP,
    AcceleratedMinibatchSGD,
    Ball,
    BitMean,
    DPMu2,
    Full,
    GaussianMean,
    LocalSGD,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisyMomentum,
    NoisyRecords,
    NoisyRecordSteps,
    NoisySGD,
    Protocol,
    Refusal,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
    datasets,
    from_dataset,
    general_problem,
    simulate,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.method.momentum import NormalisedSteps
from fedprivjax.problem.constraints import flat
from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedSGD
from fedprivjax.protocols.dp_mu2 import Mu2
from fedprivjax.protocols.local_sgd import AveragedEndPoints
from fedprivjax.protocols.noisy_minibatch_sgd import MinibatchSGD
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.protocols.stale_momentum import Stale
from fedprivjax.theory import reshef_levy
from fedprivjax.vectors.cases import FULL, POOL
from fedprivjax.vectors.cases import OWN as RECORDS
from fedprivjax.vectors.cases import problem as problem_of


@cache
def digits(machines=None):
    """Return a small network's problem on the digits: one pool, or equal shares of 1,430 records."""
    table = None if machines is None else np.arange(1430).reshape(machines, -1)
    return from_dataset(datasets.load("digits"), network=MLP((8,)), partition_table=table)


def step_of(protocol, problem, rounds=100):
    return float(ready(protocol, problem, Full(10), rounds=rounds, metrics=["noise_norm"]).protocol.step_size)


def test_a_network_travels_as_far_as_its_start_is_from_the_other_side_of_zero():
    norm = float(np.linalg.norm(flat(digits().start)))
    assert digits().travel == pytest.approx(2 * norm)
    assert replace(digits(), distance=3.0).travel == 3.0
    assert replace(digits(), constraint=Ball(50.0)).travel == 100.0
    assert from_dataset(datasets.load("digits")).travel == np.inf
    assert general_problem(lambda w, x: jnp.sum(w * x), np.ones((9, 2)), np.zeros(2)).travel == np.inf


def test_steps_follow_from_public_numbers_alone():
    travel, norm = digits().travel, float(np.linalg.norm(flat(digits().start)))
    found = step_of(NoisySGD(noise_std=0.2, clip=0.5, trust="server"), digits())
    assert found == pytest.approx(travel / np.sqrt(100 * (0.25 + digits().dimension * 0.04)))
    assert step_of(NoisySGD(mu=np.inf, clip=0.5), digits()) == pytest.approx(2 * norm / np.sqrt(100 * 0.25))
    assert step_of(DPMu2(mu=np.inf, clip=0.5), digits()) == pytest.approx(travel * np.sqrt(3) / (0.5 * 100**1.5))
    assert step_of(StaleMomentum(mu=np.inf, clip=0.5), digits()) == step_of(DPMu2(mu=np.inf, clip=0.5), digits())
    minibatch = step_of(NoisyMinibatchSGD(noise_std=0.2, clip=0.5, batch=143), digits(10), rounds=40)
    assert minibatch == pytest.approx(travel / np.sqrt(40 * (0.25 + digits().dimension * 0.04 / 10)), rel=1e-5)


def test_where_noise_rules_the_step_is_the_theorys():
    """With the diameter as the distance, and with much noise, as on a ball."""
    much = DPMu2(mu=0.01, clip=0.5, trust="server")
    assert step_of(much, digits()) == pytest.approx(
        step_of(much, replace(digits(), constraint=Ball(digits().travel / 2))), 1e-3
    )
    assert reshef_levy.clipped_step(rounds=3, diameter=2.0, increment=1.0) == pytest.approx(2 / 3)


@pytest.mark.parametrize("protocol", [NoisySGD(mu=np.inf, clip=1.0), DPMu2(mu=4.0, clip=1.0, trust="server")])
@pytest.mark.slow
def test_a_network_learns_at_its_default_step(protocol):
    run = simulate(protocol, digits(), Full(20), metrics=["test_accuracy"], eval_every=71)
    assert run.metrics["test_accuracy"][-1] > 0.6


@pytest.mark.parametrize(
    "protocol", [NoisySGD(mu=1.0, clip=1.0), DPMu2(mu=1.0, clip=1.0), StaleMomentum(mu=1.0, clip=1.0)]
)
def test_a_start_at_zero_leaves_nothing_to_go_by(protocol):
    problem = replace(digits(), start=jax.tree.map(jnp.zeros_like, digits().start))
    with pytest.raises(Refusal, match="step_size must be set: its default needs a ball"):
        step_of(protocol, problem)


CLIP, SUBSET = {"clip": 0.5}, {"clip": 0.5, "batch": 3, "sampler": "subset"}
PAIRS = {  # a method, and the pair that it stands for
    "sgd": (NoisySGD(noise_std=0.2, **CLIP), SGD(), NoisyMessages(**CLIP)),
    "sgd of users": (UserSGD(noise_std=0.2, trust="none", **CLIP), SGD(average=True), GaussianMean(**CLIP)),
    "sgd of bits": (UserSGD(noise_std=3.0, **CLIP), SGD(average=True), BitMean(**CLIP)),
    "mu2": (DPMu2(noise_std=0.2, **CLIP), Mu2(), NoisyMessages(noise="uniform", **CLIP)),
    "fresh noise": (DPMu2(noise_std=0.2, cancel=False, **CLIP), Mu2(), NoisyMessages(**CLIP)),
    "stale": (StaleMomentum(noise_std=0.2, **CLIP), Stale(), NoisyMessages(noise="uniform", **CLIP)),
    "accelerated sgd of users": (UserAGD(noise_std=0.2, trust="none", **CLIP), AcceleratedSGD(), GaussianMean(**CLIP)),
    "accelerated sgd of bits": (UserAGD(noise_std=3.0, **CLIP), AcceleratedSGD(), BitMean(**CLIP)),
    "minibatches": (NoisyMinibatchSGD(noise_std=0.2, **SUBSET), MinibatchSGD(), NoisyRecords(**SUBSET)),
    "accelerated": (AcceleratedMinibatchSGD(noise_std=0.2, **SUBSET), AcceleratedSGD(), NoisyRecords(**SUBSET)),
    "momentum": (
        TreeMomentum(noise_std=0.2, alpha=0.5, batch=2, **CLIP),
        NormalisedSteps(alpha=0.5),
        NoisyMomentum(batch=2, **CLIP),
    ),
    "local": (LocalSGD(noise_std=0.2, batch=2, **CLIP), AveragedEndPoints(), NoisyRecordSteps(batch=2, **CLIP)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_has_the_default_step_of_the_method_that_stands_for_it(name):
    method, algorithm, privacy = PAIRS[name]
    pair = Protocol(algorithm, privacy=privacy, noise_std=method.noise_std)
    problem = problem_of(RECORDS if name in ("minibatches", "accelerated", "momentum", "local") else POOL)
    steps = [ready(one, problem, FULL, rounds=8).protocol.step_size for one in (method, pair)]
    assert 0 < steps[0] == steps[1]


@pytest.mark.parametrize(
    ("algorithm", "privacy"),
    [(SGD(), GaussianMean(**CLIP)), (SGD(), NoisyMessages(noise="uniform", **CLIP)), (SGD(), NoisyRecords(**SUBSET))],
)
def test_a_pair_that_no_theory_covers_has_no_default_step(algorithm, privacy):
    pair = Protocol(algorithm, privacy=privacy, noise_std=0.2)
    with pytest.raises(Refusal, match="step_size must be given for SGD"):
        ready(pair, problem_of(RECORDS if type(privacy) is NoisyRecords else POOL), FULL, rounds=8)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_the_accelerated_step_on_private_means_minimises_the_bound_of_ac_sa(noise):
    """The variance is that of the noise and of a cohort's sampling, without a clip."""
    problem, rounds, users = problem_of(POOL), 8, FULL.machines
    variance = (problem.lipschitz**2 + problem.dimension * noise**2) / users
    v = np.sqrt(variance * rounds * (rounds + 1) * (2 * rounds + 1) / 12) / problem.distance_to_optimum
    method = Protocol(AcceleratedSGD(), privacy=GaussianMean(), noise_std=noise)
    found = ready(method, problem, FULL, rounds=rounds, metrics=[]).protocol
    assert 1 / found.step_size == pytest.approx(max(v, 2 * problem.smoothness))
    curved = ready(replace(method, algorithm=AcceleratedSGD(strong_convexity=0.1)), problem, FULL, rounds=rounds)
    assert 1 / curved.protocol.step_size == pytest.approx(2 * problem.smoothness)
