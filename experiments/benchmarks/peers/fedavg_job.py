"""The job of `compare_fedavg.py`: FedAvg on MNIST with McMahan et al.'s network (2017), and one schedule for all.

100 machines hold 600 random records each. In every round 10 machines take one pass over their records in batches of 10,
from the same weights (784-200-200-10, relu, d = 199,210), and the server averages their weights. The participants, the
order of each machine's records in each round, and the first weights are those of fedprivjax, which writes them to a
file for the other libraries. All must therefore reach the same weights.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import mnist
import numpy as np

MACHINES, PER_ROUND, RECORDS, BATCH, STEP_SIZE = 100, 10, 600, 10, 0.1
CLASSES, HIDDEN = 10, (200, 200)
JOB = "job.npz"


class Job:
    """The schedule, the first weights, and the records.

    Attributes:
        folder: folder of the job's file, and of the weights that libraries reach.
        participants: machines of every round, [rounds, 10].
        samples: indices of their records in the order of the batches, [rounds, 10, 600].
        start: first weights: kernel [inputs, outputs] and bias [outputs] of each layer in turn.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        with np.load(folder / JOB) as file:
            self.participants, self.samples = file["participants"], file["samples"]
            self.start = [file[f"arr_{k}"] for k in range(2 * (len(HIDDEN) + 1))]
        self._pictures, self._labels = pictures("train")

    @property
    def rounds(self) -> int:
        return len(self.samples)

    def records(self, t: int, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """Return pictures [600, 784] and labels [600] of a participant of round t (from 0), in batch order."""
        chosen = self.samples[t, slot]
        return self._pictures[chosen], self._labels[chosen]


@lru_cache(maxsize=1)
def of_this_process(folder: Path) -> Job:
    """Return the folder's job. A client's process reads the data once."""
    return Job(folder)


class Turns:
    """Turns that alternate with those of other processes: a line on standard input starts one.

    Args:
        turns: number of turns.
        rounds: number of rounds of a turn.
        clock: function that returns the time in seconds.
    """

    def __init__(self, turns: int, rounds: int = 1, clock: Callable[[], float] = time.perf_counter):
        self.turns, self.rounds, self.clock, self.began = turns, rounds, clock, clock()

    def reached(self, done: int) -> None:
        """Print the seconds per round since the turn began, and wait for the next one unless all turns are done."""
        print(json.dumps({"seconds": (self.clock() - self.began) / self.rounds}), flush=True)
        if done < self.turns:
            sys.stdin.readline()
            self.began = self.clock()


def pictures(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures [examples, 784] in 0 … 1 and labels [examples] of the part "train" or "t10k"."""
    features, labels = mnist.load(part)
    return np.ascontiguousarray(features[:, : mnist.PIXELS]), labels


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="of the job's file and of the weights")
    parser.add_argument("--rounds", type=int, help="of the job that fedprivjax writes")
    return parser.parse_args()


def from_command_line() -> Job:
    return Job(arguments().folder)


def report(library: str, folder: Path, weights: Sequence[np.ndarray]) -> None:
    """Save the weights, ordered as `Job.start`, and print the library's version and test accuracy."""
    np.savez(folder / f"{library}.npz", *weights)
    values, labels = pictures("t10k")
    for k in range(0, len(weights), 2):
        values = (np.maximum(values, 0) if k else values) @ weights[k] + weights[k + 1]
    accuracy = float(np.mean(values.argmax(axis=1) == labels))
    print(json.dumps({"version": version(library), "test_accuracy": accuracy}), flush=True)
