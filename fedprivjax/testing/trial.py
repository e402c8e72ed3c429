"""A protocol under test, with cached runs that all properties share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.numbers import numbers_in
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.finished_run import Run
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.prepare import Arguments, ReadyRun, ready, round_inputs
from fedprivjax.engine.segments import first_sample, noise_of
from fedprivjax.engine.simulate import execute
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.seen import costs_of, seen_of
from fedprivjax.method.server_step import optimizer_of_step
from fedprivjax.noise import Mechanism, Silent
from fedprivjax.plan.participation import Full, Participation, Uniform
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.seeds import Seeds, protocol_key
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.target import TARGETS
from fedprivjax.problem.problem import Problem


def _probe(problem, snapshot):
    params = ravel_pytree(snapshot.params)[0]
    return params @ jnp.sin(1.0 + jnp.arange(params.size) ** 2)


PROBE = Metric("probe", _probe)  # the reported point along a direction without symmetries
METRICS = (PROBE, "noise_norm")
FEW = 3  # rounds whose states are compared


@dataclass(frozen=True, eq=False)
class Watched:
    """A model that records its evaluations at one point for one example, or for a sum over examples.

    Attributes:
        model: wrapped model.
        evaluations: recorded points [d], each with the number of computed gradients.
    """

    model: Any
    evaluations: list[tuple[np.ndarray, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def value(self, params, example):
        self._record([params], example, 0)
        return self.model.value(params, example)

    def gradients(self, points, example):
        self._record(points, example, 1)
        return self.model.gradients(points, example)

    def summed_gradients(self, points, examples, weights=None):
        self._record(points, examples, jax.tree.leaves(examples)[0].shape[0])
        return self.model.summed_gradients(points, examples, weights)

    def _record(self, points, example, number: int) -> None:
        """Record the evaluations at `points`. Under vmap, each example is recorded, since the argument is mapped.

        A mapped `io_callback` is one loop. `jax.debug.callback` would be unrolled over examples and compile slowly.
        """
        for point in points:
            arguments = lax.stop_gradient((ravel_pytree(point)[0], jax.tree.leaves(example)[0]))
            io_callback(partial(self._add, number), None, *arguments)

    def _add(self, number: int, point, _) -> None:
        self.evaluations.append((np.array(point), number))


@dataclass(frozen=True, eq=False)
class Trial:
    """A protocol that `check_protocol` tests, and the settings of the test runs.

    Attributes:
        protocol: a protocol with a privacy target or a given `noise_std`. A protocol with `noise_std = 0` is
            non-private, unless it guarantees privacy without added noise.
        problem: problem of the test runs.
        participation: participation scheme of the test runs.
        rounds: number of rounds of a run.
        seed: seed of participation, samples of records, and noise.
    """

    protocol: Any
    problem: Problem
    participation: Participation
    rounds: int = 12
    seed: int = 3

    @cached_property
    def method(self) -> str:
        """Noise method of the runs, "materialised" (as in a transcript) if the protocol accepts it, or "auto"."""
        try:
            self.ready(self.protocol, noise_method="materialised")
        except Refusal:
            return "auto"
        return "materialised"

    @cached_property
    def start(self) -> ReadyRun:
        """Prepared reference run, which evaluates every round."""
        return self.ready(self.protocol)

    @cached_property
    def run(self) -> Run:
        """Finished reference run."""
        return execute(self.start)

    @cached_property
    def silent(self) -> ReadyRun:
        """Prepared reference run without noise."""
        protocol = replace(self.start.protocol, noise_std=0.0)
        event = protocol.event(self.problem, self.start.plan)
        return replace(self.start, protocol=protocol, mechanism=Silent(), event=event)

    @cached_property
    def watched_rounds(self) -> list[tuple[int, np.ndarray, RoundInputs, list[tuple[np.ndarray, int]]]]:
        """For each of the first rounds its number from 1, query [d], inputs, and evaluations of the model."""
        watched, found = Watched(self.start.problem.model), []
        problem = replace(self.start.problem.traced, model=watched)
        for t, (inputs, before, after) in enumerate(first_rounds(self.start, problem=problem)):
            jax.block_until_ready(after)
            jax.effects_barrier()
            query = np.asarray(ravel_pytree(seen_of(self.start.protocol).query(before))[0])
            found.append((t + 1, query, inputs, watched.evaluations.copy()))
            watched.evaluations.clear()
        return found

    @property
    def private(self) -> bool:
        """True if the protocol under test is private.

        It is False if the protocol has `noise_std = 0`, `mu = inf` or `epsilon = inf`. An exception is a mechanism that
        is private even without added noise, for which it is always True.
        """
        return not self.start.target.non_private or self.start.guarantee.private

    def mechanism(self, protocol, problem: Problem, plan: Plan, method: str) -> Mechanism:
        """Return the sampler of a protocol's noise, or `Silent` (no noise) if it is non-private.

        Args:
            protocol: calibrated protocol.
            problem: problem of the run.
            plan: participants of each round, and the records of each message.
            method: name of a noise sampler, a key of `noise.chooser.METHODS`.
        """
        return protocol.mechanism(problem, plan, method) if self.private else Silent()

    @cached_property
    def untargeted(self) -> Any:
        """Protocol with its calibrated step size, and without target and noise."""
        names = {field.name for field in fields(self.protocol)} & set(TARGETS)
        return replace(self.protocol, step_size=self.start.protocol.step_size, **dict.fromkeys(names))

    def ready(
        self, protocol, problem: Problem | None = None, *, seed: int | Seeds | None = None, **options
    ) -> ReadyRun:
        """Return a prepared run like the test run, with another protocol, problem, seed or option.

        Args:
            protocol: protocol of the run.
            problem: problem of the run. None is that of the test run.
            seed: seed of the run. None is that of the test run.
            options: other arguments of `fedprivjax.ready`, such as `eval_every`.
        """
        options = {"rounds": self.rounds, "metrics": METRICS, "eval_every": 1, **options}
        if "noise_method" not in options:
            options["noise_method"] = self.method
        seed = self.seed if seed is None else seed
        return ready(protocol, self.problem if problem is None else problem, self.participation, seed=seed, **options)

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Real-valued settings of the calibrated protocol, by name, except a step size that its optimiser fixes."""
        values, (_, optimizer) = numbers_in(self.start.protocol), optimizer_of_step(self.start.protocol)
        if optimizer is not None and optimizer.own_step:
            del values["step_size"]
        return {name: float(value) for name, value in values.items() if value is not None and np.ndim(value) == 0}


