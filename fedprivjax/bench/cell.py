"""Times of one run of a cell of the 2025 table, compared with alternatives, and of starts.

Features are random, since no time depends on their values.
"""

import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.bench.timing import Line, at_most, compiled_run, side_by_side
from fedprivjax.engine.prepare import ready
from fedprivjax.experiment import bundle
from fedprivjax.noise import Silent
from fedprivjax.noise.chooser import relative_std
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.participation import Uniform
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import DPMu2
from fedprivjax.sweeps.prepare import ReadySweep, ready_sweep

MACHINES, PER_ROUND, ROUNDS, FEATURES, CLASSES, RADIUS = 100, 50, 1200, 785, 10, 0.05
PARTICIPATION = Uniform(MACHINES, PER_ROUND)
METRICS = ("noise_norm",)
SLOW_ROUNDS = 300  # rounds of the slow jobs, whose time is proportional to rounds
BARE = "import jax, matplotlib.figure, pydantic, scipy.stats, typer, xarray; jax.numpy.zeros(1)"
CLI = ("-c", "from fedprivjax.cli import main; main()")
COMMAND = (*CLI, "run", "quickstart", "--tiny", "--out")
JAX_ALONE = "import jax, time; print(time.process_time())"
FIRST = """
import time, jax, numpy as np
ended, programs = {}, []
def listen(event, *_, **__):
    ended[event] = time.process_time()
    programs.extend([event] * event.endswith("backend_compile_duration"))
jax.monitoring.register_event_duration_secs_listener(listen)
import fedprivjax as fpj
machines = np.arange(1420).reshape(20, 71)
problem = fpj.from_dataset(fpj.datasets.load("digits"), constraint=fpj.Ball(8.0), partition_table=machines)
method = fpj.NoisyMinibatchSGD(epsilon=8.0, clip=1.6, sampler="full", window=10, calibrate_to="plan")
run = fpj.simulate(method, problem, fpj.Balanced(machines=20, per_round=10), rounds=60, seed=1)
began = ended["/jax/core/compile/jaxpr_to_mlir_module_duration"]
print(time.process_time(), ended["/jax/core/compile/backend_compile_duration"] - began, len(programs))
"""  # README's run: CPU seconds to its result, CPU seconds of XLA for its program, number of programs
STARTS = {"jax": ("-c", "import jax"), "method": ("-c", "import fedprivjax; fedprivjax.DPMu2"), "list": (*CLI, "list")}


@cache
def make() -> Problem:
    """Return the cell with M = 100, m = 50, T = 1200, d = 7850, on 60,000 random images."""
    rng = np.random.default_rng(0)
    features = rng.random((PER_ROUND * ROUNDS, FEATURES), np.float32)
    labels = rng.integers(0, CLASSES, len(features))
    bound = float(np.sqrt(FEATURES))
    return linear_problem(features, labels, Softmax(CLASSES), feature_bound=bound, constraint=Ball(RADIUS))


def run_of(protocol, mechanism: Any = None, method: str = "auto", rounds: int = ROUNDS) -> Callable[[], Any]:
    """Return a function without arguments that makes one benchmark run of a protocol.

    The run trains softmax regression on 60,000 random images, with 50 of 100 machines in each round. The first call of
    the function also compiles the program, so only later calls should be timed.

    Args:
        protocol: protocol to run.
        mechanism: sampler of the noise, such as `Silent()`, which adds no noise. None takes the sampler that `method`
            names.
        method: name of a noise sampler, a key of `noise.chooser.METHODS`, or "auto" for the cheapest.
        rounds: number of rounds.
    """
    options = {"rounds": rounds, "metrics": METRICS, "eval_every": rounds, "noise_method": method}
    start = ready(protocol, make(), PARTICIPATION, **options)
    return compiled_run(start, mechanism=start.mechanism if mechanism is None else mechanism)


def sweep_of(mus: list[float], seeds: int, rounds: int = ROUNDS, **more: Any) -> ReadySweep:
    """Return a prepared sweep of the cell over privacy levels and seeds, on all devices."""
    options = {"rounds": rounds, "metrics": METRICS, "eval_every": rounds, **more}
    return ready_sweep(DPMu2(), make(), PARTICIPATION, over={"mu": mus}, seeds=seeds, **options)


