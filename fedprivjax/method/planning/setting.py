"""Setting of a method comparison: the federation, the privacy target, and the constants of the losses."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.participation import Full, Participation, Uniform
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.seeds import as_seeds, participation_rng
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import TRUST
from fedprivjax.problem.build import procedural_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.problem import Problem, Table

DEFAULTS = {"delta": 1e-6, "trust": "none", "unit": "record", "lipschitz": 1.0, "smoothness": 1.0, "diameter": 1.0}
SIZES = ("machines", "per_round", "samples", "dimension")
MAX_USES = 5 * 10**6 // 2  # limit on uses of records, or slots of machines, in a sampled plan


@dataclass(frozen=True)
class Setting:
    """Setting of a method comparison: a federation of identical machines, privacy target, and constants.

    Attributes:
        machines: M, number of machines.
        per_round: m, number of machines that take part in a round. If m < M, every round has a uniformly random subset
            of the machines.
        samples: n, number of records of a machine.
        dimension: d, number of parameters of the model.
        epsilon: target ε of every machine.
        delta: δ of the target.
        trust: trust model, a key of `fedprivjax.privacy.terms.TRUST`.
        unit: protected unit, "record" for one record of a machine or "machine" for all of them.
        lipschitz: G, bound on the gradient norm of one record's loss.
        smoothness: L, Lipschitz constant of the gradient of one record's loss.
        diameter: D, diameter of the ball of allowed parameters.
        gap: bound on the excess loss at the start. Default: G·D.
        rounds: number of rounds. Default: each method's theory chooses it.
        batch: number of records of a message. Default: each method's theory chooses it.
        seed: seed from which participation schedules and samples of records are drawn.
        cached: cache of results that do not depend on ε.

    Raises:
        Refusal: if a number is out of range.

    >>> Setting(machines=10, per_round=20, samples=5, dimension=3, epsilon=1.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: per_round must be at most machines (10), got 20
    """

    machines: int
    per_round: int
    samples: int
    dimension: int
    epsilon: float
    delta: float = DEFAULTS["delta"]
    trust: str = DEFAULTS["trust"]
    unit: str = DEFAULTS["unit"]
    lipschitz: float = DEFAULTS["lipschitz"]
    smoothness: float = DEFAULTS["smoothness"]
    diameter: float = DEFAULTS["diameter"]
    gap: float | None = None
    rounds: int | None = None
    batch: int | None = None
    seed: int = 0
    cached: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self):
        for name in SIZES:
            require_at_least(name, getattr(self, name), 1)
        for name in ("rounds", "batch"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 1)
        if self.per_round > self.machines:
            raise Refusal(f"per_round must be at most machines ({self.machines}), got {self.per_round}")
        require_positive("epsilon", self.epsilon)
        require_between("delta", self.delta, 0, 1)
        require_choice("trust", self.trust, TRUST)
        require_choice("unit", self.unit, ("record", "machine"))
        for name in ("lipschitz", "smoothness", "diameter"):
            require_positive(name, getattr(self, name))
        require_positive("gap", self.gap, optional=True)
        require_at_least("seed", self.seed, 0)

    @property
    def target(self) -> Target:
        """Privacy target of the comparison: the setting's ε and δ."""
        return Target(epsilon=float(self.epsilon), delta=self.delta)

    @property
    def trivial(self) -> float:
        """Bound on the excess loss at every point of the ball: the Lipschitz constant G times the diameter D.

        An error bound above this number says nothing.
        """
        return self.lipschitz * self.diameter

    @property
    def first_gap(self) -> float:
        """Bound on the excess loss at the start: `gap` if given, else Lipschitz constant times diameter."""
        return self.trivial if self.gap is None else self.gap

    @property
    def full(self) -> bool:
        """True if all machines take part in every round."""
        return self.per_round == self.machines

    @property
    def participation(self) -> Participation:
        """Participation scheme: `Full` if all machines take part in every round, otherwise `Uniform`."""
        return Full(self.machines) if self.full else Uniform(self.machines, self.per_round)

    def one_pass(self, batch: int = 1) -> int:
        """Return the number of rounds after which all records are used once.

        Args:
            batch: number of records of each message.
        """
        return max(1, self.machines * self.samples // (self.per_round * batch))

    @property
    def problem(self) -> Problem:
        """Problem with the setting's dimension and constants, but without data.

        Its records are not assigned to machines beforehand: every message takes the next unused record.
        """
        return self._once("problem", self._make_problem)

    @property
    def split(self) -> Problem:
        """The setting's problem with `samples` records on every machine, for methods that need only the number.

        The problem has no data. To save memory, the rows of its partition table are equal: every machine's records have
        the indices 0 to `samples` − 1. Methods that account for each record separately use `owned`, where all indices
        differ.
        """
        table = EqualTable(self.machines, self.samples)
        return self._once("split", lambda: replace(self.problem, partition_table=table))

    @property
    def owned(self) -> Problem:
        """The setting's problem in which every record belongs to one machine and has an index of its own.

        It is used for methods that account for each record separately.
        """

        def make():
            rows = np.arange(self.machines * self.samples, dtype=np.int32).reshape(self.machines, self.samples)
            return replace(self.problem, partition_table=Table(rows))

        return self._once("owned", make)

    def pool_plan(self, rounds: int, sampler: Sampler | None = None) -> Plan:
        """Return a sampled run plan for `problem`: who takes part in each round, and with which records.

        Args:
            rounds: number of rounds.
            sampler: sampler of the records of a message. None is one fresh record.
        """

        return self._drawn(self.problem, rounds, sampler)

    def outline(self, sampler: Sampler, rounds: int) -> Plan:
        """Return a run plan that says who takes part in each round, but not which records are used.

        It is enough for accounting if samples of records are secret, or if all records are used equally often.

        Args:
            sampler: sampler of the records of a message.
            rounds: number of rounds.
        """
        draw = self.participation.draw
        schedule = self._once(("schedule", rounds), lambda: draw(rounds, participation_rng(as_seeds(self.seed))))
        nothing = np.zeros((rounds, self.per_round, 0))
        samples, weights = nothing.astype(np.int32), nothing.astype(np.float32)
        return Plan(schedule, samples, weights, secret=sampler.secret, sampler=sampler)

    def epochs(self, sampler: Sampler, rounds: int) -> Plan:
        """Return a sampled run plan for a problem in which every machine uses its own records repeatedly.

        The problem is the property `owned`, in which every record belongs to one machine. The plan says who takes part
        in each round, and which records each message uses.

        Args:
            sampler: sampler of the records of a message.
            rounds: number of rounds.

        Raises:
            Refusal: if the plan would be too large. This is the case if its messages use records more than 2.5 million
                times in total, or if there are more than 2.5 million records.
        """
        uses = rounds * self.per_round * sampler.batch_of(self.samples)
        if max(uses, self.machines * self.samples) > MAX_USES:
            raise Refusal(
                f"rounds · per_round · batch must be at most {MAX_USES:.2g} to plan a method that accounts for every "
                f"record separately, got {uses:.3g}"
            )

        return self._drawn(self.owned, rounds, sampler)

    def _drawn(self, problem: Problem, rounds: int, sampler: Sampler | None) -> Plan:
        def draw():
            return draw_plan(problem, self.participation, rounds, self.seed, sampler=sampler)

        return self._once(("plan", problem is self.owned, rounds, sampler), draw)

    def _make_problem(self) -> Problem:
        def nothing(key: Any, machine: Any):
            return jnp.zeros(())

        def loss(params, example):
            return jnp.sum(params) * example

        return procedural_problem(
            nothing,
            loss,
            start=np.zeros(self.dimension, np.float32),
            constraint=Ball(float(self.diameter) / 2),
            lipschitz=float(self.lipschitz),
            smoothness=float(self.smoothness),
        )

    def _once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]


class EqualTable(Table):
    """Partition table of machines with equal numbers of records, without memory: every row is 0, 1, …"""

    def __init__(self, machines: int, records: int):
        super().__init__(np.broadcast_to(np.arange(records, dtype=np.int32), (machines, records)))
        self.__dict__["sizes"] = np.full(machines, records)
