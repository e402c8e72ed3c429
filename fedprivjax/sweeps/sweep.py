"""Grids of hyper-parameters and seeds as one compiled program: `vmap` over members inside `vmap` over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh, PartitionSpec

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice
from fedprivjax.engine.iterates import iterate_names
from fedprivjax.engine.metrics import Recordable, non_private
from fedprivjax.engine.simulate import Recipe, make_recipe, record_rounds, round_inputs, trajectory
from fedprivjax.noise import METHODS, Silent, aligned
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.plan import Plan, Seeds, as_seeds, draw_plan
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.members import Members, axes_of, members_of, stacked
from fedprivjax.sweeps.memory import chunk_sizes, chunks
from fedprivjax.sweeps.results import attributes, sweep_dataset
from fedprivjax.sweeps.store import ChunkStore, fingerprint

MEMORY_BUDGET = 2 * 2**30
AXIS = "runs"


@dataclass(frozen=True)
class Prepared:
    """A sweep that is ready to run: checked, drawn and calibrated, nothing compiled yet.

    `first` is the first member's protocol, `first_problem` its problem. Randomness is drawn for every *draw*: a seed at
    a point of the axes along which it is drawn anew; draw i is seed i // points at point i % points. `index` tells
    which members of the grid share a draw, int [points, members of a draw]; `sizes` are a chunk's draws and members.
    """

    problem: Problem
    first: Any
    first_problem: Problem
    axes: dict[str, np.ndarray]
    seeds: list[Seeds]
    draws: list[Seeds]
    plans: list[Plan]
    recipe: Recipe
    members: Members
    index: np.ndarray
    sources: list[Any]
    sizes: tuple[int, int]
    delta: float
    common_noise: bool

    @property
    def noise(self) -> str:
        """How the noise is produced and shared, in words."""
        shared = "shared by the grid's members" if self.common_noise else "drawn anew for each member"
        return f"{type(self.sources[0]).__name__.lower()}, {shared}"

    @property
    def runs(self) -> tuple[int, int]:
        """Draws, and members that share one."""
        return len(self.draws), self.index.shape[1]

    @property
    def non_private(self) -> tuple[str, ...]:
        """Recorded metrics that are computed on private data."""
        return non_private(self.problem, self.recipe.record)

    @property
    def iterates(self) -> tuple[str, ...]:
        """The iterates that metrics of parameters are recorded for."""
        return iterate_names(self.first, self.first_problem, self.recipe.size)

    def event(self, plan: Plan):
        """What the first member does to privacy on a plan; its assumptions name no radius that is swept."""
        event = self.first.event(self.first_problem, plan)
        if "radius" not in self.axes:
            return event
        kept = tuple(a for a in event.assumptions if "Lipschitz" not in a)
        constants = "losses have each member's Lipschitz (and smoothness) constant on its own ball"
        return replace(event, assumptions=kept if kept == event.assumptions else (*kept, constants))

    def realised(self) -> dict[str, np.ndarray]:
        """What each run's own schedule makes of privacy, [seeds, members]."""
        with np.errstate(divide="ignore"):
            ratio = self.members.noise_std / self.members.sensitivity
        mu, epsilon = (np.empty((len(self.seeds), self.index.size)) for _ in range(2))
        for draw, plan in enumerate(self.plans):
            seed, members = draw // len(self.index), self.index[draw % len(self.index)]
            event = self.event(plan)
            mu[seed, members] = event.mu(ratio[members])
            epsilon[seed, members] = event.epsilon(ratio[members], self.delta)
        return {"realised_mu": mu, "realised_epsilon": epsilon}


