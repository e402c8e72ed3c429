"""One seed is one stream of noise: runs with the same streams are not composed, and no output tells a stream."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from fedprivjax import (
    Ball,
    DPMu2,
    FedAvg,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    StaleMomentum,
    TreeMomentum,
    guarantee_of,
    linear_problem,
    ready,
    sweep,
)
from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation import PoissonCohorts
from fedprivjax.plan.seeds import Seeds
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.terms import PRIVATE_SEED

SEED = 987_654_321  # does not occur by chance in a text
PROBLEM = linear_problem(
    np.eye(12, 3),
    np.ones(12),
    Logistic(),
    constraint=Ball(1.0),
    partition_table=[range(6), range(6, 12)],
)
METHODS = (
    DPMu2(mu=1.0, clip=1.0),
    NoisySGD(mu=1.0, clip=1.0),
    StaleMomentum(mu=1.0, clip=1.0),
    TreeMomentum(mu=1.0, clip=1.0),
    NoisyMinibatchSGD(epsilon=1.0, clip=1.0, sampler="full"),
)


def prepared(method, seed: int | Seeds = SEED, scheme=None, **options):
    return ready(method, PROBLEM, Full(2) if scheme is None else scheme, rounds=6, seed=seed, **options)


def guarantee(method, seed: int | Seeds = SEED, scheme=None):
    return prepared(method, seed, scheme).guarantee


@pytest.fixture(scope="module")
def stated():
    return guarantee(DPMu2(mu=1.0, clip=1.0))


@pytest.mark.parametrize("records", ["same", "disjoint"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_runs_of_one_seed_are_not_composed_whatever_their_methods(method, records):
    first, second = guarantee(METHODS[0]), guarantee(method, np.uint32(SEED))
    with pytest.raises(Refusal, match=r"^other must have noise of its own, got the noise of this run. One seed is one"):
        first.then(second, records)
    assert first.then(guarantee(method, SEED + 1), "disjoint").private


def test_streams_are_compared_by_their_own_seeds(stated):
    with pytest.raises(Refusal, match="noise of its own"):
        stated.then(guarantee(METHODS[1], Seeds(1, 2, SEED)))
    assert stated.then(guarantee(METHODS[1], Seeds(SEED, SEED, 1))).private  # nothing but the noise is secret


@pytest.mark.parametrize("other", [{"sampler": "full", "batch": None}, {"sampler": "poisson"}])
def test_secret_samples_are_not_those_of_another_run(other):
    poisson = NoisyMinibatchSGD(noise_std=1.0, clip=1.0, sampler="poisson", batch=2)
    first, second = guarantee(poisson, Seeds(1, SEED, 1)), guarantee(poisson.replace(**other), Seeds(2, SEED, 2))
    for pair in ((first, second), (second, first)):  # one that shows the stream shows the other's samples
        with pytest.raises(Refusal, match="must have secret samples of its own, got the secret samples of this run"):
            pair[0].then(pair[1])
    assert not first.streams.shared(guarantee(poisson, Seeds(2, SEED + 1, 2)).streams)


def test_secret_participation_is_not_that_of_another_run():
    method = FedAvg(noise_std=1.0, unit="machine", update_clip=1.0, trust="server", local_steps=1, step_size=0.1)
    scheme = PoissonCohorts(2, 0.5)
    first, second = (guarantee(method, Seeds(SEED, noise, noise), scheme) for noise in (1, 2))
    with pytest.raises(Refusal, match="must have secret participation of its own"):
        first.then(second)
    assert not first.streams.shared(guarantee(method, Seeds(1, 3, 2), scheme).streams)


@pytest.mark.parametrize("noise", ["shared by all, whose guarantees do not compose", "sampled independently for each"])
def test_configurations_of_a_sweep_have_the_streams_of_its_seeds(stated, noise):
    """Secret samples and noise are those of other sweeps, although each configuration may have noise of its own.

    A trial of an experiment has the noise of a sweep with `resample` at the same place.
    """

    def cell(found, **seeds):
        return guarantee_of(xr.Dataset({"guarantee": found.to_json()}, seeds, {"noise": noise}))

    poisson = guarantee(NoisyMinibatchSGD(noise_std=1.0, clip=1.0, sampler="poisson", batch=2))
    streams = [cell(stated, seed=[1, 2]), cell(stated, seed=2), cell(stated, seed=2, trial=0), cell(stated)]
    assert [streams[0].streams.shared(one.streams) for one in streams] == [["noise"], ["noise"], ["noise"], []]
    assert cell(poisson, seed=2).streams.shared(streams[1].streams) == ["noise", "secret samples"]


def test_two_sweeps_whose_configurations_have_own_noise_are_not_composed():
    """Both have the same noise at the same place of their grids, so the difference of their results has no noise."""
    method = FedAvg(unit="machine", update_clip=1.0, local_steps=1, sampler="full", step_size=0.0001)
    options = {"over": {"noise_std": [1.0, 2.0]}, "seeds": [SEED], "rounds": 1, "metrics": (), "common_noise": False}
    options |= {"keep": ["params"]}
    one, other = (
        sweep(method.replace(update_clip=clip), PROBLEM, Full(2), **options).sel(noise_std=1.0) for clip in (1.0, 2.0)
    )
    np.testing.assert_allclose(one["params"], other["params"], atol=1e-3)
    assert np.abs(one["params"]).min() > 0.01  # it is noise
    with pytest.raises(Refusal, match="must have noise of its own, got the noise of this run"):
        guarantee_of(one).then(guarantee_of(other))


def test_conversions_and_compositions_keep_the_streams(stated):
    other = guarantee(METHODS[1], 1)
    for one in (stated.for_group(2), stated.for_user(2), copy.copy(stated), copy.deepcopy(stated)):
        with pytest.raises(Refusal, match="noise of its own"):
            one.then(stated)
    for one in (stated.then(other), other.then(stated)):
        for again in (stated, other, one):
            with pytest.raises(Refusal, match="noise of its own"):
                one.then(again)
            with pytest.raises(Refusal, match="noise of its own"):
                again.then(one)


def test_streams_are_neither_printed_nor_saved(stated):
    saved = pickle.loads(pickle.dumps(replace(stated, event=None)))
    read = PrivacyGuarantee.from_json(stated.to_json())
    shown = [str(stated), repr(replace(stated, event=None)), stated.to_json(), stated.paragraph(), str(stated.streams)]
    shown += [str(pickle.dumps(replace(stated, event=None), protocol=0))]
    assert not [text for text in shown if str(SEED) in text or hex(SEED) in text]
    for unknown in (saved, read):
        assert unknown.then(stated).private
        assert "no two runs have the same seed" in str(unknown.then(stated))


def test_equal_streams_have_no_visible_equality(stated):
    """Two processes could else find a seed by trial, from any value that depends on it alone."""
    again = guarantee(METHODS[0])
    assert again.streams != stated.streams


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_private_guarantees_assume_a_secret_seed(method):
    assert "assumes: the seed is secret" in str(guarantee(method))
    assert "the seed is secret" in guarantee(method).paragraph()


def test_a_run_without_privacy_has_no_secret():
    assert PRIVATE_SEED not in guarantee(NoisySGD(noise_std=0.0, clip=1.0)).assumptions


def test_noises_of_one_seed_are_equal():
    """Comparisons use it: two methods get the same normals. It is why their releases may not be composed."""
    one, other = (prepared(method) for method in (METHODS[1], METHODS[3]))
    assert one.key == other.key
