"""Grids of hyper-parameters and seeds as one compiled program: `vmap` over members inside `vmap` over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fedprivjax.checks import require_at_least, require_choice, require_positive
from fedprivjax.chunks import chunk_sizes, chunks
from fedprivjax.constraints import Ball
from fedprivjax.metrics import Metric
from fedprivjax.noise import Silent, stack
from fedprivjax.participation import Participation
from fedprivjax.privacy import gdp
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.problem import Problem
from fedprivjax.results import sweep_dataset
from fedprivjax.sampling import Plan, Seeds, as_seeds, draw_plan
from fedprivjax.simulate import Recipe, as_leaves, make_recipe, record_rounds, round_inputs, trajectory

SWEPT = {
    "mu": "GDP target",
    "epsilon": "(ε, δ) target, at the sweep's delta",
    "noise_std": "noise at relative scale 1",
    "step_size": "step",
    "step_scale": "multiple of the step",
    "clip": "bound on a message's norm",
    "radius": "radius of the constraint ball",
}
MEMORY_BUDGET = 2 * 2**30


@dataclass(frozen=True)
class Members:
    """A grid's members, calibrated: protocol and constraint stacked on a leading axis, the rest float64 [members]."""

    protocol: Any
    constraint: Any
    noise_std: np.ndarray
    step_size: np.ndarray
    sensitivity: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A sweep that is ready to run: checked, drawn and calibrated, nothing compiled yet."""

    problem: Problem
    first: Any
    axes: dict[str, np.ndarray]
    seeds: list[Seeds]
    plans: list[Plan]
    recipe: Recipe
    members: Members
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
        """Seeds and members of the grid."""
        return len(self.seeds), self.members.noise_std.size


def sweep(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    over: Mapping[str, Sequence[float]] | None = None,
    seeds: int | Sequence[int | Seeds] = 8,
    rounds: int | None = None,
    record: Sequence[str | Metric] | None = None,
    every: int | None = None,
    delta: float = 1e-5,
    common_noise: bool = True,
    order: str = "shuffled",
    noise_method: str = "auto",
    memory_budget: int = MEMORY_BUDGET,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Run a protocol over a grid of real-valued hyper-parameters and over seeds.

    Args:
        over: values by name, see `SWEPT`; the grid is their product.
        seeds: how many (0, 1, …), or the seeds themselves. Each draws its own schedule, sample order and noise.
        common_noise: members of the grid share each seed's noise (common random numbers); False draws anew for each.
        memory_budget: bytes that a chunk of the sweep may take, roughly; more chunks, same numbers.
        progress: called with (runs finished, runs in all) after every chunk.
        protocol, problem, participation, rounds, record, every, delta, order, noise_method: as in `simulate`.

    Returns:
        A dataset with one dimension per swept name, `seed`, and `round`: each metric, the calibrated `noise_std` and
        `step_size`, `realised_mu` and `realised_epsilon` of the schedule that was used, and `diverged`. Its attributes
        state the guarantee and what it does not cover.

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
            order=order,
            noise_method=noise_method,
            memory_budget=memory_budget,
        ),
        progress,
    )


def prepare(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    over: Mapping[str, Sequence[float]] | None = None,
    seeds: int | Sequence[int | Seeds] = 8,
    rounds: int | None = None,
    record: Sequence[str | Metric] | None = None,
    every: int | None = None,
    delta: float = 1e-5,
    common_noise: bool = True,
    order: str = "shuffled",
    noise_method: str = "auto",
    memory_budget: int = MEMORY_BUDGET,
) -> Prepared:
    """Everything of a `sweep` that happens on the host before it runs: plans, calibration, every refusal."""
    axes = {name: _axis(name, values) for name, values in (over or {}).items()}
    seeds = [as_seeds(seed) for seed in (range(seeds) if isinstance(seeds, int) else seeds)]
    require_at_least("seeds", len(seeds), 1)
    plans = [draw_plan(problem, participation, rounds, seed, order=order) for seed in seeds]
    recipe = make_recipe(problem, plans[0], record, every)
    first, members = _members(protocol, problem, plans[0], axes, delta)
    silent = not members.noise_std.any()
    sources = [Silent() if silent else first.noise(problem, plan, noise_method) for plan in plans]
    runs = len(seeds), members.noise_std.size
    sizes = chunk_sizes(first, sources[0], problem, recipe, runs, memory_budget)
    return Prepared(problem, first, axes, seeds, plans, recipe, members, sources, sizes, delta, common_noise)


def execute(prepared: Prepared, progress: Callable[[int, int], None] | None = None) -> xr.Dataset:
    """Run a prepared sweep, a chunk at a time."""
    p = prepared
    metrics: dict[str, np.ndarray] = {}
    done = 0
    for some, which in chunks(p.runs, p.sizes):
        values = _run_many(
            jax.tree.map(lambda leaf, which=which: leaf[which], (p.members.protocol, p.members.constraint)),
            p.problem,
            (stack([p.sources[i] for i in some]), _stack([round_inputs(p.plans[i]) for i in some])),
            jnp.stack([jax.random.key(p.seeds[i].noise) for i in some]),
            None if p.common_noise else jnp.asarray(which),
            p.recipe,
        )
        for name, value in values.items():
            metrics.setdefault(name, np.full((*p.runs, *value.shape[2:]), np.nan))[np.ix_(some, which)] = value
        done += np.unique(some).size * np.unique(which).size
        if progress:
            progress(done, p.runs[0] * p.runs[1])
    events = [p.first.event(p.problem, plan) for plan in p.plans]
    coordinates = {**p.axes, "seed": _labels(p.seeds), "round": record_rounds(p.recipe)}
    return sweep_dataset(metrics, coordinates, p.members, events, p.first, p.delta, noise=p.noise)


@partial(jax.jit, static_argnames="recipe")
def _run_many(members, problem: Problem, drawn, noise_keys, member_ids, recipe: Recipe):
    """Metrics with leaves [seeds, members, records]; `drawn` (noise source, round inputs) has a leading seed axis."""

    def one(member, member_id, drawn, key):
        (protocol, constraint), (source, inputs) = member, drawn
        key = key if member_id is None else jax.random.fold_in(key, member_id)
        params, metrics = trajectory(protocol, replace(problem, constraint=constraint), source, inputs, key, recipe)
        finite = jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics))]))
        return {**metrics, "diverged": ~finite}

    over_members = jax.vmap(one, in_axes=(0, None if member_ids is None else 0, None, None))
    over_seeds = jax.vmap(over_members, in_axes=(None, None, 0, 0))
    return over_seeds(members, member_ids, drawn, noise_keys)


def _members(
    protocol, problem: Problem, plan: Plan, axes: Mapping[str, np.ndarray], delta: float
) -> tuple[Any, Members]:
    """The first member, calibrated, and all of them stacked."""
    protocols, problems = [], []
    for values in product(*axes.values()):
        settings = dict(zip(axes, map(float, values), strict=True))
        own = _with_radius(problem, settings.pop("radius", None))
        target = {name: settings.pop(name) for name in ("mu", "epsilon") if name in settings}
        if "epsilon" in target:
            target = {"mu": float(gdp.mu(target["epsilon"], delta))}
        member = replace(protocol, **settings, **target)
        protocols.append(calibrate(member, own, plan))
        problems.append(own)
    members = Members(
        protocol=_stack([as_leaves(p) for p in protocols]),
        constraint=_stack([as_leaves(p.constraint) for p in problems]),
        noise_std=np.array([p.noise_std for p in protocols]),
        step_size=np.array([p.step_size * p.step_scale for p in protocols]),
        sensitivity=np.array([p.sensitivity(own, plan.size) for p, own in zip(protocols, problems, strict=True)]),
    )
    return protocols[0], members


def _with_radius(problem: Problem, radius: float | None) -> Problem:
    if radius is None:
        return problem
    if not isinstance(problem.constraint, Ball):
        raise ValueError("radius can be swept for a ball only, and the problem has none")
    ball = Ball(radius)
    if not ball.contains(problem.start):
        raise ValueError(f"start must lie in the constraint set, a ball of radius {radius:g}")
    return replace(problem, constraint=ball)


def _axis(name: str, values: Sequence[float]) -> np.ndarray:
    require_choice("swept setting", name, SWEPT)
    axis = np.atleast_1d(np.asarray(values, float))
    if axis.ndim != 1 or axis.size == 0:
        raise ValueError(f"{name} must be swept over a list of numbers, got {values!r}")
    for value in axis:
        require_positive(name, float(value), infinite=name in ("mu", "epsilon"))
    if np.unique(axis).size != axis.size:
        raise ValueError(f"{name} must be swept over distinct numbers, got {axis.tolist()}")
    return axis


def _labels(seeds: Sequence[Seeds]) -> np.ndarray:
    labels = np.array([seed.noise for seed in seeds])
    return labels if np.unique(labels).size == labels.size else np.arange(len(seeds))


def _stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
