import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

from fedprivjax import cli, experiment
from fedprivjax.datasets import mnist
from fedprivjax.experiment import folder

SMALL = """
title = "small"

[problem]
dataset = "least_squares"
options = { examples = 60, features = 3, machines = 6 }
radius = 2.0

[participation]
machines = 6
per_round = 3
rounds = 4

[[protocol]]
name = "dp_mu2"
label = "ours"

[sweep]
mu = [1, 2]
seeds = 2

[record]
every = 2

[[expected]]
protocol = "ours"
metric = "excess_risk"
rule = "within"
tolerance = 100.0
cells = [{ at = { mu = 1 }, value = 0.0 }, { at = { mu = 2 }, value = 0.0 }]
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """A small experiment file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path.name


@pytest.fixture
def call(monkeypatch, capsys):
    """The command line in this process: (exit status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedprivjax", *map(str, arguments)])
        monkeypatch.setattr(cli.out, "_width", 200)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, *capsys.readouterr()

    return run


def process(*arguments, **environment):
    command = [sys.executable, "-c", "from fedprivjax.cli import main; main()", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, **environment}, check=False
    )


def refused(answer):
    """The one line of a refusal."""
    status, _, said = answer
    assert status == 2
    assert said.startswith("ValueError: ")
    assert said.count("\n") == 1
    assert said.endswith("\n")
    return said.removeprefix("ValueError: ").rstrip("\n")


def test_list_names_everything(call):
    status, said, _ = call("list")
    assert status == 0
    names = ("dp_mu2", "noisy_sgd", "softmax", "digits", "mnist", "least_squares", "test_accuracy")
    for name in (*names, *experiment.bundled()):
        assert name in said
    for title in ("protocols", "losses", "models", "datasets", "metrics", "experiments"):
        assert title in said.split()


@pytest.mark.slow
def test_quickstart_runs_and_leaves_a_results_folder(tmp_path):
    into = tmp_path / "results"
    small = ("--set", "sweep.per_round=[10]", "--set", "sweep.mu=[4, 8]")
    answer = process("run", "quickstart", "--tiny", *small, "--out", into, COLUMNS="200")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    written = {path.name for path in into.iterdir()}
    assert {"spec.toml", "results.nc", "provenance.json"} <= written
    assert sum(name.endswith(".png") for name in written) == 2
    labels = [p.label for p in experiment.load("quickstart").protocol]
    found = folder.load(into)
    assert list(found) == labels
    assert dict(found[labels[0]]["test_accuracy"].sizes) == {"per_round": 1, "mu": 2, "seed": 2, "round": 2}
    assert all(label in answer.stdout for label in labels)
    assert "not for deployment" in answer.stdout


def test_privacy_states_the_guarantees_without_running(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, _ = call("privacy", "quickstart", "--set", "sweep.seeds=1")
    assert status == 0
    for label in (p.label for p in experiment.load("quickstart").protocol):
        assert label in said
    for words in ("1e-05", "non-private", "replace", "trust", "Reshef & Levy 2025"):
        assert words in said
    assert list(tmp_path.iterdir()) == []


def test_reproduce_succeeds_where_every_cell_holds(call, spec):
    status, said, _ = call("reproduce", spec)
    assert status == 0
    assert "2 of 2" in said
    assert "MISS" not in said
    found = folder.load(Path("results") / "small")["ours"]
    assert isinstance(found, xr.Dataset)


def test_reproduce_fails_where_a_cell_misses(call, spec):
    change = ("--set", "expected.0.cells.1.value=1000.0")
    status, said, _ = call("reproduce", spec, *change, "--out", "there")
    assert status == 1
    assert "1 of 2" in said
    assert said.count("MISS") == 1
    assert Path("there", "results.nc").is_file()


def test_an_experiment_without_expected_numbers_cannot_be_reproduced(call, spec):
    assert "must have [[expected]] numbers" in refused(call("reproduce", spec, "--set", "expected=[]"))
    assert not Path("results").exists()


def test_a_cell_outside_the_sweep_is_refused_before_anything_runs(call, spec):
    said = refused(call("reproduce", spec, "--set", "sweep.mu=[1, 4]"))
    assert said == "expected cell mu = 2 must be swept, got [1.0, 4.0]"
    assert not Path("results").exists()


PARTITION = 'problem={dataset="logistic", options={examples=60, features=3}, radius=2.0, partition={kind="iid"}}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["participation.per_round=7"], "per_round must be at most machines (6), got 7"),
        (["participation.rounds=21"], "per_round · rounds must be at most the 60 examples, got 3 · 21 = 63"),
        ([PARTITION, "participation.rounds=20"], "examples for this schedule, got 10"),
        (["sweep.mu=[-1]"], "mu must be positive, got -1.0"),
        (["sweep.mu=[nan]"], "mu must be positive, got nan"),
        (["protocol.0.mu=-1.0"], "mu must be positive, got -1.0"),
        (["protocol.0.mu=nan"], "mu must be positive, got nan"),
        (["protocol.0.step_size=-1.0"], "step_size must be positive, got -1.0"),
        (["protocol.0.step_size=nan"], "step_size must be positive, got nan"),
        (["problem.radius=-2.0"], "radius must be positive, got -2.0"),
        (["problem.radius=nan"], "radius must be positive, got nan"),
        (["protocol.0.name=dpmu2"], "unknown protocol 'dpmu2', did you mean 'dp_mu2'?"),
        (["problem.dataset=least_square"], "unknown dataset 'least_square', did you mean 'least_squares'?"),
        (["problem.raduis=2.0"], "unknown key in [problem] 'raduis', did you mean 'radius'?"),
        (["protocol.0.clp=2.0"], "unknown key in [[protocol]] dp_mu2 'clp', did you mean 'clip'?"),
        (["sweep.seed=2"], "unknown key in [sweep] 'seed', did you mean 'seeds'?"),
        (["sweep.seeds"], "--set must be section.key=value, got 'sweep.seeds'"),
    ],
)
@pytest.mark.parametrize("command", ["run", "reproduce", "privacy"])
def test_a_bad_setting_is_one_line_and_leaves_nothing(call, spec, command, changes, message):
    given = [word for change in changes for word in ("--set", change)]
    out = [] if command == "privacy" else ["--out", "there"]
    assert message in refused(call(command, spec, *given, *out))
    assert os.listdir() == [spec]


@pytest.mark.parametrize("words", [("--traceback", "run", "small.toml"), ("run", "small.toml", "--traceback")])
def test_a_refusals_traceback_is_shown_on_request(call, spec, words):
    status, _, said = call(*words, "--set", "sweep.mu=[-1]")
    assert status == 2
    assert said.startswith("Traceback (most recent call last):")
    assert "protocols/settings.py" in said
    assert said.endswith("fedprivjax.Refusal: mu must be positive, got -1.0\n")
    assert os.listdir() == [spec]


def test_help_tells_of_the_traceback(call):
    status, said, _ = call("--help")
    assert status == 0
    assert "--traceback" in said


def test_a_system_error_is_one_line(call, spec, monkeypatch):
    def full(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(folder, "claim", full)
    status, _, said = call("run", spec)
    assert (status, said) == (2, "OSError: no space left on device\n")
    assert call("run", spec, "--traceback")[2].startswith("Traceback (most recent call last):")


@pytest.mark.parametrize("words", [(), ("--traceback",)])
def test_any_other_exception_is_a_bug_and_is_not_caught(spec, monkeypatch, words):
    def broken(*arguments, **options):
        raise ValueError("a bug")

    monkeypatch.setattr(folder, "claim", broken)
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "run", spec, *words])
    with pytest.raises(ValueError, match="a bug"):
        cli.main()


OWN = """
from typing import Any