def sweep(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    over: Mapping[str, Sequence[float]] | None = None,
    seeds: int | Sequence[int | Seeds] = 8,
    rounds: int | None = None,
    record: Sequence[Recordable] | None = None,
    every: int | None = None,
    delta: float = 1e-5,
    common_noise: bool = True,
    anew: Sequence[str] = (),
    order: str = "shuffled",
    noise_method: str = "auto",
    memory_budget: int = MEMORY_BUDGET,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Run a protocol over a grid of real-valued hyper-parameters and over seeds.

    Args:
        over: values by name, see `members.SWEPT`; the grid is their product.
        seeds: how many (0, 1, …), or the seeds themselves. Each draws its own schedule, sample order and noise.
        common_noise: members of the grid share each seed's noise (common random numbers); False draws anew for each.
        anew: swept names along which everything random (participation, samples, noise) is drawn anew. Needed where one
            selects along an axis: common random numbers keep each member's law, but not that of the selected best.
        memory_budget: bytes that a chunk of the sweep may take on a device, roughly; more chunks, same numbers.
        folder: keeps every finished chunk here, and goes on from what is there: a killed sweep loses nothing finished.
        mesh: one-dimensional mesh of devices to spread the runs over; None takes all devices.
        progress: called with (runs finished, runs in all) after every chunk.
        protocol, problem, participation, rounds, record, every, delta, order, noise_method: as in `simulate`.

    Returns:
        A dataset with one dimension per swept name, `seed`, `round`, and, where the protocol has other iterates than
        its output, `iterate`: each metric, the calibrated `noise_std` and `step_size`, `realised_mu` and
        `realised_epsilon` of the schedule that was used, and `diverged`. Its attributes state the guarantee and what
        it does not cover.

    Raises:
        ValueError: settings that cannot be run, before anything is compiled.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [2.0, 8.0]}, seeds=2, rounds=20)
    >>> dict(grid.test_accuracy.isel(round=-1).sizes)
    {'mu': 2, 'seed': 2}
    """
    return execute(
        prepare(
            protocol,
            problem,
            participation,
            over=over,
            seeds=seeds,
            rounds=rounds,
            record=record,
            every=every,
            delta=delta,
            common_noise=common_noise,
            anew=anew,
            order=order,
            noise_method=noise_method,
            memory_budget=memory_budget,
            devices=jax.device_count() if mesh is None else mesh.size,
        ),
        progress,
        None if folder is None else Path(folder),
        mesh,
    )


def prepare(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    over: Mapping[str, Sequence[float]] | None = None,
    seeds: int | Sequence[int | Seeds] = 8,
    rounds: int | None = None,
    record: Sequence[Recordable] | None = None,
    every: int | None = None,
    delta: float = 1e-5,
    common_noise: bool = True,
    anew: Sequence[str] = (),
    order: str = "shuffled",
    noise_method: str = "auto",
    memory_budget: int = MEMORY_BUDGET,
    devices: int = 1,
) -> Prepared:
    """Everything of a `sweep` that happens on the host before it runs: plans, calibration, every refusal."""
    axes = axes_of(over)
    require_between("delta", delta, 0, 1)
    require_choice("noise method", noise_method, METHODS)
    seeds = _seeds(seeds)
    index = _index(axes, anew)
    draws = seeds if len(index) == 1 else [seed.anew(point) for seed in seeds for point in range(len(index))]
    sampling = getattr(protocol, "sampling", None)
    plans = [draw_plan(problem, participation, rounds, draw, order=order, sampling=sampling) for draw in draws]
    recipe = make_recipe(problem, plans[0], record, every)
    first, first_problem, members = members_of(protocol, problem, plans[0], axes, delta)
    silent = not members.noise_std.any()
    sources = aligned([Silent() if silent else first.noise(first_problem, plan, noise_method) for plan in plans])
    runs = len(draws), index.shape[1]
    sizes = chunk_sizes(first, sources[0], problem, recipe, runs, memory_budget, devices, plans[0].width)
    return Prepared(
        problem=problem,
        first=first,
        first_problem=first_problem,
        axes=axes,
        seeds=seeds,
        draws=draws,
        plans=plans,
        recipe=recipe,
        members=members,
        index=index,
        sources=sources,
        sizes=sizes,
        delta=delta,
        common_noise=common_noise,
    )


def execute(
    prepared: Prepared,
    progress: Callable[[int, int], None] | None = None,
    folder: Path | None = None,
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Run a prepared sweep, a chunk at a time; arguments as in `sweep`."""
    p = prepared
    store = None if folder is None else ChunkStore(folder, _fingerprint(p))
    sizes = p.sizes if store is None else store.settle(p.sizes)
    spread = _spread(mesh, sizes)
    metrics: dict[str, np.ndarray] = {}
    done = 0
    for index, (some, which) in enumerate(chunks(p.runs, sizes)):
        values = store.load(index) if store else None
        if values is None:
            values = _chunk(p, some, which, spread)
            if store:
                store.save(index, values)
        seeds, members = some // len(p.index), p.index[some % len(p.index)][:, which]
        for name, value in values.items():
            whole = metrics.setdefault(name, np.full((len(p.seeds), p.index.size, *value.shape[2:]), np.nan))
            whole[seeds[:, None], members] = value
        done += np.unique(some).size * np.unique(which).size
        if progress:
            progress(done, p.runs[0] * p.runs[1])
    records = {"round": record_rounds(p.recipe), "iterate": np.array(p.iterates)}
    coordinates = {**p.axes, "seed": _labels(p.seeds), **records}
    said = attributes(p.event(p.plans[0]), p.first, p.delta, p.noise, p.non_private)
    return sweep_dataset({**metrics, **p.realised()}, coordinates, p.members, said)


def _chunk(p: Prepared, some: np.ndarray, which: np.ndarray, spread) -> dict[str, np.ndarray]:
    """The metrics of some draws and of members that share them, [draws, members, ...]."""
    members = p.index[some % len(p.index)][:, which]
    values = _run_many(
        jax.tree.map(lambda leaf: leaf[members], (p.members.protocol, p.members.constraint)),
        p.problem.traced,
        (stacked([p.sources[i] for i in some]), stacked([round_inputs(p.plans[i]) for i in some])),
        jnp.stack([jax.random.key(p.draws[i].noise) for i in some]),
        None if p.common_noise else jnp.asarray(which),
        p.recipe,
        spread,
    )
    return {name: np.asarray(value) for name, value in values.items()}


