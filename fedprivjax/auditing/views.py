"""The adversary's view of many runs along the canary's direction: one row per run, one column per number."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.auditing.canaries import AXES, audited_directions, labels_of, with_labels
from fedprivjax.auditing.neighbouring import Worlds
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.prepare import Arguments, ReadyRun
from fedprivjax.engine.transcript import released_steps, replay, with_local_steps
from fedprivjax.method.round import flat_rows
from fedprivjax.method.seen import adversary_of, seen_of, view_of
from fedprivjax.plan.plan import draw_minibatches
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.privacy.adversaries import HIDDEN, NAMED
from fedprivjax.privacy.views import FullView
from fedprivjax.problem.program import typed_jit
from fedprivjax.problem.random_keys import random_key

NOBODY = -1
CHUNK_FLOATS = 2**24  # largest number of message entries in memory
MOST, FEWEST = 4096, 64  # limits on the runs of a chunk


class Column(NamedTuple):
    """Description of one number in a view.

    Attributes:
        kind: "step" (between query points, to the output and other reported iterates), "broadcast" (a change of other
            numbers that the server sends), "message", "local" (a local step), "bent" (a message or local step, in the
            direction of the drift before it), "memory" (the server's), "released" or "participant".
        round: round, from 1.
        machine: sending machine, or −1 if there is none or it is hidden.
        slot: index among the round's numbers of this kind.
    """

    kind: str
    round: int
    machine: int = NOBODY
    slot: int = 0


class Views(NamedTuple):
    """Views of many runs on one dataset; values float64, shape [runs, columns]."""

    values: np.ndarray
    columns: tuple[Column, ...]


class RawViews(NamedTuple):
    """Recorded numbers along the audited directions, leaves [runs, rounds, ..., `AXES`], and scalars of the rounds.

    A message of several vectors, or of a vector and scalars, has parts, [runs, rounds, per_round, parts, `AXES`].
    """

    points: Any
    messages: Any
    steps: Any
    internal: Any
    info: Any
    broadcast: Any


@typed_jit(static_argnames="size")
def _raw(arguments: Arguments, keys, labels, secrets: dict[str, Any], directions, size: Size) -> RawViews:
    """Run the audit's compiled program. It serves both datasets and any canary.

    Args:
        directions: audited directions, [`AXES`, d].
        secrets: each run's own inputs that are secret, by their names in `RoundInputs`, [runs, rounds, ...].
    """
    dimension = arguments.problem.dimension

    def projected(vectors):
        return jnp.matmul(vectors.astype(jnp.float32), directions.T, precision="highest")

    def along(leaf):
        rows = leaf.reshape(leaf.shape[0], -1)
        rows = rows.reshape(leaf.shape[0], -1, dimension if rows.shape[1] % dimension == 0 else 1)
        return rows.astype(jnp.float32) if rows.shape[-1] == 1 else projected(rows)

    def parts_along(rows):
        vectors = rows.shape[-1] // dimension
        vectors, scalars = jnp.split(rows, [vectors * dimension], axis=-1)
        vectors = projected(vectors.reshape(*rows.shape[:-1], -1, dimension))
        scalars = jnp.broadcast_to(scalars[..., None], (*scalars.shape, AXES))
        return jnp.concatenate([vectors, scalars], axis=-2)

    def one(key, labels, secrets):
        problem = with_labels(arguments.problem, labels)
        run = arguments._replace(key=key, problem=problem, inputs=arguments.inputs._replace(**secrets))
        state, (queries, (sent, steps), internal, info, broadcast) = replay(run, size, with_local_steps)
        protocol = arguments.protocol
        sent = seen_of(protocol).decoded(sent)
        ends = [seen_of(protocol).query(state), protocol.output(state), *protocol.iterates(state).values()]
        ends = [flat_rows(problem, jax.tree.map(lambda leaf: leaf[None], end)) for end in ends]
        points = jnp.concatenate([queries, *ends])
        steps = None if steps is None else projected(steps)
        internal, broadcast = jax.tree.map(along, _vectors((internal, broadcast), problem.start))
        return RawViews(projected(points), parts_along(sent), steps, internal, info, broadcast)

    return jax.vmap(one)(keys, labels, secrets)


def _vectors(tree: Any, start: Any) -> Any:
    """Return a tree in which subtrees with the structure of the parameters are vectors, [..., d]."""
    like = jax.tree.structure(start)
    if like == jax.tree.structure(0):
        return tree

    def vector(node):
        if jax.tree.structure(node) != like:
            return node
        pairs = zip(jax.tree.leaves(node), jax.tree.leaves(start), strict=True)
        return jnp.concatenate([leaf.reshape(*leaf.shape[: leaf.ndim - own.ndim], -1) for leaf, own in pairs], axis=-1)

    return jax.tree.map(vector, tree, is_leaf=lambda node: jax.tree.structure(node) == like)


@dataclass(frozen=True)
class ViewOptions:
    """Additions to the protocol's own view.

    Attributes:
        public: names of the scalars reported by rounds that are published.
        schedule: whether to include the participants. Needed only if they differ between the two datasets.
        bends: whether to compare releases with the drift before them. Informative only for losses with curvature.
    """

    public: tuple[str, ...] = ()
    schedule: bool = False
    bends: bool = False


def observed(
    start: ReadyRun, seed: int, begin: int, options: ViewOptions, labels: np.ndarray | None = None
) -> list[Views]:
    """Return the views of `chunk_of(start)` runs, along the canary's direction and along noise-only directions.

    Args:
        seed: seed of the noise, and of secret samples and participation.
        begin: number of the first run.
        labels: labels of all records, shape [records] or [runs, records], or None for the dataset's own.

    >>> from fedprivjax import Full, NoisySGD
    >>> from fedprivjax.auditing.neighbouring import worlds
    >>> from fedprivjax.auditing.federation import Federation
    >>> two = worlds(NoisySGD(mu=1.0, clip=1.0), Federation(Full(2), rounds=1, records=1), 0, delta=1e-5)
    >>> seen = observed(two.start, 0, 0, ViewOptions())[0]
    >>> mine = [(one.kind, one.machine) for one in seen.columns].index(("message", two.machine))
    >>> seen.values[:, mine].mean().round(1), seen.values[:, mine].std().round(1)  # −C, and the noise of 1-GDP, 2C
    (np.float64(-1.0), np.float64(2.0))
    """
    runs = chunk_of(start)
    keys = jax.vmap(partial(jax.random.fold_in, random_key(seed)))(np.arange(begin, begin + runs))
    labels = labels_of(start.problem) if labels is None else labels
    labels = np.broadcast_to(labels, (runs, labels.shape[-1]))
    secrets = _secrets(start, np.random.default_rng([seed, begin]), runs)
    directions = audited_directions(np.asarray(start.problem.pool.features[0]))
    raw = _raw(start.arguments, keys, labels, secrets, directions, start.plan.size)
    raw = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), raw)
    return [_seen(start, raw, place, seed, options) for place in range(AXES)]


def _seen(start: ReadyRun, raw: RawViews, place: int, seed: int, options: ViewOptions) -> Views:
    """Return the columns of the protocol's own `view`. It treats rounds separately, so runs are concatenated."""
    points, messages = raw.points[..., place], raw.messages[..., place]
    runs, rounds = messages.shape[:2]

    def joined(leaf):
        return leaf.reshape(runs * rounds, *leaf.shape[2:])

    steps = None if raw.steps is None else joined(raw.steps[..., place, None])

    def at_place(leaf):
        return leaf[..., min(place, leaf.shape[-1] - 1)]

    internal = jax.tree.map(lambda leaf: joined(at_place(leaf)), raw.internal)
    full = FullView(joined(points[:, :rounds, None]), joined(messages), internal, seed, steps)
    seen = view_of(start.protocol, start.problem, start.plan, full)
    if not adversary_of(start.protocol).follows_rounds:
        column = Column("step", rounds)
        return Views((points[:, rounds + 1] - points[:, 0])[:, None], (column,))
    parts = [_by_round("step", np.diff(points, axis=1)[..., None])]
    for number, leaf in enumerate(jax.tree.leaves(raw.broadcast)):
        changes = np.diff(at_place(leaf), axis=1, prepend=0.0)
        parts.append(_by_round("broadcast", changes.reshape(runs, rounds, -1), 100 * number))
    if seen.messages is not None:
        messages = seen.messages.reshape(runs, rounds, -1, messages.shape[-1])
        parts.append(_messages(start, messages))
        if options.bends and seen.steps is None:
            moved = np.pad(np.diff(points[:, :rounds], axis=1), ((0, 0), (1, 0)))
            parts.append(_messages(start, messages * np.sign(moved)[:, :, None, None], "bent"))
    if seen.steps is not None:
        steps = seen.steps.reshape(runs, rounds, *seen.steps.shape[1:3])
        parts.append(_by_sender("local", start, steps))
        if options.bends:
            drift = np.cumsum(steps, axis=3) - steps
            parts.append(_by_sender("bent", start, steps * np.sign(drift)))
    for place, leaf in enumerate(jax.tree.leaves(seen.internal)):
        parts.append(_by_round("memory", leaf.reshape(runs, rounds, -1), 100 * place))
    for place, name in enumerate(options.public):
        require_choice("public", name, list(raw.info))
        parts.append(_by_round("released", raw.info[name].reshape(runs, rounds, 1), place))
    if options.schedule:
        participants = start.plan.schedule.participants.astype(float)
        parts.append(_by_round("participant", np.broadcast_to(participants, (runs, *participants.shape))))
    values = np.concatenate([values for values, _ in parts], axis=1)
    return Views(values, tuple(column for _, columns in parts for column in columns))


def _by_round(kind: str, numbers: np.ndarray, first_slot: int = 0) -> tuple[np.ndarray, list[Column]]:
    """Return numbers without a sender, [runs, rounds, slots], as columns."""
    runs, rounds, slots = numbers.shape
    columns = [Column(kind, t + 1, slot=first_slot + j) for t, j in np.ndindex(rounds, slots)]
    return numbers.reshape(runs, -1), columns


def _by_sender(kind: str, start: ReadyRun, numbers: np.ndarray) -> tuple[np.ndarray, list[Column]]:
    """Return numbers of participants, [runs, rounds, slots, steps], as columns, without empty slots."""
    schedule, many = start.plan.schedule, numbers.shape[3]
    rows = [(int(t), int(j), k) for t, j in zip(*np.nonzero(schedule.present), strict=True) for k in range(many)]
    columns = [Column(kind, t + 1, int(schedule.participants[t, j]), many * j + k) for t, j, k in rows]
    return numbers[:, schedule.present].reshape(len(numbers), -1), columns


def _messages(start: ReadyRun, messages: np.ndarray, kind: str = "message") -> tuple[np.ndarray, list[Column]]:
    """Return messages [runs, rounds, slots, parts] as columns.

    A shuffler's messages are sorted by value, since their order carries no information.
    """
    senders = adversary_of(start.protocol).senders
    if senders == NAMED:
        return _by_sender(kind, start, messages)
    rows = np.sort(messages, axis=2) if senders == HIDDEN else messages
    return _by_round(kind, rows.reshape(*messages.shape[:2], -1))


def own_releases(columns: tuple[Column, ...], machine: int) -> np.ndarray:
    """Return a mask of the machine's own releases, bool [columns]: its visible local steps, else messages."""
    finest = "local" if any(column.kind == "local" for column in columns) else "message"
    return np.array([column.kind == finest and column.machine == machine for column in columns])


def _secrets(start: ReadyRun, rng: np.random.Generator, runs: int) -> dict[str, np.ndarray]:
    """Return each run's own secret inputs by name, [runs, rounds, per_round, ...]. A public plan has none."""
    if start.plan.schedule.secret is not None:
        return _secret_rounds(start, rng, runs)
    samples, weights = _secret_samples(start, rng, runs)
    return {} if samples is None or weights is None else {"samples": samples, "weights": weights}


def _secret_samples(start: ReadyRun, rng: np.random.Generator, runs: int):
    """Return each run's own secret samples and weights, [runs, rounds, per_round, width], or None without any."""
    plan, table = start.plan, start.problem.partition_table
    if not plan.secret or plan.sampler is None or table is None:
        return None, None
    shape = plan.schedule.participants.shape
    everyone = Schedule(plan.schedule.machines, np.tile(plan.schedule.participants.ravel(), runs)[None])
    drawn = draw_minibatches(plan.sampler, table.rows, everyone, rng, factors=start.problem.message_factors)
    samples, weights = (array.reshape(runs, *shape, -1) for array in drawn)
    return samples, weights * plan.schedule.present[..., None]


def _secret_rounds(start: ReadyRun, rng: np.random.Generator, runs: int) -> dict[str, np.ndarray]:
    """Return each run's own participants and their records, [runs, rounds, per_round, ...].

    The runs are sampled together, as one federation in which every run has machines of its own.
    """
    plan, table, scheme = start.plan, start.problem.partition_table, start.plan.schedule.secret
    if scheme is None or plan.sampler is None or table is None or plan.schedule.dropped is not None:
        raise Refusal(
            f"participation must be public in an audit with dropouts or of a method without a record sampler, "
            f"got {scheme}"
        )
    drawn = [scheme.draw(plan.size.rounds, rng) for _ in range(runs)]
    machine, present = (np.concatenate([getattr(one, name) for one in drawn]) for name in ("participants", "scheduled"))
    first = plan.size.machines * np.repeat(np.arange(runs), plan.size.rounds)[:, None]  # first machine of each run
    everyone = Schedule(plan.size.machines * runs, (machine + first).astype(np.int32), present.sum(axis=1))
    factors = np.tile(np.broadcast_to(start.problem.message_factors, plan.size.machines), runs)
    batches = draw_minibatches(plan.sampler, np.tile(table.rows, (runs, 1)), everyone, rng, factors=factors)
    found = {"machine": machine, "participation": everyone.counts, "present": present.astype(np.float32)}
    found |= batches._asdict()
    return {name: rows.reshape(runs, plan.size.rounds, *rows.shape[1:]) for name, rows in found.items()}


def chunk_of(start: ReadyRun) -> int:
    """Return the number of runs in a chunk, whose views are in memory together."""
    size = start.plan.size
    vectors = size.per_round * (1 + released_steps(start)) + 2
    return int(np.clip(CHUNK_FLOATS // (size.rounds * vectors * start.problem.dimension), FEWEST, MOST))


def different(pair: Worlds) -> bool:
    """Return True if the public schedule differs between the two datasets."""
    one, other = (start.plan.schedule.public.participants for start in pair.starts)
    return not np.array_equal(one, other)
