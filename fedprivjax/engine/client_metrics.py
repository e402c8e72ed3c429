"""Metrics of every client on its own test examples: values of all clients, and their mean, worst tenth and spread.

They are computed on private data of each client, so no guarantee covers them. No rule of a server and no plan reads
them.
"""

from math import ceil
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedprivjax.engine.chunked_sums import by_weight, client_means, outcome
from fedprivjax.engine.metric import Metric, Snapshot, always, as_losses, needs_classes, not_negative, share
from fedprivjax.problem.problem import Problem

CLIENT = "client"  # axis of the values of all clients
MANY = 3  # largest number of clients that a refusal names
ACCURACY: dict[str, Any] = {"better": "higher", "limits": share, "unit": "%", "digits": 1}
LOSS: dict[str, Any] = {"better": "lower", "limits": as_losses}
SHOWN: dict[str, Any] = {"shown": ("table", "against_epsilon")}


def client_outcomes(problem: Problem, snapshot: Snapshot, own: bool) -> tuple[Any, Any]:
    """Return the mean loss and the accuracy of every client's test examples; shape [clients] each.

    The model is the client's own if `own` is True, else the reported one. The accuracy is None for regression. Both are
    computed once for all metrics of a `Snapshot`.
    """
    shared, key = {} if snapshot.shared is None else snapshot.shared, f"{CLIENT} {own}"
    personal = snapshot.personal if own else None
    if key not in shared:
        result = outcome(problem)

        def of_one(example, client):
            return result(snapshot.params if personal is None else personal(client), example)

        shared[key] = by_weight(client_means(problem, of_one, 0 if personal is None else problem.dimension))
    return shared[key]


def worst_tenth(values, better: str):
    """Return the mean of the worst tenth of the values, rounded up to whole clients.

    >>> float(worst_tenth(jnp.arange(11.0), "higher")), float(worst_tenth(jnp.arange(11.0), "lower"))
    (0.5, 9.5)
    """
    ordered = jnp.sort(values if better == "higher" else -values)
    worst = jnp.mean(ordered[: ceil(values.shape[0] / 10)])
    return worst if better == "higher" else -worst


def needs_clients(problem: Problem) -> str | None:
    """Return the requirement of metrics of every client that the problem does not meet, or None."""
    if problem.test is None or problem.test_clients is None:
        return "the client of every test example (test_machine_of)"
    bare = np.flatnonzero(np.asarray(problem.test_clients.counts) == 0)
    if not bare.size:
        return None
    known = problem.partition_table is not None
    names = [problem.machine_name(one) if known else f"client {one}" for one in bare[:MANY].tolist()]
    more = f" and {bare.size - MANY} more" if bare.size > MANY else ""
    remedy = "Hold out more rows, such as by test_fraction, or leave these clients out"
    return f"test examples of every client, got none of {', '.join(names)}{more}. {remedy}"


def _family(name: str, kind: dict[str, Any], *, own: bool = False) -> list[Metric]:
    """Return the metric of all clients' values, and their mean, median, worst tenth and variance."""
    place = int(kind is ACCURACY)

    def values(problem: Problem, snapshot: Snapshot) -> Any:
        return client_outcomes(problem, snapshot, own)[place]

    better = kind["better"]

    def needs(problem: Problem) -> str | None:
        return needs_clients(problem) or (needs_classes(problem) if place else None)

    facts: dict[str, Any] = {"needs": needs, "private": always, "default": False, "of": "own" if own else "params"}
    spread: dict[str, Any] = {"limits": not_negative, "digits": 5}
    return [
        Metric(name, values, **facts, **kind, axis=CLIENT),
        Metric(f"{name}_mean", lambda *of: jnp.mean(values(*of)), **facts, **kind, **SHOWN),
        Metric(f"{name}_median", lambda *of: jnp.median(values(*of)), **facts, **kind),
        Metric(f"{name}_worst_tenth", lambda *of: worst_tenth(values(*of), better), **facts, **kind, **SHOWN),
        Metric(f"{name}_variance", lambda *of: jnp.var(values(*of)), **facts, **spread),
    ]


CLIENT_METRICS = (
    *_family("client_test_accuracy", ACCURACY),
    *_family("client_test_loss", LOSS),
    *_family("personal_accuracy", ACCURACY, own=True),
    *_family("personal_loss", LOSS, own=True),
)
