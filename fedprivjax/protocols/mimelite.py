r"""MimeLite: local steps with the server's momentum, which stays fixed during a round.

Karimireddy et al., NeurIPS 2021. The server holds a momentum m, 0 at the start. A machine of the cohort takes local
steps, and sends its update with its gradient G_i at the server's point,

    v ← Π_W(v − η·((1−β)·g_k + β·m))          w_{r+1} = mean of v_i          m ← (1−β)·mean of G_i + β·m

The paper takes G_i over all records of the machine. Here it is that of the first local step, whose minibatch is at the
server's point: every local step asks one message, so it costs no further privacy. The pair (v − w_r, η·G_i) is one
message.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.values import require_positive, require_probability
from fedprivjax.method.algorithm import Public
from fedprivjax.method.linear import Linear
from fedprivjax.method.local_algorithm import AtServer, LocalAlgorithm, Work, add, mul, walked, zeros
from fedprivjax.method.server_step import initial, optimizer_field, served


class MimeState(NamedTuple):
    """Iterate w_r, momentum m, and the state of the server optimiser."""

    w: Any
    momentum: Any
    optimizer: Any


class Begun(NamedTuple):
    """Carry of local steps: the walk, the gradient of the first step, and 1 after that step, else 0."""

    walk: Any
    first: Any
    begun: Any


@struct.dataclass
class MimeLite(LocalAlgorithm):
    """MimeLite (Karimireddy et al. 2021): local steps along the server's momentum, which is fixed during a round.

    A machine (client) starts at the server's point and takes local steps v ← Π(v − η·((1−β)·g + β·m)). Here g is a
    minibatch gradient, m the server's momentum, η the step size, and Π the projection onto the constraint set. The
    machine sends its update (its last point minus the server's point), and the gradient G of its first minibatch. The
    server's next point is the mean of the machines' last points. The server's next momentum is (1−β)·Ḡ + β·m, with Ḡ
    the mean of the gradients G.

    Attributes:
        beta: β, weight of the momentum, in (0, 1).
        local: optimiser of the local steps, in one of the forms of `server`. It receives (1−β)·g + β·m as its gradient.
            The learning rate of `optax.adam` is the `step_size` of the protocol. If `local` is None, machines take the
            local steps above.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives minus the mean update as its gradient. If `server` is None, the
            server adds the mean update to its point.
        server_step: learning rate of the optimiser `server`, a number. Leave it out if there is no `server`, or if the
            `server` has its own learning rate, such as `optax.adam(0.1)`.

    >>> import numpy as np
    >>> from fedprivjax import LocalEpochs, LocalPrivacy, Protocol, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> method = Protocol(MimeLite(beta=0.5), privacy=LocalPrivacy(work=LocalEpochs(1, 10)), step_size=0.05)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

    beta: Any = 0.9
    local: Any = optimizer_field()
    server: Any = optimizer_field()
    server_step: Any = None

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.beta, int | float):
            require_probability("beta", self.beta)
        require_positive("server_step", self.server_step, optional=True)

    def init(self, public: Public, step: Any) -> MimeState:
        return MimeState(public.start, zeros(public.start), initial(self.server, public.start))

    def sends(self, server: MimeState) -> Any:
        """Return what the server sends to the machines of a round: its point w_r and its momentum m."""
        return server._replace(optimizer=())

    def enter(self, received: MimeState, own: Any) -> Begun:
        return Begun(super().enter(received.w, own), zeros(received.w), jnp.zeros(()))

    def ask(self, carry: Begun) -> Linear:
        return super().ask(carry.walk)

    def move(self, carry: Begun, g: Any, received: MimeState, own: Any, work: Work) -> Begun:
        first = jax.tree.map(lambda new, old: jnp.where(carry.begun > 0, old, new), g, carry.first)
        direction = add(mul(1 - self.beta, g), mul(self.beta, received.momentum))
        return Begun(walked(self.local, carry.walk, direction, work), first, jnp.ones(()))

    def leave(self, carry: Begun, received: MimeState, own: Any, work: Work) -> Any:
        return super().leave(carry.walk, received.w, own, work), mul(work.step, carry.first)

    def serve(self, server: MimeState, mean: Any, at: AtServer) -> MimeState:
        update, scaled = mean
        momentum = add(mul((1 - self.beta) / at.step, scaled), mul(self.beta, server.momentum))
        w, optimizer = served(self.server, server.optimizer, server.w, self.server_step, update)
        return MimeState(at.project(w), momentum, optimizer)

    def point(self, server: MimeState) -> Any:
        return server.w
