"""The experiment that `[choose]` asks for: every grid of several points, on another data set."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment.participation import merged
from fedprivjax.experiment.protocol import ProtocolSettings, flattened
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import ChooseSettings, Experiment, ProblemSettings

OF_DATA = ("options", "picture")  # keys of `[problem]` that belong to a data set
DECLARED = ("lipschitz", "distance", "machine_weights")  # of these data, and perhaps of no others
OF_SWEEP = ("common_noise", "noise_method", "memory_budget")


def choosing_mapping(experiment: Experiment, choose: ChooseSettings, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the experiment that chooses, as a file would say them.

    Args:
        raw: the settings of the one that goes on with what is chosen.

    Raises:
        Refusal: there is nothing to choose from, or an axis that the experiment does not sweep.
    """
    methods = [settings for settings in experiment.protocol if settings.points > 1]
    if not methods:
        raise Refusal("a [[protocol]] must have a grid of several points, got none")
    labels = [settings.label for settings in methods]
    return {
        "title": f"{raw['title']}: the choice of hyper-parameters",
        "problem": _problem(raw["problem"], choose.problem),
        "participation": merged(experiment.participation, choose.participation),
        "protocol": [_protocol(one, choose.participation) for one in raw["protocol"] if one["label"] in labels],
        "sweep": {**{name: raw["sweep"][name] for name in OF_SWEEP}, **_sweep(experiment, choose, methods)},
        "record": {name: value for name, value in raw["record"].items() if name != "at"},  # no plot is drawn of it
    }


def check_other(problem: ProblemSettings, other: ProblemSettings) -> None:
    """Refuse data that are those of the experiment itself.

    Raises:
        Refusal: the same data set with the same options.
    """
    if (problem.dataset, problem.options) == (other.dataset, other.options):
        raise Refusal(f"problem must be of another data set than the experiment's, got {other.dataset!r} again")


def _problem(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    lost = set(OF_DATA) if own.get("dataset", given["dataset"]) != given["dataset"] else set()
    lost |= {*DECLARED, "radius"} if "constraint" in own else {*DECLARED}
    found = {**{key: value for key, value in given.items() if key not in lost}, **own}
    return {key: value for key, value in found.items() if (key, value) != ("partition", {})}


def _protocol(given: Mapping[str, Any], said: Iterable[str]) -> dict[str, Any]:
    """With those keys of its own participation that are not said for all."""
    own = {key: value for key, value in given["participation"].items() if key not in said}
    return {**given, "participation": own}


def _sweep(experiment: Experiment, choose: ChooseSettings, methods: list[ProtocolSettings]) -> dict[str, Any]:
    """The seeds, and the axes that reach these protocols, but for sizes that `[choose]` fixes."""
    over, fewer = experiment.sweep.over, flattened(choose.sweep)
    for name in fewer:
        require_choice("key in its sweep", name, over)
    reached = {name for name in over if any(name not in settings.own for settings in methods)}
    axes = {name: values for name, values in over.items() if name in reached and name not in choose.participation}
    chosen = [name for settings in methods for name in settings.grid]
    resample = [name for name in experiment.sweep.resample if name in (*chosen, *axes) and name not in STRUCTURAL]
    return {**axes, **fewer, "seeds": choose.seeds, "resample": resample}
