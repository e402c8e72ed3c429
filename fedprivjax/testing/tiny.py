"""Scaled-down copies of experiments, for smoke tests and for their guarantees."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset
from fedprivjax.experiment import Experiment, ProblemSettings, ProtocolSettings, tuning_experiment
from fedprivjax.experiment.build import Problems, machines_of, make_protocol, problem_at
from fedprivjax.experiment.jobs import Job, jobs_at
from fedprivjax.experiment.protocol_section import flattened
from fedprivjax.experiment.settings import TuningSettings
from fedprivjax.plan.draw import fresh_messages, most_rounds
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.configurations import seed_list

SEEDS, ROUNDS, RECORDS, BATCH, TESTED = 2, 10, 20, 2, 200  # twenty records per machine: ten messages of two
STEPS = 5  # local steps of a machine in a round
COHORT, MANY = 10, 500
COUNTED = ("full", "uniform", "balanced", "cyclic", "one_pass")  # schemes with only numbers of machines as arguments


def tiny(experiment: Experiment) -> Experiment:
    """Return a scaled-down copy of the experiment for smoke tests.

    It has at most

    * two seeds and two trials,
    * ten rounds, or fewer if the data do not allow ten. Methods that pass over all records of a machine several times
      get the rounds that they need,
    * the two ends of every real-valued axis, and two points of each protocol's own grid,
    * two records in a message, five local steps, and 20 records on a machine if the partition is "iid" with equal
      sizes. Machines keep all their records if a method's settings do not allow fewer,
    * ten machines in a round, with the same participation rate, if there are more than 500 machines and the data and
      settings allow fewer.

    It has no expected numbers, which are those of the full size.
    """
    few = _fewer_machines(experiment)
    for made, fewer_records in ((few, True), (few, False), (experiment, True)):
        with suppress(Refusal):
            return _small_runs(made, fewer_records=fewer_records)
    return _small_runs(experiment, fewer_records=False)


def _small_runs(experiment: Experiment, *, fewer_records: bool) -> Experiment:
    sweep, problem = experiment.sweep, experiment.problem
    seed_list(sweep.seeds)  # raises Refusal if they are invalid
    swept = [int(value) for value in sweep.over.get("rounds", [])]
    planned = [experiment.participation_of(one).planned or ROUNDS for one in experiment.protocol]
    small = experiment.but(
        title=f"Scaled down for a smoke test: {experiment.title}",
        sweep=sweep.but(over=_fewer_values(experiment), seeds=SEEDS, trials=sweep.trials and min(sweep.trials, 2)),
        participation=experiment.participation.but(rounds=None),
        protocol=[_small_method(one, experiment.context) for one in experiment.protocol],
        evaluation=experiment.evaluation.but(every=5),
        problem=_fewer_records(problem, _max_machines(experiment)) if fewer_records else problem,
        tuning=None if experiment.tuning is None else _small_tuning(experiment, experiment.tuning),
        expected=[],
    )
    most, least = [ROUNDS, *planned, *swept], [1]
    for each in [small] if small.tuning is None else [small, tuning_experiment(small)]:
        problems: Problems = {}
        for one, shape in product(each.protocol, each.shapes):
            solved, sizes = problem_at(each, shape, problems)
            most += _max_rounds(each, one, solved, sizes)
            least += _min_rounds(each, one, solved)
    return small.but(participation=small.participation.but(rounds=max(min(most), *least)))


def _small_tuning(experiment: Experiment, tuning: TuningSettings) -> TuningSettings:
    """Return `[tuning]` with two seeds, as few synthetic examples as the machines need, and few test examples."""
    other = tuning_experiment(experiment)
    options, most = dict(other.problem.options), RECORDS * _max_machines(other)
    if other.problem.dataset == "clusters":
        options["test_examples"] = min(options.get("test_examples", TESTED), TESTED)
    if "machines" not in options and options.get("examples", 0) > most:
        options["examples"] = most
    participation = {key: value for key, value in tuning.participation.items() if key != "rounds"}
    over = {name: values for name, values in _fewer_values(other).items() if name in flattened(tuning.sweep)}
    problem = {**tuning.problem, "options": options}
    return tuning.but(problem=problem, participation=participation, sweep=over, seeds=SEEDS)


def _small_method(settings: ProtocolSettings, context: Mapping[str, Any]) -> ProtocolSettings:
    """Return a protocol with few records in a message, few local steps, two points of its grid, and no own rounds."""
    own = {key: value for key, value in settings.participation.items() if key != "rounds"}
    longest = max(settings.grid, key=lambda name: len(settings.grid[name]), default=None)
    grid = {name: _ends(values) if name == longest else values[:1] for name, values in settings.grid.items()}
    raw = {"name": settings.name, "label": settings.label, "participation": own, "grid": grid}
    raw |= _fewer(settings.settings)
    return ProtocolSettings.model_validate(raw, context=dict(context)).but(added=settings.added)


def _fewer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, those in tables included, with few records in a message and few local steps."""
    most = {"local_steps": STEPS} | ({} if "local_epochs" in given else {"batch": BATCH})  # smaller batches: more steps
    small = {name: min(given[name], most[name]) for name in most if isinstance(given.get(name), int)}
    return {**given, **small, **{name: _fewer(value) for name, value in given.items() if isinstance(value, Mapping)}}


