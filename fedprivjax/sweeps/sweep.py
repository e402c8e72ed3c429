"""Grids of hyper-parameters and seeds as one compiled program: `vmap` over members inside `vmap` over seeds."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_keywords
from fedprivjax.engine.compiled import make_room
from fedprivjax.engine.costs import Stopwatch, taken, totals
from fedprivjax.engine.iterates import iterate_names
from fedprivjax.engine.metrics import MetricLike, non_private
from fedprivjax.engine.prepare import Arguments, ReadyRun, Recipe, evaluation_rounds, ready
from fedprivjax.engine.progress import Told, telling, telling_steps, wait
from fedprivjax.engine.simulate import trajectory
from fedprivjax.method.interface import Protocol
from fedprivjax.plan.arguments import plain_numbers, require_arguments
from fedprivjax.plan.feasibility import require_possible
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds, as_seeds, member_seed
from fedprivjax.privacy.terms import RECORD
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.checksums import data_checksums
from fedprivjax.sweeps.chunk_store import ChunkStore, fingerprint, program_text
from fedprivjax.sweeps.devices import Spread, over_devices, spread
from fedprivjax.sweeps.members import SIZES, Member, Members, axes_of, calibrated, grid, stacked
from fedprivjax.sweeps.memory import chunk_sizes, chunks
from fedprivjax.sweeps.results import attributes, sweep_dataset
from fedprivjax.sweeps.shapes import INTEGERS, joined, shapes_of
from fedprivjax.sweeps.variable_descriptions import metric_words

MEMORY_BUDGET = 2 * 2**30


@dataclass(frozen=True)
class ReadySweep:
    """A sweep that is ready to run: checked, drawn and calibrated, nothing compiled yet.

    Randomness is drawn for every *draw*: a seed at a point of the axes along which it is resampled, or along which a
    protocol's mechanism differs (`noise_follows`; of the same seed); draw i is seed i // points at point i % points.

    Attributes:
        starts: one run of each draw, ready, with the draw's plan and mechanism.
        axes: the swept values by name.
        members: the grid's, calibrated for the plans that they run on.
        grid: the members before calibration.
        seeds: the sweep's.
        index: which members of the grid share a draw, int [points, members of a draw].
        sizes: a chunk's draws and members.
        common_noise: whether members share each seed's noise.
    """

    starts: list[ReadyRun]
    axes: dict[str, np.ndarray]
    grid: list[Member]
    members: Members
    seeds: list[Seeds]
    index: np.ndarray
    sizes: tuple[int, int]
    common_noise: bool

    @property
    def first(self) -> ReadyRun:
        return self.starts[0]

    @property
    def delta(self) -> float:
        return self.first.delta

    @property
    def recipe(self) -> Recipe:
        return self.first.recipe

    @property
    def noise(self) -> str:
        """How the noise is produced and shared, in words."""
        shared = (
            "shared by the grid's members, whose guarantees do not compose"
            if self.common_noise
            else "drawn anew for each member"
        )
        return f"{self.first.mechanism.name}, {shared}"

    @property
    def runs(self) -> tuple[int, int]:
        """Draws, and members that share one."""
        return len(self.starts), self.index.shape[1]

    @property
    def iterates(self) -> tuple[str, ...]:
        """The iterates that metrics of parameters are recorded for."""
        return iterate_names(self.first.protocol, self.first.problem, self.recipe.size)

    def attributes(self) -> dict[str, Any]:
        """What the dataset says of the sweep."""
        private = non_private(self.first.problem, self.recipe.metrics)
        problem = self.first.problem
        sums = data_checksums(problem)
        said = attributes(self.first.protocol, self.delta, self.noise, private, problem.not_covered, checksums=sums)
        run = {
            "data_used": self.first.plan.data_used,
            "delta_warning": self._delta_warning,
            "weights": _weights(self.first),
        }
        return said | {name: text for name, text in run.items() if text}

    @property
    def _delta_warning(self) -> str:
        return next(filter(None, (start.delta_warning for start in self.starts)), "")

    def privacy(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What every run's schedule makes of privacy, [seeds, members] each; and of every member, [members] each, its
        noise and step, the ε that was asked for (NaN where it was the noise), and its guarantee."""
        members = self.members
        realised = members.realised(self.delta)
        asked = [np.nan if member.target.noise_std is not None else member.target.worst_epsilon for member in self.grid]
        return realised, {
            "noise_std": members.noise_std,
            "step_size": members.step_size,
            "target_epsilon": np.array(asked),
            "guarantee": members.guarantees(realised["realised_epsilon"], self.delta),
        }

    def costs(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What every run takes, [seeds, members] each: `gradients_per_record` and `sent_bytes`; and of every member,
        [members] each, what a machine does in a round, and `rounds_taken`."""
        each = self.members.costs([member.problem for member in self.grid])
        by_draw = np.array([taken(start.problem, start.plan) for start in self.starts])
        by_run = np.empty((len(self.seeds), self.index.size, by_draw.shape[1]))
        by_run[:, self.index] = by_draw.reshape(len(self.seeds), len(self.index), 1, -1)
        rounds, messages, uses = np.moveaxis(by_run, 2, 0)
        return totals(each, messages, uses), each | {"rounds_taken": rounds[0].astype(int)}

    def tape(self, draw: int, member: int) -> Any:
        """A member's host-made noise on a draw."""
        start = self.starts[draw]
        seed = start.seeds.noise if self.common_noise else member_seed(start.seeds, member)
        return start.tape_of(self.members.protocols[member], seed, start.problem.dimension)

    def member(self, draw: int, member: int) -> Arguments:
        """The program's arguments of one run."""
        start = self.starts[draw]
        protocol, constraint = jax.tree.map(lambda leaf: leaf[member], (self.members.protocol, self.members.constraint))
        problem = replace(start.problem.traced, constraint=constraint)
        return Arguments(protocol, problem, start.mechanism, start.inputs, self.tape(draw, member), start.key)


def _weights(start: ReadyRun) -> str:
    """Influence of machines of unequal sizes that count equally, in words; empty if they are equal or weighted."""
    table, uses = start.problem.partition_table, start.plan.schedule.total
    if table is None or start.problem.machine_weights is not None or np.ptp(table.sizes) == 0 or np.ptp(uses) != 0:
        return ""
    least, most = int(np.argmin(table.sizes)), int(np.argmax(table.sizes))
    sizes, total = table.sizes, int(table.sizes.sum())
    private = start.event.terms.unit == RECORD and start.protocol.noise_std and np.ndim(start.target.epsilon) == 0
    small, large = map(start.problem.machine_name, (least, most))
    louder = f", and {small} sets the noise" if private else ""
    sized = f"{small} ({sizes[least]:,} of {total:,} records) as much as {large} ({sizes[most]:,})"
    return f"every machine counts equally: {sized}{louder}"


def sweep(
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    progress: bool | Told | None = None,
    **options: Any,
) -> xr.Dataset:
    """Run a protocol over a grid of hyper-parameters and over seeds.

    Args:
        over: values by name, see `ready_sweep`; also `machines`, `per_round` and `rounds`, one program for each.
        folder: keeps every finished chunk here, and goes on from what is there: a killed sweep loses nothing finished.
        mesh: one-dimensional mesh of devices to spread the runs over; None takes all devices.
        progress: True shows sampling and calibration, then the runs finished and the time left, after every chunk; a
            callable is called with (runs finished, runs in all).
        protocol, problem, participation, options: as in `ready_sweep`.

    Returns:
        A dataset with one dimension per swept name, `seed`, `round`, and, where the protocol has other iterates than
        its output, `iterate`: each metric, the calibrated `noise_std` and `step_size`, `realised_mu` and
        `realised_epsilon` of the schedule that was used, `guarantee` (see `guarantee_of`), `diverged`, and what a run
        costs: `rounds_taken`, `gradients_per_record`, `sent_bytes` and `seconds`, the one number that no two sweeps
        have alike. Its attributes say what the guarantee does not cover.

    Raises:
        ValueError: settings that cannot be run, before anything is compiled.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [2.0, 8.0]}, seeds=2, rounds=20)
    >>> dict(grid.test_accuracy.isel(round=-1).sizes)
    {'mu': 2, 'seed': 2}
    """
    require_arguments(protocol, problem, participation)
    require_keywords("sweep", options, [*inspect.signature(ready_sweep).parameters, "folder", "mesh", "progress"])
    options.setdefault("devices", jax.device_count() if mesh is None else mesh.size)
    with telling_steps(progress, protocol.name) as preparing:
        starts = _ready_shapes(protocol, problem, participation, {"preparing": preparing, **options})
    total = sum(prod(start.runs) for _, start in starts)
    done, parts = 0, []
    with telling(progress, protocol.name, "runs") as told:
        for at, start in starts:
            so_far = None if told is None else partial(_after, told, done, total)
            parts.append((at, execute(start, so_far, None if folder is None else Path(folder), mesh)))
            done += prod(start.runs)
            make_room()
    return joined(parts) if parts[0][0] else parts[0][1]


def _ready_shapes(
    protocol: Protocol, problem: Problem, participation: Participation, options: dict[str, Any]
) -> list[tuple[dict[str, int], ReadySweep]]:
    """A sweep, ready, for every combination of the swept integers."""
    over, rounds = options.pop("over", None) or {}, options.pop("rounds", None)
    if not isinstance(over, Mapping):
        axes_of(protocol, over)  # refuses it
    integers = {name: over[name] for name in INTEGERS if name in over}
    real = {name: values for name, values in over.items() if name not in integers}
    shapes = shapes_of(participation, rounds, integers)
    known = {"order": options.get("order", "shuffled"), "sampler": protocol.minibatches}
    for shape in shapes:
        require_possible(problem, shape.participation, shape.rounds, **known)
    return [
        (shape.at, ready_sweep(protocol, problem, shape.participation, over=real, rounds=shape.rounds, **options))
        for shape in shapes
    ]


def _after(told: Told, before: int, total: int, done: int, _: int) -> None:
    told(before + done, total)


def ready_sweep(
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    over: Mapping[str, Sequence[float]] | None = None,
    seeds: int | Sequence[int | Seeds] = 8,
    rounds: int | None = None,
    metrics: Sequence[MetricLike] | None = None,
    eval_every: int | None = None,
    delta: float = 1e-5,
    common_noise: bool = True,
    resample: Sequence[str] = (),
    order: str = "shuffled",
    noise_method: str = "auto",
    memory_budget: int = MEMORY_BUDGET,
    devices: int = 1,
    preparing: Callable[[str, int, int], Any] | None = None,
) -> ReadySweep:
    """Everything of a sweep that happens on the host before it runs: plans, calibration, every refusal.

    Args:
        over: values by name: any leaf of the protocol, a privacy target (`mu`, `epsilon`, `noise_std`), or a
            number of the constraint set (`radius`, `low`, …); the grid is their product. A value that the protocol was
            given is overridden; another target that it was given is refused.
        seeds: how many (0, 1, …), or the seeds themselves. Each draws its own schedule, sample order and noise.
        common_noise: members of the grid share each seed's noise (common random numbers); False draws anew for each.
        resample: swept names along which everything random (participation, samples, noise) is drawn anew. Needed where
            one selects along an axis: common random numbers keep each member's law, but not that of the selected best.
        memory_budget: bytes that a chunk of the sweep may take on a device, roughly; more chunks, same numbers.
        devices: over which runs are spread.
        preparing: called with (step, number, total) before each schedule is sampled and each noise calibrated.
        protocol, problem, participation, rounds, metrics, eval_every, delta, order, noise_method: as in `ready`.
    """
    protocol = plain_numbers(protocol)
    axes = axes_of(protocol, over, tuple(dict.fromkeys((*SIZES, *problem.constraint.sizes))))
    index = _index(axes, (*resample, *(name for name in axes if name in protocol.noise_follows)))
    draws = len(index) * number_of(seeds)
    require_possible(problem, participation, rounds, order=order, sampler=protocol.minibatches, draws=draws)
    seeds = _seeds(seeds)
    points = grid(protocol, problem, axes, delta)
    noisy = next((place for place, point in enumerate(points) if not point.target.non_private), 0)
    examples = [points[next((m for m in row if not points[m].target.non_private), noisy)] for row in index]
    options = {"rounds": rounds, "metrics": metrics, "eval_every": eval_every, "delta": delta, "order": order}
    options["noise_method"] = noise_method
    resampled = _rows(index, _index(axes, resample))
    seeded = [_drawn(seed, resampled, point, common_noise) for seed in seeds for point in range(len(index))]
    starts = []
    for number, (draw, one) in enumerate(zip(seeded, examples * len(seeds), strict=True), 1):
        if preparing is not None:
            preparing("sampling schedules", number, len(seeded))
        starts.append(ready(one.protocol, one.problem, participation, target=one.target, seed=draw, **options))
    starts = [replace(start, mechanism=m) for start, m in zip(starts, _aligned(starts), strict=True)]
    place = {member: point for point, members in enumerate(index) for member in members}
    plans = [[start.plan for start in starts[place[member] :: len(index)]] for member in range(len(points))]
    members = calibrated(points, plans, None if preparing is None else partial(preparing, "calibrating noise"))
    for member in members.protocols:
        member.check_method(noise_method)
    sizes = chunk_sizes(starts[0], (len(seeded), index.shape[1]), memory_budget, devices)
    return ReadySweep(starts, axes, points, members, seeds, index, sizes, common_noise)


def execute(
    start: ReadySweep,
    progress: Told | None = None,
    folder: Path | None = None,
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Run a sweep that is ready, a chunk at a time; arguments as in `sweep`."""
    store = None if folder is None else ChunkStore(folder, sweep_fingerprint(start), start.sizes)
    sizes = start.sizes if store is None else store.settle()
    over = spread(mesh, sizes)
    metrics: dict[str, np.ndarray] = {}
    done, timed = 0, Stopwatch()
    for number, (draws, columns) in enumerate(chunks(start.runs, sizes)):
        values = store.load(number) if store else None
        count = np.unique(draws).size * np.unique(columns).size
        if values is None:
            values = timed(count, partial(_chunk, start, draws, columns, over))
            if store:
                store.save(number, values)
        seeds, members = draws // len(start.index), start.index[draws % len(start.index)][:, columns]
        for name, value in values.items():
            shape = (len(start.seeds), start.index.size, *value.shape[2:])
            metrics.setdefault(name, np.full(shape, np.nan))[seeds[:, None], members] = value
        done += count
        if progress:
            progress(done, start.runs[0] * start.runs[1])
    of_run = {"round": evaluation_rounds(start.recipe), "iterate": np.array(start.iterates)}
    coordinates = {**start.axes, "seed": _labels(start.seeds), **of_run}
    (values, members), (costs, of_members) = start.privacy(), start.costs()
    members = {**members, **of_members, "seconds": np.full(start.index.size, timed.each)}
    words = metric_words(start.recipe.metrics, start.first.problem)
    return sweep_dataset({**metrics, **values, **costs}, members, coordinates, start.attributes(), words)


def _chunk(start: ReadySweep, draws: np.ndarray, columns: np.ndarray, over: Spread | None) -> dict[str, np.ndarray]:
    """The metrics of a chunk's draws and of members that share them, [draws, members, ...]."""
    values = run_chunk(*chunk_arguments(start, draws, columns), start.recipe, over)
    wait(values)
    return {name: np.asarray(value) for name, value in values.items()}


def chunk_arguments(start: ReadySweep, draws: np.ndarray, columns: np.ndarray) -> tuple[Any, ...]:
    """What `run_chunk` takes, before the recipe, for a chunk's draws and the columns of `index` that share them."""
    members = start.index[draws % len(start.index)][:, columns]
    leaves = jax.tree.map(lambda leaf: leaf[members], (start.members.protocol, start.members.constraint))
    drawn = [start.starts[draw] for draw in draws]
    tapes = stacked([stacked([start.tape(draw, m) for m in row]) for draw, row in zip(draws, members, strict=True)])
    seeds = (
        stacked([one.mechanism for one in drawn]),
        stacked([one.inputs for one in drawn]),
        jnp.stack([one.key for one in drawn]),
    )
    member_ids = None if start.common_noise else jnp.asarray(columns)
    return leaves, seeds, tapes, start.first.problem.traced, member_ids


@partial(jax.jit, static_argnames=("recipe", "over"))
def run_chunk(members, drawn, tapes, problem: Problem, member_ids, recipe: Recipe, over: Spread | None = None):
    """Metrics with leaves [draws, members, evaluations].

    Args:
        members: protocol and constraint, leaves [draws, members, ...].
        drawn: mechanism, round inputs and noise key, leaves [draws, ...].
        tapes: host-made noise, leaves [draws, members, rounds, ...], or None.
        member_ids: [members] where each draws noise of its own, or None.
        over: a mesh and which axis divides over it, or None for one device.
    """

    def run_all(members, drawn, tapes, problem, member_ids):
        def one(member, tape, member_id, drawn):
            (protocol, constraint), (mechanism, inputs, key) = member, drawn
            key = key if member_id is None else jax.random.fold_in(key, member_id)
            arguments = Arguments(protocol, replace(problem, constraint=constraint), mechanism, inputs, tape, key)
            params, metrics = trajectory(arguments, recipe)
            finite = jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics))]))
            return {**metrics, "diverged": ~finite}

        over_members = jax.vmap(one, in_axes=(0, 0, None if member_ids is None else 0, None))
        return jax.vmap(over_members, in_axes=(0, 0, None, 0))(members, tapes, member_ids, drawn)

    return over_devices(run_all, over)(members, drawn, tapes, problem, member_ids)


