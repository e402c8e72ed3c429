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
from fedprivjax.problem.checks import numbers
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
    """Partition table: the indices of the examples that each machine owns.

    Two tables are equal only if they are the same object.

    Attributes:
        rows: indices, int32 [machines, max_records]. Rows of machines with fewer records are padded with −1.
        names: the clients' names, in the order of the machines, or empty if clients have no names.
        origin: texts that say how the partition depends on private records, an `Origin`. No guarantee covers this
            dependence. None takes the `Origin` that `datasets.table` attached to `rows`, or an empty one.
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
    """Optimisation problem of a federation: data, loss, constraint set and known constants.

    `linear_problem`, `general_problem` and `from_dataset` build it. It is a pytree: its arrays of examples and
    parameters are leaves.

    Attributes:
        pool: training examples of all machines, a pytree with leaves [examples, ...], or a `Procedural` object that
            computes examples on demand.
        test: held-out examples with the same structure, or None.
        test_clients: machine to which each test example belongs, or None if unknown.
        start: initial parameters of every run, a pytree.
        constraint: `Ball`, `Box`, `Simplex`, `L1Ball`, `WholeSpace`, or a custom set.
        optimum: exact minimiser, with the structure of `start`, or None if unknown.
        model: object that computes the loss of one example and its gradient.
        feature_bound: public bound on the norm of a feature vector (not a statistic of the data).
        own_lipschitz: declared bound on the gradient norm of one example's loss on the constraint set: one number, or
            one per machine. It replaces the bound that follows from the loss and `feature_bound`. None if no bound is
            declared.
        own_smoothness: declared Lipschitz constant of the gradient of one example's loss. It replaces the constant that
            follows from the loss. None if no constant is declared.
        lipschitz_note: remark on `own_lipschitz`, such as its source. The text of a guarantee includes this remark.
        partition_table: records of the pool that each machine owns. None if machines own no records: a record is then
            assigned to a machine when the machine uses it.
        machine_weights: weights, with sum 1, of the machines' mean losses in the objective. "sizes" is proportional to
            the machines' numbers of records, which are then public. None is equal weights. The metric of the training
            loss weights all records equally in any case.
        distance: public bound on the distance from the start to the optimum. None is the constraint set's diameter.
        excess: exact excess risk `params -> scalar`, or None if unknown.
        not_covered: texts that name values which were computed from private records before any run, such as a mean for
            scaling. No guarantee covers these values.
        raw_rows: conversion of raw rows to features. None if new rows are given as features.
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
            value = getattr(self, name)
            if isinstance(value, list | np.ndarray) or (isinstance(value, jax.Array) and value.ndim):
                given = numbers(name.removeprefix("own_"), value).astype(float)
                if given.ndim > 1:
                    wanted = f"{name.removeprefix('own_')} must have one number for each machine"
                    raise Refusal(f"{wanted}, got an array of shape {given.shape}")
                each = given.tolist()  # static fields must be hashable
                object.__setattr__(self, name, tuple(each) if isinstance(each, list) else each)
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
        """Number of stored training examples, of all machines together.

        It is inf if examples are computed on demand.
        """
        return number_of(self.pool) if self.stored else inf

    @property
    def held(self) -> int | float:
        """Number of training records that machines own.

        Without a partition over machines, it is the number of all stored examples, or inf if examples are computed on
        demand.
        """
        return self.examples if self.partition_table is None else int(self.partition_table.sizes.sum())

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the dataset's clients, in the order of the machines, or empty if there are no names."""
        return () if self.partition_table is None else self.partition_table.names

    def machine_name(self, machine: int) -> str:
        """Return the text that names a machine in messages: "client 'ann'", or "machine 3" if clients have no names.

        Args:
            machine: index of the machine.
        """
        return f"client {self.client_names[machine]!r}" if self.client_names else f"machine {machine}"

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.start))

    @property
    def lipschitz(self) -> float:
        """Bound G on the gradient norm of one example's loss, for all parameters of the constraint set.

        It is inf if no bound is known. If machines have different declared bounds, it is the largest.
        """
        if self.own_lipschitz is not None:
            return float(np.max(self.own_lipschitz))
        return inf if self.feature_bound is None else self.model.lipschitz(self.feature_bound, self.constraint.radius)

    @property
    def distance_to_optimum(self) -> float:
        """Bound D on the distance from the start to the optimum: `distance`, or else the constraint set's diameter.

        The bound may be inf.
        """
        return self.constraint.diameter if self.distance is None else self.distance

    @property
    def travel(self) -> float:
        """Distance from the start to the optimum that default step sizes assume.

        It is the diameter of the constraint set or, if this is infinite, `distance`. If `distance` was not given
        either, the result is inf for a linear predictor. For a nonlinear model, the result is twice the norm of the
        start, a rule of thumb, or inf if this norm is zero. The start is public, so a use of its norm costs no privacy.
        """
        if isfinite(self.constraint.diameter) or self.distance is not None or self.model.factored:
            return self.constraint.diameter if isfinite(self.constraint.diameter) else self.distance_to_optimum
        return 2 * self._start_norm or inf

    @property
    def reach(self) -> float:
        """Distance from the start to the optimum: a bound or, for some models without a bound, a rule of thumb.

        The result is `distance` if `distance` was given. Otherwise, it is a bound on the distance from the start to any
        point of the constraint set. If the set is unbounded, no bound is known. The result is then inf for a linear
        predictor. For a nonlinear model, it is twice the norm of the start, a rule of thumb, or inf if this norm is
        zero.
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
        """Factors by which machines multiply their messages if the objective weights machines unequally.

        A factor is the machine's weight in the objective, times the number of machines; float64, shape [machines]. If
        the weights are equal, the result is the number 1.0.
        """
        return 1.0 if self.weights is None else len(self.weights) * np.array(self.weights)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the machines' mean losses in the objective, with sum 1, or None if all weights are equal.

        For `machine_weights="sizes"`, they are computed from the machines' numbers of records.
        """
        if self.weighted_by_size:
            assert self.partition_table is not None
            return tuple((self.partition_table.sizes / self.partition_table.sizes.sum()).tolist())
        return None if self.machine_weights is None else tuple(self.machine_weights)  # type: ignore[arg-type]

    @property
    def weighted_by_size(self) -> bool:
        """True if the objective weights machines by their numbers of records: `machine_weights="sizes"`."""
        return self.machine_weights == SIZES

    @property
    def smoothness(self) -> float:
        """Bound L on the Lipschitz constant of the gradient of one example's loss, or inf if unknown."""
        if self.own_smoothness is not None:
            return self.own_smoothness
        return inf if self.feature_bound is None else self.model.smoothness(self.feature_bound)

    @property
    def traced(self) -> "Problem":
        """Copy without the fields that compiled programs do not read.

        Programs are compiled for this copy. A change of a removed field, such as a bound, therefore compiles no program
        again.
        """
        host = ("partition_table", "feature_bound", "own_lipschitz", "own_smoothness", "machine_weights", "distance")
        return replace(self, **dict.fromkeys(host), raw_rows=None, lipschitz_note="", not_covered=())

    def take(self, samples, machine=0):
        """Return the training examples with given indices, a pytree with leaves [..., shape of one example].

        Args:
            samples: indices of examples, any shape [...]. Stored examples have indices among all examples of the
                problem. Examples that are computed on demand have indices among the examples of their machine.
            machine: machine of the examples, for examples that are computed on demand. One index for all examples, or
                an array such as [machines] for samples of shape [machines, examples].
        """
        if isinstance(self.pool, Procedural | DividedRows):
            return self.pool.take(samples, machine)
        return jax.tree.map(lambda leaf: leaf[samples], self.pool)

    def unravel(self, vector):
        """Convert a flat vector to parameters: a pytree with the structure of `start`.

        Args:
            vector: all parameters, shape [d] for d parameters.
        """
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
    weights = numbers("machine_weights", problem.machine_weights).astype(float)
    wrong = weights[~(weights > 0)]
    if weights.ndim != 1 or wrong.size or not np.isclose(weights.sum(), 1):
        got = f"the weight {wrong[0]:g}" if wrong.size else f"a sum of {weights.sum():g}"
        raise Refusal(f"machine_weights must be positive and add up to 1, got {got}")
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
