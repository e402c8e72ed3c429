"""Parts: several processes compute a sweep's chunks in a shared folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fedprivjax import DPMu2, Refusal, Uniform, experiment, sweep
from fedprivjax.experiment import folder as results_folder
from fedprivjax.experiment import run as run_module
from fedprivjax.experiment.jobs import ready_experiment
from fedprivjax.experiment.run import run, run_part
from fedprivjax.sweeps import part as parts
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.part import CLAIM, Part, any_free, as_part, claimed, held, part_of_scheduler
from fedprivjax.sweeps.prepare import ready_sweep

METHOD, SCHEME = DPMu2(clip=1.0, step_size=0.1), Uniform(6, 3)
OPTIONS = {"over": {"mu": [1.0, 2.0, 4.0]}, "seeds": 2, "rounds": 6, "eval_every": 3}
RAW = {
    "title": "parts",
    "problem": {"dataset": "least_squares", "options": {"examples": 60, "features": 3}, "radius": 2.0},
    "participation": {"machines": 6, "per_round": 3, "rounds": 4},
    "protocol": [{"name": "dp_mu2", "label": "ours"}, {"name": "noisy_sgd", "label": "SGD", "step_size": 0.1}],
    "sweep": {"mu": [1.0, 2.0, 4.0], "seeds": 2},
}
ALONE = {**RAW, "protocol": RAW["protocol"][1:]}
SCRIPT = """
import sys
from pathlib import Path
from fedprivjax import experiment
from fedprivjax.experiment.jobs import ready_experiment
from fedprivjax.experiment.run import run_part
from fedprivjax.sweeps import part as parts
from fedprivjax.sweeps.part import Part
from tests_raw import RAW

