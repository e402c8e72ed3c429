"""Preparation of a run: its plan is sampled, its protocol calibrated, its settings checked. Nothing is compiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.checks.values import known_keywords, require_at_least, require_between, require_choice
from fedprivjax.engine.hosts import exchanged, local_of, together
from fedprivjax.engine.metric import Metric, iterate_names
from fedprivjax.engine.metrics import METRICS, MetricLike, check_metrics, default_metrics, require_list
from fedprivjax.engine.model_metrics import require_models
from fedprivjax.engine.published import (
    NOT_PUBLIC,
    TELLS_SIZE,
    Published,
    batch_warning,
    delta_warning,
    published,
    totals,
)
from fedprivjax.method.division import part_of_size
from fedprivjax.method.local_rounds import client_state_bytes
from fedprivjax.method.protocol import Protocol, as_leaves
from fedprivjax.method.round import LateInputs, RoundInputs, in_a_step
from fedprivjax.method.seen import costs_of
from fedprivjax.noise import Mechanism, Silent
from fedprivjax.noise.chooser import METHODS
from fedprivjax.plan.arguments import require_arguments, require_valid_plan
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.plan import Plan, equal_but_for_secrets
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.seeds import Seeds, as_seeds, run_key
from fedprivjax.privacy.calibration import calibrate_and_check, given_target, target_of
from fedprivjax.privacy.composed_guarantee import NOISE, PARTICIPATION, SAMPLES, Streams
from fedprivjax.privacy.event_on_plan import require_trusted
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.devices import MACHINES, RUNS, as_mesh, divided_rows, require_state_room, room_of
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import FLOAT32, PRECISIONS, by_shapes
from fedprivjax.problem.random_keys import random_key, require_jax_settings

TWICE = "machines of more records take part more often, and machine_weights = 'sizes' counts their size again"


class StaticArguments(NamedTuple):
    """Static configuration of a run's program: hashable. The shapes of the inputs determine the rest."""

    size: Size
    metrics: tuple[Metric, ...]
    eval_every: int
    mesh: Mesh | None = None  # devices that the machines are divided over
    precision: str = FLOAT32  # of products
    unroll: int = 1  # rounds in one step of the compiled loop


class Arguments(NamedTuple):
    """Arguments of a run's program: protocol leaves, problem, sampled mechanism, plan and host noise, and noise key."""

    protocol: Protocol
    problem: Problem
    mechanism: Mechanism
    inputs: RoundInputs
    host_noise: Any
    key: jax.Array


