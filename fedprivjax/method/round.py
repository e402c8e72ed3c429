"""Traced parts of a round that all protocols share: the cohort's messages and their sum, computed exactly."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.clipping import clipped, clipping, clipping_info
from fedprivjax.method.division import part_of
from fedprivjax.method.loops import one_after_another, scan_in_chunks
from fedprivjax.problem.dense_layers import Layered, in_layers, layered_gradient
from fedprivjax.problem.devices import added, devices, platform
from fedprivjax.problem.models import Dense, GeneralModel, Outer, scaled
from fedprivjax.problem.problem import Problem, number_of, numbers_of_one

Oracle = Callable[..., Any]  # gradient of one example's loss at given parameters; a tuple if several are given
Machine = Callable[[Oracle], Any]  # message of one machine before noise

CHUNK_FLOATS = 2**24  # numbers in memory at once: of local steps, and of dense gradients on an accelerator
CACHE_FLOATS = 2**21  # numbers of dense gradients in memory at once on a CPU, where more leave the cache
ONE_BY_ONE = 50_000  # parameters from which a CPU is fastest with one gradient in memory
IN_A_STEP = 4  # rounds or local steps of linear predictors in a step of a loop on an accelerator
STEP_FLOATS = 2**18  # intermediate numbers of a local step from which a CPU computes one machine after another


class LateInputs(NamedTuple):
    """Inputs of answers that arrive some rounds late.

    Attributes:
        version: index of the stored version of the server's message from which each answer started, int [per_round].
        weight: weight of each answer in the server's sum, [per_round].
    """

    version: Any
    weight: Any


class RoundInputs(NamedTuple):
    """Participants of one round and the records that they use.

    Arrays have `per_round` slots, one for each machine that can take part in a round. If fewer machines take part, the
    remaining slots are empty (padding).

    Attributes:
        round: number of the round, from 1.
        samples: indices of the records in each slot. The shape is [per_round] if every slot uses one record, and
            [per_round, width] for minibatches.
        machine: index of the machine in each slot, [per_round].
        participation: number of rounds in which the machine in each slot has taken part, including this round;
            [per_round].
        weights: weight of each record, [per_round, width], 0 for padding. None if each slot has one record of weight 1.
        present: 1 for slots with a participant, 0 for empty slots, [per_round]. None if no slot is empty.
        expected: expected number of participants of a round. None if all rounds have equally many participants.
        late: None if all participants compute their messages from the server's newest state. In an asynchronous run, it
            is a `LateInputs`.
    """

    round: Any
    samples: Any
    machine: Any
    participation: Any
    weights: Any = None
    present: Any = None
    expected: Any = None
    late: Any = None

    @property
    def cohort(self) -> Any:
        """Number of machines that take part in the round."""
        return self.samples.shape[0] if self.expected is None else jnp.sum(self.present)

    @property
    def divisor(self) -> Any:
        """Public divisor of a round's sum, the same in all rounds: the expected number of participants."""
        return self.samples.shape[0] if self.expected is None else self.expected

    @property
    def filled(self) -> Any:
        """Mask of the round's slots, float32 [per_round]: 1 for slots with a participant, 0 for empty slots."""
        return jnp.ones(self.samples.shape[0]) if self.present is None else self.present


def cohort_sum(problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any = None) -> tuple[Any, dict]:
    """Return the sum of all records' messages in a round, after clipping each of them to norm `bound`.

    If `inputs.weights` is given, each message is multiplied by its weight.

    Args:
        problem: the optimisation problem.
        machine: function that computes one record's message, such as `lambda gradient: 2 * gradient(w)`. It is called
            with a function `gradient` that returns the gradient of the record's loss at a point. For a message with two
            gradients, `gradient(x, y)` returns the pair of gradients at x and y. The message must be linear in the
            gradients.
        inputs: the round's participants and their records.
        bound: bound on the L2 norm of a record's message, or None for no clipping.

    Returns:
        The sum, a pytree like the parameters, and metrics by name. If messages are clipped, the metric `clipped_share`
        is the fraction of messages longer than the bound. The metric `message_norm` is the mean norm of the messages
        before clipping.
    """
    samples, machines, weights = inputs.samples, inputs.machine, inputs.weights
    if devices() > 1:
        slots, within = part_of((samples, machines, weights), jnp.ones(samples.shape[0]))
        samples, machines, weights = slots
        weights = within if weights is None else weights * within[:, None]
    examples = problem.take(samples, machines)
    if weights is not None:  # records of all machines along one axis
        weights = weights.reshape(-1)
        examples = jax.tree.map(lambda leaf: leaf.reshape(weights.size, *leaf.shape[samples.ndim :]), examples)
    total, info = examples_sum(problem, machine, examples, weights, bound)
    return (total, info) if devices() == 1 else _over_devices(total, info, jnp.sum(weights != 0))


