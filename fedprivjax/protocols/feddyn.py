r"""FedDyn: local steps on a loss whose linear term is corrected from round to round.

Acar et al., ICLR 2021. The server holds h and every machine h_i, 0 at the start. A machine of the cohort takes local
steps on its loss with a linear and a proximal term, and keeps the change of its linear term,

    v ← Π_W(v − η·(g_k − h_i + α·(v − w_r)))          h_i ← h_i − α·(v − w_r)
    h ← h − (α/M)·Σ_{i∈S_r} (v_i − w_r)               w_{r+1} = Π_W(mean of v_i − h/α)

The paper minimises the local loss exactly; here a machine takes the local steps that the run states.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.values import require_positive
from fedprivjax.method.algorithm import Public
from fedprivjax.method.local_algorithm import AtServer, LocalAlgorithm, Work, add, mul, point_of, sub, walked, zeros
from fedprivjax.method.server_step import initial, optimizer_field, served


class DynState(NamedTuple):
    """Iterate w_r, the server's h, 1/M, and the state of the server optimiser."""

    w: Any
    h: Any
    share: Any
    optimizer: Any


@struct.dataclass
class FedDyn(LocalAlgorithm):
    """FedDyn (Acar et al. 2021): local steps with a correction for machines whose data differ.

    Machine (client) i keeps a vector h_i, and the server keeps a vector h. All are 0 before the first round. In a
    round, machine i starts at the server's point, v = w_r, and takes local steps v ← Π(v − η·(g − h_i + α·(v − w_r))).
    Here g is a minibatch gradient, η the step size, and Π the projection onto the constraint set.

    With v_i its last v, machine i sends v_i − w_r, and sets h_i ← h_i − α·(v_i − w_r). The server sets h ← h −
    (α/M)·Σ_i (v_i − w_r), where M is the number of all machines. The sum is over the machines of the round. The
    server's next point is w_{r+1} = Π(v̄ − h/α), where v̄ is the mean of the v_i in the round. All machines have equal
    weights.

    Attributes:
        alpha: α, strength of the term that pulls v to w_r; positive.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, machines take the local steps above.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives w_r − (v̄ − h/α) as its gradient. If `server` is None, the next
            point is w_{r+1} as above.
        server_step: learning rate of the optimiser `server`, a number. Leave it out if there is no `server`, or if the
            `server` has its own learning rate, such as `optax.adam(0.1)`.

    >>> import numpy as np
    >>> from fedprivjax import LocalEpochs, LocalPrivacy, Protocol, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> private = LocalPrivacy(work=LocalEpochs(1, 10), unit="machine", update_clip=1.0)
    >>> method = Protocol(FedDyn(alpha=0.1), privacy=private, epsilon=8.0, step_size=0.1)
    >>> round(simulate(method, problem, Uniform(20, 10), rounds=5).guarantee.epsilon, 2)
    8.0
    """

    alpha: Any = 0.1
    local: Any = optimizer_field()
    server: Any = optimizer_field()
    server_step: Any = None

    equal_weights = True

    def __post_init__(self):
        super().__post_init__()
        require_positive("alpha", self.alpha)
        require_positive("server_step", self.server_step, optional=True)

    def init(self, public: Public, step: Any) -> DynState:
        share, optimizer = jnp.float32(1 / public.machines), initial(self.server, public.start)
        return DynState(public.start, zeros(public.start), share, optimizer)

    def sends(self, server: DynState) -> Any:
        return server.w

    def own(self, public: Public) -> Any:
        """Return the vector h_i that a machine keeps, before its first round: 0."""
        return zeros(public.start)

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        direction = add(sub(g, own), mul(self.alpha, sub(point_of(carry), received)))
        return walked(self.local, carry, direction, work)

    def keep(self, own: Any, message: Any, work: Work) -> Any:
        return sub(own, mul(self.alpha, message))

    def serve(self, server: DynState, mean: Any, at: AtServer) -> DynState:
        h = sub(server.h, mul(self.alpha * at.cohort * server.share, mean))
        correction = mul(-1 / self.alpha, h)
        w, optimizer = served(self.server, server.optimizer, server.w, self.server_step, mean, correction)
        return DynState(at.project(w), h, server.share, optimizer)

    def point(self, server: DynState) -> Any:
        return server.w