@dataclass(frozen=True)
class ReadyRun:
    """Result of `ready`: a prepared run, with its plan, calibrated protocol, noise sampler and guarantee.

    Attributes:
        protocol: protocol with calibrated noise. Its `mu` and `epsilon` are removed, except one ε per machine.
        problem: data, loss and constraint set.
        plan: run plan: which machines take part in each round, and which records each message uses.
        seeds: seeds of participation, samples of records, and noise.
        mechanism: sampler of the noise, or `Silent` in a run without noise.
        static: settings with which the program is compiled, such as metrics and rounds between evaluations.
        event: description of all noisy messages of the run, for privacy accounting.
        target: privacy target for which the noise was calibrated.
        delta: δ at which the guarantee states ε.
    """

    protocol: Protocol
    problem: Problem
    plan: Plan
    seeds: Seeds
    mechanism: Mechanism
    static: StaticArguments
    event: Event
    target: Target
    delta: float

    def __str__(self) -> str:
        used = f"\n  data: {self.published.data_used}" if self.published.data_used else ""
        private = NOT_PUBLIC if self.event.terms.hides_sizes else ""
        text = f"{self.protocol}\n{self.problem}\n{self.plan}{used}\n{self.event}\n  target: {self.target}{private}"
        return f"ReadyRun: {text}"

    __repr__ = __str__

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy guarantee of the run, with ε at `delta`."""
        return replace(self.event.guarantee(self.delta), streams=self._streams)

    @property
    def _streams(self) -> Streams:
        """Random streams of the run. The schedule and the samples of records must be secret if the plan says so."""
        found, hidden = self.seeds._asdict(), self.plan.schedule.secret is not None
        secret = {NOISE} | ({SAMPLES} if self.plan.secret or hidden else set()) | ({PARTICIPATION} if hidden else set())
        return Streams(found.items(), [(name, found[name]) for name in secret])

    @cached_property
    def published(self) -> Published:
        """Facts about the plan and the data that results may publish, none about secret samples or participants."""
        return published(self)

    @property
    def costs(self) -> dict[str, float]:
        """Costs of one machine by name, per round and for the whole run.

        Costs of a round:

        * `sent_messages`: number of messages that the machine sends.
        * `sent_bits`: number of bits of all these messages.
        * `gradients_per_use`: number of gradients each time a record is used.

        Costs of the run:

        * `rounds_taken`: number of rounds.
        * `gradients_per_record`: number of gradients per stored record, a mean over records.
        * `sent_bytes`: number of bytes that a machine sends, a mean over machines.
        * `hours`: simulated time of the run, if participation has delays.
        * `idle_steps`: fraction of computed local steps that change nothing.
        * `client_state_bytes`: bytes of the states that all machines together keep.

        Costs that depend on secret participants or secret samples of records are expected values.
        `gradients_per_record` is NaN if examples are computed on demand, or if it would reveal a number of records that
        the guarantee hides. `idle_steps` is NaN if participants are secret, or if the guarantee hides numbers of
        records.
        """
        each, known = costs_of(self.protocol).costs(self.problem), self.published
        return each | {"rounds_taken": known.rounds} | totals(each, known.messages, known.uses) | known.run_costs

    @property
    def inputs(self) -> RoundInputs:
        """Participants of each round and the records that they use, as NumPy arrays [rounds, ...].

        If samples of records are secret, they are sampled when this property is first read.

        Raises:
            Refusal: if record indices do not agree with the sampler that the protocol declares.
        """
        inputs = round_inputs(self.plan)
        require_valid_plan(self.plan, self.problem)
        return inputs

    @property
    def host_noise(self) -> Any:
        """Noise that NumPy samples before the run, because it cannot be sampled on the device.

        The result is a pytree with leaves [rounds, ...], or None if all noise is sampled on the device.
        """
        dimension = costs_of(self.protocol).message_dimension(self.problem)
        return self.host_noise_of(self.protocol, self.seeds.noise, dimension)

    def host_noise_of(self, protocol: Protocol, seed: int, dimension: int) -> Any:
        """Return the part of a protocol's noise that NumPy samples before a run.

        The noise is for this run's participation schedule. The result is a pytree with leaves [rounds, ...], or None if
        all noise is sampled on the device during the run.

        Args:
            protocol: calibrated protocol: `self.protocol`, or a copy with another noise or other numeric settings.
            seed: seed of the noise.
            dimension: number of coordinates of a message.
        """
        return privacy_of(protocol).host_noise(self.plan, dimension, seed) if self.mechanism.uses_host_noise else None

    @property
    def key(self) -> jax.Array:
        """Random key (`jax.random`) from which all noise of the run is sampled on the device."""
        return run_key(self.seeds)

    @property
    def arguments(self) -> Arguments:
        """Arguments of the run's compiled program, as a named tuple.

        They are the protocol, the problem, the noise sampler, the participants and records of all rounds, the noise
        that was sampled before the run, and a random key. All other random numbers of the run follow from this key.
        """
        protocol, problem = as_leaves(self.protocol.traced), on_devices(self.problem, self.static.mesh)
        return Arguments(protocol, problem, self.mechanism, self.inputs, self.host_noise, self.key)


@known_keywords
def ready(
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    metrics: Sequence[MetricLike] | None = None,
    eval_every: int | None = None,
    delta: float = 1e-5,
    order: str = "shuffled",
    noise_method: str = "auto",
    target: Target | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    precision: str = FLOAT32,
) -> ReadyRun:
    """Prepare a run: sample its plan, calibrate its noise, check its target, and choose a noise sampler.

    Args:
        protocol: protocol with a privacy target (`mu` or `epsilon`) or a given `noise_std`.
        problem: data, loss and constraint set.
        participation: participation scheme.
        rounds: number of rounds. None uses all rounds for which machines have records.
        seed: one integer, or `Seeds` to seed participation, samples of records and noise separately.
        metrics: metrics to record: names such as "test_loss" (keys of `engine.metrics.METRICS`), `Metric` objects, or
            callables `(problem, Snapshot) -> scalar`. None records the default metrics that can be computed for the
            problem.
        eval_every: number of rounds between evaluations. None evaluates about 20 times. The last round is always
            evaluated.
        delta: δ at which the guarantee states ε.
        order: order in which a machine uses its records, for methods that use one record per message. "shuffled" is one
            pass in random order. "stored" is one pass in the order of the data. "cyclic" is several passes in the same
            random order. "reshuffled" is several passes, each in a new random order.
        noise_method: name of the noise sampler, a key of `noise.chooser.METHODS`, or "auto" for the fastest. All
            samplers give the same distribution, except "normal", which is an approximation.
        target: privacy target for the calibration. None uses the protocol's target.
        mesh: mesh of devices with an axis "machines", or the number of devices as {"machines": 4}. None uses one
            device. The mesh changes results by rounding only.
        precision: "float32" or "tf32" for matrix products and convolutions on an accelerator. "tf32" rounds the factors
            of products to 10 bits. Products for noise are always in float32.

    Raises:
        Refusal: if the settings are invalid, before anything is compiled.

    >>> from fedprivjax import Ball, DPMu2, Full, datasets, from_dataset
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> start = ready(DPMu2(mu=8.0, clip=1.6), problem, Full(20))
    >>> start.plan.size.rounds, round(start.guarantee.epsilon, 1)
    (71, 65.3)
    """
    settings = {"rounds": rounds, "seed": seed, "metrics": metrics, "eval_every": eval_every, "delta": delta}
    settings |= {"order": order, "noise_method": noise_method, "target": target, "mesh": mesh, "precision": precision}
    return ready_after(None, protocol, problem, participation, **settings)


def ready_after(
    earlier: ReadyRun | None,
    protocol: Protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None,
    seed: int | Seeds,
    metrics: Sequence[MetricLike] | None,
    eval_every: int | None,
    delta: float,
    order: str,
    noise_method: str,
    target: Target | None,
    mesh: Mesh | Mapping[str, int] | None,
    precision: str,
) -> ReadyRun:
    """Return `ready` of these arguments, without calibrating again if an earlier run has an equal plan.

    Args:
        earlier: prepared run of the same arguments with another seed, or None.
        others: as in `ready`.
    """
    protocol = require_arguments(protocol, problem, participation)
    require_jax_settings()
    require_between("delta", delta, 0, 1)
    require_choice("noise method", noise_method, METHODS)
    require_choice("precision", precision, PRECISIONS)
    require_trusted(protocol, participation if participation.secret else None)
    mesh = as_mesh(mesh)
    if mesh is not None and mesh.shape[RUNS] > 1:
        raise Refusal(f"mesh must have the axis {MACHINES!r} alone for one run, got {dict(mesh.shape)}")
    seeds = as_seeds(seed)
    plan = draw_plan(problem, participation, rounds, seeds, order=order, sampler=protocol.minibatches)
    if earlier is not None and equal_but_for_secrets(earlier.plan, plan):
        return replace(earlier, plan=earlier.plan if plan.drawn else plan, seeds=seeds)
    target = target_of(protocol, delta=delta) if target is None else given_target(protocol, target, delta)
    devices = jax.local_devices()[:1] if mesh is None else list(mesh.devices.flat)
    held = part_of_size(plan.size, len(devices))
    require_state_room(client_state_bytes(protocol, problem, held), held.machines, local_of(devices))
    calibrated, event = calibrate_and_check(protocol, problem, plan, target)
    if precision != FLOAT32 and calibrated.noise_std != 0:
        event = event.assuming(Assumption("rounded products"))
    eval_every = max(1, ceil(plan.size.rounds / 20)) if eval_every is None else eval_every
    require_at_least("eval_every", eval_every, 1)
    metrics = default_metrics(problem) if metrics is None else require_list(metrics)
    info = info_names(calibrated, problem, plan) if set(map(str, metrics)) - set(METRICS) else ()
    chosen = check_metrics(problem, metrics, info)
    require_models(calibrated, chosen)
    iterate_names(calibrated, problem, plan.size)  # raises Refusal
    unroll = rounds_in_a_step(calibrated, problem, plan)
    static = StaticArguments(plan.size, chosen, min(eval_every, plan.size.rounds), mesh, precision, unroll)
    mechanism = Silent() if calibrated.noise_std == 0 else calibrated.mechanism(problem, plan, noise_method)
    require_decorated(mechanism)
    start = ReadyRun(calibrated, problem, plan, seeds, mechanism, static, event, target, delta)
    warning = delta_warning(start)
    if warning:
        warn(warning if start.published.delta_warning else f"{warning}. {TELLS_SIZE}")
    warning = batch_warning(start)
    if warning:
        warn(f"{warning}. {TELLS_SIZE}" if event.terms.hides_sizes else warning)
    if participation.depends_on_sizes and problem.weighted_by_size and np.ptp(plan.schedule.total):
        warn(f"{TWICE}. Leave out machine_weights, or choose another participation")
    return start


def rounds_in_a_step(protocol: Protocol, problem: Problem, plan: Plan) -> int:
    """Return the number of rounds in one step of the compiled loop: fewer if local steps share a step of their loop."""
    most = in_a_step(problem)
    local = getattr(protocol.rounds, "local", None) if most > 1 else None
    return most if local is None else max(1, most // int(local.steps_of_machines(problem, plan).max()))


def on_devices(problem: Problem, mesh: Mesh | None) -> Problem:
    """Return the problem of a program that is mapped over a mesh.

    Its stored data are divided over the axis "machines" if they take more than half of a device's memory, in any of the
    mesh's processes.
    """
    traced = problem.traced
    if mesh is None or mesh.shape[MACHINES] == 1 or not problem.stored:
        return traced
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.pool))
    fits = size <= room_of(local_of(list(mesh.devices.flat))) / 2
    if together(mesh):
        fits = all(exchanged(fits))
    return traced if fits else replace(traced, pool=divided_rows(problem.pool, mesh))


def info_names(protocol: Protocol, problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return the names of the scalars that a calibrated protocol's rounds report, which can be recorded."""
    problem = replace(problem.traced, excess=None)  # no part of a round
    return _info_names((as_leaves(protocol.traced), problem, round_inputs(plan)), plan.size)


