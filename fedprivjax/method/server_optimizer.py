r"""Optimisers: any optax transformation or schedule, applied to the direction g instead of the plain step.

    u, s ← optimiser.update(g, s, w)            w ← Π_K(w + u)

(FedAvgM, FedAdam, FedYogi: Reddi et al. 2021). At the server g is a noisy aggregate, so that its steps are
post-processing, and guarantees do not change. Optimisers that use messages before the noise would be a separate release
and are not supported. At a machine g is a local step's gradient, and the machine's message is bounded and noised as
without an optimiser. For adaptive clipping, see `AdaptiveClip`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.method import server_checks
from fedprivjax.problem.program import typed_jit

if TYPE_CHECKING:
    import optax


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, repr=False)
class ServerOptimizer:
    """An optax optimiser for server or local steps, whose real-valued settings can be swept without recompiling.

    If it is the `server` of a protocol, its b1 is swept as `over={"server.b1": [0.5, 0.9]}`; likewise "local.b1" for
    local steps. The learning rate is the protocol's step: a factory with the argument `learning_rate` receives it. The
    updates of any other factory are directions, which are multiplied by −step. A schedule's values are factors on the
    step. Changing a static setting recompiles: an integer, a flag, a name, or a number that decides a branch of an
    optax schedule.

    An optax transformation, such as `optax.adam(0.1)`, has its own step and no numbers to sweep. Its updates are
    multiplied by the protocol's step, which then defaults to 1.

    Args:
        factory: function that returns an `optax.GradientTransformation` or a schedule, such as `optax.adam`; its name,
            "adam"; or a transformation.
        settings: settings of the factory by name. Real numbers are traced by jax, so the factory must not branch on
            them.

    **Privacy**: post-processing of noisy aggregates, which changes no guarantee.

    Raises:
        Refusal: if the factory has no such setting (the message names the nearest), or `factory` is not a factory.

    >>> import optax
    >>> ServerOptimizer("adam", b1=0.8), ServerOptimizer(optax.sgd, momentum=0.9, nesterov=True)
    (ServerOptimizer(adam, b1=0.8), ServerOptimizer(sgd, momentum=0.9, nesterov=True))
    >>> ServerOptimizer("adam", b1=0.8) == ServerOptimizer(optax.adam, b1=0.8)
    True
    """

    factory: Any
    names: tuple[str, ...]
    values: tuple[Any, ...]
    fixed: tuple[tuple[str, Any], ...]

    def __init__(self, factory: Any, **settings: Any):
        factory = server_checks.factory_of(factory)
        server_checks.check_settings(factory, settings)
        numbers = {name: settings[name] for name in server_checks.traced_names(factory, settings)}
        fixed = tuple((name, settings[name]) for name in sorted(settings) if name not in numbers)
        self._fill(factory, tuple(numbers), tuple(numbers.values()), fixed)

    def _fill(self, *values: Any) -> None:
        for name, value in zip(("factory", "names", "values", "fixed"), values, strict=True):
            object.__setattr__(self, name, value)

    def tree_flatten_with_keys(self):
        """Numbers by name, and the static parts."""
        keys = map(jax.tree_util.GetAttrKey, self.names)
        return tuple(zip(keys, self.values, strict=True)), (self.factory, self.names, self.fixed)

    @classmethod
    def tree_unflatten(cls, static, values):
        """Rebuild the optimiser. Traced values are not validated."""
        factory, names, fixed = static
        made = object.__new__(cls)
        made._fill(factory, names, tuple(values), fixed)
        return made

    def filled(self, values: Sequence[Any]) -> "ServerOptimizer":
        """Return a copy with other values, in the order of `names`; they may be traced or None."""
        return self.tree_unflatten((self.factory, self.names, self.fixed), values)

    def __repr__(self) -> str:
        settings = {**dict(zip(self.names, self.values, strict=True)), **dict(self.fixed)}
        return f"ServerOptimizer({', '.join([self.name, *(f'{key}={value}' for key, value in settings.items())])})"

    @property
    def name(self) -> str:
        """Name in messages and results."""
        return server_checks.name_of(self.factory)

    @property
    def own_step(self) -> bool:
        """True for a transformation, which has its own learning rate."""
        return not callable(self.factory)

    def leaves(self) -> dict[str, Any]:
        """Numbers that can be swept, by name; None for those at the factory's default."""
        given = dict(zip(self.names, self.values, strict=True))
        free = server_checks.free_names(self.factory) - dict(self.fixed).keys()
        return {name: given.get(name) for name in sorted({*free, *given})}

    def with_values(self, values: Mapping[str, Any]) -> "ServerOptimizer":
        """Return a copy with other settings by name, such as `{"b1": 0.8}`. None means the factory's default."""
        fixed = dict(self.fixed)
        settings = {**fixed, **dict(zip(self.names, self.values, strict=True)), **values}
        given = {name: one for name, one in settings.items() if one is not None or name in fixed}
        return ServerOptimizer(self.factory, **given)

    # ---- traced

    def made(self, step: Any = 1.0) -> "optax.GradientTransformation":
        """Return the optax transformation that the factory makes, with the step as its learning rate."""
        import optax

        if self.own_step:
            return optax.chain(self.factory, optax.scale(step))
        settings = {**dict(zip(self.names, self.values, strict=True)), **dict(self.fixed)}
        if server_checks.RATE in server_checks.parameters(self.factory):
            return self.factory(**{server_checks.RATE: step}, **settings)
        made: Any = self.factory(**settings)
        return optax.chain(optax.scale_by_schedule(cast(Any, made)) if callable(made) else made, optax.scale(-step))

    def init(self, w, step) -> Any:
        """Return the state before the first round, a pytree of arrays."""
        return self.made(step).init(w)

    def step(self, state: Any, w, direction, step) -> tuple[Any, Any]:
        """Return the parameters after one step against the noisy direction, before projection, and the new state."""
        import optax

        updates, state = self.made(step).update(direction, state, w)
        return optax.apply_updates(w, updates), state

    # ---- on the host

    def check(self, params) -> None:
        """Raise Refusal if the optimiser cannot be run on parameters of these shapes.

        Raises:
            Refusal: if the factory raises an exception or does not return a transformation. The state must be a pytree
                of arrays of fixed shapes, and updates must have the shapes of the parameters.
        """
        leaves, tree = jax.tree.flatten(params)
        server_checks.check_runs(self._blank, tuple(np.shape(leaf) for leaf in leaves), tree)

    def mean_length(self, params, norm: float, rounds: int) -> float:
        """Return the mean length of the updates in `rounds` rounds at learning rate 1, along one fixed direction.

        Raises:
            Refusal: as in `check`.

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
        """Copy with the static parts only, which is hashable."""
        return self.filled([None] * len(self.names))


@typed_jit(static_argnames="blank")
def _mean_length(numbers, params, norm, rounds, blank: ServerOptimizer):
    """Compute `ServerOptimizer.mean_length`. A change of the number of rounds does not recompile."""
    server = blank.filled(numbers)
    params = jax.tree.map(jnp.asarray, params)
    flat, unravel = ravel_pytree(params)
    direction = unravel(jnp.full_like(flat, norm / jnp.sqrt(flat.size)))

    def one(_, carry):
        state, total = carry
        updates, state = server.made().update(direction, state, params)
        return state, total + jnp.linalg.norm(ravel_pytree(updates)[0])

    state = server.init(params, 1.0)
    return jax.lax.fori_loop(0, rounds, one, (state, jnp.zeros(())))[1] / rounds
