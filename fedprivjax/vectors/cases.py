"""Reference runs of every method, by method and case: small data, and variants that change a method's mathematics."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.encoders import Quantiser
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.plan.participation import Dropouts, Full, Participation, Uniform
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.problem import Problem

MACHINES, PER_ROUND, RECORDS, FEATURES, CLASSES, ROUNDS = 6, 3, 8, 5, 3, 8
RADIUS, DELTA, SEED = 1.0, 1e-5, 11
PARTIAL, FULL = Uniform(MACHINES, PER_ROUND), Full(MACHINES)
POOL, OWN, UNEQUAL = "pool", "machines", "unequal"
NUMBERS = {"noise_std": 0.4, "step_size": 0.1}
RANDOM_SIZE = Dropouts(PARTIAL, 0.3)
ADAM = ServerOptimizer("adam", b1=0.8, b2=0.9)
INCREMENTS = {"noise_std": 0.5, "step_size": 0.1, "clip": 0.6}
TRUSTED = {**INCREMENTS, "noise_std": 0.3, "trust": "server"}
CLIPPED = {**NUMBERS, "clip": 0.6}
SUBSET = {**CLIPPED, "batch": 3, "sampler": "subset"}
SINGLE = {**SUBSET, "batch": 1}
LOCAL_SGD = {**CLIPPED, "batch": 3, "noise_std": 0.2}


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
        noise: False for the same run without noise.
        silent: True to record the run without noise, too.
    """

    settings: Mapping[str, Any]
    participation: Participation = PARTIAL
    data: str = POOL
    given: tuple[str, ...] = ()
    rounds: int = ROUNDS
    noise: bool = True
    silent: bool = False

    def ready(self, method: type) -> ReadyRun:
        """Return the prepared run of a method, with noise that is sampled for every message."""
        quiet = {"noise_std": 0.0} if "noise_std" in self.settings and not self.noise else {}
        options = {"rounds": self.rounds, "seed": SEED, "delta": DELTA, "metrics": (), "noise_method": "materialised"}
        return ready(method(**{**self.settings, **quiet}), problem(self.data), self.participation, **options)


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


