"""Reference runs of every method, by method and case: small data, and variants that change a method's mathematics."""

from collections.abc import Callable, Mapping
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
    """

    settings: Mapping[str, Any]
    participation: Participation = PARTIAL
    data: str = POOL
    given: tuple[str, ...] = ()
    rounds: int = ROUNDS
    noise: bool = True

    def ready(self, method: type) -> ReadyRun:
        """Return the prepared run of a method, with noise that is sampled for every message."""
        quiet = {"noise_std": 0.0} if "noise_std" in self.settings else {}
        settings = dict(self.settings) if self.noise else {**self.settings, **quiet}
        options = {"rounds": self.rounds, "seed": SEED, "delta": DELTA, "metrics": (), "noise_method": "materialised"}
        return ready(method(**settings), problem(self.data), self.participation, **options)


def both(cases: Mapping[str, Case], *quiet: str) -> dict[str, Case]:
    """Return the cases, and those of the names in `quiet` also without noise, by name."""
    return {**cases, **{f"{name}-no-noise": replace(cases[name], noise=False) for name in quiet}}


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


def dp_mu2() -> dict[str, Case]:
    """Return the cases of DP-μ²-FL."""
    trusted = {**INCREMENTS, "noise_std": 0.3, "trust": "server"}
    return both(
        {
            "partial": Case(INCREMENTS),
            "full": Case(INCREMENTS, FULL),
            "gap": Case({**INCREMENTS, "noise_schedule": "gap"}),
            "correlated": Case({**INCREMENTS, "noise_schedule": "toeplitz"}),
            "fresh-noise": Case({**INCREMENTS, "cancel": False}),
            "dropouts": Case(INCREMENTS, RANDOM_SIZE),
            "batch": Case({**INCREMENTS, "batch": 2}),
            "no-clip": Case({"noise_std": 0.5, "step_size": 0.1}),
            "server-partial": Case(trusted),
            "server-full": Case({**trusted, "step_size": 0.2}, FULL),  # reaches the boundary of the ball
        },
        "partial",
        "full",
    )


def noisy_sgd() -> dict[str, Case]:
    """Return the cases of noisy SGD."""
    clipped = {**NUMBERS, "clip": 0.6}
    return both(
        {
            "partial": Case(clipped),
            "full": Case({**clipped, "step_size": 0.5}, FULL),  # reaches the boundary of the ball
            "average": Case({**clipped, "average": True}),
            "dropouts": Case(clipped, RANDOM_SIZE),
            "batch": Case({**clipped, "batch": 2}),
            "no-clip": Case(NUMBERS),
            "server": Case({**clipped, "noise_std": 0.2, "trust": "server"}),
            "adam": Case({**clipped, "server": ADAM}),
        },
        "partial",
        "adam",
    )


def stale_momentum() -> dict[str, Case]:
    """Return the cases of stale momentum."""
    return both(
        {
            "partial": Case(INCREMENTS),
            "full": Case(INCREMENTS, FULL),
            "batch": Case({**INCREMENTS, "batch": 2}),
            "sequence": Case({**INCREMENTS, "noise_schedule": tuple(1.0 + k / 4 for k in range(ROUNDS))}),
        },
        "partial",
        "full",
    )


def noisy_minibatch_sgd() -> dict[str, Case]:
    """Return the cases of minibatch SGD over machines' own records."""
    subset = {**NUMBERS, "clip": 0.6, "batch": 3, "sampler": "subset"}
    each = {**subset, "batch": 1}
    return both(
        {
            "subset": Case(subset, data=OWN),
            "replacement": Case({**subset, "sampler": "replacement"}, data=OWN),
            "poisson": Case({**subset, "sampler": "poisson"}, data=OWN),
            "full-batches": Case({**subset, "sampler": "full", "batch": None}, FULL, data=UNEQUAL),
            "disjoint": Case({**each, "sampler": "disjoint"}, data=OWN),
            "dropouts": Case(subset, RANDOM_SIZE, data=OWN),
            "strongly-convex": Case({**subset, "strong_convexity": 0.1}, data=OWN),
            "shuffler": Case({**each, "trust": "shuffler"}, data=OWN),
            "window": Case({**subset, "window": 3}, data=OWN),
            "adam": Case({**subset, "server": ADAM}, data=OWN),
        },
        "subset",
        "full-batches",
    )


def accelerated_minibatch_sgd() -> dict[str, Case]:
    """Return the cases of accelerated minibatch SGD."""
    clipped = {**NUMBERS, "clip": 0.6, "batch": 3, "sampler": "subset"}
    return both(
        {
            "partial": Case(clipped, data=OWN),
            "full": Case(clipped, FULL, data=OWN),
            "poisson": Case({**clipped, "sampler": "poisson"}, data=OWN),
        },
        "partial",
        "full",
    )


