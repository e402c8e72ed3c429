"""The pure program of a run: `begin` gives the first carry, `evaluated_block` the next one, `finish` the output."""

from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.engine.compiled import products
from fedprivjax.engine.metric import evaluate
from fedprivjax.engine.prepare import Arguments, StaticArguments
from fedprivjax.method.local_rounds import whole_state
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.seeds import protocol_key, round_keys
from fedprivjax.problem.devices import mapped

BLOCK = 64  # rounds whose noise is sampled together

Carry = Any  # ((state, state of the noise, sums of scalars of rounds), last noise in the aggregate, state of the draws)


def trajectory(arguments: Arguments, static: StaticArguments):
    """Return (reported parameters, metrics by name, [evaluations] or [evaluations, iterates]): the pure function.

    Products are computed in the precision of `static`. Machines are divided over its mesh, if it has one.
    """

    def run(arguments):
        with products(static.precision):
            one = partial(evaluated_block, arguments, static)
            carry, values = scan_in_chunks(one, begin(arguments, static), per_round(arguments), static.eval_every)
            return finish(arguments, static, carry), values

    return run(arguments) if static.mesh is None else mapped(run, static.mesh)(arguments)


def per_round(arguments: Arguments) -> tuple[Any, Any, Any]:
    """Return the arguments with a leading axis of rounds: inputs, the mechanism's inputs, and host noise."""
    return arguments.inputs, arguments.mechanism.inputs, arguments.host_noise


def begin(arguments: Arguments, static: StaticArguments) -> Carry:
    """Return the carry before the first round."""
    protocol, problem, mechanism, _, _, key = arguments
    dimension = costs_of(protocol).message_dimension(problem)
    draw_state, noise_state = mechanism.init(dimension, key), protocol.noise_state(dimension, static.size)
    if jax.tree.leaves(noise_state) and jax.eval_shape(lambda: first_sample(arguments, draw_state)[0]) is None:
        noise_state = ()
    run = protocol.init(problem, static.size, protocol_key(key)), noise_state, _zeros(static)

    def first_noise():
        return mechanism.aggregate(noise_of(protocol, noise_state, *first_sample(arguments, draw_state))[1])

    noise = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(first_noise))
    return run, noise, draw_state


def first_sample(arguments: Arguments, draw_state: Any) -> tuple[Any, Any]:
    """Return the mechanism's sample of the first round, or None if it samples no noise, and the round's host noise."""
    dimension = costs_of(arguments.protocol).message_dimension(arguments.problem)
    inputs, draw_inputs, host_noise = jax.tree.map(lambda leaf: leaf[:1], per_round(arguments))
    _, drawn = arguments.mechanism.draw(draw_state, draw_inputs, round_keys(arguments.key, inputs.round), dimension)
    return jax.tree.map(lambda leaf: leaf[0], (drawn, host_noise))


def evaluated_block(arguments: Arguments, static: StaticArguments, carry: Carry, rounds: Any) -> tuple[Carry, Any]:
    """Return the carry after some rounds, and the metrics after the last of them by name.

    Args:
        rounds: these rounds' part of `per_round`, leaves [rounds, ...]: those of one evaluation.
    """
    block = ceil(static.eval_every / ceil(static.eval_every / BLOCK))
    carry, _ = scan_in_chunks(partial(_rounds, arguments, static), carry, rounds, block)
    (state, noise_state, totals), noise, draw_state = carry
    info = jax.tree.map(lambda total: total / rounds[0].round.shape[0], totals)
    protocol, problem = arguments.protocol, arguments.problem
    values = evaluate(protocol, problem, whole_state(state, static.size), noise, static.metrics, info)
    return ((state, noise_state, _zeros(static)), noise, draw_state), values


def finish(arguments: Arguments, static: StaticArguments, carry: Carry) -> Any:
    """Return the reported parameters."""
    (state, *_), *_ = carry
    return arguments.protocol.output(whole_state(state, static.size))


def _rounds(arguments: Arguments, static: StaticArguments, carry: Carry, rounds: Any) -> tuple[Carry, tuple[()]]:
    """Return the carry after a block of rounds whose noise is sampled together."""
    protocol, problem, mechanism, *_, key = arguments
    (run, noise, draw_state), (inputs, draw_inputs, host_noise) = carry, rounds
    # noise without state is computed from a block's last sample; noise with state is carried from round to round
    carried = bool(jax.tree.leaves(run[1]))

    def one_round(carry, step):
        (state, noise_state, totals), _ = carry
        inputs, drawn, host_noise = step
        noise_state, noise = noise_of(protocol, noise_state, drawn, host_noise)
        state, info = protocol.round(problem, state, inputs, noise, protocol_key(key, inputs.round))
        totals = {name: total + info[name] for name, total in totals.items()}
        return ((state, noise_state, totals), mechanism.aggregate(noise) if carried else None), None

    keys = round_keys(key, inputs.round)
    draw_state, drawn = mechanism.draw(draw_state, draw_inputs, keys, costs_of(protocol).message_dimension(problem))
    begun, steps = (run, noise if carried else None), (inputs, drawn, host_noise)
    (run, noise), _ = jax.lax.scan(one_round, begun, steps, unroll=static.unroll)
    if not carried:
        last = jax.tree.map(lambda leaf: leaf[-1], (drawn, host_noise))
        noise = mechanism.aggregate(noise_of(protocol, (), *last)[1])
    return (run, noise, draw_state), ()


def noise_of(protocol: Any, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
    """Return the state of the noise after a round, and the round's noise, or None if no noise is drawn."""
    return (state, None) if drawn is None else protocol.noise(state, drawn, host_noise)


def _zeros(static: StaticArguments) -> dict[str, jax.Array]:
    """Return the sums, by name, of the scalars of rounds that are recorded, before the first round."""
    return {metric.name: jnp.zeros(()) for metric in static.metrics if metric.of == "info"}