parts.TOUCHED, parts.EXPIRY = 0.2, 1.5
ready = ready_experiment(experiment.parse(RAW))
print("ready", flush=True)
run_part(ready, Path(sys.argv[1]), Part.parse(sys.argv[2]), progress=lambda done, total: print(done, flush=True))
"""


@pytest.fixture
def of_one_run(softmax_problem):
    """Options of a sweep whose chunks are single runs, in parts and in one process alike."""
    budget = sum(run_bytes(ready_sweep(METHOD, softmax_problem, SCHEME, **OPTIONS).first))
    return {**OPTIONS, "memory_budget": budget, "metrics": ["train_loss", "noise_norm"]}


def same(one: xr.Dataset, other: xr.Dataset) -> None:
    xr.testing.assert_identical(one.drop_vars("seconds"), other.drop_vars("seconds"))


@pytest.mark.parametrize("text", ["3", "a/b", "3/", "-1/4", "1.5/2"])
def test_a_part_that_is_not_two_numbers_is_refused(text):
    with pytest.raises(Refusal, match=r"part must be two numbers such as 3/16, got '"):
        Part.parse(text)


@pytest.mark.parametrize("pair", [(0, 4), (5, 4), (1, 0), (True, 2), (1.0, 2)])
def test_a_part_outside_of_the_parts_is_refused(pair):
    with pytest.raises(Refusal, match="part must be a number from 1 to the number of parts, got"):
        as_part(pair)


def test_a_part_needs_a_folder(softmax_problem):
    with pytest.raises(Refusal, match="folder must be given with part, got none for part 1/2"):
        sweep(METHOD, softmax_problem, SCHEME, part=(1, 2), **OPTIONS)


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the batch script itself, which is no task of srun
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, Part(4, 4)),
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "3"}, Part(3, 3)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Part(2, 2)),
    ],
)
def test_schedulers_give_parts(variables, part):
    assert part_of_scheduler(variables) == part


@pytest.mark.slow
def test_parts_one_after_another_are_one_sweep_bit_for_bit(softmax_problem, of_one_run, tmp_path):
    whole = sweep(METHOD, softmax_problem, SCHEME, **of_one_run)
    for number in (3, 1):  # the first part takes over what the others do not compute
        found = sweep(METHOD, softmax_problem, SCHEME, folder=tmp_path, part=(number, 3), **of_one_run)
        assert found is not None
        same(found, whole)


@pytest.mark.slow
def test_a_chunk_that_another_process_computes_is_left_to_it(softmax_problem, of_one_run, tmp_path, monkeypatch):
    """The sweep is not finished while it computes, and is finished afterwards, or when its process was killed."""
    monkeypatch.setattr(parts, "TOUCHED", 0.05)
    arguments = METHOD, softmax_problem, SCHEME
    sweep(*arguments, folder=tmp_path, **of_one_run)
    chunk = sorted(tmp_path.glob("*.npz"))[0]
    chunk.unlink()
    with claimed(chunk.with_suffix(CLAIM)) as mine:
        assert mine
        assert sweep(*arguments, folder=tmp_path, part=(1, 2), **of_one_run) is None
        assert not chunk.is_file()
    claim_of(ended(), chunk.with_suffix(CLAIM))
    found = sweep(*arguments, folder=tmp_path, part=(1, 2), **of_one_run)
    assert found is not None
    same(found, sweep(*arguments, **of_one_run))
    assert not list(tmp_path.glob(f"*{CLAIM}"))


def test_an_expired_claim_is_taken_and_a_touched_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / f"chunk{CLAIM}"
    path.touch()
    assert held(tmp_path)
    os.utime(path, (time.time() - 2 * parts.EXPIRY,) * 2)
    assert not held(tmp_path)
    monkeypatch.setattr(parts, "TOUCHED", 0.02)
    with claimed(path) as mine:
        assert mine
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        with claimed(path) as second:
            assert not second
    assert not path.exists()


def test_a_claim_far_in_the_future_has_expired(tmp_path):
    """Nobody touches it, so that a wait for it would not end."""
    path = tmp_path / f"chunk{CLAIM}"
    path.write_text("elsewhere 5\n")
    os.utime(path, (time.time() + 2 * parts.EXPIRY,) * 2)
    assert not held(tmp_path)
    assert any_free([path])


def ended() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def claim_of(process: int, path: Path, computer: str | None = None) -> Path:
    """Write the claim of a process."""
    path.write_text(f"{computer or parts._computer()} {process}\n")
    return path


def test_the_claim_of_a_process_that_has_ended_is_taken_at_once(tmp_path):
    """On this computer alone: on another one, the number may be that of a running process."""
    running, other = claim_of(os.getppid(), tmp_path / "running"), claim_of(ended(), tmp_path / "other", "elsewhere")
    for path, taken in ((claim_of(ended(), tmp_path / "ended"), True), (running, False), (other, False)):
        with claimed(path) as mine:
            assert mine is taken


@pytest.mark.parametrize("content", ["", "half", "a b c", f"here {10**30}", "\0 1"])
def test_a_damaged_claim_holds_until_it_expires(tmp_path, monkeypatch, content):
    monkeypatch.setattr(parts, "_computer", lambda: "here")
    path = tmp_path / "damaged"
    path.write_text(content)
    with claimed(path) as mine:
        assert not mine


@pytest.mark.skipif(os.name != "posix", reason="there are no named pipes")
def test_a_claim_that_is_a_pipe_or_a_link_is_not_read(tmp_path):
    """A results folder from elsewhere could end reading neither a pipe nor /dev/zero."""
    os.mkfifo(tmp_path / f"pipe{CLAIM}")
    assert held(tmp_path)
    (tmp_path / f"pipe{CLAIM}").unlink()
    (tmp_path / f"link{CLAIM}").symlink_to("/dev/zero")
    assert parts._ended(tmp_path / f"link{CLAIM}") is False


def test_a_part_waits_for_a_touch_or_for_the_expiry(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "TOUCHED", 0.02)
    assert not any_free([])
    assert any_free([tmp_path / "released"])
    with claimed(tmp_path / "one") as one, claimed(tmp_path / "other") as other:
        assert one
        assert other
        assert not any_free([tmp_path / "one", tmp_path / "other"])
        silent = claim_of(1, tmp_path / "silent", "elsewhere")
        monkeypatch.setattr(parts, "EXPIRY", 0.1)
        assert any_free([tmp_path / "one", silent])
    with claimed(silent) as mine:
        assert mine


def test_any_number_of_parts_gives_equal_bits_and_computes_the_same_chunks(softmax_problem, tmp_path):
    """Resumed or not, with the default budget."""
    arguments = METHOD, softmax_problem, SCHEME
    whole = sweep(*arguments, **OPTIONS)
    kept = []
    for name, order in (("one", [(1, 1)]), ("three", [(3, 3), (1, 3)]), ("more", [(9, 64)])):
        for part in order:
            found = sweep(*arguments, folder=tmp_path / name, part=part, **OPTIONS)
            assert found is not None
            same(found, whole)
        kept.append({file.name for file in (tmp_path / name).glob("*.npz")})
    assert kept[0] == kept[1] == kept[2]
    next((tmp_path / "one").glob("*.npz")).unlink()
    same(sweep(*arguments, folder=tmp_path / "one", **OPTIONS), whole)


@pytest.mark.slow
def test_a_part_joins_finished_runs(tmp_path, monkeypatch):
    """As after a stop between the last chunk and the results. The seconds are those of all parts."""
    ready = ready_experiment(experiment.parse(ALONE))
    with monkeypatch.context() as stopped:
        stopped.setattr(run_module, "_saved", lambda *_, **__: None)
        run_part(ready, tmp_path, Part(1, 2))
    assert not results_folder.finished(tmp_path)
    assert run_part(ready, tmp_path, Part(2, 2)) is not None
    for data in results_folder.load(tmp_path).values():
        assert (data["seconds"] > 0).all()


def test_a_part_in_a_folder_of_other_settings_is_refused(tmp_path):
    first = ready_experiment(experiment.parse(ALONE))
    results_folder.claim(tmp_path, first.experiment, first.inputs, shared=True)
    other = ready_experiment(experiment.parse({**ALONE, "participation": {"machines": 6, "per_round": 2, "rounds": 4}}))
    with pytest.raises(Refusal, match=r"holds results of different settings: participation.per_round = 3 there and 2"):
        run_part(other, tmp_path, Part(2, 2))


@pytest.mark.slow
def test_parts_of_an_experiment_with_tuning(tmp_path):
    """A part alone finishes tuning and runs. A later part finds the results, and the chunks are gone."""
    tuned = {"name": "noisy_sgd", "label": "SGD", "grid": {"step_size": [0.05, 0.2]}}
    elsewhere = {"problem": {**RAW["problem"], "options": {"examples": 60, "features": 3, "seed": 1}}, "seeds": 1}
    raw = {**RAW, "protocol": [tuned], "tuning": elsewhere, "evaluation": {"select": "test_loss"}}
    ready = ready_experiment(experiment.parse(raw))
    first = run_part(ready, tmp_path, Part(2, 2))
    assert first is not None
    again = run_part(ready, tmp_path, Part(1, 2))
    assert again is not None
    same(again["SGD"], first["SGD"])
    assert not (tmp_path / results_folder.CHUNKS).exists()
    assert not (tmp_path / results_folder.CHOICE / results_folder.CHUNKS).exists()


@pytest.mark.slow
def test_a_killed_part_loses_nothing_that_was_finished(tmp_path):
    """One of three parts is killed. The others finish and compute its claimed chunk again, bit for bit."""
    (tmp_path / "tests_raw.py").write_text(f"RAW = {RAW!r}\n")
    (tmp_path / "part.py").write_text(SCRIPT)
    folder = tmp_path / "results"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def started(number: int) -> subprocess.Popen:
        command = [sys.executable, str(tmp_path / "part.py"), str(folder), f"{number}/3"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    parts = [started(number) for number in (1, 2, 3)]
    assert parts[1].stdout is not None
    while parts[1].stdout.readline().strip() != "ready":
        pass
    chunks = folder / results_folder.CHUNKS
    while not list(chunks.glob(f"*-*{CLAIM}")) and parts[1].poll() is None:
        time.sleep(0.005)
    parts[1].send_signal(signal.SIGKILL)
    parts[1].communicate(timeout=120)
    for part in (parts[0], parts[2]):
        part.communicate(timeout=120)
        assert part.returncode == 0
    if not results_folder.finished(folder):  # both ended while the killed part's claim had not expired
        time.sleep(2.0)
        again = started(2)
        again.communicate(timeout=120)
        assert again.returncode == 0
    whole = run(experiment.parse(RAW), Path(tmp_path, "whole"))
    for label, found in results_folder.load(folder).items():
        for name, values in whole[label].drop_vars("seconds").items():
            if values.dtype.kind in "fiub":
                np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=str(name))