def _local(extra: dict) -> dict[str, Case]:
    """Return the cases of a method with local steps whose noise protects a record or a machine."""
    plain = {"local_epochs": 2, "batch": 2, "step_size": 0.3}
    record = {**plain, "unit": "record", "clip": 0.6, "noise_std": 0.2}
    machine = {**plain, "unit": "machine", "update_clip": 0.4, "noise_std": 0.1}
    steps = {"local_steps": 3, "batch": 3, "step_size": 0.3, "unit": "record", "clip": 0.6, "noise_std": 0.2}
    return both(
        {
            "plain": Case(plain, data=OWN, noise=False),
            "unequal": Case({**plain, "local_epochs": 1}, data=UNEQUAL, noise=False),
            "record": Case(record, data=OWN),
            "poisson-steps": Case({**steps, "sampler": "poisson"}, data=OWN),
            "machine": Case(machine, data=OWN),
            "machine-local": Case({**machine, "trust": "none"}, data=OWN),
            "adaptive-clip": Case({**machine, "update_clip": AdaptiveClip(start=0.3), "noise_std": 1.0}, data=OWN),
            "dropouts": Case(machine, RANDOM_SIZE, data=OWN),
            "quantised": Case({**plain, "encoder": Quantiser(4)}, data=OWN, noise=False, given=("messages",)),
        }
        | {name: Case({**plain, **settings}, data=OWN, noise=False) for name, settings in extra.items()},
        "record",
        "machine",
    )


def fedavg() -> dict[str, Case]:
    """Return the cases of FedAvg."""
    cases = _local({"adam": {"server": ADAM, "server_step": 0.1}})
    machine = {"local_epochs": 1, "batch": 2, "step_size": 0.3, "unit": "machine", "update_clip": 0.4}
    cases.pop("machine-no-noise")
    return {**cases, "tree": Case({**machine, "noise_std": 0.1, "noise_schedule": "tree"}, data=OWN)}


def scaffold() -> dict[str, Case]:
    """Return the cases of SCAFFOLD."""
    return _local({"prox": {"prox": 0.5}})


def local_sgd() -> dict[str, Case]:
    """Return the cases of local SGD with one record a step."""
    clipped = {**NUMBERS, "clip": 0.6, "batch": 3, "noise_std": 0.2}
    return both(
        {
            "partial": Case(clipped, data=OWN),
            "full": Case(clipped, FULL, data=OWN),
            "disjoint": Case({**clipped, "sampler": "disjoint", "batch": 2}, data=OWN, rounds=4),
            "dropouts": Case(clipped, RANDOM_SIZE, data=OWN),
            "adam": Case({**clipped, "server": ADAM, "server_step": 0.1}, data=OWN),
        },
        "partial",
        "adam",
    )


def _users() -> dict[str, Case]:
    """Return the cases of sums over users: the sums of bits are given, because rounding is random."""
    clipped = {**NUMBERS, "clip": 0.6}
    return both(
        {
            "none": Case({**clipped, "trust": "none"}),
            "server": Case({**clipped, "trust": "server"}),
            "pan-private": Case({**clipped, "trust": "pan-private"}),
            "bits": Case({**clipped, "noise_std": 3.0, "trust": "shuffler", "levels": 4}, given=("messages",)),
        },
        "none",
    )


def _momentum() -> dict[str, Case]:
    """Return the cases of momentum with tree noise: the reported iterate is chosen at random, so it is given."""
    clipped = {**NUMBERS, "clip": 0.6, "batch": 2, "alpha": 0.5}
    reported = {"data": OWN, "given": ("params",)}
    return both(
        {
            "server": Case(clipped, FULL, **reported),
            "none": Case({**clipped, "trust": "none"}, FULL, **reported),
            "reshuffled": Case({**clipped, "sampler": "reshuffled"}, FULL, **reported),
        },
        "server",
    )


def tree_momentum() -> dict[str, Case]:
    """Return the cases of tree momentum."""
    cases = _momentum()
    base = cases["server"]
    factors = ("sensitivity tree", "independent")
    return cases | {
        name.replace(" ", "-"): replace(base, settings={**base.settings, "factor": name}) for name in factors
    }


def reduced_tree_momentum() -> dict[str, Case]:
    """Return the cases of reduced tree momentum."""
    cases = {name: case for name, case in _momentum().items() if name != "reshuffled"}
    base = cases["server"]
    return cases | {"paper-allocation": replace(base, settings={**base.settings, "allocation": "paper"})}


def released_minibatch_sgd() -> dict[str, Case]:
    """Return the cases of the released minibatch SGD."""
    clipped = {**NUMBERS, "clip": 0.6, "batch": 3, "sampler": "subset"}
    message = {**clipped, "clip_at": "message"}
    return both(
        {
            "mean": Case(clipped, data=OWN),
            "sum": Case({**clipped, "aggregate": "sum"}, data=OWN),
            "message-clip": Case({**message, "sampler": "replacement"}, data=OWN),
        },
        "mean",
    )


def released_local_sgd() -> dict[str, Case]:
    """Return the cases of the released local SGD."""
    clipped = {**NUMBERS, "clip": 0.6, "batch": 3, "noise_std": 0.2}
    return both({"partial": Case(clipped, data=OWN), "full": Case(clipped, FULL, data=OWN)}, "partial")


CASES: dict[str, Callable[[], dict[str, Case]]] = {
    "dp_mu2": dp_mu2,
    "noisy_sgd": noisy_sgd,
    "stale_momentum": stale_momentum,
    "noisy_minibatch_sgd": noisy_minibatch_sgd,
    "accelerated_minibatch_sgd": accelerated_minibatch_sgd,
    "fedavg": fedavg,
    "scaffold": scaffold,
    "local_sgd": local_sgd,
    "user_sgd": _users,
    "user_agd": _users,
    "tree_momentum": tree_momentum,
    "reduced_tree_momentum": reduced_tree_momentum,
    "released_minibatch_sgd": released_minibatch_sgd,
    "released_local_sgd": released_local_sgd,
}
