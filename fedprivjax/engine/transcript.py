"""The adversary's view of a run by trust model, with every message and every machine's noise materialised."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import known_keywords
from fedprivjax.engine.prepare import Arguments, ReadyRun, ready
from fedprivjax.engine.published import published_plan
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.round import RoundInputs, flat_rows
from fedprivjax.method.seen import adversary_of, costs_of, seen_of, view_of
from fedprivjax.noise import Mechanism
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.seeds import Seeds, protocol_key, round_keys
from fedprivjax.privacy.adversaries import UNSEEN
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.views import FullView
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import by_shapes, products, typed_jit


class Transcript(NamedTuple):
    """Everything that the adversary of the guarantee sees of a run, and the reported parameters.

    A round has `per_round` slots for participants. Some slots are empty if fewer machines take part.

    Attributes:
        queries: parameters at which machines compute gradients; shape [rounds, d] for d parameters. The shape is [0, d]
            if the adversary sees only the final model. With a trusted server, the adversary sees only `queries` and
            `broadcast`.
        messages: noisy message of each participant, [rounds, per_round, coordinates], with 0 in empty slots. With a
            shuffler, the messages of a round are in random order. If the adversary sees only linear functions of a
            round's messages (`LinearAdversary`), the array has the values of these functions; [rounds, functions,
            coordinates]. The first function is the sum of all messages. None if the adversary sees no messages, as with
            a trusted server.
        params: reported parameters.
        plan: public part of the run plan. Secret arrays have width 0. Samples of records are also secret if they would
            reveal numbers of records that the guarantee hides.
        internal: the server's memory after each round, leaves [rounds, ...], with trust "pan-private". The adversary
            reads this memory after one round of its choice. With other trust models, `internal` is ().
        steps: noisy local steps of each participant, [rounds, per_round, steps, d], with 0 in empty slots. None if the
            guarantee does not treat local steps as visible, or if the adversary does not see single messages.
        broadcast: numbers that the server sends after each round in addition to the query, leaves [rounds, ...]. () if
            there are no such numbers, or if the adversary sees only the final model.
    """

    queries: np.ndarray
    messages: np.ndarray | None
    params: Any
    plan: Plan
    internal: Any = ()
    steps: np.ndarray | None = None
    broadcast: Any = ()


@known_keywords
def transcript(
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    delta: float = 1e-5,
    order: str = "shuffled",
) -> Transcript:
    """Run a protocol message by message, and return what the adversary of its guarantee sees.

    `simulate` computes only what the server needs, such as the sum of a round's messages. This function computes every
    machine's message and noise separately.

    The arguments have the same meaning as in `ready`. Messages of d numbers take rounds · per_round · d floats of
    memory. If the adversary sees K local steps of a machine in a round, these steps take K times as much memory in
    addition. With the same seed and `noise_method="materialised"`, `simulate` computes the same iterates.

    >>> import numpy as np
    >>> from fedprivjax import Ball, DPMu2, Softmax, Uniform, linear_problem
    >>> problem = linear_problem(np.eye(6), [0, 1, 0, 1, 0, 1], Softmax(2), constraint=Ball(1.0))
    >>> transcript(DPMu2(mu=1.0, clip=1.0), problem, Uniform(3, 2)).messages.shape
    (3, 2, 12)
    """
    options = {"rounds": rounds, "seed": seed, "delta": delta, "order": order, "metrics": ()}
    start = ready(protocol, problem, participation, noise_method="materialised", **options)
    require_noisy_messages(start)
    state, (queries, (sent, steps), internal, _, broadcast) = replay(start.arguments, start.plan.size, with_local_steps)
    steps = None if steps is None else np.asarray(steps)
    full = FullView(np.asarray(queries), np.asarray(sent), internal, start.seeds.noise, steps)
    seen = view_of(start.protocol, start.problem, start.plan, full)
    if not adversary_of(start.protocol).follows_rounds:
        broadcast = ()
    point = start.protocol.output(state)
    messages = seen_of(start.protocol).reduced(seen.messages)
    return Transcript(seen.queries, messages, point, published_plan(start), seen.internal, seen.steps, broadcast)


def require_noisy_messages(start: ReadyRun) -> None:
    """Raise Refusal unless the mechanism samples the noise of every message that the adversary sees."""
    mechanism, dimension = start.mechanism, costs_of(start.protocol).message_dimension(start.problem)
    silent = start.protocol.noise_std == 0 or mechanism.inside or privacy_of(start.protocol).trust in UNSEEN
    if not silent and not _adds_to_messages(mechanism, dimension, start.key):
        raise Refusal(f"{start.protocol.name}'s noise must be sampled separately for every message of a transcript")


def _adds_to_messages(mechanism: Mechanism, dimension: int, key) -> bool:
    """Return True if the mechanism samples noise for each participant's message."""

    def added(inputs, key):
        memory = mechanism.message_memory(dimension, key)
        return mechanism.message_noise(memory, jax.tree.map(lambda leaf: leaf[0], inputs), key, dimension)[1]

    return jax.eval_shape(added, mechanism.inputs, key) is not None


