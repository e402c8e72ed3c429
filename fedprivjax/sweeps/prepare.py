"""Preparation of a sweep on the host: plans, calibration and all checks, without compilation."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_flag, require_items, require_number
from fedprivjax.engine.client_metrics import CLIENT
from fedprivjax.engine.fingerprint import UNSALTED, data_checksums, identity_of_parts
from fedprivjax.engine.finished_run import plain
from fedprivjax.engine.metric import Metric, iterate_names
from fedprivjax.engine.metrics import MetricLike, non_private
from fedprivjax.engine.prepare import Arguments, ReadyRun, StaticArguments, evaluation_rounds, on_devices, ready_after
from fedprivjax.engine.published import totals
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.arguments import plain_numbers
from fedprivjax.plan.draw import require_possible
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds, configuration_key, configuration_seed
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.problem.predictor import predictor_of
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import FLOAT32
from fedprivjax.sweeps.configurations import (
    SIZES,
    Configuration,
    Configurations,
    axes_of,
    calibrated,
    grid,
    number_of,
    resampled_rows,
    seed_labels,
    seed_list,
    seeds_of_draws,
    shared_draws,
)
from fedprivjax.sweeps.memory import MEMORY_BUDGET, MIN_CHUNKS, chunk_sizes, one_run, sweep_mesh
from fedprivjax.sweeps.schema import METHOD, as_keep, structure_of


@dataclass(frozen=True)
class ReadySweep:
    """A sweep that is ready to run: checked, sampled and calibrated, but not compiled.

    Randomness is sampled once per *draw*. A draw is a seed at a point of certain axes: those along which randomness is
    resampled, and those along which the protocol's mechanism differs (`noise_follows`), with the same seed. Draw i is
    seed i // points at point i % points.

    Attributes:
        starts: one prepared run per draw, with the draw's plan and mechanism.
        axes: swept values by name.
        grid: configurations before calibration.
        configurations: configurations of the grid, calibrated for their plans.
        seeds: seeds of the sweep.
        index: configurations that share a draw, int [points, configurations of a draw].
        sizes: numbers of draws and of configurations in a chunk.
        mesh: devices with the axes "runs" and "machines".
        common_noise: True if configurations share each seed's noise.
        memory_budget: approximate largest number of bytes of a chunk on a device.
        keep: parts of every run that its dataset has besides metrics: "params" or none.
    """

    starts: list[ReadyRun]
    axes: dict[str, np.ndarray]
    grid: list[Configuration]
    configurations: Configurations
    seeds: list[Seeds]
    index: np.ndarray
    sizes: tuple[int, int]
    mesh: Mesh
    common_noise: bool
    memory_budget: int = MEMORY_BUDGET
    keep: tuple[str, ...] = ()

    @property
    def first(self) -> ReadyRun:
        return self.starts[0]

    def start_at(self, point: Mapping[str, float]) -> ReadyRun:
        """Return the first seed's prepared run at swept values by name, with the noise that all seeds share."""
        configuration = [*product(*self.axes.values())].index(tuple(point[name] for name in self.axes))
        draw, _ = np.argwhere(self.index == configuration)[0]
        protocol, events = self.configurations.protocols[configuration], self.configurations.events[configuration]
        return replace(self.starts[draw], protocol=protocol, event=events[0], target=self.grid[configuration].target)

    @property
    def static(self) -> StaticArguments:
        """Static configuration of every run's program, which is mapped over the mesh together with the other runs'."""
        return self.first.static._replace(mesh=None)

    @cached_property
    def problem(self) -> Problem:
        """Problem of all configurations, apart from their constraints, as the sweep's program gets it."""
        return on_devices(self.first.problem, self.mesh)

    @property
    def runs(self) -> tuple[int, int]:
        """Numbers of draws, and of configurations that share one."""
        return len(self.starts), self.index.shape[1]

    @property
    def iterates(self) -> tuple[str, ...]:
        """Names of the iterates at which metrics of parameters are evaluated."""
        return iterate_names(self.first.protocol, self.first.problem, self.static.size)

    def has_iterates(self, metric: Metric) -> bool:
        """Return True if a metric has a value for each of several iterates."""
        return metric.of == "params" and len(self.iterates) > 1

    def configurations_of(self, draws: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the grid's configurations on these draws, int [draws, columns].

        Args:
            columns: indices among the configurations that share a draw.
        """
        return self.index[draws % len(self.index)][:, columns]

    def coordinates(self) -> dict[str, np.ndarray]:
        """Return the dataset's coordinates: swept values, seeds, evaluations and iterates."""
        of_run = {"round": evaluation_rounds(self.static), "iterate": np.array(self.iterates)}
        names = self.first.problem.client_names
        clients = {CLIENT: np.array(names)} if names and any(one.axis == CLIENT for one in self.static.metrics) else {}
        return {**self.axes, "seed": seed_labels(self.seeds), **of_run, **clients}

    def attributes(self) -> dict[str, Any]:
        """Return the dataset's attributes: its origin, and the limits of its guarantees."""
        first, problem = self.first, self.first.problem
        together = "shared by the grid's configurations, whose guarantees do not compose"
        noise = together if self.common_noise else "sampled independently for each configuration"
        optional = {
            "parts": identity_of_parts(first.protocol),
            "data_used": first.published.data_used,
            "expected": ", ".join(first.published.expected),
            "delta_warning": next(filter(None, (start.published.delta_warning for start in self.starts)), ""),
            "weights": first.published.weights,
            "non_private_attributes": UNSALTED.format("data") * problem.stored,
        }
        return {
            "protocol": first.protocol.name,
            "delta": first.delta,
            "selection": "not accounted for: guarantees do not cover the choice of hyper-parameters by these results",
            "non_private_metrics": ", ".join(non_private(problem, self.static.metrics)),
            "non_private_data": "; ".join(first.published.not_covered),
            "noise": f"{first.mechanism.name}, {noise}",
            "precision": self.static.precision,
            "data": json.dumps(data_checksums(problem)),
            "prng": "simulation only: a deployment needs a cryptographic generator and discrete noise",
            **{name: text for name, text in optional.items() if text},
        }

    @property
    def predictor(self) -> str | None:
        """Linear predictor as JSON, or None for a network or a custom model."""
        predictor = predictor_of(self.first.problem)
        mapping = None if predictor is None else predictor.as_mapping()
        return None if mapping is None else json.dumps(plain(mapping), ensure_ascii=False)

    def methods(self) -> dict[str, np.ndarray]:
        """Return the text of each configuration's method, object [configurations], if parameters are kept."""
        texts = [str(protocol) for protocol in self.configurations.protocols] if self.keep else []
        return {METHOD: np.array(texts, object)} if texts else {}

    def privacy(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return privacy values by name: of every run, [seeds, configurations], and of every configuration.

        The first are realised μ and ε. The second are the noise, the step size, the target ε (NaN if the noise was
        given) and the guarantee, each of shape [configurations].
        """
        realised, guarantees = self.configurations.realised(self.first.delta)
        targets = [configuration.target for configuration in self.grid]
        asked = [np.nan if target.noise_std is not None else target.worst_epsilon for target in targets]
        return realised, {
            "noise_std": self.configurations.noise_std,
            "step_size": self.configurations.step_size,
            "target_epsilon": np.array(asked),
            "guarantee": guarantees,
        }

    def costs(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return costs by name: of every run, [seeds, configurations], and of every configuration, [configurations].

        The first are `gradients_per_record`, `sent_bytes`, and those of `Costs.run_costs`. The second are the
        per-round costs of one machine, and `rounds_taken`.
        """
        pairs = zip(self.configurations.protocols, self.grid, strict=True)
        of_each = [costs_of(protocol).costs(configuration.problem) for protocol, configuration in pairs]
        each = {name: np.array([costs[name] for costs in of_each]) for name in of_each[0]}
        known = [start.published for start in self.starts]
        rounds, messages, uses = self._by_run([(one.rounds, one.messages, one.uses) for one in known])
        further = [one.run_costs for one in known]
        of_runs = zip(further[0], self._by_run([list(costs.values()) for costs in further]), strict=True)
        return totals(each, messages, uses) | dict(of_runs), each | {"rounds_taken": rounds[0].astype(int)}

    def _by_run(self, values: Sequence[Sequence[float]]) -> np.ndarray:
        """Return values [draws, k] by run: float64, shape [k, seeds, configurations]."""
        by_draw = np.array(values)
        by_run = np.empty((len(self.seeds), self.index.size, by_draw.shape[1]))
        by_run[:, self.index] = by_draw.reshape(len(self.seeds), len(self.index), 1, by_draw.shape[1])
        return np.moveaxis(by_run, 2, 0)

    def host_noise(self, draw: int, configuration: int) -> Any:
        """Return a configuration's host noise on a draw."""
        start = self.starts[draw]
        seed = start.seeds.noise if self.common_noise else configuration_seed(start.seeds, configuration)
        dimension = costs_of(start.protocol).message_dimension(start.problem)
        return start.host_noise_of(self.configurations.protocols[configuration], seed, dimension)

    def arguments(self, draw: int, configuration: int) -> Arguments:
        """Return the program's arguments for one run."""
        start, host_noise = self.starts[draw], self.host_noise(draw, configuration)
        protocol, constraint = jax.tree.map(lambda leaf: leaf[configuration], self.configurations.leaves)
        problem = replace(start.problem.traced, constraint=constraint)
        key = start.key if self.common_noise else configuration_key(start.key, configuration)
        return Arguments(protocol, problem, start.mechanism, start.inputs, host_noise, key)


def ready_sweep(
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
    memory_budget: int = MEMORY_BUDGET,
    min_chunks: int = MIN_CHUNKS,
    keep: Sequence[str] = (),
    mesh: Mesh | Mapping[str, int] | None = None,
    preparing: Callable[[str, int, int], Any] | None = None,
) -> ReadySweep:
    """Prepare a sweep on the host: sample the plans, calibrate the noise, and run all checks.

    Args:
        preparing: progress callback, called with (step, number, total) before each schedule is sampled and each noise
            calibrated.
        others: as in `sweep`, which also takes swept integers.
    """
    require_at_least("min_chunks", min_chunks, 1)
    require_number("memory_budget", memory_budget)
    require_flag("common_noise", common_noise)
    protocol, mesh, keep = plain_numbers(protocol), sweep_mesh(mesh), as_keep(keep)
    if keep:
        structure_of(problem)  # raises Refusal
    axes = axes_of(protocol, over, tuple(dict.fromkeys((*SIZES, *problem.constraint.sizes))))
    resample = require_items("resample", resample)
    index = shared_draws(axes, (*resample, *(name for name in axes if name in privacy_of(protocol).noise_follows)))
    draws = len(index) * number_of(seeds)
    require_possible(problem, participation, rounds, order=order, sampler=protocol.minibatches, draws=draws)
    seeds = seed_list(seeds)
    points = grid(protocol, problem, axes, delta)
    resampled = resampled_rows(index, shared_draws(axes, resample))
    settings = {"rounds": rounds, "metrics": metrics, "eval_every": eval_every, "delta": delta, "order": order}
    settings |= {"noise_method": noise_method, "precision": precision, "mesh": one_run(mesh)}
    starts = []
    examples = _examples(points, index)
    for number, seed in enumerate(seeds_of_draws(seeds, resampled)):
        if preparing is not None:
            preparing("sampling schedules", number + 1, draws)
        own, example = {"seed": seed, **settings}, examples[number % len(index)]
        first = starts[number % len(index)] if number >= len(index) else None
        run = example.protocol, example.problem, participation
        starts.append(ready_after(first, *run, target=example.target, **own))
    for metric in starts[0].static.metrics:
        if metric.axis in axes:
            raise Refusal(f"axis of metric {metric.name!r} must not be swept, got {metric.axis!r}. Rename it")
    starts = [replace(start, mechanism=aligned) for start, aligned in zip(starts, _aligned(starts), strict=True)]
    place = {configuration: point for point, row in enumerate(index) for configuration in row}
    plans = [[start.plan for start in starts[place[each] :: len(index)]] for each in range(index.size)]
    on_progress = None if preparing is None else partial(preparing, "calibrating noise")
    configurations = calibrated(points, plans, on_progress)
    for one in {point.group: one for point, one in zip(points, configurations.protocols, strict=True)}.values():
        privacy_of(one).check_method(noise_method)
    limits = {"keep": bool(keep), "min_chunks": min_chunks}
    sizes = chunk_sizes(starts[0], (len(starts), index.shape[1]), memory_budget, *mesh.devices.shape, **limits)
    shared = mesh, common_noise, memory_budget, keep
    return ReadySweep(starts, axes, points, configurations, seeds, index, sizes, *shared)


def _examples(points: Sequence[Configuration], index: np.ndarray) -> list[Configuration]:
    """Return the configuration that prepares each draw of a seed: a private one if there is any."""
    any_private = next((point for point in points if not point.target.non_private), points[0])
    return [next((points[m] for m in row if not points[m].target.non_private), any_private) for row in index]


def _aligned(starts: Sequence[ReadyRun]) -> list[Any]:
    """Return the draws' mechanisms, of one type and equal shapes.

    If the cheapest sampler differs between draws, all use that of the draw with the longest gap, which fits in memory
    for every draw.
    """
    mechanisms = [start.mechanism for start in starts]
    if len({mechanism.name for mechanism in mechanisms}) > 1:
        method = max(starts, key=lambda start: start.plan.schedule.gaps.max()).mechanism.method
        mechanisms = [start.protocol.mechanism(start.problem, start.plan, method) for start in starts]
    return mechanisms[0].align(mechanisms)
