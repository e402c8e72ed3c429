"""Two neighbouring worlds in which one record, the canary, moves what is released as far as it may.

With the linear loss, a record's gradient is its label times its features wherever it is taken. All labels are 0 but
the canary's, which is negative in one world and positive in the other, and its features lie along one axis: along that
axis a view is noise plus the canary, along all others it is noise alone.

With the quadratic loss, a gradient also grows with the point that it is taken at, so that drift of local steps and
differences of gradients matter; the other records pull along the canary's axis, so that there is drift. What is clipped
is the same as with the linear loss.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.transcript import require_noisy_messages
from fedprivjax.plan.participation import Dropouts, Full, Participation, Uniform, Varying
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.problem import Problem

AXES = (0, 1, 2, 3)  # that are looked at: the canary's, and others along which noise alone is seen
RADIUS = 1e3  # of the set; steps are so short that no run comes near its edge
MACHINES, RECORDS = 4, 12
SMOOTHNESS = 1e-9  # declared in place of 0, which some default steps divide by
EDGE = 1e-2 * RADIUS  # how far steps may lead
LINEAR, QUADRATIC = "linear", "quadratic"
LENGTHS = {LINEAR: 100.0, QUADRATIC: 1e6}  # of the canary's gradient over the clip, by the loss
PULL = 0.5  # of the other records' gradients over the clip, with the quadratic loss


@dataclass(frozen=True)
class Linear(LinearLoss):
    """`label·score`, whose gradient is `label·features` everywhere: G is the features' bound, L is 0."""

    def value(self, score, label):
        return label * score

    def lipschitz(self, feature_bound: float, radius: float = np.inf) -> float:
        return feature_bound

    def smoothness(self, feature_bound: float) -> float:
        return 0.0

    def label_range(self):
        return (-1.0, 1.0)


@dataclass(frozen=True)
class Quadratic(Linear):
    """`label·(score + curvature·score²/2)`, whose gradient is `label·(1 + curvature·score)·features`."""

    curvature: float = 0.0

    @property
    def convex(self) -> bool:
        return False  # where the label is negative

    def value(self, score, label):
        return label * (score + self.curvature * score**2 / 2)

    def lipschitz(self, feature_bound: float, radius: float = np.inf) -> float:
        return feature_bound * (1 + self.curvature * feature_bound * radius)

    def smoothness(self, feature_bound: float) -> float:
        return self.curvature * feature_bound**2


@dataclass(frozen=True)
class Federation:
    """What an audit runs on: few machines with few records each, in small dimension.

    Attributes:
        participation, rounds: the public schedule.
        records: of each machine.
        dimension: d, of which one axis is the canary's and the others show noise alone.
        canary: the length of the canary's gradient over the clip; None is 100, or 10⁶ with the quadratic loss. A method
            without a clip gets a gradient of norm 1, its Lipschitz constant.
        order: of samples where no sampler draws them.
        loss: "linear"; or "quadratic", whose gradients depend on the point, for methods with a clip. With a clip both
            reach the same sensitivity; only the quadratic canary sees what curvature tells, such as a correction of the
            drift of local steps that is not clipped.
    """

    participation: Participation
    rounds: int
    records: int
    dimension: int = 16
    canary: float | None = None
    order: str = "stored"
    loss: str = LINEAR

    def __post_init__(self) -> None:
        require_choice("loss", self.loss, LENGTHS)
        for name, least in (("rounds", 1), ("records", 1), ("dimension", len(AXES))):
            require_at_least(name, getattr(self, name), least)

    def problem(self, clip: Any, split: bool, canary: int, label: float) -> Problem:
        """One world.

        Args:
            clip: C, or None.
            split: whether machines own their records, rather than share a pool.
            canary: its row of the pool.
            label: its sign; what is clipped anyhow is half as long where it is positive, so that lengths differ too.
        """
        machines = self.participation.machines
        rows = machines * self.records
        features = np.zeros((rows, self.dimension), np.float32)
        length = LENGTHS[self.loss] if self.canary is None else self.canary
        size = 1.0 if clip is None else length * float(np.max(clip))
        features[:, AXES[0]] = size
        labels = np.full(rows, 0.0 if self.loss == LINEAR else PULL / length, np.float32)
        labels[canary] = label / 2 if label > 0 and clip is not None and length >= 2 else label
        table = np.arange(rows).reshape(machines, self.records) if split else None
        bound = 1.0 if clip is None else None
        loss = self._loss(clip, size)
        problem = linear_problem(features, labels, loss, feature_bound=bound, constraint=Ball(RADIUS), table=table)
        return replace(problem, own_smoothness=max(SMOOTHNESS, loss.smoothness(size)))

    def _loss(self, clip: Any, size: float) -> Linear:
        """The loss of records with features of this length: of the quadratic one, slopes stay positive on all runs."""
        if self.loss == LINEAR:
            return Linear()
        if clip is None:
            raise Refusal(f"loss must be {LINEAR!r} for a protocol without a clip, got {self.loss!r}. Set clip")
        return Quadratic(1 / (4 * EDGE * size))

    def taking_part(self, problem: Problem) -> Participation:
        """Who is drawn in a world; one that looks at its data is a leak, which the audit sees."""
        return self.participation


