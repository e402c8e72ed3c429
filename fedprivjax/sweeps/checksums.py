"""Which data a run was on, as checksums that anyone can take of the same arrays."""

import hashlib
from typing import Any
from weakref import finalize

import jax
import numpy as np

from fedprivjax.problem.problem import Problem

COMPUTED = "computed from a seed, not stored"
_known: dict[int, str] = {}  # of arrays that are alive, by identity: a sweep asks often


def data_checksums(problem: Problem) -> dict[str, str]:
    """SHA-256 of the bytes (in C order, as held in memory) of every array of examples, by name.

    They are made of private data, so no guarantee covers them: of a small data set, a checksum tells whether a guess of
    all of it is right.

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