def lines() -> Iterator[Line]:
    """Yield times of every noise method, of clipping and of a NumPy loop, as ratios."""
    protocol = DPMu2(mu=8.0)
    taken = side_by_side(
        {
            "covariance": run_of(protocol, method="covariance"),
            "factor": run_of(DPMu2(mu=8.0, noise_schedule="toeplitz")),
            "silent": run_of(protocol, Silent()),
            "clipped": run_of(DPMu2(mu=8.0, clip=5.6), Silent()),
        }
    )
    slow = side_by_side(
        {
            name: run_of(protocol, method=name, rounds=SLOW_ROUNDS)
            for name in ("covariance", "materialised", "replayed")
        },
        repeats=5,
    )
    for name, target in (("materialised", "≥ 12"), ("replayed", None)):
        yield Line(
            f"time of a run with {name} noise, over one with covariance noise",
            slow[name] / slow["covariance"],
            "ratio",
            target,
        )
    by_a_factor = "time of a run with noise of a factor, over one with covariance noise"
    yield Line(by_a_factor, taken["factor"] / taken["covariance"], "ratio", "≤ 3")
    yield Line("time of a run with clipping, over one without", taken["clipped"] / taken["silent"], "ratio", "≤ 1.2")
    loop = side_by_side({"loop": _numpy_loop(), "ours": run_of(protocol, rounds=SLOW_ROUNDS)}, repeats=3)
    yield Line("time of a NumPy loop, over one with fedprivjax", loop["loop"] / loop["ours"], "ratio", "≥ 15")


def _numpy_loop() -> Callable[[], Any]:
    """Return a function that runs `SLOW_ROUNDS` rounds of the cell in NumPy, with noise."""
    problem = make()
    plan = draw_plan(problem, PARTICIPATION, SLOW_ROUNDS)
    calibrated = calibrate(DPMu2(mu=8.0), problem, plan)
    loop = runpy.run_path(str(bundle() / "benchmarks" / "numpy_loop.py"))["run"]
    relative = relative_std(calibrated.noise_schedule, plan.schedule)
    pool = np.asarray(problem.pool.features), np.asarray(problem.pool.label)
    settings = {"noise_std": calibrated.noise_std, "step_size": calibrated.step_size, "radius": RADIUS, "seed": 0}
    settings |= {"machines": MACHINES, "classes": CLASSES}
    return partial(loop, *pool, plan.schedule.participants, plan.samples, relative, **settings)


def owned() -> Problem:
    """Return the cell with 600 records of each machine, which samples one in a round."""
    pool = make().pool
    rows = np.arange(len(pool.label)).reshape(MACHINES, -1)
    bound = float(np.sqrt(FEATURES))
    options: dict[str, Any] = {"feature_bound": bound, "constraint": Ball(RADIUS), "partition_table": rows}
    return linear_problem(pool.features, pool.label, Softmax(CLASSES), **options)


def start_lines() -> Iterator[Line]:
    """Yield times of imports, and of two runs of a small experiment with an initially empty compilation cache."""
    taken = side_by_side({name: partial(_seconds, *start) for name, start in STARTS.items()}, repeats=3)
    yield Line("import of fedprivjax.DPMu2, over import jax", taken["method"] / taken["jax"], "ratio", "≤ 2")
    yield Line("fedprivjax list, over import jax", taken["list"] / taken["jax"], "ratio", "≤ 3")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "compiled"
        first = _start(cache, Path(folder) / "first")
        kept = len(list(cache.iterdir()))
        second = _start(cache, Path(folder) / "second")
        new = len(list(cache.iterdir())) - kept
        bare = min(_seconds("-c", BARE) for _ in range(2))
    yield Line("quickstart --tiny, first start over second", first / second, "ratio")
    yield Line("quickstart --tiny, second start over imports of its libraries", second / bare, "ratio", "≤ 3.5")
    yield Line("programs that the second start compiled and kept", new, "programs", "≤ 0")


def first_lines() -> Iterator[Line]:
    """Yield the CPU time to the first result of README's run on digits, and the number of its programs."""
    turns = [(*_printed(JAX_ALONE), *_printed(FIRST)) for _ in range(at_most(5))]
    jax_alone, total, xla, programs = map(float, np.median(turns, axis=0))
    ratio = (total - xla) / jax_alone
    yield Line("first result on digits without XLA's time, over import jax", ratio, "ratio", "≤ 3.5")
    yield Line("first result on digits", total, "CPU seconds")
    yield Line("programs up to the first result on digits", programs, "programs", "≤ 1")


def _printed(code: str) -> list[float]:
    """Return the numbers that a Python process prints, which caches no compiled program."""
    environment = {**os.environ, "FEDPRIVJAX_CACHE": "", "JAX_COMPILATION_CACHE_DIR": ""}
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(number) for number in answer.stdout.split()]


def _start(cache: Path, out: Path) -> float:
    return _seconds(*COMMAND, str(out), JAX_COMPILATION_CACHE_DIR=str(cache))


def _seconds(*arguments: str, **environment: str) -> float:
    """Return the wall time of a separate Python process in seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, check=True, capture_output=True)
    return time.perf_counter() - began
