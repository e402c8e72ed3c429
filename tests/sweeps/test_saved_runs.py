"""Runs on disk: what is saved is loaded, and damaged or foreign files are refused in one line."""

import json
from dataclasses import fields, replace

import jax
import numpy as np
import pytest

import fedprivjax as fpj
from fedprivjax import Refusal
from fedprivjax.problem.networks import MLP

DATA = fpj.datasets.from_arrays(np.eye(12), np.arange(12) % 3, feature_bound=1.0, classes=3, bias=True)
PROBLEM = fpj.from_dataset(DATA, constraint=fpj.Ball(5.0))


@pytest.fixture(scope="module")
def run():
    return fpj.simulate(fpj.DPMu2(mu=1.0, clip=1.0), PROBLEM, fpj.Full(3), rounds=4, eval_every=2)


def test_a_run_is_loaded_as_it_was(run, tmp_path):
    unknown = replace(run, iterates={"output": {"train_loss": np.array([np.nan, np.inf, 1.5], np.float32)}})
    for name, one in (("finite", run), ("unknown", unknown)):
        one.save(tmp_path / name)
        loaded = fpj.load_run(tmp_path / name)
        assert str(loaded) == str(one)
        for each in (field.name for field in fields(fpj.SavedRun) if field.name not in ("guarantee", "predictor")):
            jax.tree.map(np.testing.assert_array_equal, getattr(loaded, each), getattr(one, each))
        assert str(loaded.guarantee) == str(one.guarantee)
        assert loaded.params.dtype == np.float32
        assert loaded.diverged == (one is unknown)


def test_files_hold_neither_the_plan_nor_numbers_outside_of_json(run, tmp_path):
    replace(run, costs=run.costs | {"bytes": float("inf")}).save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["params.npz", "run.json"]

    def refuse(text):
        raise AssertionError(text)

    found = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert not {"plan", "schedule", "samples"} & set(found)
    assert fpj.load_run(tmp_path).costs["bytes"] == float("inf")


def test_a_networks_parameters_keep_their_structure(run, tmp_path):
    problem = fpj.from_dataset(DATA, network=MLP((2,)))
    for name, params in (
        ("network", problem.start),
        ("mixed", {"a": [np.ones(2), (np.zeros(1),)], "b": {3: np.ones(())}}),
    ):
        replace(run, params=params).save(tmp_path / name)
        jax.tree.map(np.testing.assert_array_equal, fpj.load_run(tmp_path / name).params, params)


def test_what_cannot_be_saved_is_refused(run, tmp_path):
    with pytest.raises(Refusal, match=r"^params must be an array, [^\n]+ got PrivacyGuarantee\. [^\n]+$"):
        replace(run, params=run.guarantee).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused_in_one_line(run, tmp_path):
    with pytest.raises(Refusal, match=r"^folder of a saved run must hold params\.npz, got \S+ without it$"):
        fpj.load_run(tmp_path)
    run.save(tmp_path)
    file = tmp_path / "run.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    other = {**whole, "version": {"format": 2, "fedprivjax": "9.9"}}
    for text, message in (
        (json.dumps(other), r"got format 2\. Load it with fedprivjax 9\.9, which saved it"),
        (file.read_text(encoding="utf-8")[:-9], "and cannot be read: "),
        (json.dumps({**whole, "params": {"list": ["array", "array"]}}), "fewer arrays"),
        (json.dumps({**whole, "params": {"list": []}}), "more arrays"),
        (json.dumps({"version": whole["version"]}), "cannot be read: 'rounds'"),
        ("[]", "cannot be read: "),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(Refusal, match=message) as caught:
            fpj.load_run(tmp_path)
        assert "\n" not in str(caught.value)


def test_parameters_are_never_unpickled(run, tmp_path):
    run.save(tmp_path)
    np.savez(tmp_path / "params.npz", np.array([{}], object))
    with pytest.raises(Refusal, match=r"^\S+ must be a run as it was saved, and cannot be read: [^\n]+$"):
        fpj.load_run(tmp_path)
