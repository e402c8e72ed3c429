"""Properties of releases: messages keep their bound, machines are isolated, the server sees only what is released."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf, nan
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.interpreters.partial_eval import dce_jaxpr

from fedprivjax.method.gossip import Gossip
from fedprivjax.method.seen import seen_of
from fedprivjax.noise import PerStep
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.privacy.adversaries import UNSEEN
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.relations import vectors_changed
from fedprivjax.privacy.terms import RECORD
from fedprivjax.problem.random_keys import random_key
from fedprivjax.testing.trial import Trial, first_noise

COMPUTED = "records are computed when they are used, and cannot be replaced"
ROUNDING = 1e-4  # relative, of a norm in float32
LARGE, HUGE, EXTREME = (1e3,), (1e3, 1e20), (1e3, 1e20, inf, nan)  # factors on records
FAR = (0.0, 1.0, inf)  # scales of random changes of the server's state
QUICKLY_COMPILED = {"xla_backend_optimization_level": 0}


def no_message_exceeds_its_bound(trial: Trial) -> str | None:
    """Check by brute force that messages of the first round are no longer than the noise is calibrated for.

    The server's state is random, and records contain large numbers, infinity and NaN. With noise in local steps, the
    norms of steps are checked instead.

    Returns:
        The reason why the property does not apply, or None.
    """
    if not trial.problem.stored:
        return COMPUTED
    bounds = _bounds(trial)
    if not np.isfinite(bounds).all():
        return "the event states no finite sensitivity"
    first, rng = _first_messages(trial, bounded=_bounded_before(trial)), np.random.default_rng(trial.seed)
    for scale in FAR:
        state = _changed(first.state, scale, rng)
        for factor, pool in _pools(first.pool, _factors(trial), rng):
            norms = np.linalg.norm(np.asarray(first.rows(pool, state), float), axis=1)
            worst = int(np.argmax(np.where(np.isnan(norms), inf, norms / np.maximum(bounds, 1e-30))))
            assert norms[worst] <= bounds[worst] * (1 + ROUNDING) + 1e-30, (
                f"a message's norm must be at most {bounds[worst]:.4g}, the bound of the stated sensitivity, got "
                f"{norms[worst]:.4g} for records times {factor}. Bound the whole message, or state a larger sensitivity"
            )
    return None


def machines_are_isolated(trial: Trial) -> str | None:
    """Check that a change of one machine's data changes no bit of other messages.

    If machines take their records from a shared dataset, a single record is changed.

    Returns:
        The reason why the property does not apply, or None.
    """
    if not trial.problem.stored:
        return COMPUTED
    start, rng = trial.start, np.random.default_rng(trial.seed)
    first = _first_messages(trial, bounded=False)
    table, inputs = start.problem.partition_table, jax.tree.map(lambda leaf: leaf[0], start.inputs)
    slot = int(np.argmax(inputs.filled))
    own = np.unique(inputs.samples[slot] if table is None else table.rows[inputs.machine[slot]])
    own = own[own >= 0]
    others = ~np.isin(inputs.samples.reshape(len(inputs.samples), -1), own).any(axis=1)
    for scale in FAR[:2]:
        state = _changed(first.state, scale, rng)
        before = np.asarray(first.rows(first.pool, state))
        after = np.asarray(first.rows(_replaced(first.pool, own, _factors(trial)[-1]), state))
        assert np.array_equal(before[others], after[others], equal_nan=True), (
            f"other data of machine {inputs.machine[slot]} must change no other machine's message, and did by up to "
            f"{np.nanmax(np.abs(after[others] - before[others])):.3g}. Compute a message from its machine's records"
        )
    return None


def released_numbers_determine_the_server(trial: Trial) -> str | None:
    """Check that the server's states after two rounds depend on data only through the released numbers.

    For two datasets, the server is given the same fixed numbers in place of the mean of messages, or of every noisy
    local step. The states, points and queries of the two runs must then be equal.
    """
    arguments, size = jax.tree.map(jnp.asarray, trial.start.arguments), trial.start.plan.size
    protocol = _with(arguments.protocol, _ReplayedSteps if _in_steps(trial) else _ReplayedMeans)
    noise = _silent_noise(trial)

    def servers(pool):
        problem = replace(arguments.problem, pool=pool)
        state, seen = protocol.init(problem, size, protocol_key(arguments.key)), []
        for t in range(min(2, size.rounds)):
            inputs = jax.tree.map(lambda leaf, t=t: leaf[t], arguments.inputs)
            state, _ = protocol.round(problem, state, inputs, noise, protocol_key(arguments.key, t + 1))
            points = seen_of(protocol).query(state), protocol.output(state), protocol.iterates(state)
            seen.append((_of_server(state), *points))
        return seen

    pool = arguments.problem.pool
    program = jax.make_jaxpr(servers)(pool).jaxpr
    if not any(dce_jaxpr(program, True)[1]):
        return None
    compiled = jax.jit(servers, compiler_options=QUICKLY_COMPILED)
    one, other = (compiled(data) for data in (pool, _replaced(pool, slice(None), LARGE[0])))
    same = jax.tree.map(lambda left, right: np.array_equal(left, right, equal_nan=True), one, other)
    assert all(jax.tree.leaves(same)), (
        "the server's states must follow from the released numbers, and other records with the same releases change "
        "them. Compute them in serve, from what it receives"
    )
    return None


# ---- messages of the first round


class FirstMessages(NamedTuple):
    """Messages of a trial's first round, without their noise.

    Attributes:
        rows: compiled function of all records and the server's state. It returns float32 [per_round, numbers].
        pool: the problem's records.
        state: state before the first round.
    """

    rows: Callable[[Any, Any], jax.Array]
    pool: Any
    state: Any


@lru_cache(maxsize=2)
def _first_messages(trial: Trial, *, bounded: bool) -> FirstMessages:
    """Return the first round's messages or, if `bounded`, those numbers of machines to which the bound applies."""
    arguments = jax.tree.map(jnp.asarray, trial.start.arguments)  # a program may close over these
    protocol = _with_bounded(arguments.protocol, trial) if bounded else arguments.protocol
    inputs, noise = jax.tree.map(lambda leaf: leaf[0], arguments.inputs), _silent_noise(trial)

    def rows(pool, state):
        problem = replace(arguments.problem, pool=pool)
        sent = seen_of(protocol).messages(problem, state, inputs, noise, protocol_key(arguments.key, 1))
        return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(sent)], axis=1)

    state = protocol.init(arguments.problem, trial.start.plan.size, protocol_key(arguments.key))
    state = jax.tree.map(jnp.asarray, state)
    return FirstMessages(jax.jit(rows, compiler_options=QUICKLY_COMPILED), arguments.problem.pool, state)


