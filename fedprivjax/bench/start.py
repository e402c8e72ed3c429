"""Start-up time of imports, and of a program that was compiled before."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedprivjax.bench.timing import Line, side_by_side

BARE = "import jax, matplotlib.figure, pydantic, scipy.stats, sklearn, typer, xarray; jax.numpy.zeros(1)"
CLI = ("-c", "from fedprivjax.cli import main; main()")
COMMAND = (*CLI, "run", "quickstart", "--tiny", "--out")
STARTS = {"jax": ("-c", "import jax"), "method": ("-c", "import fedprivjax; fedprivjax.DPMu2"), "list": (*CLI, "list")}


def lines() -> Iterator[Line]:
    """Yield times of imports, and of two runs of a small experiment with an initially empty compilation cache."""
    taken = side_by_side({name: partial(_seconds, *start) for name, start in STARTS.items()}, repeats=3)
    yield Line("import of fedprivjax.DPMu2, over import jax", taken["method"] / taken["jax"], "times", "≤ 2")
    yield Line("fedprivjax list, over import jax", taken["list"] / taken["jax"], "times", "≤ 3")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "compiled"
        first = _start(cache, Path(folder) / "first")
        kept = len(list(cache.iterdir()))
        second = _start(cache, Path(folder) / "second")
        new = len(list(cache.iterdir())) - kept
        bare = min(_seconds("-c", BARE) for _ in range(2))
    yield Line("quickstart --tiny, first start over second", first / second, "times")
    yield Line("quickstart --tiny, second start over bare imports", second / bare, "times", "≤ 3.5")
    yield Line("programs that the second start compiled and kept", new, "programs", "≤ 0")


def _start(cache: Path, out: Path) -> float:
    return _seconds(*COMMAND, str(out), JAX_COMPILATION_CACHE_DIR=str(cache))


def _seconds(*arguments: str, **environment: str) -> float:
    """Return the wall time of a separate Python process in seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, check=True, capture_output=True)
    return time.perf_counter() - began
