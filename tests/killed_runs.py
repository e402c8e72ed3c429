"""Kill runs of an 80-chunk sweep at random moments, resume them, and compare bit for bit: `killed_runs.py [MOMENTS]`.

Every killed run is a separate process, forked before jax starts any thread. It is killed by SIGKILL after a random
number of chunks and a random fraction of a chunk's time, or before its first chunk, or after its last.

`killed_runs.py MOMENTS parts` kills one of two parts that compute together. The other goes on, and a third completes.
`killed_runs.py MOMENTS checkpoint` kills one run of 20,000 rounds, which goes on from its checkpoint.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

ONE_DEVICE = "--xla_force_host_platform_device_count=1"
CHUNKS = 80
RAW: dict[str, Any] = {
    "title": "killed",
    "problem": {"dataset": "least_squares", "options": {"examples": 60, "features": 3}, "radius": 2.0},
    "participation": {"machines": 6, "per_round": 3, "rounds": 4},
    "protocol": [{"name": "dp_mu2", "label": "ours"}],
    "sweep": {"mu": [float(mu) for mu in range(1, 11)], "seeds": 8},
    "evaluation": {"every": 2},
}


def run(folder: Path | None, told=None, *, resume: bool = False) -> xr.Dataset:
    """Run the sweep and return its dataset without the wall time, so that equal sweeps give identical datasets."""
    from fedprivjax import experiment
    from fedprivjax.experiment.run import run

    found = run(experiment.parse(RAW), folder, resume=resume, progress=told)["ours"]
    return found.drop_vars("seconds")


def run_a_chunk(file: Path) -> None:
    """Write the memory budget for chunks of one run, and run the sweep with it, which compiles the program."""
    from fedprivjax import experiment
    from fedprivjax.experiment.jobs import jobs
    from fedprivjax.sweeps.memory import run_bytes

    file.write_text(str(sum(run_bytes(jobs(experiment.parse(RAW))[0].prepare().first))))
    RAW["sweep"]["memory_budget"] = int(file.read_text())
    run(None)


def forked(work) -> int:
    """Call a function in a forked process and return its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def kill(work: Callable[[Callable[..., Any]], Any], after: int, wait: float) -> None:
    """Run `work(told)` in a process, and kill it `wait` seconds after `after` calls of `told`, or let it end."""
    reader, writer = os.pipe()
    child = forked(lambda: work(lambda *_: os.write(writer, b".")))
    os.close(writer)
    seen = 0
    while seen < after and (said := os.read(reader, after - seen)):
        seen += len(said)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    os.close(reader)
    os.waitpid(child, 0)


def resumed(folder: Path) -> xr.Dataset:
    """Resume a run, or start it if its folder is empty."""
    from fedprivjax.experiment.folder import load

    run(folder, resume=(folder / "spec.toml").is_file())
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".part") == [
        "inputs.json",
        "provenance.json",
        "results.nc",
        "spec.toml",
    ]
    return load(folder)["ours"].drop_vars("seconds")


def part(folder: Path, number: int, begun: int) -> None:
    """Run a part of two, and write a byte to the file descriptor `begun` for every chunk that it dispatches."""
    from fedprivjax import experiment
    from fedprivjax.experiment.jobs import ready_experiment
    from fedprivjax.experiment.run import run_part
    from fedprivjax.sweeps import execute
    from fedprivjax.sweeps import part as parts

    parts.TOUCHED, parts.EXPIRY = 0.1, 1.0
    dispatched = execute._dispatched

    def counted(*arguments):
        values = dispatched(*arguments)
        os.write(begun, b".")
        return values

    execute._dispatched = counted
    run_part(ready_experiment(experiment.parse(RAW)), folder, parts.Part(number, 2))


def complete_after_kill(folder: Path, killed: int, after: int, wait: float) -> tuple[int, int]:
    """Kill one of two parts `wait` seconds after both began `after` chunks, and let the others complete the sweep.

    Returns:
        The number of chunks stored at the kill, and the number of chunks begun in the end.
    """
    from fedprivjax.experiment.folder import finished

    reader, writer = os.pipe()
    children = [forked(lambda number=number: part(folder, number, writer)) for number in (1, 2)]
    seen = 0
    while seen < after:
        seen += len(os.read(reader, after - seen))
    time.sleep(wait)
    os.kill(children[killed], signal.SIGKILL)
    stored = len(list(folder.glob("chunks/*.npz")))
    for child in children:
        os.waitpid(child, 0)
    if not finished(folder):  # all chunks but the killed part's are finished
        time.sleep(1.5)
        assert os.waitpid(forked(lambda: part(folder, 1 + killed, writer)), 0)[1] == 0
    os.close(writer)
    while said := os.read(reader, CHUNKS):
        seen += len(said)
    os.close(reader)
    return stored, seen


