"""Base of methods whose machines do local work or keep a state: gathering, vmapping, masking and scattering.

A method says what one machine holds (`client_init`), what it computes (`client`), and what the server does with the sum
of the messages (`serve`). Machines that are absent or drop out keep their state and send nothing.
"""

from dataclasses import replace
from itertools import pairwise
from math import nan
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.client_checks import (
    require_message,
    require_result,
    require_scalars,
    require_state,
)
from fedprivjax.method.division import gathered, own_records, part_of, part_of_size, to_holders, whole
from fedprivjax.method.interface import Protocol, slot_keys
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.method.round import CHUNK_FLOATS, RoundInputs
from fedprivjax.method.seen import clipped_rows, costs_of
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size, class_sizes, idle_share
from fedprivjax.privacy.target import Target
from fedprivjax.problem.devices import added, devices
from fedprivjax.problem.problem import Problem

ENCODING = 2**32 - 1  # number that a machine's key is folded with for its encoding
SERVER = 2**32 - 2  # number that a round's key is folded with for the server
LIVE_VECTORS = 4  # vectors of parameters that a machine's local step holds at once


class ClientState(NamedTuple):
    """State of the server, and of every machine, leaves [machines, ...].

    On several devices, each holds the leaves of a block of the machines, with further rows to make the blocks equal.
    """

    server: Any
    own: Any


@struct.dataclass
class Split:
    """A setting that is not the user's: calibration sets it.

    Attributes:
        slot_classes: number of slots of every class of machines that are computed together, the longest first, see
            `fedprivjax.plan.schedule`; () if all machines take equally many steps, None if unknown.
    """

    slot_classes: Any = struct.field(pytree_node=False, default=None, kw_only=True, metadata={"derived": True})


