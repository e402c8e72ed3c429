"""Metrics of the models that machines hold in gossip: their distance from the mean, and their mean and worst scores."""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.chunked_sums import outcomes
from fedprivjax.engine.metric import (
    Metric,
    Snapshot,
    as_losses,
    needs_classes,
    needs_test,
    never,
    not_negative,
    share,
)
from fedprivjax.method.round import flat_rows
from fedprivjax.method.seen import seen_of
from fedprivjax.problem.problem import Problem


def consensus_distance(problem: Problem, snapshot: Snapshot) -> jax.Array:
    """Return √((1/n)·Σ_i ‖x_i − x̄‖²) of the machines' models x_i with mean x̄."""
    rows = flat_rows(problem, snapshot.models)
    return jnp.sqrt(jnp.mean(jnp.sum(jnp.square(rows - jnp.mean(rows, axis=0, keepdims=True)), axis=1)))


def scores(problem: Problem, snapshot: Snapshot) -> tuple[jax.Array, jax.Array]:
    """Return the test loss and the test accuracy of every machine's model, [machines] each, computed once for all."""
    shared = {} if snapshot.shared is None else snapshot.shared
    if "models" not in shared:
        shared["models"] = jax.lax.map(lambda model: outcomes(problem, Snapshot(model), "test"), snapshot.models)
    return shared["models"]


LOSS: dict[str, Any] = {"of": "models", "private": never, "default": False, "needs": needs_test, "limits": as_losses}
RIGHT: dict[str, Any] = {
    **LOSS,
    "needs": lambda problem: needs_test(problem) or needs_classes(problem),
    "limits": share,
    "unit": "%",
    "digits": 1,
    "better": "higher",
    "shown": ("table",),
}
MODEL_METRICS = (
    Metric(
        "consensus_distance",
        consensus_distance,
        of="models",
        private=never,
        default=False,
        limits=not_negative,
        shown=("table", "over_rounds"),
    ),
    Metric("models_loss", lambda problem, snapshot: jnp.mean(scores(problem, snapshot)[0]), **LOSS),
    Metric("worst_model_loss", lambda problem, snapshot: jnp.max(scores(problem, snapshot)[0]), **LOSS),
    Metric("models_accuracy", lambda problem, snapshot: jnp.mean(scores(problem, snapshot)[1]), **RIGHT),
    Metric("worst_model_accuracy", lambda problem, snapshot: jnp.min(scores(problem, snapshot)[1]), **RIGHT),
)


def require_models(protocol: Any, metrics: tuple[Metric, ...]) -> None:
    """Raise Refusal if a metric of machines' models is recorded of a protocol whose machines hold none."""
    named = [metric.name for metric in metrics if metric.of == "models"]
    if named and not seen_of(protocol).holds_models:
        raise Refusal(
            f"metric {named[0]!r} must be of machines that hold models, got {protocol.name}. Use DSGD or Gossip"
        )
