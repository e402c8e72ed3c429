"""Run every bundled experiment scaled down: `run --tiny`, and the verdict on its expected numbers.

    python tests/bundled_tiny.py [NAME or FOLDER …]

Numbers are not judged at this size: all that may fail is the code. Exit status 1 if an experiment fails. Each of two
processes runs whole folders, whose experiments share compiled programs. `run` shows what it saved, by the function of
`report`, which follows once for each folder.
"""

import os
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing import get_context
from pathlib import Path

PROCESSES = 2


def work(names: list[str], parent: Path) -> list[str]:
    """Run experiments in this process, and return the names of those that failed."""
    return [name for name in names if not passed(name, parent / name, report=name == names[0])]


def passed(name: str, into: Path, *, report: bool) -> bool:
    """Run one experiment, and print its time or its output and traceback. Without its data it is not run."""
    from fedprivjax.datasets import DataNotFound

    start, said = time.perf_counter(), StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            judged = shown(name, into, report=report)
        print(f"{name}: {judged}, {time.perf_counter() - start:.1f} s", flush=True)
    except DataNotFound as error:
        print(f"{name}: not run, {error}", flush=True)
    except BaseException:
        print(f"{name}: FAILED\n{said.getvalue()}\n{traceback.format_exc()}", flush=True)
        return False
    return True


def shown(name: str, into: Path, *, report: bool) -> str:
    """Run and judge an experiment through the functions of the command line, and return what was judged."""
    from fedprivjax.cli import experiments, outcome
    from fedprivjax.experiment import load as bundled_experiment
    from fedprivjax.experiment.results import load

    experiments.run(name, folder=into, tiny=True)
    if report:
        experiments.report(into)
    results = load(into)
    expected = contained(results.spec, bundled_experiment(name).expected)
    if not expected:
        return "nothing to judge"
    outcome.judged(name, results.spec.but(expected=expected), results.best)
    return f"{len(expected)} expected"


def contained(small, entries):
    """Return the `[[expected]]` entries with those of their cells that a scaled-down experiment contains."""
    some = [one.but(cells=[cell for cell in one.cells if judges(small, one.but(cells=[cell]))]) for one in entries]
    return [few for few, one in zip(some, entries, strict=True) if few.cells or (not one.cells and judges(small, one))]


def judges(small, entry) -> bool:
    """Return True if the sweep of a scaled-down experiment contains all cells of an `[[expected]]` entry."""
    from fedprivjax import Refusal
    from fedprivjax.experiment.verdict import check_cells

    try:
        check_cells(small.but(expected=[entry]))
    except Refusal:
        return False
    return True


def prepare(compiled: str) -> None:
    """Give this process its own cache of compiled programs, whose entries are not written atomically."""
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": f"{compiled}/{os.getpid()}",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def main(wanted: list[str]) -> int:
    from fedprivjax.experiment import bundled

    names = [
        name for name in bundled() if not wanted or any(name == one or name.startswith(f"{one}/") for one in wanted)
    ]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    start, each = time.perf_counter(), sorted(groups.values(), key=len, reverse=True)
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(PROCESSES, prepare, (folder,)) as pool:
        found = pool.starmap(work, [(group, Path(folder)) for group in each], chunksize=1)
    failed = [name for group in found for name in group]
    print(f"{len(names)} experiments in {time.perf_counter() - start:.0f} s, failed: {', '.join(failed) or 'none'}")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
