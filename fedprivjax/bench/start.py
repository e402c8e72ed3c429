"""What a second start of the same program costs: nothing is compiled anew."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedprivjax.bench.timing import Line

BARE = "import jax, matplotlib.figure, pydantic, scipy.stats, sklearn, typer, xarray; jax.numpy.zeros(1)"
COMMAND = ("-c", "from fedprivjax.cli import main; main()", "run", "quickstart", "--tiny", "--out")


def lines() -> Iterator[Line]:
    """The command line on a small experiment, twice, with a compilation cache that is empty at first."""
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
    """What a process of its own takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, check=True, capture_output=True)
    return time.perf_counter() - began