def default_of(protocol, name: str) -> Any:
    """Return a setting's default, or None for a setting of a component."""
    return None if "." in name else {field.name: field.default for field in fields(protocol)}[name]


def first_rounds(start: ReadyRun, *, plan: Plan | None = None, problem: Problem | None = None) -> Iterator[tuple]:
    """Yield (inputs, state before, state after) of each of the first rounds, without noise.

    All rounds of a call share one compiled program.

    Args:
        start: prepared run.
        plan, problem: replacements of the run's own, or None.
    """
    protocol, inputs = as_leaves(start.protocol.traced), round_inputs(start.plan if plan is None else plan)
    problem = start.problem.traced if problem is None else problem
    state = protocol.init(problem, start.plan.size, protocol_key(start.key))

    @jax.jit  # compiled by every call, so that no program of earlier code is checked
    def after_round(protocol, problem: Problem, state, inputs: RoundInputs, key):
        return protocol.round(problem, state, inputs, None, protocol_key(key, inputs.round))[0]

    for t in range(min(FEW, start.plan.size.rounds)):
        of_round = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        before = state
        state = after_round(protocol, problem, before, of_round, start.key)
        yield of_round, before, state


def first_noise(arguments: Arguments, size: Size) -> tuple[Any, Any, Any]:
    """Return the noise's state before and after the first round, and the noise as the round receives it, traced."""
    protocol, problem, mechanism, _, _, key = arguments
    dimension = costs_of(protocol).message_dimension(problem)
    before = protocol.rounds.noise_state(dimension, size)
    sample = first_sample(arguments, mechanism.init(dimension, key))
    return before, *noise_of(protocol, before, *sample)


def usual_participation(protocol: Any, problem: Problem) -> Participation:
    """Return uniform sampling of half of four machines or of the partition table's, or all if the privacy fixes them.

    A custom privacy object for a fixed graph may be defined for rounds of all machines only.
    """
    if fixed := privacy_of(protocol).for_machines:
        return Full(fixed)
    machines = 4 if problem.partition_table is None else problem.partition_table.rows.shape[0]
    return Uniform(machines, max(1, machines // 2))


def close(one, other, tolerance: float = 1e-4, message: str = "", largest: float = 0.0) -> None:
    """Assert that arrays are equal up to `tolerance` of the largest value, which is at least `largest`."""
    one, other = np.asarray(one), np.asarray(other)
    largest = max(largest, np.abs(other).max())
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * largest + 1e-30, err_msg=message)


def apart(one, other, message: str) -> None:
    """Assert that arrays differ by more than rounding."""
    one, other = np.asarray(one), np.asarray(other)
    difference = np.abs(one - other).max()
    assert difference > 1e-4 * np.abs(other).max(), f"{message}: the largest difference is {difference:.2g}"


def programs_after(program: Any, compute: Callable[[], Any]) -> int:
    """Return the number of cached programs of a jitted function after a computation that needs one of them.

    A later call that needs no new program never increases it. It can decrease, because all programs of a process are
    cleared when they take too much room. If that has happened at the end of the computation, it runs again.
    """
    compute()
    if not program._cache_size():
        compute()
    return program._cache_size()
