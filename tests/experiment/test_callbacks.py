"""`[evaluation] callback`: what it is called with, that it does not decide about resuming, and its refusals."""

import sys

import pytest
from small_file import EXPERIMENT

import fedprivjax as fpj
from fedprivjax import cli, experiment
from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment import folder as results_folder
from fedprivjax.experiment.jobs import jobs, ready_experiment
from fedprivjax.experiment.run import run, run_jobs, run_part
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.sweeps.part import Part

LOGS = """
CALLS = []


def log(index, round, metrics):
    CALLS.append((index, round, metrics))


def two(index, round):
    pass


def full(index, round, metrics):
    raise OSError("the disk is full")


NUMBER = 3
"""
TWICE = '[[protocol]]\nname = "dp_mu2"\nlabel = "again"\n[sweep]'
FILE = EXPERIMENT.replace("[sweep]", TWICE) + "mu = [1, 2]\n[evaluation]\nevery = 2\nmetrics = ['train_loss']\n"


TRIALS = {
    "title": "trials",
    "problem": {"dataset": "insurance", "loss": "squared"},
    "participation": {"machines": 3, "per_round": 2, "rounds": 4},
    "protocol": [{"name": "noisy_minibatch_sgd", "batch": 4, "sampler": "replacement", "clip": 1e4, "step_size": 1e-3}],
    "sweep": {"epsilon": [1.0, 4.0], "trials": 2, "seeds": 2},
    "evaluation": {"metrics": ["train_loss"], "every": 2, "delta": 1e-4},
}


@pytest.fixture
def load(tmp_path):
    """Function that reads the small experiment with a callback, and returns it with the calls."""

    def read(callback="logs:log", text=FILE):
        (tmp_path / "logs.py").write_text(LOGS, encoding="utf-8")
        line = "" if callback is None else f'callback = "{callback}"\n'
        (tmp_path / "spec.toml").write_text(text + line, encoding="utf-8")
        found = experiment.load(tmp_path / "spec.toml")
        calls = [] if callback is None else found.evaluation.on_evaluation.function.__globals__["CALLS"]
        calls.clear()
        return found, calls

    return read


def test_runs_of_every_protocol_are_reported_with_its_label(load):
    spec, calls = load()
    results = run(spec)
    assert len(calls) == 2 * 2 * 2 * 2  # protocols, μ, seeds, evaluations
    assert [list(index) for index, _, _ in calls] == [["protocol", "mu", "seed"]] * 16
    assert [index["protocol"] for index, _, _ in calls[:4]] == ["ours", "ours", "again", "again"]  # equal runs
    for index, done, metrics in calls:
        at = {name: index[name] for name in ("mu", "seed")}
        assert metrics == {"train_loss": results[index["protocol"]].train_loss.sel(round=done, **at).item()}


@pytest.mark.slow
def test_seeds_of_trials_are_numbered_as_in_the_results(tmp_path):
    path = tmp_path / "insured.csv"
    lines = [f"{20 + n % 40},male,{20 + n % 7},{n % 3},no,northeast,{1000 + n}.5\n" for n in range(60)]
    path.write_text("age,sex,bmi,children,smoker,region,charges\n" + "".join(lines))
    calls: list = []
    made = experiment.parse({**TRIALS, "problem": {**TRIALS["problem"], "options": {"machines": 3, "path": str(path)}}})
    (data,) = run_jobs(jobs(made), on_evaluation=lambda *each: calls.append(each)).values()
    assert len(calls) == 16
    for index, done, metrics in calls:
        at = {name: index[name] for name in ("trial", "epsilon", "seed")}
        assert metrics["train_loss"] == of_iterate(data.train_loss).sel(round=done, **at).item()


@pytest.mark.slow
def test_a_part_reports_what_it_computes_and_the_results_are_written_once(load, tmp_path):
    spec, calls = load()
    assert run_part(ready_experiment(spec), tmp_path / "out", Part(1, 2)) is not None
    assert len(calls) == 16
    assert run_part(ready_experiment(spec), tmp_path / "out", Part(2, 2)) is not None
    assert len(calls) == 16


def test_the_callback_does_not_decide_about_resuming(load, tmp_path):
    results_folder.claim(tmp_path / "out", load()[0])
    results_folder.claim(tmp_path / "out", load(None)[0], resume=True)
    assert "callback" not in (tmp_path / "out" / "spec.toml").read_text()
    results_folder.claim(tmp_path / "out", load()[0], resume=True)
    assert 'callback = "logs:log"' in (tmp_path / "out" / "spec.toml").read_text()


@pytest.mark.slow
def test_finished_results_are_read_without_the_callback_s_module(load, tmp_path):
    run(load()[0], tmp_path / "out")
    (tmp_path / "logs.py").unlink()
    assert fpj.load(tmp_path / "out").spec.evaluation.callback == "logs:log"


def test_an_error_of_the_callback_is_a_refusal_with_its_line(load):
    with pytest.raises(Refusal, match=r"callback 'logs:full' must not raise an error, got OSError: .* \(logs.py, line"):
        load("logs:full")[0].evaluation.on_evaluation({}, 1, {})


@pytest.mark.slow
def test_an_error_of_the_callback_names_it_and_the_run_resumes(load, tmp_path, capsys, monkeypatch):
    def called(*more):
        words = ["fedprivjax", "run", tmp_path / "spec.toml", "--out", tmp_path / "out", *more]
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, " ".join(capsys.readouterr().err.split())

    load("logs:full")
    status, said = called()
    assert status == 2
    assert said.startswith(
        "callback 'logs:full' must not raise an error, got OSError: the disk is full (logs.py, line "
    )
    assert said.endswith("Finished chunks are stored, so a run into a folder goes on with --resume")
    assert list((tmp_path / "out/chunks").glob("*.npz"))
    load()
    assert called("--resume")[0] == 0


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        ("log", r'callback \'log\' must be "module:function" of a function \(index, round, metrics\), got no colon'),
        ("logs:lag", r"unknown callback in logs 'lag', did you mean 'log'"),
        ("nowhere:log", r"callback module 'nowhere' must be installed, next to the experiment file"),
        ("logs:NUMBER", r"callback 'logs:NUMBER' must be .*, got 3"),
        ("logs:two", r"callback 'logs:two' must be .*, got one with too many positional arguments"),
    ],
)
def test_a_wrong_callback_is_refused_when_the_file_is_read(load, callback, message):
    with pytest.raises(Refusal, match=message):
        load(callback)
