"""Rounds whose server reads noisy means of messages, or what they add up to."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_positive
from fedprivjax.method import linear
from fedprivjax.method.algorithm import (
    MEAN,
    Algorithm,
    At,
    Calls,
    Growing,
    NormBound,
    Public,
    Reads,
    lipschitz_bound,
    planned_algorithm,
)
from fedprivjax.method.linear import Linear
from fedprivjax.method.per_record import require_isolated_message, sent_problem
from fedprivjax.method.release import Limits, RunFacts
from fedprivjax.method.round import RoundInputs, require_one_gradient
from fedprivjax.method.rounds import Rounds
from fedprivjax.method.seen import clipped_rows, noisy_rows, of_one_message
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.method.traced_checks import require_served
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.privacy.views import FullView, View
from fedprivjax.problem.models import LinearModel
from fedprivjax.problem.problem import Problem, numbers_of_one
from fedprivjax.problem.program import by_shapes
from fedprivjax.problem.random_keys import random_key
from fedprivjax.problem.smoothing import Moreau


class ServerAndMemory(NamedTuple):
    """State of the algorithm's server, and memory of the privacy object, which no algorithm sees."""

    server: Any
    memory: Any


@struct.dataclass
class Known:
    """Facts of an algorithm, read once on the host and enforced in the program.

    Attributes:
        limit: stated bound on a message's norm, which is enforced without a clip; None if there is none.
        algorithm: planned algorithm, or None if it plans nothing.
        reads: statistic of the means that its server reads.
        gradients: number of gradients in a message.
        plain: True if a message is one gradient, without a coefficient.
        statistic: name of the function of one record in a message, or None for gradients.
        shape: shape of its value, or None.
        machines: number of machines.
    """

    limit: Any
    algorithm: Any = None
    reads: Reads = MEAN
    gradients: int = struct.field(pytree_node=False, default=1)
    plain: bool = struct.field(pytree_node=False, default=True)
    statistic: str | None = struct.field(pytree_node=False, default=None)
    shape: tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    machines: int = struct.field(pytree_node=False, default=1)


