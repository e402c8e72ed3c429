r"""What a server makes of a noisy aggregate g: any optimiser of optax's, in place of the plain step.

    u, s ← optimiser.update(g, s, w)            w ← Π_K(w + u)

(FedAvgM, FedAdam, FedYogi: Reddi et al. 2021). It sees g after the noise alone, and points that are made of such g:
post-processing, so that no guarantee changes. What looks at messages before the noise, as adaptive clipping does, is a
release of its own, and cannot be done here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.method.server_checks import (
    RATE,
    check_runs,
    check_settings,
    factory_of,
    free_names,
    is_number,
    name_of,
    parameters,
)

if TYPE_CHECKING:
    import optax


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, repr=False)
class ServerOptimizer:
    """An optimiser's factory, which is static, and its settings, of which real numbers are leaves that can be swept.

    Where it is the `server` of a protocol, its b1 is swept as `over={"server.b1": [0.5, 0.9]}`, in one program. The
    learning rate is the protocol's step: a factory that takes a `learning_rate` is called with it, and the updates of
    any other are directions, of which −step times is taken. Settings that are integers, flags or names fix the program.

    Args:
        factory: what gives an `optax.GradientTransformation`, such as `optax.adam`, or its name in optax, "adam".
        settings: of the factory, by name; real numbers are traced, so that it must not branch on them.

    **Privacy**: post-processing of what is noisy already. It changes no guarantee.

    Raises:
        Refusal: a setting that the factory has not (the nearest is named), or no factory.

    >>> import optax
    >>> ServerOptimizer("adam", b1=0.8), ServerOptimizer(optax.sgd, momentum=0.9, nesterov=True)
    (ServerOptimizer(adam, b1=0.8), ServerOptimizer(sgd, momentum=0.9, nesterov=True))
    >>> ServerOptimizer("adam", b1=0.8) == ServerOptimizer(optax.adam, b1=0.8)
    True
    """

    factory: Callable[..., "optax.GradientTransformation"]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    fixed: tuple[tuple[str, Any], ...]

    def __init__(self, factory: "Callable[..., optax.GradientTransformation] | str", **settings: Any):
        factory = factory_of(factory)
        check_settings(factory, settings)
        numbers = {name: settings[name] for name in sorted(settings) if is_number(settings[name])}
        fixed = tuple((name, settings[name]) for name in sorted(settings) if name not in numbers)
        self._fill(factory, tuple(numbers), tuple(numbers.values()), fixed)

    def _fill(self, *values: Any) -> None:
        for name, value in zip(("factory", "names", "values", "fixed"), values, strict=True):
            object.__setattr__(self, name, value)

    def tree_flatten_with_keys(self):
        """Numbers by name, and what is static."""
        keys = map(jax.tree_util.GetAttrKey, self.names)
        return tuple(zip(keys, self.values, strict=True)), (self.factory, self.names, self.fixed)

    @classmethod
    def tree_unflatten(cls, static, values):
        """As they were: what is traced is not checked."""
        factory, names, fixed = static
        made = object.__new__(cls)
        made._fill(factory, names, tuple(values), fixed)
        return made

    def filled(self, values: Sequence[Any]) -> "ServerOptimizer":
        """The same with other values in the order of `names`, traced or none."""
        return self.tree_unflatten((self.factory, self.names, self.fixed), values)

    def __repr__(self) -> str:
        settings = {**dict(zip(self.names, self.values, strict=True)), **dict(self.fixed)}
        return f"ServerOptimizer({', '.join([self.name, *(f'{key}={value}' for key, value in settings.items())])})"

    @property
    def name(self) -> str:
        """What refusals and results call it."""
        return name_of(self.factory)

    def leaves(self) -> dict[str, Any]:
        """Numbers that can be swept, by name; None where one is left at the factory's default."""
        given = dict(zip(self.names, self.values, strict=True))
        free = free_names(self.factory) - dict(self.fixed).keys()
        return {name: given.get(name) for name in sorted({*free, *given})}

    def with_values(self, values: Mapping[str, Any]) -> "ServerOptimizer":
        """The same with other numbers; None leaves one at the factory's default."""
        settings = {**dict(self.fixed), **dict(zip(self.names, self.values, strict=True)), **values}
        fixed = dict(self.fixed)
        return ServerOptimizer(
            self.factory, **{name: one for name, one in settings.items() if one is not None or name in fixed}
        )

    # ---- traced

    def made(self, step) -> "optax.GradientTransformation":
        """The transformation whose learning rate is the step."""
        import optax

        settings = {**dict(zip(self.names, self.values, strict=True)), **dict(self.fixed)}
        if RATE in parameters(self.factory):
            return self.factory(**{RATE: step}, **settings)
        return optax.chain(self.factory(**settings), optax.scale(-step))

    def init(self, w, step) -> Any:
        """The state before the first round, a pytree of arrays."""
        return self.made(step).init(w)

    def step(self, state: Any, w, direction, step) -> tuple[Any, Any]:
        """w after one step against the noisy direction, before any projection, and the state."""
        import optax

        updates, state = self.made(step).update(direction, state, w)
        return optax.apply_updates(w, updates), state

    # ---- on the host

    def check(self, params) -> None:
        """Refuse an optimiser that cannot be run on parameters of such shapes.

        Raises:
            Refusal: no transformation, a state that is no pytree of arrays or changes its shape, updates of other
                shapes, or an exception of its own.
        """
        leaves, tree = jax.tree.flatten(params)
        check_runs(self._blank, tuple(np.shape(leaf) for leaf in leaves), tree)

    def mean_length(self, params, norm: float, rounds: int) -> float:
        """The mean length of T updates at learning rate 1 along one constant direction of a norm.

        Raises:
            Refusal: as `check`.

        >>> round(ServerOptimizer("adam").mean_length(np.zeros(100), 3.0, 50), 3), round(
        ...     ServerOptimizer("sgd").mean_length(np.zeros(100), 3.0, 50), 3
        ... )
        (10.0, 3.0)
        """
        self.check(params)
        numbers = tuple(np.float32(value) for value in self.values)
        return float(_mean_length(numbers, params, np.float32(norm), np.int32(rounds), self._blank))

    @property
    def _blank(self) -> "ServerOptimizer":
        """What is static alone, which is hashable."""
        return self.filled([None] * len(self.names))


@partial(jax.jit, static_argnames="blank")
def _mean_length(numbers, params, norm, rounds, blank: ServerOptimizer):
    """`ServerOptimizer.mean_length`; another number of rounds is no other program."""
    server = blank.filled(numbers)
    params = jax.tree.map(jnp.asarray, params)
    flat, unravel = ravel_pytree(params)
    direction = unravel(jnp.full_like(flat, norm / jnp.sqrt(flat.size)))

    def one(_, carry):
        state, total = carry
        updates, state = server.made(1.0).update(direction, state, params)
        return state, total + jnp.linalg.norm(ravel_pytree(updates)[0])

    state = server.init(params, 1.0)
    return jax.lax.fori_loop(0, rounds, one, (state, jnp.zeros(())))[1] / rounds
