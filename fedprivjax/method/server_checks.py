"""Validation of an optimiser: its factory, its settings, and its updates."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_choice

if TYPE_CHECKING:
    import optax

RATE = "learning_rate"  # argument of a factory that receives the protocol's step
SCHEDULES = ("_schedule", "_decay")  # ends of the names of optax's schedules
NAMED = 99  # largest number of names in a message


def optimizers() -> dict[str, Callable[..., "optax.GradientTransformation"]]:
    """Return optax's named optimisers, which are its public functions with a learning rate, and its schedules.

    >>> [name in optimizers() for name in ("adam", "sgd", "cosine_decay_schedule", "inject_hyperparams")]
    [True, True, True, False]
    """
    import optax

    hidden = ("_", "scale_by_")
    public = {name: one for name, one in vars(optax).items() if inspect.isfunction(one) and not name.startswith(hidden)}
    return {name: one for name, one in public.items() if RATE in parameters(one) or name.endswith(SCHEDULES)}


def is_schedule(factory: Any) -> bool:
    """Return True for a factory of optax's schedules, alone or in a `functools.partial`."""
    import optax

    name = name_of(factory)
    return name.endswith(SCHEDULES) and vars(optax).get(name) is getattr(factory, "func", factory)


def traced_names(factory: Any, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sorted names of settings that are traced: real numbers, except those on which a schedule branches."""
    numbers = [name for name in sorted(settings) if is_number(settings[name])]
    if not is_schedule(factory):
        return tuple(numbers)
    found: tuple[str, ...] = ()
    for name in numbers:
        found = (*found, name) if _traces(factory, settings, (*found, name)) else found
    return found


def _traces(factory: Callable, settings: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Return True if a schedule's value in a round can be traced in these numbers."""
    numbers = {name: settings[name] for name in names}
    try:
        jax.eval_shape(lambda numbers, count: factory(**{**settings, **numbers})(count), numbers, 0)
    except Exception:  # those of settings that are not valid are raised again, and refused, in `check_runs`
        return False
    return True


def is_number(value: Any) -> bool:
    """Return True if a setting is a real number, which is traced. Integers, flags and names are static."""
    if isinstance(value, float | np.floating):
        return True
    return isinstance(value, np.ndarray | jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)


def factory_of(factory: Any) -> Any:
    """Return the factory that is given as an object or by its name in optax, or a given transformation."""
    import optax

    if isinstance(factory, str):
        require_choice("optimiser", factory, optimizers(), listed=NAMED)
        return optimizers()[factory]
    if isinstance(factory, optax.GradientTransformation):
        return factory
    if not callable(factory):
        raise Refusal(f"optimiser must be an optax transformation, its factory or name, got {called(factory)}")
    try:
        hash(factory)
        inspect.signature(factory)
    except (TypeError, ValueError):
        raise Refusal(f"optimiser must be a hashable function of its settings, got {called(factory)}") from None
    return factory


def check_settings(factory: Callable, settings: Mapping[str, Any]) -> None:
    """Raise Refusal for settings that are unknown to the factory, missing, not finite or not hashable."""
    known, name = parameters(factory), name_of(factory)
    if RATE in settings:
        raise Refusal(f"{RATE} must be left out of an optimiser: it is the protocol's step, got {settings[RATE]}")
    if all(one.kind is not one.VAR_KEYWORD for one in known.values()):
        for setting in settings:
            require_choice(f"setting of {name}", setting, [each for each in known if each != RATE])
    for setting, value in settings.items():
        if isinstance(value, float | np.floating) and not isfinite(value):
            raise Refusal(f"{setting} of {name} must be finite, got {value}")
        if not is_number(value) and not _hashable(value):
            raise Refusal(f"{setting} of {name} must be a number, a flag or a name, got {called(value)}")
    missing = [each for each in needed(factory) if each not in settings]
    if missing:
        raise Refusal(f"optimiser {name} must be given its settings, got no {missing[0]!r}. Set it")


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@cache
def parameters(factory: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a factory by name, none for a transformation."""
    return inspect.signature(factory).parameters if callable(factory) else {}


def needed(factory: Any) -> list[str]:
    """Return the names of the settings without a default, except the learning rate."""
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    known = parameters(factory).items()
    return [name for name, one in known if name != RATE and one.default is one.empty and one.kind not in several]


def free_names(factory: Callable) -> set[str]:
    """Return the names of settings that may be real numbers, judged by their defaults."""
    known = {} if is_schedule(factory) else parameters(factory)
    return {
        name
        for name, one in known.items()
        if name != RATE and not isinstance(one.default, bool) and isinstance(one.default, float | int | None)
    }


@cache
def check_runs(blank: Any, shapes: tuple[tuple[int, ...], ...], tree: Any) -> None:
    """Check as in `ServerOptimizer.check`, cached by optimiser and parameter shapes; numbers have no effect.

    Args:
        blank: `ServerOptimizer` without its numbers.
        shapes, tree: shapes and structure of the parameters.
    """
    import optax

    number = jax.ShapeDtypeStruct((), jnp.float32)
    server = blank.filled([number] * len(blank.names))
    params = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])

    def once(server, params, rate):
        made = server.made(rate)
        if not isinstance(made, optax.GradientTransformation):
            raise Refusal(f"optimiser {server.name} must return a GradientTransformation, got {called(made)}")
        state = made.init(params)
        if hasattr(state, "hyperparams") and not server.own_step:
            wanted = f"optimiser {server.name} must be given without inject_hyperparams"
            raise Refusal(f"{wanted}, got the state {type(state).__name__}. Its numbers are leaves")
        for leaf in jax.tree.leaves(state):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
                raise Refusal(f"state of optimiser {server.name} must be a pytree of arrays, got {called(leaf)}")
        return state, *reversed(made.update(params, state, params))

    try:
        before, after, updates = jax.eval_shape(once, server, params, number)
    except Refusal:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise Refusal(
            f"optimiser {server.name} must take parameters of shape {_shapes(shapes)}, got {cause}"
        ) from error
    if _kinds(before) != _kinds(after):
        wanted = f"state of optimiser {server.name} must keep its structure and shapes from round to round"
        raise Refusal(f"{wanted}, got {_form(after)} after {_form(before)}")
    if jax.tree.structure(updates) != tree or [leaf.shape for leaf in jax.tree.leaves(updates)] != list(shapes):
        wanted = f"updates of optimiser {server.name} must have the parameters' shape, {_shapes(shapes)}"
        raise Refusal(f"{wanted}, got {_form(updates)}")


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(map(str, shapes))


def _form(tree: Any) -> str:
    """Return the structure, dtypes and shapes of a pytree as text."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)).replace("'", "")[:160]


def _kinds(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def name_of(factory: Any) -> str:
    """Return the name of a factory, or "transformation".

    >>> import optax
    >>> name_of(optax.adam)
    'adam'
    """
    if not callable(factory):
        return "transformation"
    return getattr(getattr(factory, "func", factory), "__name__", type(factory).__name__)
