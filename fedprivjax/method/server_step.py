"""Steps of a server or a machine with an optional optimiser; the plain step without one."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import jax
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import kinds_of_parts
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_positive
from fedprivjax.method.server_checks import factory_of, needed
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.problem.problem import Problem


def initial(server: ServerOptimizer | None, w, step=1.0) -> Any:
    """Return the optimiser's state before the first round, or () without an optimiser."""
    return () if server is None else server.init(w, step)


def stepped(server: ServerOptimizer | None, state: Any, w, direction, step) -> tuple[Any, Any]:
    """Return w after the server's step, before the projection, and the optimiser's state."""
    if server is None:
        return jax.tree.map(lambda w, g: w - step * g, w, direction), state
    return server.step(state, w, direction, step)


def served(server: ServerOptimizer | None, state: Any, w, rate, *updates) -> tuple[Any, Any]:
    """Return w after the server's step along updates, before the projection, and its optimiser's state.

    The plain step adds the updates. An optimiser receives the pseudo-gradient, which is minus their sum.

    Args:
        rate: learning rate of the optimiser, or None for 1.
    """
    if server is None:
        return jax.tree.map(lambda w, *each: sum(each, w), w, *updates), state
    direction = jax.tree.map(lambda *each: -sum(each), *updates)
    return server.step(state, w, direction, 1.0 if rate is None else rate)


def scaled_step(server: ServerOptimizer, plain: float, problem: Problem, rounds: int, norm: float) -> float:
    r"""Return the optimiser's step that moves as far as the plain step in T rounds along a constant direction.

        step = plain · ‖g‖ / ((1/T)·Σ_t ‖u_t‖),   u_t the updates at learning rate 1 along g of equal coordinates

    With momentum β it is (1 − β) times the plain step, except for the first rounds. With Adam it is plain·‖g‖/√d: for
    the step D/(√T·‖g‖) of SGD, each round moves a coordinate by D/√(T·d). All inputs are public.

    Args:
        norm: ‖g‖ in the plain step, from the gradient bound and the noise: √(G² + d·σ²).

    Raises:
        Refusal: if the optimiser's updates are 0 or not finite along a constant direction, so no step can be derived.
    """
    if not (isfinite(plain) and isfinite(norm)):
        return plain
    length = server.mean_length(problem.start, norm, rounds)
    if not (isfinite(length) and length > 0):
        raise Refusal(f"step_size must be given with {server}: along a constant direction its updates are {length:g}")
    return plain * norm / length


def optimizer_field() -> Any:
    """Return a field of a protocol or an algorithm that holds an optimiser, or None for plain steps."""
    return struct.field(default=None, metadata={"part": ServerOptimizer})


def set_optimizers(part: Any) -> None:
    """Replace transformations, their factories, schedules and names in optimiser fields by a `ServerOptimizer`.

    Placeholders of tree transformations pass.
    """
    for name, kind in kinds_of_parts(part).items():
        if kind is ServerOptimizer:
            object.__setattr__(part, name, as_optimizer(name, getattr(part, name)))


def check_optimizers(part: Any, params: Any) -> None:
    """Raise Refusal if an optimiser of an algorithm cannot be run on parameters of these shapes.

    Also if the algorithm has a `server_step`, and its `server` has no learning rate, or two.
    """
    held = {name: getattr(part, name) for name, kind in kinds_of_parts(part).items() if kind is ServerOptimizer}
    for optimizer in held.values():
        if optimizer is not None:
            optimizer.check(params)
    if "server" in held and hasattr(part, "server_step"):
        _require_learning_rate(held["server"], part.server_step)


def as_optimizer(name: str, given: Any) -> Any:
    """Return the `ServerOptimizer` of a transformation, its factory, a schedule or a name.

    A function with exactly one required argument, other than a learning rate, is a schedule, unless it is a factory of
    optax, such as `optax.clip`.

    >>> import optax
    >>> as_optimizer("server", optax.adam), as_optimizer("server", "sgd"), as_optimizer("server", optax.sgd(0.1))
    (ServerOptimizer(adam), ServerOptimizer(sgd), ServerOptimizer(transformation))
    """
    if given is None or isinstance(given, ServerOptimizer):
        return given
    if callable(given) and not _of_optax(given) and len(needed(factory_of(given))) == 1:
        import optax

        return ServerOptimizer(optax.scale_by_schedule, step_size_fn=given)
    if isinstance(given, str | tuple) or callable(given):
        return ServerOptimizer(given)
    if isinstance(given, Mapping | int | float):
        raise Refusal(f"{name} must be an optax transformation, its factory or its name, got {called(given)}")
    return given


def _of_optax(given: Any) -> bool:
    """Return True for a factory of optax, False for the schedules that its factories return."""
    module, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "<locals>")
    return str(module).startswith("optax") and "<locals>" not in name


def optimizer_of_step(protocol: Any) -> tuple[str, ServerOptimizer | None]:
    """Return the name and the value of the optimiser whose step is `step_size`, or None as its value for plain steps.

    The name is "local" for an algorithm with local work, else "server".
    """
    algorithm = getattr(protocol, "algorithm", None)
    name = "local" if hasattr(algorithm, "local") else "server"
    return name, getattr(algorithm, name, None)


def require_server_step(server_step: Any) -> None:
    """Raise Refusal unless a learning rate is None, a positive number, or a schedule (a function)."""
    if not callable(server_step):
        require_positive("server_step", server_step, optional=True)


def rates_of(server_step: Any, rounds: int) -> np.ndarray | None:
    """Return the learning rate of each round if it is a schedule, float32 [rounds], or None if it is a number.

    >>> import optax
    >>> rates_of(optax.exponential_decay(1.0, transition_steps=1, decay_rate=0.5), 3).tolist()
    [1.0, 0.5, 0.25]
    """
    if not callable(server_step):
        return None
    wanted = "server_step must be a number, or a schedule: a function from a round, from 0, to a number of at least 0"
    try:
        rates = np.asarray(jax.vmap(server_step)(np.arange(rounds)), np.float32)
    except Exception as error:
        raise Refusal(f"{wanted}, got {called(server_step)} that raises {type(error).__name__}") from error
    if rates.shape != (rounds,) or not (np.isfinite(rates) & (rates >= 0)).all():
        raise Refusal(f"{wanted}, got {rates.ravel()[:3].tolist()}")
    return rates


def _require_learning_rate(server: ServerOptimizer | None, server_step: Any) -> None:
    """Raise Refusal unless a server optimiser has exactly one learning rate, and a `server_step` has an optimiser."""
    if server is not None and server.own_step:
        if server_step is not None:
            raise Refusal(f"server_step must be left out of a server with its own step, got {called(server_step)}")
    elif (server is None) != (server_step is None):
        there = "server" if server_step is None else "server_step"
        raise Refusal(f"server and server_step must be given together, got only {there}. Set both or none")
