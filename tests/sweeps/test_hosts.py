"""Several processes compute one run or one sweep: the numbers of one process, and a restart after a kill."""

import json
import re
import sys

import jax
import numpy as np
import pytest
import xarray as xr
from processes import devices_flag, free_port, job, launch, require_success, started
from small_file import EXPERIMENT

from fedprivjax.experiment import folder as results_folder

pytestmark = pytest.mark.slow

START = """
import jax
import numpy as np
from fedprivjax import (
    Ball, DPMu2, FedAvg, NoisyMinibatchSGD, Refusal, Softmax, Uniform, general_problem, linear_problem, simulate, sweep,
)
"""
PROBLEM = """
rng = np.random.default_rng(3)
FEATURES, LABELS = rng.normal(size=(48, 3)).astype(np.float32), rng.integers(0, 2, 48)
SHARED = linear_problem(FEATURES, LABELS, Softmax(2), constraint=Ball(1.0))
OWNED = linear_problem(FEATURES, LABELS, Softmax(2), partition_table=np.arange(48).reshape(8, 6))
LOCAL = FedAvg(local_epochs=1, batch=3, step_size=0.1)
GRID = {"over": {"mu": [1.0, 4.0]}, "seeds": 4, "rounds": 6, "eval_every": 3, "metrics": ["train_loss", "noise_norm"]}


def grid(**options):
    return sweep(DPMu2(clip=1.0, step_size=0.1), SHARED, Uniform(6, 3), **(GRID | options))


def values(data):
    return {name: np.asarray(data[name]) for name in ("train_loss", "noise_norm", "realised_epsilon")}
"""
RUNS = """
from fedprivjax.engine import prepare


def network(params, example):
    hidden = jax.numpy.tanh(params["in"] @ example.features)
    return jax.nn.log_softmax(params["out"] @ hidden)[example.label] * -1


def params_of(run):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])


def found(runs, machines, folder=None):
    start = {"in": rng.normal(size=(4, 3)).astype(np.float32), "out": rng.normal(size=(2, 4)).astype(np.float32)}
    deep = general_problem(network, OWNED.pool, start, partition_table=np.arange(48).reshape(8, 6))
    both = {"runs": 2, "machines": machines["machines"] // 2} if machines else runs
    local = sweep(LOCAL, OWNED, Uniform(8, 5), over={"step_size": [0.1, 0.2]}, seeds=3, rounds=4, mesh=both,
                  metrics=["train_loss"], keep=["params"])
    room, prepare.room_of = prepare.room_of, lambda devices: 0.0  # the data are divided, too
    divided = params_of(simulate(LOCAL, OWNED, Uniform(8, 5), rounds=4, mesh=machines))
    prepare.room_of = room
    return {
        "divided": divided,
        **values(grid(mesh=runs, folder=folder)),
        "local": np.asarray(local["train_loss"]),
        "kept": np.asarray(local["params"]),
        "convex": params_of(simulate(LOCAL, OWNED, Uniform(8, 5), rounds=20, mesh=machines)),
        "network": params_of(simulate(LOCAL, deep, Uniform(8, 5), rounds=1, mesh=machines)),
    }
"""
DIVIDED = """
from pathlib import Path
number, count = jax.process_index(), jax.device_count()
folder = Path({folder!r}, str(number))

data = found(None, {{"machines": count}}, folder)
assert folder.exists() == (number == 0)
np.savez(Path({folder!r}, f"{{number}}.npz"), **data)
"""


@pytest.fixture(scope="module")
def alone():
    """Numbers of one process on one device."""
    names: dict = {}
    exec(START + PROBLEM + RUNS, names)
    one = jax.make_mesh((1,), ("runs",), devices=jax.devices()[:1])
    return names["found"](one, None)


