"""The pure program of a run, and a run in segments.

`begin` gives the first carry, `evaluated_block` the next one, `finish` the output. In segments, the host calls one
compiled program for some evaluations after another.

Every segment starts from the carry of the one before and ends at an evaluation. The program takes the number of
evaluations as an argument, so results do not depend on the segments. Progress, callbacks and checkpoints stay outside.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedprivjax.engine.hosts import local, replicated, together
from fedprivjax.engine.metric import evaluate
from fedprivjax.engine.pipeline import one_ahead
from fedprivjax.engine.prepare import Arguments, ReadyRun, StaticArguments
from fedprivjax.method.local_rounds import whole_state
from fedprivjax.method.loops import entry, scan_counted, scan_in_chunks
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.seeds import protocol_key, round_keys
from fedprivjax.problem.devices import mapped_with_carry, specs_of
from fedprivjax.problem.program import products, typed_jit

BLOCK = 64  # rounds whose noise is sampled together

Carry = Any  # ((state, state of the noise, sums of scalars of rounds), last noise in the aggregate, state of the draws)


def trajectory(arguments: Arguments, static: StaticArguments):
    """Return (reported parameters, metrics by name, [evaluations] or [evaluations, iterates]): the pure function.

    Products are computed in the precision of `static`. Machines are divided over its mesh, if it has one.
    """
    return with_part_of_carry(arguments, static, lambda carry: ())[1]


def with_part_of_carry(arguments: Arguments, static: StaticArguments, part: Callable[[Carry], Any]) -> tuple[Any, Any]:
    """Return a part of the last carry, which every device of a mesh keeps, and the results of `trajectory`.

    Args:
        part: function of the carry. On a mesh, the leaves of what it returns get a leading axis of devices.
    """

    def run(arguments, _):
        with products(static.precision):
            one, carry = partial(evaluated_block, arguments, static), begin(arguments, static)
            scan = _scan(arguments, static, carry, static.eval_every, run=True)
            carry, values = scan(one, carry, per_round(arguments), static.eval_every)
            return part(carry), (finish(arguments, static, carry), values)

    return run(arguments, ()) if static.mesh is None else mapped_with_carry(run, static.mesh)(arguments, ())


def per_round(arguments: Arguments) -> tuple[Any, Any, Any]:
    """Return the arguments with a leading axis of rounds: inputs, the mechanism's inputs, and host noise."""
    return arguments.inputs, arguments.mechanism.inputs, arguments.host_noise


def begin(arguments: Arguments, static: StaticArguments) -> Carry:
    """Return the carry before the first round."""
    protocol, problem, mechanism, _, _, key = arguments
    dimension = costs_of(protocol).message_dimension(problem)
    draw_state, noise_state = mechanism.init(dimension, key), protocol.rounds.noise_state(dimension, static.size)
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


def _block(static: StaticArguments) -> int:
    """Return the number of rounds whose noise is sampled together."""
    return ceil(static.eval_every / ceil(static.eval_every / BLOCK))


def _scan(arguments: Arguments, static: StaticArguments, carry: Carry, rounds: int, run: bool) -> Callable[..., Any]:
    """Return a scan over chunks of rounds that has one body, or one with unequal chunks if these must not be padded.

    Noise is sampled for padding, too, which changes the state of draws. That does no harm at the end of a run, if the
    mechanism allows it. On an accelerator a step of the loop has several rounds.

    Args:
        rounds: number of rounds of an evaluation.
        run: True for the chunks of a run, its evaluations, and False for those of an evaluation.
    """
    whole = rounds % _block(static) == 0 and (arguments.mechanism.may_pass_end or not run)
    return scan_counted if static.unroll == 1 and (whole or not jax.tree.leaves(carry[-1])) else scan_in_chunks


def evaluated_block(
    arguments: Arguments, static: StaticArguments, carry: Carry, rounds: Any, count: Any = None
) -> tuple[Carry, Any]:
    """Return the carry after some rounds, and the metrics after the last of them by name.

    Args:
        rounds: these rounds' part of `per_round`, leaves [rounds, ...]: those of one evaluation.
        count: number of the first rounds that are computed, or None for all.
    """
    length, known = rounds[0].round.shape[0], () if count is None else (count,)
    scan, block = _scan(arguments, static, carry, length, run=False), _block(static)
    carry, _ = scan(partial(_rounds, arguments, static), carry, rounds, block, *known)
    (state, noise_state, totals), noise, draw_state = carry
    info = jax.tree.map(lambda total: total / (length if count is None else count), totals)
    protocol, problem = arguments.protocol, arguments.problem
    values = evaluate(protocol, problem, whole_state(state, static.size), noise, static.metrics, info)
    return ((state, noise_state, _zeros(static)), noise, draw_state), values


