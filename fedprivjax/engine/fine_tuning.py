"""Local fine-tuning: models of clients after a few steps of their own from shared parameters, and their test values.

They are computed without noise from a client's own records, so no guarantee covers them. A client may see its own.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_positive
from fedprivjax.engine.client_metrics import client_outcomes, needs_clients
from fedprivjax.engine.metric import Snapshot
from fedprivjax.method.local_data import Minibatch
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit


class FineTuned(NamedTuple):
    """Models of all clients, and their values on each client's test examples, in the order of the machines.

    Attributes:
        models: parameters, leaves [clients, ...].
        loss: mean test losses, float32 [clients].
        accuracy: test accuracies, float32 [clients], or None for regression.
    """

    models: Any
    loss: np.ndarray
    accuracy: np.ndarray | None


def fine_tuned(params: Any, problem: Problem, *, steps: int, step_size: float) -> FineTuned:
    """Fine-tune shared parameters for each client, and return the models with their test results.

    Every client starts at the shared parameters and takes projected gradient steps. A step follows the negative mean
    gradient over all training records of the client. A client without training records keeps the shared parameters.

    **Privacy.** No guarantee covers the models, losses and accuracies: they are private data of each client.

    Args:
        params: shared parameters, such as `run.params`.
        problem: problem whose training records are partitioned over machines. Each machine is a client. Every client
            must also have test examples (`test_machine_of`).
        steps: number of steps. With 0, the shared parameters themselves are tested.
        step_size: step size.

    Returns:
        Models, mean test losses and test accuracies, each with a first axis of clients. For regression, the accuracies
        are None.

    Raises:
        Refusal: if the problem has no partition of the training records, or a client has no test examples. Also if
            `params` has other shapes than the problem's parameters, or if `steps` or `step_size` is invalid.

    >>> from fedprivjax import FedAvg, Full, datasets, from_dataset, simulate
    >>> data = datasets.load("digits")
    >>> rows, owners = np.arange(1420).reshape(20, 71), np.arange(len(data.test_labels)) % 20
    >>> problem = from_dataset(data, partition_table=rows, test_machine_of=owners)
    >>> run = simulate(FedAvg(local_epochs=1, batch=10, step_size=0.02), problem, Full(20), rounds=5)
    >>> fine_tuned(run.params, problem, steps=5, step_size=0.02).accuracy.shape
    (20,)
    """
    require_at_least("steps", steps, 0)
    require_positive("step_size", step_size)
    missing = needs_clients(problem)
    if problem.partition_table is None or missing is not None:
        raise Refusal(f"problem must have {missing or 'records of each machine (partition_table)'} for fine-tuning")
    shapes = [jax.tree.map(np.shape, each) for each in (params, problem.start)]
    if shapes[0] != shapes[1]:
        raise Refusal(f"params must have the shapes of the problem's start, {shapes[1]}, got {shapes[0]}")
    rows = jnp.asarray(problem.partition_table.rows)
    models, (loss, accuracy) = _tuned(
        replace(problem.traced, excess=None), params, rows, jnp.int32(steps), jnp.float32(step_size)
    )
    return FineTuned(*jax.tree.map(np.asarray, (models, loss, accuracy)))


@typed_jit
def _tuned(problem: Problem, params: Any, rows: Any, steps: Any, step_size: Any) -> Any:
    """Return the clients' models, and what `client_outcomes` returns of them."""

    def step(minibatch: Minibatch, _: Any, w: Any) -> Any:
        moved = jax.tree.map(lambda w, g: w - step_size * g, w, minibatch.gradient(w))
        return problem.constraint.project(moved)

    def one(inputs: tuple[Any, Any]) -> Any:
        machine, mine = inputs
        held = Minibatch(problem, jnp.maximum(mine, 0), jnp.float32(mine >= 0), machine, 0)
        return jax.lax.fori_loop(0, steps, partial(step, held), jax.tree.map(jnp.asarray, params))

    models = jax.lax.map(one, (jnp.arange(rows.shape[0]), rows))
    snapshot = Snapshot(params, personal=lambda client: jax.tree.map(lambda leaf: leaf[client], models))
    return models, client_outcomes(problem, snapshot, own=True)
