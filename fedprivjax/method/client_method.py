"""Base of custom methods whose machines do local work or keep a state.

A method says what one machine holds (`client_init`), what it computes (`client`), and what the server does with the sum
of the messages (`serve`).
"""

from typing import Any

import jax

from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.interface import Protocol
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.local_rounds import InRounds, LocalRounds, Split
from fedprivjax.method.round import RoundInputs
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem


class ClientMethod(InRounds, Split, Protocol):
    """A method with local work or client state. It defines `server_init`, `client`, `serve`, and `output`.

    Its `minibatches` are `LocalWork`; with another sampler, every record is a local step. `output`, `query` and
    `iterates` receive the `ClientState`.

    FedAvg without privacy, in which a machine counts its rounds:

    >>> import jax.numpy as jnp, numpy as np
    >>> from flax import struct
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

    # ---- the rounds

    @property
    def rounds(self) -> LocalRounds:
        """The rounds, of which this class says what machines and the server compute."""
        return LocalRounds(self, self.slot_classes, all_records=self.all_records)

    def _served(self, problem: Problem, server: Any, total: Any, weight: Any, inputs: RoundInputs, noise: Any, key):
        """Return the result of `serve`, which has no key of its own."""
        return self.serve(problem, server, total, weight, inputs, noise)

    # ---- on the host

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        ready: ClientMethod = self.rounds.fitted(problem, plan)
        return super(ClientMethod, ready).calibrate(problem, plan, target)
