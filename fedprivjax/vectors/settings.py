"""Settings of small reference runs: data, and the variants of every method that change its mathematics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Full, Participation, Uniform
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.problem import Problem

MACHINES, PER_ROUND, RECORDS, FEATURES, CLASSES, ROUNDS = 6, 3, 8, 5, 3, 8
RADIUS, DELTA, SEED = 1.0, 1e-5, 11
PARTIAL, FULL = Uniform(MACHINES, PER_ROUND), Full(MACHINES)
POOL, OWN, UNEQUAL = "pool", "machines", "unequal"


@dataclass(frozen=True)
class Case:
    """One reference run.

    Attributes:
        settings: settings of the method, noise and step size included.
        participation: participation scheme.
        data: "pool" for records that all machines share, "machines" for 8 records of each machine, "unequal" for
            unequal numbers of records.
        given: recorded quantities that contain random choices without an array of their own. A checker passes them to
            an implementation instead of comparing them.
        rounds: number of rounds.
    """

    settings: Mapping[str, Any]
    participation: Participation = PARTIAL
    data: str = POOL
    given: tuple[str, ...] = ()
    rounds: int = ROUNDS
    noise: bool = field(default=True)

    def ready(self, method: type) -> ReadyRun:
        """Return the prepared run of a method, with noise that is sampled for every message."""
        quiet = {"noise_std": 0.0} if "noise_std" in self.settings else {}
        settings = dict(self.settings) if self.noise else {**self.settings, **quiet}
        options = {"rounds": self.rounds, "seed": SEED, "delta": DELTA, "metrics": (), "noise_method": "materialised"}
        return ready(method(**settings), problem(self.data), self.participation, **options)

    def without_noise(self) -> "Case":
        """Return the same run without noise."""
        return replace(self, noise=False)


def both(cases: Mapping[str, Case], *quiet: str) -> dict[str, Case]:
    """Return the cases, and those of the names in `quiet` also without noise, by name."""
    return {**cases, **{f"{name}-no-noise": cases[name].without_noise() for name in quiet}}


@cache
def problem(data: str) -> Problem:
    """Return softmax regression on a ball, with 48 records of 5 features and 3 classes."""
    features, labels = records()
    rows = partition(data)
    owned = {} if rows is None else {"partition_table": rows}
    return linear_problem(features, labels, Softmax(CLASSES), feature_bound=1.0, constraint=Ball(RADIUS), **owned)


def partition(data: str) -> Any:
    """Return the records of every machine, int [machines, most], -1 where there is none; None for a shared pool."""
    if data == POOL:
        return None
    rows = np.arange(MACHINES * RECORDS).reshape(MACHINES, RECORDS)
    if data == OWN:
        return rows
    most = np.arange(MACHINES) + 3  # 3 to 8 records
    return np.where(np.arange(RECORDS) < most[:, None], rows, -1)


@cache
def records() -> tuple[np.ndarray, np.ndarray]:
    """Return features, float32 [48, 5] of norm at most 1, and labels, int32 [48]."""
    rng = np.random.default_rng(SEED)
    count = MACHINES * RECORDS
    features = rng.normal(size=(count, FEATURES))
    features *= rng.uniform(0.6, 1.0, (count, 1)) / np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.argmax(features @ rng.normal(size=(FEATURES, CLASSES)) + rng.gumbel(size=(count, CLASSES)) / 4, axis=1)
    return features.astype(np.float32), labels.astype(np.int32)