def _over_devices(total: Any, info: dict, used: Any) -> tuple[Any, dict]:
    """Return the sums of all devices, and the means over all used records, of scalars that are means on each device."""
    total, count, sums = added((total, used, jax.tree.map(lambda value: used * value, info)))
    return total, jax.tree.map(lambda value: value / jnp.maximum(count, 1.0), sums)


def examples_sum(problem: Problem, machine: Machine, examples, weights=None, bound: Any = None) -> tuple[Any, dict]:
    """Return the (weighted) sum of the messages of examples along one axis, as `cohort_sum`."""
    model: Any = problem.model
    if model.factored:
        return _sum_and_info(messages(problem, machine, examples), weights, bound)
    if bound is None:
        return machine(oracle(partial(model.summed_gradients, weights=weights), examples)).value, {}
    point = layered_point(problem, machine)
    vectors = partial(messages, problem, machine) if point is None else partial(layered, problem, point)
    chunk = rows_in_memory(problem, number_of(examples), factored=point is not None)
    total = partial(_chunked_sum, problem, vectors, bound, chunk)
    return one_after_another(total, examples, weights) if in_a_loop(problem) else total(examples, weights)


def _sum_and_info(vectors: Outer | Dense, weights, bound) -> tuple[Any, dict]:
    if bound is None:
        return weighted(vectors, weights).total(), {}
    rows = jax.tree.leaves(vectors)[0].shape[0]
    used = jnp.ones(rows) if weights is None else (weights != 0).astype(jnp.float32)
    info = clipping_info(clipping(vectors, used, bound), jnp.sum(used))
    return weighted(clipped(vectors, bound), weights).total(), info


def cohort_messages(problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any = None):
    """Return each participant's message, the weighted sum of its records' messages; leaves [per_round, ...].

    Args:
        problem: the optimisation problem.
        machine: function that computes one record's message, such as `lambda gradient: 2 * gradient(w)`. It is called
            with a function `gradient` that returns the gradient of the record's loss at a point. For a message with two
            gradients, `gradient(x, y)` returns the pair of gradients at x and y.
        inputs: the round's participants and their records.
        bound: bound on the L2 norm to which each record's message is clipped, or None.
    """
    examples = problem.take(inputs.samples, inputs.machine)
    if inputs.weights is None:
        vectors = bounded_messages(problem, machine, examples, bound)
        return jax.vmap(lambda vector: vector.written_out())(vectors)

    def one(examples, weights):
        return message_of(problem, machine, examples, weights, bound)

    return jax.vmap(one)(examples, inputs.weights)


def message_of(problem: Problem, machine: Machine, examples, weights, bound: Any = None):
    """Return one participant's message: the weighted sum of its records' messages, each clipped if a bound is given."""
    return weighted(bounded_messages(problem, machine, examples, bound), weights).total()


def weighted(vectors, weights):
    """Return the vectors along the leading axis times their weights; 0 for weight 0, unchanged if `weights` is None."""
    return vectors if weights is None else jax.vmap(scaled)(vectors, weights)


def messages(problem: Problem, machine: Machine, examples) -> Outer | Dense:
    """Return the message of each record, along a leading axis.

    For linear predictors, messages stay factored as residual ⊗ features (`Outer`). For other models, they are dense
    arrays (`Dense`).

    Args:
        problem: the optimisation problem.
        machine: function that computes one record's message, such as `lambda gradient: 2 * gradient(w)`. It is called
            with a function `gradient` that returns the gradient of the record's loss at a point. For a message with two
            gradients, `gradient(x, y)` returns the pair of gradients at x and y.
        examples: features and labels (or other data) of the records, leaves with a leading axis.
    """
    return jax.vmap(lambda example: machine(oracle(problem.model.gradients, example)))(examples)


def bounded_messages(problem: Problem, machine: Machine, examples, bound: Any) -> Any:
    """Return `messages`, each clipped if a bound is given, with the norms that `examples_sum` has."""
    point = None if bound is None else layered_point(problem, machine)
    vectors: Any = messages(problem, machine, examples) if point is None else layered(problem, point, examples)
    return clipped(vectors, bound)


def oracle(gradients: Callable[[tuple, Any], tuple], data) -> Oracle:
    """Return a machine's gradient oracle on its example: `gradient(w)`, or `gradient(x, y)` for two points at once."""

    def gradient(*points):
        several = gradients(points, data)
        return several if len(points) > 1 else several[0]

    return gradient


def layered_point(problem: Problem, machine: Machine) -> Any:
    """Return the point of a message that is one gradient, if norms follow from dense layers, else None."""
    asked, answer = [], Dense(())
    if not is_layered(problem):
        return None

    def gradient(*points):
        asked.extend(points)
        return answer if len(points) == 1 else tuple(Dense(()) for _ in points)

    return asked[0] if machine(gradient) is answer else None