def finish(arguments: Arguments, static: StaticArguments, carry: Carry) -> Any:
    """Return the reported parameters."""
    (state, *_), *_ = carry
    return arguments.protocol.output(whole_state(state, static.size))


def _rounds(
    arguments: Arguments, static: StaticArguments, carry: Carry, rounds: Any, count: Any = None
) -> tuple[Carry, tuple[()]]:
    """Return the carry after a block of rounds whose noise is sampled together, or after its first `count` rounds."""
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
    if count is None:
        (run, after), _ = jax.lax.scan(one_round, begun, steps, unroll=static.unroll)
    else:
        run, after = jax.lax.fori_loop(0, count, lambda k, carry: one_round(carry, entry(steps, k))[0], begun)
    if not carried:
        last = entry((drawn, host_noise), (inputs.round.shape[0] if count is None else count) - 1)
        after = mechanism.aggregate(noise_of(protocol, (), *last)[1])
        if count is not None:
            after = jax.tree.map(partial(jnp.where, count > 0), after, noise)
    return (run, after, draw_state), ()


def noise_of(protocol: Any, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
    """Return the state of a protocol's noise after a round, and the round's noise.

    Args:
        protocol: calibrated protocol.
        state: state of the noise before the round, such as the noise of the previous round.
        drawn: random numbers that the noise mechanism sampled for the round. The protocol computes its noise from these
            numbers. None in a run without noise.
        host_noise: noise of the round that NumPy sampled before the run, or None if there is no such noise.

    Returns:
        The pair (new state, noise). In a run without noise, the pair is (`state`, None).
    """
    return (state, None) if drawn is None else protocol.noise(state, drawn, host_noise)


def _zeros(static: StaticArguments) -> dict[str, jax.Array]:
    """Return the sums, by name, of the scalars of rounds that are recorded, before the first round."""
    return {metric.name: jnp.zeros(()) for metric in static.metrics if metric.of == "info"}


class Done(NamedTuple):
    """State of a run at an evaluation.

    Attributes:
        rounds: number of completed rounds.
        evaluations: number of completed evaluations.
        latest: metrics of the last evaluation by name.
        carry: copy of the carry, or None if none was requested.
        values: copy of the metrics so far by name, [all evaluations, ...], or None.
    """

    rounds: int
    evaluations: int
    latest: Any
    carry: Carry = None
    values: Any = None


class Segments:
    """The segments of one prepared run, whose arguments are put on its devices once."""

    def __init__(self, start: ReadyRun):
        self.static = start.static
        self.arguments = _placed(start.arguments, start.static.mesh)
        self.rounds, self.every = start.static.size.rounds, start.static.eval_every
        self.whole, self.rest = divmod(self.rounds, self.every)
        self.carry, self.values = copied(begin_program(self.arguments, self.static, self.evaluations))

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the whole run."""
        return self.whole + (self.rest > 0)

    def restore(self, carry: Carry, values: Any) -> None:
        """Go on from another carry, with the metrics so far by name, [evaluations so far, ...]."""

        def filled(every: Any, values: Any) -> Any:
            rows = np.array(every)
            rows[: len(values)] = values[: len(rows)]
            return placed_like(rows, every)

        self.carry = copied(carry)
        self.values = copied({name: filled(every, values[name]) for name, every in self.values.items()})

    def run(self, ends: Sequence[int], kept: Callable[[int], bool], first: int = 0) -> Iterator[Done]:
        """Yield the state at some evaluations, with the next segment dispatched.

        Args:
            ends: numbers of completed evaluations at which segments end, ascending, above `first`. The last is that of
                the run.
            kept: function that returns True if the carry and metrics after an evaluation are copied.
            first: number of completed evaluations in the carry.
        """
        for done, _ in one_ahead(lambda places: self._segment(*places, kept(places[1])), _pairs(first, ends)):
            yield done

    def output(self) -> tuple[Any, Any]:
        """Return the reported parameters and the metrics of all evaluations, after the last segment."""
        return finish_program(self.arguments, self.carry, self.static), self.values

    def _segment(self, first: int, end: int, keep: bool) -> Done:
        counts = [(first, min(end, self.whole) - first, self.every), (self.whole, end - self.whole, self.rest)]
        latest = None
        for at, count, length in counts:
            if count > 0:
                places = np.int32(at), np.int32(count)
                self.carry, self.values, latest = advance(
                    self.arguments, self.carry, self.values, *places, self.static, length
                )
        kept = copied((self.carry, self.values)) if keep else (None, None)
        return Done(min(end * self.every, self.rounds), end, local(latest), *kept)


@typed_jit(static_argnames=("static", "evaluations"))
def begin_program(arguments: Arguments, static: StaticArguments, evaluations: int):
    """Return the first carry, and metrics by name for all evaluations, which are zero."""

    def run(arguments, _):
        carry = begin(arguments, static)
        rounds = jax.tree.map(lambda leaf: leaf[: static.eval_every], per_round(arguments))
        each = jax.eval_shape(partial(evaluated_block, arguments, static), carry, rounds)[1]
        values = jax.tree.map(lambda leaf: jnp.zeros((evaluations, *leaf.shape), leaf.dtype), each)
        return _strong(carry), values

    return _on_mesh(run, static)(arguments, ())


@typed_jit(static_argnames=("static", "length"), donate_argnames=("carry", "values"))
def advance(arguments: Arguments, carry: Carry, values: Any, first, count, static: StaticArguments, length: int):
    """Return the carry after some evaluations, all metrics, and those of the last evaluation.

    Args:
        carry, values: carry and metrics so far, which are donated.
        first: number of completed evaluations.
        count: number of evaluations of this segment.
        length: number of rounds of each.
    """

    def run(arguments, carry, values, first, count):
        def one(number, state):
            carry, values, _ = state
            at = (first + number) * static.eval_every
            cut = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, length)  # noqa: E731
            carry, latest = evaluated_block(arguments, static, carry, jax.tree.map(cut, per_round(arguments)))
            values = jax.tree.map(lambda every, value: every.at[first + number].set(value), values, latest)
            return _strong(carry), values, _strong(latest)

        latest = jax.tree.map(lambda every: jnp.zeros(every.shape[1:], every.dtype), values)
        carry, values, latest = jax.lax.fori_loop(0, count, one, (carry, values, latest))
        return carry, (values, latest)

    carry, (values, latest) = _on_mesh(run, static)(arguments, carry, values, first, count)
    return carry, values, latest


@typed_jit(static_argnames="static")
def finish_program(arguments: Arguments, carry: Carry, static: StaticArguments):
    """Return the reported parameters."""
    return _on_mesh(lambda arguments, carry: ((), finish(arguments, static, carry)), static)(arguments, carry)[1]


def copied(values: Any) -> Any:
    """Return copies of arrays, which stay when the originals are donated."""
    return jax.tree.map(jnp.copy, values)


def placed_like(leaf: np.ndarray, like: Any) -> jax.Array:
    """Return a host array on the devices of another array, or on the default device if it has one or none."""
    sharding = getattr(like, "sharding", None)
    several = sharding is not None and len(sharding.device_set) > 1
    return jax.device_put(leaf, sharding) if several else jnp.asarray(leaf)


def _on_mesh(function: Callable[..., Any], static: StaticArguments) -> Callable[..., Any]:
    """Return `function(arguments, carry, …) -> (carry, results)` in the run's precision, on its mesh if it has one."""

    def run(*arguments):
        with products(static.precision):
            return function(*arguments)

    return run if static.mesh is None else mapped_with_carry(run, static.mesh)


def _strong(values: Any) -> Any:
    """Return arrays whose types are not weak, so that a carry has the same types before and after a segment."""
    return jax.tree.map(
        lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf.astype(leaf.dtype), values
    )


def _placed(arguments: Arguments, mesh: Mesh | None) -> Arguments:
    """Return the arguments as arrays on the devices of the run."""
    if mesh is None:
        return jax.device_put(arguments)
    if together(mesh):
        return replicated(jax.tree.map(jnp.asarray, arguments), mesh)
    leaves, tree = jax.tree.flatten(arguments)
    shardings = [NamedSharding(mesh, spec) for spec in specs_of(arguments)]
    return jax.tree.unflatten(tree, [jax.device_put(*one) for one in zip(leaves, shardings, strict=True)])


def _pairs(first: int, ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([first, *ends[:-1]], ends, strict=True)) if ends else []