def _silent_noise(trial: Trial) -> Any:
    """Return a round's noise of scale 0, as `Protocol.round` receives it in a private run."""

    def zeros(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(random_key(0), leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype)

    size = trial.start.plan.size
    noise = jax.eval_shape(lambda arguments: first_noise(arguments, size)[2], trial.start.arguments)
    return jax.tree.map(zeros, noise)


def _bounds(trial: Trial) -> np.ndarray:
    """Return the bound on every message of the first round, [per_round], from the sensitivity of a machine's release.

    A record moves a message by a part of its bound, so that the message has that part for each of its records.
    """
    start, plan = trial.start, trial.start.plan
    protocol: Any = start.protocol
    event = protocol.rounds.event(start.problem, plan)  # whatever hides the messages besides their own noise
    one = event.sensitivity / vectors_changed(event.terms.relation)
    if event.terms.trust in UNSEEN:
        private = privacy_of(protocol)
        if not private.shows_clipping:  # an adaptive clip is that of the sum
            one *= plan.schedule.divisor
        if event.mus is None:  # unit of the sensitivity
            one *= private.server_noise(plan)
    weights = start.inputs.weights
    if event.terms.unit != RECORD or weights is None:
        return np.full(plan.size.per_round, one)
    if _in_steps(trial):
        steps = protocol.minibatches.cut(weights.shape[2])
        return one * np.count_nonzero(weights[0].reshape(weights.shape[1], steps, -1), axis=2).max(axis=1)
    return one * np.abs(weights[0]).sum(axis=1) / np.abs(weights).max()


def _bounded_before(trial: Trial) -> bool:
    """Return True if a message is computed from numbers that are bounded, in local steps or before an encoder."""
    protocol: Any = trial.start.protocol
    encodes = getattr(protocol.privacy, "encoder", None) is not None
    return _in_steps(trial) or (encodes and privacy_of(protocol).trust == "none")


def _in_steps(trial: Trial) -> bool:
    """Return True if the noise is in every local step."""
    return isinstance(trial.start.mechanism, PerStep) and trial.start.event.terms.unit == RECORD


# ---- other algorithms in a protocol


@struct.dataclass
class _Around:
    """An algorithm with some functions replaced."""

    algorithm: Any

    def __getattr__(self, name: str) -> Any:
        if name == "algorithm" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.algorithm, name)


