"""Validation of an experiment file across its sections."""

from math import inf

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_choice
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.metrics import METRICS, OF_MEAN, recorded_name
from fedprivjax.experiment.build import ALONE
from fedprivjax.experiment.expected import ALONG_AXIS, Expected
from fedprivjax.experiment.names import unimported
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import Experiment, SweepSettings
from fedprivjax.privacy.target import NO_TARGET, SET_TARGET, UNLIMITED


def check(experiment: Experiment) -> None:
    """Raise Refusal if sections contradict one another. The message names the key.

    If user-defined objects are not imported, as for finished results, only labels are checked.
    """
    _check_labels([settings.label for settings in experiment.protocol])
    if unimported(experiment):
        return
    _check_sweep(experiment)
    _check_participation(experiment)
    _check_metrics(experiment)
    _check_expected(experiment)
    if ALONE in experiment.evaluation.baselines and (trials := experiment.sweep.trials) is not None:
        wanted = f"evaluation.baselines must leave 'alone' out of trials, got {trials} trials"
        raise Refusal(f"{wanted}. Sweep seeds instead")
    for name in experiment.evaluation.at:
        require_choice("key in evaluation.at", name, experiment.real_axes)
    require_between("evaluation.delta", experiment.evaluation.delta, 0, 1)


def _check_labels(labels: list[str]) -> None:
    if not labels:
        raise Refusal("protocol must have at least one entry, got []")
    for label in labels:
        if labels.count(label) > 1 or not label.strip(".") or "/" in label:
            raise Refusal(f"protocol labels must be distinct, not empty and without '/', got {label!r}")


def _check_sweep(experiment: Experiment) -> None:
    sweep, grids = experiment.sweep, [settings.grid for settings in experiment.protocol]
    options = [name for name in SweepSettings.model_fields if name != "over"]
    for axis, values in sweep.over.items():
        require_choice("key in [sweep]", axis, [*options, *_axes(experiment)])
        _check_distinct(f"sweep.{axis}", values, whole=axis in STRUCTURAL)
    for settings in experiment.protocol:
        for axis, values in settings.grid.items():
            _check_distinct(f"the grid's {axis} of {settings.label!r}", values)
        for axis in experiment.real_axes.keys() - settings.fixed - settings.grid.keys():
            if axis not in (*settings.sweepable, *_custom_sizes(experiment)):
                raise Refusal(
                    f"sweep.{axis} must be a setting of every protocol, and {settings.label!r} has none. "
                    f"Move it to the grid of the protocols that do"
                )
        settings.check_values(experiment.real_axes)
    if "records" in sweep.over and experiment.problem.partition is None:
        raise Refusal("sweep.records must go with [problem.partition], got none")
    for name in sweep.resample:
        require_choice(
            "axis in sweep.resample", name, [*experiment.real_axes, *(name for grid in grids for name in grid)]
        )


def check_targets(experiment: Experiment) -> None:
    """Raise Refusal, naming all protocols without a privacy target, if there are any."""
    bare = [one.label for one in experiment.protocol if not one.has_target(experiment.real_axes)]
    if bare:
        raise Refusal(
            f"{NO_TARGET} for every [[protocol]], got none for {', '.join(map(repr, bare))}. "
            f"{SET_TARGET}, there or in [sweep]; {UNLIMITED}"
        )


def _check_participation(experiment: Experiment) -> None:
    for settings in experiment.protocol:
        experiment.participation_of(settings)
        for key, value in settings.participation.items():
            if key == "machines":
                raise Refusal(f"machines must be left out of the participation of {settings.label!r}, got {value}")
            if key in experiment.sweep.over:
                raise Refusal(f"{key} must be swept or in the participation of {settings.label!r}, not both")


def _axes(experiment: Experiment) -> list[str]:
    """Return the names of all settings that can be swept for at least one protocol."""
    names = [*STRUCTURAL, *(name for settings in experiment.protocol for name in settings.sweepable)]
    return list(dict.fromkeys([*names, *_custom_sizes(experiment)]))


def _custom_sizes(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the numbers of a custom constraint set."""
    constraint = experiment.problem.constraint
    return () if constraint is None else constraint.custom_sizes


def _check_distinct(name: str, values: list[float], *, whole: bool = False) -> None:
    if not values or len(set(values)) < len(values) or (whole and not all(v >= 1 and v.is_integer() for v in values)):
        kind = "distinct positive integers" if whole else "distinct numbers"
        raise Refusal(f"{name} must be a list of {kind}, got {values}")


def _check_metrics(experiment: Experiment) -> None:
    if experiment.evaluation.metrics == []:
        raise Refusal("evaluation.metrics must name at least one metric, got []")
    own = [metric.name for metric in experiment.evaluation.custom_metrics.values()]
    require_choice("evaluation.select", experiment.evaluation.select, [*METRICS, *own])
    for metric in experiment.evaluation.averaged:
        require_choice("metric in evaluation.averaged", metric, [*METRICS, *OF_MEAN, *own])
    _check_rounds_to(experiment, [*METRICS, *OF_MEAN, *own])
    for expected in experiment.expected:
        require_choice("metric in [[expected]]", expected.metric, [*METRICS, *OF_MEAN, *own])
        if experiment.evaluation.known(recorded_name(expected.metric)).of == "round":
            require_choice(f"iterate of '{expected.metric}' in [[expected]]", expected.iterate, [OUTPUT])


def _check_rounds_to(experiment: Experiment, names: list[str]) -> None:
    for metric, value in experiment.evaluation.rounds_to.items():
        require_choice("metric in evaluation.rounds_to", metric, names)
        require_between(f"evaluation.rounds_to.{metric}", value, -inf, inf)
    if experiment.evaluation.rounds_to and (trials := experiment.sweep.trials) is not None:
        wanted = f"evaluation.rounds_to must be left out of trials, got {trials} trials"
        raise Refusal(f"{wanted}. Sweep seeds instead")
    for expected in experiment.expected:
        if expected.rounds_to is None:
            continue
        require_between(f"rounds_to of {expected.protocol!r} in [[expected]]", expected.rounds_to, -inf, inf)
        if expected.rounds != "last" or experiment.sweep.trials is not None:
            raise Refusal(
                f"rounds_to in [[expected]] must go without rounds = 'mean' and trials, got {expected.rounds!r} and "
                f"{experiment.sweep.trials} trials"
            )


def _check_expected(experiment: Experiment) -> None:
    labels = [settings.label for settings in experiment.protocol]
    for expected in experiment.expected:
        if expected.rule != "shown":  # "shown": a published number may be listed without a run
            require_choice("protocol label in [[expected]]", expected.protocol, labels)
        if expected.rule in ("above", "paired_above"):
            require_choice("other protocol in [[expected]]", expected.other, labels)
        _check_axis(expected)
        for cell in expected.cells:
            for name in cell.at:
                require_choice("key in a cell's place in [[expected]]", name, _axes(experiment))
            if expected.rule == "within_se" and (cell.value is None or not cell.sd or not cell.runs or cell.runs < 2):
                raise Refusal(f"expected cell {cell.at} must have a value, an sd and at least two runs")


def _check_axis(expected: Expected) -> None:
    if (expected.rule in ALONG_AXIS) != (expected.axis is not None):
        rules = "'slope', 'increases' or 'decreases'"
        raise Refusal(f"axis in [[expected]] must go with rule {rules}, got {expected.axis!r} with {expected.rule!r}")
    for cell in expected.cells:
        if expected.axis in cell.at:
            raise Refusal(f"expected cell {cell.at} must leave {expected.axis} out: it is the rule's axis")
