"""Settings into what runs: problems, participation and protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.experiment.participation import ParticipationSettings
from fedprivjax.experiment.protocol import MOMENTS, ProtocolSettings
from fedprivjax.experiment.section import THEORY
from fedprivjax.experiment.settings import TRIAL, Experiment, PartitionSettings, ProblemSettings
from fedprivjax.plan.participation import Participation
from fedprivjax.privacy.calibration import target_of
from fedprivjax.privacy.noise_rules import moments_batch
from fedprivjax.problem.constraints import Ball, WholeSpace
from fedprivjax.problem.models import LinearModel
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.smoothing import Moreau


def make_problem(
    settings: ProblemSettings, machines: int, trial: int | None = None, records: int | None = None
) -> Problem:
    """The problem of an experiment; a partition, where asked for, deals the samples over `machines`.

    Args:
        records: of each machine, where they are swept; None is what the partition says.
    """
    options = settings.options if trial is None else {**settings.options, TRIAL: trial}
    data = datasets.load(settings.dataset, **options)
    table = None
    if settings.partition is not None:
        data, table = _dealt(settings.partition, data, machines, records or settings.partition.records)
    elif data.machine_of is not None:
        table = datasets.table(datasets.by_machine(data.machine_of, machines))[0]
    constraint = WholeSpace() if settings.radius is None else Ball(settings.radius)
    loss = None if settings.loss is None else settings.loss.make(data)
    declared = settings.model_dump(include={"lipschitz", "distance", "machine_weights"})
    model = settings.model
    network = {} if model is None else {"network": model.make(), "start_seed": model.start_seed}
    return from_dataset(data, loss, constraint=constraint, table=table, **network, **declared)


def machines_of(settings: ParticipationSettings, shape: Mapping[str, int]) -> int:
    """Machines in all, as the file or the sweep gives them."""
    machines = shape.get("machines", settings.machines)
    if machines is None:
        raise Refusal("participation.machines must be given, or swept")
    return machines


def make_participation(settings: ParticipationSettings, shape: Mapping[str, Any]) -> tuple[Participation, int | None]:
    """Participation and rounds (None: as many as the samples allow) at one combination of the swept integers."""
    per_round = shape.get("per_round", settings.model_dump().get("per_round"))
    return settings.make(machines_of(settings, shape), per_round), shape.get("rounds", settings.planned)


def make_protocol(settings: ProtocolSettings, over: Mapping[str, list[float]] | None = None) -> Any:
    """The protocol object of one `[[protocol]]` entry.

    Args:
        over: the sweep's values; what has no default and is swept stands at its first.
    """
    swept = {**(over or {}), **settings.grid}
    return settings.method(**settings.settings, **{name: swept[name][0] for name in settings.required})


class Point(NamedTuple):
    """A protocol's settings where what fixes a shape depends on ε: the point of the sweep, the shape and loss there."""

    settings: ProtocolSettings
    at: dict[str, float]
    shape: dict[str, Any]
    problem: Problem


def points(
    experiment: Experiment, settings: ProtocolSettings, problem: Problem, shape: Mapping[str, int]
) -> list[Point]:
    """One for each swept ε where the batch is "moments", or a cohort's size, rounds or smoothing "theory"; else one."""
    batch = settings.settings.get("batch")
    given = experiment.participation.model_dump()
    chosen = [name for name in ("per_round", "rounds") if given.get(name) == THEORY and name not in shape]
    smoothed = experiment.problem.loss is not None and experiment.problem.loss.smoothing == THEORY
    bare = Point(settings, {}, dict(shape), problem)
    if not (isinstance(batch, str) or chosen or smoothed):
        return [bare]
    over = [] if "epsilon" in settings.own else experiment.sweep.over.get("epsilon", [])
    every = [_at(bare, epsilon) for epsilon in over] or [bare]
    if isinstance(batch, str):
        every = [_with_moments(experiment, point, batch, problem, shape) for point in every]
    if smoothed:
        every = [_smoothed(experiment, point, shape) for point in every]
    machines = machines_of(experiment.participation, shape)
    known: dict[str, Any] = {"delta": experiment.record.delta, "phases": experiment.participation.kind == "phases"}
    return [point._replace(shape=dict(shape) | _chosen(point, chosen, machines, **known)) for point in every]


def _at(point: Point, epsilon: float) -> Point:
    own = point.settings.model_copy(update={"settings": point.settings.settings | {"epsilon": epsilon}})
    return point._replace(settings=own, at={"epsilon": epsilon})


def _smoothed(experiment: Experiment, point: Point, shape: Mapping[str, int]) -> Point:
    """With the envelope that the protocol's theory chooses in place of the loss, if any."""
    protocol = make_protocol(point.settings, point.settings.grid)
    target = target_of(protocol, delta=experiment.record.delta)
    machines, once = (
        machines_of(experiment.participation, shape),
        experiment.participation.kind in ("one_pass", "phases"),
    )
    strength = protocol.best_smoothing(point.problem, machines, target, one_pass=once)
    if strength is None:
        return point
    model: Any = point.problem.model
    return point._replace(problem=replace(point.problem, model=LinearModel(Moreau(model.loss, strength))))


def _with_moments(
    experiment: Experiment, point: Point, batch: str, problem: Problem, shape: Mapping[str, int]
) -> Point:
    require_choice("batch", batch, (MOMENTS,))
    rounds = shape.get("rounds", experiment.participation.planned)
    if not point.at or rounds is None or problem.table is None:
        raise Refusal(f"batch {MOMENTS!r} must go with a swept epsilon, given rounds and machines of their own records")
    given = {"batch": moments_batch(records=int(problem.table.sizes.min()), rounds=rounds, **point.at)}
    return point._replace(settings=point.settings.model_copy(update={"settings": point.settings.settings | given}))


def _chosen(point: Point, chosen: Sequence[str], machines: int, delta: float, *, phases: bool) -> dict[str, Any]:
    """What a protocol's theory makes of sizes that the file leaves to it."""
    if not chosen:
        return {}
    protocol = make_protocol(point.settings, point.settings.grid)
    sizes = protocol.best_cohorts if phases else protocol.best_per_round
    best = {"per_round": sizes, "rounds": protocol.best_rounds}
    target = target_of(protocol, delta=delta)
    return {name: best[name](point.problem, machines, target) for name in chosen}


def _dealt(
    settings: PartitionSettings, data: datasets.Dataset | datasets.Stream, machines: int, records: int | None
) -> tuple[datasets.Dataset, np.ndarray]:
    """The data that machines own, all of it but where they have so many `records` each, and who owns what."""
    if isinstance(data, datasets.Stream):
        raise Refusal(f"problem.partition must be left out: each machine of {data.name!r} computes its own examples")
    options = settings.model_dump(exclude_none=True, exclude={"seed", "records"})
    rng = np.random.default_rng(settings.seed)
    if records is not None:
        most = len(data.labels) // machines
        if records > most:
            raise Refusal(f"problem.partition.records must be at most {most}, got {records}")
        drawn = rng.choice(len(data.labels), machines * records, replace=False)
        data = replace(data, features=data.features[drawn], labels=data.labels[drawn], machine_of=None)
    return data, datasets.table(datasets.partition(data.labels, machines, rng=rng, **options))[0]
