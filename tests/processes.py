"""Several processes of one job on this computer: the launcher of tests with `jax.distributed`, on CPU over gloo.

Processes write to files, so that none waits for a reader. All are killed at the end of the block, or at the timeout.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PAUSE = 0.02  # seconds between two looks at the processes
START = """
import jax
jax.distributed.initialize({address!r}, {count}, {number}, cluster_detection_method="deactivate", \
initialization_timeout=60, heartbeat_timeout_seconds=5, shutdown_timeout_seconds=20)
"""


class Result(NamedTuple):
    """End of one process.

    Attributes:
        status: exit status, negative for a signal.
        output, errors: text of stdout and stderr.
    """

    status: int
    output: str
    errors: str


class Processes:
    """Running processes of one job."""

    def __init__(self, running: Sequence[subprocess.Popen], folder: Path):
        self.running, self.folder = running, folder

    def wait_for(self, number: int, text: str, timeout: float = 60.0) -> None:
        """Wait until a process has printed the text."""
        deadline = time.monotonic() + timeout
        while text not in self._text(number, "out"):
            if self.running[number].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"process {number} did not print {text!r}: {self._text(number, 'err')}")
            time.sleep(PAUSE)

    def kill(self, number: int) -> None:
        """Kill a process by SIGKILL."""
        self.running[number].send_signal(signal.SIGKILL)

    def results(self, timeout: float = 60.0) -> list[Result]:
        """Wait for all processes.

        Raises:
            AssertionError: if a process does not end within the timeout, in seconds.
        """
        deadline = time.monotonic() + timeout
        for number, process in enumerate(self.running):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                said = self._text(number, "err")
                raise AssertionError(f"process {number} did not end in {timeout:g} s: {said}") from None
        return [
            Result(process.returncode, self._text(number, "out"), self._text(number, "err"))
            for number, process in enumerate(self.running)
        ]

    def _text(self, number: int, kind: str) -> str:
        return (self.folder / f"{number}.{kind}").read_text(errors="replace")


@contextmanager
def started(commands: Sequence[Sequence[Any]], folder: Path, settings: Sequence[dict[str, str]]) -> Iterator[Processes]:
    """Start commands, which run until the end of the block at most.

    Args:
        folder: folder of the files of stdout and stderr, which is created.
        settings: environment variables of each command, in addition to this process's.
    """
    folder.mkdir(parents=True)
    running: list[subprocess.Popen] = []
    try:
        for number, (command, own) in enumerate(zip(commands, settings, strict=True)):
            with (folder / f"{number}.out").open("wb") as out, (folder / f"{number}.err").open("wb") as err:
                environment = _environment() | own
                running.append(subprocess.Popen(list(map(str, command)), stdout=out, stderr=err, env=environment))
        yield Processes(running, folder)
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def job(code: str, count: int, folder: Path, *, devices: int = 1, each: Sequence[str] = ()) -> Iterator[Processes]:
    """Start `count` processes of one job, which run the code after `jax.distributed.initialize`.

    Args:
        devices: number of simulated devices of a process.
        each: code of each process before that of all, or nothing.
    """
    address = f"localhost:{free_port()}"
    commands = []
    for number in range(count):
        own = each[number] if each else ""
        start = START.format(address=address, count=count, number=number)
        commands.append([sys.executable, "-c", "\n".join([start, own, code])])
    with started(commands, folder, [devices_flag(devices)] * count) as processes:
        yield processes


def launch(
    code: str, count: int, folder: Path, *, devices: int = 1, each: Sequence[str] = (), timeout: float = 100.0
) -> list[Result]:
    """Return the ends of all processes of a job, see `job`."""
    with job(code, count, folder, devices=devices, each=each) as processes:
        return processes.results(timeout)


def require_success(results: Sequence[Result]) -> None:
    """Fail with the first process's errors unless all have ended with status 0."""
    for number, result in enumerate(results):
        assert result.status == 0, f"process {number}: {result.status}\n{result.output}\n{result.errors}"


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def devices_flag(devices: int) -> dict[str, str]:
    """Return the variable of a number of simulated devices, with the other flags of this process."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    return {"XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"])}


def _environment() -> dict[str, str]:
    """Return this process's variables without those of pytest and of its compilation cache, which is not shared."""
    left_out = ("PYTEST_", "JAX_COMPILATION_CACHE_DIR", "SLURM_", "OMPI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return kept | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
