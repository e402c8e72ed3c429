"""The configurations of a sweep: a grid of settings, each calibrated on the host for the plans of its runs.

A draw is a sample of all randomness of a sweep, which several configurations share.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.numbers import leaves_of, numbers_in, with_numbers
from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.checks.values import called, require_at_least, require_choice, require_real
from fedprivjax.engine.progress import OnProgress
from fedprivjax.method.algorithm import Algorithm
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.protocol import Protocol, as_leaves
from fedprivjax.method.theory import step_of
from fedprivjax.plan.plan import Plan, equal_but_for_secrets
from fedprivjax.plan.seeds import Seeds, as_seeds, distinct_resamples
from fedprivjax.privacy import gdp
from fedprivjax.privacy.calibration import calibrate_and_check, exceeds, require_met, target_of
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.target import LEVELS, TARGETS, Target
from fedprivjax.problem.problem import Problem

RADIUS = "radius"
SIZES = (RADIUS, "low", "high", "scale")  # sizes of the package's constraint sets
STEPS = ("step_size", "step_scale")


@dataclass(frozen=True)
class Configuration:
    """A configuration of a grid before calibration: its protocol, its problem, and its privacy target.

    Attributes:
        group: number of its settings apart from the step, equal for configurations that differ in the step alone.
    """

    protocol: Any
    problem: Problem
    target: Target
    group: int = 0


@dataclass(frozen=True)
class Configurations:
    """The calibrated configurations of a grid.

    Attributes:
        protocols: calibrated protocol of each configuration.
        leaves: protocol and constraint set of all configurations, stacked on a leading axis.
        noise_std, step_size: float64 [configurations].
        events: privacy event of each configuration on each of its plans, [configurations][seeds].
    """

    protocols: list[Any]
    leaves: tuple[Any, Any]
    noise_std: np.ndarray
    step_size: np.ndarray
    events: list[list[Event]]

    def realised(self, delta: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the realised μ and ε of each run on its own schedule, and each configuration's guarantee.

        The first are arrays [seeds, configurations]. The guarantees hold on the least private schedule and are text,
        object [configurations].
        """
        mu = np.array([[event.mu for event in events] for events in self.events]).T
        stated = ~np.isnan(mu)
        epsilon = np.full(mu.shape, np.nan)
        epsilon[stated] = gdp.epsilon(mu[stated], delta)
        for seed, place in np.argwhere(~stated):
            epsilon[seed, place] = self.events[place][seed].epsilon(delta)
        worst = np.argmax(np.where(stated, mu, epsilon), axis=0)  # μ first: ε may be 0 on all schedules
        texts = [events[seed].guarantee(delta).to_json() for events, seed in zip(self.events, worst, strict=True)]
        return {"realised_mu": mu, "realised_epsilon": epsilon}, np.array(texts, object)


