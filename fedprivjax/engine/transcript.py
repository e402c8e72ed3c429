"""What an adversary sees of a run: every message of every machine, or the query points of a trusted server."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.engine.simulate import as_leaves, round_inputs
from fedprivjax.noise import Cancelling, PerMachine, PerStep, Silent
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.plan import Plan, Seeds, as_seeds, draw_plan
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import flat_rows, messages


class Transcript(NamedTuple):
    """The adversary's view, and the run's reported point for comparison with the trajectory.

    Attributes:
        queries: the points machines are asked about, [rounds, d]: the whole view under a trusted server.
        messages: what each participant sends, noise included, [rounds, per_round, d], each round's in a random order
            behind a shuffler; None under a trusted server.
        params: the reported point.
        plan: the public schedule, with the samples only where these are no secret.
    """

    queries: np.ndarray
    messages: np.ndarray | None
    params: Any
    plan: Plan


def transcript(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    delta: float = 1e-5,
    order: str = "shuffled",
) -> Transcript:
    """Run a protocol with every message and every machine's noise written out (rounds · per_round · d floats).

    With `noise_method="materialised"` and the same seed, `simulate` follows the same trajectory.

    >>> import numpy as np
    >>> from fedprivjax import Ball, DPMu2, Softmax, Uniform, linear_problem
    >>> problem = linear_problem(np.eye(6), [0, 1, 0, 1, 0, 1], Softmax(2), constraint=Ball(1.0))
    >>> transcript(DPMu2(mu=1.0, clip=1.0), problem, Uniform(3, 2)).messages.shape
    (3, 2, 12)
    """
    seeds = as_seeds(seed)
    sampling = getattr(protocol, "sampling", None)
    plan = draw_plan(problem, participation, rounds, seeds, order=order, sampling=sampling)
    ready = calibrate(protocol, problem, plan, delta=delta)
    source = Silent() if ready.noise_std == 0 else ready.noise(problem, plan, "materialised")
    state, (queries, sent) = _replay(
        as_leaves(ready), problem, source, round_inputs(plan), jax.random.key(seeds.noise), plan.size
    )
    seen = _visible(ready.trust, np.asarray(sent), seeds)
    return Transcript(np.asarray(queries), seen, ready.output(state), plan.public)


def _visible(trust: str, sent: np.ndarray, seeds: Seeds) -> np.ndarray | None:
    if trust == "server":
        return None
    if trust == "none":
        return sent
    order = np.random.default_rng([seeds.noise, 3]).permuted(np.tile(np.arange(sent.shape[1]), (len(sent), 1)), axis=1)
    return np.take_along_axis(sent, order[:, :, None], axis=1)


def _replay(protocol, problem: Problem, source, inputs, key, size):
    dimension = problem.dimension
    written_out = isinstance(source, PerMachine | Cancelling)

    def one_round(carry, step):
        state, noise_state, memory = carry
        inputs, noise_inputs = step
        round_key = jax.random.fold_in(key, inputs.round)
        query = flat_rows(problem, jax.tree.map(lambda leaf: leaf[None], protocol.query(state)))[0]
        noise_state, block = source.block(
            noise_state, jax.tree.map(lambda x: x[None], noise_inputs), round_key[None], dimension
        )
        noise = jax.tree.map(lambda leaf: leaf[0], block)
        if isinstance(source, PerStep):  # noise is inside what a machine computes
            sent = flat_rows(problem, protocol.messages(problem, state, inputs, noise))
        else:
            sent = flat_rows(problem, _unperturbed(protocol, problem, state, inputs))
        if isinstance(source, PerMachine | Cancelling):
            memory, own = source.message_noise(memory, noise_inputs, round_key, dimension)
            sent = sent + protocol.noise_std * own
        state = protocol.round(problem, state, inputs, noise)
        return (state, noise_state, memory), (query, sent)

    memory = source.init_memory(dimension) if written_out else ()
    carry = protocol.init(problem, size), source.init(dimension, key), memory
    (state, _, _), views = jax.lax.scan(one_round, carry, (inputs, source.inputs))
    return state, views


def _unperturbed(protocol, problem: Problem, state, inputs):
    """The participants' messages without noise, written out, leaves [per_round, ...]."""
    if hasattr(protocol, "messages"):
        return protocol.messages(problem, state, inputs)
    machine = protocol.machine(state, inputs.round.astype(jnp.float32))
    examples = problem.take(inputs.samples, inputs.machine)
    return jax.vmap(lambda vector: vector.written_out())(messages(problem, machine, examples))
