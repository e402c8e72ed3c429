"""The optimisation problem: examples, loss of one example, constraint set, and constants for noise and step sizes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, isfinite, prod, sqrt
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.extend.core import ClosedJaxpr
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_choice, require_positive
from fedprivjax.problem.client_tests import ClientTests
from fedprivjax.problem.constraints import ConstraintSet
from fedprivjax.problem.devices import DividedRows, number_of
from fedprivjax.problem.models import GeneralModel, LinearModel
from fedprivjax.problem.program import Once
from fedprivjax.problem.random_keys import random_key
from fedprivjax.problem.raw_rows import RawRows

STREAM = 0xDA7A_5EED  # separates the data's keys from those of a run's noise with the same seed
SIZES = "sizes"  # machine_weights proportional to the machines' numbers of records


@struct.dataclass
class Procedural:
    """Examples that are a pure function of (seed, machine, k), for the machine's k-th example. Nothing is stored.

    Attributes:
        seed: seed of the data, uint32.
        generate: function `(key, machine) -> example`, a pytree. Each pair (machine, k) has its own key.
    """

    seed: Any
    generate: Callable[[Any, Any], Any] = struct.field(pytree_node=False)

    def take(self, samples, machine):
        """Return examples, a pytree with leaves [..., per-example shape].

        Args:
            samples: k, int [machines] or [machines, batch].
            machine: owner of the examples, int [machines].

        >>> stream = Procedural(0, lambda key, machine: jax.random.uniform(key, (3,)))
        >>> stream.take(jnp.array([[0, 1]]), jnp.array([7])).shape
        (1, 2, 3)
        """
        key = jax.random.fold_in(random_key(self.seed), STREAM)

        def one(k, machine):
            return self.generate(jax.random.fold_in(jax.random.fold_in(key, machine), k), machine)

        samples, machine = jnp.asarray(samples), jnp.asarray(machine)
        machine = jnp.broadcast_to(machine.reshape(machine.shape + (1,) * (samples.ndim - machine.ndim)), samples.shape)
        for _ in range(samples.ndim):
            one = jax.vmap(one)
        return one(samples, machine)


class Origin(NamedTuple):
    """Private records from which a partition over machines follows, as texts that results repeat.

    Attributes:
        values: rule by which a record's value moves other records, which no guarantee covers, or "".
        machines: source of machines that were found in the data, or "". A guarantee covers it if all neighbouring
            datasets have the same machines.
    """

    values: str = ""
    machines: str = ""


class Table(Once):
    """Partition of the examples over machines: int32 [machines, max_records], padded with −1.

    Host data, compared by identity.

    Attributes:
        names: the clients' names, one for each machine, or empty if clients have none.
        origin: how the partition follows from private records. By default as `rows` states it, see `datasets.table`.
    """

    def __init__(self, rows: np.ndarray, names: Sequence[str] = (), origin: Origin | None = None):
        self.origin = getattr(rows, "origin", Origin()) if origin is None else origin
        self.rows = np.asarray(rows, np.int32)
        self.names = tuple(names)

    def __str__(self) -> str:
        return f"split over {self.sizes.size} machines ({self.sizes.min()} to {self.sizes.max()} each)"

    __repr__ = __str__

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of examples of each machine, shape [machines]."""
        return np.sum(self.rows >= 0, axis=1)


