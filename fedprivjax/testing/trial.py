"""A protocol on trial: what properties are read off, made once and shared by all of them."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import Run, execute
from fedprivjax.noise import Mechanism, Silent
from fedprivjax.plan.participation import Participation, Uniform
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.seeds import Seeds
from fedprivjax.privacy.target import TARGETS
from fedprivjax.problem.problem import Problem


def _probe(problem, snapshot):
    params = ravel_pytree(snapshot.params)[0]
    return params @ jnp.sin(1.0 + jnp.arange(params.size) ** 2)


PROBE = Metric("probe", _probe)  # the reported point along a direction that no symmetry of a problem fixes
METRICS = (PROBE, "noise_norm")


@dataclass(frozen=True, eq=False)
class Trial:
    """A protocol, and what it runs on.

    Attributes:
        protocol: with a target or a `noise_std`; `noise_std = 0` declares it non-private.
        problem, participation, rounds, seed: of its runs.
    """

    protocol: Any
    problem: Problem
    participation: Participation
    rounds: int = 12
    seed: int = 3

    @cached_property
    def method(self) -> str:
        """How runs draw their noise: written out, as in a transcript, where the protocol can."""
        try:
            self.ready(self.protocol, noise_method="materialised")
        except Refusal:
            return "auto"
        return "materialised"

    @cached_property
    def start(self) -> ReadyRun:
        """The run that others are compared with, ready; it evaluates every round."""
        return self.ready(self.protocol)

    @cached_property
    def run(self) -> Run:
        """The same run, done."""
        return execute(self.start)

    @cached_property
    def silent(self) -> ReadyRun:
        """The run without noise, all else the same."""
        protocol = replace(self.start.protocol, noise_std=0.0)
        event = protocol.event(self.problem, self.start.plan)
        return replace(self.start, protocol=protocol, mechanism=Silent(), event=event)

    @property
    def private(self) -> bool:
        """Whether the protocol asks for noise or states a guarantee: neither with `noise_std = 0`, `mu = inf` or
        `epsilon = inf`, unless its event promises something all the same."""
        return not self.start.target.non_private or self.start.guarantee.private

    def mechanism(self, protocol, problem: Problem, plan: Plan, method: str) -> Mechanism:
        """The noise of a protocol on a plan; `Silent` if it asks for none."""
        return protocol.mechanism(problem, plan, method) if self.private else Silent()

    @cached_property
    def untargeted(self) -> Any:
        """The protocol with its step set, and without its noise."""
        names = {field.name for field in fields(self.protocol)} & set(TARGETS)
        return replace(self.protocol, step_size=self.start.protocol.step_size, **dict.fromkeys(names))

    def ready(
        self, protocol, problem: Problem | None = None, *, seed: int | Seeds | None = None, **options
    ) -> ReadyRun:
        """A run of another protocol or seed, ready."""
        options = {"rounds": self.rounds, "metrics": METRICS, "eval_every": 1, **options}
        if "noise_method" not in options:
            options["noise_method"] = self.method
        seed = self.seed if seed is None else seed
        return ready(protocol, self.problem if problem is None else problem, self.participation, seed=seed, **options)

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The calibrated protocol's leaves that are numbers, by name."""
        values = self.start.protocol.numbers()
        return {name: float(value) for name, value in values.items() if value is not None and np.ndim(value) == 0}


def default_of(protocol, name: str) -> Any:
    """A setting's default; None for a number of a part."""
    return None if "." in name else {field.name: field.default for field in fields(protocol)}[name]


def half_of_the_machines(problem: Problem) -> Uniform:
    """Half of the machines in a round, of four, or of those that the data are split over."""
    machines = 4 if problem.partition_table is None else problem.partition_table.rows.shape[0]
    return Uniform(machines, max(1, machines // 2))


def close(one, other, tolerance: float = 1e-4, message: str = "") -> None:
    """Assert that arrays are equal up to `tolerance` of the largest value."""
    one, other = np.asarray(one), np.asarray(other)
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max() + 1e-30, err_msg=message)


def apart(one, other, message: str) -> None:
    """Assert that arrays differ by more than rounding."""
    one, other = np.asarray(one), np.asarray(other)
    difference = np.abs(one - other).max()
    assert difference > 1e-4 * np.abs(other).max(), f"{message}: the largest difference is {difference:.2g}"


def compiled(program: Any) -> int:
    """How many programs a jitted function keeps: never more for a call that is no new program, but jax may forget some,
    for all functions of a process share so many places."""
    return program._cache_size()
