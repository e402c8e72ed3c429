"""A machine's minibatches in one round, with their gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.method.loops import scan_first
from fedprivjax.method.round import examples_sum, in_a_step
from fedprivjax.problem.problem import Problem


@struct.dataclass
class Minibatch:
    """The records of one local step.

    Attributes:
        problem: the problem, for its model.
        samples: indices of the records, [width].
        weights: weights of the records in the plan, [width], 0 for padding.
        machine: index of the machine.
        step: number of the step, from 0.
        all_records: True if there is no padding, so that the program needs no mask.
    """

    problem: Problem
    samples: Any
    weights: Any
    machine: Any
    step: Any
    all_records: bool = struct.field(pytree_node=False, default=False)

    @property
    def examples(self) -> Any:
        """The records, a pytree with leaves [width, ...]."""
        return self.problem.take(self.samples, self.machine)

    @property
    def used(self) -> jax.Array:
        """True for records, False for padding, [width]."""
        return jnp.ones(self.weights.shape, bool) if self.all_records else self.weights != 0

    @property
    def count(self) -> jax.Array:
        """Number of records."""
        return jnp.sum(self.used)

    def gradient(self, w, *, divisor: Any = None, clip: Any = None) -> Any:
        """Return the mean gradient at w, a pytree of parameters, or 0 without records.

        Args:
            divisor: divisor of the sum, or None for the number of records.
            clip: bound on the norm of every record's gradient, or None.
        """
        return self.mean(lambda gradient: gradient(w), divisor=divisor, clip=clip)

    def mean(self, message: Callable[[Callable], Any], *, divisor: Any = None, clip: Any = None) -> Any:
        """Return the mean of the records' messages, with the arguments of `gradient`.

        Args:
            message: function that returns a record's message, given a function from points to the record's gradients.
        """
        divisor = jnp.maximum(self.count, 1.0) if divisor is None else divisor
        each = jnp.where(self.used, 1.0 / divisor, 0.0)
        return examples_sum(self.problem, message, self.examples, each, clip)[0]


@struct.dataclass
class LocalData:
    """A machine's records in one round, cut into the minibatches of its local steps.

    Attributes:
        problem: the problem, for its model and constraint set.
        samples: indices of the records, [steps, width].
        weights: weights of the records in the plan, [steps, width], 0 for padding.
        machine: index of the machine.
        longest: largest number of steps among the machines that are computed together, or None if unknown.
        skips: True if steps without records are skipped, False if every step is taken.
        all_records: True if there is no padding.
    """

    problem: Problem
    samples: Any
    weights: Any
    machine: Any
    longest: Any = None
    skips: bool = struct.field(pytree_node=False, default=True)
    all_records: bool = struct.field(pytree_node=False, default=False)

    @property
    def taken(self) -> jax.Array:
        """1 for steps that are taken, 0 for the others, [steps]."""
        return jnp.any(self.weights != 0, axis=1).astype(jnp.float32) if self.skips else jnp.ones(self.samples.shape[0])

    @property
    def steps(self) -> jax.Array:
        """Number of steps that are taken."""
        return jnp.sum(self.taken)

    def scan(self, step: Callable[[Any, Minibatch], tuple[Any, Any]], start: Any) -> tuple[Any, Any]:
        """Return the carry after `carry, output = step(carry, minibatch)` for every step, and the stacked outputs.

        A skipped step changes nothing, and its output is 0.
        """

        def one(carry, inputs):
            number, samples, weights, taken = inputs
            minibatch = Minibatch(self.problem, samples, weights, self.machine, number, self.all_records)
            after, output = step(carry, minibatch)
            if not self.skips:
                return after, output
            keep = lambda new, old: jnp.where(taken > 0, new, old)  # noqa: E731
            return jax.tree.map(keep, after, carry), jax.tree.map(lambda leaf: keep(leaf, jnp.zeros_like(leaf)), output)

        rows = jnp.arange(self.samples.shape[0]), self.samples, self.weights, self.taken
        if self.longest is not None:
            return scan_first(one, start, rows, self.longest)
        return jax.lax.scan(one, start, rows, unroll=in_a_step(self.problem))
