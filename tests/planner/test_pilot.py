"""A pilot: candidates as they are planned, on synthetic data, at the ε asked for; the plan stays as it was."""

import re

import numpy as np
import pytest

from fedprivjax import FedAvg, LocalSGD, NoisyMinibatchSGD, PrivacyGuarantee, Refusal, planner
from fedprivjax.engine.simulate import run_program
from fedprivjax.planner import Pilot, Setting, clients, pilot
from fedprivjax.planner.pilot import places
from fedprivjax.planner.survey import _cell
from fedprivjax.privacy import gdp

SIZES = {"machines": 20, "per_round": 10, "samples": 30, "dimension": 60, "delta": 1e-5}
FEW = ["dp_mu2", "local_sgd", "tree_momentum"]
RAN = ["dp_mu2", "local_sgd"]
LEVELS = [1.0, 1000.0]


@pytest.fixture(scope="module")
def found():
    told, before = [], run_program._cache_size()  # type: ignore[attr-defined]
    found = planner.plan(
        **SIZES, epsilon=LEVELS, protocols=FEW, pilot=Pilot(seeds=2, classes=3), progress=lambda *at: told.append(at)
    )
    compiled = run_program._cache_size() - before  # type: ignore[attr-defined]
    return found.assign_attrs(told=told, compiled=compiled)


def test_methods_run_at_the_epsilon_asked_for_and_learn_with_little_noise(found):
    ran = found.sel(protocol=RAN)
    assert (ran["pilot_epsilon"] <= found["epsilon"] * (1 + 1e-6)).all()
    assert (ran["pilot_epsilon"] >= found["epsilon"] * 0.98).all()
    accuracy = ran["pilot_accuracy"]
    assert ((accuracy > 0.15) & (accuracy < 0.95)).all()  # 0.94 at most, but for chance
    assert float(accuracy.sel(protocol="dp_mu2", epsilon=1000.0)) > 0.6
    assert (ran["pilot_seconds"] > 0).all()
    assert (ran["pilot_clip"] == Pilot().clip).all()
    assert (ran["pilot_step"] > 0).all()


def test_levels_and_seeds_share_a_program_and_progress_is_told(found):
    assert found.attrs["compiled"] == len(RAN)
    assert found.attrs["told"] == [(2, 8), (4, 8), (6, 8), (8, 8)]


def test_what_runs_is_what_is_planned_but_for_passes(found):
    for label in RAN:
        np.testing.assert_array_equal(found["pilot_rounds"].sel(protocol=label), found["rounds"].sel(protocol=label))
    refused = found.sel(protocol="tree_momentum", epsilon=1.0)
    assert np.isnan(refused["pilot_accuracy"])
    assert np.isnan(refused["pilot_rounds"])


@pytest.mark.parametrize(("use", "rounds", "given"), [(1, 40, None), (1, 7, 7), (2, 400, None)])
def test_methods_that_use_records_again_make_forty_passes_or_the_rounds_given(use, rounds, given):
    setting = Setting(**SIZES, epsilon=1.0, rounds=given)
    trial = _cell(NoisyMinibatchSGD, NoisyMinibatchSGD.theory.uses(NoisyMinibatchSGD)[use], setting)["trial"]
    assert trial.rounds == rounds
    theory = trial.run.plan.size.rounds
    assert trial.note == ("" if given else f"{rounds} rounds, theory has {theory}")


def test_a_step_that_stands_in_makes_way_for_the_default_of_clipped_runs():
    trial = _cell(LocalSGD, LocalSGD.theory.uses(LocalSGD)[0], Setting(**SIZES, epsilon=1.0))["trial"]
    assert trial.draft.settings["step_size"] > 0
    (settings,) = trial.options(Pilot()).values()
    assert "step_size" not in settings
    assert settings["clip"] == Pilot().clip


def test_the_plan_is_the_same_without_a_pilot(found):
    plain = planner.plan(**SIZES, epsilon=LEVELS, protocols=FEW)
    assert not [name for name in plain if str(name).startswith("pilot")]
    assert found[list(plain)].identical(plain.assign_attrs(found.attrs))
    assert "reads no private data" in found.attrs["pilot"]
    assert "pilot" not in plain.attrs


def test_json_has_the_pilots_numbers(found):
    entries = planner.mapping(found.drop_attrs())["plans"]
    (entry,) = (each for each in entries if each["protocol"] == "dp_mu2" and each["epsilon"] == 1.0)
    assert entry["pilot_accuracy"] == pytest.approx(float(found["pilot_accuracy"].sel(protocol="dp_mu2", epsilon=1.0)))
    assert {"pilot_interval", "pilot_seconds", "pilot_note"} <= set(entry)


def test_the_same_seeds_give_the_same_numbers(found):
    again = planner.plan(**SIZES, epsilon=1.0, protocols=["dp_mu2"], pilot=Pilot(seeds=2, classes=3))
    assert again["pilot_accuracy"].item() == float(found["pilot_accuracy"].sel(protocol="dp_mu2", epsilon=1.0))


CLIENTS = {**SIZES, "machines": 60, "per_round": 20, "unit": "machine", "trust": "server", "rounds": 10}


