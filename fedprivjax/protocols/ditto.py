r"""Ditto: a model for every client, pulled towards the shared one.

Li, Hu, Beirami & Smith, ICML 2021, Algorithm 1. The shared w is FedAvg's. In a round, a machine also moves its own
model v_i, which starts at w_0, by the gradients of its own records and towards the received w_r,

    v_i ← Π_W(v_i − η_p·(∇F_i(v_i) + λ·(v_i − w_r)))

These steps take the minibatches of the machine's steps for w, one by one, at the step η_p. The paper samples them
separately. Gradients of v_i have no bound and no noise, because v_i feeds no message: see
`fedprivjax/method/personal_part.py`. A machine that is absent, or drops out, keeps v_i.
"""

from typing import Any

import jax
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_positive
from fedprivjax.method.algorithm import Public
from fedprivjax.method.local_algorithm import Work
from fedprivjax.protocols.fedavg import LocalGradientSteps


@struct.dataclass(kw_only=True)
class Ditto(LocalGradientSteps):
    """Ditto (Li et al. 2021): FedAvg, and for every client a personal model that is pulled towards FedAvg's model.

    For each minibatch of a local step, machine (client) i also moves its personal model v_i against ∇F_i(v_i) + λ·(v_i
    − w). Here F_i is the loss on the minibatch, λ is `pull`, and w is the shared model that the machine received.
    Personal models never leave the machines.

    Attributes:
        pull: λ, strength of the pull, a positive number.
        personal_step: step size of the personal models. Default: the step size of the local steps.
        prox: ρ of the proximal term (ρ/2)·‖u − w‖². It pulls u, the machine's local copy of the shared model, to the
            received point w. None is no proximal term.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives minus the mean update as its gradient. If `server` is None, the
            server adds the mean update to its point.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, local steps are plain gradient steps.
        window: number of last iterates whose mean is reported.

    >>> import numpy as np
    >>> from fedprivjax import LocalEpochs, LocalPrivacy, Protocol, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> method = Protocol(Ditto(pull=0.5), privacy=LocalPrivacy(work=LocalEpochs(1, 10)), step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> run.own.shape
    (20, 10, 65)
    """

    pull: Any = 1.0
    personal_step: Any = None

    def __post_init__(self):
        super().__post_init__()
        require_positive("pull", self.pull)
        require_positive("personal_step", self.personal_step, optional=True)
        if self.local is not None and self.personal_step is None:
            raise Refusal("personal_step must be given with local, an optimiser of the shared model, got None. Set it")

    def own(self, public: Public) -> Any:
        return public.start

    def personal(self, point: Any, own: Any) -> Any:
        return own

    def adapt(self, own: Any, g: Any, received: Any, work: Work) -> Any:
        step = work.step if self.personal_step is None else self.personal_step
        moved = jax.tree.map(lambda v, g, w: v - step * (g + self.pull * (v - w)), own, g, received)
        return work.project(moved)
