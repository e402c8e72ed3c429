import errno
import gc
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from pathlib import Path

import pytest
import xarray as xr

import fedprivjax
from fedprivjax import cli, experiment
from fedprivjax.checks.printable import is_hidden
from fedprivjax.cli import listing
from fedprivjax.cli.settings_help import settings_of
from fedprivjax.datasets import DataNotFound, mnist
from fedprivjax.engine import progress
from fedprivjax.experiment import folder
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import read as reading
from fedprivjax.experiment import run as runner
from fedprivjax.sweeps.chunk_store import ChunkStore
from fedprivjax.sweeps.memory import run_bytes

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

[evaluation]
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
    """Function that runs the command line in this process and returns (exit status, stdout, stderr)."""

    def run(*arguments, width=200):
        monkeypatch.setattr(sys, "argv", ["fedprivjax", *map(str, arguments)])
        monkeypatch.setattr(cli.out, "_width", width)
        monkeypatch.setattr(cli.console, "leave", sys.exit)
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
    """Return the one line of a Refusal."""
    status, _, said = answer
    assert status == 2
    assert said.count("\n") == 1
    assert said.endswith("\n")
    return said.rstrip("\n")


def test_report_of_an_unfinished_run_names_the_command_that_finishes_it(call, tmp_path):
    (tmp_path / "spec.toml").write_text(SMALL, encoding="utf-8")
    said = refused(call("report", tmp_path))
    assert said.endswith(f"holds an unfinished run. Finish it with fedprivjax run SPEC --out {tmp_path} --resume")


DAMAGED = {
    b"[[problem": "spec.toml is not valid TOML: ",
    b"\xff\xfe": "spec.toml ",
    b"[protocol]\n[protocol]\n": "spec.toml ",
    b"title = 1": "participation must be given",
}


def test_report_of_an_empty_folder(call, tmp_path):
    wanted = f"results folder must hold results.nc, got {tmp_path} without it"
    assert refused(call("report", tmp_path)) == f"{wanted}. Run an experiment first, such as fedprivjax run quickstart"


def test_list_names_everything(call):
    status, said, _ = call("list")
    assert status == 0
    names = {name for entries in listing.groups().values() for name in entries}
    assert names < {word.strip(",") for word in said.split()}
    for title in ("protocols", "losses", "privacy-objects", "datasets", "metrics", "experiments", "quickstart,"):
        assert title in said.split()
    assert "frontier/… (16)" in " ".join(said.split())
    every = call("list", "--all")[1]
    assert names < set(every.split())
    assert set(experiment.bundled()) == set(call("list", "experiments")[1].split()) & set(experiment.bundled())
    assert "Half the squared error" in every
    assert call("list", "privacy objects") == call("list", "privacy-objects")
    assert call("list", "losses")[1] in every


def test_list_and_help_fit_a_screen(call, monkeypatch):
    monkeypatch.setattr(cli.out, "_width", 80)
    assert len(call("list")[1].splitlines()) <= 50
    commands = [line.split()[1] for line in call("--help")[1].splitlines() if line[:3] == "│ r" or line[:3] == "│ l"]
    assert commands[:3] == ["run", "report", "list"]


def test_settings_name_their_choices_and_not_modules(call):
    text = " ".join(call("list", "fedavg")[1].split())
    assert 'neighbouring relation: "replace-one" (default) or "add-or-remove-one".' in text
    assert 'computation of the noise from the target, "rule" or "plan"' in text
    for entries in listing.groups().values():
        for thing in {id(thing): thing for _, thing in entries.values() if thing is not None}.values():
            for setting in settings_of(thing):
                assert not re.search(r"key of `|`[A-Z_]{4,}`|fedprivjax\.[a-z]", setting.help), setting


def test_negative_seeds_are_refused_in_a_scaled_down_run_too(call, spec):
    assert "seeds must be at least 1, got -3" in refused(call("run", spec, "--tiny", "--set", "sweep.seeds=-3"))