def _fewer_values(experiment: Experiment) -> dict[str, list[float]]:
    """Return the swept settings with the two ends of every real-valued axis, without the rounds."""
    over = {name: values for name, values in experiment.sweep.over.items() if name != "rounds"}
    return over | {name: _ends(values) for name, values in experiment.real_axes.items()}


def _ends(values: list[float]) -> list[float]:
    return values if len(values) < 3 else [values[0], values[-1]]


def _fewer_machines(experiment: Experiment) -> Experiment:
    """Return the experiment with few machines and the same participation rate, if it has very many."""
    participation = experiment.participation
    machines, given = participation.machines or 0, participation.model_dump().get("per_round")
    cohort = machines if given is None else given
    if participation.kind not in COUNTED or machines <= MANY or not isinstance(cohort, int) or cohort <= COHORT:
        return experiment
    fewer = {"machines": COHORT * machines // cohort} | ({} if given is None else {"per_round": COHORT})
    return experiment.but(participation=participation.but(**fewer))


def _fewer_records(settings: ProblemSettings, machines: int) -> ProblemSettings:
    """Return the problem with few records per machine, if its partition is "iid" with equal sizes."""
    partition = settings.partition
    if partition is None or partition.kind != "iid" or partition.sizes is not None or partition.records is not None:
        return settings
    data = settings.source.load(settings.options)
    if not isinstance(data, Dataset) or len(data.labels) < RECORDS * machines:
        return settings  # invalid settings raise when jobs are made
    return settings.but(partition=partition.but(records=RECORDS))


def _max_machines(experiment: Experiment) -> int:
    return max(machines_of(experiment.participation, shape) for shape in experiment.shapes)


def _min_rounds(experiment: Experiment, settings: ProtocolSettings, problem: Problem) -> list[int]:
    """Return the number of rounds that a method with several epochs needs, or nothing for other methods."""
    protocol = make_protocol(settings, experiment.real_axes)
    least = protocol.theory.choices(protocol, problem).min_rounds
    return [] if least is None else [least()]


def _max_rounds(
    experiment: Experiment, settings: ProtocolSettings, problem: Problem, shape: Mapping[str, Any]
) -> Iterator[int]:
    """Yield the largest number of rounds that the data allow a method at one combination of sizes, if limited."""
    with settings.within(experiment):
        for job in jobs_at(Job(experiment, settings, {}, {**shape, "rounds": ROUNDS}, problem)):
            participation, order = job.participation, job.scheme.order
            with suppress(Refusal):  # no upper limit on rounds; invalid settings raise when jobs are made
                sampler = job.protocol.minibatches
                participation = participation.fitted(fresh_messages(problem, sampler, order))
                yield most_rounds(problem, participation, sampler, order)