def sweep_fingerprint(start: ReadySweep) -> str:
    """What tells a sweep's numbers from every other's: its inputs, and the text of one member's program."""
    text = program_text(start.member(0, 0), start.recipe)
    members = start.members.protocol, start.members.constraint, start.index
    drawn = [(one.mechanism, one.inputs, one.seeds) for one in start.starts]
    tapes = [
        fingerprint(start.tape(draw, int(member)))  # one at a time, for together they may not fit in memory
        for draw in range(len(start.starts))
        for member in start.index[draw % len(start.index)]
    ]
    return fingerprint(text, start.first.problem.traced, members, drawn, tapes, start.common_noise)


def _aligned(starts: Sequence[ReadyRun]) -> list[Any]:
    """The draws' mechanisms, of one kind and equal shapes: where the cheapest differs, all take that of the longest
    gap, for what fits in memory there fits everywhere."""
    mechanisms = [start.mechanism for start in starts]
    if len({mechanism.name for mechanism in mechanisms}) > 1:
        method = max(starts, key=lambda start: start.plan.schedule.gaps.max()).mechanism.method
        mechanisms = [start.protocol.mechanism(start.problem, start.plan, method) for start in starts]
    return mechanisms[0].align(mechanisms)


def _index(axes: Mapping[str, np.ndarray], resample: Sequence[str]) -> np.ndarray:
    """Which members of the grid share a draw: int [points of the axes that resample, members of the other axes]."""
    for name in resample:
        require_choice("axis to resample", name, axes)
    members = np.arange(np.prod([axis.size for axis in axes.values()], dtype=int))
    members = members.reshape([axis.size for axis in axes.values()])
    outer = [place for place, name in enumerate(axes) if name in resample]
    points = np.prod([members.shape[place] for place in outer], dtype=int)
    return np.moveaxis(members, outer, range(len(outer))).reshape(points, -1)


