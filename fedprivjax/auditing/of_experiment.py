"""Privacy audits of an experiment's protocols, or of protocols by name, at one privacy level."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.auditing.audit import VERDICT
from fedprivjax.auditing.one_run import OneRunAudit, audit_one_run
from fedprivjax.auditing.small_audits import PARTICIPATIONS, small_audits
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_choice, require_positive
from fedprivjax.experiment import Experiment, bundled
from fedprivjax.experiment.build import make_participation, problem_at
from fedprivjax.method.small_form import BATCH, audit_settings
from fedprivjax.privacy import gdp
from fedprivjax.privacy.target import TARGETS
from fedprivjax.problem.models import Clipping
from fedprivjax.protocols import PROTOCOLS

Attack = Callable[[str, Any, Any], Any]  # (label, protocol, progress callback) -> audits by label
EVERY = "all"


def protocols_of(experiment: Experiment, epsilon: float | None = None, delta: float = 1e-5) -> dict[str, Any]:
    """Return each `[[protocol]]` by label, at one privacy level. Swept settings take their first finite value.

    Args:
        epsilon: target that replaces the experiment's own, or None.
        delta: δ of the target.
    """
    found = {}
    for settings in experiment.protocol:
        first = {name: _first_finite(values) for name, values in settings.axes(experiment.real_axes).items()}
        protocol, level = settings.at(first, BATCH), epsilon
        target = next((name for name in TARGETS if name in first), None)
        if epsilon is None and target is not None and all(getattr(protocol, name, None) is None for name in TARGETS):
            level = first[target] if target == "epsilon" else float(gdp.epsilon(first[target], delta))
        found[settings.label] = protocol if level is None else at_level(protocol, level, delta)
    return found


def protocols_named(name: str, epsilon: float, delta: float) -> dict[str, Any]:
    """Return the protocol of a name in `PROTOCOLS`, or "all" of them, at their audit settings; by name."""
    methods = {one: method for one, (method, _) in PROTOCOLS.items() if name in (one, EVERY)}
    return {one: at_level(method(**audit_settings(method)), epsilon, delta) for one, method in methods.items()}


def at_level(protocol: Any, epsilon: float, delta: float) -> Any:
    """Return the protocol with ε at δ as its target, converted to μ for protocols without an `epsilon`."""
    known = {field.name for field in fields(protocol) if field.init}
    target = {name: None for name in TARGETS if name in known}
    target |= {"epsilon": float(epsilon)} if "epsilon" in known else {"mu": float(gdp.mu(epsilon, delta))}
    return replace(protocol, **target)


def _first_finite(values) -> float:
    finite = [float(value) for value in values if np.isfinite(value)]
    if not finite:
        raise Refusal(f"values must include a finite one for an audit, got {list(values)}")
    return finite[0]


class Chosen(NamedTuple):
    """Protocols that a command audits.

    Attributes:
        protocols: protocols by label.
        delta: δ of all bounds.
        experiment: experiment of the protocols, or None if they are given by name.
    """

    protocols: dict[str, Any]
    delta: float
    experiment: Experiment | None = None

    @property
    def verdict(self) -> float:
        """Error probability of one protocol's outcome, by a union bound."""
        return VERDICT / max(len(self.protocols), 1)