def with_silent(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the cases, and those that are `silent` also without noise, by name."""
    silent = {
        f"{name}-no-noise": replace(case, noise=False, silent=False) for name, case in cases.items() if case.silent
    }
    return {**cases, **silent}


# methods with local steps whose noise protects a record or a machine
PASSES = {"local_epochs": 2, "batch": 2, "step_size": 0.3}
STEPS = {"local_steps": 3, "batch": 3, "step_size": 0.3}
OF_RECORD = {"unit": "record", "clip": 0.6, "noise_std": 0.2}
OF_MACHINE = {**PASSES, "unit": "machine", "update_clip": 0.4, "noise_std": 0.1}
LOCAL = {
    "plain": Case(PASSES, data=OWN, noise=False),
    "unequal": Case({**PASSES, "local_epochs": 1}, data=UNEQUAL, noise=False),
    "record": Case({**PASSES, **OF_RECORD}, data=OWN, silent=True),
    "poisson-steps": Case({**STEPS, **OF_RECORD, "sampler": "poisson"}, data=OWN),
    "machine": Case(OF_MACHINE, data=OWN),
    "machine-local": Case({**OF_MACHINE, "trust": "none"}, data=OWN),
    "adaptive-clip": Case({**OF_MACHINE, "update_clip": AdaptiveClip(start=0.3), "noise_std": 1.0}, data=OWN),
    "dropouts": Case(OF_MACHINE, RANDOM_SIZE, data=OWN),
    "quantised": Case({**PASSES, "encoder": Quantiser(4)}, data=OWN, noise=False, given=("messages",)),
}
USERS = {  # the sums of bits are given, because rounding is random
    "none": Case({**CLIPPED, "trust": "none"}, silent=True),
    "server": Case({**CLIPPED, "trust": "server"}),
    "pan-private": Case({**CLIPPED, "trust": "pan-private"}),
    "bits": Case({**CLIPPED, "noise_std": 3.0, "trust": "shuffler", "levels": 4}, given=("messages",)),
}
# momentum with tree noise: the reported iterate is chosen at random, so it is given
MOMENTUM = {**CLIPPED, "batch": 2, "alpha": 0.5}
REPORTED = Case(MOMENTUM, FULL, data=OWN, given=("params",))
TREES = {"server": replace(REPORTED, silent=True), "none": replace(REPORTED, settings={**MOMENTUM, "trust": "none"})}
METHODS: dict[str, Mapping[str, Case]] = {
    "dp_mu2": {
        "partial": Case(INCREMENTS, silent=True),
        "full": Case(INCREMENTS, FULL, silent=True),
        "gap": Case({**INCREMENTS, "noise_schedule": "gap"}),
        "correlated": Case({**INCREMENTS, "noise_schedule": "toeplitz"}),
        "fresh-noise": Case({**INCREMENTS, "cancel": False}),
        "dropouts": Case(INCREMENTS, RANDOM_SIZE),
        "batch": Case({**INCREMENTS, "batch": 2}),
        "no-clip": Case({"noise_std": 0.5, "step_size": 0.1}),
        "server-partial": Case(TRUSTED),
        "server-full": Case({**TRUSTED, "step_size": 0.2}, FULL),  # reaches the boundary of the ball
    },
    "noisy_sgd": {
        "partial": Case(CLIPPED, silent=True),
        "full": Case({**CLIPPED, "step_size": 0.5}, FULL),  # reaches the boundary of the ball
        "average": Case({**CLIPPED, "average": True}),
        "dropouts": Case(CLIPPED, RANDOM_SIZE),
        "batch": Case({**CLIPPED, "batch": 2}),
        "no-clip": Case(NUMBERS),
        "server": Case({**CLIPPED, "noise_std": 0.2, "trust": "server"}),
        "adam": Case({**CLIPPED, "server": ADAM}, silent=True),
    },
    "stale_momentum": {
        "partial": Case(INCREMENTS, silent=True),
        "full": Case(INCREMENTS, FULL, silent=True),
        "batch": Case({**INCREMENTS, "batch": 2}),
        "sequence": Case({**INCREMENTS, "noise_schedule": tuple(1.0 + k / 4 for k in range(ROUNDS))}),
    },
    "noisy_minibatch_sgd": {
        "subset": Case(SUBSET, data=OWN, silent=True),
        "replacement": Case({**SUBSET, "sampler": "replacement"}, data=OWN),
        "poisson": Case({**SUBSET, "sampler": "poisson"}, data=OWN),
        "full-batches": Case({**SUBSET, "sampler": "full", "batch": None}, FULL, data=UNEQUAL, silent=True),
        "disjoint": Case({**SINGLE, "sampler": "disjoint"}, data=OWN),
        "dropouts": Case(SUBSET, RANDOM_SIZE, data=OWN),
        "strongly-convex": Case({**SUBSET, "strong_convexity": 0.1}, data=OWN),
        "shuffler": Case({**SINGLE, "trust": "shuffler"}, data=OWN),
        "window": Case({**SUBSET, "window": 3}, data=OWN),
        "adam": Case({**SUBSET, "server": ADAM}, data=OWN),
    },
    "accelerated_minibatch_sgd": {
        "partial": Case(SUBSET, data=OWN, silent=True),
        "full": Case(SUBSET, FULL, data=OWN, silent=True),
        "poisson": Case({**SUBSET, "sampler": "poisson"}, data=OWN),
    },
    "fedavg": {
        **with_silent({**LOCAL, "adam": Case({**PASSES, "server": ADAM, "server_step": 0.1}, data=OWN, noise=False)}),
        "tree": Case({**OF_MACHINE, "local_epochs": 1, "noise_schedule": "tree"}, data=OWN),
    },
    "scaffold": {
        **LOCAL,
        "machine": replace(LOCAL["machine"], silent=True),
        "prox": Case({**PASSES, "prox": 0.5}, data=OWN, noise=False),
    },
    "local_sgd": {
        "partial": Case(LOCAL_SGD, data=OWN, silent=True),
        "full": Case(LOCAL_SGD, FULL, data=OWN),
        "disjoint": Case({**LOCAL_SGD, "sampler": "disjoint", "batch": 2}, data=OWN, rounds=4),
        "dropouts": Case(LOCAL_SGD, RANDOM_SIZE, data=OWN),
        "adam": Case({**LOCAL_SGD, "server": ADAM, "server_step": 0.1}, data=OWN, silent=True),
    },
    "user_sgd": USERS,
    "user_agd": USERS,
    "tree_momentum": {
        **with_silent({**TREES, "reshuffled": replace(REPORTED, settings={**MOMENTUM, "sampler": "reshuffled"})}),
        "sensitivity-tree": replace(REPORTED, settings={**MOMENTUM, "factor": "sensitivity tree"}),
        "independent": replace(REPORTED, settings={**MOMENTUM, "factor": "independent"}),
    },
    "reduced_tree_momentum": {
        **with_silent(TREES),
        "paper-allocation": replace(REPORTED, settings={**MOMENTUM, "allocation": "paper"}),
    },
    "released_minibatch_sgd": {
        "mean": Case(SUBSET, data=OWN, silent=True),
        "sum": Case({**SUBSET, "aggregate": "sum"}, data=OWN),
        "message-clip": Case({**SUBSET, "clip_at": "message", "sampler": "replacement"}, data=OWN),
    },
    "released_local_sgd": {
        "partial": Case(LOCAL_SGD, data=OWN, silent=True),
        "full": Case(LOCAL_SGD, FULL, data=OWN),
    },
}
CASES = {method: with_silent(cases) for method, cases in METHODS.items()}