def sweepable(
    protocol: Protocol | type[Protocol], sizes: Sequence[str] = SIZES, of_parts: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the names of possible axes of a sweep.

    They are the privacy targets, the protocol's leaves, the given numbers of its components, and the constraint set's
    sizes.
    """
    return tuple(dict.fromkeys([*TARGETS, *leaves_of(protocol), *of_parts, *sizes]))


def axes_of(
    protocol, over: Mapping[str, Sequence[float]] | None, sizes: Sequence[str] = SIZES
) -> dict[str, np.ndarray]:
    """Return the axes of a grid, checked.

    Args:
        sizes: names of the constraint set's sizes.

    Raises:
        Refusal: if a name cannot be swept, its values are not distinct numbers, or a swept target conflicts with
            another target of the protocol.

    >>> from fedprivjax import DPMu2
    >>> axes_of(DPMu2(), {"mu": [1, 2]})
    {'mu': array([1., 2.])}
    """
    if not isinstance(over or {}, Mapping):
        raise Refusal(f'over must map names to values, such as {{"mu": [1.0, 2.0]}}, got {called(over)}')
    axes = {name: _axis(protocol, name, values, sizes) for name, values in (over or {}).items()}
    targets = [name for name in TARGETS if name in axes]
    if len(targets) > 1:
        raise Refusal(f"{targets[0]} or {targets[1]} must be given, not both, got both as axes")
    for name in targets:
        given = [other for other in TARGETS if other != name and getattr(protocol, other) is not None]
        if given:
            raise Refusal(f"{given[0]} must be left out if {name} is swept, got {getattr(protocol, given[0])}")
    return axes


def grid(protocol, problem: Problem, axes: Mapping[str, np.ndarray], delta: float) -> list[Configuration]:
    """Return every configuration of the grid, in the order of the axes' product."""
    groups: dict[tuple[float, ...], Configuration] = {}
    found = []
    for values in product(*axes.values()):
        settings = dict(zip(axes, map(float, values), strict=True))
        steps = {name: settings.pop(name) for name in STEPS if name in settings}
        key = tuple(settings.values())
        if key not in groups:
            first = _configuration(with_numbers(protocol, steps), problem, settings, delta)
            groups[key] = replace(first, group=len(groups))
        one = groups[key]
        found.append(replace(one, protocol=replace(one.protocol, **steps)) if steps else one)
    return found


def calibrated(
    configurations: Sequence[Configuration], plans: Sequence[Sequence[Plan]], on_progress: OnProgress | None = None
) -> Configurations:
    """Return the configurations with calibrated noise and steps.

    Those that differ in the step alone share one calibration and its events, unless these may depend on the step.

    Args:
        plans: plans of each configuration, [configurations][seeds]. Its noise meets the target on all of them.
        on_progress: progress callback, called with (number, total) before each configuration is calibrated.
    """
    settled: list[tuple[Any, list[Event], int]] = []
    first: dict[Any, tuple[Any, list[Event], int]] = {}
    leaves: list[tuple[Any, Any]] = []  # of every calibration
    for number, (configuration, own) in enumerate(zip(configurations, plans, strict=True), 1):
        if on_progress is not None:
            on_progress(number, len(configurations))
        key = configuration.group, tuple(map(id, own))
        protocol, events, place = first.get(key, (None, [], 0))
        protocol = None if protocol is None else _at_step(configuration, own[0], protocol)
        if protocol is None:
            (protocol, events), place = _calibrated(configuration, own), len(leaves)
            leaves.append((as_leaves(protocol.traced), as_leaves(configuration.problem.constraint)))
        settled.append((protocol, events, place))
        first.setdefault(key, settled[-1])
    protocols, events, places = map(list, zip(*settled, strict=True))
    methods, constraints = jax.tree.map(lambda leaf: leaf[np.array(places)], stacked(leaves))
    if len(leaves) < len(settled):
        steps = {name: np.array([getattr(one, name) for one in protocols], np.float32) for name in STEPS}
        methods = replace(methods, **steps)
    return Configurations(
        protocols=protocols,
        leaves=(methods, constraints),
        noise_std=np.array([protocol.noise_std for protocol in protocols]),
        step_size=np.array([np.nan if p.step_size is None else p.step_size * p.step_scale for p in protocols]),
        events=events,
    )


def stacked(trees: Sequence[Any]) -> Any:
    """Stack pytrees of equal structure on a leading axis, as host arrays."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _at_step(configuration: Configuration, plan: Plan, calibrated: Any) -> Any:
    """Return a calibrated protocol with the step of a configuration that differs from it in nothing else.

    Noise and events are then the same. It is None if they may depend on the step: the method calibrates by itself, the
    algorithm is planned with the step, or a part of the protocol holds the step.
    """
    algorithm = calibrated.algorithm
    by_step = not isinstance(algorithm, LocalAlgorithm) and type(algorithm).planned is not Algorithm.planned
    if by_step or type(calibrated).calibrate is not Protocol.calibrate:
        return None
    given, step = configuration.protocol, calibrated.step_size
    if given.step_size is not None:
        step = step_of(given, configuration.problem, plan, configuration.target)
    found = replace(calibrated, step_size=step, step_scale=given.step_scale)
    try:
        equal = found.privacy == calibrated.privacy and found.algorithm == algorithm
    except ValueError:  # comparison of arrays
        return None
    return found if equal else None


def _calibrated(configuration: Configuration, plans: Sequence[Plan]) -> tuple[Any, list[Event]]:
    """Return the protocol with noise that meets the target on all plans, and its event on each of them.

    Plans that are equal to the first share its event.
    """
    protocol, event = calibrate_and_check(configuration.protocol, configuration.problem, plans[0], configuration.target)
    events = [event]
    for plan in plans[1:]:
        if equal_but_for_secrets(plans[0], plan):
            events.append(events[0])
            continue
        event = event_of(protocol, configuration.problem, plan)
        if not privacy_of(protocol).target_is_claim and exceeds(event, configuration.target):
            protocol, event = calibrate_and_check(
                configuration.protocol, configuration.problem, plan, configuration.target
            )
            events = [event_of(protocol, configuration.problem, earlier) for earlier in plans[: len(events)]]
            with clients_named(configuration.problem.client_names):
                for earlier in events:
                    require_met(protocol, earlier, configuration.target)
        events.append(event)
    return protocol, events


def _configuration(protocol, problem: Problem, settings: dict[str, float], delta: float) -> Configuration:
    sizes = {name: settings.pop(name) for name in list(settings) if name not in (*TARGETS, *numbers_in(protocol))}
    its_problem = _with_sizes(problem, sizes) if sizes else problem
    target = {name: settings.pop(name) for name in LEVELS if name in settings}
    own = {name: value for name, value in target.items() if name in leaves_of(protocol)}  # its fields
    protocol = with_numbers(protocol, settings | own)
    return Configuration(protocol, its_problem, target_of(protocol, **target, delta=delta))


def _with_sizes(problem: Problem, sizes: Mapping[str, float]) -> Problem:
    """Return the problem on a constraint set of another size.

    Raises:
        Refusal: if the set does not have this size, or if a declared constant or the start does not hold on it.
    """
    before = problem.constraint
    for name in sizes.keys() - set(before.sizes):
        raise Refusal(f"{name} must be a size of the constraint set to be swept, got {before.described}")
    after = replace(before, **sizes)  # type: ignore[type-var]
    declared = problem.own_lipschitz is not None or problem.own_smoothness is not None
    if declared and not after.within(before):
        raise Refusal(
            f"constraint must lie in {before.described}, where lipschitz and smoothness were declared, "
            f"got {after.described}"
        )
    if not after.contains(problem.start):
        raise Refusal(f"start must lie in the constraint set, {after.described}")
    return replace(problem, constraint=after)


def _axis(protocol, name: str, values: Sequence[float], sizes: Sequence[str]) -> np.ndarray:
    numbers = numbers_in(protocol)
    known = sweepable(protocol, sizes, numbers)
    if name in {field.name for field in fields(protocol)} - set(known):
        raise Refusal(
            f"over must name settings that can be swept ({', '.join(known)}), got {name!r}. "
            f"Run a sweep for each of its values"
        )
    require_choice("swept setting", name, known)
    if isinstance(values, int | float | np.number):
        raise Refusal(f"{name} must be swept over a list of numbers, got {values}. Write [{values}]")
    for one in values if isinstance(values, list | tuple) else [values]:
        require_real(name, one)
    try:
        others = np.asarray(values).dtype.kind in "SUb" or any(isinstance(one, bool | np.bool_) for one in values)
        axis = np.zeros(0) if others else np.atleast_1d(np.asarray(values, float))  # NumPy would convert "1" and True
    except (TypeError, ValueError):
        axis = np.zeros(0)
    if axis.ndim != 1 or axis.size == 0:
        given = called(values) if hasattr(values, "shape") else repr(values)
        raise Refusal(f"{name} must be swept over a list of numbers, got {given}")
    if np.isnan(axis).any():
        raise Refusal(f"{name} must be swept over numbers, got nan")
    if np.unique(axis).size != axis.size:
        raise Refusal(f"{name} must be swept over distinct numbers, got {axis.tolist()}")
    return axis


def shared_draws(axes: Mapping[str, np.ndarray], resample: Sequence[str]) -> np.ndarray:
    """Return the configurations that share a draw: int [points of resampled axes, points of the other axes]."""
    for name in resample:
        require_choice("axis to resample", name, axes)
    configurations = np.arange(np.prod([axis.size for axis in axes.values()], dtype=int))
    configurations = configurations.reshape([axis.size for axis in axes.values()])
    outer = [place for place, name in enumerate(axes) if name in resample]
    points = np.prod([configurations.shape[place] for place in outer], dtype=int)
    return np.moveaxis(configurations, outer, range(len(outer))).reshape(points, -1)


def resampled_rows(index: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """Return the row of `resampled` that contains each row of a finer index, int [points].

    All entries are −1 if nothing is resampled.
    """
    if len(resampled) == 1:
        return np.full(len(index), -1)
    return np.array([np.flatnonzero((resampled == row[0]).any(axis=1))[0] for row in index])


def seeds_of_draws(seeds: Sequence[Seeds], resampled: np.ndarray) -> list[Seeds]:
    """Return the seeds of every draw, seed by seed. Those of different resampled points are independent."""
    if resampled[0] < 0:
        return [seed for seed in seeds for _ in resampled]
    rows = resampled.tolist()
    found = distinct_resamples(seeds, sorted(set(rows)))
    return [found[seed, row] for seed in seeds for row in rows]


def number_of(seeds: int | Sequence[int | Seeds]) -> int:
    """Return the number of seeds."""
    if isinstance(seeds, Sequence) or np.ndim(seeds):
        return len(seeds)  # type: ignore[arg-type]
    require_at_least("seeds", seeds, 1)
    return int(seeds)  # type: ignore[arg-type]


def seed_list(seeds: int | Sequence[int | Seeds]) -> list[Seeds]:
    listed = seeds if isinstance(seeds, Sequence) or np.ndim(seeds) else range(number_of(seeds))
    each = [as_seeds(seed) for seed in listed]  # type: ignore[union-attr]
    require_at_least("seeds", len(each), 1)
    if len(set(each)) != len(each):
        raise Refusal(f"seeds must be distinct, got {list(seeds)}")  # type: ignore[arg-type]
    return each


def seed_labels(seeds: Sequence[Seeds]) -> np.ndarray:
    labels = np.array([seed.noise for seed in seeds])
    return labels if np.unique(labels).size == labels.size else np.arange(len(seeds))