@struct.dataclass
class Problem:
    """Objective, data and constraint set of an optimisation problem.

    Build one with `linear_problem` or `general_problem`. Arrays are pytree leaves. Everything that determines the
    compiled program is static.

    Attributes:
        pool: examples, a pytree with leaves [examples, ...], shared by all machines; or `Procedural`.
        test: held-out examples of the same structure, or None.
        test_clients: clients of the test examples, or None if they have none.
        start: first point of every run, a pytree of parameters.
        constraint: `Ball`, `Box`, `Simplex`, `L1Ball`, `WholeSpace`, or a custom set.
        optimum: exact minimiser, with the structure of `start`, or None if unknown.
        model: loss of one example, and its gradient.
        feature_bound: public bound on the norm of a feature vector (not a statistic of the data).
        own_lipschitz: declared bound on the gradient norm of one example's loss on the constraint set: one number, or
            one per machine. It replaces the bound of the model.
        own_smoothness: declared Lipschitz constant of that gradient, which replaces the constant of the model.
        lipschitz_note: remark on `own_lipschitz`, such as its source, which guarantees repeat.
        partition_table: fixed partition of the pool over machines, or None if records are assigned in order of use.
        machine_weights: weights p_i, with sum 1, of the machines' mean losses F_i in the objective Σ_i p_i·F_i. "sizes"
            is proportional to the machines' numbers of records, which are then public. None is equal weights.
            Evaluated training losses weight all records equally.
        distance: public bound on the distance from the start to the optimum, or None for the set's diameter.
        excess: exact excess risk `params -> scalar`, or None if unknown.
        not_covered: descriptions of quantities computed from private records before any run, which no guarantee covers.
        raw_rows: preparation of raw rows, for predictions, or None if rows are given as features.
    """

    pool: Any
    test: Any
    start: Any
    constraint: ConstraintSet
    optimum: Any = None
    test_clients: ClientTests | None = None
    model: LinearModel | GeneralModel = struct.field(pytree_node=False, default=None)  # type: ignore[assignment]
    feature_bound: float | None = struct.field(pytree_node=False, default=None)
    own_lipschitz: float | Sequence[float] | None = struct.field(pytree_node=False, default=None)
    own_smoothness: float | None = struct.field(pytree_node=False, default=None)
    lipschitz_note: str = struct.field(pytree_node=False, default="")
    partition_table: Table | None = struct.field(pytree_node=False, default=None)
    machine_weights: Sequence[float] | str | None = struct.field(pytree_node=False, default=None)
    distance: float | None = struct.field(pytree_node=False, default=None)
    excess: Callable[[Any], Any] | None = struct.field(pytree_node=False, default=None)
    not_covered: tuple[str, ...] = struct.field(pytree_node=False, default=())
    raw_rows: RawRows | None = struct.field(pytree_node=False, default=None)

    stated: ClassVar[Stated] = Stated(by=("lipschitz", "smoothness"), concrete=True)

    def __post_init__(self):
        for name in ("own_lipschitz", "machine_weights"):
            if isinstance(getattr(self, name), list | np.ndarray):  # static fields must be hashable
                object.__setattr__(self, name, tuple(np.asarray(getattr(self, name), float).tolist()))
        _check_declared(self)

    def __str__(self) -> str:
        examples = f"{self.examples} examples" if self.stored else "examples that are computed"
        part = "" if self.held == self.examples else f"{self.held} of them "
        owned = "assigned in order of use" if self.partition_table is None else f"{part}{self.partition_table}"
        lines = [
            f"Problem: {self.dimension} parameters in {self.constraint}",
            f"data: {examples}{f', {owned}' if self.stored else ''}, {'a' if self.test is not None else 'no'} test set",
            f"loss: {self.model}",
            f"constants: Lipschitz {self.lipschitz:.4g}, smoothness {self.smoothness:.4g}",
        ]
        return "\n  ".join(lines)

    __repr__ = __str__

    @property
    def stored(self) -> bool:
        """True if examples are stored arrays, False if they are computed on demand."""
        return not isinstance(self.pool, Procedural)

    @property
    def examples(self) -> int | float:
        """Number of examples in the pool, or inf if they are computed on demand."""
        return number_of(self.pool) if self.stored else inf

    @property
    def held(self) -> int | float:
        """Number of records in the partition, or in the whole pool without a partition; inf if computed on demand."""
        return self.examples if self.partition_table is None else int(self.partition_table.sizes.sum())

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients, one for each machine, or empty if clients have none."""
        return () if self.partition_table is None else self.partition_table.names

    def machine_name(self, machine: int) -> str:
        """Name of a machine in messages: the name of its client, or the machine's index if clients have no names."""
        return f"client {self.client_names[machine]!r}" if self.client_names else f"machine {machine}"

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.start))

    @property
    def lipschitz(self) -> float:
        """Bound G on the gradient norm of one example's loss on the constraint set, or inf if unknown."""
        if self.own_lipschitz is not None:
            return float(np.max(self.own_lipschitz))
        return inf if self.feature_bound is None else self.model.lipschitz(self.feature_bound, self.constraint.radius)

    @property
    def distance_to_optimum(self) -> float:
        """Bound D on the distance from the start to the optimum, `distance` or the set's diameter (may be inf)."""
        return self.constraint.diameter if self.distance is None else self.distance

    @property
    def travel(self) -> float:
        """Distance on which default step sizes are based, the set's diameter or, if this is infinite, `distance`.

        If both are unknown, a nonlinear model uses twice the norm of its start, which is public. This is a rule of
        thumb: a network's solution is about as far from the start as the start is from zero. A start at zero gives inf.
        """
        if isfinite(self.constraint.diameter) or self.distance is not None or self.model.factored:
            return self.constraint.diameter if isfinite(self.constraint.diameter) else self.distance_to_optimum
        return 2 * self._start_norm or inf

    @property
    def reach(self) -> float:
        """Bound on the distance from the start to the optimum, `distance` or the largest distance within the set.

        If both are unknown, this is `travel`, which for a nonlinear model is a rule of thumb and no bound.
        """
        if self.distance is not None:
            return self.distance
        known = min(float(self.constraint.diameter), float(self.constraint.radius) + self._start_norm)
        return known if isfinite(known) else self.travel

    @property
    def _start_norm(self) -> float:
        return sqrt(sum(float(np.sum(np.square(np.asarray(leaf, float)))) for leaf in jax.tree.leaves(self.start)))

    @property
    def message_factors(self) -> float | np.ndarray:
        """Factor of each machine's messages, the weight p_i times the number of machines; 1.0 for equal weights."""
        return 1.0 if self.weights is None else len(self.weights) * np.array(self.weights)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights p_i of the machines in the objective as numbers, also for "sizes". None if they are equal."""
        if self.weighted_by_size:
            assert self.partition_table is not None
            return tuple((self.partition_table.sizes / self.partition_table.sizes.sum()).tolist())
        return None if self.machine_weights is None else tuple(self.machine_weights)  # type: ignore[arg-type]

    @property
    def weighted_by_size(self) -> bool:
        """True if machines' weights are proportional to their numbers of records."""
        return self.machine_weights == SIZES

    @property
    def smoothness(self) -> float:
        """Bound L on the Lipschitz constant of the gradient of one example's loss, or inf if unknown."""
        if self.own_smoothness is not None:
            return self.own_smoothness
        return inf if self.feature_bound is None else self.model.smoothness(self.feature_bound)

    @property
    def traced(self) -> "Problem":
        """Copy without the fields that compiled programs do not read, so that changing these does not recompile."""
        host = ("partition_table", "feature_bound", "own_lipschitz", "own_smoothness", "machine_weights", "distance")
        return replace(self, **dict.fromkeys(host), raw_rows=None, lipschitz_note="", not_covered=())

    def take(self, samples, machine=0):
        """Return examples, a pytree with leaves [..., per-example shape].

        Args:
            samples: indices into the pool, or into the machine's own examples if they are computed on demand.
            machine: owner of the examples, with the shape of the leading axes of `samples`.
        """
        if isinstance(self.pool, Procedural | DividedRows):
            return self.pool.take(samples, machine)
        return jax.tree.map(lambda leaf: leaf[samples], self.pool)

    def unravel(self, vector):
        """Return a flat vector [d] as parameters, with the structure of `start`."""
        return ravel_pytree(self.start)[1](vector)


