"""Cutting a sweep into chunks that fit a memory budget."""

from collections.abc import Iterator

import jax
import numpy as np

from fedprivjax.problem import Problem
from fedprivjax.simulate import BLOCK, Recipe


def chunk_sizes(
    protocol, source, problem: Problem, recipe: Recipe, runs: tuple[int, int], budget: int
) -> tuple[int, int]:
    """How many seeds and members run together so that a chunk takes about `budget` bytes at most.

    Args:
        runs: seeds and members in all.

    Raises:
        ValueError: a budget below what one run takes.
    """
    per_seed, per_member = _bytes(protocol, source, problem, recipe)
    if per_seed + per_member > budget:
        raise ValueError(f"memory_budget must be at least {per_seed + per_member} bytes for one run, got {budget}")
    members = min(runs[1], (budget - per_seed) // per_member)
    seeds = min(runs[0], budget // (per_seed + members * per_member))
    return _even(runs[0], seeds), _even(runs[1], members)


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


def _bytes(protocol, source, problem: Problem, recipe: Recipe) -> tuple[int, int]:
    """Bytes that a seed and that a member of it take, from the sizes of what they hold."""
    dimension, size = problem.dimension, recipe.size
    example = sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(problem.pool))
    tested = 0 if problem.test is None else jax.tree.leaves(problem.test)[0].shape[0]
    scores = jax.tree.leaves(problem.start)[0].shape[0] if jax.tree.leaves(problem.start)[0].ndim > 1 else 1
    drawn = 8 * size.rounds * size.per_round + 3 * min(BLOCK, size.rounds) * dimension + 2 * size.per_round * example
    per_seed = drawn + _floats(lambda: source.init(dimension, jax.random.key(0)))
    per_member = 6 * dimension + 2 * _floats(lambda: protocol.init(problem, size)) + 3 * tested * scores
    return 4 * per_seed, 4 * per_member


def _floats(make) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(jax.eval_shape(make)))


def _even(total: int, most: int) -> int:
    """The chunk size at most `most` that cuts `total` into equal parts, nearly."""
    parts = -(-total // most)
    return -(-total // parts)
