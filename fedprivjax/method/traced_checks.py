"""Checks of algorithms and privacy objects while a program is traced: their results for one machine, and the server."""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal


def require_state(name: str, before: Any, after: Any, function: str, first: str) -> None:
    """Raise Refusal if a state after the round differs in structure, shapes or types of numbers.

    Args:
        function, first: names of the functions that return the state after and before.
    """
    if _form(before) != _form(after):
        raise Refusal(
            f"{function} must return a state of the form of {first} in {name}, {short(before)}, got {short(after)}. "
            f"Return arrays of the same structure, shapes and types"
        )


def require_served(name: str, server: Any, after: Any) -> None:
    """Raise Refusal if the server's state after a round differs in form from that of `init`.

    Python numbers of `init` may take the type that they have after the round.
    """

    def promoted(before: Any, after: Any) -> Any:
        return jnp.asarray(before, jnp.result_type(after)) if jax.typeof(before).weak_type else before

    same = jax.tree.structure(server) == jax.tree.structure(after)
    require_state(name, jax.tree.map(promoted, server, after) if same else server, after, "serve", "init")


def require_message(name: str, message: Any, dimension: int) -> None:
    """Raise Refusal unless a message as it is sent has the stated number of numbers."""
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(message))
    if size != dimension:
        raise Refusal(
            f"sent must return {dimension} numbers in {name}, as noise and costs have, got {size}. Return a message of "
            f"the form of leave"
        )


def require_scalars(name: str, weight: Any, info: Any) -> None:
    """Raise Refusal unless a machine's weight, and every value that is reported by name, is one number."""
    values = info if isinstance(info, dict) else {}
    wrong = {key: value for key, value in values.items() if jnp.shape(value)}
    if not isinstance(info, dict) or wrong:
        raise Refusal(
            f"bounded must return scalars by name in {name}, got {short(wrong or info)}. Return one number for each"
        )
    if jnp.shape(weight):
        raise Refusal(f"weight must return one number in {name}, got {short(weight)}. Return the weight of one message")


def require_floats(name: str, message: Any) -> Any:
    """Return a message. Raise Refusal unless it consists of float32 numbers."""
    kinds = {str(jnp.result_type(leaf)) for leaf in jax.tree.leaves(message)}
    if kinds - {"float32"}:
        wrong = ", ".join(sorted(kinds - {"float32"}))
        raise Refusal(f"leave must return float32 numbers in {name}, got {wrong}. Convert them to float32")
    return message


def _form(state: Any) -> tuple:
    """Return a state's structure, and the shapes and types of its leaves."""
    return jax.tree.structure(state), [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(state)]


def short(state: Any) -> str:
    """Return a state in one line, with each array as its type and shape."""
    return " ".join(str(jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", state)).split())