def _rows(index: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """The row of `resampled` that each row of a finer index is in, int [points]; all −1 where nothing is resampled."""
    if len(resampled) == 1:
        return np.full(len(index), -1)
    return np.array([np.flatnonzero((resampled == row[0]).any(axis=1))[0] for row in index])


def _drawn(seed: Seeds, resampled: np.ndarray, point: int, common_noise: bool) -> Seeds:
    """A seed's own at a point: others where it is resampled; where members share no noise, nor do points that share the
    rest."""
    own = seed if resampled[point] < 0 else seed.resample(int(resampled[point]))
    apart = np.flatnonzero(resampled == resampled[point]).size > 1 and not common_noise
    return own._replace(noise=member_seed(own, point)) if apart else own


def number_of(seeds: int | Sequence[int | Seeds]) -> int:
    """Number of seeds."""
    if isinstance(seeds, Sequence) or np.ndim(seeds):
        return len(seeds)  # type: ignore[arg-type]
    require_at_least("seeds", seeds, 1)
    return int(seeds)  # type: ignore[arg-type]


def _seeds(seeds: int | Sequence[int | Seeds]) -> list[Seeds]:
    if isinstance(seeds, Sequence) or np.ndim(seeds):
        each = [as_seeds(seed) for seed in seeds]  # type: ignore[union-attr]
    else:
        require_at_least("seeds", seeds, 1)
        each = [as_seeds(seed) for seed in range(int(seeds))]  # type: ignore[arg-type]
    require_at_least("seeds", len(each), 1)
    if len(set(each)) != len(each):
        raise Refusal(f"seeds must be distinct, got {list(seeds)}")  # type: ignore[arg-type]
    return each


def _labels(seeds: Sequence[Seeds]) -> np.ndarray:
    labels = np.array([seed.noise for seed in seeds])
    return labels if np.unique(labels).size == labels.size else np.arange(len(seeds))
