"""What the adversary sees of many runs, along the canary's axis: one row a run, one column a number."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.auditing.neighbouring import AXES, Worlds, labels_of, with_labels
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.prepare import Arguments, ReadyRun
from fedprivjax.engine.transcript import Released, released_steps, replay
from fedprivjax.method.round import flat_rows
from fedprivjax.method.views import Observed
from fedprivjax.plan.minibatches import draw_minibatches
from fedprivjax.plan.schedule import Schedule, Size

NOBODY = -1
CHUNK_FLOATS = 2**24  # numbers of messages in memory at once
MOST, FEWEST = 4096, 64  # runs of a chunk


class Column(NamedTuple):
    """What a number of a view is.

    Attributes:
        kind: "step" (of query points, to the output and other reported iterates), "message", "local" (a step of local
            work), "bent" (a message or local step, in the direction of the drift before it), "memory" (the server's),
            "released" or "participant".
        round: from 1.
        machine: who sent it; −1 where that is nobody, or hidden.
        slot: which of a round's numbers of its kind.
    """

    kind: str
    round: int
    machine: int = NOBODY
    slot: int = 0


class Views(NamedTuple):
    """Many runs of one world: values float64 [runs, columns]."""

    values: np.ndarray
    columns: tuple[Column, ...]


class Raw(NamedTuple):
    """Numbers along the axes that were asked for, leaves [runs, rounds, ..., axes]; and scalars that rounds report."""

    points: Any
    messages: Any
    steps: Any
    internal: Any
    info: Any


@partial(jax.jit, static_argnames=("size", "drawn"))
def _raw(arguments: Arguments, keys, labels, samples, weights, size: Size, drawn: bool) -> Raw:
    """The compiled program of an audit, for either world, any canary and all purposes."""
    dimension, chosen = arguments.problem.dimension, jnp.asarray(AXES)

    def along(leaf):
        rows = leaf.reshape(leaf.shape[0], -1)
        rows = rows.reshape(leaf.shape[0], -1, dimension if rows.shape[1] % dimension == 0 else 1)
        return (rows if rows.shape[-1] == 1 else rows[..., chosen]).astype(jnp.float32)

    def one(key, labels, samples, weights):
        problem = with_labels(arguments.problem, labels)
        inputs = arguments.inputs._replace(samples=samples, weights=weights) if drawn else arguments.inputs
        run = arguments._replace(key=key, problem=problem, inputs=inputs)
        state, (queries, (sent, steps), internal, info) = replay(run, size, Released())
        protocol = arguments.protocol
        ends = [protocol.query(state), protocol.output(state), *protocol.iterates(state).values()]
        ends = [flat_rows(problem, jax.tree.map(lambda leaf: leaf[None], end)) for end in ends]
        points = jnp.concatenate([queries, *ends])
        steps = None if steps is None else steps[..., chosen]
        return Raw(points[:, chosen], sent[..., chosen], steps, jax.tree.map(along, internal), info)

    return jax.vmap(one)(keys, labels, samples, weights)


@dataclass(frozen=True)
class Sight:
    """What is seen beside what the protocol's own view shows.

    Attributes:
        public: scalars that rounds report, by name, and that are published.
        schedule: whether to list who takes part, which is worth it only where that differs between the worlds.
        bends: whether to compare releases with the drift before them, which tells something only if losses bend.
    """

    public: tuple[str, ...] = ()
    schedule: bool = False
    bends: bool = False


def observed(start: ReadyRun, seed: int, begin: int, sight: Sight, labels: np.ndarray | None = None) -> list[Views]:
    """What the adversary sees of `chunk_of(start)` runs, along the canary's axis and along those without it.

    Args:
        seed: of the noise, and of secret samples.
        begin: the first run's number.
        labels: of every record, [records] or [runs, records]; None takes the world's own.

    >>> from fedprivjax import Full, NoisySGD
    >>> from fedprivjax.auditing.neighbouring import Federation, worlds
    >>> two = worlds(NoisySGD(mu=1.0, clip=1.0), Federation(Full(2), rounds=1, records=1), 0, delta=1e-5)
    >>> seen = observed(two.start, 0, 0, Sight())[0]
    >>> mine = [(one.kind, one.machine) for one in seen.columns].index(("message", two.machine))
    >>> seen.values[:, mine].mean().round(1), seen.values[:, mine].std().round(1)  # −C, and the noise of 1-GDP, 2C
    (np.float64(-1.0), np.float64(2.0))
    """
    runs = chunk_of(start)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(np.arange(begin, begin + runs))
    labels = labels_of(start.problem) if labels is None else labels
    labels = np.broadcast_to(labels, (runs, labels.shape[-1]))
    samples, weights = _secret_samples(start, np.random.default_rng([seed, begin]), runs)
    raw = _raw(start.arguments, keys, labels, samples, weights, start.plan.size, samples is not None)
    raw = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), raw)
    return [_seen(start, raw, place, seed, sight) for place in range(len(AXES))]


def _seen(start: ReadyRun, raw: Raw, place: int, seed: int, sight: Sight) -> Views:
    """What the protocol's own `view` shows; it takes rounds one by one, so that runs can stand one after another."""
    points, messages = raw.points[..., place], raw.messages[..., place]
    runs, rounds = messages.shape[:2]

    def joined(leaf):
        return leaf.reshape(runs * rounds, *leaf.shape[2:])

    def along(leaf):
        leaf = leaf[..., min(place, leaf.shape[-1] - 1)]
        return joined(leaf)

    steps = None if raw.steps is None else joined(raw.steps[..., place, None])
    internal = jax.tree.map(along, raw.internal)
    seen = start.protocol.view(
        Observed(joined(points[:, :rounds, None]), joined(messages[..., None]), internal, seed, steps)
    )
    parts = [(np.diff(points, axis=1), [Column("step", t) for t in range(1, points.shape[1])])]
    if seen.messages is not None:
        messages = seen.messages.reshape(runs, rounds, -1)
        parts.append(_messages(start, messages))
        if sight.bends and seen.steps is None:
            moved = np.pad(np.diff(points[:, :rounds], axis=1), ((0, 0), (1, 0)))
            parts.append(_bent(*_messages(start, messages * np.sign(moved)[:, :, None])))
    if seen.steps is not None:
        steps = seen.steps.reshape(runs, rounds, *seen.steps.shape[1:3])
        parts.append(_local_steps(start, steps))
        if sight.bends:
            drift = np.cumsum(steps, axis=3) - steps
            parts.append(_bent(*_local_steps(start, steps * np.sign(drift))))
    for slot, leaf in enumerate(jax.tree.leaves(seen.internal)):
        numbers = leaf.reshape(runs, rounds, -1)
        columns = [Column("memory", t + 1, slot=100 * slot + k) for t in range(rounds) for k in range(numbers.shape[2])]
        parts.append((numbers.reshape(runs, -1), columns))
    for slot, name in enumerate(sight.public):
        require_choice("public", name, list(raw.info))
        parts.append(
            (raw.info[name].reshape(runs, rounds), [Column("released", t + 1, slot=slot) for t in range(rounds)])
        )
    if sight.schedule:
        parts.append(_participants(start, runs))
    values = np.concatenate([values for values, _ in parts], axis=1)
    return Views(values, tuple(column for _, columns in parts for column in columns))


def _messages(start: ReadyRun, messages: np.ndarray) -> tuple[np.ndarray, list[Column]]:
    """Messages [runs, rounds, slots], without those of empty slots; a shuffler's in the order of their size, which is
    all that theirs tells."""
    _, rounds, slots = messages.shape
    if start.protocol.trust == "none":
        schedule = start.plan.schedule
        rows = list(zip(*np.nonzero(schedule.present), strict=True))
        columns = [Column("message", int(t) + 1, int(schedule.participants[t, j]), int(j)) for t, j in rows]
        return messages[:, schedule.present], columns
    columns = [Column("message", t + 1, slot=j) for t in range(rounds) for j in range(slots)]
    return np.sort(messages, axis=2).reshape(messages.shape[0], -1), columns


def _local_steps(start: ReadyRun, steps: np.ndarray) -> tuple[np.ndarray, list[Column]]:
    """Local steps [runs, rounds, slots, steps], without those of empty slots."""
    schedule, many = start.plan.schedule, steps.shape[3]
    rows = [(int(t), int(j), k) for t, j in zip(*np.nonzero(schedule.present), strict=True) for k in range(many)]
    columns = [Column("local", t + 1, int(schedule.participants[t, j]), many * j + k) for t, j, k in rows]
    return steps[:, schedule.present].reshape(len(steps), -1), columns


def _bent(values: np.ndarray, columns: list[Column]) -> tuple[np.ndarray, list[Column]]:
    return values, [column._replace(kind="bent") for column in columns]


def own_releases(columns: tuple[Column, ...], machine: int) -> np.ndarray:
    """Which columns are the machine's own releases, bool [columns]: its local steps if they are seen, else messages."""
    finest = "local" if any(column.kind == "local" for column in columns) else "message"
    return np.array([column.kind == finest and column.machine == machine for column in columns])


def _participants(start: ReadyRun, runs: int) -> tuple[np.ndarray, list[Column]]:
    participants = start.plan.schedule.participants
    columns = [Column("participant", t + 1, slot=j) for t, j in np.ndindex(participants.shape)]
    return np.broadcast_to(participants.ravel().astype(float), (runs, participants.size)), columns


def _secret_samples(start: ReadyRun, rng: np.random.Generator, runs: int):
    """Samples and weights that each run draws anew, [runs, rounds, per_round, width]; None where none are secret."""
    plan, table = start.plan, start.problem.table
    if not plan.secret or plan.sampler is None or table is None:
        return None, None
    shape = plan.schedule.participants.shape
    everyone = Schedule(plan.schedule.machines, np.tile(plan.schedule.participants.ravel(), runs)[None])
    drawn = draw_minibatches(plan.sampler, table.rows, everyone, rng, factors=start.problem.message_factors)
    samples, weights = (array.reshape(runs, *shape, -1) for array in drawn)
    return samples, weights * plan.schedule.present[..., None]


def chunk_of(start: ReadyRun) -> int:
    """Runs whose views are in memory at once."""
    size = start.plan.size
    vectors = size.per_round * (1 + released_steps(start)) + 2
    return int(np.clip(CHUNK_FLOATS // (size.rounds * vectors * start.problem.dimension), FEWEST, MOST))


def different(pair: Worlds) -> bool:
    """Whether what is drawn in public is another schedule in the other world."""
    one, other = (start.plan.schedule.participants for start in pair.starts)
    return not np.array_equal(one, other)