@struct.dataclass
class _LongestStep(_Around):
    """Local work whose message is the largest norm of what the machine's steps receive of its records."""

    def enter(self, received, own):
        return self.algorithm.enter(received, own), jnp.zeros(())

    def ask(self, carry):
        return self.algorithm.ask(carry[0])

    def move(self, carry, g, received, own, work):
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(g)))
        return self.algorithm.move(carry[0], g, received, own, work), jnp.maximum(carry[1], norm)

    def leave(self, carry, received, own, work):
        return carry[1]

    def hold(self, carry, own):
        return self.algorithm.hold(carry[0], own)

    def keep(self, own, message, work):
        return own


@struct.dataclass
class _ReplayedSteps(_Around):
    """Local work in which every step receives the same numbers, whatever its records."""

    def move(self, carry, g, received, own, work):
        return self.algorithm.move(carry, _numbers(g), received, own, work)


@struct.dataclass
class _ReplayedMeans(_Around):
    """An algorithm whose server receives the same numbers, whatever the machines send."""

    def serve(self, server, read, at):
        return self.algorithm.serve(server, _numbers(read), at)


def _numbers(tree: Any) -> Any:
    """Return fixed numbers with the structure of a pytree."""
    return jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), tree)


def _with(protocol: Any, around: type) -> Any:
    """Return a protocol with another algorithm around its own."""
    planned = protocol.known.algorithm
    own = protocol.algorithm if planned is None else planned
    other = replace(own, steps=around(own.steps)) if isinstance(own, Gossip) else around(own)
    return replace(protocol, known=replace(protocol.known, algorithm=other))


def _with_bounded(protocol: Any, trial: Trial) -> Any:
    """Return a protocol whose messages are the numbers that are bounded: its own, or the norms of local steps.

    Untrusted machines add noise before an encoder, whose messages have no bound.
    """
    if _in_steps(trial):
        protocol = _with(protocol, _LongestStep)
    return protocol if getattr(protocol.privacy, "encoder", None) is None else protocol.with_settings({"encoder": None})


def _of_server(state: Any) -> Any:
    """Return the algorithm's part of a state: without the privacy object's memory, and what machines hold."""
    return _of_server(state.server) if hasattr(state, "server") else state


# ---- other data and states


def _factors(trial: Trial) -> tuple[float, ...]:
    """Return factors on records. A linear predictor's features are finite, as the building of its problem checks."""
    return HUGE if trial.problem.model.factored else EXTREME


def _pools(pool: Any, factors: tuple[float, ...], rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Yield descriptions of factors, and all records times them: the same, or a random one for each record."""
    yield 1, pool
    for factor in factors:
        yield factor, _times(pool, factor)
    examples = jax.tree.leaves(pool)[0].shape[0]
    yield "random factors", _times(pool, rng.choice((1.0, *factors), examples))


def _times(pool: Any, factors: Any) -> Any:
    """Return records whose real numbers are multiplied by a factor, or by one for each record."""

    def times(leaf):
        leaf = np.asarray(leaf)
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        with np.errstate(all="ignore"):
            return (leaf * np.reshape(factors, (-1, *[1] * (leaf.ndim - 1)))).astype(leaf.dtype)

    return jax.tree.map(times, pool)


def _replaced(pool: Any, rows: Any, factor: float) -> Any:
    """Return records in which some rows are those of others, times a factor."""

    def replaced(leaf, other):
        leaf = np.array(leaf)
        leaf[rows] = np.roll(other, 1, axis=0)[rows]
        return leaf

    return jax.tree.map(replaced, pool, _times(pool, factor))


def _changed(state: Any, scale: float, rng: np.random.Generator) -> Any:
    """Return a state in which the algorithm's server holds other real numbers."""
    if hasattr(state, "server"):
        return state._replace(server=_changed(state.server, scale, rng))

    def changed(leaf):
        if not scale or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return (np.asarray(leaf) + scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(changed, state)
