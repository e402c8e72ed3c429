"""The job that every library does: noisy SGD on softmax regression over MNIST, with one schedule for all.

    w ← w − step_size·(1/m)·Σ_{i∈S} (∇f(w; z_i) + N(0, noise_std²·I))        from w = 0, d = 7850, no constraint

A round's m = 50 participants are a random half of M = 100 machines; each sends one message, of one example of its own
that it has not used before. Without noise, all libraries must reach the same weights; with it, weights of the same law.
"""

import argparse
import json
import time
from functools import cached_property, lru_cache
from importlib.metadata import version
from typing import NamedTuple

import mnist
import numpy as np

MACHINES, PER_ROUND, CLASSES, FEATURES = 100, 50, 10, 785
WARM_UP = 5  # rounds that are not timed
MOST_ROUNDS = 60_000 // PER_ROUND


class Settings(NamedTuple):
    """What a run is asked for.

    Attributes:
        noise_std: of each machine's noise, per coordinate.
        seed: of the schedule, the examples' order, and the noise.
    """

    rounds: int
    noise_std: float
    step_size: float
    seed: int


class Job:
    """A run's settings, who takes part in it, and on which example.

    Attributes:
        participants: each round's machines, [rounds, 50].
        turns: how often each of them took part before, [rounds, 50]: which of its own examples it uses.
    """

    def __init__(self, settings: Settings):
        rounds = settings.rounds
        if not WARM_UP < rounds <= MOST_ROUNDS:
            raise SystemExit(f"rounds must lie in {WARM_UP + 1}..{MOST_ROUNDS}, got {rounds}")
        self.settings = settings
        rng = np.random.default_rng(settings.seed)
        self.participants = np.array([rng.choice(MACHINES, PER_ROUND, replace=False) for _ in range(rounds)])
        self._order = rng.permutation(MOST_ROUNDS * PER_ROUND)[: rounds * PER_ROUND]
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


class Clock:
    """Seconds a round, of those after the warm-up."""

    def __init__(self, rounds: int):
        self.rounds, self.began, self.seconds_per_round = rounds, 0.0, 0.0

    def done(self, rounds: int) -> None:
        """Note that so many rounds are over."""
        if rounds == WARM_UP:
            self.began = time.perf_counter()
        if rounds == self.rounds:
            self.seconds_per_round = (time.perf_counter() - self.began) / (self.rounds - WARM_UP)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser of a job's settings."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--noise-std", type=float, default=10.0, help="of each machine's noise, per coordinate")
    parser.add_argument("--step-size", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def from_command_line(description: str | None) -> Job:
    return Job(Settings(**vars(arguments(description).parse_args())))


def report(library: str, seconds_per_round: float, weights: np.ndarray) -> None:
    """Print the line of JSON that `compare.py` reads; weights are [785, 10]."""
    features, labels = mnist.load("t10k")
    found = {
        "version": version(library),
        "seconds_per_round": seconds_per_round,
        "test_accuracy": float(np.mean((features @ weights).argmax(axis=1) == labels)),
        "norm": float(np.linalg.norm(weights)),
    }
    print(json.dumps(found), flush=True)


def gradient(weights: np.ndarray, feature: np.ndarray, label: int) -> np.ndarray:
    """Of the cross-entropy at one example, [785, 10]: for libraries that leave the model to NumPy."""
    scores = feature @ weights
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    probabilities[label] -= 1
    return np.outer(feature, probabilities)


def noisy_step(settings: Settings, weights: np.ndarray, t: int, machine: int) -> np.ndarray:
    """A machine's weights after its step of round t (from 1): for libraries whose clients run in other processes."""
    job = _of_this_process(settings)
    turn = job.turns[t - 1, int(np.flatnonzero(job.participants[t - 1] == machine)[0])]
    features, labels = job.shares[machine]
    message = gradient(weights, features[turn], labels[turn])
    if settings.noise_std:
        rng = np.random.default_rng([settings.seed, t, machine])
        message += np.float32(settings.noise_std) * rng.standard_normal(message.shape, np.float32)
    return weights - np.float32(settings.step_size) * message


_of_this_process = lru_cache(maxsize=1)(Job)  # a client's process reads the data once
