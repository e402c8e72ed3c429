"""Settings into what runs: problems, participation and protocols."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.experiment.participation import ParticipationSettings
from fedprivjax.experiment.protocol import MOMENTS, ProtocolSettings
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import TRIAL, Experiment, PartitionSettings, ProblemSettings
from fedprivjax.plan.participation import Participation
from fedprivjax.privacy.noise_rules import moments_batch
from fedprivjax.problem.constraints import Ball, WholeSpace
from fedprivjax.problem.problem import Problem


def make_problem(settings: ProblemSettings, machines: int, trial: int | None = None) -> Problem:
    """The problem of an experiment; a partition, where asked for, deals the samples over `machines`."""
    options = settings.options if trial is None else {**settings.options, TRIAL: trial}
    data = datasets.load(settings.dataset, **options)
    table = None
    if settings.partition is not None:
        table = _dealt(settings.partition, data, machines)
    elif data.machine_of is not None:
        table = datasets.table(datasets.by_machine(data.machine_of, machines))[0]
    constraint = WholeSpace() if settings.radius is None else Ball(settings.radius)
    loss = None if settings.loss is None else settings.loss.make(data)
    declared = settings.model_dump(include={"lipschitz", "distance", "machine_weights"})
    return from_dataset(data, loss, constraint=constraint, table=table, **declared)


def make_participation(settings: ParticipationSettings, shape: Mapping[str, int]) -> tuple[Participation, int | None]:
    """Participation and rounds (None: as many as the samples allow) at one combination of the swept integers."""
    size = {**settings.model_dump(include=set(STRUCTURAL)), **shape}
    if size["machines"] is None:
        raise Refusal("participation.machines must be given, or swept")
    return settings.make(size["machines"], size.get("per_round")), shape.get("rounds", settings.planned)


def make_protocol(settings: ProtocolSettings, over: Mapping[str, list[float]] | None = None) -> Any:
    """The protocol object of one `[[protocol]]` entry.

    Args:
        over: the sweep's values; what has no default and is swept stands at its first.
    """
    swept = {**(over or {}), **settings.grid}
    return settings.method(**settings.settings, **{name: swept[name][0] for name in settings.required})


def by_batch(
    experiment: Experiment, settings: ProtocolSettings, problem: Problem, rounds: int | None
) -> list[tuple[ProtocolSettings, dict[str, float]]]:
    """A protocol's settings, with the point of the sweep where they hold: one for each ε with the batch "moments"."""
    batch = settings.settings.get("batch")
    if not isinstance(batch, str):
        return [(settings, {})]
    require_choice("batch", batch, (MOMENTS,))
    over = experiment.sweep.over.get("epsilon")
    if over is None or "epsilon" in settings.settings or rounds is None or problem.table is None:
        raise Refusal(f"batch {MOMENTS!r} must go with a swept epsilon, given rounds and machines of their own records")
    fewest = int(problem.table.sizes.min())
    points = []
    for epsilon in over:
        given = {"epsilon": epsilon, "batch": moments_batch(records=fewest, rounds=rounds, epsilon=epsilon)}
        points.append((settings.model_copy(update={"settings": settings.settings | given}), {"epsilon": epsilon}))
    return points


def _dealt(settings: PartitionSettings, data: datasets.Dataset | datasets.Stream, machines: int):
    if isinstance(data, datasets.Stream):
        raise Refusal(f"problem.partition must be left out: each machine of {data.name!r} computes its own examples")
    options = settings.model_dump(exclude_none=True, exclude={"seed"})
    parts = datasets.partition(data.labels, machines, rng=np.random.default_rng(settings.seed), **options)
    return datasets.table(parts)[0]
