"""Compiled programs: their products' precision, a limit on their number, and isolation; and memoised values.

`typed_jit` never confuses classes. `program_of` is a key of the program that a function computes. `Once` memoises
values of immutable objects. Products are matrix products and convolutions on an accelerator. Noise is always computed
in full precision.

In private runs, what is computed for one machine or one record reaches no other, and nothing outside. Sensitivities
count the change of one message. That holds only if a function of one machine sees that machine alone: custom batching,
and sums over a mesh, see all of them. A callback hands data to the host, past every release.
"""

import gc
import inspect
import os
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import short
from fedprivjax.problem.devices import MACHINES, RUNS
from fedprivjax.problem.traces import equations

MAPPINGS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
MOST = 0.5  # largest fraction of the process's memory mappings; compiling crashes the process at 1
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"  # a third of the time to compile
FLOAT32, TF32 = "float32", "tf32"
PRECISIONS = {FLOAT32: "float32", TF32: "tensorfloat32"}  # jax's names
REMEMBERED = 64  # results of one function that `by_shapes` remembers
CALLBACKS = dict.fromkeys(
    ("pure_callback", "io_callback", "debug_callback", "debug_print", "infeed", "outfeed", "ffi_call"),
    "Remove it; metrics and iterates show values at evaluations",
)
COLLECTIVES = dict.fromkeys(
    (
        *("psum", "psum2", "psum_invariant", "pmin", "pmax", "ppermute", "all_to_all", "ragged_all_to_all"),
        *("all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "axis_index"),
        *("pbroadcast", "pvary", "psend", "precv"),
    ),
    "Remove it; sums over machines are those of the privacy object",
)
BATCHING = {"custom_vmap_call": "Write the function without custom_vmap, so that it is batched one by one"}
REFUSED = CALLBACKS | COLLECTIVES | BATCHING
AXES = [(RUNS, 1), (MACHINES, 1)]  # of a mesh: without one, a sum over them could not be traced


def compile_quickly() -> None:
    """Configure XLA for faster compilation and slower execution, which saves time on small programs.

    Call it before any other use of jax: XLA reads its settings once.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    given = os.environ.get("XLA_FLAGS", "")
    if knows_quick() and QUICK not in given:
        os.environ["XLA_FLAGS"] = f"{QUICK} {given}"


def knows_quick() -> bool:
    """Return True if XLA knows the flags of `QUICK`. XLA aborts the process on unknown flags."""
    return (0, 7) <= tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10)


def make_room(most: float = MOST) -> bool:
    """Clear all compiled programs if the process has a large part of the memory mappings that the system allows.

    On a CPU a program takes some hundreds of mappings, and Linux allows 65530 by default. A process that compiles a few
    hundred programs would therefore be killed. A cleared program is compiled again at its next call, or read from jax's
    persistent cache if one is configured. On systems other than Linux this does nothing.

    Args:
        most: fraction of the allowed memory mappings from which the programs are cleared.

    Returns:
        True if the programs were cleared.

    >>> make_room()
    False
    """
    if not (MAPPINGS.exists() and LIMIT.exists()) or taken() < most * int(LIMIT.read_text()):
        return False
    jax.clear_caches()
    gc.collect()
    return True


def taken() -> int:
    """Return the number of memory mappings of this process."""
    with MAPPINGS.open("rb") as lines:
        return sum(1 for _ in lines)


def products(precision: str = FLOAT32):
    """Return a context in which products are traced with a precision, a key of `PRECISIONS`.

    With "tf32", an accelerator may round the factors of products to 10 bits of mantissa, which is faster. A CPU
    computes in float32 in both cases.
    """
    return jax.default_matmul_precision(PRECISIONS[precision])


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


def _require_int32(tree: Any) -> None:
    """Raise Refusal if a leaf is an integer that int32 does not hold."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        if isinstance(leaf, int) and abs(leaf) >= 2**31:
            name = jax.tree_util.keystr(path).removeprefix(".")
            raise Refusal(f"{name} must be a float above 2³¹, got the integer {short(leaf)}. Write {leaf:g}")


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
        _require_int32(tree)
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


def isolated(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """Return `function(*arguments)`, computed from its program, once that is known to be isolated.

    Args:
        name: name of the function in messages.

    Raises:
        Refusal: if the program holds a callback, a sum over devices, custom batching, or another effect.
    """
    program, shape = _traced(function, *arguments)
    _require_isolated(program, name)
    return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(program)())


def require_isolated_records(problem: Any) -> None:
    """Raise Refusal unless the gradient of one record's loss is isolated."""
    _require_of_model(replace(problem.traced, excess=None))


@by_shapes
def _require_of_model(problem: Any) -> None:
    start, record = jax.eval_shape(lambda problem: (problem.start, problem.take(0)), problem)
    gradients = jax.make_jaxpr(lambda start, record: problem.model.gradients((start,), record), axis_env=AXES)
    _require_isolated(gradients(start, record), "the loss")


def isolated_record(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """Return `function(*arguments)` as `isolated`, of arrays alone, whatever the function does in another trace.

    It sees the arguments' shapes, and not the batch that they are part of.
    """
    program, shape = jax.make_jaxpr(function, axis_env=AXES, return_shape=True)(*arguments)
    _require_isolated(program, name)
    return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(program)(*jax.tree.leaves(arguments)))


def _traced(function: Callable[..., Any], *arguments: Any) -> tuple[ClosedJaxpr, Any]:
    """Return a function's program on given arguments, which it closes over, and the structure of its result."""
    return jax.make_jaxpr(lambda: function(*arguments), axis_env=AXES, return_shape=True)()


def _require_isolated(program: ClosedJaxpr, name: str) -> None:
    for equation in equations(program.jaxpr):
        primitive = equation.primitive.name
        if primitive in REFUSED:
            raise Refusal(
                f"{name} must compute what it returns from its arguments alone in a private run, got the primitive "
                f"{primitive!r}. {REFUSED[primitive]}"
            )
    for effect in program.effects:
        raise Refusal(
            f"{name} must compute what it returns from its arguments alone in a private run, got the effect {effect}. "
            f"Write it as a function without side effects"
        )
