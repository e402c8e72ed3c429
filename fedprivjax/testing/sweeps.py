"""Properties of sweeps: equality with a loop over runs, an axis for every number, one noise sample per seed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Any

import jax
import numpy as np
import xarray as xr
from jax.extend.core import ClosedJaxpr, Jaxpr

from fedprivjax.checks.numbers import with_numbers
from fedprivjax.engine.finished_run import Run
from fedprivjax.engine.simulate import execute
from fedprivjax.method.seen import costs_of
from fedprivjax.privacy import gdp
from fedprivjax.privacy.calibration import target_of
from fedprivjax.problem.constraints import Ball
from fedprivjax.sweeps.configurations import RADIUS
from fedprivjax.sweeps.execute import chunk_arguments, run_chunk
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.sweeps.results import of_iterate
from fedprivjax.sweeps.sweep import sweep
from fedprivjax.testing.trial import PROBE, TARGETS, Trial, close, default_of, programs_after

MEMBERS, SEEDS, DELTA = 8, (2, 5), 1e-5
DRAWS = ("random_bits", "threefry2x32", "rng_bit_generator")


def sweep_equals_a_loop(trial: Trial) -> None:
    """Check that a grid of noise scales, radii and step sizes equals a loop over runs, and shares one program."""
    over = _grid(trial, 1.0)
    before = programs_after(run_chunk, partial(_swept, trial, _grid(trial, 0.8)))
    grid = _swept(trial, over)
    assert run_chunk._cache_size() <= before, "a grid of other numbers must not recompile the program"
    for *values, seed in list(product(*over.values(), SEEDS))[::3]:
        point = dict(zip(over, values, strict=True))
        _same(grid.sel({**point, "seed": seed}), _alone(trial, point, seed), str(point))


def every_leaf_can_be_swept(trial: Trial) -> None:
    """Check that every number of the protocol, and every privacy target if private, can be swept in one program."""
    before = programs_after(run_chunk, partial(_swept, trial, _grid(trial, 1.0)))
    axes = {name: _around(value) for name, value in trial.numbers.items() if name not in TARGETS}
    if trial.private:
        axes["noise_std"] = _around(trial.numbers["noise_std"])
        mus = np.linspace(0.5, 4, MEMBERS - 1)
        axes["mu"] = np.array([inf, *mus])
        axes["epsilon"] = np.array([inf, *gdp.epsilon(mus, DELTA)])  # already accounted for, for subsampling
    for name, values in axes.items():
        grid = _swept(trial, {name: values})
        for value in (values[0], values[-1]) if name in TARGETS else (values[-1],):
            point = {name: value}
            _same(grid.sel({**point, "seed": SEEDS[0]}), _alone(trial, point, SEEDS[0]), str(point))
    assert run_chunk._cache_size() <= before, "a sweep over another number must not recompile the program"


def noise_is_shared_by_configurations(trial: Trial) -> None:
    """Check that one noise sample serves every configuration of a sweep, and none with `common_noise=False`."""
    shared, count = _draw_shapes(trial, common_noise=True)
    assert shared, "a run with noise must draw something"
    assert not any(count in shape for shape in shared), (
        f"noise samples must have no axis of {count} configurations, got shapes {shared}"
    )
    apart, count = _draw_shapes(trial, common_noise=False)
    assert any(count in shape for shape in apart), (
        f"a noise sample must have an axis of {count} configurations, got shapes {apart}"
    )


def _grid(trial: Trial, factor: float) -> dict[str, np.ndarray]:
    """Return a grid of `MEMBERS` points: noise scales, and step scales and radii if there are such settings.

    For a non-private protocol it is a grid of step sizes, or of step scales if its optimiser has its own step.
    """
    if not trial.private:
        name = "step_size" if "step_size" in trial.numbers else "step_scale"
        return {name: factor * trial.numbers[name] * np.linspace(0.4, 1.5, MEMBERS)}
    ball = isinstance(trial.problem.constraint, Ball)
    axes = {"step_scale": np.array([0.5, 1.5])} if "step_scale" in trial.numbers else {}
    if ball and Ball(0.4 * trial.problem.constraint.radius).contains(trial.problem.start):
        axes[RADIUS] = np.array([0.5, 1.0]) * trial.problem.constraint.radius
    noises = MEMBERS // 2 ** len(axes)
    axes["noise_std"] = trial.numbers["noise_std"] * np.linspace(0.4, 1.5, noises)
    return {name: factor * values for name, values in axes.items()}


def _around(value: float) -> np.ndarray:
    return np.linspace(0.65, 1, MEMBERS) * value if value else np.linspace(0, 0.1, MEMBERS)


def _swept(trial: Trial, over: dict[str, Any]) -> xr.Dataset:
    one_device = {"runs": 1}  # more devices take longer to compile
    options = {**_settings(trial), "over": over, "seeds": SEEDS, "mesh": one_device}
    return sweep(_blank(trial, over), trial.problem, trial.participation, part=None, **options)


def _settings(trial: Trial) -> dict[str, Any]:
    return {"rounds": trial.rounds, "eval_every": 1, "metrics": (PROBE,), "noise_method": "auto"}


def _blank(trial: Trial, names) -> Any:
    """Return the protocol with its noise and step size set, and the swept settings at their defaults."""
    given = {} if set(names) & set(TARGETS) else {"noise_std": trial.numbers["noise_std"]}
    rest = [name for name in names if name not in (*TARGETS, RADIUS)]
    return with_numbers(trial.untargeted, {**given, **{name: default_of(trial.protocol, name) for name in rest}})


def _alone(trial: Trial, point: dict[str, float], seed: int) -> Run:
    """Return the run of one point of a grid."""
    settings = {name: float(value) for name, value in point.items() if name != RADIUS}
    protocol, problem = _blank(trial, settings), trial.problem
    target = {name: settings.pop(name) for name in ("mu", "epsilon") if name in settings}
    if RADIUS in point:
        problem = replace(problem, constraint=Ball(float(point[RADIUS])))
    protocol = with_numbers(protocol, settings)
    aim = target_of(protocol, delta=DELTA, **target)
    return execute(trial.ready(protocol, problem, seed=seed, target=aim, **_settings(trial)))


def _same(cell: xr.Dataset, alone: Run, point: str) -> None:
    close(of_iterate(cell["probe"]).values, alone.metrics["probe"], 1e-4, point)
    close(cell["noise_std"], alone.protocol.noise_std, 1e-6, point)


def _draw_shapes(trial: Trial, *, common_noise: bool) -> tuple[list[tuple[int, ...]], int]:
    """Return the shapes of all samples in a sweep's program, and its number of configurations, a unique size."""
    dimensions = trial.problem.dimension, costs_of(trial.protocol).message_dimension(trial.problem)
    sizes = {*trial.start.plan.size, *dimensions, *np.shape(trial.start.plan.samples)}
    members = next(count for count in (7, 11, 13, 17, 19, 23, 29, 31, 37) if count not in sizes)
    over = {"noise_std": trial.numbers["noise_std"] * np.linspace(0.5, 1.5, members)}
    protocol = _blank(trial, over)
    options = {**_settings(trial), "over": over, "seeds": SEEDS[:1], "common_noise": common_noise}
    start = ready_sweep(protocol, trial.problem, trial.participation, **options)
    arguments = chunk_arguments(start, np.arange(1), np.arange(members))
    program = jax.make_jaxpr(lambda *arrays: run_chunk(*arrays, start.static))(*arguments)
    return list(_drawn(program)), members


def _drawn(program: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of all samples in a program, including those of its loops and calls."""
    for equation in program.eqns:
        if equation.primitive.name in DRAWS:
            yield from (tuple(out.aval.shape) for out in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values())):
            if isinstance(inner, Jaxpr | ClosedJaxpr):
                yield from _drawn(inner)
