"""Rounds of machines with local work: the part that is traced and compiled."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.method.algorithm import Calls, Public
from fedprivjax.method.known_work import KnownWork, asked, form, message_of, of_python
from fedprivjax.method.linear import Linear, points_of
from fedprivjax.method.local_algorithm import AtServer, Work, mul
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.local_rounds import LIVE_VECTORS, SERVER, ClientState, LocalRounds
from fedprivjax.method.personal_part import adapted, has_personal_part, seen_by_messages
from fedprivjax.method.round import RoundInputs, slot_keys
from fedprivjax.method.rounds import Rounds
from fedprivjax.method.seen import noisy_rows
from fedprivjax.method.server_step import initial
from fedprivjax.method.work_privacy import Facts
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key


class ServedState(NamedTuple):
    """State of the algorithm's server, and the privacy object's public state.

    With late answers, `sent` holds the last versions of the server's message, leaves [versions, ...]: that after round
    r has the index r modulo their number.
    """

    server: Any
    clip: Any
    sent: Any = ()


class Received(NamedTuple):
    """Values that all machines of a round read: the server's message, the public state, and noise sampled together."""

    server: Any
    clip: Any
    noise: Any


@dataclass(frozen=True, eq=False)
class WorkProgram(Rounds):
    """Traced part of `WorkRounds`: the local steps of machines, and the step of the server."""

    @property
    def local(self) -> LocalRounds:
        """Rounds of the machines' local work."""
        known, together, live = self._known, self.privacy.noise_together, LIVE_VECTORS + self._vectors_of_optimizer
        fitted = {"all_records": known.all_records, "chunk": known.chunk}
        return LocalRounds(self, known.slot_classes, at_once=together, live_vectors=live, **fitted)

    @property
    def _vectors_of_optimizer(self) -> int:
        """Number of vectors in the state of the local steps' optimiser, besides a few scalars."""
        local, point = self.planned.local, jnp.zeros(8)
        state = jax.eval_shape(lambda: initial(local, point))
        return sum(leaf.size for leaf in jax.tree.leaves(state)) // point.size

    @property
    def weighs_machines(self) -> bool:
        return self.privacy.weighs_machines and not self.algorithm.equal_weights

    @property
    def call(self) -> Calls:
        return Calls(self.planned, isolated=self.privacy.unit is not None)

    @property
    def _known(self) -> KnownWork:
        known = self.protocol.known
        return KnownWork(None, None, None) if known is None else known

    def init(self, problem: Problem, size: Size, key: jax.Array) -> ClientState:
        return self.local.init(problem, size, key)

    def messages(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        return self.local.messages(problem, state, inputs, noise, key)

    def noise_state(self, dimension: int, size: Size) -> Any:
        return ()

    def server_init(self, problem: Problem, size: Size, key: jax.Array) -> ServedState:
        server = self.call("init", Public.of(problem, size.machines, key), self.step)
        if self._known.versions is None:
            return ServedState(server, self.privacy.start())
        count = self._known.versions
        sent = self.call("sends", server)
        versions = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), sent)
        return ServedState(server, self.privacy.start(), versions)

    def client_init(self, problem: Problem) -> Any:
        own = self.call("own", Public.of(problem, 1, random_key(0)))
        known = self.protocol.known
        stateful = has_personal_part(self.planned) or (known is not None and known.stateful)
        if known is not None and bool(jax.tree.leaves(own)) != stateful:
            raise Refusal(f"own of {type(self.planned).__name__} must always hold numbers, or never, got {called(own)}")
        return own

    def shared(self, server: ServedState, noise: Any) -> Received:
        together = noise if self.privacy.noise_together else None
        sent = self.call("sends", server.server) if self._known.versions is None else server.sent
        return Received(sent, server.clip, together)

    def received(self, shared: Received, version: Any) -> Received:
        """Return what a machine reads that started from one of the last versions of the server's message."""
        return shared._replace(server=jax.tree.map(lambda rows: rows[version], shared.server))

    def client(self, server: Received, own: Any, data: LocalData, noise: Any, key: jax.Array):
        privacy, work, held = self.privacy, self._told(data), own
        own = seen_by_messages(self.planned, held)
        end, _ = self._walk(server, own, data, noise)
        left, structure = message_of(self.call, end, server.server, own, work)
        message: Any = [jnp.where(data.steps > 0, leaf, 0.0) for leaf in left]
        if of_python(structure):  # no other container may change what is bounded
            message = jax.tree.unflatten(structure, message)
        message, info = privacy.bounded(message, server.clip)
        if has_personal_part(self.planned):
            after = adapted(self.call, server.server, held, data, work)
        else:
            held = self.call("hold", end, own)
            after = self.call("keep", held, jax.tree.unflatten(structure, jax.tree.leaves(message)), work)
        return privacy.sent(message, info, server.clip, noise, self._facts), after, info

    def encode(self, message: Any, key: jax.Array) -> Any:
        return self.privacy.encoded(message, key, self._facts)

    def client_weight(self, data: LocalData) -> Any:
        return self.privacy.weight(data, self._facts)

    def client_noise(self, noise: Any, per_round: int) -> Any:
        if not self.privacy.at_machines or noise is None:
            return None
        if self.privacy.noise_together:
            return jnp.arange(per_round)
        key, deviations = noise
        return slot_keys(key, per_round), deviations

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        return state, self.privacy.round_noise(drawn, host_noise, self._facts)

    def sent(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, own_noise: Any, key: jax.Array):
        messages = self.messages(problem, state, inputs, noise, key)
        return noisy_rows(problem, messages, self.privacy.of_message(own_noise))

    def serve(self, problem: Problem, server: ServedState, total, weight, inputs: RoundInputs, noise, key):
        divisor = self.privacy.divisor(weight, inputs)
        form = self._message_form(problem)
        mean, after = self.privacy.read(total, divisor, noise, server.clip, self._facts._replace(form=form))
        at = AtServer(
            inputs.round.astype(jnp.float32),
            self.step,
            self.privacy.work.cut(inputs.samples.shape[-1]),
            divisor,
            problem.constraint.project,
            problem.start,
            jax.random.fold_in(key, SERVER),
        )
        mean = jax.tree.unflatten(jax.tree.structure(form), jax.tree.leaves(mean))
        served = self.call("serve", server.server, mean, at)
        if self._known.versions is None:
            return ServedState(served, after)
        place = inputs.round % self._known.versions
        sent = jax.tree.map(lambda rows, new: rows.at[place].set(new), server.sent, self.call("sends", served))
        return ServedState(served, after, sent)

    def round(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[ClientState, dict]:
        """Return as `Protocol.round`, with the scalars that the privacy object reports."""
        after, info = self.local.round(problem, state, inputs, noise, key)
        return after, info | self.privacy.reported(state.server.clip, after.server.clip)

    def server_of(self, state: ClientState) -> Any:
        return state.server.server

    def personal(self, state: ClientState, machine: Any) -> Any:
        return self.call("personal", self.output(state), jax.tree.map(lambda rows: rows[machine], state.own))

    def query(self, state: ClientState) -> Any:
        """Return the point of a machine's first gradient in the next round, as `_first`."""
        return points_of(self._first(state))[0]

    def broadcast(self, state: ClientState) -> Any:
        """Return what the server sends in addition to the query, and the logarithm of an adaptive clip."""
        sent = self.planned.sends(state.server.server)
        asked = {id(leaf) for leaf in jax.tree.leaves(points_of(self._first(state))[0])}
        others = jax.tree.map(lambda leaf: None if id(leaf) in asked else leaf, sent)
        return others, jnp.log(state.server.clip) if self.privacy.adaptive else ()

    def noisy_steps(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Return the moves of every local step, leaves [per_round, K, ...], with unit = "record"."""
        return self._every_step(problem, state, inputs, noise, key)[0] if self.privacy.unit == "record" else None

    def step_noises(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Return the noise of every local step, [per_round, K, d], with unit = "record"."""
        return self._every_step(problem, state, inputs, noise, key)[1] if self.privacy.unit == "record" else None

    def _every_step(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[Any, Any]:
        received, rounds = self.shared(state.server, noise), self.local

        def one(inputs, noise, key):
            own = seen_by_messages(self.planned, jax.tree.map(lambda rows: rows[inputs.machine], state.own))
            mine = received if inputs.late is None else self.received(received, inputs.late.version)
            return self._walk(mine, own, rounds.local_data(problem, inputs), noise, every_step=True)[1]

        return jax.vmap(one)(*rounds.slots(inputs, noise, key))

    def _walk(self, shared: Received, own: Any, data: LocalData, noise: Any, *, every_step: bool = False):
        """Return a machine's carry after its local steps, and the steps' moves and noises, or None."""
        privacy, problem, work, received = self.privacy, data.problem, self._told(data), shared.server
        noise = noise if shared.noise is None else (shared.noise, noise)

        def one(carry, minibatch):
            message = self._asked(carry, problem.start)
            g = privacy.of_batch(problem, message, minibatch, noise, self._facts)
            after = self.call("move", carry, g, received, own, work)
            if not every_step:
                return after, None
            here, there = (points_of(asked)[0] for asked in (message, self._asked(after, problem.start)))
            z = None if noise is None else privacy.step_noise(noise, minibatch.step, problem.dimension)
            if self.planned.local is not None:  # the noisy messages are released, before the optimiser
                return after, (mul(-work.step, g), z)
            return after, (jax.tree.map(jnp.subtract, there, here), z)

        return data.scan(one, self.call("enter", received, own))

    def _told(self, data: LocalData) -> Work:
        taken = jnp.maximum(data.steps, 1.0)
        return Work(self.step, data.samples.shape[0], taken, data.problem.constraint.project)

    def _first(self, state: ClientState) -> Linear:
        """Return the message of the first local step of a machine that holds zeros, or its first part of the points."""
        own = self._known.first
        own = jax.tree.map(lambda rows: jnp.zeros_like(rows[0]), state.own) if own is None else own
        return self.planned.ask(self.planned.enter(self.planned.sends(state.server.server), own))

    def _asked(self, carry: Any, start: Any) -> Linear:
        """Return a local step's message. Raise Refusal unless it has the form that was read before."""
        message = asked(self.call, carry, start)
        known = self.protocol.known
        if known is not None and len(points_of(message)) != known.gradients:
            raise Refusal(
                f"message of {type(self.planned).__name__} must have the same number of gradients in every step, "
                f"{known.gradients}, got {len(points_of(message))}"
            )
        return message

    @property
    def _facts(self) -> Facts:
        known = self._known
        return Facts(self.protocol.noise_std, known.limit, known.expected, known.weighted, known.encoded)

    def _message_form(self, problem: Problem) -> Any:
        """Return the pytree of `leave`, of shapes instead of numbers."""
        return form(self.planned, Public.of(problem, 1))