FIXED, VARYING, DROPOUTS = "fixed", "varying", "dropouts"
SCHEDULES: dict[str, tuple[Participation, ...]] = {
    FIXED: (Uniform(MACHINES, MACHINES // 2), Full(MACHINES)),
    VARYING: (Varying.between(MACHINES, 1, MACHINES - 1),),
    DROPOUTS: (Dropouts(Uniform(MACHINES, MACHINES - 1), 0.25), Dropouts(Full(MACHINES), 0.25)),
}


class NotAllowed(Refusal):
    """A participation that a method does not allow."""


def small_federation(protocol, rounds: int = 12, *, participation: str = FIXED, loss: str = LINEAR) -> Federation:
    """Four machines, with two in a round, or all of them if the method needs that; each has a dozen records or more.

    A method that goes through all records of a machine gets as many rounds as that takes.

    Args:
        participation: "fixed"; "varying", one to three machines in a round; or "dropouts", three machines of which each
            fails to send with probability 1/4.
        loss: "linear" or "quadratic", see `Federation`.

    Raises:
        Refusal: `NotAllowed` if the method allows no such participation.
    """
    require_choice("participation", participation, SCHEDULES)
    sampler = protocol.minibatches
    batch = 1 if sampler is None or sampler.batch is None else int(np.max(sampler.batch))
    last: Refusal | None = None
    for scheme in SCHEDULES[participation]:
        messages = rounds if sampler is None or sampler.one_pass else 4
        records = batch * max(messages, -(-RECORDS // batch))
        federation = Federation(scheme, rounds, records, loss=loss)
        try:
            _begun(protocol, federation, 0, -1.0, 1e-5, 0)
        except Refusal as error:
            last = last or error
            continue
        return federation
    if participation == FIXED:
        assert last is not None
        raise last
    raise NotAllowed(str(last))


@dataclass(frozen=True)
class Worlds:
    """A protocol that is ready in both worlds, with noise written out.

    Attributes:
        starts: the runs; the canary's label is negative in the one, positive in the other.
        canary: its row.
        machine: who owns it.
    """

    starts: tuple[ReadyRun, ReadyRun]
    canary: int
    machine: int

    @property
    def start(self) -> ReadyRun:
        """The first world's run."""
        return self.starts[0]


def worlds(protocol, federation: Federation, canary: int | None, *, delta: float, seed: int = 0) -> Worlds:
    """The two worlds of a protocol for one canary.

    Args:
        canary: its row of the pool; None is the first record that is used.

    Raises:
        Refusal: settings that cannot be run, or noise that cannot be written out message by message.

    >>> from fedprivjax import NoisySGD
    >>> protocol = NoisySGD(mu=1.0, clip=1.0)
    >>> two = worlds(protocol, small_federation(protocol), 0, delta=1e-5)
    >>> [start.problem.pool.label[:3].tolist() for start in two.starts], two.machine
    ([[-1.0, 0.0, 0.0], [0.5, 0.0, 0.0]], 0)
    """
    first = _begun(protocol, federation, canary or 0, -1.0, delta, seed)
    canary = _first_used(first) if canary is None else canary
    protocol = _with_short_steps(protocol, first, exactly=federation.loss == QUADRATIC)
    starts = [_begun(protocol, federation, canary, label, delta, seed) for label in (-1.0, 1.0)]
    require_noisy_messages(starts[0])
    return Worlds((starts[0], starts[1]), canary, _owner(starts[0], canary))


def _begun(protocol, federation: Federation, canary: int, label: float, delta: float, seed: int) -> ReadyRun:
    """One world's run, ready; a method without a default step takes one of length 1."""
    split = protocol.minibatches is not None
    problem = federation.problem(protocol.clip, split, canary, label)
    options: dict[str, Any] = {"rounds": federation.rounds, "seed": seed, "delta": delta, "record": ()}
    options |= {"order": "shuffled" if split else federation.order, "noise_method": "materialised"}
    participation = federation.taking_part(problem)
    try:
        return ready(protocol, problem, participation, **options)
    except Refusal:
        if protocol.step_size is not None or "step_size" not in protocol.leaves():
            raise
    return ready(replace(protocol, step_size=1.0), problem, participation, **options)


def records_used(start: ReadyRun, machine: int) -> list[int]:
    """The records that a machine uses, rows of the pool, the first used first.

    Where samples are secret its records are alike, and stand in the order of its table.
    """
    schedule, table = start.plan.schedule, start.problem.table
    if start.plan.secret and table is not None:
        rows = table.rows[machine]
        return rows[rows >= 0].tolist()
    slots = start.plan.samples.reshape(*schedule.participants.shape, -1)
    own = (schedule.participants == machine) & schedule.present
    return list(dict.fromkeys(slots[own].ravel().tolist()))


def _first_used(start: ReadyRun) -> int:
    """The first record of the pool where machines own theirs, else the first that a message uses."""
    schedule = start.plan.schedule
    slots = start.plan.samples.reshape(*schedule.participants.shape, -1)
    return 0 if start.problem.table is not None else int(slots[schedule.present][0, 0])


def labels_of(problem: Problem) -> np.ndarray:
    """Every record's label, [records]."""
    return np.asarray(problem.pool.label)


def with_labels(problem: Problem, labels) -> Problem:
    """The same problem under other labels."""
    return replace(problem, pool=problem.pool._replace(label=labels))


def _owner(start: ReadyRun, canary: int) -> int:
    """Whose record it is: its machine's, or the first machine's that uses it."""
    plan, table = start.plan, start.problem.table
    if table is not None:
        return int(np.flatnonzero((table.rows == canary).any(axis=1))[0])
    samples = plan.samples.reshape(*plan.schedule.participants.shape, -1)
    uses = np.argwhere((samples == canary) & plan.schedule.present[..., None])
    if not uses.size:
        raise Refusal(f"canary must be a record that the schedule uses, got {canary}")
    return int(plan.schedule.participants[uses[0][0], uses[0][1]])


def _with_short_steps(protocol, start: ReadyRun, *, exactly: bool):
    """The protocol with steps that lead at most as far as `EDGE`, or exactly as far, if it has a setting for that."""
    if "step_scale" not in protocol.leaves():
        return protocol
    ready = start.protocol
    longest = float(np.max(ready.step_size)) * (1.0 + float(np.max(ready.noise_std))) * start.plan.size.rounds**2
    scale = EDGE / longest
    return replace(protocol, step_scale=scale if exactly else min(float(np.max(protocol.step_scale)), scale))
