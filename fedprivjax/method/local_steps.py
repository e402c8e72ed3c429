"""Base of methods that average local steps: a machine's steps, and the server's step and state."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.method.client_method import ClientMethod, ClientState
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.minibatch_round import appended, mean_of, room
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.server_step import initial, rates_of, stepped
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem


class ServerState(NamedTuple):
    """Iterate w_r, the last `window` iterates or None, the server optimiser's state, and C_r if it is adaptive."""

    w: Any
    last: Any
    optimizer: Any
    clip: Any = None


class AveragedSteps(ClientMethod):
    """A method whose machines take gradient steps from the server's point.

    Subclasses have the settings `step_size`, `step_scale`, `clip`, `server`, `server_step` and `window`.

    Attributes:
        server_steps: learning rate of each round, [rounds], if `server_step` is a schedule, which calibration sets.
        prox: ρ of a proximal term, or None.
        divisor: divisor of a step's sum of gradients, or None for its number of records.
    """

    step_size: Any
    step_scale: Any
    clip: Any
    server: Any
    server_step: Any
    server_steps: Any
    window: Any

    prox: Any = None
    divisor: Any = None

    def server_init(self, problem: Problem, size: Size, key) -> Any:
        w = problem.start
        last = room(w, self.window) if self.window and self.window > 1 else None
        return ServerState(w, last, initial(self.server, w, self.learning_rate))

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the server: a number, or an array [rounds] for a schedule."""
        return self.server_step if self.server_steps is None else self.server_steps

    @property
    def traced(self):
        """Copy as in `Protocol.traced`. A schedule is replaced by its numbers."""
        return super().traced if self.server_steps is None else replace(super().traced, server_step=None)  # type: ignore[type-var]

    def fitted(self, problem: Problem, plan: Plan):
        """Return a copy as in `ClientMethod.fitted`, with the learning rate of each round."""
        rates = rates_of(self.server_step, plan.size.rounds)
        return replace(super().fitted(problem, plan), server_steps=rates)  # type: ignore[type-var]

    def step_noise(self, noise: Any, step: Any, dimension: int) -> jax.Array | None:
        """Return the noise in the gradient of a machine's local step, [d], or None. Default: None.

        Args:
            noise: the machine's noise as `walk` received it.
            step: number of the step, from 0.
        """
        return None

    def walk(self, w, data: LocalData, noise, *, correction: Any = None, every_step: bool = False):
        """Return a machine's end point, and the mean of its steps' gradients (with noise) or None.

        Args:
            w: start of the local steps.
            noise: the machine's noise, for `step_noise`.
            correction: direction that is added to every gradient, or None. With it, the mean is computed.
            every_step: True to return the moves, leaves [K, ...], and their noises, [K, d] or None, instead of the
                mean.
        """
        step, problem = self.step_scale * self.step_size, data.problem

        def one(carry, minibatch):
            v, total = carry
            g = minibatch.gradient(v, divisor=self.divisor, clip=self.clip)
            z = self.step_noise(noise, minibatch.step, problem.dimension)
            g = g if z is None else jax.tree.map(jnp.add, g, problem.unravel(z))
            if correction is not None:
                total = jax.tree.map(jnp.add, total, g)
                g = jax.tree.map(jnp.add, g, correction)
            g = g if self.prox is None else jax.tree.map(lambda g, v, w: g + self.prox * (v - w), g, v, w)
            after = problem.constraint.project(jax.tree.map(lambda v, g: v - step * g, v, g))
            return (after, total), (jax.tree.map(jnp.subtract, after, v), z) if every_step else None

        total = None if correction is None else jax.tree.map(jnp.zeros_like, w)
        (end, total), moves = data.scan(one, (w, total))
        steps = jnp.maximum(data.steps, 1.0)
        return end, moves if every_step or correction is None else jax.tree.map(lambda leaf: leaf / steps, total)

    def moved(self, problem: Problem, server: ServerState, mean) -> ServerState:
        """The server's state after its step along the mean update."""
        step = 1.0 if self.server is None else self.learning_rate
        w, optimizer = stepped(self.server, server.optimizer, server.w, jax.tree.map(jnp.negative, mean), step)
        w = problem.constraint.project(w)
        return server._replace(w=w, last=appended(server.last, w), optimizer=optimizer)

    def moves(self, server, own, data: LocalData, noise) -> tuple[Any, Any]:
        """Every local step of a machine, leaves [K, ...], and its noise, [K, d] or None.

        Arguments are those of `client`.
        """
        return self.walk(server.w, data, noise, every_step=True)[1]

    def noisy_steps(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Differences v_k − v_{k−1} of every local step, leaves [per_round, K, ...]."""
        return self._every_step(problem, state, inputs, noise, key)[0]

    def step_noises(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Noise in the gradient of every local step, [per_round, K, d], or None."""
        return self._every_step(problem, state, inputs, noise, key)[1]

    def _every_step(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[Any, Any]:
        """Return every local step, leaves [per_round, K, ...], and its noise, [per_round, K, d] or None."""
        shared = self.shared(state.server, noise)

        def one(inputs, noise, key):
            own = jax.tree.map(lambda rows: rows[inputs.machine], state.own)
            return self.moves(shared, own, self.local_data(problem, inputs), noise)

        return jax.vmap(one)(*self.slots(inputs, noise, key))

    def at_server(self, state: ClientState) -> ServerState:
        """The server's part of a run's state."""
        return state.server

    def output(self, state: ClientState):
        server = self.at_server(state)
        return server.w if self.window == 1 else mean_of(server.last)

    def query(self, state: ClientState):
        """The point at which machines start."""
        return self.at_server(state).w
