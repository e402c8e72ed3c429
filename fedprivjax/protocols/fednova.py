r"""FedNova: FedAvg whose updates are normalised, so that machines with many local steps do not dominate.

Wang et al., NeurIPS 2020. Machine i takes FedAvg's K_i local steps. Its update is −η·Σ_k a_{i,k}·g_k with public
numbers a_{i,k}, which are 1 for plain steps. The server moves along the mean of the normalised updates,

    d_i = (v_i − w_r)/‖a_i‖₁          w_{r+1} = Π_W(w_r + τ·Σ_i p_i·d_i),          τ = Σ_i p_i·‖a_i‖₁

or, with `effective`, a fixed fraction of the largest number K of steps of a machine, τ = effective·K. ‖a_i‖₁ is
measured by a walk on the line with the same steps along gradients of 1. This covers the proximal term and linear
optimisers, such as momentum, as in the paper. The released code takes τ = Σ_i p_i·K_i with a proximal term.

A machine sends K·d_i and, without `effective`, ‖a_i‖₁/K. Both are one bounded message.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.values import require_fraction, require_positive
from fedprivjax.method.linear import Linear
from fedprivjax.method.local_algorithm import AtServer, Work, begun, mul, point_of
from fedprivjax.protocols.fedavg import LocalGradientSteps


class Measured(NamedTuple):
    """Carry of local steps: FedAvg's walk, and the walk on the line."""

    walk: Any
    line: Any


@struct.dataclass(kw_only=True)
class FedNova(LocalGradientSteps):
    """FedNova (Wang et al. 2020): FedAvg with normalised updates, for machines with unequal numbers of local steps.

    The update of a machine (client) is divided by the machine's *effective* number of steps. For plain steps, the
    effective number is the number of steps. The server adds τ times the weighted mean of the normalised updates. By
    default, τ is the weighted mean of the effective numbers of steps of the round's machines.

    Attributes:
        effective: fixed value of τ, as a fraction in (0, 1] of the largest number of steps of any machine. With None,
            machines also send their effective numbers of steps. With an `update_clip` (`LocalPrivacy`), an effective
            number is clipped together with the update.
        prox: ρ of the proximal term (ρ/2)·‖v − w‖², which pulls a machine's point v to the received point w. None is no
            proximal term.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives minus τ times the mean normalised update as its gradient. If
            `server` is None, the server takes the step above.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, local steps are plain gradient steps.
        window: number of last iterates whose mean is reported.

    >>> import numpy as np
    >>> from fedprivjax import LocalPrivacy, LocalSteps, Protocol, Uniform, datasets, from_dataset, simulate
    >>> from fedprivjax.plan.samplers import Subset
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> work = LocalSteps([20] * 10 + [4] * 10, Subset(10))
    >>> method = Protocol(FedNova(), privacy=LocalPrivacy(work=work), step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

    effective: Any = None

    def __post_init__(self):
        super().__post_init__()
        require_positive("effective", self.effective, optional=True)
        if isinstance(self.effective, int | float):
            require_fraction("effective", self.effective)

    def enter(self, received: Any, own: Any) -> Measured:
        return Measured(super().enter(received, own), begun(self.local, jnp.zeros(())))

    def ask(self, carry: Measured) -> Linear:
        return super().ask(carry.walk)

    def move(self, carry: Measured, g: Any, received: Any, own: Any, work: Work) -> Measured:
        free = work._replace(project=lambda point: point)
        line = super().move(carry.line, jnp.ones(()), jnp.zeros(()), own, free)
        return Measured(super().move(carry.walk, g, received, own, work), line)

    def leave(self, carry: Measured, received: Any, own: Any, work: Work) -> Any:
        length = -point_of(carry.line) / (work.step * work.planned)  # ‖a_i‖₁/K
        direction = mul(1 / length, super().leave(carry.walk, received, own, work))
        return (direction, length) if self.effective is None else direction

    def serve(self, server: Any, mean: Any, at: AtServer) -> Any:
        direction, length = mean if self.effective is None else (mean, self.effective)
        return super().serve(server, mul(length, direction), at)