def chosen(
    spec: str, load: Callable[[], Experiment], epsilon: float | None, delta: float | None, only: list[str] | None
) -> Chosen:
    """Return the protocols that a command audits, and δ.

    Args:
        spec: an experiment, a protocol's name, or "all".
        load: function that loads the experiment, called only if `spec` is one.
        epsilon: target of all protocols, or None for the experiment's own, and 2 for protocols by name.
        delta: δ, or None for the experiment's own, and 1e-5 for protocols by name.
        only: labels to audit, or None for all.
    """
    if epsilon is not None:
        require_positive("epsilon", epsilon)
    if delta is not None:
        require_between("delta", delta, 0, 1)
    named = (*PROTOCOLS, EVERY)
    if not Path(spec).suffix and spec not in bundled() and get_close_matches(spec, named):
        require_choice("protocol", spec, named)
    experiment = None if spec in named else load()
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
    """Return lines of text that name the swept values at which an audit runs; empty if nothing is swept.

    Args:
        epsilon: privacy level that replaces a swept one, or None.
        sizes: whether to include the swept sizes. An audit of a scaled-down form does not use them.
    """
    experiment = chosen.experiment
    if experiment is None:
        return []
    levels = () if epsilon is None else TARGETS
    axes = [("", name, values) for name, values in experiment.real_axes.items() if name not in levels]
    if sizes:
        shapes = experiment.shapes
        axes += [("", name, list(dict.fromkeys(float(shape[name]) for shape in shapes))) for name in shapes[0]]
    for settings in (one for one in experiment.protocol if one.label in chosen.protocols):
        axes += [(f" of {settings.label}", name, values) for name, values in settings.grid.items()]
    lines = []
    for of, name, values in axes:
        if len(values) > 1:
            every = ", ".join(f"{value:g}" for value in values)
            lines.append(f"audited at {name} = {_first_finite(values):g}{of}, of {every} that are swept")
    return lines


def scaled_down_audits(
    chosen: Chosen, *, clipping: Clipping | None = None, participation: Sequence[str] | None = None, **options: Any
) -> Attack:
    """Return a function that audits a protocol's scaled-down form on neighbouring datasets of small federations.

    Args:
        clipping: computation of clipped gradients, as in `Federation`. None is that of the experiment's `[problem]`.
        participation: kinds of participation in `PARTICIPATIONS`; None is all.
        options: further arguments of `small_audits`.
    """
    for name in participation or ():
        require_choice("participation", name, PARTICIPATIONS)
    if clipping is None and chosen.experiment is not None:
        clipping = getattr(chosen.experiment.problem.model, "clipping", None)
    kinds = PARTICIPATIONS if participation is None else tuple(dict.fromkeys(participation))
    options |= {"delta": chosen.delta, "verdict": chosen.verdict, "clipping": clipping, "participation": kinds}
    return partial(small_audits, **options)


def one_run_audits(chosen: Chosen, *, each: int, seed: int) -> Attack:
    """Return a function that audits a protocol in one full-size run on the experiment's own problem.

    Args:
        each: canaries per machine.
        seed: seed of the run.
    """
    experiment = chosen.experiment
    if experiment is None:
        raise Refusal("--one-run must go with an experiment, whose problem and participation it takes")
    problem, shape = problem_at(experiment, experiment.shapes[0])
    of_label = {settings.label: experiment.participation_of(settings) for settings in experiment.protocol}

    def attack(label: str, protocol: Any, progress: Any) -> dict[str, OneRunAudit]:
        participation, rounds = make_participation(of_label[label], shape)
        options = {"rounds": rounds, "seed": seed, "delta": chosen.delta, "each": each}
        return {label: audit_one_run(protocol, problem, participation, verdict=chosen.verdict, **options)}

    return attack


def run_all(
    chosen: Chosen, attack: Attack, progress: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, Refusal]]:
    """Run every protocol's audits. Return (audits by label, refusals by label).

    A refusal is raised if there is one protocol only. Audits of a protocol are refused if another one's have their
    label, as those of "a" with varying cohorts and of "a, varying" have.

    Args:
        progress: function from a title to a context manager that yields a callback (finished runs, all runs).
    """
    finished, skipped = {}, {}
    for label, protocol in chosen.protocols.items():
        try:
            with progress(f"audit of {label}") as shown:
                found = attack(label, protocol, shown)
            if taken := sorted(found.keys() & finished.keys()):
                raise Refusal(f"label must differ from those of other audits, got {taken[0]!r} again. Rename one")
            finished |= found
        except Refusal as refusal:
            if len(chosen.protocols) == 1:
                raise
            skipped[label] = refusal
    return finished, skipped
