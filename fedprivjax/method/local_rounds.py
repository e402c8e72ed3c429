"""Rounds of machines that do local work or keep a state: gathering, vmapping, masking and scattering.

Machines that are absent or drop out keep their state and send nothing.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import nan, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.division import gathered, own_records, part_of, part_of_size, to_holders, whole
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.loops import padded, scan_first, scan_in_chunks, vmapped
from fedprivjax.method.round import RoundInputs, machines_at_once, slot_keys
from fedprivjax.method.seen import clipped_rows
from fedprivjax.method.traced_checks import require_message, require_scalars, require_state
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalEpochs, LocalSteps
from fedprivjax.plan.samplers.local import LocalWork
from fedprivjax.plan.schedule import Schedule, Size, class_sizes, computed_slots, idle_share
from fedprivjax.problem.devices import added, devices
from fedprivjax.problem.problem import Problem

ENCODING = 2**32 - 1  # number that a machine's key is folded with for its encoding
SERVER = 2**32 - 2  # number that a round's key is folded with for the server
PADDED = 1.5  # largest mean number of computed slots of a secret cohort, divided by its mean size
LIVE_VECTORS = 4  # vectors of parameters in a plain local step


class ClientState(NamedTuple):
    """State of the server, and of every machine, leaves [machines, ...].

    On several devices, each holds the leaves of a block of the machines, with further rows to make the blocks equal.
    """

    server: Any
    own: Any


class Servers(NamedTuple):
    """State of gossip: that of an algorithm's server at every machine, leaves [machines, ...]."""

    server: Any


