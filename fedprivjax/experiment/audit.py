"""Which protocols of an experiment, or by name, are audited, and at which privacy level."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.auditing.audit import LEAST, VERDICT, Audit, audit
from fedprivjax.auditing.neighbouring import (
    DROPOUTS,
    FIXED,
    LINEAR,
    MACHINES,
    QUADRATIC,
    VARYING,
    Federation,
    NotAllowed,
    small_federation,
)
from fedprivjax.auditing.one_run import OneRunAudit, audit_one_run
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_choice, require_positive
from fedprivjax.experiment import TRIAL, Experiment, machines_of, make_participation, make_problem, present
from fedprivjax.method.interface import numbers_of
from fedprivjax.method.scaled_down import BATCH
from fedprivjax.privacy import gdp
from fedprivjax.privacy.target import TARGETS
from fedprivjax.protocols import PROTOCOLS

Attack = Callable[[str, Any, Any], Any]  # from a label, its protocol and a progress bar to audits by label
PARTICIPATIONS = (FIXED, VARYING, DROPOUTS)
FEWER = 0.4  # of the runs with a fixed cohort
EVERY = "all"


def protocols_of(experiment: Experiment, epsilon: float | None = None, delta: float = 1e-5) -> dict[str, Any]:
    """Each `[[protocol]]` by label, at one privacy level; of what is swept, the first finite value.

    Args:
        epsilon: in place of the experiment's own target.
    """
    found = {}
    for settings in experiment.protocol:
        swept = {**experiment.real_axes, **settings.grid}
        numbers = {field.name for field in fields(settings.method) if field.init} | set(numbers_of(settings.parts))
        names = numbers - settings.own
        first = {name: _first_finite(values) for name, values in swept.items() if name in names}
        given = {**settings.settings, **first}
        batch = {"batch": BATCH} if isinstance(given.get("batch"), str) else {}
        target = next((swept[name] for name in TARGETS if name in swept and name not in given), None)
        protocol = settings.make({**first, **batch})
        if epsilon is None and target is not None and not set(TARGETS) & set(given):
            epsilon_here = (
                _first_finite(target) if "epsilon" in swept else float(gdp.epsilon(_first_finite(target), delta))
            )
            protocol = at_level(protocol, epsilon_here, delta)
        found[settings.label] = protocol if epsilon is None else at_level(protocol, epsilon, delta)
    return found


def protocols_named(name: str, epsilon: float, delta: float) -> dict[str, Any]:
    """A protocol by its name in `PROTOCOLS`, or "all" of them, at their usual settings."""
    found = {}
    for one, (method, _) in PROTOCOLS.items():
        if name not in (one, EVERY):
            continue
        found[one] = at_level(method(**method.audit_settings()), epsilon, delta)
    return found


def at_level(protocol: Any, epsilon: float, delta: float) -> Any:
    """The protocol with a target of ε at δ, in the currency that it has."""
    known = {field.name for field in fields(protocol) if field.init}
    target = {name: None for name in TARGETS if name in known}
    target |= {"epsilon": float(epsilon)} if "epsilon" in known else {"mu": float(gdp.mu(epsilon, delta))}
    return replace(protocol, **target)


def _first_finite(values) -> float:
    finite = [float(value) for value in values if np.isfinite(value)]
    if not finite:
        raise Refusal(f"values must have a finite one to be audited at, got {list(values)}")
    return finite[0]


class Chosen(NamedTuple):
    """What a command names.

    Attributes:
        protocols: by label.
        delta: δ of all bounds.
        experiment: where they are from one.
    """

    protocols: dict[str, Any]
    delta: float
    experiment: Experiment | None = None

    @property
    def verdict(self) -> float:
        """Each protocol's share of a verdict's error."""
        return VERDICT / max(len(self.protocols), 1)


def chosen(
    spec: str, load: Callable[[], Experiment], epsilon: float | None, delta: float | None, only: list[str] | None
) -> Chosen:
    """The protocols that a command names, and δ.

    Args:
        spec: an experiment, a protocol's name, or "all".
        load: the experiment, where it is one.
        only: labels; None is all of them.
    """
    if epsilon is not None:
        require_positive("epsilon", epsilon)
    if delta is not None:
        require_between("delta", delta, 0, 1)
    experiment = None if spec in (*PROTOCOLS, EVERY) else load()
    if experiment is None:
        delta = 1e-5 if delta is None else delta
        found = protocols_named(spec, 2.0 if epsilon is None else epsilon, delta)
    else:
        delta = experiment.evaluation.delta if delta is None else delta
        found = protocols_of(experiment, epsilon, delta)
    for label in only or ():
        require_choice("protocol", label, list(found))
    return Chosen({label: one for label, one in found.items() if not only or label in only}, delta, experiment)


def audited_at(chosen: Chosen, epsilon: float | None, *, sizes: bool) -> list[str]:
    """Which of the swept values an audit is of, in words; nothing where none is swept.

    Args:
        epsilon: the level that stands in the place of a swept one.
        sizes: whether the sizes of the federation count, which an audit in small has not.
    """
    experiment = chosen.experiment
    if experiment is None:
        return []
    swept = {name: values for name, values in experiment.real_axes.items() if epsilon is None or name not in TARGETS}
    first = {name: (_first_finite(values), values) for name, values in swept.items()}
    if sizes:
        shapes = experiment.shapes
        for name, value in shapes[0].items():
            first[name] = value, list(dict.fromkeys(float(shape[name]) for shape in shapes))
    lines = [_one_of("all", name, *known) for name, known in first.items() if len(known[1]) > 1]
    for settings in (one for one in experiment.protocol if one.label in chosen.protocols):
        grid = [(name, values) for name, values in settings.grid.items() if len(values) > 1]
        lines += [_one_of(settings.label, name, _first_finite(values), values) for name, values in grid]
    return lines


def _one_of(label: str, name: str, value: float, values: Sequence[float]) -> str:
    of = "" if label == "all" else f" of {label}"
    return f"audited at {name} = {value:g}{of}, of {', '.join(f'{one:g}' for one in values)} that are swept"


def in_two_worlds(
    chosen: Chosen,
    *,
    runs: int,
    rounds: int,
    seed: int,
    folder: Path | None,
    loss: str | None = None,
    participation: Sequence[str] | None = None,
) -> Attack:
    """Audits of a protocol on its small federations, those that it does not allow left out.

    Args:
        loss: of all federations; None is linear with a fixed cohort and without a clip, else quadratic.
        participation: a part of `PARTICIPATIONS`; None is all of them.
    """
    for name in participation or ():
        require_choice("participation", name, PARTICIPATIONS)
    asked = PARTICIPATIONS if participation is None else tuple(dict.fromkeys(participation))

    def attack(label: str, protocol: Any, progress: Any) -> dict[str, Audit]:
        small = protocol.scaled_down(MACHINES)
        trials = _trials(small, rounds, asked, loss)
        found = {}
        for suffix, federation in trials.items():
            name = label + suffix
            kept = None if folder is None else folder / "runs" / name.replace("/", "-")
            few = runs if suffix in ("", _suffix(asked[0])) else max(min(runs, LEAST), int(FEWER * runs))
            options = {"runs": few, "delta": chosen.delta, "seed": seed, "verdict": chosen.verdict / len(trials)}
            found[name] = audit(small, federation, folder=kept, progress=progress, **options)
        return found

    return attack


def _trials(protocol: Any, rounds: int, asked: Sequence[str], loss: str | None) -> dict[str, Federation]:
    """The federations that a protocol is audited on, by what is added to its label."""
    other = LINEAR if protocol.clip is None else QUADRATIC
    found: dict[str, Federation] = {}
    for name in asked:
        chosen = loss or (LINEAR if name == FIXED else other)
        try:
            shorter = rounds if name == asked[0] else -(-rounds // 3)
            federation = small_federation(protocol, shorter, participation=name, loss=chosen)
        except NotAllowed:
            if len(asked) == 1:
                raise
            continue
        found[_suffix(name)] = federation
    return found


def _suffix(participation: str) -> str:
    return "" if participation == FIXED else f", {participation}"


def require_in_small(participation: Any, loss: Any) -> None:
    """Raise Refusal if a setting of audits in small is given to an audit in one run."""
    for name, value in (("participation", participation), ("loss", loss)):
        if value:
            raise Refusal(f"{name} must be left out with --one-run, which takes the experiment's own, got {value}")


def in_one_run(chosen: Chosen, *, each: int, seed: int) -> Attack:
    """The audit of one run of a protocol on the experiment's own problem, at full size."""
    experiment = chosen.experiment
    if experiment is None:
        raise Refusal("--one-run must go with an experiment, whose problem and participation it takes")
    shape = experiment.shapes[0]
    machines = machines_of(experiment.participation, shape)
    problem = make_problem(experiment.problem, machines, shape.get(TRIAL), shape.get("records"))
    of_label = {settings.label: experiment.participation_of(settings) for settings in experiment.protocol}

    def attack(label: str, protocol: Any, progress: Any) -> dict[str, OneRunAudit]:
        participation, rounds = make_participation(of_label[label], present(experiment.problem, problem, shape))
        options = {"rounds": rounds, "seed": seed, "delta": chosen.delta, "each": each}
        return {label: audit_one_run(protocol, problem, participation, verdict=chosen.verdict, **options)}

    return attack


def run_all(
    chosen: Chosen, attack: Attack, progress: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, Refusal]]:
    """Every protocol's audits, by label; and why some have none, where there are several.

    Args:
        progress: from a title to a context that is called with (runs done, runs in all).
    """
    finished, skipped = {}, {}
    for label, protocol in chosen.protocols.items():
        try:
            with progress(f"audit of {label}") as shown:
                finished |= attack(label, protocol, shown)
        except Refusal as refusal:
            if len(chosen.protocols) == 1:
                raise
            skipped[label] = refusal
    return finished, skipped
