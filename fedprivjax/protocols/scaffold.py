r"""SCAFFOLD: local steps with control variates, which correct the drift of machines with different data.

Karimireddy et al., ICML 2020 (option II). With noise in every local step it is DP-SCAFFOLD (Noble et al., AISTATS
2022). The server holds c and every machine c_i, 0 at the start. A machine of the cohort takes FedAvg's local steps with
another direction,

    v ← Π_W(v − η·(g_k + ρ·(v − w_r) + c − c_i)),          c_i⁺ = (1/K_i)·Σ_k g_k

sends (v − w_r, c_i⁺ − c_i), 2d numbers, and keeps c_i⁺. The server adds the mean of the first part to w_r, and
(1/M)·Σ_{i∈S_r} (c_i⁺ − c_i) to c. A machine that is absent, or drops out, keeps c_i.

The paper's formula, c_i⁺ = c_i − c + (w_r − v)/(K_i·η), is the same mean without a constraint set and with ρ = 0. This
implementation uses the mean of the gradients themselves, which also holds with a constraint set, with ρ > 0 and with
an optimiser of the local steps. The optimiser receives the corrected direction.

With `unit = "machine"` the pair (v − w_r, K·η·(c_i⁺ − c_i)) is clipped as a whole to norm C, with K the largest number
of steps of a machine, and noised as a whole. With local epochs K follows from the largest machine: it is assumed to be
a public constant. The machine adds the clipped difference to c_i, so that c is the mean of
all c_i plus the noise of r rounds, which accumulates as √r.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.method.algorithm import Public
from fedprivjax.method.linear import Linear
from fedprivjax.method.local_algorithm import AtServer, Work, add, mul, sub, zeros
from fedprivjax.protocols.fedavg import FedAvg, LocalGradientSteps, ServerState


class Controlled(NamedTuple):
    """The server's FedAvg state, its control variate c, and 1/M."""

    average: ServerState
    control: Any
    share: Any


class Summed(NamedTuple):
    """Carry of local steps: FedAvg's walk, and the sum of the steps' gradients."""

    walk: Any
    total: Any


@struct.dataclass(kw_only=True)
class ControlVariates(LocalGradientSteps):
    """Algorithm of `Scaffold`: FedAvg's local steps, corrected by control variates.

    A control variate is a vector that a machine (client) keeps: the mean of its gradients in its last round.

    Attributes:
        scaled: True to send the change of a control variate multiplied by K·η, where K is the largest number of local
            steps of a machine and η the step size. The product has the scale of an update. Update and product are
            clipped together, as one message.
        prox: ρ of the proximal term (ρ/2)·‖v − w‖², which pulls a machine's point v to the received point w. None is no
            proximal term.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives minus the mean update as its gradient. If `server` is None, the
            server adds the mean update to its point.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, local steps are plain gradient steps.
        window: number of last iterates whose mean is reported.
    """

    scaled: bool = struct.field(pytree_node=False, default=True)

    equal_weights = True

    def init(self, public: Public, step: Any) -> Any:
        return Controlled(super().init(public, step), zeros(public.start), jnp.float32(1 / public.machines))

    def sends(self, server: Any) -> Any:
        """Return what the server sends to the machines of a round: its point w_r and its control variate c."""
        return server.average.w, server.control

    def own(self, public: Public) -> Any:
        """Return the control variate c_i that a machine keeps, before its first round: 0."""
        return zeros(public.start)

    def enter(self, received: Any, own: Any) -> Any:
        return Summed(super().enter(received[0], own), zeros(received[0]))

    def ask(self, carry: Summed) -> Linear:
        return super().ask(carry.walk)

    def move(self, carry: Summed, g: Any, received: Any, own: Any, work: Work) -> Summed:
        w, control = received
        moved = super().move(carry.walk, add(g, sub(control, own)), w, own, work)
        return Summed(moved, add(carry.total, g))

    def leave(self, carry: Summed, received: Any, own: Any, work: Work) -> Any:
        mean = jax.tree.map(lambda leaf: leaf / work.taken, carry.total)
        return super().leave(carry.walk, received[0], own, work), mul(self._scale(work), sub(mean, own))

    def keep(self, own: Any, message: Any, work: Work) -> Any:
        return jax.tree.map(lambda c, sent: c + sent / self._scale(work), own, message[1])

    def serve(self, server: Any, mean: Any, at: AtServer) -> Any:
        update, change = mean
        part = server.share * at.cohort / self._scale(at)
        average = super().serve(server.average, update, at)
        return Controlled(average, add(server.control, mul(part, change)), server.share)

    def point(self, server: Any) -> Any:
        return super().point(server.average)

    def _scale(self, known: Work | AtServer) -> Any:
        """Factor of the change of a control variate in a message."""
        return known.planned * known.step if self.scaled else 1.0


@struct.dataclass(kw_only=True)
class Scaffold(FedAvg):
    """SCAFFOLD, not private, or private for one record (DP-SCAFFOLD) or for one machine.

    Every machine (client) i keeps a control variate c_i: the mean of its gradients in its last round. The server keeps
    c, the mean of all c_i. Local steps go against the gradient plus c − c_i. Machines send their update and the change
    of c_i (Karimireddy et al. 2020; Noble et al. 2022).

    The settings are those of `FedAvg`. All machines have equal weights. `update_clip` bounds the joint L2 norm of two
    vectors of the same scale: the update, and the change of c_i times K·η. Here K is the largest number of local steps
    of a machine, and η the step size. With an `encoder`, machines keep exact c_i, but the server adds up encoded
    changes. Its c contains the encoding errors of all messages so far.

    **Privacy**: none, or (ε, δ)-DP for one record or for all records of one machine, as in `FedAvg` with the same
    settings. The server computes c from the noisy values only.

    Raises:
        Refusal: if a setting is invalid, or no theorem covers the combination of settings.

    >>> import numpy as np
    >>> from fedprivjax import Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> method = Scaffold(local_epochs=2, batch=10, step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

    @property
    def algorithm(self) -> ControlVariates:
        """Algorithm of the method: FedAvg's local steps with control variates."""
        return ControlVariates(scaled=self.update_clip is not None, **self._steps)
