r"""DSGD: decentralised SGD, in which machines send noisy gradient steps to their neighbours, without a server.

Lian et al. 2017 (D-PSGD), with every record's gradient clipped and noise on every machine's mean gradient:

    x_i ← Σ_j W_ij·Π_K(x_j − η·((1/K)·Σ_k clip(∇f(x_j; z_jk)) + N(0, σ²·I)))        output (1/n)·Σ_i x_i

W may change from round to round (Koloskova et al. 2020). With noise that neighbours share in addition (`Pairwise`), it
is DECOR (Allouah et al. 2024), which protects a record: every record's gradient is clipped, not that of a minibatch.
With an optimiser, its state is mixed like x_i (Yu, Jin & Yang 2019).
"""

from typing import Any

from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.method.gossip import Gossip, GradientSteps
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.record_settings import RecordSettings
from fedprivjax.method.server_step import optimizer_field
from fedprivjax.noise.factors.interface import INDEPENDENT
from fedprivjax.noise.mixing import as_mixing
from fedprivjax.noise.pairwise import as_pairwise


@struct.dataclass(kw_only=True)
class DSGD(RecordSettings, Protocol):  # type: ignore[misc]
    """Decentralised SGD: machines send noisy gradient steps to their neighbours on a graph, without a server.

    Every machine takes a projected step along the noisy mean gradient of a sample of its own records. Then it averages
    its point with those of its neighbours. With additional noise that neighbours share (`Pairwise`), the method is
    DECOR (Allouah et al. 2024).

    Attributes:
        epsilon: target ε of every machine at the run's δ; inf is non-private. A list gives one ε for each machine.
        noise_std: σ, standard deviation per coordinate of the noise in a message of the machine with the largest noise
            (instead of `epsilon`).
        step_size: η, step size. It must be given.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        relative_privacy: one number for each machine, proportional to the machine's target ε. The machine with the
            largest number has the target ε. Each machine adds exactly the noise that its target needs. None gives all
            machines the target ε. Leave it out if `epsilon` is a list.
        batch: K, number of records in a message, or one number for each machine. None with the sampler "full".
        sampler: sampler of the records of a message: a key of `fedprivjax.plan.samplers.SAMPLERS`, or a `Sampler`
            object, such as `Subset(10)`, with `batch` left out.
        rate: public probability with which a message uses each record, for sampler = "poisson" only. The sum is still
            divided by K. Default: K divided by the machine's number of records.
        relation: neighbouring relation, a key of `fedprivjax.privacy.relations.RELATIONS`. Default: "replace-one".
            "add-or-remove-one" needs Poisson samples of a public `rate`, and noise_rule = "accountant".
        noise_rule: rule that computes σ from ε, a key of `fedprivjax.privacy.noise_rules.NOISE_RULES`.
        delta: δ of every machine, or one number for each machine, at most the run's δ. "records" stands for 1/n_i² for
            a machine with n_i records. Default: the run's δ.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the method's own formula,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the run's participation schedule.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is an adversary who sees
            everything that machines send.
        mixing: weights with which machines average with their neighbours: a graph, a matrix of weights, or a list of
            these for consecutive rounds. Graphs are, for example, "ring", "complete" and a networkx graph. `Gossip`
            lists all.
        noise_schedule: "independent", or a `Pairwise`, which adds independent noise and noise that neighbours share.
        server: optimiser of every machine's steps: `optax.adam` or "adam", with `step_size` as its learning rate, or
            `optax.adam(0.1)`, whose updates are multiplied by `step_size`, usually 1. `ServerOptimizer` lists further
            forms. None is the plain step. The setting has this name in all methods, although there is no server here.

    **Privacy**: (ε_i, δ_i)-DP of all messages of machine i for one of its records, under the neighbouring relation
    `relation`. Averaging is post-processing.

    Raises:
        Refusal: if a setting is invalid, or both `epsilon` and `noise_std` are given.

    >>> import numpy as np
    >>> from fedprivjax import Ball, Full, datasets, from_dataset, ready
    >>> rows = np.arange(1420).reshape(20, 71)  # 20 machines of 71 records
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=rows)
    >>> method = DSGD(epsilon=8.0, clip=1.6, sampler="full", step_size=0.5, mixing="ring")
    >>> round(ready(method, problem, Full(20), rounds=10).guarantee.epsilon, 3)
    8.0
    """

    mixing: Any = host_only("ring")
    noise_schedule: Any = host_only(INDEPENDENT)
    server: Any = optimizer_field()

    def __post_init__(self):
        object.__setattr__(self, "noise_schedule", as_pairwise(self.noise_schedule))
        object.__setattr__(self, "mixing", as_mixing(self.mixing))
        super().__post_init__()

    @property
    def algorithm(self) -> Gossip:
        """Algorithm of the method: a gradient step of every machine, and averaging with its neighbours."""
        return Gossip(GradientSteps(server=self.server), mixing=self.mixing)

    @property
    def privacy(self) -> NoisyRecords:
        """Privacy object of the method: noise on every machine's mean gradient."""
        return NoisyRecords(**self._shared, noise=self.noise_schedule)