@pytest.mark.slow
def test_client_level_methods_are_ranked_at_their_best_clip_and_step(monkeypatch):
    monkeypatch.setattr(clients, "CLIPS", (1.0,))
    monkeypatch.setattr(clients, "STEPS", (1e-6, 3.0))
    names = ["fedavg", "scaffold", "fedexp", "noisy_sgd"]
    found = planner.plan(**CLIENTS, epsilon=[8.0, 1000.0], protocols=names, pilot=Pilot(seeds=2, classes=3))
    tried = found.sel(protocol=["fedavg", "scaffold", "fedexp"])
    assert (tried["pilot_epsilon"] <= found["epsilon"] * (1 + 1e-6)).all()
    assert (tried["pilot_clip"] == 1.0).all()
    assert (tried["pilot_step"] == 3.0).all()  # a step of 1e-6 learns nothing
    assert (tried["pilot_accuracy"].sel(epsilon=1000.0) > 0.6).all()
    assert (
        "step 3, the best of 2 on a seed of its own" in found["pilot_note"].sel(protocol="fedavg", epsilon=8.0).item()
    )
    assert set(tried["pilot_place"].values.ravel()) <= {1.0, 2.0, 3.0, 4.0}
    guarantee = PrivacyGuarantee.from_json(found["guarantee"].sel(protocol="fedexp", epsilon=8.0).item())
    assert guarantee.terms.unit == "all records of one machine"
    assert found["refusal"].sel(protocol="noisy_sgd").values.tolist() == ["it bounds no machine's whole update"] * 2


def test_the_noise_for_machines_is_that_of_the_number_of_their_rounds():
    """Each of c rounds moves the mean by 2C/m at most, so μ² = c·(2C/(m·σ))²."""
    found = planner.plan(**CLIENTS, epsilon=2.0, protocols=["fedavg", "mimelite"])
    setting = Setting(**CLIENTS, epsilon=2.0)
    sampler = FedAvg(local_epochs=1, batch=10, step_size=1.0).minibatches
    rounds_of = np.bincount(setting.outline(sampler, 10).schedule.participants.ravel()).max()
    for label in ("fedavg", "mimelite"):
        row = found.sel(protocol=label).isel(epsilon=0)
        mu = np.sqrt(rounds_of) * 2 * clients.CLIPS[0] / (20 * float(row["noise_std"]))
        assert float(row["realised_epsilon"]) == pytest.approx(float(gdp.epsilon(mu, 1e-5)), rel=1e-6)
        assert float(row["gradients"]) == 10 * 20 * 30
    assert found["bound_kind"].values.ravel()[0] == "missing"


def test_methods_for_machines_need_their_unit():
    with pytest.raises(Refusal, match="fedavg: it is compared with unit = 'machine'"):
        planner.plan(**SIZES, epsilon=1.0, protocols=["fedavg"])
    with pytest.raises(Refusal, match="unknown unit 'machines', did you mean 'machine'"):
        planner.plan(**{**CLIENTS, "unit": "machines"}, epsilon=1.0)
    with pytest.raises(Refusal, match="unknown protocol 'fedexp'"):
        planner.plan(**SIZES, epsilon=1.0, protocols=["fedexp"])
    with pytest.raises(Refusal, match="unknown trust 'shuffler'"):
        planner.plan(**{**CLIENTS, "trust": "shuffler"}, epsilon=1.0)


def test_a_place_is_one_and_the_number_of_methods_that_are_clearly_better():
    mean, half = (
        np.array([[0.9], [0.89], [0.87], [np.nan], [0.5]]),
        np.array([[0.01], [0.02], [0.005], [0.1], [np.nan]]),
    )
    assert places(mean, half).ravel().tolist()[:3] == [1, 1, 2]
    assert np.isnan(places(mean, half)[3])
    assert places(mean, half)[4] == 1  # one seed has no interval
    rng = np.random.default_rng(1)
    mean, half = rng.uniform(size=(7, 3)), rng.uniform(0, 0.2, (7, 3))
    for one, level in np.ndindex(7, 3):
        better = [k for k in range(7) if mean[k, level] - half[k, level] > mean[one, level] + half[one, level]]
        assert places(mean, half)[one, level] == 1 + len(better)


def test_what_takes_too_long_or_is_refused_says_so(monkeypatch):
    monkeypatch.setattr(pilot, "MOST_WORK", 1)
    found = planner.plan(**SIZES, epsilon=1.0, protocols=["dp_mu2"], pilot=True)
    assert found["pilot_note"].item() == "too long for a pilot: 60 rounds"
    assert np.isnan(found["pilot_accuracy"].item())


@pytest.mark.parametrize(
    ("sizes", "given", "message"),
    [
        ({"dimension": 61}, {"classes": 3}, "dimension must be classes · features for a pilot, with more features tha"),
        ({"dimension": 2}, {}, "dimension must be classes · features for a pilot, with more features than classes (2)"),
        ({"machines": 10**6, "dimension": 10**4}, {}, "machines · samples · dimension must be at most 2e+09 for a pil"),
        ({}, {"classes": 1}, "classes must be at least 2, got 1"),
        ({}, {"seeds": 0}, "seeds must be at least 1, got 0"),
        ({}, {"clip": 0.0}, "clip must be positive, got 0.0"),
    ],
)
def test_bad_pilots_are_one_line(sizes, given, message):
    with pytest.raises(Refusal, match="^" + re.escape(message)):
        planner.plan(**{**SIZES, **sizes}, epsilon=1.0, protocols=["noisy_sgd"], pilot=Pilot(**given))