@pytest.mark.parametrize(("count", "devices"), [(2, 2), (4, 1)])
def test_processes_compute_the_numbers_of_one_process(alone, tmp_path, count, devices):
    """Divided runs are equal bit for bit, divided machines within 1e-5. The first process alone writes chunks."""
    code = START + PROBLEM + RUNS + DIVIDED.format(folder=str(tmp_path))
    require_success(launch(code, count, tmp_path / "log", devices=devices))
    for number in range(count):
        found = np.load(tmp_path / f"{number}.npz")
        assert set(found) == set(alone)
        for name in ("train_loss", "noise_norm", "realised_epsilon"):
            np.testing.assert_array_equal(found[name], alone[name], err_msg=name)
        for name in ("local", "kept", "convex", "divided", "network"):
            assert np.linalg.norm(found[name] - alone[name]) <= 1e-5 * np.linalg.norm(alone[name]), name
    assert list((tmp_path / "0").glob("*.npz"))


CHUNKS = """
import time
from fedprivjax.sweeps import execute
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

one = ready_sweep(DPMu2(clip=1.0, step_size=0.1), SHARED, Uniform(6, 3), **GRID)
budget = sum(run_bytes(one.first))
"""
SLOWLY = """
def slowly(done, total):
    print("finished", done, flush=True)
    time.sleep({pause})


data = grid(memory_budget=budget, folder={folder!r}, progress=slowly)
np.savez(f"{folder}/{{jax.process_index()}}-found", **values(data))
"""


def test_a_killed_process_ends_all_and_a_restart_resumes(alone, tmp_path):
    """The second process is killed, after a restart the first. The next restart computes what is missing."""
    folder = tmp_path / "chunks"

    def code(pause):
        return START + PROBLEM + CHUNKS + SLOWLY.format(pause=pause, folder=str(folder))

    kept: dict = {}
    for killed, done in ((1, 2), (0, 4)):
        with job(code(1.0), 2, tmp_path / f"log{killed}") as processes:
            processes.wait_for(0, f"finished {done}")
            processes.kill(killed)
            ends = processes.results(40.0)
        assert ends[killed].status == -9
        assert "finished" not in ends[1].output
        assert ends[1 - killed].status != 0
        for path, when in kept.items():
            assert path.stat().st_mtime_ns == when  # loaded, not computed again
        kept = {path: path.stat().st_mtime_ns for path in folder.glob("*[0-9].npz")}
        assert done // 2 <= len(kept) < 4
    require_success(launch(code(0.0), 2, tmp_path / "log"))
    assert len(list(folder.glob("*[0-9].npz"))) == 4
    for path, when in kept.items():
        assert path.stat().st_mtime_ns == when
    for number in range(2):
        found = np.load(folder / f"{number}-found.npz")
        for name in found:
            np.testing.assert_array_equal(found[name], alone[name], err_msg=name)


REPORTED = """
import json
number = jax.process_index()


def report(index, round, metrics):
    print("REPORT", json.dumps([index, round, metrics["train_loss"]]), flush=True)


def failing(index, round, metrics):
    raise KeyError("logger")


def refused(callback):
    try:
        grid(on_evaluation=callback)
    except (KeyError, Refusal) as error:
        print(f"{type(error).__name__}: {error}", flush=True)


grid(on_evaluation=report)
refused(failing)
refused(report if number == 0 else None)
"""


