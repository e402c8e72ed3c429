"""Realised privacy and guarantees of a sweep's configurations in its dataset."""

from dataclasses import replace
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pytest
import xarray as xr
from restating import planted, unsealed

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Squared,
    Uniform,
    guarantee_of,
    linear_problem,
    sweep,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.privacy import gdp
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Terms
from fedprivjax.sweeps.prepare import ready_sweep


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(6, 4, 3)).astype(np.float32)
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    return linear_problem(features, np.zeros((6, 4)), Squared(1.0), feature_bound=1.0, constraint=Ball(4.0))


def counted(private, facts, noise_std):
    """Return an event of equal noise in every message, so that a machine's exposure grows with its participations."""
    exposure = Grouped.of(np.sqrt(facts.plan.schedule.total))
    return GaussianEvent(noise_std, 2.0, exposure, Terms("none", "a theorem of one's own"))


COUNTED = planted(NoisySGD(step_size=0.1), unsealed(event=counted, needed_noise=lambda private, facts, target: None))
SMALL = {"rounds": 4, "seeds": 5, "metrics": ["noise_norm"]}


def test_noise_that_is_solved_for_is_enough_for_every_seed(problem):
    start = ready_sweep(COUNTED, problem, Uniform(6, 2), over={"mu": [0.5, 2.0]}, **SMALL)
    most = np.array([one.plan.schedule.total.max() for one in start.starts])
    assert np.unique(most).size > 1
    assert most[0] < most.max()  # the first seed's schedule does not decide
    realised, members = start.privacy()
    expected = np.sqrt(most / most.max())[:, None] * [0.5, 2.0]
    np.testing.assert_allclose(realised["realised_mu"], expected, rtol=1e-5)
    assert (realised["realised_mu"] <= [0.5, 2.0]).all()
    np.testing.assert_allclose(members["noise_std"], 2 * np.sqrt(most.max()) / np.array([0.5, 2.0]), rtol=1e-5)


def test_a_dataset_has_targets_realised_values_and_guarantees(problem, tmp_path):
    protocol = NoisyMinibatchSGD(batch=2, clip=1.0, step_size=0.1)
    grid = sweep(protocol, problem, Uniform(6, 3), over={"epsilon": [0.5, 2.0]}, delta=1e-4, **SMALL)
    np.testing.assert_allclose(grid["target_epsilon"], [0.5, 2.0])
    assert (grid["realised_epsilon"] <= grid["target_epsilon"] * (1 + 1e-6)).all()
    assert grid["realised_mu"].isnull().all()
    grid.to_netcdf(tmp_path / "grid.nc", engine="h5netcdf")
    loaded = xr.load_dataset(tmp_path / "grid.nc", engine="h5netcdf")
    for epsilon in (0.5, 2.0):
        kept, read = (guarantee_of(data.sel(epsilon=epsilon)) for data in (grid, loaded))
        assert kept.to_json() == read.to_json()
        assert (str(kept), kept.terms) == (str(read), read.terms)
        assert kept.epsilon == pytest.approx(float(grid["realised_epsilon"].sel(epsilon=epsilon).max()))
    with pytest.raises(ValueError, match=r"^dataset must have a single value along epsilon"):
        guarantee_of(loaded)


def test_a_target_mu_is_also_reported_as_epsilon(problem):
    protocol = DPMu2(clip=1.0, step_size=0.1, noise_schedule="proportional")
    realised, members = ready_sweep(protocol, problem, Full(6), over={"mu": [1.0, 3.0]}, **SMALL).privacy()
    np.testing.assert_allclose(members["target_epsilon"], gdp.epsilon([1.0, 3.0], 1e-5), rtol=1e-9)
    assert (realised["realised_epsilon"] < 0.99 * members["target_epsilon"]).all()
    noise = ready_sweep(DPMu2(clip=1.0, step_size=0.1), problem, Full(6), over={"noise_std": [1.0]}, **SMALL).privacy()
    assert np.isnan(noise[1]["target_epsilon"]).all()


@pytest.mark.parametrize(
    ("protocol", "over", "message"),
    [
        (DPMu2(mu=3.0, clip=1.0), {"noise_std": [1.0]}, "mu must be left out if noise_std is swept, got 3.0"),
        (DPMu2(noise_std=3.0, clip=1.0), {"mu": [1.0]}, "noise_std must be left out if mu is swept, got 3.0"),
        (
            DPMu2(clip=1.0),
            {"mu": [1.0], "noise_std": [1.0]},
            "mu or noise_std must be given, not both, got both as axes",
        ),
        (DPMu2(mu=3.0, clip=1.0), {"epsilon": [1.0]}, "mu must be left out if epsilon is swept, got 3.0"),
        (NoisyMinibatchSGD(batch=2, epsilon=1.0), {"mu": [1.0]}, "epsilon must be left out if mu is swept, got 1.0"),
    ],
)
def test_a_target_beside_another_is_refused(protocol, over, message, problem):
    with pytest.raises(ValueError, match=f"^{message}$"):
        ready_sweep(protocol, problem, Full(6), over=over, **SMALL)


