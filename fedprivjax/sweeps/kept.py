"""Parameters of a sweep's runs that are kept: their vectors, their structure, and the memory that they take."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.bounded_read import json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.engine.finished_run import packed, unpacked
from fedprivjax.engine.hosts import is_first
from fedprivjax.problem.checks import require_alike
from fedprivjax.problem.devices import GIB, memory
from fedprivjax.problem.problem import Problem

PARAMS, PARAMETER = "params", "parameter"  # variable of a dataset, and its last dimension
STRUCTURE = "structure"  # attribute of `params`: JSON of its tree and of the shapes of its leaves
METHOD, PREDICTOR = "method", "predictor"  # variables of a dataset with parameters
BYTES = 4  # float32
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def as_keep(keep: Sequence[str]) -> tuple[str, ...]:
    """Return the kept parts of runs.

    Raises:
        Refusal: unless they are a list of distinct known parts.

    >>> as_keep(["params"])
    ('params',)
    """
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not set(map(str, keep)) <= {PARAMS}:
        raise Refusal(f'keep must be a list of "{PARAMS}", got {called(keep)}. Write keep = ["{PARAMS}"]')
    return tuple(dict.fromkeys(map(str, keep)))


def flat(params: Any, problem: Problem) -> jax.Array:
    """Return parameters as one float32 vector, shape [parameter]; a pure function.

    Raises:
        Refusal: if their structure is not that of the problem's parameters.
    """
    require_alike("params that are kept", params, problem.start, "the problem's parameters")
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(jnp.float32)


def structure_of(problem: Problem) -> str:
    """Return the tree and the shapes of a problem's parameters as JSON, for `unflattened`.

    Raises:
        Refusal: if the tree has containers other than dicts, lists and tuples.
    """
    try:
        tree = packed(problem.start)[0]
    except Refusal as refusal:
        raise Refusal(f"{str(refusal).partition('. ')[0]}. Leave out keep") from None
    return json.dumps({"tree": tree, "shapes": [np.shape(leaf) for leaf in jax.tree.leaves(problem.start)]})


def unflattened(vector: np.ndarray, structure: str) -> Any:
    """Return the parameters of a vector from `flat`.

    Raises:
        Refusal: if the structure is not one of `structure_of`, or of another number of parameters.

    >>> unflattened(np.arange(3), '{"tree": {"dict": [["w", "array"], ["b", "array"]]}, "shapes": [[], [2]]}')
    {'b': array(0), 'w': array([1, 2])}
    """
    try:
        found = json_value(structure)
        shapes = [tuple(shape) for shape in found["shapes"]]
        tree = jax.tree.structure(unpacked(found["tree"], [np.zeros(()) for _ in shapes]))
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        leaves = [np.reshape(part, shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]
    except Exception as error:  # a text from elsewhere may hold anything
        wanted = f"{STRUCTURE} of {PARAMS} must be as a run writes it, for {len(vector)} numbers"
        raise Refusal(f"{wanted}, got {structure!r}") from error
    return jax.tree.unflatten(tree, leaves)


def print_size(runs: Iterable[tuple[int, int]]) -> None:
    """Print the size of the kept parameters on stderr, in the first process.

    Args:
        runs: number of runs and number of parameters of a run, of every sweep.

    Raises:
        Refusal: if they take more than this computer's memory.
    """
    sweeps = list(runs)
    number, needed, there = sum(count for count, _ in sweeps), BYTES * sum(count * d for count, d in sweeps), memory()
    if needed > there:
        raise Refusal(
            f"parameters that are kept must fit in this computer's {there / GIB:.3g} GiB of memory, got those of "
            f"{number} runs, which take {needed / GIB:.3g} GiB. Leave out keep, or sweep over fewer values or seeds"
        )
    if is_first():
        of = "1 run" if number == 1 else f"{number} runs"
        print(f"parameters of {of} take {size_text(needed)}", file=sys.stderr, flush=True)


def size_text(size: float) -> str:
    """Return a number of bytes as text.

    >>> size_text(75_360_000), size_text(120)
    ('75.4 MB', '120 B')
    """
    return next((f"{size / unit:.3g} {name}" for unit, name in UNITS if size >= unit), f"{size:.0f} B")
