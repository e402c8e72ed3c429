"""Rounds whose machines send growing sums, which they keep without noise between their rounds."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Algorithm, Before, Growing, Public, Reads
from fedprivjax.method.linear import Linear, require_gradients
from fedprivjax.method.local_algorithm import zeros
from fedprivjax.method.local_rounds import SERVER, LocalRounds
from fedprivjax.method.mean_rounds import MeanRounds
from fedprivjax.method.round import RoundInputs, add_noise
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key


class Held(NamedTuple):
    """Memory of the privacy object at one machine.

    Attributes:
        momentum: un-noised growing sum q_i, which no algorithm sees.
        seen: what the algorithm remembered in the machine's last round, zeros before its first.
        last_round: number of that round, 0 before the first.
    """

    momentum: Any
    seen: Any
    last_round: Any


class Received(NamedTuple):
    """Values that the machines of a round read: the server's state, and True in a run with noise."""

    server: Any
    private: bool


@dataclass(frozen=True, eq=False)
class SumRounds(MeanRounds):
    """Rounds whose server reads `Growing()` sums, of which every machine holds its own, see `Held`.

    They are `LocalRounds` without local steps.
    """

    @property
    def local(self) -> LocalRounds:
        """Rounds whose machines keep a state, and take no local steps."""
        return LocalRounds(self, classes=(), walks=False)

    # ---- traced

    def init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        return self.local.init(problem, size, key)

    def round(self, problem: Problem, state: Any, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        return self.local.round(problem, state, inputs, noise, key)

    def messages(self, problem: Problem, state: Any, inputs: RoundInputs, noise, key):
        return self.local.messages(problem, state, inputs, noise, key)

    def server_init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        return self.call("init", Public.of(problem, size.machines, key), self.step)

    def client_init(self, problem: Problem) -> Held:
        algorithm, public = self.planned, Public.of(problem, 1, random_key(0))
        stored = jax.eval_shape(lambda: algorithm.remember(algorithm.init(public, jnp.float32(1))))
        seen = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), stored)
        return Held(zeros(problem.start), seen, jnp.zeros(()))

    def shared(self, server: Any, noise: Any) -> Received:
        return Received(server, noise is not None)

    def client(self, server: Received, own: Held, data: Any, noise: Any, key: jax.Array):
        """Return the machine's new sum, which is both its message and held."""
        problem, inputs = data
        t, before = inputs.round, Before(own.seen, own.last_round)
        message = self.message(problem, "increment", server.server, t, before)
        problem = self.smoothed(problem, server.server)
        u = self.privacy.increment(problem, message, inputs, self._limits, private=server.private)
        growth = jnp.where(own.last_round > 0, (t - 1) / jnp.maximum(own.last_round, 1.0), 0.0)
        sent = jax.tree.map(lambda u, q: u + growth * q, u, own.momentum)
        return sent, Held(sent, self.call("remember", server.server), t), {}

    def client_noise(self, noise: Any, per_round: int) -> None:
        return None

    def encode(self, message: Any, key: jax.Array) -> Any:
        return message

    def client_weight(self, data: Any) -> float:
        return 1.0

    def serve(self, problem: Problem, server: Any, total, weight, inputs: RoundInputs, noise, key):
        read = add_noise(problem, jax.tree.map(lambda total: total / weight, total), noise)
        at = self.at(problem, inputs, jax.random.fold_in(key, SERVER))
        return self.call("serve", server, read, at)

    # ---- on the host

    def run_costs(self, problem: Problem, plan: Plan) -> dict[str, float]:
        return self.local.run_costs(problem, plan)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return size.per_round if problem.model.factored else max(size.per_round, rows)

    def check(self, problem: Problem, plan: Plan) -> None:
        if plan.schedule.dropped is not None:
            raise Refusal(
                f"dropouts must be left out with {self.protocol.name}: after one, a machine's earlier samples weigh "
                f"more in its next message than planned"
            )

    def required_reads(self, algorithm: Algorithm) -> Reads:
        reads = algorithm.reads
        if type(reads) is not Growing:
            raise Refusal(
                f"reads of {type(algorithm).__name__} must be Growing() with {self.protocol.name}, got {reads}"
            )
        return reads

    @staticmethod
    def first_message(algorithm: Algorithm, server: Any) -> Linear:
        nothing = zeros(algorithm.remember(server))
        message = algorithm.increment(server, jnp.float32(1), Before(nothing, jnp.zeros(())))
        return require_gradients(message, type(algorithm).__name__, "in growing sums")