def released_steps(start: ReadyRun) -> int:
    """Return the number of local steps per participant and round that the guarantee counts as released, or 0."""
    protocol, problem, _, inputs, _, key = start.arguments
    return _released_steps((protocol, replace(problem, excess=None), inputs, key), start.plan.size)


@by_shapes
def _released_steps(parts: tuple[Any, Problem, RoundInputs, Any], size: Size) -> int:
    def of_first_round(protocol, problem, inputs, key):
        state, first = protocol.init(problem, size, key), jax.tree.map(lambda leaf: leaf[0], inputs)
        return flat_steps(problem, seen_of(protocol).noisy_steps(problem, state, first, None, key))

    steps = jax.eval_shape(of_first_round, *parts)
    return 0 if steps is None else steps.shape[1]


def all_messages(directions, inputs: RoundInputs, query: jax.Array, sent: jax.Array, steps: jax.Array | None):
    """Return a round's query and messages, a recorder of `replay`."""
    return query, sent


def with_local_steps(directions, inputs: RoundInputs, query: jax.Array, sent: jax.Array, steps: jax.Array | None):
    """Return a round's query, and (messages, local steps or None), a recorder of `replay`."""
    return query, (sent, steps)


@typed_jit(static_argnames=("size", "record"))
def replay(arguments: Arguments, size: Size, record: Callable[..., Any] = all_messages, directions: Any = ()):
    """Compiled program of a transcript: (last state, views).

    The views have leaves [rounds, ...]: the records of the queries and of the messages, the server's memory, the
    scalars that rounds report, and the other numbers that the server sends.

    Args:
        record: function of the directions, the round's inputs, its query [d], messages [per_round, d] and local steps
            [per_round, steps, d] or None. It returns the records of the query and of the messages.
        directions: arrays that `record` needs.
    """
    protocol = arguments.protocol

    def one_round(carry, step):
        carry, seen = replay_round(arguments, carry, step)
        return carry, (
            *record(directions, step[0], seen.query, seen.sent, seen.steps),
            seen_of(protocol).internal(seen.state),
            seen.info,
            seen_of(protocol).broadcast(seen.state),
        )

    return replay_rounds(arguments, size, one_round)


class ReplayedRound(NamedTuple):
    """Everything that a round of a transcript computes, traced.

    Attributes:
        query: point at which machines are queried, [d].
        sent: noisy message of each participant, [per_round, d].
        steps: noisy local steps, [per_round, steps, d], or None if the guarantee counts messages only.
        noise: the round's noise as `Protocol.round` receives it, or None.
        own_noise: noise of each participant's message, leaves [per_round, ...], or None.
        state: the protocol's state after the round.
        info: scalars of the round by name.
        key: key of the protocol's own randomness in the round.
    """

    query: Any
    sent: Any
    steps: Any
    noise: Any
    own_noise: Any
    state: Any
    info: dict
    key: jax.Array


