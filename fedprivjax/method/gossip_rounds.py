"""Rounds of gossip: every machine takes the step of its own noisy message, and mixes its state with its neighbours'."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.algorithm import Mean, Public, planned_algorithm
from fedprivjax.method.division import part_of, part_of_size, whole
from fedprivjax.method.gossip import Gossip
from fedprivjax.method.linear import points_of
from fedprivjax.method.local_rounds import Servers
from fedprivjax.method.mean_rounds import MeanRounds
from fedprivjax.method.noisy_messages import INDEPENDENT
from fedprivjax.method.round import RoundInputs, add_noise, machines_at_once
from fedprivjax.noise.interface import EachMessage, Mechanism, MessageNoise
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.adversaries import Local
from fedprivjax.privacy.coalition import Coalition
from fedprivjax.privacy.events import Event
from fedprivjax.problem.devices import devices
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key

PROCESSED = "all models are functions of the messages"


@dataclass(frozen=True, eq=False)
class GossipRounds(MeanRounds):
    """Rounds of machines that each run an algorithm's server on their own noisy messages, and mix its state.

    The event is that of the messages: every point at which a machine is queried is a function of earlier noisy
    messages of all machines.
    """

    holds_models = True

    @property
    def gossip(self) -> Gossip:
        """The gossip with its weights, if they are read."""
        known = self.protocol.known
        return self.protocol.algorithm if known is None or known.algorithm is None else known.algorithm

    @cached_property
    def algorithm(self) -> Any:
        return self.protocol.algorithm.steps

    @property
    def planned(self) -> Any:
        return self.gossip.steps

    @property
    def for_machines(self) -> int | None:
        """Number of machines of the graphs, or None for any number."""
        mixing = self.protocol.algorithm.mixing
        return self.privacy.for_machines if mixing is None or mixing.nodes is None else mixing.nodes

    # ---- traced

    def init(self, problem: Problem, size: Size, key: jax.Array) -> Servers:
        server = self.call("init", Public.of(problem, size.machines, key), self.step)
        held = part_of_size(size, devices()).machines
        return Servers(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (held, *jnp.shape(leaf))), server))

    def client_init(self, problem: Problem) -> Any:
        """Return the first state of one machine."""
        return self.call("init", Public.of(problem, 1, random_key(0)), 1.0)

    def round(self, problem: Problem, state: Servers, inputs: RoundInputs, noise, key) -> tuple[Servers, dict]:
        messages = self.messages(problem, state, inputs, noise, key)
        (own_noise,), _ = part_of((noise,), jnp.ones(inputs.samples.shape[0]))
        at = self.at(problem, inputs, self.privacy.server_key(key))._replace(cohort=jnp.float32(1))
        sent = self._sent(problem)

        def one(server, message, noise):
            return self.call("serve", server, add_noise(sent, message, noise), at)

        served = jax.vmap(one)(state.server, messages, own_noise)
        return Servers(self._mixed(served, inputs)), {}

    def _mixed(self, own: Any, inputs: RoundInputs) -> Any:
        """Return the machines' states after the round's mixing, leaves [machines of this device, ...]."""
        period, machines, _ = self.gossip.weights.shape
        weights = self.gossip.weights[(inputs.round - 1) % period]
        rows, _ = part_of(weights, jnp.ones(machines))

        def one(leaf, every):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return leaf
            return jnp.tensordot(rows, every, axes=1, precision="highest")

        return jax.tree.map(one, own, whole(own, machines))

    def messages(self, problem: Problem, state: Servers, inputs: RoundInputs, noise, key):
        """Return the bounded messages of the machines of this device, each at its own point, leaves [machines, ...]."""
        t, width = inputs.round.astype(jnp.float32), int(np.prod(inputs.samples.shape[1:]))
        slots, _ = part_of((inputs.samples, inputs.machine, inputs.weights), jnp.ones(inputs.samples.shape[0]))

        def one(slot):
            server, (samples, machine, weights) = slot
            message = self.message(problem, "message", server, t)
            own = self._sent(self.smoothed(problem, server), message)
            weights = None if weights is None else weights[None]
            alone = inputs._replace(samples=samples[None], machine=machine[None], weights=weights, present=None)
            sent = self.privacy.messages(own, message, alone, noise, self._limits, key)
            return jax.tree.map(lambda leaf: leaf[0], sent)

        together = machines_at_once(problem, 4, width)
        if together >= slots[0].shape[0]:
            return jax.vmap(one)((state.server, slots))
        return jax.lax.map(one, (state.server, slots), batch_size=together)

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        sampled = drawn.sample() if isinstance(drawn, MessageNoise) else drawn  # or that of one message
        return super().noise(state, sampled, host_noise)

    def models(self, state: Servers) -> Any:
        """Return the point of every machine, leaves [machines, ...]."""
        return jax.vmap(lambda server: self.call("point", server))(state.server)

    def personal(self, state: Servers, machine: Any) -> Any:
        return jax.tree.map(lambda rows: rows[machine], self.models(state))

    def output(self, state: Servers) -> Any:
        """Return the mean of the machines' points."""
        return _mean(self.models(state))

    def iterates(self, state: Servers) -> dict[str, Any]:
        return _mean(jax.vmap(lambda server: self.call("iterates", server))(state.server))

    def query(self, state: Any) -> Any:
        """Return the point at which the first machine computes gradients. Those of all machines are broadcast."""
        return jax.tree.map(lambda leaf: leaf[0], self._points(state)[0])

    def broadcast(self, state: Any) -> Any:
        return self._points(state)

    def _points(self, state: Servers) -> Any:
        """Return all points of the machines' messages, leaves [machines, ...]."""
        return jax.vmap(lambda server: points_of(self.first_message(self.planned, server)))(state.server)

    # ---- on the host

    def read_once(self, problem: Problem, plan: Plan) -> Any:
        weights = self.protocol.algorithm.mixing.weights(plan.size.machines)
        gossip = replace(self.protocol.algorithm, weights=weights.astype(np.float32))
        ready = super().read_once(problem, plan)
        return replace(ready, known=replace(ready.known, algorithm=gossip))

    def _require_covered(self, plan: Plan) -> None:
        """Raise Refusal unless machines send their own noisy messages, all of them in every round."""
        privacy, adversary, schedule = self.privacy, self.protocol.adversary, plan.schedule
        if privacy.trust != "none":
            raise Refusal(f"trust must be 'none' with gossip, which has no server, got {privacy.trust!r}. Set trust")
        if privacy.noise != INDEPENDENT and not privacy.shares_noise:
            raise Refusal(
                f"noise must be 'independent' or a Pairwise with gossip, whose machines read single messages, got "
                f"{privacy.noise!s:.60}. Leave it out"
            )
        server = adversary.server if isinstance(adversary, Coalition) else adversary
        if not (server is None or isinstance(server, Local)):
            raise Refusal(
                f"adversary must see every message with gossip, which adds no messages, got {adversary}. Use "
                f'Local(), or Coalition(1, Local()) for another machine; in a file "local", or '
                f'{{ kind = "coalition", size = 1, server = "local" }}'
            )
        size = schedule.size
        everyone = np.tile(np.arange(schedule.machines), (size.rounds, 1))
        full = np.array_equal(schedule.participants, everyone) and not schedule.varies
        if not full or schedule.secret is not None or schedule.late is not None:
            raise Refusal(
                f"participation must be Full with gossip, without dropouts, secrets or buffers, got {size.per_round} "
                f"slots of {size.machines} machines{', some of them empty' if schedule.varies else ''}. Use Full"
            )

    def required_reads(self, algorithm: Any) -> Mean:
        if type(algorithm.reads) is not Mean:
            raise Refusal(
                f"reads of {type(algorithm).__name__} must be Mean() with gossip, in which each machine reads its own "
                f"message, got {algorithm.reads}. Use GradientSteps or SGD"
            )
        return algorithm.reads

    def of_step(self, problem: Problem, plan: Plan) -> Any:
        planned = planned_algorithm(self.algorithm, plan.size.rounds, float(self.step))
        gossip = replace(self.gossip, steps=planned, mixing=None)
        return replace(self.protocol, known=replace(self.protocol.known, algorithm=gossip))

    def mechanism(self, problem: Problem, plan: Plan, method: str) -> Mechanism:
        require_choice("noise method", method, ("auto", "materialised"))
        return EachMessage.of(super().mechanism(problem, plan, "materialised"))

    def check(self, problem: Problem, plan: Plan) -> None:
        self._require_covered(plan)
        super().check(problem, plan)

    def event(self, problem: Problem, plan: Plan) -> Event:
        self._require_covered(plan)
        event = super().event(problem, plan)
        return event.restated(replace(event.terms, theorem=f"{event.terms.theorem}; {PROCESSED}"))

    def costs(self, problem: Problem) -> dict[str, float]:
        """Return the costs of one machine in a round: the state to each neighbour, on average over machines."""
        weights = np.asarray(self.gossip.weights)
        links = float(np.count_nonzero(weights * (1 - np.eye(weights.shape[-1]))) / weights[..., 0].size)
        state = jax.tree.leaves(jax.eval_shape(lambda: self.client_init(problem)))
        numbers = sum(leaf.size for leaf in state if jnp.issubdtype(leaf.dtype, jnp.floating))
        return super().costs(problem) | {"sent_messages": links, "sent_bits": 32.0 * links * numbers}

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return super().vectors_in_memory(problem, size, rows) + 3 * size.per_round


def _mean(points: Any) -> Any:
    """Return the mean over machines of leaves [machines, ...]."""
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), points)
