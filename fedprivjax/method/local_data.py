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
    """Records of one local step of one machine.

    A minibatch has a fixed number of places, `width`. Places without a record are padding and have weight 0.

    Attributes:
        problem: the optimisation problem, which has the model and the data.
        samples: index of the record in each place, int [width].
        weights: weight of the record in each place, [width], 0 for padding.
        machine: index of the machine.
        step: number of the step in the round, from 0.
        all_records: True if there is no padding, so that the compiled program needs no mask.
    """

    problem: Problem
    samples: Any
    weights: Any
    machine: Any
    step: Any
    all_records: bool = struct.field(pytree_node=False, default=False)

    @property
    def examples(self) -> Any:
        """Features and labels (or other data) of the records, a pytree with leaves [width, ...]."""
        return self.problem.take(self.samples, self.machine)

    @property
    def used(self) -> jax.Array:
        """Mask of the places, True for records and False for padding; bool [width]."""
        return jnp.ones(self.weights.shape, bool) if self.all_records else self.weights != 0

    @property
    def count(self) -> jax.Array:
        """Number of records in the minibatch, without padding."""
        return jnp.sum(self.used)

    def gradient(self, w, *, divisor: Any = None, clip: Any = None) -> Any:
        """Return the mean gradient of the minibatch at w, a pytree like the parameters; 0 if there are no records.

        Args:
            w: point at which the gradients are computed.
            divisor: number by which the sum of gradients is divided. None stands for the number of records.
            clip: bound on the L2 norm to which each record's gradient is clipped, or None.
        """
        return self.mean(lambda gradient: gradient(w), divisor=divisor, clip=clip)

    def mean(self, message: Callable[[Callable], Any], *, divisor: Any = None, clip: Any = None) -> Any:
        """Return the mean of a message over the records of the minibatch.

        Args:
            message: function that computes one record's message, such as `lambda gradient: gradient(w)`. Its argument
                is an oracle: a function that returns the gradients of the record's loss at the given points.
            divisor: number by which the sum of messages is divided. None stands for the number of records.
            clip: bound on the L2 norm to which each record's message is clipped, or None.
        """
        divisor = jnp.maximum(self.count, 1.0) if divisor is None else divisor
        each = jnp.where(self.used, 1.0 / divisor, 0.0)
        return examples_sum(self.problem, message, self.examples, each, clip)[0]


@struct.dataclass
class LocalData:
    """One machine's records in one round, divided into the minibatches of its local steps.

    All minibatches have the same number of places, `width`. Places without a record are padding and have weight 0.

    Attributes:
        problem: the optimisation problem.
        samples: index of the record in each place, int [steps, width].
        weights: weight of the record in each place, [steps, width], 0 for padding.
        machine: index of the machine.
        longest: largest number of steps of any machine in a group that is computed together. With None, all steps are
            computed.
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
        """Mask of the local steps, 1 if a step is taken and 0 if it is skipped; float32 [steps]."""
        return jnp.any(self.weights != 0, axis=1).astype(jnp.float32) if self.skips else jnp.ones(self.samples.shape[0])

    @property
    def steps(self) -> jax.Array:
        """Number of local steps that the machine takes in the round, a float32 scalar."""
        return jnp.sum(self.taken)

    def scan(self, step: Callable[[Any, Minibatch], tuple[Any, Any]], start: Any) -> tuple[Any, Any]:
        """Run `carry, output = step(carry, minibatch)` for every local step, like `jax.lax.scan`.

        Return the last carry, and the outputs of all steps stacked along a leading axis. A skipped step leaves the
        carry unchanged, and its output is 0.

        Args:
            step: function from a carry and a `Minibatch` to the next carry and an output.
            start: carry before the first step.
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