@by_shapes
def _info_names(parts: tuple[Any, Problem, RoundInputs], size: Size) -> tuple[str, ...]:
    def first_round(protocol, problem, inputs):
        key = random_key(0)
        state = protocol.init(problem, size, key)
        return protocol.round(problem, state, jax.tree.map(lambda leaf: leaf[0], inputs), None, key)[1]

    return tuple(jax.eval_shape(first_round, *parts))


def evaluation_rounds(static: StaticArguments) -> np.ndarray:
    """Return the number of completed rounds at each evaluation; int, shape [evaluations]."""
    rounds = np.arange(static.eval_every, static.size.rounds + 1, static.eval_every)
    return rounds if rounds[-1] == static.size.rounds else np.append(rounds, static.size.rounds)


def round_inputs(plan: Plan) -> RoundInputs:
    """Return the scan's inputs, leaves [rounds, ...], as host arrays."""
    schedule = plan.schedule
    numbers = np.arange(1, plan.size.rounds + 1, dtype=np.int32)
    always = RoundInputs(numbers, plan.samples, schedule.participants, schedule.counts)
    if plan.weights is None:
        return always
    of_slots = always._replace(weights=plan.weights, present=schedule.present.astype(np.float32))
    if schedule.late is not None:
        staleness, weights, versions = schedule.late
        late = LateInputs((numbers[:, None] - 1 - staleness) % versions, weights.astype(np.float32))
        of_slots = of_slots._replace(late=late)
    if not schedule.varies:
        return of_slots
    return of_slots._replace(expected=np.full(plan.size.rounds, schedule.divisor, np.float32))
