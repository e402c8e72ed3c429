"""Properties of single runs and of sweeps.

Those of runs are of seeds, absence of noise, names of machines, order of slots, and machines that are absent. Those of
sweeps are equality with a loop over runs, an axis for every number, and one noise sample per seed.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Any

import chex
import jax
import numpy as np
import xarray as xr

from fedprivjax.checks.numbers import with_numbers
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.finished_run import Run
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.simulate import execute, run_program
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.participation import Varying
from fedprivjax.plan.seeds import Seeds
from fedprivjax.privacy import gdp
from fedprivjax.privacy.calibration import target_of
from fedprivjax.privacy.target import Target
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.problem import Table
from fedprivjax.problem.traces import equations
from fedprivjax.sweeps.configurations import RADIUS
from fedprivjax.sweeps.execute import chunk_arguments, run_chunk
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.sweeps.sweep import sweep
from fedprivjax.testing.privacy import aggregated
from fedprivjax.testing.trial import PROBE, TARGETS, Trial, apart, close, default_of, first_rounds, programs_after

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
    """Check that a sweep's configurations share one noise sample, and have separate ones with `common_noise=False`."""
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
    draws: Any = (equation for equation in equations(program.jaxpr) if equation.primitive.name in DRAWS)
    return [tuple(out.aval.shape) for draw in draws for out in draw.outvars], members


def seeds_determine_the_run(trial: Trial) -> None:
    """Check that equal seeds give equal runs, and that the noise has a separate seed."""
    again = execute(trial.ready(trial.protocol))
    chex.assert_trees_all_equal(again.metrics, trial.run.metrics)
    assert str(again.guarantee) == str(trial.start.guarantee), "a run must have the guarantee of its prepared run"
    one, two = (execute(trial.ready(trial.protocol, seed=Seeds(1, 1, noise))) for noise in (1, 2))
    np.testing.assert_array_equal(one.plan.samples, two.plan.samples)
    np.testing.assert_array_equal(one.plan.schedule.participants, two.plan.schedule.participants)
    if trial.private:
        apart(one.metrics["probe"], two.metrics["probe"], "another noise seed must change the noise")
    apart(one.metrics["probe"], trial.run.metrics["probe"], "another seed must change the run")


def silent_without_noise(trial: Trial) -> None:
    """Check that `noise_std = 0`, μ = inf and ε = inf give runs without noise, equal to a run with noise of scale 0."""
    silent = execute(trial.silent)
    assert not silent.metrics["noise_norm"].any(), "a run without noise must have none in its aggregate"
    assert not silent.guarantee.private, "a run without noise must have no guarantee"
    for target in (Target(mu=inf, delta=1e-5), Target(epsilon=inf, delta=1e-5)):
        start = trial.ready(trial.untargeted, target=target)
        noise_std = start.protocol.noise_std
        assert noise_std == 0, f"a target {target} must be met without noise, got noise_std = {noise_std}"
        assert not execute(start).metrics["noise_norm"].any(), f"a target {target} must be met without noise"
    arguments = trial.start.arguments
    zero = replace(arguments.protocol, noise_std=np.zeros((), np.float32))
    _, values = run_program(arguments._replace(protocol=zero), trial.start.static)
    chex.assert_trees_all_close(values["probe"], _probe(trial.silent), rtol=1e-4, atol=1e-6)
    apart(silent.metrics["probe"], trial.run.metrics["probe"], "noise must change the run")


def machines_relabelled(trial: Trial) -> str | None:
    """Check that renaming the machines, with their slots and records, does not change the run.

    Returns:
        The reason why the property does not apply, or None.
    """
    start = trial.start
    if not start.mechanism.exchangeable:
        return f"noise of {start.mechanism.name} depends on which machines send"
    names = np.roll(np.arange(start.plan.size.machines), 1)
    other = _renamed(trial, names)
    _, values = run_program(other.arguments, other.static)
    chex.assert_trees_all_close(values["probe"], _probe(start), rtol=1e-5, atol=1e-6)
    one, two = start.guarantee.per_machine, other.event.guarantee(start.delta).per_machine
    np.testing.assert_allclose(two[names], one, rtol=1e-6)
    return None


