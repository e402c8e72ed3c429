"""Groups of machines whose numbers of records, batch sizes and privacy settings are equal, and their constants."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.plan import machine_values
from fedprivjax.plan.samplers import Poisson, Sampler
from fedprivjax.plan.samplers.interface import require_records
from fedprivjax.privacy.per_machine import group_identical
from fedprivjax.problem.problem import Problem


class Kinds(NamedTuple):
    """Groups of identical machines: equal numbers of records, batch sizes and per-machine settings.

    Attributes:
        first: smallest index of a machine in each group; int, shape [groups].
        kind: index of the group of each machine; int, shape [machines].
        records: number of records of one machine of each group; int, shape [groups].
        batch: number of records in a message of one machine of each group; int, shape [groups].
    """

    first: np.ndarray
    kind: np.ndarray
    records: np.ndarray
    batch: np.ndarray


class MachineTable(NamedTuple):
    """Number of records, batch size, gradient bound and privacy target of every machine, or of one of each kind."""

    records: np.ndarray
    batch: np.ndarray
    lipschitz: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray


def kinds_of(problem: Problem, sampler: Sampler, settings: tuple[Any, ...]) -> Kinds:
    """Return groups of machines with equal numbers of records, batch sizes and per-machine settings.

    They are cached for all protocols with the same per-machine settings.

    Args:
        settings: gradient bound, ε, δ and weight, each one number for all machines or one for each.
    """
    if problem.partition_table is None:
        raise Refusal("partition_table must be given, because machines sample minibatches from their own records")
    each = tuple(value if np.ndim(value) else None for value in settings)
    sizes = problem.partition_table.sizes
    return problem.partition_table.once(("kinds", sampler, each), lambda: _grouped(sizes, sampler, each))


def _grouped(sizes: np.ndarray, sampler: Sampler, each: Sequence[Any]) -> Kinds:
    """Return the groups for dataset sizes. An entry of `each` is None if all machines share that setting."""
    require_records(sizes)
    sizes = _public_sizes(sizes, sampler)
    names = ("lipschitz", "epsilon", "delta", "machine_weights")
    own = {name: value for name, value in zip(names, each, strict=True) if value is not None}
    given = [machine_values(name, value, sizes.size) for name, value in own.items()]
    batch = sampler.batches(sizes)
    first, kind = group_identical([sizes, batch, *given])
    return Kinds(first, kind, sizes[first], batch[first])


def _public_sizes(sizes: np.ndarray, sampler: Sampler) -> np.ndarray:
    """Return the numbers of records on which noise may depend: batch/rate with a public rate; int, shape [machines]."""
    if type(sampler) is not Poisson or sampler.rate is None:
        return sizes
    return np.maximum(1, np.rint(np.broadcast_to(sampler.batches(sizes), sizes.shape) / sampler.rate)).astype(int)