def _check_declared(problem: Problem) -> None:
    """Raise Refusal if declared constants are impossible, or do not fit the number of machines."""
    require_positive("distance", problem.distance, optional=True)
    require_positive("smoothness", problem.own_smoothness, optional=True)
    if isinstance(problem.own_lipschitz, tuple):
        _check_each("lipschitz", problem.own_lipschitz, problem.partition_table)
    else:
        require_positive("lipschitz", problem.own_lipschitz, optional=True)
    if isinstance(problem.machine_weights, str):
        require_choice("machine_weights", problem.machine_weights, (SIZES,))
        if problem.partition_table is None:
            remedy = "Split the data over machines, or give a list of numbers"
            raise Refusal(f"machine_weights must go with machines that own records, got {SIZES!r}. {remedy}")
        return
    if problem.machine_weights is None:
        return
    weights = np.asarray(problem.machine_weights, float)
    if weights.ndim != 1 or not (weights > 0).all() or not np.isclose(weights.sum(), 1):
        raise Refusal(f"machine_weights must be positive and add up to 1, got a sum of {weights.sum():g}")
    _check_each("machine_weights", problem.machine_weights, problem.partition_table)


def _check_each(name: str, values: Sequence[float], table: Table | None) -> None:
    wrong = [value for value in values if not 0 < value < inf]
    if wrong or not values:
        raise Refusal(f"{name} must be positive and finite on every machine, got {wrong[0] if wrong else 'none'}")
    if table is not None and len(values) != table.rows.shape[0]:
        raise Refusal(f"{name} must have a value for each of {table.rows.shape[0]} machines, got {len(values)}")


def numbers_of_one(problem: Problem) -> int:
    """Return the number of intermediate values of one example's loss: an upper bound on those its gradient stores.

    They are counted in the loss's trace, with every step of a scan. Nothing is executed, and the body of a loop of
    unknown length counts once.

    >>> from fedprivjax import general_problem
    >>> import jax.numpy as jnp
    >>> numbers_of_one(general_problem(lambda w, x: jnp.sum(jnp.tanh(w * x)), jnp.ones((5, 3)), jnp.zeros(3)))
    7
    """
    model: Any = problem.model
    example = jax.eval_shape(lambda: problem.take(0, 0))
    start = jax.eval_shape(lambda: problem.start)
    return _numbers(jax.make_jaxpr(model.value)(start, example).jaxpr)


def _numbers(jaxpr) -> int:
    own = sum(prod(variable.aval.shape) for equation in jaxpr.eqns for variable in equation.outvars)
    programs = ((part, equation) for equation in jaxpr.eqns for part in equation.params.values())
    inner = ((part.jaxpr, equation) for part, equation in programs if isinstance(part, ClosedJaxpr))
    return own + sum(equation.params.get("length", 1) * _numbers(part) for part, equation in inner)
