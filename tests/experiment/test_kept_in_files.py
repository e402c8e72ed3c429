"""`keep = ["params"]` in experiment files: parameters in results files, trials, shared sweeps and tuning."""

import tomllib

import numpy as np
import pytest
from small_file import EXPERIMENT

import fedprivjax as fpj
from fedprivjax import Refusal, experiment
from fedprivjax.cli import experiments as command
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.sweeps import schema

KEEP = 'epsilon = [1.0, 4.0]\nkeep = ["params"]\n'
ROWS = np.eye(3, dtype=np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the datasets of a small experiment, and its results folder."""
    folder = tmp_path_factory.mktemp("results") / "one"
    return runner.run(experiment.parse(tomllib.loads(EXPERIMENT + KEEP)), folder), folder


def of(results):
    return fpj.run_of(results["ours"].sel(epsilon=4.0).isel(seed=1))


def test_results_files_hold_the_parameters(saved, tmp_path):
    data, folder = saved
    data["ours"].to_netcdf(tmp_path / "ours.nc", engine="h5netcdf")
    run = of(data)
    assert np.isfinite(run.params).all()
    assert run.params.shape == (3,)
    for results in (fpj.load(folder), fpj.load(folder / "results.nc"), fpj.load(tmp_path / "ours.nc")):
        found = of(results)
        np.testing.assert_array_equal(found.params, run.params)
        np.testing.assert_array_equal(found.predict(ROWS), ROWS @ run.params)
        np.testing.assert_array_equal(found.coefficients, run.params)
        assert str(found) == str(run)
        assert found.non_private_metrics == run.non_private_metrics == ("noise_norm",)
    found.save(tmp_path / "run")
    np.testing.assert_array_equal(fpj.load_run(tmp_path / "run").predict(ROWS), run.predict(ROWS))


@pytest.mark.slow
def test_tables_plots_and_pages_leave_the_parameters_out(saved):
    data, folder = saved
    results, without = fpj.load(folder), {"ours": data["ours"].drop_vars(["params", "method", "predictor"])}
    assert str(fpj.table(data["ours"])) == str(fpj.table(without["ours"]))
    fpj.plot(results, "test_loss")
    assert "params" not in str(fpj.frame(data["ours"]).columns)
    command.report(folder)
    assert (folder / "report.html").is_file()


def test_the_size_of_all_sweeps_is_stated_when_they_are_prepared(capsys, monkeypatch):
    made = experiment.parse(tomllib.loads(EXPERIMENT + KEEP))
    listed.ready_experiment(made)
    assert capsys.readouterr().err == "parameters of 4 runs take 48 B\n"
    monkeypatch.setattr(schema, "memory", lambda: 47.0)
    with pytest.raises(Refusal, match=r"^parameters that are kept must fit"):
        listed.ready_experiment(made)


def test_another_part_is_refused_in_a_file():
    with pytest.raises(Refusal, match=r"sweep\.keep"):
        experiment.parse(tomllib.loads(EXPERIMENT + 'keep = ["metrics"]\n'))


def test_tuning_runs_keep_nothing():
    raw = tomllib.loads(EXPERIMENT + KEEP)
    raw["protocol"][0]["grid"] = {"clip": [0.5, 1.0]}
    raw["evaluation"] = {"select": "test_loss"}
    raw["tuning"] = {"problem": {"dataset": "least_squares", "options": {"examples": 90, "features": 3}}, "seeds": 1}
    ready = listed.ready_experiment(experiment.parse(raw))
    assert ready.jobs[0].prepare().keep == ("params",)
    assert ready.before is not None
    assert ready.before.jobs[0].prepare().keep == ()


@pytest.mark.slow
def test_protocols_that_share_a_sweep_keep_their_own_method():
    """With one machine, noise of machines and of a server are equal in distribution: the runs are computed once."""
    raw = tomllib.loads(EXPERIMENT + 'mu = [1.0]\nkeep = ["params"]\n')
    raw["protocol"] = [
        {"name": "dp_mu2", "label": trust, "trust": trust, "step_size": 0.1} for trust in ("none", "server")
    ]
    raw["participation"] = {"machines": 1, "per_round": 1, "rounds": 4}
    found = runner.run(experiment.parse(raw))
    runs = [fpj.run_of(data.isel(mu=0, seed=0)) for data in found.values()]
    assert [run.guarantee.trust for run in runs] == ["none", "server"]
    assert len({run.method for run in runs}) == 2