@partial(jax.jit, static_argnames=("recipe", "spread"))
def _run_many(members, problem: Problem, drawn, noise_keys, member_ids, recipe: Recipe, spread=None):
    """Metrics with leaves [draws, members, records] or [draws, members, records, iterates].

    `members` have leaves [draws, members, ...], `drawn` (noise source, round inputs) a leading axis of draws. `spread`
    is a mesh and which of the two axes divides over it, or None for one device.
    """

    def run_all(members, problem, drawn, noise_keys, member_ids):
        def one(member, member_id, drawn, key):
            (protocol, constraint), (source, inputs) = member, drawn
            key = key if member_id is None else jax.random.fold_in(key, member_id)
            params, metrics = trajectory(protocol, replace(problem, constraint=constraint), source, inputs, key, recipe)
            finite = jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics))]))
            return {**metrics, "diverged": ~finite}

        over_members = jax.vmap(one, in_axes=(0, None if member_ids is None else 0, None, None))
        over_draws = jax.vmap(over_members, in_axes=(0, None, 0, 0))
        return over_draws(members, member_ids, drawn, noise_keys)

    if spread is not None:
        mesh, by_draw = spread
        (axis,) = mesh.axis_names
        draw, both, ids = PartitionSpec(axis), PartitionSpec(axis), PartitionSpec()
        if not by_draw:
            draw, both, ids = PartitionSpec(), PartitionSpec(None, axis), PartitionSpec(axis)
        specs = (both, PartitionSpec(), draw, draw, ids)
        run_all = jax.shard_map(run_all, mesh=mesh, in_specs=specs, out_specs=both, check_vma=False)
    return run_all(members, problem, drawn, noise_keys, member_ids)


def _spread(mesh: Mesh | None, sizes: tuple[int, int]) -> tuple[Mesh, bool] | None:
    """A mesh and whether a chunk's draws, rather than its members, divide over it; None for one device.

    Without a mesh all devices are taken, where the chunk divides over them.
    """
    given = mesh is not None
    # a mesh made anew has axes of the kind that shard_map divides, whatever kind the user's are
    mesh = Mesh(np.array(jax.devices()), (AXIS,)) if mesh is None else Mesh(mesh.devices, mesh.axis_names)
    if len(mesh.axis_names) != 1:
        raise Refusal(f"mesh must have one axis, got {mesh.axis_names}")
    divides = [size % mesh.size == 0 for size in sizes]
    if given and not any(divides):
        raise Refusal(f"a chunk's draws ({sizes[0]}) or members ({sizes[1]}) must divide over {mesh.size} devices")
    return None if mesh.size == 1 or not any(divides) else (mesh, divides[0])


def _fingerprint(p: Prepared) -> str:
    problem = p.problem.model, p.problem.excess, getattr(p.problem.pool, "generate", None)
    statics = (repr(p.first), p.recipe, type(p.sources[0]).__name__, p.delta, p.common_noise, *problem)
    plans = [(plan.schedule.participants, plan.schedule.filled, plan.samples, plan.weights) for plan in p.plans]
    return fingerprint(statics, p.problem, p.members.protocol, p.members.constraint, p.index, plans, p.draws)


def _index(axes: Mapping[str, np.ndarray], anew: Sequence[str]) -> np.ndarray:
    """Which members of the grid share a draw: int [points of the axes drawn anew, members of the other axes]."""
    for name in anew:
        require_choice("axis to draw anew", name, axes)
    grid = np.arange(np.prod([axis.size for axis in axes.values()], dtype=int)).reshape([a.size for a in axes.values()])
    outer = [place for place, name in enumerate(axes) if name in anew]
    points = np.prod([grid.shape[place] for place in outer], dtype=int)
    return np.moveaxis(grid, outer, range(len(outer))).reshape(points, -1)


def _seeds(seeds: int | Sequence[int | Seeds]) -> list[Seeds]:
    if isinstance(seeds, Sequence) or np.ndim(seeds):
        found = [as_seeds(seed) for seed in seeds]  # type: ignore[union-attr]
    else:
        require_at_least("seeds", seeds, 1)
        found = [as_seeds(seed) for seed in range(int(seeds))]  # type: ignore[arg-type]
    require_at_least("seeds", len(found), 1)
    if len(set(found)) != len(found):
        raise Refusal(f"seeds must be distinct, got {list(seeds)}")  # type: ignore[arg-type]
    return found


def _labels(seeds: Sequence[Seeds]) -> np.ndarray:
    labels = np.array([seed.noise for seed in seeds])
    return labels if np.unique(labels).size == labels.size else np.arange(len(seeds))