def test_the_first_process_reports_evaluations_and_its_exception_ends_all(alone, tmp_path):
    results = launch(START + PROBLEM + REPORTED, 2, tmp_path / "log")
    require_success(results)
    first, second = (
        [line for line in one.output.splitlines() if line.startswith(("REPORT", "KeyError", "Refusal"))]
        for one in results
    )
    reports = [json.loads(line.removeprefix("REPORT ")) for line in first if line.startswith("REPORT")]
    assert len(reports) == 16  # two values of μ, four seeds, two evaluations
    for index, done, loss in reports:
        assert loss == alone["train_loss"][[1.0, 4.0].index(index["mu"]), index["seed"], done // 3 - 1]
    assert first[16:] == second
    assert len(second) == 2
    assert second[0] == "KeyError: 'logger'"
    assert "on_evaluation must be equal in all processes, got a callable in process 0" in second[1]


DIFFERENT = """
import warnings
from pathlib import Path
from fedprivjax.checks.refusal import warn
from fedprivjax.engine import fingerprint
from fedprivjax.engine.hosts import on_all
from fedprivjax.sweeps import chunk_store

number = jax.process_index()


def refused(call):
    try:
        call()
    except (Refusal, OSError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)


def fails_at(which):
    if number == which:
        raise Refusal("data must be there, got none")


other = linear_problem(FEATURES + number, LABELS, Softmax(2), constraint=Ball(1.0))
machines = {"machines": jax.device_count()}
refused(lambda: sweep(DPMu2(clip=1.0, step_size=0.1), other, Uniform(6, 3), **GRID))
refused(lambda: grid(over={"mu": [1.0, 4.0 + number]}))
refused(lambda: simulate(LOCAL, OWNED, Uniform(8, 5), rounds=2, seed=number, mesh=machines))
same = fingerprint.versions
fingerprint.versions = chunk_store.versions = lambda: same() | {"version of jax": f"0.{number}"}
refused(grid)
refused(lambda: simulate(LOCAL, OWNED, Uniform(8, 5), rounds=2, mesh=machines))
fingerprint.versions = chunk_store.versions = same
refused(lambda: on_all(lambda: fails_at(1)))
refused(lambda: on_all(lambda: fails_at(number)))
Path(FOLDER).write_text("a file") if number == 0 else None
refused(lambda: grid(folder=FOLDER))
if number == 1:
    refused(lambda: grid(mesh={"runs": 1}))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warn("once")
print(len(caught), "warnings")
by_itself = simulate(LOCAL, OWNED, Uniform(8, 5), rounds=2 + number, progress=lambda done, total: print("done"))
part = grid(part=(number + 1, 2), folder=f"{FOLDER}-parts")
if part is not None:
    np.savez(f"{FOLDER}-{number}.npz", **values(part))
"""


def test_processes_that_differ_are_refused_and_may_compute_by_themselves(alone, tmp_path):
    """Every process raises the same error, so that none waits for another. Parts and runs without a mesh go alone."""
    code = START + PROBLEM + f"FOLDER = {str(tmp_path / 'file')!r}\n" + DIFFERENT
    results = launch(code, 2, tmp_path / "log")
    require_success(results)
    said = [[line for line in one.output.splitlines() if "Gloo" not in line] for one in results]
    assert said[0].pop() == "done"
    while said[0][-1] == "done":
        said[0].pop()
    assert said[0].pop() == "1 warnings"
    assert said[1].pop() == "0 warnings"
    assert said[0] == said[1][:-1]
    names = "data", "settings", "settings", "version of jax", "version of jax"
    for line, name in zip(said[0], names, strict=False):
        assert re.fullmatch(
            rf"Refusal: {name} must be equal in all processes, got \S+ in process 0 on \S+, "
            rf"\S+ in process 1 on \S+\. Start all with the same {name}",
            line,
        )
    assert re.fullmatch(r"Refusal: data must be there, got none \(on host \S+ only\)", said[0][5])
    assert said[0][6] == "Refusal: data must be there, got none"
    assert said[0][7].startswith("NotADirectoryError: [Errno 20] Not a directory")
    computed = list(tmp_path.glob("file-*.npz"))
    assert computed
    for name, found in np.load(computed[0]).items():
        np.testing.assert_allclose(found, alone[name], rtol=1e-5, err_msg=name)
    remedy = "Use all 2 devices, or jax.local_devices()"
    assert said[1][8] == f"Refusal: mesh must have devices of all 2 processes, got 1 of them. {remedy}"


SEGMENTS = """
machines = {"machines": jax.device_count()}
options = {"rounds": 5, "eval_every": 2, "mesh": machines, "metrics": ["train_loss"]}
plain = simulate(LOCAL, OWNED, Uniform(8, 5), **options)
heard = lambda rounds, metrics: print(rounds, sorted(metrics), flush=True)
found = simulate(LOCAL, OWNED, Uniform(8, 5), on_evaluation=heard, **options)
np.testing.assert_array_equal(found.params, plain.params)
np.testing.assert_array_equal(found.metrics["train_loss"], plain.metrics["train_loss"])
try:
    simulate(LOCAL, OWNED, Uniform(8, 5), folder=FOLDER, **options)
except Refusal as error:
    print(error, flush=True)
"""


def test_evaluations_are_reported_in_the_first_process(tmp_path):
    code = START + PROBLEM + f"FOLDER = {str(tmp_path / 'file')!r}\n" + SEGMENTS
    results = launch(code, 2, tmp_path / "log")
    require_success(results)
    said = [[line for line in one.output.splitlines() if "Gloo" not in line] for one in results]
    refusal = "folder must go with one process, got 2. Leave it out"
    assert said == [["2 ['train_loss']", "4 ['train_loss']", "5 ['train_loss']", refusal], [refusal]]


SPEC = EXPERIMENT + "mu = [1, 2]\n"


def slurm(number, port):
    """Return the variables of a task of `srun --ntasks=2` that jax and the command line read."""
    own = {"PROCID": number, "LOCALID": number, "JOB_ID": 1, "NTASKS": 2, "STEP_NUM_TASKS": 2, "STEP_NUM_NODES": 1}
    variables = {f"SLURM_{name}": str(value) for name, value in own.items()}
    return variables | {"SLURM_STEP_NODELIST": "localhost", "JAX_COORDINATOR_PORT": str(port), **devices_flag(1)}


FAILING = """
import jax
from fedprivjax.cli import main
from fedprivjax.sweeps import execute


def fail(*arguments):
    raise TypeError("a bug of one process")


dispatched = execute._dispatched
execute._dispatched = lambda *arguments: (fail if jax.process_index() == 1 else dispatched)(*arguments)
main()
"""


def test_an_error_of_one_task_ends_all(tmp_path):
    """The task does not wait for the others, which cannot go on without it."""
    (tmp_path / "small.toml").write_text(SPEC)
    port = free_port()
    command = [
        sys.executable,
        "-c",
        FAILING,
        "run",
        tmp_path / "small.toml",
        "--distributed",
        "--out",
        tmp_path / "out",
    ]
    with started([command] * 2, tmp_path / "log", [slurm(task, port) for task in range(2)]) as running:
        first, second = running.results(100.0)
    assert second.status == 1
    assert second.errors.endswith("TypeError: a bug of one process\n")
    assert first.status != 0
    if first.status == 1:  # else jax has ended it by a signal
        assert re.fullmatch(r"another process of the job has ended\. The same command resumes .*\n", first.errors)


def test_a_run_over_the_tasks_of_a_job_is_the_run(tmp_path):
    """The first task alone prints and writes. The same command loads what is finished, and refuses other settings."""
    (tmp_path / "small.toml").write_text(SPEC)
    command = [sys.executable, "-c", "from fedprivjax.cli import main; main()", "run", tmp_path / "small.toml"]
    ends = []
    for log, change in (("log", "seeds=2"), ("other", "seeds=3")):
        port = free_port()
        words = [*command, "--distributed", "--set", f"sweep.{change}", "--out"]
        tasks = [[*words, tmp_path / str(task)] for task in range(2)]
        with started(tasks, tmp_path / log, [slurm(task, port) for task in range(2)]) as running:
            ends.append(running.results(100.0))
        assert [line for line in ends[-1][1].output.splitlines() if "Gloo" not in line] == []
        assert ends[-1][1].errors == ""
    (first, others), (refused, _) = ends
    assert (first.status, others.status) == (0, 0), first.errors
    assert "results.nc" in first.output
    assert [one.status for one in ends[1]] == [2, 2]
    assert re.fullmatch(r"results folder \S+ holds results of different settings: sweep.seeds.*\n", refused.errors)
    assert not (tmp_path / "1").exists()
    found = results_folder.load(tmp_path / "0")["ours"].drop_vars("seconds")
    two_devices = [devices_flag(2)]  # chunks divide over the devices, and bits may differ between their widths
    with started([[*command, "--out", tmp_path / "alone"]], tmp_path / "log alone", two_devices) as running:
        require_success(running.results(100.0))
    xr.testing.assert_identical(found, results_folder.load(tmp_path / "alone")["ours"].drop_vars("seconds"))
