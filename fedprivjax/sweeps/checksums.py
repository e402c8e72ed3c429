"""Checksums that identify the data of a run. They can be recomputed from the same arrays."""

import hashlib
from typing import Any
from weakref import finalize

import jax
import numpy as np

from fedprivjax.problem.problem import Problem

UNSALTED = "{}: unsalted checksums of private data, not covered by a guarantee"
COMPUTED = "computed from a seed, not stored"
_known: dict[int, str] = {}  # checksums of live arrays by `id`, because sweeps need them often


def data_checksums(problem: Problem) -> dict[str, str]:
    """Return the SHA-256 of the bytes (in C order, as in memory) of every array of examples, by name.

    No guarantee covers the checksums, because they are computed from private data. The checksum of a small dataset
    confirms a correct guess of the whole dataset.

    >>> from fedprivjax import Squared, linear_problem
    >>> found = data_checksums(linear_problem(np.eye(2), np.zeros(2), Squared()))
    >>> list(found), found["training.label"] == hashlib.sha256(bytes(8)).hexdigest()
    (['training.features', 'training.label', 'training.feature_norm'], True)
    """
    parts = {"training": problem.pool if problem.stored else None, "test": problem.test}
    found = {
        f"{part}{jax.tree_util.keystr(path)}": _checksum(leaf)
        for part, examples in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(examples)
    }
    return found if problem.stored else {"training": COMPUTED, **found}


def _checksum(leaf: Any) -> str:
    if id(leaf) not in _known:
        _known[id(leaf)] = hashlib.sha256(np.ascontiguousarray(leaf).data).hexdigest()
        finalize(leaf, _known.pop, id(leaf), None)
    return _known[id(leaf)]
