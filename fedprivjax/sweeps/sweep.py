"""Sweeps of a protocol over a grid of hyper-parameters and over seeds: `sweep`.

Swept integers need one program for each value. The datasets of their single sweeps are joined.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jax.sharding import Mesh

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, known_keywords, require_at_least
from fedprivjax.engine.metrics import MetricLike
from fedprivjax.engine.progress import OnProgress, progress_callback, shifted, step_callback
from fedprivjax.method.protocol import Protocol
from fedprivjax.plan.arguments import require_arguments
from fedprivjax.plan.draw import require_possible
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import FLOAT32, make_room
from fedprivjax.sweeps.configurations import axes_of
from fedprivjax.sweeps.evaluations import OnEvaluation, by_evaluation
from fedprivjax.sweeps.execute import execute, execute_together
from fedprivjax.sweeps.memory import MEMORY_BUDGET, MIN_CHUNKS, sweep_mesh
from fedprivjax.sweeps.part import as_part
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.sweeps.schema import CONSTANT, print_size

ROUNDS = "rounds"
OF_SHAPES = ("noise", "data_used", "expected", "weights", "alone")  # text attributes that may differ between points
INTEGERS = ("machines", "per_round", ROUNDS)  # ordered as the dimensions of a dataset


class Shape(NamedTuple):
    """One combination of swept integers: their values, and the arguments of its sweep."""

    at: dict[str, int]
    participation: Participation
    rounds: int | None


def shapes_of(participation: Participation, rounds: int | None, axes: Mapping[str, Sequence[float]]) -> list[Shape]:
    """Return every combination of the swept integers, or the given one if no integer is swept.

    Raises:
        Refusal: if values are not distinct positive integers, or are not a setting of the participation scheme.

    >>> from fedprivjax import Uniform
    >>> [shape.participation.per_round for shape in shapes_of(Uniform(10, 2), 5, {"per_round": [2, 5]})]
    [2, 5]
    """
    for name, values in axes.items():
        _check(rounds, name, values)
    shapes = []
    for point in product(*axes.values()):
        at = dict(zip(axes, map(int, point), strict=True))
        sizes = {name: value for name, value in at.items() if name != ROUNDS}
        shapes.append(Shape(at, participation.resized(**sizes) if sizes else participation, at.get(ROUNDS, rounds)))
    return shapes


def _check(rounds: int | None, name: str, values: Any) -> None:
    if isinstance(values, str | Mapping) or np.ndim(values) != 1 or len(values) == 0:
        raise Refusal(f"{name} must be swept over a list of integers, got {[] if values == [] else called(values)}")
    for value in values:
        require_at_least(name, value, 1)
    if len(set(values)) < len(values):
        raise Refusal(f"{name} must be swept over distinct integers, got {list(values)}")
    if name == ROUNDS and rounds is not None:
        raise Refusal(f"rounds must be left out if they are swept, got {rounds}")


def joined(parts: Sequence[tuple[Mapping[str, Any], xr.Dataset]]) -> xr.Dataset:
    """Join datasets at single values of some settings into one dataset with these settings as dimensions.

    Rounds that a dataset does not have are NaN.

    >>> at = [({"per_round": m}, xr.Dataset({"loss": ("round", [float(m)])}, {"round": [1]})) for m in (2, 5)]
    >>> dict(joined(at)["loss"].sizes)
    {'per_round': 2, 'round': 1}
    """
    rounds = np.unique(np.concatenate([data["round"].values for _, data in parts]))
    points = [data.reindex(round=rounds).expand_dims({k: [v] for k, v in shape.items()}) for shape, data in parts]
    whole = xr.combine_by_coords(points, data_vars="all", join="exact", combine_attrs="override")
    assert isinstance(whole, xr.Dataset)
    attributes = [data.attrs for _, data in parts]
    for name in whole.data_vars:
        constants = [data[name].attrs[CONSTANT] for _, data in parts if CONSTANT in data[name].attrs]
        whole[name].attrs.update({CONSTANT: float(np.mean(constants))} if constants else {})  # mean over trials
    several = {name: _each_once(name, attributes) for name in OF_SHAPES if name in attributes[0]}
    return whole.assign_attrs({**attributes[0], **several})


def _each_once(name: str, attributes: Sequence[Mapping[str, Any]]) -> str:
    return " / ".join(dict.fromkeys(str(each[name]) for each in attributes if name in each))


@known_keywords
def sweep(
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
    precision: str = FLOAT32,
    keep: Sequence[str] = (),
    folder: str | Path | None = None,
    part: tuple[int, int] | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    min_chunks: int = MIN_CHUNKS,
    progress: bool | OnProgress | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> xr.Dataset | Any:
    """Run a protocol over a grid of hyper-parameters and over seeds, and return all results as a dataset.

    Args:
        protocol: protocol whose settings are swept.
        problem: data, loss and constraint set.
        participation: participation scheme, such as `Uniform`.
        over: swept values by name. A name is a real-valued setting of the protocol, a privacy target (`mu`, `epsilon`,
            `noise_std`), or a size of the constraint set (`radius`, `low`, …). The grid has all combinations of the
            values. `machines`, `per_round` and `rounds` can be swept, too.
        seeds: number of seeds (0, 1, …), or a list of seeds. Each seed has its own participants, samples of records and
            noise.
        rounds: number of rounds. None uses all rounds for which machines have records.
        metrics, eval_every, delta, order, noise_method, precision: the arguments of `ready` with these names.
        common_noise: True if, for each seed, all configurations have the same noise (common random numbers). False if
            each configuration has independent noise. In both cases, all configurations of a seed have the same
            participants and samples of records, unless `resample` is given.
        resample: names of swept settings, such as ["step_size"]. Each value of these settings has its own participants,
            samples of records and noise, even for the same seed. If you select the best
            value of a setting, name the setting here. The results of this value are then as in a separate run.
        keep: ["params"] to return the parameters of every run, too.
        folder: folder for finished chunks (groups of runs that are computed together). An interrupted sweep resumes
            from the chunks in this folder.
        part: (number of this process, number of processes), such as (3, 16), if several processes compute the sweep
            together in a shared `folder`. The result is None while other processes still compute.
        mesh: mesh of devices, or the number of devices along each axis, such as {"runs": 2, "machines": 4}. The axis
            "runs" divides the seeds or the configurations. The axis "machines" divides the machines of every run. None
            divides the runs over all devices. With `part`, None divides the runs over the devices of this process.
        memory_budget: approximate number of bytes of a chunk per device. The budget changes results only by rounding.
        min_chunks: smallest number of chunks. With 1, the memory budget alone determines the size of chunks.
        progress: True shows the number of finished runs and the time left. A callable is called with (finished runs,
            total runs).
        on_evaluation: function that is called on the host with (index, round, metrics) for every evaluation of a chunk,
            after the chunk is computed. `index` maps the swept names and "seed" to numbers, such as {"mu": 2.0, "seed":
            0}, and `metrics` maps names to the metrics of the reported parameters. Chunks that are loaded from `folder`
            are reported, too. With `part`, only chunks that this process computes are reported.

    After `jax.distributed.initialize()`, all processes of the job must make the same call. Each process gets all
    results. Only the first process reads and writes `folder`, reports progress, and calls `on_evaluation`.

    Returns:
        A dataset with a dimension for each swept name, `seed` and `round`. It has a dimension `iterate` if the protocol
        has further iterates besides the reported parameters, such as "last". Its attributes state what the guarantee
        does not cover. Its variables are:

        * the metrics, and `diverged`;
        * the calibrated `noise_std` and `step_size`;
        * `realised_mu` and `realised_epsilon` on the sampled participants and records, and `guarantee` as JSON
          (`guarantee_of`);
        * the costs of a run: `rounds_taken`, `gradients_per_record`, `sent_bytes` and `seconds`;
        * `idle_steps` (fraction of computed local steps that change nothing) and `client_state_bytes` for methods with
          local work or client state, and `hours` for participation with delays;
        * with `keep=["params"]`, the parameters `params` of every run, with the last dimension `parameter` (see
          `run_of`).

    Raises:
        Refusal: if settings are invalid, before anything is compiled.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [2.0, 8.0]}, seeds=2, rounds=20)
    >>> dict(grid.test_accuracy.isel(round=-1).sizes)
    {'mu': 2, 'seed': 2}

    Two parts, one after the other:

    >>> from tempfile import TemporaryDirectory
    >>> options = {"over": {"mu": [2.0, 8.0]}, "seeds": 2, "rounds": 20}
    >>> with TemporaryDirectory() as folder:
    ...     for number in (1, 2):
    ...         part = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), folder=folder, part=(number, 2), **options)
    >>> bool((part.test_accuracy == grid.test_accuracy).all())
    True
    """
    protocol = require_arguments(protocol, problem, participation)
    own = None if part is None else as_part(part)
    if own is not None and folder is None:
        raise Refusal(f"folder must be given with part, got none for part {own}. Set a folder that all parts share")
    over = over or {}
    if not isinstance(over, Mapping):
        axes_of(protocol, over)  # raises Refusal
    by_evaluation(on_evaluation)  # raises Refusal
    real = {name: values for name, values in over.items() if name not in INTEGERS}
    shapes = shapes_of(participation, rounds, {name: over[name] for name in INTEGERS if name in over})
    options: dict[str, Any] = {
        "over": real,
        "seeds": seeds,
        "metrics": metrics,
        "eval_every": eval_every,
        "delta": delta,
        "common_noise": common_noise,
        "resample": resample,
        "order": order,
        "noise_method": noise_method,
        "precision": precision,
        "keep": keep,
        "mesh": sweep_mesh(mesh, local=own is not None),
        "memory_budget": memory_budget,
        "min_chunks": min_chunks,
    }
    for shape in shapes:
        require_possible(problem, shape.participation, shape.rounds, order=order, sampler=protocol.minibatches)
    with step_callback(progress, protocol.name) as preparing:
        options["preparing"] = preparing
        starts = [
            ready_sweep(protocol, problem, shape.participation, rounds=shape.rounds, **options) for shape in shapes
        ]
    runs = [prod(start.runs) for start in starts]
    if starts[0].keep:
        print_size((number, problem.dimension) for number in runs)
    reports = [by_evaluation(on_evaluation, [shape.at]) for shape in shapes]
    chunks = None if folder is None else Path(folder)
    done, parts = 0, []
    with progress_callback(progress, protocol.name, "runs") as on_progress:
        if own is not None and chunks is not None:
            sweeps = {(lambda start=start: start): number for start, number in zip(starts, runs, strict=True)}
            if not execute_together(sweeps, own, chunks, on_progress, dict(zip(sweeps, reports, strict=True))):
                return None
            reports = [None for _ in shapes]  # this part has reported what it computed
        for shape, start, number, on_run in zip(shapes, starts, runs, reports, strict=True):
            parts.append((shape.at, execute(start, shifted(on_progress, done, sum(runs)), chunks, on_run)))
            done += number
            make_room()
    return joined(parts) if parts[0][0] else parts[0][1]
