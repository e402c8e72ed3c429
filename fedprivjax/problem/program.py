"""Compiled programs and memoised values.

`typed_jit` never confuses classes. `program_of` is a key of the program that a function computes. `Once` memoises
values of immutable objects.
"""

import inspect
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, wraps
from typing import Any

import jax
import numpy as np

REMEMBERED = 64  # results of one function that `by_shapes` remembers


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Classes:
    """Classes of a pytree's nodes, an argument without leaves."""

    found: tuple


def typed_jit(
    function: Callable | None = None,
    *,
    static_argnames: str | Sequence[str] = (),
    donate_argnames: str | Sequence[str] = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.jit` whose programs also depend on the classes of the arguments' pytree nodes.

    In some versions of JAX (0.10.1 at least), the structures of two dataclasses with equal fields compare equal even if
    the classes differ. About one time in fifty, `jax.jit` then runs the program of the other class: that of a parent
    instead of its subclass, or the projection onto an L2 ball instead of an L1 ball.

    Args:
        function: function of pytrees, or None for use as a decorator with arguments.
        static_argnames, donate_argnames, compiler_options: as in `jax.jit`.

    >>> from flax import struct
    >>> @struct.dataclass
    ... class Once:
    ...     number: Any
    ...     def value(self):
    ...         return self.number
    >>> @struct.dataclass
    ... class Twice(Once):
    ...     def value(self):
    ...         return 2 * self.number
    >>> value = typed_jit(lambda thing: thing.value())
    >>> float(value(Once(1.0))), float(value(Twice(1.0)))
    (1.0, 2.0)
    """
    if function is None:
        return partial(
            typed_jit,
            static_argnames=static_argnames,
            donate_argnames=donate_argnames,
            compiler_options=compiler_options,
        )
    names = inspect.signature(function)
    static = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)

    def of_classes(classes: _Classes, **arguments):
        return function(**arguments)

    options = None if compiler_options is None else dict(compiler_options)
    donated = (donate_argnames,) if isinstance(donate_argnames, str) else tuple(donate_argnames)
    program: Any = jax.jit(of_classes, static_argnames=tuple(static), donate_argnames=donated, compiler_options=options)

    def keyed(*args: Any, **kwargs: Any) -> tuple[_Classes, dict[str, Any]]:
        arguments = names.bind(*args, **kwargs).arguments
        traced = {name: value for name, value in arguments.items() if name not in static}
        return _Classes(classes_of(jax.tree.structure(traced))), arguments

    @wraps(function)
    def call(*args: Any, **kwargs: Any):
        classes, arguments = keyed(*args, **kwargs)
        return program(classes, **arguments)

    def lower(*args: Any, **kwargs: Any):
        classes, arguments = keyed(*args, **kwargs)
        return program.lower(classes, **arguments)

    for name, method in {
        "lower": lower,
        "_cache_size": program._cache_size,
        "clear_cache": program.clear_cache,
    }.items():
        setattr(call, name, method)
    return call


def classes_of(structure: Any) -> tuple:
    """Return the classes of a pytree structure's nodes, nested as the nodes are."""
    data = structure.node_data()
    return () if data is None else (data[0], *map(classes_of, structure.children()))


def by_shapes(function: Callable) -> Callable:
    """Return a function with remembered results, of a pytree of shapes and further arguments.

    It is called with a pytree of arrays or numbers. Results are remembered for the classes, static fields and shapes of
    the pytree, and for equal further arguments. If an argument cannot be hashed, nothing is remembered.

    >>> import jax.numpy as jnp
    >>> calls = []
    >>> @by_shapes
    ... def dimension(arrays, name):
    ...     calls.append(name)
    ...     return sum(leaf.size for leaf in jax.tree.leaves(arrays))
    >>> dimension([jnp.ones(3), 0.5], "first"), dimension([jnp.zeros(3), 2.0], "first"), calls
    (4, 4, ['first'])
    """

    def of_leaves(structure: Any, classes: tuple, leaves: tuple[Any, ...], further: tuple) -> Any:
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type) for leaf in leaves]
        return function(jax.tree.unflatten(structure, shapes), *further)

    remembered = lru_cache(maxsize=REMEMBERED)(of_leaves)

    @wraps(function)
    def call(tree: Any, *further: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        arguments = structure, classes_of(structure), tuple(map(jax.typeof, leaves)), further
        try:
            hash(arguments)
        except TypeError:
            return of_leaves(*arguments)
        return remembered(*arguments)

    return call


def program_of(function: Callable, *arguments: Any) -> Hashable:
    """Return text and constants of a function's trace. Arguments may be arrays or shapes.

    >>> scale = 2.0
    >>> before = program_of(lambda x: scale * x, 1.0)
    >>> scale = 3.0
    >>> before == program_of(lambda x: scale * x, 1.0)
    False
    """
    traced = jax.make_jaxpr(function)(*arguments)
    return re.sub("0x[0-9a-f]+", "", str(traced)), contents(traced.consts)


def contents(arrays: Sequence[Any]) -> Hashable:
    """Return shapes, types and bytes of arrays."""
    return tuple((array.shape, str(array.dtype), array.tobytes()) for array in map(np.asarray, arrays))


class Once:
    """Base class of objects that cache values computed from them.

    Copies and pickles leave the cached values out: a public schedule caches values of private partitions and samples.
    """

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def once(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the cached value of this name, computed at the first call from the object and name only."""
        if name not in self._known:
            self._known[name] = value = compute()
            if isinstance(value, np.ndarray):
                value.setflags(write=False)  # callers share the array
        return self._known[name]