from flax import struct

from fedprivjax import NoisySGD


@struct.dataclass
class Mine(NoisySGD):
    beta: Any = 0.5
"""


def test_a_protocol_of_ones_own_runs_from_beside_the_file(call, spec):
    Path("mine.py").write_text(OWN, encoding="utf-8")
    change = ("--set", 'protocol=[{name = "mine:Mine", label = "ours", beta = 0.25}]', "--set", "sweep.seeds=1")
    status, said, _ = call("reproduce", spec, *change, "--out", "there")
    assert status == 0, said
    assert 'name = "mine:Mine"' in Path("there", "spec.toml").read_text(encoding="utf-8")
    assert list(folder.load(Path("there"))) == ["ours"]


def test_a_fault_in_ones_own_module_shows_its_traceback(spec, monkeypatch):
    Path("mine.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "run", spec, "--set", 'protocol.0={name = "mine:Mine"}'])
    with pytest.raises(ZeroDivisionError, match="division by zero") as caught:  # which nothing catches
        cli.main()
    assert (caught.traceback[-1].path.name, caught.traceback[-1].lineno) == ("mine.py", 0)  # its first line


def test_an_unknown_experiment_is_answered_with_the_nearest(call, spec):
    assert refused(call("run", "quikstart")).startswith("unknown experiment 'quikstart', did you mean 'quickstart'?")
    assert refused(call("run", "absent.toml")) == "no experiment file 'absent.toml'"
    assert os.listdir() == [spec]


@pytest.mark.parametrize("out", ["small.toml", "small.toml/results"])
def test_a_results_folder_that_cannot_be_written(call, spec, out):
    assert refused(call("run", spec, "--out", out)).startswith(f"results folder {out} must be writable: ")
    assert Path(spec).read_text(encoding="utf-8") == SMALL
    assert os.listdir() == [spec]


def test_a_results_folder_of_other_settings(call, spec):
    folder.claim(Path("there"), experiment.load(spec, {"sweep.seeds": 3}))
    before = Path("there", "spec.toml").read_bytes()
    said = refused(call("run", spec, "--out", "there"))
    assert said == "results folder there holds results of different settings: choose another with --out"
    assert os.listdir("there") == ["spec.toml"]
    assert Path("there", "spec.toml").read_bytes() == before


@pytest.mark.mnist
def test_a_truncated_mnist_file(call, tmp_path, monkeypatch):
    if not mnist.available():
        pytest.skip("the MNIST files are at hand nowhere")
    damaged = tmp_path / "mnist"
    damaged.mkdir()
    paths = [mnist._local(name) for name in mnist.SUMS]
    for path in paths:
        (damaged / path.name).symlink_to(path.resolve())
    images = damaged / paths[0].name
    content = images.read_bytes()
    images.unlink()
    images.write_bytes(content[:-1000])
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path))
    refuse_truncated(call, tmp_path / "results", images)


def test_a_file_that_is_no_mnist(call, tmp_path, monkeypatch):
    images = tmp_path / "mnist" / next(iter(mnist.SUMS))
    images.parent.mkdir()
    images.write_bytes(b"\0\0\x08\x03 cut short")
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path))
    refuse_truncated(call, tmp_path / "results", images)


def refuse_truncated(call, out, images):
    said = refused(call("run", "reshef-levy-2025/table2", "--out", out))
    assert said.startswith(f"{images} is damaged and must be replaced: ")
    assert not out.exists()
