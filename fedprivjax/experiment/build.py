"""Build problems, participation schemes, protocols and baselines from the settings of an experiment."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from math import inf
from typing import Any

import numpy as np

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.datasets.as_problem import from_dataset, own_table
from fedprivjax.engine import simulate
from fedprivjax.experiment.names import Unimported
from fedprivjax.experiment.participation_section import AnyKind
from fedprivjax.experiment.problem_section import Data
from fedprivjax.experiment.protocol_section import ProtocolSettings
from fedprivjax.experiment.settings import TRIAL, Experiment, PartitionSettings, ProblemSettings
from fedprivjax.features import mapped
from fedprivjax.plan.participation import Participation, check_participation
from fedprivjax.privacy.target import LEVELS, TARGETS
from fedprivjax.problem.constraints import Ball, WholeSpace
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.registry import METHODS

NON_PRIVATE = "non-private"
ALONE = "alone"
Problems = dict[tuple[int | None, ...], Problem]
OF_PRIVACY = (*TARGETS, "relative_privacy")  # settings of the privacy level


def make_problem(
    settings: ProblemSettings,
    machines: int,
    trial: int | None = None,
    records: int | None = None,
    say: Callable[[str], None] | None = None,
) -> Problem:
    """Return the problem of an experiment, with its partition over `machines` if the file has one.

    Args:
        trial: value of the dataset's option `trial`, or None without trials.
        records: number of records of each machine if it is swept, or None for the partition's own number.
        say: progress callback, called with a line of text; feature maps may take long.
    """
    if not settings.source.needed:
        Unimported(settings.dataset)()  # raises Refusal
    data, table = make_data(settings, machines, trial, records)
    if isinstance(data, Problem):
        return _whole_problem(settings, data)
    data = _with_features(settings, data, say)
    loss = None if settings.loss is None else settings.loss.make(data)
    ball = WholeSpace() if settings.radius is None else Ball(settings.radius)
    constraint = ball if settings.constraint is None else settings.constraint.made()
    declared = settings.model_dump(include={"lipschitz", "distance", "machine_weights"})
    declared |= {"constraint": constraint, "partition_table": table}
    return (from_dataset if settings.model is None else settings.model.problem)(data, loss, **declared)


def make_data(
    settings: ProblemSettings, machines: int, trial: int | None = None, records: int | None = None
) -> tuple[Data, np.ndarray | None]:
    """Return the data of an experiment and their partition table.

    The table has shape [machines, max_records], or is None if the data are not partitioned.
    """
    data = settings.source.load(settings.options if trial is None else {**settings.options, TRIAL: trial})
    if settings.partition is not None:
        return _partitioned(settings.partition, data, machines, records or settings.partition.records)
    if isinstance(data, datasets.Dataset) and data.machine_of is not None:
        if data.machine_names and machines != len(data.machine_names):
            clients = f"{len(data.machine_names)}, the clients in the data"
            raise Refusal(f"participation.machines must be {clients}, or be left out, got {machines}")
        return data, own_table(data, machines)
    return data, None


def _whole_problem(settings: ProblemSettings, problem: Problem) -> Problem:
    """Return the whole problem of a user-defined function. Raise Refusal if the file sets parts of it."""
    given = settings.model_dump(exclude={"dataset", "options", "partition"})
    for name in (name for name, value in given.items() if value not in (None, [])):
        raise Refusal(f"problem.{name} must be left out: {settings.dataset!r} returns a whole problem")
    return problem


def _with_features(settings: ProblemSettings, data: datasets.Dataset | datasets.Stream, say: Any) -> Any:
    """Return the data with the file's feature maps applied and its picture shape set."""
    if not settings.maps and settings.picture is None:
        return data
    if isinstance(data, datasets.Stream):
        key = "features" if settings.maps else "picture"
        raise Refusal(f"problem.{key} must be left out: examples of {data.name!r} are computed as they are used")
    with within("[problem]"):
        return mapped(data, settings.maps, picture=settings.picture, say=say)


def machines_of(settings: AnyKind, shape: Mapping[str, int]) -> int:
    """Return the number of machines from the sweep or the file. Raise Refusal if neither gives it."""
    machines = shape.get("machines", settings.machines)
    if machines is None:
        raise Refusal("participation.machines must be given, or swept")
    return machines


def natural_machines(settings: ProblemSettings) -> int | None:
    """Return the number of machines that the data fix: clients of a table, or values of a column.

    None means that the data can be partitioned over any number of machines.
    """
    partition = settings.partition
    if partition is not None and partition.kind != "by_value":
        return None
    data = settings.source.load(settings.options)
    if isinstance(data, Problem):
        return None if data.partition_table is None else int(data.partition_table.sizes.size)
    if isinstance(data, datasets.Stream):
        return None
    if partition is not None:
        return np.unique(_column(data, partition.column)).size
    return None if data.machine_of is None else len(data.machine_names) or int(data.machine_of.max()) + 1


def make_participation(settings: AnyKind, shape: Mapping[str, Any]) -> tuple[Participation, int | None]:
    """Return (participation, rounds) at one combination of the swept integers.

    `rounds` is None if the run has as many rounds as the samples allow.
    """
    per_round = shape.get("per_round", settings.model_dump().get("per_round"))
    rounds = shape.get("rounds", settings.planned)
    made = settings.but(rounds=rounds).make(machines_of(settings, shape), per_round)
    check_participation(made)
    return made, rounds