class ClientMethod(Split, Protocol):
    """A method with local work or client state. It defines `server_init`, `client`, `serve`, and `output`.

    Its `minibatches` are `LocalWork`; with another sampler, every record is a local step. `output`, `query` and
    `iterates` receive the `ClientState`.

    If machines take unequal numbers of local steps, a round's slots are sorted by them and computed in a few classes,
    each as long as its longest machine of the round. Keys and noise belong to the slot before sorting.

    FedAvg without privacy, in which a machine counts its rounds:

    >>> from fedprivjax import GaussianEvent, Grouped, LocalEpochs, Terms, Uniform, datasets, from_dataset, simulate
    >>> @struct.dataclass
    ... class Averaged(ClientMethod):
    ...     noise_std: Any = 0.0
    ...     step_size: Any = 0.05
    ...     minibatches = LocalEpochs(1, 10)
    ...
    ...     def server_init(self, problem, size, key):
    ...         return problem.start
    ...
    ...     def client_init(self, problem):
    ...         return jnp.zeros(())
    ...
    ...     def client(self, server, own, data, noise, key):
    ...         def step(w, minibatch):
    ...             return jax.tree.map(lambda w, g: w - self.step_size * g, w, minibatch.gradient(w)), None
    ...
    ...         return data.scan(step, server)[0], own + 1, {}
    ...
    ...     def serve(self, problem, server, total, weight, inputs, noise):
    ...         return jax.tree.map(lambda leaf: leaf / weight, total)
    ...
    ...     def output(self, state):
    ...         return state.server
    ...
    ...     def event(self, problem, plan):
    ...         return GaussianEvent(0.0, np.inf, Grouped.of(plan.schedule.total > 0), Terms("none", "none"))
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> run = simulate(Averaged(), problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

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
            server: what all machines of the round read, from `shared`. Default: the server's state.
            own: what the machine holds.
            data: its minibatches, with their gradients.
            noise: the machine's part of noise inside its computation, from `client_noise`, or None.
            key: key of the machine's own randomness in this round.
        """
        raise Undefined(f"{self.name} must define client(server, own, data, noise, key)")

    def encode(self, message: Any, key: jax.Array) -> Any:
        """Return what the server reads from a machine's message once it is encoded. Default: the message.

        The message has the noise that `client` adds. The server sums encoded messages, so they have its structure.
        A method that overrides this gives their size by `message_bits`. Noise of a trusted server must account for the
        norm of encoded messages, see `Encoder.norm_bound`.
        """
        return message

    def client_weight(self, data: LocalData) -> Any:
        """Return the weight of a machine's message in the sum, which changes its sensitivity. Default: 1."""
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

    def shared(self, server: Any, noise: Any) -> Any:
        """Return what all machines of a round read, from the server's state and the round's noise. Default: the state.

        It is the first argument of `client`.
        """
        return server

    def client_noise(self, noise: Any, per_round: int) -> Any:
        """Return each participant's noise inside its computation, leaves [per_round, ...], or None. Default: None."""
        return None

    # ---- the round

    def init(self, problem: Problem, size: Size, key) -> ClientState:
        mine = jax.tree.map(jnp.asarray, self.client_init(problem))
        held = part_of_size(size, devices()).machines
        own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (held, *leaf.shape)), mine)
        return ClientState(self.server_init(problem, size, key), own)

    def round(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[ClientState, dict]:
        slots = self.slots(inputs, noise, key)
        if self.uneven:
            order = jnp.argsort(-self.steps(slots[0]))
            slots = jax.tree.map(lambda leaf: leaf[order], slots)
        sums, own = self._sums(problem, self.shared(state.server, noise), slots, state.own)
        total, weight, info = added(sums)
        present = jnp.maximum(jnp.sum(inputs.filled), 1.0)
        server = self._served(problem, state.server, total, weight, inputs, noise, key)
        return ClientState(server, own), jax.tree.map(lambda value: value / present, info)

    def _served(self, problem: Problem, server: Any, total: Any, weight: Any, inputs: RoundInputs, noise: Any, key):
        """Return the result of `serve`, which has no key of its own."""
        return self.serve(problem, server, total, weight, inputs, noise)

    def _sums(self, problem: Problem, server: Any, slots: tuple[RoundInputs, Any, jax.Array], own: Any):
        """Return the sums over the slots (weighted messages, weights, scalars), and all machines' states after them.

        On several devices, those of the part of the slots that this device computes, and of the machines that it holds.
        """
        sums, _ = jax.eval_shape(lambda slots: self._cohort(problem, server, own, slots), slots)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)

        def some(carry, slots):
            sums, own = carry
            more, own = self._cohort(problem, server, own, slots)
            return (jax.tree.map(jnp.add, sums, more), own), None

        carry, together = (zeros, own), self.slots_together(problem, slots[0].present.shape[0])
        for first, last in pairwise(np.cumsum((0, *self._classes(slots[0].present.shape[0])))):
            part = jax.tree.map(lambda leaf: leaf[first:last], slots)  # noqa: B023
            (inputs, *others), present = part_of(part, part[0].present)
            part, size = (inputs._replace(present=present), *others), present.shape[0]
            carry, _ = some(carry, part) if size <= together else scan_in_chunks(some, carry, part, together)
        return carry

    def messages(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """The participants' messages without the noise that is added to them, leaves [per_round, ...]."""
        slots = self.slots(inputs, noise, key)
        return self._work(problem, self.shared(state.server, noise), self._states(state.own, slots[0]), slots)[0]

    def slots(self, inputs: RoundInputs, noise: Any, key: jax.Array) -> tuple[RoundInputs, Any, jax.Array]:
        """Return what every participant receives: inputs, noise inside its computation, key, each [per_round, ...]."""
        per_round = inputs.filled.shape[0]
        own = inputs._replace(round=None, expected=None, present=inputs.filled)
        return own, self.client_noise(noise, per_round), slot_keys(key, per_round)

    def _cohort(self, problem: Problem, server: Any, own: Any, slots: tuple[RoundInputs, Any, jax.Array]):
        """Return the participants' sums (weighted messages, weights, scalars), and all machines' states after them."""
        longest = jnp.max(self.steps(slots[0])) if self.uneven else None
        messages, after, weights, info = self._work(problem, server, self._states(own, slots[0]), slots, longest)
        total = jax.tree.map(lambda rows: jnp.tensordot(weights, rows, axes=(0, 0), precision="highest"), messages)
        if jax.tree.leaves(own):
            machines = jax.tree.leaves(own)[0].shape[0]
            after, machine, present = to_holders(after, slots[0].machine, slots[0].present, machines)
            own = jax.tree.map(lambda rows, new: written(rows, machine, present, new), own, after)
        return (total, jnp.sum(weights), jax.tree.map(jnp.sum, info)), own

    def _states(self, own: Any, inputs: RoundInputs) -> Any:
        """Return the states of a round's slots, leaves [slots, ...], from those of all machines."""
        return gathered(own, inputs.machine, inputs.present)

    def _work(self, problem: Problem, server: Any, held: Any, slots: tuple[RoundInputs, Any, jax.Array], longest=None):
        """Return participants' messages, new states, weights and scalars, leaves [slots, ...], 0 if absent.

        Args:
            held: the slots' states, leaves [slots, ...].
            longest: number of local steps after which no slot takes another, or None if unknown.
        """

        pool, samples = own_records(problem.pool, slots[0].samples, slots[0].machine)
        slots = slots[0]._replace(samples=samples), *slots[1:]

        def one(mine, pool, inputs: RoundInputs, noise, key):
            data = self.local_data(replace(problem, pool=pool), inputs, longest)
            message, after, info = require_result(self.name, self.client(server, mine, data, noise, key))
            require_state(self.name, mine, after)
            require_message(self.name, message, costs_of(self).message_dimension(problem))
            message = self.encode(message, jax.random.fold_in(key, ENCODING))
            weight = jnp.asarray(self.client_weight(data), jnp.float32)
            require_scalars(self.name, weight, info)
            present = jax.tree.map(lambda leaf: jnp.where(inputs.present > 0, leaf, 0.0), (message, weight, info))
            return present[0], after, *present[1:]

        every = None if pool is problem.pool else 0
        return jax.vmap(one, in_axes=(0, every, 0, 0, 0))(held, pool, *slots)

    def local_data(self, problem: Problem, inputs: RoundInputs, longest: Any = None) -> Any:
        """Return the `data` of `client`, from one participant's part of the round's inputs. Default: its minibatches.

        A method without local steps overrides it, and `steps_of_machines`.
        """
        samples, weights = map(self._by_step, (inputs.samples, inputs.weights))
        return LocalData(problem, samples, weights, inputs.machine, longest, skips=self.uneven)

    def steps(self, inputs: RoundInputs) -> jax.Array:
        """Return the number of the last local step with records of every slot, int [slots], 0 in empty slots."""
        taken = jnp.any(self._by_step(inputs.weights) != 0, axis=-1)
        last = jnp.max(jnp.where(taken, jnp.arange(1, taken.shape[-1] + 1), 0), axis=-1)
        return jnp.where(inputs.present > 0, last, 0)

    def _by_step(self, rows: jax.Array) -> jax.Array:
        """Return the values of records, [..., K·B], by local step, [..., K, B]."""
        assert self.minibatches is not None
        return rows.reshape(*rows.shape[:-1], self.minibatches.cut(rows.shape[-1]), -1)

    # ---- unequal machines, on the host

    @property
    def uneven(self) -> bool:
        """False if all machines take equally many local steps, so that none is skipped."""
        return self.slot_classes != ()

    def fitted(self, problem: Problem, plan: Plan):
        """Return a copy with `slot_classes` set."""
        steps = self.steps_of_machines(problem, plan)
        classes = class_sizes(steps, plan.size.per_round) if np.ptp(steps) else ()
        return replace(self, slot_classes=classes)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        return super(ClientMethod, self.fitted(problem, plan)).calibrate(problem, plan, target)

    def run_costs(self, problem: Problem, plan: Plan) -> dict[str, float]:
        """Return `idle_steps`, the share of computed local steps that change nothing, and `client_state_bytes`.

        The first is NaN if participation is secret.
        """
        idle = nan
        if plan.schedule.secret is None:
            steps = np.where(
                plan.schedule.present, self.steps_of_machines(problem, plan)[plan.schedule.participants], 0
            )
            classes, together = self._classes(plan.size.per_round), self.slots_together(problem, plan.size.per_round)
            idle = idle_share(steps if self.uneven else np.ones_like(steps), classes, together)
        return {"idle_steps": idle, "client_state_bytes": float(client_state_bytes(self, problem, plan.size))}

    def slots_together(self, problem: Problem, per_round: int) -> int:
        """Return the number of a round's slots whose local work is computed at once."""
        return min(per_round, max(1, CHUNK_FLOATS // (LIVE_VECTORS * problem.dimension)))

    def _classes(self, per_round: int) -> tuple[int, ...]:
        return self.slot_classes or (per_round,)

    def steps_of_machines(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Return the number of every machine's local steps in a round, int [machines]."""
        assert self.minibatches is not None
        assert problem.partition_table is not None
        return self.minibatches.steps(problem.partition_table.sizes)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        held = LIVE_VECTORS * self.slots_together(problem, size.per_round)
        return held + clipped_rows(self, problem, rows)


def client_state_bytes(protocol: Protocol, problem: Problem, size: Size) -> int:
    """Return the bytes of the states that all machines keep between rounds."""
    if not isinstance(protocol, ClientMethod):
        return 0
    own = jax.eval_shape(lambda: protocol.client_init(problem))
    return size.machines * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(own))


def whole_state(state: Any, size: Size) -> Any:
    """Return a state with what every machine holds, in a run that is divided over devices."""
    return state._replace(own=whole(state.own, size.machines)) if isinstance(state, ClientState) else state


def written(rows, machines, present, new):
    """Return the rows [machines, ...] with the new ones of the participants that are present.

    On a CPU they are copied one after another, because XLA scatters number by number there.
    """

    rows, machines, present, new = map(jnp.asarray, (rows, machines, present, new))

    def scatter(rows, new):
        machine = jnp.where(present > 0, machines, rows.shape[0])  # out of range: nothing is written
        return rows.at[machine].set(new, mode="drop")

    def copied(rows, new):
        def one(slot, rows):
            machine = machines[slot]
            row = jnp.where(present[slot] > 0, new[slot], rows[machine])
            return jax.lax.dynamic_update_index_in_dim(rows, row, machine, 0)

        return jax.lax.fori_loop(0, new.shape[0], one, rows)

    return jax.lax.platform_dependent(rows, new, cpu=copied, default=scatter)
