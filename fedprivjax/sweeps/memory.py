"""Cutting a sweep into chunks that fit a memory budget and divide over devices."""

from collections.abc import Iterator

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.simulate import BLOCK, Recipe
from fedprivjax.noise import Cancelling, PerMachine, Replayed
from fedprivjax.problem.models import GeneralModel
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import LocalSGD, StaleMomentum
from fedprivjax.protocols.cohort import CHUNK_FLOATS


def chunk_sizes(
    protocol,
    source,
    problem: Problem,
    recipe: Recipe,
    runs: tuple[int, int],
    budget: int,
    devices: int = 1,
    width: int = 1,
) -> tuple[int, int]:
    """How many seeds and members run together so that a chunk takes about `budget` bytes at most on each device.

    The seeds divide over the devices where there are as many, else the members.

    Args:
        runs: seeds and members in all.
        width: examples of a message.

    Raises:
        ValueError: a budget below what one run takes.
    """
    per_seed, per_member = _bytes(protocol, source, problem, recipe, width)
    if per_seed + per_member > budget:
        raise Refusal(f"memory_budget must be at least {per_seed + per_member} bytes for one run, got {budget}")
    over_seeds = devices if runs[0] >= devices else 1
    over_members = devices if over_seeds == 1 else 1
    local = -(-runs[0] // over_seeds), -(-runs[1] // over_members)
    members = min(local[1], (budget - per_seed) // per_member)
    seeds = min(local[0], budget // (per_seed + members * per_member))
    return over_seeds * _even(local[0], seeds), over_members * _even(local[1], members)


def chunks(runs: tuple[int, int], sizes: tuple[int, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Index arrays (seeds, members) of every chunk, all of the same sizes: a short last one repeats its last index.

    >>> [(list(map(int, s)), list(map(int, m))) for s, m in chunks((3, 1), (2, 1))]
    [([0, 1], [0]), ([2, 2], [0])]
    """
    for row in range(0, runs[0], sizes[0]):
        for column in range(0, runs[1], sizes[1]):
            yield (
                np.minimum(np.arange(row, row + sizes[0]), runs[0] - 1),
                np.minimum(np.arange(column, column + sizes[1]), runs[1] - 1),
            )


def _bytes(protocol, source, problem: Problem, recipe: Recipe, width: int = 1) -> tuple[int, int]:
    """Bytes that a seed and that a member of it take, from the sizes of what they hold."""
    d, (_, per_round, rounds) = problem.dimension, recipe.size
    example = _floats(lambda: problem.take(0, 0))
    tested = 0 if problem.test is None else jax.tree.leaves(problem.test)[0].shape[0]
    scores = jax.tree.leaves(problem.start)[0].shape[0] if jax.tree.leaves(problem.start)[0].ndim > 1 else 1
    records = per_round * width
    drawn = rounds * (6 * per_round + 2 * records) + 3 * min(BLOCK, rounds) * d + 2 * records * example
    own_noise = 3 * per_round * d if isinstance(source, PerMachine | Cancelling | Replayed) else 0
    per_seed = drawn + own_noise + 2 * _floats(lambda: source.init(d, jax.random.key(0)))
    messages = 4 * _written_out(protocol, problem, per_round) * d + 2 * records * scores
    state = _floats(lambda: protocol.init(problem, recipe.size))
    return 4 * per_seed, 4 * (6 * d + 2 * state + 3 * tested * scores + messages)


def _written_out(protocol, problem: Problem, per_round: int) -> int:
    """Machines whose messages are in memory at once, all d numbers of them."""
    if isinstance(protocol, LocalSGD) or getattr(protocol, "clip_at", "record") != "record":
        return per_round
    if isinstance(problem.model, GeneralModel) or isinstance(protocol, StaleMomentum):
        return min(per_round, max(1, CHUNK_FLOATS // problem.dimension))
    return 0


def _floats(make) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(jax.eval_shape(make)))


def _even(total: int, most: int) -> int:
    """The chunk size at most `most` that cuts `total` into equal parts, nearly."""
    parts = -(-total // most)
    return -(-total // parts)
