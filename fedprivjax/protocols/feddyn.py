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
from fedprivjax.method.server_step import optimizer_field


class DynState(NamedTuple):
    """Iterate w_r, the server's h, and 1/M."""

    w: Any
    h: Any
    share: Any


@struct.dataclass
class FedDyn(LocalAlgorithm):
    """FedDyn, which corrects the drift of machines with different data by a dynamic regulariser.

    Every machine holds d numbers. Use it with equal weights.

    Attributes:
        alpha: α, strength of the proximal term.
        local: any optax transformation or schedule of the local steps, as in `FedAvg`.

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

    equal_weights = True

    def __post_init__(self):
        super().__post_init__()
        require_positive("alpha", self.alpha)

    def init(self, public: Public, step: Any) -> DynState:
        return DynState(public.start, zeros(public.start), jnp.float32(1 / public.machines))

    def sends(self, server: DynState) -> Any:
        return server.w

    def own(self, public: Public) -> Any:
        """The machine's linear term h_i."""
        return zeros(public.start)

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        direction = add(sub(g, own), mul(self.alpha, sub(point_of(carry), received)))
        return walked(self.local, carry, direction, work)

    def keep(self, own: Any, message: Any, work: Work) -> Any:
        return sub(own, mul(self.alpha, message))

    def serve(self, server: DynState, mean: Any, at: AtServer) -> DynState:
        h = sub(server.h, mul(self.alpha * at.cohort * server.share, mean))
        return server._replace(w=at.project(sub(add(server.w, mean), mul(1 / self.alpha, h))), h=h)

    def point(self, server: DynState) -> Any:
        return server.w
