"""Base of methods whose machines do local work or keep a state: gathering, vmapping, masking and scattering.

A method says what one machine holds (`client_init`), what it computes (`client`), and what the server does with the sum
of the messages (`serve`). Machines that are absent or drop out keep their state and send nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.interface import Protocol, slot_keys
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.method.round import CHUNK_FLOATS, RoundInputs
from fedprivjax.plan.samplers import LocalWork
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem

LIVE_VECTORS = 4  # vectors of parameters that a machine's local step holds at once


class ClientState(NamedTuple):
    """State of the server, and of every machine, leaves [machines, ...]."""

    server: Any
    own: Any


class ClientMethod(Protocol):
    """A method with local work or client state. It defines `server_init`, `client`, `serve`, and `output`.

    Its `minibatches` are `LocalWork`. `output`, `query` and `iterates` receive the `ClientState`.
    """

    uneven: Any = True  # False if all machines take equally many local steps, so that none is skipped

    # ---- what a method defines

    def server_init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        """Return the server's state before the first round, a pytree."""
        raise Undefined(f"{self.name} must define server_init(problem, size, key)")

    def client_init(self, problem: Problem) -> Any:
        """Return what one machine holds before its first round, a pytree. Default: (), nothing."""
        return ()

    def client(self, server: Any, own: Any, data: LocalData, noise: Any, key: jax.Array) -> tuple[Any, Any, dict]:
        """Return one machine's message, its new state, and scalars of its round by name.

        Args:
            server: the server's state, which all machines of the round read.
            own: what the machine holds.
            data: its minibatches, with their gradients.
            noise: the machine's part of noise inside its computation, from `client_noise`, or None.
            key: key of the machine's own randomness in this round.
        """
        raise Undefined(f"{self.name} must define client(server, own, data, noise, key)")

    def client_weight(self, data: LocalData) -> Any:
        """Return the weight of a machine's message in the sum. Default: 1."""
        return 1.0

    def serve(self, problem: Problem, server: Any, total: Any, weight: Any, inputs: RoundInputs, noise: Any) -> Any:
        """Return the server's state after a round.

        Args:
            total: weighted sum of the messages of the machines that send, with the structure of one message.
            weight: sum of their weights, 0 if none sends. Use `inputs.divisor` for a divisor that is the same in all
                rounds.
            noise: the round's noise as `noise` returns it, or None.
        """
        raise Undefined(f"{self.name} must define serve(problem, server, total, weight, inputs, noise)")

    def client_noise(self, noise: Any, per_round: int) -> Any:
        """Return each participant's noise inside its computation, leaves [per_round, ...], or None. Default: None."""
        return None

    # ---- the round

    def init(self, problem: Problem, size: Size, key) -> ClientState:
        own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size.machines, *leaf.shape)), self.client_init(problem))
        return ClientState(self.server_init(problem, size, key), own)

    def round(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[ClientState, dict]:
        slots = self.slots(inputs, noise, key)
        sums, _ = jax.eval_shape(lambda slots: self._cohort(problem, state.server, state.own, slots), slots)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)

        def some(carry, slots):
            sums, own = carry
            more, own = self._cohort(problem, state.server, own, slots)
            return (jax.tree.map(jnp.add, sums, more), own), None

        together = rows_together(problem)
        if together >= inputs.filled.shape[0]:
            (sums, own), _ = some((zeros, state.own), slots)
        else:
            (sums, own), _ = scan_in_chunks(some, (zeros, state.own), slots, together)
        total, weight, info = sums
        present = jnp.maximum(jnp.sum(inputs.filled), 1.0)
        server = self.serve(problem, state.server, total, weight, inputs, noise)
        return ClientState(server, own), jax.tree.map(lambda value: value / present, info)

    def messages(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """The participants' messages without the noise that is added to them, leaves [per_round, ...]."""
        return self._work(problem, state.server, state.own, self.slots(inputs, noise, key))[0]

    def slots(self, inputs: RoundInputs, noise: Any, key: jax.Array) -> tuple[RoundInputs, Any, jax.Array]:
        """Return what every participant receives: inputs, noise inside its computation, and key; [per_round, ...]."""
        per_round = inputs.filled.shape[0]
        own = inputs._replace(round=None, expected=None, present=inputs.filled)
        return own, self.client_noise(noise, per_round), slot_keys(key, per_round)

    def _cohort(self, problem: Problem, server: Any, own: Any, slots: tuple[RoundInputs, Any, jax.Array]):
        """Return the participants' sums (weighted messages, weights, scalars), and all machines' states after them."""
        messages, after, weights, info = self._work(problem, server, own, slots)
        total = jax.tree.map(lambda rows: jnp.tensordot(weights, rows, axes=(0, 0)), messages)
        own = jax.tree.map(lambda rows, new: written(rows, slots[0], new), own, after)
        return (total, jnp.sum(weights), jax.tree.map(jnp.sum, info)), own

    def _work(self, problem: Problem, server: Any, own: Any, slots: tuple[RoundInputs, Any, jax.Array]):
        """Return messages, new states, weights and scalars of participants, leaves [slots, ...]; 0 of absent ones."""

        def one(inputs: RoundInputs, noise, key):
            mine, data = jax.tree.map(lambda rows: rows[inputs.machine], own), self.local_data(problem, inputs)
            message, after, info = self.client(server, mine, data, noise, key)
            weight = jnp.asarray(self.client_weight(data), jnp.float32)
            present = jax.tree.map(lambda leaf: jnp.where(inputs.present > 0, leaf, 0.0), (message, weight, info))
            return present[0], after, *present[1:]

        return jax.vmap(one)(*slots)

    def local_data(self, problem: Problem, inputs: RoundInputs) -> LocalData:
        """Return one participant's minibatches, from its part of the round's inputs."""
        work = self.minibatches
        assert isinstance(work, LocalWork)
        samples, weights = (rows.reshape(work.cut(rows.size), -1) for rows in (inputs.samples, inputs.weights))
        return LocalData(problem, samples, weights, inputs.machine, skips=self.uneven)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return LIVE_VECTORS * min(size.per_round, rows_together(problem)) + super().vectors_in_memory(
            problem, size, rows
        )


def rows_together(problem: Problem) -> int:
    """Return the number of machines whose local work is computed at once."""
    return max(1, CHUNK_FLOATS // (LIVE_VECTORS * problem.dimension))


def written(rows, inputs: RoundInputs, new):
    """Return the rows [machines, ...] with the new ones of the participants that are present."""
    machine = jnp.where(inputs.present > 0, inputs.machine, rows.shape[0])  # out of range: nothing is written
    return rows.at[machine].set(new, mode="drop")