def test_a_home_folder_in_a_path_is_expanded(call, spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    said = refused(call("privacy", spec, "--set", 'problem.dataset="~/absent.csv"'))
    assert f"problem.dataset must be a file, got '{tmp_path / 'absent.csv'}'" in said


def test_a_batch_above_the_number_of_records_is_one_line(call, spec):
    """Machines with ten records each can send two batches of four."""
    answer = call("run", spec, "--set", "protocol.ours.batch=4")
    assert "batch · messages must be at most the 10 records of machine 0 in one pass, got 4 · 3 = 12." in refused(
        answer
    )
    answer = call("run", spec, "--set", "protocol.ours.batch=11")
    assert refused(answer).endswith("batch must be at most the 10 records of machine 0 (dealt), got 11")
    answer = call("run", spec, "--set", "protocol.ours.batch=0")
    assert refused(answer).endswith("batch must be at least 1, got 0")


@pytest.mark.slow
def test_quickstart_runs_and_leaves_a_results_folder(tmp_path):
    into = tmp_path / "results"
    small = ("--set", "sweep.epsilon=[4, 8]")
    answer = process("run", "quickstart", "--tiny", *small, "--out", into, COLUMNS="200")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    written = {path.name for path in into.iterdir()}
    assert {"spec.toml", "results.nc", "provenance.json"} <= written
    assert sum(name.endswith(".png") for name in written) == 2
    labels = [p.label for p in experiment.load("quickstart").protocol]
    found = folder.load(into)
    assert list(found) == labels
    assert dict(found[labels[0]]["test_accuracy"].sizes) == {"epsilon": 2, "seed": 2, "round": 2}
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
    for words in ("two ways to each ε", "dp-accounting PLD", "agrees", "smallest valid ε", "false-positive rate 1%"):
        assert words in said
    assert "DP-μ²-FL, untrusted, at epsilon 1:" in said.splitlines()
    assert "refuted" not in said
    assert list(tmp_path.iterdir()) == []


def test_reproduce_fails_if_a_cell_misses(call, spec, monkeypatch):
    """Without plots and page, which tests of `report` draw."""
    monkeypatch.setattr("fedprivjax.report.plots.all_plots", lambda *_: {})
    monkeypatch.setattr("fedprivjax.report.run_plots.plots_of_first", lambda *_: None)
    monkeypatch.setattr("fedprivjax.report.page.write_page", lambda *_: Path("report.html"))
    change = ("--set", "expected.0.cells.1.value=1000.0")
    status, said, _ = call("reproduce", spec, *change, "--out", "there")
    assert status == 1
    assert "1 of 2" in said
    assert said.count("MISS") == 1
    assert Path("there", "results.nc").is_file()


CHOSEN = [  # step sizes of minibatch SGD and local SGD, without noise and with it
    [0.135335],
    [0.00345938],
    [0.00940356, 0.0694835],
    [0.000335463, 0.000730178, 0.00345938],
]


@pytest.mark.slow
@pytest.mark.optimised
def test_a_figure_of_lowy_and_razaviyayn_is_reproduced(tmp_path):
    """With all 25 machines in every round, two of six ε, and of ten step sizes those that trials of the figure choose.

    A process compiles with the fast programs of a user's.
    """
    file = tmp_path / "figure.toml"
    chosen = iter(CHOSEN)
    text = experiment.bundled()["lowy-razaviyayn-2023/figure3/as-run"].read_text()
    text = text.replace("[25, 12]", "[25]").replace("[0.75, 1.5, 3, 6, 12, 18]", "[1.5, 12]")
    text = re.sub(r"(?<=step_size = )\[.*\]", lambda _: str(next(chosen)), text)
    assert not list(chosen)
    left_out = re.compile(r"at = .*(per_round = 12|epsilon = (0\.75|3|6|18))\b")
    file.write_text("\n".join(line for line in text.splitlines() if not left_out.search(line)))
    done = process("reproduce", str(file), "--out", str(tmp_path / "out"), XLA_FLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cells within their tolerance" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_tables_and_verdict_are_printed_before_files_of_results_are_written(call, spec, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "there/report.html")

    def faulty(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as fails:
        fails.setattr("fedprivjax.report.page.write_page", full)
        status, said, line = call("reproduce", spec, "--out", "there")
    assert status == 2
    assert "excess risk" in said
    assert "2 of 2" in said
    assert line == (
        "there/report.html must be writable, got No space left on device. The results are saved. Finish with "
        "fedprivjax report there\n"
    )
    monkeypatch.setattr("fedprivjax.report.plots.all_plots", faulty)
    with pytest.raises(ZeroDivisionError):  # a bug looks like one
        cli.experiments.report(Path("there"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device /dev/full is of Linux")
def test_results_are_kept_if_the_output_is_on_a_full_disk(call, spec, monkeypatch):
    """The text that is left does not fail again when the stream is closed."""
    with monkeypatch.context() as fails, open("/dev/full", "w", encoding="utf-8") as full:
        fails.setattr(sys, "stdout", full)
        said = refused(call("reproduce", spec, "--out", "there"))
    kept = "The results are saved. Finish with fedprivjax report there"
    assert said == f"stdout must be writable, got No space left on device. {kept}"
    assert "results.nc" in os.listdir("there")
    assert call("report", "there")[0] == 0
    assert "report.html" in os.listdir("there")


def test_an_experiment_without_expected_numbers_cannot_be_reproduced(call, spec):
    assert "must have [[expected]] numbers" in refused(call("reproduce", spec, "--set", "expected=[]"))
    assert not Path("results").exists()


def test_a_cell_outside_the_sweep_is_refused_before_anything_runs(call, spec):
    said = refused(call("reproduce", spec, "--set", "sweep.mu=[1, 4]"))
    assert said == "expected cell mu = 2 must be swept, got [1.0, 4.0]"
    assert not Path("results").exists()


PLAN = ("plan", "--machines", 12, "--per-round", 4, "--samples", 20, "--dimension", 6, "--epsilon", 2)
FEW = ("--protocol", "noisy_sgd", "--protocol", "dp_mu2", "--protocol", "local_sgd", "--protocol", "tree_momentum")


@pytest.mark.slow
def test_plan_compares_methods(call, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.plan, "progress", None)  # there is no pilot
    monkeypatch.chdir(tmp_path)
    given = (*PLAN, "--delta", 1e-5, "--diameter", 2, *FEW)
    brief = call(*given)[1]
    assert len(brief.splitlines()) < 30
    assert "not planned: tree_momentum" in brief
    status, said, _ = call(*given, "--all", "--json", "plan.json")
    assert status == 0
    one = call(*given[: -len(FEW)], "--protocol", "noisy_sgd", "--all")[1]
    assert "the Gaussian mechanism" in one
    assert "dp_mu2" not in one
    assert "G = 1 (default), L = 1 (default), D = 2\n" in said
    for words in ("bound_kind", "explicit", "vacuous", "missing", "noise_std", "gradients", "messages", "bytes"):
        assert words in said
    assert "tree_momentum\nrefusal: per_round must be machines (12)" in said
    assert "guarantee: one record of one machine, replace-one, trust: none; the Gaussian mechanism" in said
    found = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    assert {entry["protocol"] for entry in found["plans"]} == {"noisy_sgd", "dp_mu2", "local_sgd", "tree_momentum"}


@pytest.mark.slow
def test_plan_with_a_pilot_ranks_what_ran_on_synthetic_data(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, _ = call(*PLAN, "--protocol", "dp_mu2", "--pilot", "--all", "--json", "plan.json")
    assert status == 0
    assert "pilot on synthetic data: reads no private data, costs no privacy. Results on real data may differ" in said
    assert "pilot: 2 classes in 6 dimensions" in said
    (entry,) = json.loads(Path("plan.json").read_text(encoding="utf-8"))["plans"]
    assert 0 < entry["pilot_accuracy"] < 1
    assert 0 < entry["pilot_interval"] < 1


def test_plan_takes_an_experiments_problem(call, spec):
    """Options go before it."""
    status, said, _ = call("plan", spec, "--lipschitz", 2, "--smoothness", 1, "--protocol", "noisy_sgd")
    assert status == 0
    assert "6 identical machines, 3 a round, 10 records each; d = 3" in said
    assert "G = 2, L = 1, D = 4\n" in said
    assert said.count("realised ε = ") == 2  # of μ = 1 and 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--delta", 1.5), "delta must be between 0 and 1, got 1.5"),
        (("--epsilon", -1), "epsilon must be positive, got -1.0"),
        (("--per-round", 13), "per_round must be at most machines (12), got 13"),
        (("--trust", "sever"), "unknown trust 'sever', did you mean 'server'? (known: none, shuffler, "),
        (("--protocol", "dpmu2"), "unknown protocol 'dpmu2', did you mean 'dp_mu2'?"),
        (("--pilot", "--dimension", 2), "dimension must be classes · features for a pilot, with more features than"),
        (("--machines", "-5"), "machines must be at least 1, got -5"),
        (("--machines", "10k"), "--machines must be an integer"),
        (("--json", "absent/plan.json"), "--json must be in a folder that exists, got absent/plan.json"),
    ],
)
def test_a_bad_plan_is_one_line(call, spec, change, message):
    given = PLAN[:-2] if "--epsilon" in change else PLAN
    assert refused(call(*given, *change)).startswith(message)
    assert os.listdir() == [spec]


def test_a_plan_needs_its_sizes(call, spec):
    assert refused(call("plan", "--machines", 3)) == "per_round must be given, as --per-round or by an experiment"
    assert refused(call("plan", "--machines", -5)) == "machines must be at least 1, got -5"
    assert refused(call("plan", "cheu-2022/toy")).startswith("per_round must be given, as --per-round: the file")
    Path(spec).write_text(SMALL.replace("radius = 2.0\n", ""), encoding="utf-8")
    assert refused(call("plan", spec)) == "lipschitz must be given, as --lipschitz: the file's problem has none"


PARTITION = 'problem={dataset="logistic", options={examples=60, features=3}, radius=2.0, partition={kind="iid"}}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["participation.per_round=7"], "per_round must be at most machines (6), got 7"),
        (["participation.rounds=21"], "at most the 60 examples, got 3 · 21 = 63. Use at most 10 rounds"),
        ([PARTITION, "participation.rounds=20"], "examples for this schedule, got 10."),
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
        (["protocol.0.clp=2.0"], "[[protocol]] 'ours': unknown key 'clp', did you mean 'clip'?"),
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
    assert "method/setting_checks.py" in said
    assert said.endswith("fedprivjax.Refusal: [sweep] for 'ours': mu must be positive, got -1.0\n")
    assert os.listdir() == [spec]


def test_help_fills_the_lines_of_every_paragraph(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = call("plan", "--help")[1]
    assert "method is not planned. An experiment is compiled for one GPU, which need not   \n" in said


def test_help_mentions_the_traceback(call):
    status, said, _ = call("--help")
    assert status == 0
    assert "--traceback" in said


def test_a_system_error_is_one_line(call, spec, monkeypatch):
    def full(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(folder, "claim", full)
    status, _, said = call("run", spec)
    assert status == 2
    assert said.startswith(
        "results/small must be writable, got no space left on device: no chunk of 4 runs was finished"
    )
    assert said.count("\n") == 1
    assert call("run", spec, "--traceback")[2].startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (DataNotFound("mnist must be there, got no file"), "mnist must be there, got no file"),
        (FileNotFoundError(2, "No such file", "own.csv"), "FileNotFoundError: [Errno 2] No such file: 'own.csv'"),
    ],
)
def test_data_that_cannot_be_read_are_no_full_disk(call, spec, monkeypatch, error, says):
    def unread(*arguments, **options):
        raise error

    monkeypatch.setattr(folder, "claim", unread)
    assert refused(call("run", spec)) == says


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

from fedprivjax.protocols.noisy_sgd import SGD


@struct.dataclass
class Mine(SGD):
    beta: Any = 0.5
"""


@pytest.mark.slow
def test_a_custom_algorithm_runs_from_the_files_folder(call, spec):
    Path("mine.py").write_text(OWN, encoding="utf-8")
    entry = '{name = "mine:Mine", label = "ours", beta = 0.25, step_size = 0.1, privacy = {kind = "messages"}}'
    change = "--set", f"protocol=[{entry}]", "--set", "sweep.seeds=1"
    status, said, _ = call("reproduce", spec, *change, "--out", "there")
    assert status == 0, said
    assert "2 of 2" in said
    assert "MISS" not in said
    assert 'name = "mine:Mine"' in Path("there", "spec.toml").read_text(encoding="utf-8")
    assert list(folder.load(Path("there"))) == ["ours"]


def test_an_error_in_a_users_module_is_one_line_or_a_traceback(call, spec):
    Path("mine.py").write_text("1 / 0", encoding="utf-8")
    change = "run", spec, "--set", 'protocol.0={name = "mine:Mine"}'
    cause = "ZeroDivisionError: division by zero (mine.py, line 1)"
    assert refused(call(*change)) == f"protocol module 'mine' must be importable, got {cause}"
    status, _, said = call(*change, "--traceback")
    assert status == 2
    assert re.search(r'mine.py", line 1, in <module>\n    1 / 0', said), said


SLOWLY = """
import signal, time
import jax
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored by what runs in the background
from fedprivjax.sweeps import execute
dispatched, begun, found = execute._dispatched, [], []

def slowly(*arguments):
    begun.append(1)
    if len(begun) == 3:
        jax.block_until_ready(found)
        print("third", flush=True)
        time.sleep(60)
    found.append(dispatched(*arguments))
    return found[-1]

execute._dispatched = slowly
from fedprivjax.cli import main
main()
"""


@pytest.mark.filterwarnings("always:.*damaged")
def test_a_stop_reports_saved_runs_and_the_command_that_resumes(call, spec, monkeypatch):
    save, saved = ChunkStore.save, []

    def stopped(store, index, arrays):
        if saved:
            raise KeyboardInterrupt
        saved.append(store)
        save(store, index, arrays)

    with monkeypatch.context() as stops:
        stops.setattr(ChunkStore, "save", stopped)
        status, _, said = call("run", spec, "--out", "kept here")
    go_on = "fedprivjax run small.toml --out 'kept here' --resume"
    assert (status, said) == (130, f"stopped: 2 of 4 runs are saved in kept here. Resume with {go_on}\n")
    (kept,) = Path("kept here", "chunks").glob("*.npz")
    kept.write_bytes(b"half")
    status, _, said = call(*shlex.split(go_on)[1:])
    assert (status, said) == (0, f"warning: chunk {kept} is damaged: it is computed again\n")
    assert folder.load("kept here")["ours"]["excess_risk"].notnull().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("always:.*damaged")
def test_a_signal_stops_a_separate_process(call, spec):
    """Saved runs are not computed again."""
    least = sum(run_bytes(listed.jobs(experiment.load(spec))[0].prepare().first))
    change = f"sweep.memory_budget={least}"  # a run a chunk
    words = ["run", spec, "--out", "kept here", "--set", change]
    command = [sys.executable, "-c", SLOWLY, *words]
    streams: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    alone = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=1"}
    with subprocess.Popen(command, env=alone, **streams) as running:
        assert running.stdout is not None
        said = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=50)
    assert (running.returncode, said) == (130, "third\n"), errors
    go_on = f"fedprivjax run small.toml --out 'kept here' --set {change} --resume"
    assert errors == f"stopped: 2 of 4 runs are saved in kept here. Resume with {go_on}\n"
    kept = {path: path.stat().st_mtime_ns for path in Path("kept here", "chunks").glob("*.npz")}
    assert len(kept) == 2

    damaged = min(kept)
    damaged.write_bytes(b"half")
    status, _, said = call(*shlex.split(go_on)[1:])
    assert status == 0
    assert said == f"warning: chunk {damaged} is damaged: it is computed again\n"
    assert folder.load("kept here")["ours"]["excess_risk"].notnull().all()


def test_a_stop_elsewhere_is_one_line(call, spec, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(listed, "jobs", stop)
    assert call("privacy", spec) == (130, "", "stopped\n")


def test_nothing_to_resume_is_refused_before_anything_is_prepared(call, spec, monkeypatch):
    def prepared(*arguments, **options):
        raise AssertionError("prepared")

    monkeypatch.setattr(listed, "ready_experiment", prepared)
    monkeypatch.setattr(runner, "ready_experiment", prepared)
    wanted = "nothing to resume in there. Leave out --resume (resume=True) to start a run"
    assert refused(call("run", spec, "--out", "there", "--resume")) == wanted
    assert not Path("there").exists()
    with pytest.raises(fedprivjax.Refusal, match=r"^nothing to resume in there"):
        runner.run(experiment.load(spec), Path("there"), resume=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("always:.*computed again")
def test_damaged_results_are_computed_again(call, spec):
    assert call("run", spec, "--out", "there")[0] == 0
    Path("there", "results.nc").write_bytes(b"half")
    status, _, said = call("run", spec, "--out", "there", "--resume")
    assert status == 0
    assert said.startswith("warning: the results in there are computed again: there/results.nc must be a file as it ")
    assert said.count("\n") == 1
    assert folder.load("there")["ours"]["excess_risk"].notnull().all()


@pytest.mark.slow
def test_a_folder_that_turns_read_only_is_one_line_and_a_part_completes_the_run(call, spec, monkeypatch):
    assert call("run", spec, "--out", "whole")[0] == 0
    words = ("run", spec, "--out", "there", "--part", "1/1")
    save, saved = ChunkStore.save, []

    def until_read_only(store, index, arrays):
        if saved:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "there/chunks/next.npz")
        saved.append(index)
        save(store, index, arrays)

    with monkeypatch.context() as fails:
        fails.setattr(ChunkStore, "save", until_read_only)
        said = refused(call(*words))
    assert said == (
        "there/chunks/next.npz must be writable, got Read-only file system: 2 of 4 runs are saved in there. Resume "
        "with fedprivjax run small.toml --out there --part 1/1 --resume"
    )
    assert call(*words, "--resume")[0] == 0
    found, whole = (folder.load(into)["ours"].drop_vars("seconds") for into in ("there", "whole"))
    xr.testing.assert_allclose(found, whole, rtol=1e-5)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_resumes_from_its_chunks(call, spec, file_size_limit):
    assert call("run", spec, "--out", "whole")[0] == 0
    with file_size_limit(10_000):
        said = refused(call("run", spec, "--out", "there"))
    kept = "4 of 4 runs are saved in there. Resume with fedprivjax run small.toml --out there --resume"
    assert said == f"there/results.nc must be writable, got File too large: {kept}"
    assert len(list(Path("there", "chunks").glob("*.npz"))) == 2
    assert sorted(os.listdir("there")) == ["chunks", "inputs.json", "spec.toml"]
    assert call("run", spec, "--out", "there", "--resume")[0] == 0
    found, whole = (folder.load(into)["ours"].drop_vars("seconds") for into in ("there", "whole"))
    xr.testing.assert_identical(found, whole)


def test_reading_sampling_and_calibrating_report_progress(spec):
    said = []
    listed.jobs(experiment.load(spec, {"sweep.per_round": [2, 3]}), said.append)
    steps = [
        f"{step} of ours, per_round 2 ({number} of 2)"
        for step in ("sampling schedules", "calibrating noise")
        for number in (1, 2)
    ]
    assert said[:5] == ["reading least_squares", *steps]
    assert len(said) == 9


def test_output_to_a_file_has_lines_of_the_current_step(call, spec, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.002)
    status, _, said = call("privacy", spec)
    assert status == 0
    steps = ("reading", "sampling", "calibrating", "stating", "running")
    assert {line.split()[0] for line in said.splitlines()} <= {*steps}
    assert "running the accountant for ours (1 of 1)\n" in said


def test_an_unknown_experiment_is_answered_with_the_nearest(call, spec):
    assert refused(call("run", "quikstart")).startswith("unknown experiment 'quikstart', did you mean 'quickstart'?")
    assert refused(call("run", "absent.toml")) == "no experiment file 'absent.toml'. See fedprivjax list experiments"
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
    assert said.startswith("results folder there holds results of different settings: ")
    assert os.listdir("there") == ["spec.toml"]
    assert Path("there", "spec.toml").read_bytes() == before


@pytest.mark.parametrize("command", ["run", "reproduce"])
def test_a_results_folder_is_checked_before_runs_are_prepared(call, spec, monkeypatch, command):
    def prepared(*_, **__):
        pytest.fail("prepared")

    monkeypatch.setattr(listed, "ready_experiment", prepared)
    monkeypatch.setattr(runner, "ready_experiment", prepared)
    folder.claim(Path("there"), experiment.load(spec, {"sweep.seeds": 3}))
    other = "results folder there holds results of different settings: "
    for more in ([], ["--resume"]):
        assert refused(call(command, spec, "--out", "there", *more)).startswith(other)
    with pytest.raises(fedprivjax.Refusal, match=f"^{other}"):
        runner.run(experiment.load(spec), Path("there"), resume=True)
    chunks = Path("there", folder.CHUNKS)
    chunks.mkdir()
    (chunks / "0.npz").touch()
    unfinished = "results folder there holds an unfinished run: add --resume"
    same = ["--set", "sweep.seeds=3"]
    assert refused(call(command, spec, "--out", "there", *same)).startswith(unfinished)
    with pytest.raises(fedprivjax.Refusal, match=f"^{unfinished}"):
        runner.run(experiment.load(spec, {"sweep.seeds": 3}), Path("there"))


def test_results_are_shown_again_from_their_folder(call, spec, file_size_limit):
    status, first, _ = call("run", spec)
    assert status == 0
    into = Path("results") / "small"
    assert {"report.html", "results.nc", "provenance.json", "spec.toml"} <= {path.name for path in into.iterdir()}
    Path("mine").write_text("mine", encoding="utf-8")
    links = [path for path in into.iterdir() if path.suffix in (".png", ".html")]
    for path in links:
        path.unlink()
        path.symlink_to(Path("mine").resolve())
    status, again, _ = call("report", into)
    assert status == 0
    assert again == first
    assert Path("mine").read_text(encoding="utf-8") == "mine"
    assert not any(path.is_symlink() for path in links)
    assert (into / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    settings = (into / "spec.toml").read_text(encoding="utf-8")
    hostile = settings.replace('notes = ""', r'notes = "red \u001b[31m \u202e"')
    (into / "spec.toml").write_text(hostile, encoding="utf-8")
    with file_size_limit(10_000):
        answer = call("report", into)
    assert refused(answer).endswith(f"The results are saved. Finish with fedprivjax report {into}")
    assert r"red \x1b[31m \u202e" in answer[1]
    assert not any(map(is_hidden, answer[1]))
    assert folder.finished(into)
    for content, said in DAMAGED.items():
        (into / "spec.toml").write_bytes(content)
        answer = call("report", into)
        assert said in refused(answer)
        assert not answer[1]
    (into / "spec.toml").unlink()
    answer = call("report", into)
    assert refused(answer) == f"results folder must hold spec.toml, got {into} without it"
    assert not answer[1]
    (into / "results.nc").write_bytes(b"{")
    said = refused(call("report", into))
    assert said.startswith(f"{into / 'results.nc'} must be a file as it was written, and cannot be read: ")
    remedy = "Run an experiment first, such as fedprivjax run quickstart"
    assert refused(call("report", "nowhere")) == f"results folder must exist, got nowhere. {remedy}"


@pytest.mark.parametrize("key", ["title", "notes", "protocol.0.label"])
def test_control_characters_are_refused_before_a_run(call, spec, key):
    said = refused(call("run", spec, "--set", f"{key}=red \x1b[31m"))
    assert said.endswith(r"must have no control or invisible characters, got 'red \x1b[31m'. Leave out '\x1b'")
    assert os.listdir() == [spec]


def test_an_output_may_be_closed():
    """As `>&-` of a shell does, and some schedulers."""
    code = (
        "import sys; sys.stdout = None; sys.argv = ['fedprivjax', '--version']; from fedprivjax.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_in_ascii_shows_other_characters_as_escapes(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "list", "dp_mu2"])
    monkeypatch.setattr(cli.console, "leave", sys.exit)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    sys.stdout.flush()
    assert not stopped.value.code
    assert rb"\u03" in written.getvalue()


def test_the_version_is_printed(call):
    assert call("--version") == (0, f"fedprivjax {fedprivjax.__version__}\n", "")
    assert "--no-version" not in call("--help")[1]
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert fedprivjax.__version__ == project["version"]
    cited = (Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8")
    for line in (f"version: {project['version']}", f"license: {project['license']}", f"title: {project['name']}"):
        assert line in cited.splitlines()


@pytest.mark.mnist
def test_a_truncated_mnist_file(call, tmp_path, monkeypatch):
    if not mnist.available():
        pytest.skip("the MNIST files are at hand nowhere")
    damaged = tmp_path / "mnist"
    damaged.mkdir()
    paths = [file.path() for file in mnist.files()]
    for path in paths:
        (damaged / path.name).symlink_to(path.resolve())
    images = damaged / paths[0].name
    content = images.read_bytes()
    images.unlink()
    images.write_bytes(content[:-1000])
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path))
    refuse_truncated(call, tmp_path / "results", images)


def test_a_file_that_is_not_mnist(call, tmp_path, monkeypatch):
    images = tmp_path / "mnist" / next(iter(mnist.SUMS))
    images.parent.mkdir()
    images.write_bytes(b"\0\0\x08\x03 cut short")
    monkeypatch.setenv("FEDPRIVJAX_DATA", str(tmp_path))
    refuse_truncated(call, tmp_path / "results", images)


def refuse_truncated(call, out, images):
    said = refused(call("run", "reshef-levy-2025/table2", "--out", out))
    assert said.startswith(f"{images} is damaged and must be replaced: ")
    assert not out.exists()


@pytest.mark.slow
def test_the_example_of_a_custom_table_runs_and_plots_the_partition(call, tmp_path):
    status, said, _ = call("run", "your-own/people", "--tiny", "--out", tmp_path / "people")
    assert status == 0
    assert "8 machines: 0 = 'Ashford'" in said
    assert "classes: 0 = 'well', 1 = 'ill'" in said
    assert "NON-PRIVATE preparation" not in said  # all of it is public
    assert (tmp_path / "people" / "partition.png").is_file()


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A folder "both" of two bundled experiments of one method, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reading, "bundle", lambda: tmp_path / "bundle")
    inside = tmp_path / "bundle" / "both"
    inside.mkdir(parents=True)
    (inside / "first.toml").write_text(SMALL, encoding="utf-8")
    second = SMALL.replace("mu = [1, 2]", "mu = [1, 4]").replace("{ mu = 2 }", "{ mu = 4 }")
    (inside / "second.toml").write_text(second, encoding="utf-8")
    return inside


@pytest.mark.slow
def test_a_folder_runs_each_experiment_into_a_separate_folder(call, bundle, monkeypatch):
    status, said, _ = call("run", "both", "--tiny")
    assert status == 0
    title = "Scaled down for a smoke test: small"
    assert said.index(f"both/first: {title}") < said.index(f"both/second: {title}")
    for name, values in (("first", [1.0, 2.0]), ("second", [1.0, 4.0])):
        data = folder.load(Path("results", "tiny", "both", name))["ours"]
        assert data["mu"].values.tolist() == values
        assert data.sizes["seed"] == 2

    Path("results", "tiny", "both", "second", "results.nc").unlink()
    seen = []
    real = runner.execute
    monkeypatch.setattr(runner, "execute", lambda start, *rest: seen.append(start.axes["mu"]) or real(start, *rest))
    assert call("run", "both", "--tiny", "--resume")[0] == 0
    assert [list(values) for values in seen] == [[1.0, 4.0]]
    assert call("run", "both", "--tiny", "--set", "sweep.mu=[3]")[2].startswith(
        "both/first: results folder results/tiny/both/first holds results of different settings"
    )


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (("per_round = 3", "per_rund = 3"), "unknown key in [participation] 'per_rund', did you mean 'per_round'?"),
        (("per_round = 3", "per_round = 7"), "per_round must be "),
        (("[evaluation]", '[evaluation]\niterate = "best"'), "unknown evaluation.iterate 'best'"),
    ],
)
def test_invalid_experiments_of_a_folder_are_found_before_anything_runs(call, bundle, monkeypatch, wrong, line):
    second = bundle / "second.toml"
    second.write_text(second.read_text(encoding="utf-8").replace(*wrong), encoding="utf-8")
    monkeypatch.setattr(runner, "execute", None)
    for command in ("run", "run --tiny", "run --out there", "reproduce"):
        words = command.split()
        said = refused(call(words[0], "both", *words[1:]))
        assert said.startswith("both/second: ")
        assert line in said
        assert {path.name for path in Path().iterdir()} == {"bundle"}


def test_list_with_a_name_prints_its_settings(call):
    status, said, _ = call("list", "dp_mu2")
    assert status == 0
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0].startswith("dp_mu2 (protocols): DP-μ²-FL")
    assert lines[1] == "setting type default help"
    assert "step_scale number 1.0 factor by which the given or default step size is multiplied." in lines
    assert any(line.startswith("cancel true or false true True if a machine subtracts") for line in lines)
    both = call("list", "logistic")[1]
    for words in ("logistic (losses)", "score_bound", "logistic (datasets)", "optimum_norm", "required"):
        assert words in both
    hinge = " ".join(call("list", "hinge")[1].split())
    assert "strength of the Moreau envelope: larger is closer to the loss, smaller is smoother" in hinge
    assert "no settings" in call("list", "test_accuracy")[1]
    assert call("list", "partition") == call("list", "problem.partition")
    assert refused(call("list", "logistc")).startswith("unknown name 'logistc', did you mean 'logistic'?")


def test_defaults_of_listed_settings(call):
    lines = [" ".join(line.split()) for line in call("list", "fedavg")[1].splitlines()]
    assert any(
        line.startswith('trust text unset "server" if a trusted server adds the noise, or "none"') for line in lines
    )
    assert any(line.startswith("local text or ServerOptimizer unset optimiser") for line in lines)
    lines = [" ".join(line.split()) for line in call("list", "dirichlet")[1].splitlines()]
    assert any(line.startswith("alpha number unset concentration") for line in lines)
    assert not any(line.startswith("machines") for line in lines)


def test_help_of_settings_is_whole_and_says_unset_for_none(call):
    text = call("list", "fedavg", width=80)[1]
    assert "…" not in text
    assert 'Default: "replace-one"' not in text
    assert "ρ, strength of the proximal term of FedProx, or unset for FedAvg." in " ".join(
        call("list", "fedavg")[1].split()
    )


def test_headings_wrap_in_a_terminal_and_are_one_line_elsewhere(call, monkeypatch):
    assert len(call("list", "uniform", width=80)[1].splitlines()[0]) > 80
    monkeypatch.setattr(cli.out, "_force_terminal", True)
    assert len(call("list", "uniform", width=80)[1].splitlines()[0]) <= 80


def test_rows_of_combinations_have_a_number_in_every_part_of_a_table(call):
    assert "│ 1  │ defined" in call("list", "noisy_minibatch_sgd", "--combinations")[1]
    lines = call("list", "noisy_minibatch_sgd", "--combinations", width=80)[1].splitlines()
    first, second = (place for place, line in enumerate(lines) if line.startswith("NoisyRecords ("))
    numbered = [
        {line.split()[1] for line in part if line[2:3].isdigit()} for part in (lines[first:second], lines[second:])
    ]
    assert numbered[0] == numbered[1] >= {"1", "10"}


def test_everything_that_is_listed_has_a_line_on_every_setting():
    for entries in listing.groups().values():
        for name, (_, thing) in entries.items():
            for setting in [] if thing is None else settings_of(thing):
                assert setting.help, (name, setting)
                assert setting.kind, (name, setting)
    for heading, section in listing.sections().items():
        for setting in settings_of(section):
            assert setting.help, (heading, setting)
            assert setting.kind, (heading, setting)


@pytest.mark.parametrize("name", ["tuning", "[tuning]"])
def test_list_shows_the_keys_of_a_section(call, name):
    status, said, _ = call("list", name)
    assert status == 0
    assert said.startswith("tuning (sections): `[tuning]`: ")
    assert "keys of `[participation]` that differ." in said


def test_a_stop_in_code_that_cannot_raise_takes_effect_a_moment_later(monkeypatch, capsys):
    """Ctrl-C in a callback of the garbage collector, whose exceptions Python ignores."""
    stops = []

    def interrupted(phase, info):
        if not stops:
            stops.append(phase)
            raise KeyboardInterrupt

    def collect(words):
        gc.callbacks.append(interrupted)
        gc.collect(0)
        gc.callbacks.remove(interrupted)
        while time.monotonic() < began + 10:
            time.sleep(0.01)

    monkeypatch.setattr(cli, "app", collect)
    monkeypatch.setattr(cli.console, "leave", sys.exit)
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "list"])
    began, before = time.monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may ignore it
    try:
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (stopped.value.code, capsys.readouterr().err) == (130, "stopped\n")
    assert stops
    assert time.monotonic() - began < 5


def test_an_invalid_option_is_one_line(call):
    assert refused(call("reproduce", "quickstart", "--tiny")) == (
        "No such option: --tiny. It is an option of run. See fedprivjax reproduce --help"
    )
    assert refused(call("--tiny", "run", "quickstart")) == (
        "No such option: --tiny. It is an option of run. See fedprivjax --help"
    )
    assert refused(call("list", "--nope")) == "No such option: --nope. See fedprivjax list --help"
    assert refused(call("plan", "--machines")).endswith(" See fedprivjax plan --help")


def test_an_unknown_command_names_the_nearest(call):
    assert refused(call("rum", "quickstart")).startswith("unknown command 'rum', did you mean 'run'?")


def test_a_repeated_warning_is_printed_once(call, monkeypatch):
    def stated(*_):
        for _ in range(2):
            warnings.showwarning(UserWarning("δ is large"), UserWarning, "file", 1)
        raise fedprivjax.Refusal("no")

    monkeypatch.setattr(experiment, "load", stated)
    assert call("privacy", "quickstart")[2].count("warning: δ is large") == 1