def is_layered(problem: Problem) -> bool:
    """Return True if norms of clipped gradients follow from dense layers, for messages that are one gradient."""
    model = problem.model
    if type(model) is not GeneralModel or model.clipping == "rows":
        return False
    many = problem.dimension >= ONE_BY_ONE and 2 * in_layers(problem) >= problem.dimension
    return many or model.clipping == "ghost"


def require_one_gradient(problem: Problem, message: str, *, plain: bool) -> None:
    """Raise Refusal if the problem's `clipping` is "ghost", and messages are not the gradient at one point."""
    if getattr(problem.model, "clipping", None) == "ghost" and not plain:
        raise Refusal(
            f"clipping must be 'auto' or 'rows' with {message}, got 'ghost': the norm of a message other than the "
            f"gradient at one point does not follow from a network's layers. Use 'auto'"
        )


def layered(problem: Problem, point: Any, examples: Any) -> Layered:
    """Return the gradients of examples at a point along a leading axis, factored at dense layers."""
    return jax.vmap(partial(layered_gradient, problem.model.value, point))(examples)


def _chunked_sum(problem: Problem, vectors: Callable, bound, chunk: int, examples, weights) -> tuple[Any, dict]:
    def add(total, chunk):
        examples, weights = chunk
        part, info = _sum_and_info(vectors(examples), weights, bound)
        used = jnp.asarray(number_of(examples), jnp.float32) if weights is None else jnp.sum(weights != 0)
        return jax.tree.map(jnp.add, total, part), (used, info)

    zero = jax.tree.map(jnp.zeros_like, problem.start)
    total, (used, info) = scan_in_chunks(add, zero, (examples, weights), max(1, chunk))
    share = used / jnp.maximum(jnp.sum(used), 1.0)
    return total, jax.tree.map(lambda values: jnp.sum(share * values), info)


def rows_in_memory(problem: Problem, rows: int, *, factored: bool = False) -> int:
    """Return the number of clipped gradients, of `rows` in a round, in memory at once; 0 for linear predictors.

    A record needs memory for d numbers, or for the intermediate values of its network if these are more. A CPU holds
    one gradient of many parameters: XLA then adds it to the sum without storing it. A number that divides `rows` is
    preferred, because a shorter last chunk is compiled separately.

    Args:
        factored: True for gradients that are factored at dense layers.
    """
    if problem.model.factored:
        return 0
    if in_a_loop(problem) and not factored:
        return min(rows, 1)
    dense = problem.dimension - (in_layers(problem) if factored else 0)
    floats = CACHE_FLOATS if platform() == "cpu" else CHUNK_FLOATS
    most = max(1, floats // max(dense, numbers_of_one(problem)))
    return min(rows, next((size for size in range(most, most // 2, -1) if rows % size == 0), most))


def in_a_loop(problem: Problem) -> bool:
    """Return True if clipped gradients are computed one after another, also those of a sweep's configurations."""
    dimension = problem.dimension
    return platform() == "cpu" and dimension >= ONE_BY_ONE and dimension >= numbers_of_one(problem)


def machines_at_once(problem: Problem, vectors: int, records: int) -> int:
    """Return the number of machines whose local steps are computed at once, at least 1.

    A step needs memory for vectors of parameters. On a CPU it may need more for the intermediate values of its records,
    and then one machine after another is faster, unless the values are few.

    Args:
        vectors: number of vectors of parameters in a step.
        records: number of records of a step.
    """
    floats = max(1, vectors * problem.dimension)
    if platform() == "cpu" and not problem.model.factored:
        values = records * numbers_of_one(problem)
        if values > max(floats, STEP_FLOATS):
            return 1
        floats = max(floats, values)
    return max(1, CHUNK_FLOATS // floats)


def in_a_step(problem: Problem) -> int:
    """Return the number of rounds, or of local steps, in one step of a compiled loop.

    Several of a linear predictor leave fewer gaps between an accelerator's kernels, read the records of all in one
    kernel, and copy no state.
    """
    model: Any = problem.model
    return IN_A_STEP if platform() != "cpu" and model.factored else 1


def flat_rows(problem: Problem, tree):
    """Return a pytree of parameters with a leading axis as a matrix [rows, d]."""
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(rows, axis=1)


def add_noise(problem: Problem, tree, noise):
    """Return the sum of a pytree and noise, in the pytree's structure.

    Args:
        problem: the optimisation problem, which has the structure of the parameters.
        tree: pytree like the parameters.
        noise: noise as a vector, [d], or None for no noise.
    """
    return tree if noise is None else jax.tree.map(jnp.add, tree, problem.unravel(noise))


def slot_keys(key: jax.Array, per_round: int) -> jax.Array:
    """Return a key for each participant of a round, [per_round], which does not depend on the split into chunks."""
    return jax.vmap(lambda slot: jax.random.fold_in(key, slot))(jnp.arange(per_round))
