"""Simulation of one run: the whole protocol as one jitted scan over pure state."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedprivjax.checks.keywords import known_keywords
from fedprivjax.engine.fingerprint import require_equal_runs
from fedprivjax.engine.finished_run import Run
from fedprivjax.engine.hosts import local, replicated
from fedprivjax.engine.iterates import by_iterate, evaluate, iterate_names
from fedprivjax.engine.metrics import MetricLike, non_private
from fedprivjax.engine.precision import FLOAT32, products
from fedprivjax.engine.prepare import Arguments, ReadyRun, StaticArguments, evaluation_rounds, ready
from fedprivjax.engine.progress import OnProgress, progress_callback
from fedprivjax.engine.progress_callbacks import registered, report
from fedprivjax.method.interface import Protocol
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds, protocol_key, round_keys
from fedprivjax.problem.devices import mapped, on_first_device
from fedprivjax.problem.predictor import predictor_of
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit

BLOCK = 64  # rounds whose noise is sampled together


@known_keywords
def simulate(
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    metrics: Sequence[MetricLike] | None = None,
    eval_every: int | None = None,
    delta: float = 1e-5,
    order: str = "shuffled",
    noise_method: str = "auto",
    progress: bool | OnProgress | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    precision: str = FLOAT32,
) -> Run:
    """Run one protocol on one problem. The other arguments are those of `ready`.

    Args:
        progress: True displays the completed rounds and the time left at every evaluation. A callable is called with
            (completed rounds, total rounds). Progress needs a separate program with a host callback, which jax does not
            store in its persistent cache.

    After `jax.distributed.initialize()`, a mesh with the devices of all processes divides the run over them. All
    processes make the same call and get the results.

    Raises:
        Refusal: the settings are invalid. Nothing has been compiled yet.

    >>> from fedprivjax import Ball, DPMu2, Full, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> run = simulate(DPMu2(mu=8.0, clip=1.6), problem, Full(20), seed=1, eval_every=71)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.7), round(run.guarantee.epsilon, 1)
    (True, 65.3)
    """
    options = {"rounds": rounds, "seed": seed, "metrics": metrics, "eval_every": eval_every, "delta": delta}
    options |= {"order": order, "noise_method": noise_method, "mesh": mesh, "precision": precision}
    start = ready(protocol, problem, participation, **options)
    with progress_callback(progress, start.protocol.name, "rounds") as on_progress:
        return execute(start, on_progress)


def execute(start: ReadyRun, on_progress: OnProgress | None = None) -> Run:
    """Execute a prepared run.

    Args:
        on_progress: progress callback, called with (completed rounds, total rounds) at every evaluation.
    """
    require_equal_runs(start)
    began = perf_counter()
    params, values = local(jax.block_until_ready(_computed(start, on_progress)))
    costs = start.costs | {"seconds": perf_counter() - began}
    iterates = by_iterate(start.static.metrics, iterate_names(start.protocol, start.problem, start.plan.size), values)
    rounds = evaluation_rounds(start.static)
    private = non_private(start.problem, start.static.metrics)
    return Run(
        rounds=rounds,
        iterates=iterates,
        params=params,
        guarantee=start.guarantee,
        costs=costs,
        method=str(start.protocol),
        predictor=predictor_of(start.problem),
        protocol=start.protocol,
        plan=start.plan,
        non_private_metrics=private,
        non_private_data=start.problem.not_covered,
    )


def _computed(start: ReadyRun, on_progress: OnProgress | None):
    arguments = replicated(start.arguments, start.static.mesh)
    if on_progress is None:
        return run_program(arguments, start.static)
    total = start.static.size.rounds
    with registered(lambda done: on_progress(done, total)) as callback:
        return jax.block_until_ready(run_program(arguments, start.static, np.int32(callback)))


@typed_jit(static_argnames="static")
def run_program(arguments: Arguments, static: StaticArguments, callback=None):
    """Compiled program of one run, see `trajectory`."""
    return trajectory(arguments, static, callback)


def trajectory(arguments: Arguments, static: StaticArguments, callback=None):
    """Return (reported parameters, metrics by name, [evaluations] or [evaluations, iterates]): the pure function.

    Products are computed in the precision of `static`. Machines are divided over its mesh, if it has one.

    Args:
        callback: number of the progress callback, which gets the completed rounds at every evaluation, or None.
    """

    def run(arguments):
        with products(static.precision):
            return _trajectory(arguments, static, callback)

    return run(arguments) if static.mesh is None else mapped(run, static.mesh)(arguments)


def _trajectory(arguments: Arguments, static: StaticArguments, callback):
    protocol, problem, mechanism, inputs, host_noise, key = arguments
    dimension = protocol.message_dimension(problem)
    block = ceil(static.eval_every / ceil(static.eval_every / BLOCK))
    draw_state, noise_state = mechanism.init(dimension, key), protocol.noise_state(dimension, static.size)
    if jax.tree.leaves(noise_state) and not _draws(arguments, draw_state):
        noise_state = ()
    # noise without state is computed from a block's last sample; noise with state is carried from round to round
    carried = bool(jax.tree.leaves(noise_state))
    zeros = {metric.name: jnp.zeros(()) for metric in static.metrics if metric.of == "info"}

    def noise_of(state, drawn, host_noise):
        return (state, None) if drawn is None else protocol.noise(state, drawn, host_noise)

    def one_round(carry, step):
        (state, noise_state, totals), _ = carry
        inputs, drawn, host_noise = step
        noise_state, noise = noise_of(noise_state, drawn, host_noise)
        state, info = protocol.round(problem, state, inputs, noise, protocol_key(key, inputs.round))
        totals = {name: total + info[name] for name, total in totals.items()}
        return ((state, noise_state, totals), mechanism.aggregate(noise) if carried else None), None

    def one_block(carry, rounds):
        (run, noise, draw_state), (inputs, draw_inputs, host_noise) = carry, rounds
        draw_state, drawn = mechanism.draw(draw_state, draw_inputs, round_keys(key, inputs.round), dimension)
        begun, steps = (run, noise if carried else None), (inputs, drawn, host_noise)
        (run, noise), _ = jax.lax.scan(one_round, begun, steps, unroll=static.unroll)
        if not carried:
            last = jax.tree.map(lambda leaf: leaf[-1], (drawn, host_noise))
            noise = mechanism.aggregate(noise_of((), *last)[1])
        return (run, noise, draw_state), ()

    def one_segment(carry, rounds):
        carry, _ = scan_in_chunks(one_block, carry, rounds, block)
        (state, noise_state, totals), noise, draw_state = carry
        info = jax.tree.map(lambda total: total / rounds[0].round.shape[0], totals)
        values = evaluate(protocol, problem, protocol.whole_state(state, static.size), noise, static.metrics, info)
        if callback is not None:
            told = partial(report, callback, rounds[0].round[-1], ordered=static.mesh is None)
            told() if static.mesh is None else jax.lax.cond(on_first_device(), told, lambda: None)
        return ((state, noise_state, zeros), noise, draw_state), values

    def first_noise():
        rounds = jax.tree.map(lambda leaf: leaf[:1], (inputs, mechanism.inputs, host_noise))
        return one_block((run, jnp.zeros(dimension), draw_state), rounds)[0][1]

    run = protocol.init(problem, static.size, protocol_key(key)), noise_state, zeros
    noise = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(first_noise))
    carry = run, noise, draw_state
    ((state, *_), *_), values = scan_in_chunks(
        one_segment, carry, (inputs, mechanism.inputs, host_noise), static.eval_every
    )
    return protocol.output(protocol.whole_state(state, static.size)), values


def _draws(arguments: Arguments, draw_state: Any) -> bool:
    """Return True if the mechanism samples any noise."""
    mechanism, dimension = arguments.mechanism, arguments.protocol.message_dimension(arguments.problem)
    first = jax.tree.map(lambda leaf: leaf[:1], (mechanism.inputs, arguments.inputs.round))
    keys = round_keys(arguments.key, first[1])
    return jax.eval_shape(lambda: mechanism.draw(draw_state, first[0], keys, dimension)[1]) is not None
