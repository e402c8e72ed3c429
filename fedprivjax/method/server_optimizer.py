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

    An optimiser is the value of a protocol's setting: `server` for the server's steps, or `local` for local steps. The
    name of this setting is a prefix in sweeps. For example, `over={"server.b1": [0.5, 0.9]}` sweeps the argument b1 of
    `optax.adam` at the server.

    The use of the protocol's step size depends on `factory`, the function that makes the optimiser:

    * If `factory` has an argument `learning_rate`, as `optax.adam` has, the learning rate is the step size.
    * If `factory` returns a schedule, the step size is multiplied by the values of the schedule.
    * If `factory` returns any other transformation, its updates are multiplied by minus the step size.
    * If `factory` is itself a transformation, such as `optax.adam(0.1)`, its updates are multiplied by the step size.
      Leave out `step_size`, which is then 1, and change the steps by `step_scale`. Such a transformation has no numbers
      to sweep.

    Some methods with local steps have a setting `server_step`, which replaces the step size at the server. In these
    methods, `step_size` is the step size of the local steps. If the setting `server` is itself a transformation, leave
    out `server_step`. The updates of `server` are then used unchanged.

    Args:
        factory: function that returns an `optax.GradientTransformation` or a schedule, such as `optax.adam`; its name,
            such as "adam"; or a transformation.
        settings: settings of the factory by name. Real numbers are traced by jax, so the factory must not branch on
            them.

    **Privacy**: an optimiser does not change guarantees.

    Raises:
        Refusal: if `factory` does not have one of the settings, or is neither a factory nor a transformation.

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

    def __init__(self, factory: Any, /, **settings: Any):  # a factory may have an argument `factory`
        factory = server_checks.factory_of(factory)
        server_checks.check_settings(factory, settings)
        numbers = {name: settings[name] for name in server_checks.traced_names(factory, settings)}
        fixed = tuple((name, settings[name]) for name in sorted(settings) if name not in numbers)
        self._fill(factory, tuple(numbers), tuple(numbers.values()), fixed)

    def _fill(self, *values: Any) -> None:
        for name, value in zip(("factory", "names", "values", "fixed"), values, strict=True):
            object.__setattr__(self, name, value)

    def tree_flatten_with_keys(self):
        """Return what `jax.tree_util` needs to flatten the optimiser: numbers by name, and static data."""
        keys = map(jax.tree_util.GetAttrKey, self.names)
        return tuple(zip(keys, self.values, strict=True)), (self.factory, self.names, self.fixed)

    @classmethod
    def tree_unflatten(cls, static, values):
        """Return the optimiser with the given static data and numbers, the inverse of flattening.

        The numbers are not validated, because they may be traced.
        """
        factory, names, fixed = static
        made = object.__new__(cls)
        made._fill(factory, names, tuple(values), fixed)
        return made

    def filled(self, values: Sequence[Any]) -> "ServerOptimizer":
        """Return a copy with other numbers.

        Args:
            values: new numbers in the order of `names`, the names of the real-valued settings. They may be traced or
                None.
        """
        return self.tree_unflatten((self.factory, self.names, self.fixed), values)

    def __repr__(self) -> str:
        settings = {**dict(zip(self.names, self.values, strict=True)), **dict(self.fixed)}
        return f"ServerOptimizer({', '.join([self.name, *(f'{key}={value}' for key, value in settings.items())])})"

    @property
    def name(self) -> str:
        """Name of the optimiser in error messages and results, such as "adam"."""
        return server_checks.name_of(self.factory)

    @property
    def own_step(self) -> bool:
        """True if the optimiser is a transformation that is already made and so has its own learning rate."""
        return not callable(self.factory)

    def leaves(self) -> dict[str, Any]:
        """Return the numbers that can be swept, by name, such as `{"b1": 0.8, "b2": None}` for Adam.

        None stands for a number that was not given. The optax function that makes the optimiser, such as `optax.adam`,
        then uses its default.
        """
        given = dict(zip(self.names, self.values, strict=True))
        free = server_checks.free_names(self.factory) - dict(self.fixed).keys()
        return {name: given.get(name) for name in sorted({*free, *given})}

    def with_values(self, values: Mapping[str, Any]) -> "ServerOptimizer":
        """Return a copy with other settings.

        Args:
            values: new settings by name, such as `{"b1": 0.8}`. Other settings stay. None stands for the default of the
                optax function that makes the optimiser, such as `optax.adam`.
        """
        fixed = dict(self.fixed)
        settings = {**fixed, **dict(zip(self.names, self.values, strict=True)), **values}
        given = {name: one for name, one in settings.items() if one is not None or name in fixed}
        return ServerOptimizer(self.factory, **given)

    # ---- traced

    def made(self, step: Any = 1.0) -> "optax.GradientTransformation":
        """Return the optax transformation for a step size. Its updates are added to the parameters.

        * If `factory` has an argument `learning_rate`, as `optax.adam` has, the learning rate is the step size.
        * If `factory` returns a schedule, the updates are minus the step size times the schedule times the gradient.
        * If `factory` returns any other transformation, its updates are multiplied by minus the step size.
        * If `factory` is itself a transformation, such as `optax.adam(0.1)`, its updates are multiplied by the step
          size.

        Args:
            step: step size.
        """
        import optax

        if self.own_step:
            return optax.chain(self.factory, optax.scale(step))
        settings = {**dict(zip(self.names, self.values, strict=True)), **dict(self.fixed)}
        if server_checks.RATE in server_checks.parameters(self.factory):
            return self.factory(**{server_checks.RATE: step}, **settings)
        made: Any = self.factory(**settings)
        return optax.chain(optax.scale_by_schedule(cast(Any, made)) if callable(made) else made, optax.scale(-step))

    def init(self, w, step) -> Any:
        """Return the optimiser's state before its first step, a pytree of arrays.

        Args:
            w: parameters.
            step: step size.
        """
        return self.made(step).init(w)

    def step(self, state: Any, w, direction, step) -> tuple[Any, Any]:
        """Return the parameters after one step, before any projection, and the optimiser's next state.

        Args:
            state: the optimiser's state before the step.
            w: parameters before the step.
            direction: vector that takes the place of the gradient, such as a noisy mean gradient.
            step: step size.
        """
        import optax

        updates, state = self.made(step).update(direction, state, w)
        return optax.apply_updates(w, updates), state

    # ---- on the host

    def check(self, params) -> None:
        """Raise Refusal if the optimiser cannot be run on parameters of these shapes.

        Args:
            params: parameters, of which only the shapes matter.

        Raises:
            Refusal: if `factory`, the function that makes the optimiser, raises an exception or returns no optax
                transformation or schedule. It is also raised if the optimiser's state is not a pytree of arrays of
                fixed shapes, or if updates and parameters differ in shape.
        """
        leaves, tree = jax.tree.flatten(params)
        server_checks.check_runs(self._blank, tuple(np.shape(leaf) for leaf in leaves), tree)

    def mean_length(self, params, norm: float, rounds: int) -> float:
        """Return the mean L2 norm of the optimiser's updates in a run in which all gradients are equal.

        The learning rate is 1. The default step size with an optimiser is the default of plain steps, multiplied by
        `norm` and divided by this mean norm. A run with the optimiser then moves as far as a run with plain steps.

        Args:
            params: parameters, of which only the shapes matter.
            norm: L2 norm of the gradient, whose coordinates are all equal.
            rounds: number of steps.

        Raises:
            Refusal: if the optimiser cannot be run on parameters of these shapes.

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