@dataclass(frozen=True)
class LocalRounds:
    """Rounds in which machines do local work or keep a state: what is the same for all of them.

    If machines take unequal numbers of local steps, a round's slots are sorted by them and computed in a few classes,
    each as long as its longest machine of the round. Keys and noise belong to the slot before sorting.

    Attributes:
        of: computation of machines and server, a `WorkRounds` or a `SumRounds`.
        classes: number of slots of every class of machines that are computed together, the longest first, see
            `fedprivjax.plan.schedule`; () if all machines take equally many steps, None if unknown.
        live_vectors: number of vectors of parameters that a machine's local step holds at once.
        all_records: True if every step of every machine uses equally many records in every plan, so that there is no
            padding; None if unknown.
        walks: True if machines take local steps. Otherwise `client` receives the problem, and the machine's inputs with
            the number of the round.
        at_once: True if the local work of all slots of a round is computed at once.
        chunk: number of slots of a secret cohort that are computed together, up to the last filled one, see `chunk_of`;
            None if all slots are computed.
    """

    of: Any
    classes: tuple[int, ...] | None = None
    walks: bool = True
    at_once: bool = False
    all_records: bool | None = None
    live_vectors: int = LIVE_VECTORS
    chunk: int | None = None

    # ---- the round

    def init(self, problem: Problem, size: Size, key) -> ClientState:
        mine = jax.tree.map(jnp.asarray, self.of.client_init(problem))
        held = part_of_size(size, devices()).machines
        own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (held, *leaf.shape)), mine)
        return ClientState(self.of.server_init(problem, size, key), own)

    def round(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[ClientState, dict]:
        slots = self.slots(inputs, noise, key)
        if self.uneven:
            order = jnp.argsort(-self.steps(slots[0]))
            slots = jax.tree.map(lambda leaf: leaf[order], slots)
        sums, own = self._sums(problem, self.of.shared(state.server, noise), slots, state.own)
        total, weight, info = added(sums)
        present = jnp.maximum(jnp.sum(inputs.filled), 1.0)
        server = self.of.serve(problem, state.server, total, weight, inputs, noise, key)
        return ClientState(server, own), jax.tree.map(lambda value: value / present, info)

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

        shape = slots[0].samples.shape  # [per_round], or [per_round, width] for minibatches
        carry, together = (zeros, own), self.together(problem, shape[0], prod(shape[1:]))
        for first, last in pairwise(np.cumsum((0, *self._classes(slots[0].present.shape[0])))):
            part = jax.tree.map(lambda leaf: leaf[first:last], slots)  # noqa: B023
            (inputs, *others), present = part_of(part, part[0].present)
            if self.chunk is not None and devices() == 1:  # several devices wait for each other in every chunk
                carry = scan_filled(some, carry, (inputs._replace(present=present), *others), min(together, self.chunk))
                continue
            size = computed_slots(present.shape[0], together)
            empty = jnp.zeros(size - present.shape[0], present.dtype)
            inputs, others = padded((inputs, others), size) if empty.size else (inputs, others)
            part = inputs._replace(present=jnp.concatenate([present, empty])), *others
            carry, _ = some(carry, part) if size <= together else scan_in_chunks(some, carry, part, together)
        return carry

    def messages(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Return the participants' messages without the noise that is added to them, leaves [per_round, ...]."""
        slots = self.slots(inputs, noise, key)
        return self._work(problem, self.of.shared(state.server, noise), self._states(state.own, slots[0]), slots)[0]

    def slots(self, inputs: RoundInputs, noise: Any, key: jax.Array) -> tuple[RoundInputs, Any, jax.Array]:
        """Return what every participant receives: inputs, noise inside its computation, key, each [per_round, ...]."""
        per_round = inputs.filled.shape[0]
        t = None if self.walks else jnp.broadcast_to(inputs.round.astype(jnp.float32), inputs.filled.shape)
        own = inputs._replace(round=t, expected=None, present=inputs.filled)
        return own, self.of.client_noise(noise, per_round), slot_keys(key, per_round)

    def _cohort(self, problem: Problem, server: Any, own: Any, slots: tuple[RoundInputs, Any, jax.Array]):
        """Return the participants' sums (weighted messages, weights, scalars), and all machines' states after them."""
        longest = jnp.max(self.steps(slots[0])) if self.uneven else None
        messages, after, weights, info = self._work(problem, server, self._states(own, slots[0]), slots, longest)
        late = slots[0].late
        factors = weights if late is None else weights * late.weight
        total = jax.tree.map(lambda rows: _summed(factors, rows), messages)
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
            received = server if inputs.late is None else self.of.received(server, inputs.late.version)
            message, after, info = self.of.client(received, mine, data, noise, key)
            require_state(self.of.protocol.name, mine, after, "keep", "own")
            require_message(self.of.protocol.name, message, self.of.message_dimension(problem))
            message = self.of.encode(message, jax.random.fold_in(key, ENCODING))
            weight = jnp.asarray(self.of.client_weight(data), jnp.float32)
            require_scalars(self.of.protocol.name, weight, info)
            present = jax.tree.map(lambda leaf: jnp.where(inputs.present > 0, leaf, 0), (message, weight, info))
            return present[0], after, *present[1:]

        every = None if pool is problem.pool else 0
        return vmapped(one, (0, every, 0, 0, 0))(held, pool, *slots)

    def local_data(self, problem: Problem, inputs: RoundInputs, longest: Any = None) -> Any:
        """Return the `data` of `client`, from one participant's part of the round's inputs: its minibatches."""
        if not self.walks:
            return problem, inputs
        samples, weights = map(self._by_step, (inputs.samples, inputs.weights))
        return LocalData(problem, samples, weights, inputs.machine, longest, self.uneven, bool(self.all_records))

    @property
    def _sampler(self) -> LocalWork:
        """Sampler of the records of the local steps."""
        return self.of.privacy.work

    def steps(self, inputs: RoundInputs) -> jax.Array:
        """Return the number of the last local step with records of every slot, int [slots], 0 in empty slots."""
        taken = jnp.any(self._by_step(inputs.weights) != 0, axis=-1)
        last = jnp.max(jnp.where(taken, jnp.arange(1, taken.shape[-1] + 1), 0), axis=-1)
        return jnp.where(inputs.present > 0, last, 0)

    def _by_step(self, rows: jax.Array) -> jax.Array:
        """Return the values of records, [..., K·B], by local step, [..., K, B]."""
        return rows.reshape(*rows.shape[:-1], self._sampler.cut(rows.shape[-1]), -1)

    # ---- unequal machines, on the host

    @property
    def uneven(self) -> bool:
        """False if all machines take equally many local steps, so that none is skipped."""
        return self.classes != ()

    def fitted(self, problem: Problem, plan: Plan) -> tuple[tuple[int, ...], bool]:
        """Return `classes` and `all_records`, which are those of every plan of the problem."""
        steps, sampler, table = self.steps_of_machines(problem, plan), self._sampler, problem.partition_table
        classes = class_sizes(steps, plan.size.per_round) if np.ptp(steps) else ()
        fixed = type(sampler) in (LocalEpochs, LocalSteps) and not sampler.secret and plan.schedule.secret is None
        same = self.walks and fixed and table is not None and not np.ptp(table.sizes)
        used = same and plan.weights is not None and np.all(plan.weights[plan.schedule.present] != 0)
        return classes, bool(used)

    def run_costs(self, problem: Problem, plan: Plan) -> dict[str, float]:
        """Return `idle_steps`, the share of computed local steps that change nothing, and `client_state_bytes`.

        The first is NaN if participation is secret.
        """
        idle = nan
        if plan.schedule.secret is None:
            steps = self.steps_of_machines(problem, plan)[plan.schedule.participants]
            steps = np.where(plan.schedule.present, steps, 0)
            per_round = plan.size.per_round
            classes, together = self._classes(per_round), self.together(problem, per_round, plan.width)
            idle = idle_share(steps if self.uneven else np.ones_like(steps), classes, together)
        state = float(client_state_bytes(self.of.protocol, problem, plan.size))
        return {"idle_steps": idle, "client_state_bytes": state}

    def steps_of_machines(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Return the number of every machine's local steps in a round, int [machines]."""
        if not self.walks:
            return np.ones(plan.size.machines, int)
        assert problem.partition_table is not None
        return self._sampler.steps(problem.partition_table.sizes)

    def together(self, problem: Problem, per_round: int, width: int) -> int:
        """Return the number of a round's slots, of `width` records each, whose local work is computed at once."""
        step = width // self._sampler.cut(width) if self.walks else width
        machines = machines_at_once(problem, self.live_vectors, step)
        return per_round if self.at_once else min(per_round, machines)

    def _classes(self, per_round: int) -> tuple[int, ...]:
        return self.classes or (per_round,)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        """Return the number of vectors in memory at once, as in `Costs`."""
        held = self.live_vectors * self.together(problem, size.per_round, rows // size.per_round)
        return held + clipped_rows(self.of.protocol, problem, rows)


def _summed(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Return the weighted sum of rows [slots, ...]. Integers, which have weight 1 or are 0, stay integers."""
    if jnp.issubdtype(rows.dtype, jnp.integer):
        return jnp.sum(rows, axis=0)
    return jnp.tensordot(weights, rows, axes=(0, 0), precision="highest")


def scan_filled(function, carry: Any, slots: tuple[RoundInputs, Any, jax.Array], size: int) -> Any:
    """Return the carry after a scan over chunks of `size` slots, up to the last one with a machine that is present."""
    count = slots[0].present.shape[0]
    whole = -(-count // size) * size
    chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), padded(slots, whole))
    present = chunks[0].present * (np.arange(whole) < count).reshape(-1, size)
    last = jnp.max(jnp.where(jnp.any(present > 0, axis=1), np.arange(1, len(present) + 1), 0))
    return scan_first(function, carry, (chunks[0]._replace(present=present), *chunks[1:]), last)[0]


def chunk_of(schedule: Schedule) -> int | None:
    """Return the number of slots of a secret cohort of random size that are computed together, or None otherwise.

    A round computes as many chunks as its cohort needs. They are as large as possible if a round computes at most
    `PADDED` times as many slots as machines take part, on average over the distribution of the size. They never follow
    from a sampled schedule, because they are part of the program.

    >>> from fedprivjax import PoissonCohorts
    >>> chunk_of(PoissonCohorts(100, 0.1).draw(2, np.random.default_rng(0)))
    13
    """
    if schedule.secret is None or not schedule.varies:
        return None
    try:
        chances = schedule.secret.cohort_size_pmf
    except Undefined:  # of a custom scheme
        return None
    sizes = np.arange(1, chances.size + 1)
    most = PADDED * float(chances @ sizes)
    return max((one for one in sizes.tolist() if one * float(chances @ -(-sizes // one)) <= most), default=1)


def client_state_bytes(protocol: Any, problem: Problem, size: Size) -> int:
    """Return the bytes of the states that all machines keep between rounds."""
    if not hasattr(protocol.rounds, "client_init"):
        return 0
    own = jax.eval_shape(lambda: protocol.rounds.client_init(problem))
    return size.machines * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(own))


def whole_state(state: Any, size: Size) -> Any:
    """Return a state with what every machine holds, in a run that is divided over devices."""
    if isinstance(state, Servers):
        return Servers(whole(state.server, size.machines))
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
