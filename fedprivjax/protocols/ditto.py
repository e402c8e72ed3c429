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
    """Ditto (Li et al. 2021): FedAvg, and a personal model of every client, pulled towards the shared one.

    On each minibatch, machine i also moves its own model v_i against the gradient ∇F_i(v_i) + λ·(v_i − w). Here F_i is
    the loss on the minibatch, λ the strength `pull`, and w the shared model that the machine received. Personal models
    never leave their clients.

    Attributes:
        pull: λ, strength of the pull, a positive number.
        personal_step: step size of the personal models. Default: the step size of the local steps. Required with
            `local`.
        prox: ρ of a proximal term (ρ/2)·‖v − w‖² in the local objective of the shared model. It pulls the local iterate
            v of the shared model to the received point w. None is no such term.
        server_step: learning rate of `server`: a number, or a function of the round, counted from 0, such as
            `optax.cosine_decay_schedule(1.0, 100)`. It must be given with `optax.adam` or "adam". It must be left out
            without a `server`, and with `optax.adam(0.1)`, which has its own learning rate.
        server: optimiser of the server's step, with minus the mean update as its gradient: `optax.adam`, its name
            "adam", or `optax.adam(0.1)`. `ServerOptimizer` lists further forms. None adds the mean update.
        local: optimiser that replaces the plain local step, in the same forms as `server`. `optax.adam` has the
            `step_size` of the protocol as its learning rate. None is the plain step.
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