def replay_rounds(arguments: Arguments, size: Size, one_round: Callable[..., Any]) -> tuple[Any, Any]:
    """Return (last state, outputs of `one_round`) of all rounds, traced; `one_round` calls `replay_round`."""
    protocol, problem, mechanism, inputs, host_noise, key = arguments
    dimension = costs_of(protocol).message_dimension(problem)
    state = protocol.init(problem, size, protocol_key(key))
    noise_state = protocol.rounds.noise_state(dimension, size)
    own_state = noise_state if _adds_to_messages(mechanism, dimension, key) else ()
    own_states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size.machines, *leaf.shape)), own_state)
    memory = mechanism.message_memory(dimension, key)
    carry = state, mechanism.init(dimension, key), noise_state, memory, own_states
    with products():
        (state, *_), views = jax.lax.scan(one_round, carry, (inputs, mechanism.inputs, host_noise))
    return state, views


def replay_round(arguments: Arguments, carry: Any, step: Any) -> tuple[Any, ReplayedRound]:
    """Return the carry after one round, and what the round computed, traced."""
    protocol, problem, mechanism, *_, key = arguments
    dimension = costs_of(protocol).message_dimension(problem)
    state, draw_state, noise_state, memory, own_states = carry
    inputs, draw_inputs, host_noise = step
    own_key = protocol_key(key, inputs.round)
    one = jax.tree.map(lambda leaf: leaf[None], (inputs.round, draw_inputs))
    keys = round_keys(key, one[0])
    query = flat_rows(problem, jax.tree.map(lambda leaf: leaf[None], seen_of(protocol).query(state)))[0]
    draw_state, drawn = mechanism.draw(draw_state, one[1], keys, dimension)
    noise = None
    if drawn is not None:
        noise_state, noise = protocol.noise(noise_state, jax.tree.map(lambda leaf: leaf[0], drawn), host_noise)
    memory, added = mechanism.message_noise(memory, draw_inputs, keys[0], dimension)
    own_states, own_noise = machine_noises(protocol, own_states, inputs.machine, added)
    sent = of_present(inputs, seen_of(protocol).sent(problem, state, inputs, noise, own_noise, own_key))
    steps = flat_steps(problem, seen_of(protocol).noisy_steps(problem, state, inputs, noise, own_key))
    steps = None if steps is None else of_present(inputs, steps)
    state, info = protocol.round(problem, state, inputs, noise, own_key)
    carry = state, draw_state, noise_state, memory, own_states
    return carry, ReplayedRound(query, sent, steps, noise, own_noise, state, info, own_key)


def of_present(inputs: RoundInputs, rows: jax.Array) -> jax.Array:
    """Return a round's rows [per_round, ...] with 0 in empty slots."""
    if inputs.present is None:
        return rows
    return jnp.where(inputs.present.reshape(-1, *[1] * (rows.ndim - 1)) > 0, rows, 0)


def flat_steps(problem: Problem, steps: Any) -> jax.Array | None:
    """Return local steps as vectors [per_round, steps, d], from leaves [per_round, steps, ...], or None if none."""
    return None if steps is None else jax.vmap(lambda rows: flat_rows(problem, rows))(steps)


def machine_noises(protocol: Protocol, states: Any, machine, added: Any) -> tuple[Any, Any]:
    """Return the machines' new noise states, and each participant's noise, leaves [per_round, ...], or None.

    Args:
        states: noise state of every machine, leaves [machines, ...].
        added: samples of the participants, leaves [per_round, ...], or None.
    """
    if added is None:
        return states, None
    own = jax.tree.map(lambda leaf: leaf[machine], states)
    own, noise = jax.vmap(lambda state, drawn: protocol.noise(state, drawn, None))(own, added)
    return jax.tree.map(lambda leaf, new: leaf.at[machine].set(new), states, own), noise
