"""FedAvg in every library, a round of each in turn: seconds per round over those of fedprivjax, and agreement.

Every script runs in a process of its own, with the same participants and batches, see `fedavg_job.py`. `--python PATH`
is the interpreter of all peers, `--python NAME=PATH` of one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import fedavg_job as job
import numpy as np
from compare import HERE, PEERS, interpreters

OURS = "fedprivjax"
FILES = {"flower": "flwr"}  # where a package has another name


class Library:
    """A library's process, started and waiting for its first turn.

    Attributes:
        seconds: seconds per round of its turns.
    """

    def __init__(self, name: str, python: str, arguments: list[str], job: str = "fedavg"):
        self.name, self.seconds = name, []
        command = [python, str(HERE / f"{job}_{name}_run.py"), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def take_turn(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.seconds.append(self.answer()["seconds"])

    def answer(self) -> dict:
        """Return the next line of JSON; libraries may print other lines."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self.name} ended early, with status {self.process.wait()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that are not timed")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--python", action="append", default=[], metavar="[NAME=]PATH", help="of peers")
    given = parser.parse_args()
    if not 0 <= given.warm_up < given.rounds:
        raise SystemExit(f"warm-up must lie in 0..{given.rounds - 1}, got {given.warm_up}")
    pythons = interpreters(given.python)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--folder={folder}", f"--rounds={given.rounds}"]
        libraries = [Library(name, pythons.get(name, sys.executable), arguments) for name in (OURS, *given.peers)]
        for _ in range(given.rounds):
            for library in libraries:
                library.take_turn()
        print(f"{os.cpu_count()} CPU cores, {given.rounds} rounds, {given.warm_up} of them not timed")
        print(table(libraries, given.warm_up, Path(folder)))


def table(libraries: list[Library], warm_up: int, folder: Path) -> str:
    """Return lines of the libraries, fedprivjax first."""
    reports = {library.name: library.answer() for library in libraries}
    start, ours = weights(folder / job.JOB), weights(folder / f"{OURS}.npz")
    times = {library.name: np.array(library.seconds[warm_up:]) for library in libraries}
    lines = [f"{'library':<12}{'version':>10}{'s a round':>11}{'over ours':>11}{'accuracy':>10}{'distance':>10}"]
    for name, report in reports.items():
        found = weights(folder / f"{FILES.get(name, name)}.npz")
        distance = np.linalg.norm(found - ours) / np.linalg.norm(ours - start)
        ratio = np.median(times[name] / times[OURS])
        lines.append(
            f"{name:<12}{report['version']:>10}{np.median(times[name]):>11.3f}{ratio:>11.2f}"
            f"{report['test_accuracy']:>10.4f}{distance:>10.1e}"
        )
    return "\n".join(lines)


def weights(path: Path) -> np.ndarray:
    """Return the saved weights as one vector."""
    with np.load(path) as file:
        return np.concatenate([file[name].ravel() for name in file if name.startswith("arr_")])


if __name__ == "__main__":
    main()
