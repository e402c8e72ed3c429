"""Arrays of one run by name: inputs, noise, messages and states of every round, from the run's transcript."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.engine.prepare import Arguments, ReadyRun
from fedprivjax.engine.transcript import flat_steps, of_present, replay_round, replay_rounds, require_noisy_messages
from fedprivjax.method.local_rounds import ClientState
from fedprivjax.method.mean_rounds import ComposedState
from fedprivjax.method.round import flat_rows
from fedprivjax.method.seen import costs_of, seen_of
from fedprivjax.method.work_rounds import ServedState
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit

NOWHERE = -1  # machine of an empty slot, record that is not used


def recorded(start: ReadyRun) -> dict[str, np.ndarray]:
    """Return the arrays of a prepared run by name, those of a round with a leading axis [rounds].

    The noise must be sampled separately for every message (`noise_method="materialised"`).

    Raises:
        Refusal: if the noise of single messages is not sampled.
    """
    require_noisy_messages(start)
    arrays = jax.tree.map(np.asarray, _program(start.arguments, start.plan.size))
    return plan_arrays(start) | {name: array for name, array in arrays.items() if array.size}


def plan_arrays(start: ReadyRun) -> dict[str, np.ndarray]:
    """Return the schedule, the record indices and the first parameters of a run."""
    plan, schedule = start.plan, start.plan.schedule
    shape = (*schedule.present.shape, *[1] * (plan.samples.ndim - 2))
    used = np.broadcast_to(schedule.present.reshape(shape), plan.samples.shape)
    if plan.weights is not None:
        used = used & (np.asarray(plan.weights) != 0)
    arrays = {
        "participants": np.where(schedule.present, schedule.participants, NOWHERE).astype(np.int32),
        "records": np.where(used, plan.samples, NOWHERE).astype(np.int32),
        "start": _flat(start.problem, start.problem.start),
    }
    if schedule.dropped is not None:
        arrays["scheduled"] = np.where(schedule.scheduled, schedule.participants, NOWHERE).astype(np.int32)
    if plan.weights is not None:
        arrays["weights"] = np.where(used, plan.weights, 0).astype(np.float32)
    return arrays


@typed_jit(static_argnames=("size",))
def _program(arguments: Arguments, size: Size) -> dict[str, Any]:
    """Compiled program of the arrays that the rounds compute, by name."""
    protocol, problem = arguments.protocol, arguments.problem
    dimension = costs_of(protocol).message_dimension(problem)

    def one_round(carry, step):
        inputs, before = step[0], carry[0]
        carry, seen = replay_round(arguments, carry, step)
        steps = seen_of(protocol).step_noises(problem, before, inputs, seen.noise, seen.key)
        arrays = {"query": seen.query, "messages": seen.sent, "params": _flat(problem, protocol.output(seen.state))}
        if seen.steps is not None:
            arrays["local_steps"] = seen.steps
        arrays |= _noise(seen, dimension, problem.dimension)
        rows = flat_steps(problem, steps)
        if rows is not None:
            arrays["step_noise"] = of_present(inputs, rows)
        for name, point in protocol.iterates(seen.state).items():
            arrays[f"iterate.{name}"] = _flat(problem, point)
        arrays |= {f"info.{name}": value for name, value in seen.info.items()}
        return carry, arrays | _state(seen.state)

    return replay_rounds(arguments, size, one_round)[1]


def _noise(seen: Any, *dimensions: int) -> dict[str, Any]:
    """Return a round's noise: that of the messages if machines add it, otherwise that of the server."""
    whole = seen.noise if seen.own_noise is None else seen.own_noise
    named = _named("server_noise" if seen.own_noise is None else "message_noise", whole)
    return {name: leaf for name, leaf in named.items() if jnp.ndim(leaf) and leaf.shape[-1] in dimensions}


def _state(state: Any) -> dict[str, Any]:
    """Return the arrays of a state by name. The parts of a composed protocol's state are one state of its method."""
    if isinstance(state, ComposedState):
        parts = [("state", state.server), ("state", state.memory)]
    elif isinstance(state, ClientState) and isinstance(state.server, ServedState):
        served = state.server
        parts = [("state.server", served.server), ("state.server.clip", served.clip), ("state.own", state.own)]
    else:
        parts = [("state", state)]
    return {name: leaf for prefix, part in parts for name, leaf in _named(prefix, part).items()}


def _named(prefix: str, tree: Any) -> dict[str, Any]:
    """Return the arrays of a pytree, by the names of fields that lead to them; keys of random numbers are left out."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(filter(None, [prefix, jax.tree_util.keystr(path, simple=True, separator=".")])): leaf
        for path, leaf in leaves
        if not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    }


def _flat(problem: Problem, params: Any) -> Any:
    """Return parameters as one vector [d]."""
    return flat_rows(problem, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], params))[0]