@dataclass(frozen=True, eq=False)
class MeanRounds(Rounds):
    """Rounds whose server reads noisy means of messages, or their running sum or momentum."""

    # ---- traced

    def init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        server = self.call("init", Public.of(problem, size.machines, key), self.step)
        return ServerAndMemory(server, self.privacy.memory(self._sent(problem).start, self._limits.reads))

    def round(self, problem: Problem, state: Any, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        t = inputs.round.astype(jnp.float32)
        message = self.message(problem, "message", state.server, t)
        machines = self._sent(self.smoothed(problem, state.server), message)
        read, memory, info = self.privacy.release(machines, message, inputs, noise, state.memory, self._limits, key)
        at = self.at(problem, inputs, self.privacy.server_key(key))
        return ServerAndMemory(self.call("serve", state.server, read, at), memory), info

    def query(self, state: ServerAndMemory) -> Any:
        return linear.points_of(self.first_message(self.planned, self.server_of(state)))[0]

    def broadcast(self, state: ServerAndMemory) -> Any:
        """Return the points of a message other than the query, unless machines recall them, and envelopes' strength."""
        strength = self.planned.smoothing(state.server)
        others = () if self.planned.recalls else linear.points_of(self.first_message(self.planned, state.server))[1:]
        return others if strength is None else (*others, strength)

    def messages(self, problem: Problem, state: Any, inputs: RoundInputs, noise, key):
        message = self.message(problem, "message", state.server, inputs.round.astype(jnp.float32))
        machines = self._sent(self.smoothed(problem, state.server), message)
        return self.privacy.messages(machines, message, inputs, noise, self._limits, key)

    def sent(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, own_noise: Any, key: jax.Array):
        own = None if own_noise is None else self.privacy.of_message(own_noise, self._known.reads)
        return noisy_rows(problem, self.messages(problem, state, inputs, noise, key), own)

    def noise_state(self, dimension: int, size: Size) -> Any:
        return self.privacy.noise_state(dimension, size.rounds)

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        known = self.protocol.known
        reads = MEAN if known is None else known.reads
        return self.privacy.round_noise(state, drawn, self.protocol.noise_std, reads, host_noise)

    def internal(self, state: ServerAndMemory) -> Any:
        return self.privacy.stored(state.server)

    def smoothed(self, problem: Problem, server: Any) -> Problem:
        """Return the problem with the envelopes whose gradients the algorithm asks for."""
        strength = self.call("smoothing", server, check=require_strength)
        return problem if strength is None else enveloped(problem, strength)

    def _sent(self, problem: Problem, message: Linear | None = None) -> Problem:
        """Return the problem whose gradients are the messages, see `sent_problem`."""
        return sent_problem(problem, self.known_for(problem, 1).shape, message)

    def at(self, problem: Problem, inputs: RoundInputs, key: jax.Array) -> At:
        """Return the public facts of a round."""
        t, cohort = inputs.round.astype(jnp.float32), jnp.sum(inputs.filled)
        public = Public.of(problem, self._known.machines, key)
        return At(t, self.step, problem.constraint.project, problem.start, key, cohort, public)

    def message(self, problem: Problem, function: str, *arguments: Any) -> Linear:
        """Return the round's message from a function of the algorithm.

        Raises:
            Refusal: it has not the form that was read before.
        """
        name = type(self.planned).__name__
        check = partial(linear.require_message, start=problem.start, name=name)
        message = self.call(function, *arguments, check=check)
        known, found = self._known, linear.gradients_of(message)
        if linear.form_of(linear.statistic_of(message)) != (known.statistic, known.shape):
            before = "gradients" if known.shape is None else f"the function {known.statistic}, of shape {known.shape}"
            raise Refusal(f"message of {name} must be as in the first round, {before}, got {message}")
        if found != known.gradients:
            raise Refusal(
                f"message of {name} must have the same number of gradients in every round, got {known.gradients} and "
                f"{found}"
            )
        if known.plain and not linear.is_plain(message):
            raise Refusal(f"message of {name} must be a gradient without a coefficient in every round, got {message}")
        return message

    @property
    def _known(self) -> Known:
        known = self.protocol.known
        if known is None:
            protocol = self.protocol
            raise Refusal(f"{protocol.name} must be calibrated before it is run, got {protocol}. Use calibrate")
        return known

    @property
    def _limits(self) -> Limits:
        return Limits(self._known.reads, self._known.limit)

    # ---- on the host

    def read_once(self, problem: Problem, plan: Plan) -> Any:
        self.algorithm.check_rounds(plan.size.rounds)
        return replace(self.protocol, known=self._read(problem, plan.size.machines))

    def fitted(self, problem: Problem, plan: Plan) -> Any:
        return self.protocol.with_settings(self.privacy.planned(self.facts(problem, plan)))

    def _read(self, problem: Problem, machines: int) -> Known:
        algorithm, public = self.algorithm, Public.of(problem, machines)
        if not isinstance(algorithm, Algorithm):
            raise Refusal(f"algorithm must be an Algorithm, got {called(algorithm)}")
        require_decorated(algorithm)
        algorithm.check(public)
        reads = self.required_reads(algorithm)
        parts = planned_algorithm(algorithm, 1, 1.0), public.start
        message = _first_message(parts, public._replace(start=None), self.first_message)
        plain, gradients = linear.is_plain(message), linear.gradients_of(message)
        statistic = require_isolated_message(problem, message)
        norm = float(_stated(algorithm, public, plain).norm)
        limit = norm if self.privacy.clip is None and norm < inf else None
        return Known(limit, None, reads, gradients, plain, *linear.form_of(statistic), machines)

    def required_reads(self, algorithm: Algorithm) -> Reads:
        """Return what the algorithm's server reads. Raise Refusal unless this class computes it."""
        reads = algorithm.reads
        if type(reads) is Growing:
            raise Refusal(
                f"reads of {type(algorithm).__name__} must be Mean() or Sum() with {self.protocol.name}, got {reads}"
            )
        return reads

    @staticmethod
    def first_message(algorithm: Algorithm, server: Any) -> Linear:
        """Return the message of the first round."""
        return algorithm.message(server, jnp.float32(1))

    def known_for(self, problem: Problem, machines: int) -> Known:
        """Return what was read of the algorithm, or read it for a protocol that is not calibrated."""
        known = self.protocol.known
        return self._read(problem, machines) if known is None else known

    def bound(self, problem: Problem, machines: int) -> NormBound:
        """Return the enforced bound on the norm of a record's message, with its assumptions."""
        known, public = self.known_for(problem, machines), Public.of(problem, machines)
        stated = _stated(self.planned, public, known.plain)
        enforced = inf if known.limit is None else float(known.limit)
        return self.privacy.bounded(stated._replace(norm=enforced), plain=known.plain)

    def prepared(self, problem: Problem, plan: Plan, target: Target) -> Any:
        ready = super().prepared(problem, plan, target)
        require_one_gradient(problem, self.protocol.name, plain=ready.known.plain)
        if not (target.non_private or ready.known.plain) and type(self.algorithm).bound is Algorithm.bound:
            self.privacy.require_own_clip()
        return ready

    def of_noise(self, problem: Problem, plan: Plan, noise_std: float, target: Target) -> dict[str, Any]:
        return self.privacy.of_noise(self.facts(problem, plan), noise_std, target)

    def of_step(self, problem: Problem, plan: Plan) -> Any:
        """Return the protocol with its planned algorithm."""
        planned = planned_algorithm(self.algorithm, plan.size.rounds, float(self.step))
        changed = None if planned is self.algorithm else planned
        known = replace(self.known_for(problem, plan.size.machines), algorithm=changed)
        return replace(self.protocol, known=known)

    def facts(self, problem: Problem, plan: Plan) -> RunFacts:
        known, bound = self.known_for(problem, plan.size.machines), self.bound(problem, plan.size.machines)
        return RunFacts(sent_problem(problem, known.shape), plan, known.reads, bound, known.plain, self.machine_epsilon)

    def check(self, problem: Problem, plan: Plan) -> None:
        self.privacy.check(self.facts(problem, plan), self.protocol.name)

    def event(self, problem: Problem, plan: Plan) -> Event:
        facts, noise_std = self.facts(problem, plan), self.protocol.noise_std
        if noise_std and facts.bound.norm < inf:
            require_clip("bound", facts.bound.norm)
        event = self.privacy.event(facts, float(noise_std))
        function = self.known_for(problem, plan.size.machines).statistic
        return event if function is None else event.assuming(Assumption("of a record", {"function": function}))

    def message_dimension(self, problem: Problem) -> int:
        return self._sent(problem).dimension

    def costs(self, problem: Problem) -> dict[str, float]:
        gradients = self._known.gradients * self.privacy.gradients_each
        each = of_one_message(32.0 * self.message_dimension(problem), gradients)
        return self.privacy.costs(self._sent(problem), each)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        sent = self._sent(problem)
        rows = max(clipped_rows(self.protocol, sent, rows), self.privacy.vectors_in_memory(sent, size))
        if sent is problem:
            return rows
        return ceil(rows * max(sent.dimension, numbers_of_one(sent)) / problem.dimension)  # losses, not gradients

    def view(self, full: FullView) -> View:
        return self.privacy.view(full)


def require_strength(strength: Any) -> Any:
    """Return the strength of envelopes. Raise Refusal unless it is one real number, or None."""
    if strength is not None:
        linear.require_coefficient(strength, "the strength of envelopes")
    return strength


def enveloped(problem: Problem, strength: Any) -> Problem:
    """Return the problem with Moreau envelopes of another strength.

    Raises:
        Refusal: its loss is no envelope, so that another one need not have the stated bound on its gradients.
    """
    model: Any = problem.model
    if type(model) is not LinearModel or type(model.loss) is not Moreau:
        raise Refusal(f"loss must be an envelope (see Moreau) for envelopes of other strengths, got {model}")
    return replace(problem, model=LinearModel(Moreau(model.loss.loss, strength)))


@by_shapes
def _first_message(parts: tuple[Algorithm, Any], public: Public, message_of: Callable[[Algorithm, Any], Linear]) -> Any:
    """Return an algorithm's message of the first round, of shapes instead of numbers."""

    def first(parts):
        algorithm, start = parts
        one, name = jnp.float32(1), type(algorithm).__name__
        server = algorithm.init(public.with_start(start), one)
        message = linear.require_message(message_of(algorithm, server), start, name)
        statistic, key = linear.statistic_of(message), random_key(0)
        at = At(one, one, public.constraint.project, start, key, one, public.with_start(start))
        read = jax.tree.map(jnp.zeros_like, start) if statistic is None else jnp.zeros(statistic.shape)
        require_served(name, server, Calls(algorithm, isolated=True)("serve", server, read, at))
        return message

    return jax.eval_shape(first, parts)


def _stated(algorithm: Algorithm, public: Public, plain: bool) -> NormBound:
    """Return the stated bound on a message's norm, with its assumptions; inf if none is stated."""
    if plain:
        return lipschitz_bound(public)
    if type(algorithm).bound is Algorithm.bound:
        return NormBound(inf, ())
    stated, name = algorithm.bound(public), f"bound of {type(algorithm).__name__}"
    if type(stated) is not NormBound:
        raise Refusal(f"{name} must return a NormBound, got {called(stated)}")
    norm = float(stated.norm)
    require_positive(name, norm, infinite=True)
    require_clip(name, norm if norm < inf else None)
    return stated