def make_protocol(settings: ProtocolSettings, over: Mapping[str, list[float]] | None = None) -> Any:
    """Return the protocol object of one `[[protocol]]` entry.

    Args:
        over: swept values. A required setting that is swept takes its first value.
    """
    axes = settings.axes(over or {})
    return settings.make({name: axes[name][0] for name in settings.required})


def problem_at(
    experiment: Experiment,
    shape: Mapping[str, Any],
    problems: Problems | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Problem, dict[str, Any]]:
    """Return an experiment's problem at one combination of sizes, and these sizes without machines that are dropped.

    Args:
        problems: cache of the problems.
        say: as in `make_problem`.
    """
    settings, problems = experiment.problem, {} if problems is None else problems
    machines, of_data = machines_of(experiment.participation, shape), (shape.get(TRIAL), shape.get("records"))
    key = machines if settings.partition is not None else None, *of_data
    if key not in problems:
        if say is not None:
            say(f"reading {settings.dataset}")
        problems[key] = make_problem(settings, machines, *of_data, say)
    problem, left_out = problems[key], settings.partition is not None and settings.partition.empty == "drop"
    table = problem.partition_table if left_out else None
    return problem, dict(shape) if table is None else {**shape, "machines": int(table.sizes.size)}


def _partitioned(
    settings: PartitionSettings, data: Data, machines: int, records: int | None
) -> tuple[datasets.Dataset, np.ndarray]:
    """Return the partitioned data and their partition table, [machines, max_records].

    With `records`, `machines · records` examples are sampled first. Otherwise all examples are partitioned.
    """
    if isinstance(data, Problem):
        raise Refusal("problem.partition must be left out: a function that returns a whole problem splits it")
    if isinstance(data, datasets.Stream):
        raise Refusal(f"problem.partition must be left out: each machine of {data.name!r} computes its own examples")
    options = settings.model_dump(exclude_none=True, exclude={"seed", "records", "column"})
    rng = np.random.default_rng(settings.seed)
    values = _column(data, settings.column)
    owned: dict[str, Any] = {"machine_of": None, "test_machine_of": None, "machine_names": ()}
    if records is not None:
        most = len(data.labels) // machines
        if records > most:
            raise Refusal(f"problem.partition.records must be at most {most}, got {records}")
        drawn = rng.choice(len(data.labels), machines * records, replace=False)
        values = values[drawn]
        owned |= {"features": data.features[drawn], "labels": data.labels[drawn], "columns": None}
    return replace(data, **owned), datasets.table(datasets.partition(values, machines, seed=rng, **options))[0]


def _column(data: datasets.Dataset, name: str | None) -> np.ndarray:
    """Return the values that a partition uses, shape [examples]: the labels, or a column of the original table."""
    if name is None:
        return data.labels
    if data.columns is None:
        raise Refusal(f"problem.partition.column must go with a table's data, got {name!r} with {data.name!r}")
    return data.columns[name]


def one_trial(experiment: Experiment) -> Experiment:
    """Return the experiment with its first seed and trial only. Its guarantees hold for every trial."""
    trials = None if experiment.sweep.trials is None else 1
    return experiment.but(sweep=experiment.sweep.but(trials=trials, seeds=1))


def with_baselines(experiment: Experiment) -> Experiment:
    """Return the experiment with its baseline protocols added after those of the file. Equal ones are added once."""
    if NON_PRIVATE not in experiment.evaluation.baselines:
        return experiment
    protocols = list(experiment.protocol)
    for settings in experiment.protocol:
        made = _non_private(settings, experiment.sweep.over)
        known = [other.model_dump(exclude={"label"}) for other in protocols]
        if made is not None and made.model_dump(exclude={"label"}) not in known:
            protocols.append(made)
    return experiment.but(protocol=protocols)


def non_private_label(label: str) -> str:
    """Return the label of a protocol's baseline without noise.

    >>> non_private_label("ours")
    'ours, non-private'
    """
    return f"{label}, {NON_PRIVATE}"


def _non_private(settings: ProtocolSettings, over: Mapping[str, list[float]]) -> ProtocolSettings | None:
    """Return the protocol without its privacy target and with ε = ∞, or None if it is not private.

    A user-defined protocol that is not imported counts as private if it has a target.
    """
    method, given = METHODS.get(settings.name, settings.method), {*settings.settings, *settings.grid, *over}
    known = {field.name for field in fields(method)} if isinstance(method, type) else set(LEVELS)
    level = next((name for name in LEVELS if name in known), None)
    free = any(settings.settings.get(name) == inf for name in LEVELS)
    if level is None or free or not given & set(TARGETS):
        return None
    kept = {name: value for name, value in settings.settings.items() if name not in OF_PRIVACY}
    grid = {name: values for name, values in settings.grid.items() if name not in TARGETS}
    return settings.but(label=non_private_label(settings.label), settings={**kept, level: inf}, grid=grid, added=True)


def problem_alone(experiment: Experiment, problem: Problem, over: Collection[str]) -> Problem | None:
    """Return the problem of the baseline "alone", or None without that baseline.

    Args:
        over: names of the swept settings and of those in the protocol's grid.

    Raises:
        Refusal: if the data are not partitioned, or the constraint set is swept.
    """
    if ALONE not in experiment.evaluation.baselines:
        return None
    simulate.machines_of(problem)  # raises Refusal for a shared pool
    swept = [name for name in problem.constraint.sizes if name in over]
    if swept:
        remedy = f"Give {swept[0]} one value in [problem]"
        raise Refusal(f"evaluation.baselines must leave 'alone' out if {swept[0]} is swept, got both. {remedy}")
    return problem
