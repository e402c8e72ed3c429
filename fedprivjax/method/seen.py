"""Optional members of protocols with their defaults: an adversary's view, and costs."""

from math import ceil
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.round import RoundInputs, flat_rows, is_layered, rows_in_memory
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.adversaries import BY_TRUST, Adversary
from fedprivjax.privacy.optional_members import Optionals, privacy_of
from fedprivjax.privacy.views import FullView, View
from fedprivjax.problem.dense_layers import in_layers
from fedprivjax.problem.problem import Problem, numbers_of_one


class Seen(Optionals):
    """Functions that compute an adversary's view of a protocol.

    Each member is looked up by its name in this order: in the protocol, in the object that computes the protocol's
    rounds (`protocol.rounds`), and in this class, which has the defaults. `view` and `reduced` run on the host. The
    other functions can be traced by JAX.

    Attributes:
        holds_models: True if every machine holds a model, which `models` returns.
    """

    holds_models: bool = False

    def query(self, state: Any) -> Any:
        """Return the point at which machines compute gradients in the next round, which is public in all trust models.

        Default: the output.
        """
        return self._protocol.output(state)

    def messages(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> Any:
        """Return the participants' messages without their final noise, leaves [per_round, ...]."""
        raise Undefined(f"{self._protocol.name} must define messages, for a transcript")

    def sent(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, own_noise: Any, key: jax.Array):
        """Return the messages that participants send, noise included, [per_round, d].

        Args:
            own_noise: noise of each participant's message, as returned by `noise`, leaves [per_round, ...], or None.
        """
        return noisy_rows(problem, self.messages(problem, state, inputs, noise, key), own_noise)

    def noisy_steps(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> Any:
        """Return every noisy local step of each participant, leaves [per_round, steps, ...], or None.

        They are part of the transcript if the guarantee counts each step as released. Default: None, only messages are
        released.
        """
        return None

    def step_noises(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> Any:
        """Return the noise in every local step of each participant, leaves [per_round, steps, ...], or None.

        Default: None, local steps have no noise.
        """
        return None

    def broadcast(self, state: Any) -> Any:
        """Return the numbers other than the query that the server sends to all machines, a pytree. Default: ().

        Every adversary sees them.
        """
        return ()

    def models(self, state: Any) -> Any:
        """Return the model that every machine holds, leaves [machines, ...]. Default: None, machines hold none."""

    def reduced(self, messages: Any) -> Any:
        """Return messages, or sums of them, as an adversary sees them, on the host. Default: as they are."""
        return messages

    def decoded(self, messages: Any) -> Any:
        """Return all messages of a run in units of the parameters, for audits. Default: as they are."""
        return messages

    def internal(self, state: Any) -> Any:
        """Return the server's memory after a round, as an intruder would read it, a pytree. Default: (), nothing."""
        return ()

    def view(self, full: FullView) -> View:
        """Return the view of the trust model's adversary, on the host."""
        return BY_TRUST[privacy_of(self._protocol).trust].view(full)


def adversary_of(protocol: Any) -> Adversary:
    """Return the adversary of a protocol's guarantee."""
    named = getattr(protocol, "adversary", None)
    return BY_TRUST[privacy_of(protocol).trust] if named is None else named


def view_of(protocol: Any, problem: Problem, plan: Plan, full: FullView) -> View:
    """Return the view of the adversary of a calibrated protocol's guarantee, on the host.

    Args:
        full: view of everything, of the plan's rounds or of several runs of them, one after another.
    """
    if getattr(protocol, "adversary", None) is None:
        return seen_of(protocol).view(full)
    machines = plan.schedule.participants
    known = protocol.adversary.known(protocol.rounds.sent_noise(problem, plan), plan.schedule)
    runs = len(full.messages) // len(machines)
    tiled = [None if rows is None else np.tile(rows, (runs, 1)) for rows in (machines, known)]
    full = full._replace(machines=tiled[0], known=tiled[1], federation=plan.size.machines)
    return protocol.adversary.view(full)


class Costs(Optionals):
    """Costs of a protocol, such as the bits of a message, computed on the host.

    Each member is looked up by its name in this order: in the protocol, in the object that computes the protocol's
    rounds (`protocol.rounds`), and in this class, which has the defaults.

    Attributes:
        gradients_spared: number of gradients per use of a record that the method needs but the simulation does not,
            because it computes the same result in another way.
    """

    gradients_spared: int = 0

    def message_dimension(self, problem: Problem) -> int:
        """Return the number of coordinates of a message and of its noise. Default: as many as parameters."""
        return problem.dimension

    def message_bits(self, problem: Problem) -> float:
        """Return the number of bits of one message. Default: 32 for each coordinate."""
        return 32.0 * self.message_dimension(problem)

    def costs(self, problem: Problem) -> dict[str, float]:
        """Return the costs of one machine in one round, by name.

        They are `sent_messages` (number of messages), `sent_bits` (bits of all these messages together) and
        `gradients_per_use` (gradients computed for each use of a record). By default, a machine sends one message of
        `message_bits` bits and computes one gradient per use.

        With a shuffler, each message is one bit with the label of its coordinate, 1 + ⌈log₂ d⌉ bits for d coordinates.
        """
        return of_one_message(self.message_bits(problem))

    def run_costs(self, problem: Problem, plan: Plan) -> dict[str, float]:
        """Return further costs of a whole run by name, such as the memory of machines' states. Default: none."""
        return {}

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        """Return how many vectors of d numbers (messages or per-record gradients) are in memory at once.

        By default, clipped gradients are computed in chunks, and the number is the size of a chunk. Without a clip, the
        number is 0.

        Args:
            problem: the optimisation problem.
            size: numbers of rounds, machines and machines per round.
            rows: number of records that a round uses.
        """
        return clipped_rows(self._protocol, problem, rows)


def seen_of(protocol: Any) -> Seen:
    """Return what an adversary may see of a protocol."""
    return Seen(protocol)


def costs_of(protocol: Any) -> Costs:
    """Return what a protocol costs."""
    return Costs(protocol)


def noisy_rows(problem: Problem, messages: Any, own_noise: Any) -> jax.Array:
    """Return messages with their noise, [per_round, d], from leaves [per_round, ...]."""
    rows = flat_rows(problem, messages)
    return rows if own_noise is None else rows + own_noise


def of_one_message(bits: float, gradients: float = 1.0) -> dict[str, float]:
    """Return the costs of one message of a machine in a round, as in `Costs.costs`."""
    return {"sent_messages": 1.0, "sent_bits": bits, "gradients_per_use": float(gradients)}


def clipped_rows(protocol: Any, problem: Problem, rows: int) -> int:
    """Return the memory of clipped gradients of a round's records at once, as a number of vectors of parameters."""
    if privacy_of(protocol).clip is None:
        return 0
    if not (getattr(protocol.known, "plain", False) and is_layered(problem)):
        return rows_in_memory(problem, rows)
    each = max(problem.dimension - in_layers(problem), numbers_of_one(problem))
    return ceil(rows_in_memory(problem, rows, factored=True) * each / problem.dimension)
