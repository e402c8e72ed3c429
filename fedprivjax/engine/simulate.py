"""Simulation of one run, the whole protocol as one jitted scan over pure state, and the local baseline.

The baseline are metrics of the models that machines fit to their own records, without communication. It is the same for
every protocol: full-batch projected gradient descent from the problem's start, on the mean loss of the machine's
records, without clipping and without noise. The first step is 1/L, or 1 if the smoothness L is unknown. A step is
accepted if the new loss is at most the quadratic upper bound with curvature 1/step. The step size grows by a fifth
after an accepted step and is halved after a rejected one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, known_keywords, require_at_least, require_flag
from fedprivjax.engine.checkpoint import computed_in_folder
from fedprivjax.engine.chunked_sums import summed
from fedprivjax.engine.fingerprint import require_equal_runs
from fedprivjax.engine.finished_run import Run
from fedprivjax.engine.hosts import is_first, local, replicated
from fedprivjax.engine.kept_state import keeps, kept_of, of_carry
from fedprivjax.engine.metric import OUTPUT, Metric, Snapshot, by_iterate, iterate_names
from fedprivjax.engine.metrics import MetricLike, non_private
from fedprivjax.engine.prepare import Arguments, ReadyRun, StaticArguments, evaluation_rounds, ready
from fedprivjax.engine.progress import OnProgress, progress_callback
from fedprivjax.engine.published import COMPUTED, HIDDEN, plan_of_run, protocol_of_run
from fedprivjax.engine.segments import Done, Segments, trajectory, with_part_of_carry
from fedprivjax.method.protocol import Protocol
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds
from fedprivjax.problem.predictor import predictor_of
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import FLOAT32, typed_jit

STEPS = 300  # including rejected steps
MOST = 100  # largest number of trained machines; a fixed random subset of more machines
TOGETHER = 8  # machines trained at once
LONGER, SHORTER = 1.2, 0.5  # factors of the step size after an accepted and a rejected step
OnEvaluation = Callable[[int, dict[str, float]], Any]


def machines_of(problem: Problem) -> int:
    """Return the number of machines in the partition table.

    Raises:
        Refusal: if the machines share one pool.
    """
    if problem.partition_table is None:
        remedy = "Add problem.partition, or leave 'alone' out of evaluation.baselines"
        raise Refusal(f"baseline 'alone' must go with machines that own records, got a shared pool. {remedy}")
    return len(problem.partition_table.rows)


def machines_alone(problem: Problem) -> np.ndarray:
    """Return the machines that are trained: all, or a fixed random subset of `MOST`; int, shape [trained]."""
    return np.sort(np.random.default_rng(0).permutation(machines_of(problem))[:MOST])


def alone(problem: Problem, metrics: Sequence[Metric]) -> dict[str, np.ndarray]:
    """Return metrics of each machine's local model by name, for metrics of parameters; float32, shape [trained].

    Raises:
        Refusal: if the machines share one pool.
    """
    trained = machines_alone(problem)
    assert problem.partition_table is not None
    together = min(TOGETHER, len(trained))
    rows = problem.partition_table.rows[np.resize(trained, -(-len(trained) // together) * together)]
    step = 1 / problem.smoothness if isfinite(problem.smoothness) else 1.0
    of_params = tuple(metric for metric in metrics if metric.of == "params" and not metric.axis)
    values = _program(problem.traced, rows.reshape(-1, together, rows.shape[1]), np.float32(step), of_params)
    return {name: np.ravel(value)[: len(trained)] for name, value in values.items()}


@typed_jit(static_argnames="metrics")
def _program(problem: Problem, rows, step, metrics: tuple[Metric, ...]):
    """Return metrics by name, shape [groups, together], for record indices `rows` [groups, together, max_records]."""

    def one(own):
        snapshot = Snapshot(trained_on(problem, own, step), shared={})
        return {metric.name: metric.function(problem, snapshot) for metric in metrics}

    return jax.lax.map(jax.vmap(one), rows)


def trained_on(problem: Problem, rows, step):
    """Return the parameters after `STEPS` steps on one machine's records.

    Args:
        rows: indices into the pool, int [max_records], padded with −1.
        step: first step size.
    """
    model: Any = problem.model
    weights = (rows >= 0) / jnp.maximum(jnp.sum(rows >= 0), 1)
    data = problem.take(jnp.maximum(rows, 0)), weights

    def total(params, chunk, fresh):
        examples, weights = chunk
        weights = weights if fresh is None else weights * fresh
        losses = jax.vmap(partial(model.value, params))(examples)
        (gradient,) = model.summed_gradients((params,), examples, weights)
        return jnp.sum(jnp.where(weights > 0, weights * losses, 0.0)), gradient.value

    def of(params):
        return params, *summed(problem, partial(total, params), data)

    def advanced(state, _):
        (params, loss, gradient), step = state
        new = of(problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, params, gradient)))
        move = jax.tree.map(jnp.subtract, new[0], params)
        good = new[1] <= loss + _dot(gradient, move) + _dot(move, move) / (2 * step)
        kept = jax.tree.map(partial(jnp.where, good), new, (params, loss, gradient))
        return (kept, step * jnp.where(good, LONGER, SHORTER)), None

    ((params, *_), _), _ = jax.lax.scan(advanced, (of(problem.start), step), length=STEPS)
    return params


def _dot(one, other):
    return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@known_keywords
def simulate(
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    metrics: Sequence[MetricLike] | None = None,
    eval_every: int | None = None,
    delta: float = 1e-5,
    order: str = "shuffled",
    noise_method: str = "auto",
    progress: bool | OnProgress | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    precision: str = FLOAT32,
    on_evaluation: OnEvaluation | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep_own: bool = True,
) -> Run:
    """Run one protocol on one problem, and return the finished run.

    Arguments that are not listed below are those of `ready`.

    Args:
        progress: True displays the completed rounds and the time left at every evaluation. A callable is called at
            every evaluation, with (completed rounds, total rounds).
        on_evaluation: function that is called with (completed rounds, metrics) after every evaluation, on the host.
            `metrics` holds the values of this evaluation by name. An exception in the function ends the run.
        folder: folder in which checkpoints of the run are saved, as `checkpoint.npz`. If the run is interrupted, the
            same call resumes it, and the results are the same bit for bit. If the run is finished, the call returns its
            saved results. None saves nothing.
        checkpoint_every: number of rounds between checkpoints, rounded up to a multiple of `eval_every`. None writes
            about 20 checkpoints.
        keep_own: True to return the states that machines keep between rounds, such as personal models, as `run.own`.

    With `progress`, `on_evaluation` or `folder`, another program computes the run in segments that end at evaluations.
    Its results differ by rounding at most.

    **Privacy.** The guarantee covers metrics that are computed from the parameters and public data. It covers neither
    `run.non_private_metrics`, which the callback also receives, nor `run.own`. Each machine may be shown its own state
    in `run.own`.

    **Resuming.** A run can be resumed only with the code, data, settings and seeds with which it began. Callbacks
    receive the evaluations after the last checkpoint again. `run.costs["seconds"]` counts the last call only.

    A call with more `rounds` than before continues the run after its last round. The guarantee is for all rounds
    together. It does not cover a decision to continue that was based on private results.

    A checkpoint contains the whole state of the run. No guarantee covers a checkpoint: keep it secret.

    Raises:
        Refusal: before anything is compiled, if the settings are invalid or differ from the checkpoint's settings, or
            if the checkpoint is damaged. With `folder`, Refusal is also raised at the first checkpoint if the protocol
            or a metric calls a function on the host.

    >>> from fedprivjax import Ball, DPMu2, Full, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> run = simulate(DPMu2(mu=8.0, clip=1.6), problem, Full(20), seed=1, eval_every=71)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.7), round(run.guarantee.epsilon, 1)
    (True, 65.3)

    >>> seen = []
    >>> run = simulate(run.protocol, problem, Full(20), eval_every=36, on_evaluation=lambda *at: seen.append(at))
    >>> [rounds for rounds, _ in seen], list(seen[-1][1]) == list(run.metrics)
    ([36, 71], True)
    """
    if on_evaluation is not None and not callable(on_evaluation):
        raise Refusal(f"on_evaluation must be a callable (rounds, metrics), got {called(on_evaluation)}")
    require_flag("keep_own", keep_own)
    _check_folder(folder, checkpoint_every)
    options = {"rounds": rounds, "seed": seed, "metrics": metrics, "eval_every": eval_every, "delta": delta}
    options |= {"order": order, "noise_method": noise_method, "mesh": mesh, "precision": precision}
    start = ready(protocol, problem, participation, **options)
    with progress_callback(progress, start.protocol.name, "rounds") as on_progress:
        return execute(start, on_progress, on_evaluation, folder, checkpoint_every, keep_own=keep_own)


def _check_folder(folder: str | Path | None, checkpoint_every: int | None) -> None:
    """Raise Refusal unless a run can write its checkpoints."""
    if folder is None:
        if checkpoint_every is not None:
            raise Refusal(f"checkpoint_every must go with folder, got {checkpoint_every} alone. Give folder")
        return
    if not isinstance(folder, str | Path) or Path(folder).is_file():
        raise Refusal(f"folder must be a folder, got {called(folder)}")
    if checkpoint_every is not None:
        require_at_least("checkpoint_every", checkpoint_every, 1)
    if jax.process_count() > 1:
        raise Refusal(f"folder must go with one process, got {jax.process_count()}. Leave it out")


def execute(
    start: ReadyRun,
    on_progress: OnProgress | None = None,
    on_evaluation: OnEvaluation | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    *,
    keep_own: bool = True,
) -> Run:
    """Execute a prepared run.

    Args:
        on_progress: progress callback, called with (completed rounds, total rounds) at every evaluation.
        on_evaluation, folder, checkpoint_every, keep_own: as in `simulate`.
    """
    require_equal_runs(start)
    heard = on_progress is not None or on_evaluation is not None
    names = iterate_names(start.protocol, start.problem, start.plan.size)
    report = partial(_report, start, names, on_progress, on_evaluation) if heard else None
    began = perf_counter()
    keep_own = keep_own and keeps(start) and jax.process_count() == 1
    own, (params, values) = local(jax.block_until_ready(_computed(start, report, folder, checkpoint_every, keep_own)))
    costs = start.costs | {"seconds": perf_counter() - began}
    iterates = by_iterate(start.static.metrics, names, values)
    return Run(
        rounds=evaluation_rounds(start.static),
        iterates=iterates,
        params=params,
        guarantee=start.guarantee,
        costs=costs,
        method=str(start.protocol),
        predictor=predictor_of(start.problem),
        kept=kept_of(start, own),
        protocol=protocol_of_run(start),
        plan=plan_of_run(start),
        non_private_metrics=non_private(start.problem, start.static.metrics),
        non_private_data=start.published.not_covered,
        expected=start.published.expected,
        data_used=start.published.data_used or (HIDDEN if start.problem.stored else COMPUTED),
        worse_than_constant=worse_than_constant(start.problem, start.static.metrics, iterates[OUTPUT]),
        client_names=start.problem.client_names,
    )


def worse_than_constant(
    problem: Problem, metrics: Iterable[Metric], values: Mapping[str, np.ndarray]
) -> dict[str, tuple[str, str]]:
    """Return the last value and the constant predictor's as text, of each metric for which the constant is better.

    The constant predictor is computed from the training labels, without privacy.

    Args:
        values: recorded metrics by name, shape [evaluations].
    """
    found = {}
    for metric in metrics:
        constant = metric.constant(problem)
        if constant is not None and metric.name in values:
            last, sign = float(values[metric.name][-1]), 1 if metric.better == "higher" else -1
            if sign * last < sign * constant:
                unit = "%" if metric.unit == "%" else ""
                found[metric.name] = (f"{metric.text(last)}{unit}", f"{metric.text(constant)}{unit}")
    return found


def _computed(
    start: ReadyRun,
    report: Callable[[Done], Any] | None,
    folder: str | Path | None,
    checkpoint_every: int | None,
    keep_own: bool,
):
    """Return the states of machines if `keep_own`, else (), and (reported parameters, metrics of all evaluations)."""
    if folder is not None:
        return computed_in_folder(start, Path(folder), checkpoint_every, report, keep_own)
    if report is None:
        program = program_with_states if keep_own else run_program
        found = program(replicated(start.arguments, start.static.mesh), start.static)
        return found if keep_own else ((), found)
    segments = Segments(start)
    for done in segments.run(range(1, segments.evaluations + 1), lambda end: False):
        report(done)
    return of_carry(segments.carry) if keep_own else (), segments.output()


def _report(
    start: ReadyRun,
    names: Sequence[str],
    on_progress: OnProgress | None,
    on_evaluation: OnEvaluation | None,
    done: Done,
) -> None:
    """Call the callbacks of an evaluation in the first process."""
    if not is_first():
        return
    if on_evaluation is not None:
        latest = {name: np.asarray(value)[None] for name, value in done.latest.items()}
        values = by_iterate(start.static.metrics, names, latest)[OUTPUT]
        each = {name: value[0] if value.ndim > 1 else float(value[0]) for name, value in values.items()}
        on_evaluation(done.rounds, each)
    if on_progress is not None:
        on_progress(done.rounds, start.static.size.rounds)


@typed_jit(static_argnames="static")
def run_program(arguments: Arguments, static: StaticArguments):
    """Compiled program of one run, see `trajectory`."""
    return trajectory(arguments, static)


@typed_jit(static_argnames="static")
def program_with_states(arguments: Arguments, static: StaticArguments):
    """Compiled program of one run that also returns the states of machines, see `with_part_of_carry`."""
    return with_part_of_carry(arguments, static, of_carry)
