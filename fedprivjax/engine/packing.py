"""Pytrees of arrays in files: their structure as JSON values, and their arrays as an archive."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from fedprivjax.checks.refusal import Refusal

LEAF = "array"


def packed(params: Any) -> tuple[Any, list[np.ndarray]]:
    """Return a tree's structure as JSON values, and its arrays in order.

    Raises:
        Refusal: if the tree has containers other than dicts with names or numbers as keys, lists and tuples.

    >>> packed({"w": np.ones(2), "b": (np.zeros(1),)})[0]
    {'dict': [['w', 'array'], ['b', {'tuple': ['array']}]]}
    """
    if type(params) in (list, tuple):
        parts = [packed(value) for value in params]
        return {type(params).__name__: [structure for structure, _ in parts]}, _joined(parts)
    if type(params) is dict and all(type(key) in (str, int) for key in params):
        parts = [packed(value) for value in params.values()]
        return {"dict": [[key, part[0]] for key, part in zip(params, parts, strict=True)]}, _joined(parts)
    if hasattr(params, "dtype"):
        return LEAF, [np.asarray(params)]
    raise Refusal(
        f"params must be an array, or nested dicts, lists and tuples of arrays to be saved, got "
        f"{type(params).__name__}. Save jax.tree.leaves(run.params)"
    )


def unpacked(structure: Any, leaves: Sequence[np.ndarray]) -> Any:
    """Return the tree of a structure and arrays from `packed`.

    Raises:
        ValueError: if they do not fit each other.
    """
    rest = iter(leaves)
    tree = _unpacked(structure, rest)
    if next(rest, None) is not None:
        raise ValueError("there are more arrays than the structure has")
    return tree


def npz_of(leaves: Sequence[np.ndarray], **named: np.ndarray) -> Callable[[BinaryIO], None]:
    """Return a writer of arrays as a `.npz` archive, in order, with further ones by name."""
    arrays: dict[str, Any] = {f"{index:06d}": leaf for index, leaf in enumerate(leaves)} | named
    return partial(np.savez, **arrays)


def _unpacked(structure: Any, rest: Any) -> Any:
    if structure == LEAF:
        found = next(rest, None)
        if found is None:
            raise ValueError("there are fewer arrays than the structure has")
        return found
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {key: _unpacked(part, rest) for key, part in parts}
    return {"list": list, "tuple": tuple}[kind](_unpacked(part, rest) for part in parts)


def _joined(parts: Sequence[tuple[Any, list[np.ndarray]]]) -> list[np.ndarray]:
    return [leaf for _, leaves in parts for leaf in leaves]