def main_parts(moments: int, home: Path) -> None:
    from fedprivjax.experiment.folder import load

    prepare(home)
    rng = np.random.default_rng(1)
    found = [
        complete_after_kill(
            home / f"{number:03d}", int(rng.integers(2)), int(rng.integers(1, CHUNKS + 1)), rng.uniform(0, 0.02)
        )
        for number in range(moments)
    ]
    whole = run(None)
    for number in range(moments):
        xr.testing.assert_identical(load(home / f"{number:03d}")["ours"].drop_vars("seconds"), whole)
    stored, begun = zip(*found, strict=True)
    print(f"{moments} kills of a part: {min(stored)} to {max(stored)} of {CHUNKS} chunks stored; all bit-identical")
    print(f"chunks begun: {min(begun)} to {max(begun)}")
    assert max(begun) <= CHUNKS + 2  # the killed part's chunk and its next one are begun twice


ROUNDS, EVERY = 20_000, 100


def run_with_checkpoints(folder: Path | None, told=None) -> dict[str, np.ndarray]:
    """Return parameters and metrics of one run with 100 checkpoints in a folder."""
    from fedprivjax import Ball, NoisySGD, Softmax, Uniform, linear_problem, simulate

    rng = np.random.default_rng(0)
    features, labels = rng.random((2 * ROUNDS, 50), np.float32), rng.integers(0, 3, 2 * ROUNDS)
    problem = linear_problem(features, labels, Softmax(3), feature_bound=8.0, constraint=Ball(1.0))
    protocol = NoisySGD(noise_std=1.0, clip=1.0, step_size=0.01)
    options: dict[str, Any] = {"folder": folder, "checkpoint_every": None if folder is None else 2 * EVERY}
    options |= {"rounds": ROUNDS, "eval_every": EVERY, "on_evaluation": told or (lambda *_: None)}
    found = simulate(protocol, problem, Uniform(10, 2), **options)
    return {"params": np.asarray(found.params), **{name: np.asarray(values) for name, values in found.metrics.items()}}


def kill_with_checkpoints(folder: Path, after: int, wait: float) -> int:
    """Kill a run `wait` seconds after `after` evaluations, and return its completed rounds, 0 without a checkpoint."""
    from fedprivjax.engine.checkpoint import FILE

    kill(lambda told: run_with_checkpoints(folder, told), after, wait)
    if not (folder / FILE).is_file():
        return 0
    with np.load(folder / FILE) as arrays:
        return json.loads(str(arrays["about"]))["completed"]


def main_checkpoint(moments: int, home: Path) -> None:
    set_environment(home)
    import fedprivjax  # noqa: F401

    rng = np.random.default_rng(2)
    completed = [
        kill_with_checkpoints(home / f"{number:03d}", int(rng.integers(ROUNDS // EVERY + 1)), rng.uniform(0, 0.02))
        for number in range(moments)
    ]
    whole = run_with_checkpoints(None)
    for number in range(moments):
        found = run_with_checkpoints(home / f"{number:03d}")
        assert found.keys() == whole.keys()
        for name, values in whole.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)
    print(
        f"{moments} kills of a run: {min(completed)} to {max(completed)} of {ROUNDS} rounds stored; all bit-identical"
    )
    assert any(0 < rounds < ROUNDS for rounds in completed)


def set_environment(home: Path) -> None:
    """Set one device, and a cache of compiled programs, before jax is imported."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_DEVICE}"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(home / "compiled")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # hides warnings about cached programs
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def prepare(home: Path) -> float:
    """Compile the program into a cache, set chunks of one run, and return the seconds it took."""
    set_environment(home)
    import fedprivjax.experiment.run  # noqa: F401

    begun = time.perf_counter()
    assert os.waitpid(forked(lambda: run_a_chunk(home / "budget")), 0)[1] == 0
    RAW["sweep"]["memory_budget"] = int((home / "budget").read_text())
    return time.perf_counter() - begun


def main(moments: int, home: Path) -> None:
    took = prepare(home)
    rng = np.random.default_rng(0)
    folders = [home / f"{number:03d}" for number in range(moments)]
    for folder in folders:
        after = int(rng.integers(CHUNKS + 1))
        wait = rng.uniform(0, took if after == 0 else 0.2 if after == CHUNKS else 0.02)
        kill(lambda told, folder=folder: run(folder, told), after, wait)
    kept = [len(list(folder.glob("chunks/*.npz"))) for folder in folders]
    finished = [(folder / "results.nc").is_file() for folder in folders]
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*compilation cache.*")  # a kill may truncate its entries
    whole = run(None)
    for folder in folders:
        xr.testing.assert_identical(resumed(folder), whole)
    states = zip(finished, kept, strict=True)
    where = Counter("finished" if done else "under way" if some else "before" for done, some in states)
    print(f"{moments} kills: {dict(where)}, {min(kept)} to {max(kept)} of {CHUNKS} chunks stored; all bit-identical")
    assert where["under way"] > 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
        mode = {"parts": main_parts, "checkpoint": main_checkpoint}.get("".join(sys.argv[2:]), main)
        mode(number, Path(place))