def order_within_a_round(trial: Trial) -> str | None:
    """Check that the order of a round's machines, with their samples, does not matter in a run without noise.

    Returns:
        The reason why the property does not apply, for machines with randomness of their own, such as in an encoder;
        otherwise None.
    """
    arguments = trial.silent.arguments
    swapped = jax.tree.map(lambda leaf: leaf if leaf.ndim == 1 else leaf[:, ::-1], arguments.inputs)
    _, values = run_program(arguments._replace(inputs=swapped), trial.silent.static)
    path = np.ravel(values["probe"])
    apart(path[-1:], path[len(path) // 2 : len(path) // 2 + 1], "a run must change the reported point")
    if _own_randomness(trial):
        return "machines have randomness of their own, which belongs to their slot"
    chex.assert_trees_all_close(values["probe"], _probe(trial.silent), rtol=1e-4, atol=1e-6)
    return None


def _own_randomness(trial: Trial) -> bool:
    """Return True if a run without noise depends on its key."""
    arguments = trial.silent.arguments
    _, values = run_program(arguments._replace(key=jax.random.fold_in(arguments.key, 1)), trial.silent.static)
    return not np.array_equal(values["probe"], _probe(trial.silent))


def _probe(start: ReadyRun):
    return run_program(start.arguments, start.static)[1]["probe"]


def _renamed(trial: Trial, names: np.ndarray) -> ReadyRun:
    """Return the run in which machine i is named `names[i]`, with all per-machine values."""
    start = trial.start
    schedule = start.plan.schedule
    participants = names[schedule.participants].astype(schedule.participants.dtype)
    own = {name: _moved(value, names) for name, value in vars(start.protocol).items()}
    problem, each = start.problem, ("machine_weights", "own_lipschitz")
    problem = replace(problem, **{name: _moved(getattr(problem, name), names) for name in each})
    if problem.partition_table is not None:
        problem = replace(problem, partition_table=Table(problem.partition_table.rows[np.argsort(names)]))
    protocol = replace(start.protocol, **own)
    schedule = replace(schedule, participants=participants)
    plan = replace(start.plan, schedule=schedule, sampler=protocol.minibatches)
    mechanism = trial.mechanism(protocol, problem, plan, trial.method)
    event = protocol.event(problem, plan)
    return replace(start, protocol=protocol, problem=problem, plan=plan, mechanism=mechanism, event=event)


def _moved(value: Any, names: np.ndarray) -> Any:
    """Return per-machine values in the order of the new names, and any other value unchanged."""
    if isinstance(value, str) or np.ndim(value) != 1 or len(value) != names.size:
        return value
    return tuple(value[old] for old in np.argsort(names))


def absent_machines_leave_no_trace(trial: Trial) -> None:
    """Check that the machine and records of an empty slot change neither the run nor its noise nor its guarantee.

    A protocol that refuses varying numbers of machines passes. For a non-private protocol, only the run is checked.
    """
    start = _varying(trial)
    if start is None:
        return
    other = replace(start.plan, **_with_other_absent_machines(start))
    for t, (one, two) in enumerate(zip(first_rounds(start), first_rounds(start, plan=other), strict=True)):
        same = jax.tree.map(lambda left, right: np.array_equal(left, right, equal_nan=True), one[2], two[2])
        assert all(jax.tree.leaves(same)), (
            f"empty slots must not change the state, and did in round {t + 1}. Multiply messages by inputs.filled, "
            f"update no state of slots where it is 0, and divide by inputs.cohort or inputs.divisor"
        )
    if not trial.private:
        return
    mechanisms = [start.protocol.mechanism(start.problem, plan, trial.method) for plan in (start.plan, other)]
    one, two = (aggregated(start, mechanism, 1) for mechanism in mechanisms)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    one, two = (start.protocol.event(start.problem, plan).guarantee(start.delta) for plan in (start.plan, other))
    np.testing.assert_array_equal(one.per_machine, two.per_machine)


def dropouts_count_as_planned(trial: Trial) -> None:
    """Check that dropouts improve no machine's guarantee, not even that of a machine that drops out.

    A protocol that refuses dropouts passes.
    """
    start = _varying(trial)
    if start is None:
        return
    schedule = start.plan.schedule
    dropped = schedule.present & (np.arange(schedule.size.per_round) > 0)
    plan = replace(start.plan, schedule=replace(schedule, dropped=dropped))
    assert plan.weights is not None  # set for cohorts of varying size
    plan = replace(plan, weights=np.where(dropped[..., None], 0.0, plan.weights).astype(np.float32))
    try:
        start.protocol.check(start.problem, plan)
        sent = start.protocol.event(start.problem, plan).guarantee(start.delta)
    except Refusal:
        return
    planned = start.protocol.event(start.problem, start.plan).guarantee(start.delta)
    assert dropped.any()
    assert (sent.per_machine >= planned.per_machine * (1 - 1e-9)).all(), "a guarantee must not count on dropouts"


def _varying(trial: Trial) -> ReadyRun | None:
    """Return the prepared run with cohorts of any size up to the trial's, or None if rejected or `per_round` is 1."""
    machines, per_round, _ = trial.start.plan.size
    if per_round == 1:
        return None
    varying = replace(trial, participation=Varying.between(machines, 1, per_round))
    try:
        return varying.ready(trial.protocol)
    except Refusal:
        return None


def _with_other_absent_machines(start: ReadyRun) -> dict:
    """Return the plan's schedule and samples with other machines and records in the empty slots."""
    schedule, samples = start.plan.schedule, start.plan.samples
    participants, everyone = schedule.participants.copy(), np.arange(schedule.machines)
    for row, present in zip(participants, schedule.present, strict=True):
        others = np.setdiff1d(everyone, row[present])[::-1]
        row[~present] = others[: (~present).sum()]
    absent = ~schedule.present.reshape(*schedule.present.shape, *[1] * (samples.ndim - 2))
    samples = np.where(absent, (samples + 1) % start.problem.examples, samples).astype(samples.dtype)
    return {"schedule": replace(schedule, participants=participants), "samples": samples}
