r"""FedExP: FedAvg whose server step is longer if the updates of machines differ more.

Jhunjhunwala, Wang & Joshi, ICLR 2023. A machine sends its update Δ_i and the square of its norm. With a the means of
a cohort of m machines,

    η_g = max(1, mean of ‖Δ_i‖² / (2·(‖mean of Δ_i‖² + κ)))          w_{r+1} = Π_W(w_r + η_g·mean of Δ_i)

The reported point is the mean of the last two iterates, as in the paper. In a private run the pair of update and square
is one message: it is bounded and noised as a whole.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.values import require_positive
from fedprivjax.method.algorithm import Public
from fedprivjax.method.local_algorithm import AtServer, LocalAlgorithm, Work, add, mul, walked
from fedprivjax.method.server_step import initial, optimizer_field, served


class ExpState(NamedTuple):
    """Iterates w_r and w_{r−1}, and the state of the server optimiser."""

    w: Any
    before: Any
    optimizer: Any


@struct.dataclass
class FedExP(LocalAlgorithm):
    """FedExP (Jhunjhunwala et al. 2023): FedAvg with longer server steps if the updates of machines differ more.

    Let Δ_i be the update of machine (client) i in a round, Δ the mean of all Δ_i, and s the mean of all ‖Δ_i‖². The
    server adds η_g·Δ to its point. The factor is η_g = max(1, s/(2·(‖Δ‖² + κ))), with κ = `offset`. The run reports the
    mean of the last two iterates.

    Attributes:
        offset: κ, a small positive number that keeps η_g finite.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, local steps are plain gradient steps.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives −η_g·Δ as its gradient. If `server` is None, the server adds η_g·Δ
            to its point.
        server_step: learning rate of the optimiser `server`, a number. Leave it out if there is no `server`, or if the
            `server` has its own learning rate, such as `optax.adam(0.1)`.

    >>> import numpy as np
    >>> from fedprivjax import LocalEpochs, LocalPrivacy, Protocol, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> method = Protocol(FedExP(), privacy=LocalPrivacy(work=LocalEpochs(1, 10)), step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.8)
    True
    """

    offset: Any = 1e-3
    local: Any = optimizer_field()
    server: Any = optimizer_field()
    server_step: Any = None

    def __post_init__(self):
        super().__post_init__()
        require_positive("offset", self.offset)
        require_positive("server_step", self.server_step, optional=True)

    def init(self, public: Public, step: Any) -> ExpState:
        return ExpState(public.start, public.start, initial(self.server, public.start))

    def sends(self, server: ExpState) -> Any:
        return server.w

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        return walked(self.local, carry, g, work)

    def leave(self, carry: Any, received: Any, own: Any, work: Work) -> Any:
        update = super().leave(carry, received, own, work)
        return update, square(update)

    def serve(self, server: ExpState, mean: Any, at: AtServer) -> ExpState:
        update, squares = mean
        step = jnp.maximum(1.0, squares / (2 * (square(update) + self.offset)))
        w, optimizer = served(self.server, server.optimizer, server.w, self.server_step, mul(step, update))
        return ExpState(at.project(w), server.w, optimizer)

    def point(self, server: ExpState) -> Any:
        return mul(0.5, add(server.w, server.before))

    def iterates(self, server: ExpState) -> dict[str, Any]:
        """Return the last iterate under the name "last". Metrics evaluate it in addition to the reported mean."""
        return {"last": server.w}


def square(tree: Any) -> Any:
    """Return the square of a pytree's norm."""
    return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))
