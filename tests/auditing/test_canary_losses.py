"""Directions of canaries, parameters in two arrays, and what an audit tries."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited import FEDERATION
from faults.federations import EVERYONE

from fedprivjax import FedAvg, NoisySGD, Refusal, Scaffold, Uniform
from fedprivjax.auditing import canary_search
from fedprivjax.auditing.audit import audit
from fedprivjax.auditing.canaries import AXES, audited_directions, canary_direction
from fedprivjax.auditing.canary_search import prepared
from fedprivjax.auditing.neighbouring import MACHINES, SCHEDULES, small_federation, worlds
from fedprivjax.auditing.scores import ViewDistribution
from fedprivjax.auditing.views import Column, ViewOptions, _vectors, observed
from fedprivjax.noise.server_factors import ROUND_FACTORS

NOISY = NoisySGD(mu=2.0, clip=1.0)


@pytest.mark.parametrize("dimension", [4, 5, 16])
@pytest.mark.parametrize("dense", [False, True])
def test_directions_are_orthonormal_and_begin_with_the_canarys(dimension, dense):
    canary = canary_direction(dimension, dense=dense)
    found = audited_directions(100 * canary)
    np.testing.assert_allclose(found @ found.T, np.eye(AXES), atol=1e-6)
    np.testing.assert_allclose(found[0], canary, atol=1e-6)
    assert (np.count_nonzero(canary) == dimension) == dense
    np.testing.assert_array_equal(audited_directions(np.zeros(dimension)), np.eye(dimension)[:AXES])


def test_each_of_two_arrays_holds_half_of_a_dense_canary():
    federation = replace(FEDERATION, dense=True, leaves=2)
    problem = federation.problem(1.0, False, 3, 1.0)
    example = problem.take(np.array(3))
    (gradient,) = problem.model.gradients((problem.start,), example)
    norms = [float(jnp.linalg.norm(leaf)) for leaf in jax.tree.leaves(gradient.written_out())]
    np.testing.assert_allclose(norms, 100 / np.sqrt(2), rtol=1e-6)
    plain = replace(federation, leaves=1).problem(1.0, False, 3, 1.0)
    assert problem.model.value(problem.start, example) == plain.model.value(plain.start, example)
    (flat,) = plain.model.gradients((plain.start,), example)
    np.testing.assert_array_equal(_vectors(gradient.written_out(), problem.start), flat.written_out())
    assert gradient.norm() == flat.norm()


@pytest.mark.slow
def test_views_of_one_array_and_of_two_are_equal():
    """Messages are pairs of vectors, and the server sends its control variate besides the point."""
    protocol = Scaffold(mu=2.0, clip=1.0, unit="record", local_epochs=1, batch=3, step_size=1.0)
    one, two = (
        observed(worlds(protocol, replace(EVERYONE, leaves=leaves), 0, delta=1e-5).start, 0, 0, ViewOptions())
        for leaves in (1, 2)
    )
    for first, second in zip(one, two, strict=True):
        assert first.columns == second.columns
        assert any(column.kind == "broadcast" for column in first.columns)
        np.testing.assert_allclose(first.values, second.values, rtol=1e-4, atol=1e-5)


# ---- canaries that an audit tries


def prepared_with(monkeypatch, separation, federation=FEDERATION, protocol=NOISY):
    """Return the federation that an audit chooses, where `separation` of a federation stands for its runs."""

    def found(protocol, federation, *known):
        column = (Column("message", 1, 0),)
        distribution = ViewDistribution(np.array([separation(federation)]), np.zeros(1), np.eye(1), column)
        return SimpleNamespace(absent=False, start=SimpleNamespace(protocol=protocol)), distribution, federation

    monkeypatch.setattr(canary_search, "_prepared", found)
    return prepared(protocol, federation, 1e-5, 0, ())[2]


def test_the_canary_that_the_view_shows_better_is_audited(monkeypatch):
    either = replace(FEDERATION, dense=None)
    assert prepared_with(monkeypatch, lambda one: 2.0 if one.dense else 1.0, either).dense
    assert not prepared_with(monkeypatch, lambda one: 1.0 if one.dense else 2.0, either).dense
    assert not prepared_with(monkeypatch, lambda one: 1.01 if one.dense else 1.0, either).dense
    assert not prepared_with(monkeypatch, lambda one: 2.0 if one.dense else 1.0, FEDERATION).dense


def test_a_method_of_one_array_is_audited_in_one_with_a_warning(monkeypatch):
    def separation(federation):
        if federation.leaves == 2:
            raise TypeError("no dict")
        return 1.0

    with pytest.warns(UserWarning, match=r"^NoisySGD is audited with its parameters in one array: .*no dict"):
        assert prepared_with(monkeypatch, separation).leaves == 1
    assert prepared_with(monkeypatch, lambda one: 1.0).leaves == 2


def test_a_refusal_is_the_same_for_one_array_and_two():
    with pytest.raises(Refusal, match=r"^NoisySGD must have a finite ε to be audited, got inf$"):
        audit(NoisySGD(noise_std=0.0, clip=1.0), FEDERATION, runs=1000)


# ---- correlated noise


@pytest.mark.parametrize("noise_schedule", ["toeplitz", "tree"])
def test_machines_take_part_seldom_if_a_servers_noise_is_correlated(noise_schedule):
    """Where they take part often, the best factor is the identity, and noise counted as independent is not seen."""
    work = {"unit": "machine", "update_clip": 1.0, "local_epochs": 1, "batch": 3, "step_size": 1.0, "mu": 1.0}
    federation = small_federation(FedAvg(noise_schedule=noise_schedule, **work))
    assert federation.participation == Uniform(MACHINES, 1)
    schedule = worlds(FedAvg(noise_schedule=noise_schedule, **work), federation, 0, delta=1e-5).start.plan.schedule
    factor = ROUND_FACTORS[noise_schedule]()
    assert (factor.exposures(schedule) > 1.1 * factor.known(schedule).diagonal().max() * schedule.total**0.5).any()
    assert small_federation(FedAvg(**work)).participation == SCHEDULES["fixed"](MACHINES)[0]
