"""Reports of a sweep's evaluations to a callback on the host, as its chunks arrive."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.engine.hosts import from_first, is_first, together
from fedprivjax.engine.prepare import evaluation_rounds
from fedprivjax.sweeps.configurations import seed_labels
from fedprivjax.sweeps.prepare import ReadySweep

OnEvaluation = Callable[[dict[str, Any], int, dict[str, float]], Any]


class FinishedRun(NamedTuple):
    """The evaluations of one run of a sweep.

    Attributes:
        at: values of the grid's axes by name, and the seed.
        seed_number: position of the seed among the sweep's seeds.
        rounds: completed rounds at each evaluation.
        metrics: values of the output by metric, one for each evaluation.
    """

    at: dict[str, Any]
    seed_number: int
    rounds: list[int]
    metrics: dict[str, list[float]]


OnRun = Callable[[FinishedRun], None]


def by_evaluation(
    on_evaluation: OnEvaluation | None, places: Sequence[Mapping[str, Any]] = ({},), *, number_seeds: bool = False
) -> OnRun | None:
    """Return a function that reports every evaluation of a finished run to a callback, or None without a callback.

    Args:
        on_evaluation: as in `sweep`.
        places: keys that are put before those of the index. The run is reported once for each.
        number_seeds: True to report the position of a seed in place of the seed.

    Raises:
        Refusal: if `on_evaluation` is neither None nor a callable.

    >>> report = by_evaluation(print, [{"protocol": "ours"}])
    >>> report(FinishedRun({"mu": 2.0, "seed": 0}, 0, [5, 10], {"test_loss": [0.5, 0.25]}))
    {'protocol': 'ours', 'mu': 2.0, 'seed': 0} 5 {'test_loss': 0.5}
    {'protocol': 'ours', 'mu': 2.0, 'seed': 0} 10 {'test_loss': 0.25}
    """
    if on_evaluation is None:
        return None
    if not callable(on_evaluation):
        raise Refusal(f"on_evaluation must be a callable (index, round, metrics), got {called(on_evaluation)}")

    def report(run: FinishedRun) -> None:
        seed = {"seed": run.seed_number} if number_seeds else {}
        for place in places:
            for number, done in enumerate(run.rounds):
                metrics = {name: values[number] for name, values in run.metrics.items()}
                on_evaluation({**place, **run.at, **seed}, done, metrics)

    return report


def report_chunk(
    on_run: OnRun | None, start: ReadySweep, indices: tuple[np.ndarray, np.ndarray], values: Mapping[str, np.ndarray]
) -> None:
    """Report the runs of a chunk, in the first process only.

    Args:
        on_run: function that gets every run, or None.
        indices: draws and columns of the chunk.
        values: metrics, each of shape [draws, columns, evaluations] or [draws, columns, evaluations, iterates], and
            followed by the axis of a vector.

    Raises:
        Exception: the exception of `on_run`, in all processes of the sweep's mesh.
    """
    if on_run is None:
        return
    if together(start.mesh):
        from_first(partial(_report, on_run, start, indices, values))
    elif is_first():
        _report(on_run, start, indices, values)


def _report(
    on_run: OnRun, start: ReadySweep, indices: tuple[np.ndarray, np.ndarray], values: Mapping[str, np.ndarray]
) -> None:
    draws, columns = map(np.unique, indices)  # without the last one repeated, which fills a short chunk
    rounds = evaluation_rounds(start.static).tolist()
    shape, seeds = [len(axis) for axis in start.axes.values()], seed_labels(start.seeds).tolist()
    places, outputs = start.configurations_of(draws, columns), _of_output(start, values)
    for row, draw in enumerate(draws.tolist()):
        seed = draw // len(start.index)
        for column, place in enumerate(places[row].tolist()):
            numbers = zip(start.axes.items(), np.unravel_index(place, shape), strict=True)
            at = {name: float(axis[number]) for (name, axis), number in numbers} | {"seed": seeds[seed]}
            metrics = {name: value[row, column].tolist() for name, value in outputs.items()}
            on_run(FinishedRun(at, seed, rounds, metrics))


def _of_output(start: ReadySweep, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the metrics of the output by name, each of shape [draws, columns, evaluations]."""
    found = {metric.name: np.asarray(values[metric.name]) for metric in start.static.metrics}
    several = {metric.name for metric in start.static.metrics if start.has_iterates(metric)}
    return {name: value[:, :, :, 0] if name in several else value for name, value in found.items()}
