"""Cutting a sweep into chunks that fit a memory budget and divide over devices."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.chunked_sums import CHUNK_NUMBERS
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.simulate import BLOCK
from fedprivjax.plan.seeds import round_keys
from fedprivjax.problem.memory_estimate import numbers_of_one


def chunk_sizes(start: ReadyRun, runs: tuple[int, int], budget: int, devices: int = 1) -> tuple[int, int]:
    """How many draws and members run together so that a chunk takes about `budget` bytes at most on each device.

    The draws divide over the devices where there are as many, else the members.

    Args:
        start: one run of the sweep, ready.
        runs: draws and members in all.

    Raises:
        ValueError: a budget below what one run takes.
    """
    per_draw, per_member = run_bytes(start)
    if per_draw + per_member > budget:
        raise Refusal(f"memory_budget must be at least {per_draw + per_member} bytes for one run, got {budget}")
    over_draws = devices if runs[0] >= devices else 1
    over_members = devices if over_draws == 1 else 1
    local = -(-runs[0] // over_draws), -(-runs[1] // over_members)
    members = min(local[1], (budget - per_draw) // per_member)
    draws = min(local[0], budget // (per_draw + members * per_member))
    return over_draws * _even(local[0], draws), over_members * _even(local[1], members)


def chunks(runs: tuple[int, int], sizes: tuple[int, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Index arrays (draws, members) of every chunk, all of the same sizes: a short last one repeats its last index.

    >>> [(list(map(int, s)), list(map(int, m))) for s, m in chunks((3, 1), (2, 1))]
    [([0, 1], [0]), ([2, 2], [0])]
    """
    for row in range(0, runs[0], sizes[0]):
        for column in range(0, runs[1], sizes[1]):
            yield (
                np.minimum(np.arange(row, row + sizes[0]), runs[0] - 1),
                np.minimum(np.arange(column, column + sizes[1]), runs[1] - 1),
            )


def run_bytes(start: ReadyRun) -> tuple[int, int]:
    """Bytes that a draw and that a member of it take, from what the protocol and the mechanism say that they hold."""
    protocol, problem, size = start.protocol, start.problem, start.recipe.size
    d, (_, per_round, rounds) = problem.dimension, size
    example = _floats(lambda: problem.take(0, 0))
    tested = 0 if problem.test is None else jax.tree.leaves(problem.test)[0].shape[0]
    first_leaf = jax.tree.leaves(problem.start)[0]
    scores = first_leaf.shape[0] if first_leaf.ndim > 1 else 1
    records = per_round * start.plan.width
    block = min(BLOCK, rounds) * max(d, _drawn(start))
    drawn = rounds * (6 * per_round + 2 * records) + 3 * block + 2 * records * example
    written_out = max(protocol.messages_in_memory(problem, size), protocol.gradients_in_memory(problem, records))
    way = 0 if problem.model.factored else numbers_of_one(problem)  # from a record to its loss, through a network
    computed = written_out if protocol.clip is not None else records
    messages = 4 * written_out * d + 2 * records * scores + 2 * computed * way
    state = _floats(lambda: protocol.init(problem, size, jax.random.key(0)))
    noise_state = _floats(lambda: protocol.noise_state(d, size))
    host_noise = sum(leaf.nbytes for leaf in jax.tree.leaves(start.host_noise))
    seen = max(tested, problem.examples if problem.stored else 0)
    evaluated = max(3 * tested * scores, 2 * min(CHUNK_NUMBERS, seen * way))
    member = 6 * d + 2 * (state + noise_state) + evaluated + messages
    return 4 * (drawn + start.mechanism.floats(d)), 4 * member + host_noise


def _drawn(start: ReadyRun) -> int:
    """Numbers that a mechanism draws for one round."""
    mechanism, dimension = start.mechanism, start.problem.dimension
    first = jax.tree.map(lambda leaf: leaf[:1], mechanism.inputs)

    def draw():
        key = jax.random.key(0)
        keys = round_keys(key, np.ones(1, np.int32))
        return mechanism.draw(mechanism.init(dimension, key), first, keys, dimension)[1]

    return _floats(draw)


def _floats(make: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(jax.eval_shape(make)))


def _even(total: int, most: int) -> int:
    """The chunk size at most `most` that cuts `total` into equal parts, nearly."""
    parts = -(-total // most)
    return -(-total // parts)
