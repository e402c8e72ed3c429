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

    In each round, every machine (client) takes a projected step along the noisy mean gradient of a sample of its own
    records. Then every machine averages its point with the points of its neighbours. If `noise_schedule` is a
    `Pairwise`, the method is DECOR (Allouah et al. 2024).

    Attributes:
        epsilon: target ε: one number for all machines, or one for each. It holds at the δ of the machine, see `delta`.
            With inf, the run has no noise.
        noise_std: σ, standard deviation per coordinate of the noise in a message, given instead of `epsilon`. If the
            noises of machines differ, σ is the largest one.
        step_size: η, step size. Required.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        relative_privacy: one number for each machine, proportional to the machine's own target ε. The largest number
            belongs to the target `epsilon`. None gives all machines the target `epsilon`.
        batch: K, number of records in a message: one number for all machines, or one for each. It must be None if
            `sampler` is "full" or a `Sampler` object.
        sampler: sampler of the records of a message: a name of `fedprivjax list samplers`, or a `Sampler` object with
            its own K, such as `Subset(10)`.
        rate: public probability with which a message uses each record, for sampler = "poisson" only. The sum of the
            gradients is divided by K for any `rate`. Default: K divided by the machine's number of records.
        relation: neighbouring relation: "replace-one" (default) or "add-or-remove-one". "add-or-remove-one" needs
            Poisson samples of a public `rate`.
        noise_rule: rule that computes σ from ε: "accountant" (default) or "advanced".
            `fedprivjax.privacy.noise_rules.NOISE_RULES` describes both.
        delta: δ of every machine, or one number for each machine, at most the run's δ. "records" stands for 1/n_i² for
            a machine with n_i records. Default: the run's δ.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" follows `noise_rule`, as if
            every machine took part in every round. "plan" is the smallest noise that meets the target on the
            participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is an adversary who sees
            everything that machines send.
        mixing: weights of the averages over neighbours: a graph, a matrix of weights, or a list of graphs or matrices
            for consecutive rounds. A graph is, for example, "ring", "complete" or a networkx graph. `Gossip` lists all
            forms.
        noise_schedule: "independent", or a `Pairwise`.
        server: optimiser of every machine's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`. The updates of an optimiser with its own learning rate, such as `optax.adam(0.1)`, are
            multiplied by `step_size`. `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient
            steps.

    **Privacy**: (ε_i, δ_i)-DP for one record of machine i, under the neighbouring relation `relation`. The guarantee
    covers all messages of machine i together. Averaging is post-processing.

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
