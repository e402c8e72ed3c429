r"""SCAFFOLD: local steps with control variates, which correct the drift of machines with different data.

Karimireddy et al., ICML 2020 (option II). With noise in every local step it is DP-SCAFFOLD (Noble et al., AISTATS
2022). The server holds c and every machine c_i, 0 at the start. A machine of the cohort takes FedAvg's local steps with
another direction,

    v ← Π_W(v − η·(g_k + ρ·(v − w_r) + c − c_i)),          c_i⁺ = (1/K_i)·Σ_k g_k

sends (v − w_r, c_i⁺ − c_i), 2d numbers, and keeps c_i⁺. The server adds the mean of the first part to w_r, and
(1/M)·Σ_{i∈S_r} (c_i⁺ − c_i) to c. A machine that is absent, or drops out, keeps c_i.

The paper's formula, c_i⁺ = c_i − c + (w_r − v)/(K_i·η), is the same mean without a constraint set and with ρ = 0. The
mean of the gradients themselves is used here, which also holds with them.

With `unit = "machine"` the pair (v − w_r, K·η·(c_i⁺ − c_i)) is clipped as a whole to norm C, with K the largest number
of steps of a machine, and noised as a whole. With local epochs K follows from the largest machine: it is assumed to be
a public constant. The machine adds the clipped difference to c_i, so that c is the mean of
all c_i plus the noise of r rounds, which accumulates as √r.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.method.client_method import ClientState
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.local_steps import ServerState
from fedprivjax.method.round import RoundInputs
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.fedavg import FedAvg


class Controlled(NamedTuple):
    """The server's FedAvg state, its control variate c, and 1/M."""

    average: ServerState
    control: Any
    share: Any


@struct.dataclass(kw_only=True)
class Scaffold(FedAvg):
    """SCAFFOLD, non-private, or private for one record (DP-SCAFFOLD) or for one machine.

    Its state has M·d numbers: one control variate for each machine. The settings are those of `FedAvg`, with equal
    weights; `update_clip` bounds the pair of the update and the scaled change of the control variate.
    With an `encoder`, a machine keeps its exact control variate. The server adds up encoded changes, so its control
    variate is the machines' mean plus the errors of all messages so far, of mean 0 for an unbiased encoder.

    **Privacy**: as in `FedAvg`. The control variates are computed from what is released.

    >>> import numpy as np
    >>> from fedprivjax import Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> method = Scaffold(local_epochs=2, batch=10, step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

    weighs_machines: ClassVar[bool] = False

    def server_init(self, problem: Problem, size: Size, key) -> Controlled:
        zero = jax.tree.map(jnp.zeros_like, problem.start)
        return Controlled(super().server_init(problem, size, key), zero, jnp.float32(1 / size.machines))

    def client_init(self, problem: Problem):
        """The machine's control variate c_i."""
        return jax.tree.map(jnp.zeros_like, problem.start)

    def client(self, server: Controlled, own, data: LocalData, noise, key):
        w = server.average.w
        end, mean = self.walk(w, data, noise, correction=jax.tree.map(jnp.subtract, server.control, own))
        update, change = jax.tree.map(jnp.subtract, (end, mean), (w, own))
        change = jax.tree.map(lambda leaf: jnp.where(data.steps > 0, leaf, 0.0), change)
        scale = self.control_scale(data.samples.shape[0])
        pair, info = self.bounded((update, jax.tree.map(lambda leaf: scale * leaf, change)), server.average)
        own = jax.tree.map(lambda c, sent: c + sent / scale, own, pair[1])
        return self.message(pair, server.average, info, noise), own, info

    def serve(self, problem: Problem, server: Any, total, weight, inputs: RoundInputs, noise) -> Any:
        (update, change), average = self.noisy_mean(server.average, total, weight, inputs, noise)
        part = (
            server.share
            * self.cohort(weight, inputs)
            / self.control_scale(self.minibatches.cut(inputs.samples.shape[-1]))
        )
        control = jax.tree.map(lambda c, change: c + part * change, server.control, change)
        return Controlled(self.moved(problem, average, update), control, server.share)

    def control_scale(self, steps: int):
        """Factor of the change of a control variate in a message: K·η if the pair is clipped, else 1."""
        return 1.0 if self.update_clip is None else steps * self.step_scale * self.step_size

    def moves(self, server: Controlled, own, data: LocalData, noise):
        correction = jax.tree.map(jnp.subtract, server.control, own)
        return self.walk(server.average.w, data, noise, correction=correction, every_step=True)[1]

    def at_server(self, state: ClientState) -> ServerState:
        return state.server.average

    def broadcast(self, state: ClientState) -> Any:
        """The server's control variate, with the logarithm of an adaptive clip."""
        return state.server.control, super().broadcast(state)

    def message_dimension(self, problem: Problem) -> int:
        return 2 * problem.dimension + self.adaptive

    def event(self, problem: Problem, plan: Plan) -> Event:
        """Event of the messages. With unit = "machine", K scales all of them, so it must not depend on the data."""
        event = super().event(problem, plan)
        if self.unit != "machine" or self.local_steps is not None:
            return event
        return event.assuming(Assumption("public steps", {"steps": int(self.steps_of_machines(problem, plan).max())}))
