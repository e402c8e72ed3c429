"""A problem: examples, one example's loss, a constraint set, and the constants that noise and steps follow from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, isfinite, sqrt
from typing import Any

import jax
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_positive
from fedprivjax.problem.constraints import ConstraintSet
from fedprivjax.problem.memoize import Once
from fedprivjax.problem.models import GeneralModel, LinearModel
from fedprivjax.problem.procedural import Procedural

SIZES = "sizes"  # machine_weights in proportion to machines' numbers of records


class Table(Once):
    """Which examples each machine owns: int32 [machines, most], padded with −1. Host data, compared by identity.

    Attributes:
        names: the clients' names, one for each machine, or empty if clients have none.
    """

    def __init__(self, rows: np.ndarray, names: Sequence[str] = ()):
        self.rows = np.asarray(rows, np.int32)
        self.names = tuple(names)

    def __str__(self) -> str:
        return f"split over {self.sizes.size} machines ({self.sizes.min()} to {self.sizes.max()} each)"

    __repr__ = __str__

    @cached_property
    def sizes(self) -> np.ndarray:
        """Examples of each machine, [machines]."""
        return np.sum(self.rows >= 0, axis=1)


@struct.dataclass
class Problem:
    """What is minimised, on which data, over which set.

    Build one with `linear_problem` or `general_problem`. Arrays are leaves; what fixes the program is static.

    Attributes:
        pool: examples, a pytree with leaves [examples, ...], shared by all machines; or `Procedural`.
        test: held-out examples of the same structure, or None.
        start: first point of every run, a pytree of parameters.
        constraint: `Ball`, `Box`, `Simplex`, `L1Ball`, `WholeSpace`, or one of your own.
        optimum: the exact minimiser where known, of the structure of `start`, or None.
        model: the loss of one example and its gradient.
        feature_bound: public bound on the norm of a feature vector (not a statistic of the data).
        own_lipschitz: declared on the constraint set, instead of the model's: one constant, or one for each machine.
        own_smoothness: likewise, one constant.
        lipschitz_note: what a guarantee must say of that constant.
        partition_table: a fixed partition of the pool over machines, or None: samples are dealt in order of use.
        machine_weights: p_i of the objective Σ_i p_i·F_i of methods that sample machines' own records, adding up to 1;
            "sizes" is in proportion to machines' numbers of records, which are then public; None is equal weights.
            Recorded training losses weigh all records alike.
        distance: a public bound on the distance from the start to the optimum; None is the constraint set's diameter.
        excess: exact excess risk `params -> scalar` where known.
        not_covered: what of the data was computed from private records before any run, in words: no guarantee covers
            it.
    """

    pool: Any
    test: Any
    start: Any
    constraint: ConstraintSet
    optimum: Any = None
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

    def __post_init__(self):
        for name in ("own_lipschitz", "machine_weights"):
            if isinstance(getattr(self, name), list | np.ndarray):  # what is static must be hashable
                object.__setattr__(self, name, tuple(np.asarray(getattr(self, name), float).tolist()))
        _check_declared(self)

    def __str__(self) -> str:
        examples = f"{self.examples} examples" if self.stored else "examples that are computed"
        owned = "dealt in order of use" if self.partition_table is None else self.partition_table
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
        """Whether examples are arrays, rather than computed when they are used."""
        return not isinstance(self.pool, Procedural)

    @property
    def examples(self) -> int | float:
        """Examples in the pool; infinite where they are computed."""
        return jax.tree.leaves(self.pool)[0].shape[0] if self.stored else inf

    @property
    def held(self) -> int | float:
        """Records that machines hold together: those of a split, else the whole pool; infinite where they are
        computed."""
        return self.examples if self.partition_table is None else int(self.partition_table.sizes.sum())

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients, one for each machine, or empty if clients have none."""
        return () if self.partition_table is None else self.partition_table.names

    def machine_name(self, machine: int) -> str:
        """Name of a machine in messages: its client's, or its index if clients have no names."""
        return f"client {self.client_names[machine]!r}" if self.client_names else f"machine {machine}"

    @property
    def dimension(self) -> int:
        """Number of parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.start))

    @property
    def lipschitz(self) -> float:
        """G: bound on the gradient norm of one example's loss on the constraint set; infinite where unknown."""
        if self.own_lipschitz is not None:
            return float(np.max(self.own_lipschitz))
        return inf if self.feature_bound is None else self.model.lipschitz(self.feature_bound, self.constraint.radius)

    @property
    def distance_to_optimum(self) -> float:
        """D: the declared bound, or the constraint set's diameter (infinite where there is none)."""
        return self.constraint.diameter if self.distance is None else self.distance

    @property
    def travel(self) -> float:
        """How far a run goes that takes a default step: the set's diameter, else the declared distance.

        Without either, and of a model that is no linear predictor, the diameter of the ball about zero on whose edge it
        starts: a network settles about as far from its start as that is from zero. A rule of thumb, public like the
        others; infinite for a start at zero.
        """
        if isfinite(self.constraint.diameter) or self.distance is not None or self.model.factored:
            return self.constraint.diameter if isfinite(self.constraint.diameter) else self.distance_to_optimum
        return 2 * self._start_norm or inf

    @property
    def reach(self) -> float:
        """How far the best point is from the start at most: the declared distance, or as far as the set allows; of a
        network without either, `travel`."""
        if self.distance is not None:
            return self.distance
        known = min(float(self.constraint.diameter), float(self.constraint.radius) + self._start_norm)
        return known if isfinite(known) else self.travel

    @property
    def _start_norm(self) -> float:
        return sqrt(sum(float(np.sum(np.square(np.asarray(leaf, float)))) for leaf in jax.tree.leaves(self.start)))

    @property
    def message_factors(self) -> float | np.ndarray:
        """What machines' messages are multiplied by, p_i times the number of machines."""
        return 1.0 if self.weights is None else len(self.weights) * np.array(self.weights)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """p_i of each machine as numbers, those of "sizes" too; None is equal weights."""
        if self.weighted_by_size:
            assert self.partition_table is not None
            return tuple((self.partition_table.sizes / self.partition_table.sizes.sum()).tolist())
        return None if self.machine_weights is None else tuple(self.machine_weights)  # type: ignore[arg-type]

    @property
    def weighted_by_size(self) -> bool:
        """True if machines' weights are in proportion to their numbers of records."""
        return self.machine_weights == SIZES

    @property
    def smoothness(self) -> float:
        """L: bound on the curvature of one example's loss; infinite where unknown."""
        if self.own_smoothness is not None:
            return self.own_smoothness
        return inf if self.feature_bound is None else self.model.smoothness(self.feature_bound)

    @property
    def traced(self) -> "Problem":
        """Without what only the host reads, so that other constants or another split are no other program."""
        host = ("partition_table", "feature_bound", "own_lipschitz", "own_smoothness", "machine_weights", "distance")
        return replace(self, **dict.fromkeys(host), lipschitz_note="", not_covered=())

    def take(self, samples, machine=0):
        """Examples, leaves [..., per-example shape].

        Args:
            samples: indices into the pool, or into the machine's own examples where these are computed.
            machine: whose examples they are; its shape is that of the leading axes of `samples`.
        """
        if isinstance(self.pool, Procedural):
            return self.pool.take(samples, machine)
        return jax.tree.map(lambda leaf: leaf[samples], self.pool)

    def unravel(self, vector):
        """A flat vector [d] in the structure of the parameters."""
        return ravel_pytree(self.start)[1](vector)


def _check_declared(problem: Problem) -> None:
    """Refuse declared constants that cannot be true of any problem, or not of one with so many machines."""
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