@pytest.mark.parametrize(
    ("given", "over"),
    [
        ({"mu": 3.0}, {"mu": [1.0, 2.0]}),
        ({"epsilon": 3.0}, {"epsilon": [1.0, 2.0]}),
        ({"noise_std": 3.0}, {"noise_std": [1.0, 2.0]}),
        ({"mu": 3.0, "clip": 0.5, "step_size": 9.0}, {"mu": [1.0, 2.0], "clip": [1.0], "step_size": [0.1]}),
    ],
)
def test_a_swept_setting_overrides_one_that_is_given(given, over, problem):
    both = {"clip": 1.0, "step_size": 0.1}
    plain = {name: value for name, value in both.items() if name not in over}
    alone = ready_sweep(DPMu2(**plain), problem, Full(6), over=over, **SMALL)
    beside = ready_sweep(DPMu2(**{**both, **given}), problem, Full(6), over=over, **SMALL)
    np.testing.assert_array_equal(beside.configurations.noise_std, alone.configurations.noise_std)
    np.testing.assert_array_equal(beside.configurations.step_size, alone.configurations.step_size)
    realised = [start.privacy()[0]["realised_epsilon"] for start in (beside, alone)]
    np.testing.assert_array_equal(*realised)
    assert [member.target for member in beside.grid] == [member.target for member in alone.grid]


def given(private, target, epsilon, machines):
    assert epsilon == target.epsilon
    return NoisyMessages.targeted(private, target, epsilon, machines)


def test_a_privacy_object_is_given_a_swept_epsilon_as_that_of_the_constructor(problem):
    own = unsealed(targeted=given, needed_noise=lambda private, facts, target: 10 / target.epsilon)
    settings = {"clip": 1.0, "step_size": 0.1}
    swept = ready_sweep(planted(DPMu2(**settings), own), problem, Full(6), over={"epsilon": [2.0, 4.0]}, **SMALL)
    made = [ready(planted(DPMu2(epsilon=e, **settings), own), problem, Full(6), rounds=2) for e in (2.0, 4.0)]
    np.testing.assert_array_equal(swept.configurations.noise_std, [start.protocol.noise_std for start in made])


def test_a_swept_epsilon_overrides_one_of_each_machine(problem):
    protocol = NoisyMinibatchSGD(batch=2, epsilon=(1.0, 2.0, 1.0, 2.0, 1.0, 2.0), clip=1.0, step_size=0.1)
    start = ready_sweep(protocol, problem, Full(6), over={"epsilon": [1.5]}, **SMALL)
    assert start.grid[0].target.epsilon == 1.5
    assert start.privacy()[0]["realised_epsilon"].max() <= 1.5 * (1 + 1e-5)


@pytest.mark.parametrize("declared", [0.5, None])
def test_every_members_guarantee_states_its_own_constant(problem, declared):
    """A declared constant holds on every smaller ball; the loss's own, |x|·(|x|·radius + |label|), is each ball's."""
    problem = replace(problem, own_lipschitz=declared, own_smoothness=None if declared is None else 1.0)
    protocol = NoisyMinibatchSGD(batch=2, epsilon=1.0, step_size=0.1)
    start = ready_sweep(protocol, problem, Full(6), over={"radius": [1.0, 2.0, 4.0]}, **SMALL)
    stated = [
        [one for one in events[0].terms.assumptions if one.name == "lipschitz"]
        for events in start.configurations.events
    ]
    expected = [2.0, 3.0, 5.0] if declared is None else [0.5] * 3
    assert [each[0].values["constant"] for each in stated] == expected
    assert [len(each) for each in stated] == [1, 1, 1]
    noise = start.configurations.noise_std
    np.testing.assert_allclose(noise / noise[0], np.array(expected) / expected[0], rtol=1e-6)
    assert "clip" not in str(start.configurations.events[0][0].guarantee(1e-5))


def prepared_in(machines, axis):
    features = np.full((machines, 1, 2), 0.5, np.float32)
    problem = linear_problem(features, np.zeros((machines, 1)), Squared(1.0), feature_bound=1.0, constraint=Ball(1.0))
    protocol = NoisyMinibatchSGD(batch=1, clip=1.0, step_size=0.1) if axis == "epsilon" else DPMu2(clip=1.0)
    values = np.linspace(0.5, 8, 100).tolist()
    start = getrusage(RUSAGE_SELF).ru_utime
    rounds = 30 if axis == "epsilon" else 1
    options = {"rounds": rounds, "seeds": 20, "metrics": ["noise_norm"]}
    grid = ready_sweep(protocol, problem, Uniform(machines, 1000), over={axis: values}, **options)
    grid.privacy()
    return getrusage(RUSAGE_SELF).ru_utime - start


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["epsilon", "mu"])
def test_a_million_identical_machines_cost_a_few_sorts(axis):
    """100 configurations and 20 seeds, each with its own schedule: 2.6 s on one core, where a sort takes 0.1 s."""
    drawn = np.random.default_rng(0).normal(size=10**6)
    start = getrusage(RUSAGE_SELF).ru_utime
    for _ in range(5):
        np.unique(drawn, return_inverse=True)
    sort = (getrusage(RUSAGE_SELF).ru_utime - start) / 5
    assert prepared_in(10**6, axis) < prepared_in(10**4, axis) + 100 * sort
