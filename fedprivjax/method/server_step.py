"""What a protocol calls whose server may have an optimiser: the plain step, where it has none."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import jax

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.problem.problem import Problem


def initial(server: ServerOptimizer | None, w, step) -> Any:
    """The optimiser's state before the first round; nothing without one."""
    return () if server is None else server.init(w, step)


def stepped(server: ServerOptimizer | None, state: Any, w, direction, step) -> tuple[Any, Any]:
    """w after the server's step, before the projection, and the optimiser's state."""
    if server is None:
        return jax.tree.map(lambda w, g: w - step * g, w, direction), state
    return server.step(state, w, direction, step)


def scaled_step(server: ServerOptimizer | None, plain: float, problem: Problem, rounds: int, norm: float) -> float:
    r"""The plain step's equal for a server's optimiser: that at which a constant direction leads as far in T rounds.

        step = plain · ‖g‖ / ((1/T)·Σ_t ‖u_t‖),   u_t the updates at learning rate 1 along g of equal coordinates

    So momentum's is (1 − β) times the plain one, but for its first rounds, and Adam's plain·‖g‖/√d: with the step
    D/(√T·‖g‖) of SGD, each round moves a coordinate by D/√(T·d). All of it is public.

    Args:
        norm: ‖g‖ that the plain step counts with, of the bound and the noise: √(G² + d·σ²).

    Raises:
        Refusal: an optimiser whose updates do not follow its learning rate and direction: no step can be told.
    """
    if server is None or not (isfinite(plain) and isfinite(norm)):
        return plain
    length = server.mean_length(problem.start, norm, rounds)
    if not (isfinite(length) and length > 0):
        raise Refusal(f"step_size must be given with {server}: along a constant direction its updates are {length:g}")
    return plain * norm / length


def require_server(server: Any) -> None:
    """Refuse what is plainly no `ServerOptimizer`; what a tree transformation puts in its place passes."""
    wrong = isinstance(server, str | Mapping | int | float | tuple) or callable(server)
    if wrong:
        given = "an optimiser with a step of its own" if isinstance(server, tuple) else called(server)
        raise Refusal(f"server must be a ServerOptimizer, such as ServerOptimizer(optax.adam, b1=0.9), got {given}")


def check_server(server: ServerOptimizer | None, problem: Problem) -> None:
    """Refuse an optimiser that cannot be run on a problem's parameters."""
    if server is not None:
        server.check(problem.start)
