"""The job that every library does: noisy SGD on softmax regression over MNIST, with one schedule for all.

    w ← w − step_size·(1/m)·Σ_{i∈S} (∇f(w; z_i) + N(0, noise_std²·I))        from w = 0, d = 7850

A round's m = 50 participants are a random half of M = 100 machines; each sends one message, of one example of its own
that it has not used before. Without noise, all libraries must reach the same accuracy.
"""

import argparse
import json
import time
from functools import cached_property
from importlib.metadata import version

import mnist
import numpy as np

MACHINES, PER_ROUND, CLASSES, FEATURES = 100, 50, 10, 785
WARM_UP = 5  # rounds that are not timed


class Job:
    """The settings of a run, who takes part, and on which example.

    Attributes:
        participants: each round's machines, [rounds, 50].
        turns: how often each of them took part before, [rounds, 50]: which of its own examples it uses.
    """

    def __init__(self, rounds: int, noise_std: float, step_size: float, seed: int):
        if not WARM_UP < rounds <= 60_000 // PER_ROUND:
            raise SystemExit(f"rounds must be in {WARM_UP + 1}..{60_000 // PER_ROUND}, got {rounds}")
        self.rounds, self.noise_std, self.step_size, self.seed = rounds, noise_std, step_size, seed
        rng = np.random.default_rng(seed)
        self.participants = np.array([rng.choice(MACHINES, PER_ROUND, replace=False) for _ in range(rounds)])
        self._order = rng.permutation(60_000)[: rounds * PER_ROUND]
        present = (self.participants[:, :, None] == np.arange(MACHINES)).any(axis=1)
        self.turns = np.take_along_axis(np.cumsum(present, axis=0) - 1, self.participants, axis=1)

    @cached_property
    def pool(self) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of the examples in the order in which they are used."""
        features, labels = mnist.load("train")
        return features[self._order], labels[self._order]

    @cached_property
    def shares(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each machine's own examples, in the order in which it uses them."""
        features, labels = self.pool
        slots = self.participants.ravel()
        return [(features[slots == machine], labels[slots == machine]) for machine in range(MACHINES)]

    @cached_property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        return mnist.load("t10k")

    def accuracy(self, weights: np.ndarray) -> float:
        """Of weights [785, 10] on the test images."""
        features, labels = self.test
        return float(np.mean((features @ weights).argmax(axis=1) == labels))


class Clock:
    """Seconds a round, of those after the warm-up."""

    def __init__(self, rounds: int):
        self.rounds, self.began, self.seconds_per_round = rounds, 0.0, 0.0

    def done(self, round_: int) -> None:
        """Note that a round (from 1) is over."""
        if round_ == WARM_UP:
            self.began = time.perf_counter()
        if round_ == self.rounds:
            self.seconds_per_round = (time.perf_counter() - self.began) / (self.rounds - WARM_UP)


def arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the settings of a job."""
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--noise-std", type=float, default=10.0, help="of each machine's noise, per coordinate")
    parser.add_argument("--step-size", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def from_command_line(description: str | None) -> Job:
    given = arguments(argparse.ArgumentParser(description=description)).parse_args()
    return Job(given.rounds, given.noise_std, given.step_size, given.seed)


def report(library: str, seconds_per_round: float, accuracy: float) -> None:
    """The line of JSON that `compare.py` reads."""
    found = {"version": version(library), "seconds_per_round": seconds_per_round, "test_accuracy": accuracy}
    print(json.dumps(found), flush=True)


def gradient(weights: np.ndarray, feature: np.ndarray, label: int) -> np.ndarray:
    """Of the cross-entropy at one example, [785, 10]: for libraries that leave the model to NumPy."""
    scores = feature @ weights
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    probabilities[label] -= 1
    return np.outer(feature, probabilities)
