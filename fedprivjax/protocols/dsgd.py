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

    Every machine takes a projected step along the noisy mean gradient of a sample of its own records, and then averages
    its point with its neighbours'. With noise that neighbours share (`Pairwise`) it is DECOR (Allouah et al. 2024).

    Attributes:
        epsilon, noise_std, step_scale, clip, relative_privacy, batch, sampler, rate, relation, noise_rule, delta: as in
            `NoisyMinibatchSGD`.
        calibrate_to, adversary: as in `Protocol`.
        step_size: η, which is required.
        mixing: weights with which machines average with their neighbours, as in `Gossip`.
        noise_schedule: "independent", or a `Pairwise` for noise that neighbours share in addition (DECOR).
        server: optimiser with which every machine takes its own step (there is no server; the name is that of
            `NoisySGD`): any optax transformation or schedule. None is the plain step.

    **Privacy**: (ε_i, δ_i)-DP of all messages of machine i for replacing one of its records, as `NoisyMinibatchSGD`
    with the same settings. Averaging is post-processing.

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
        """Gradient steps of every machine, and mixing."""
        return Gossip(GradientSteps(server=self.server), mixing=self.mixing)

    @property
    def privacy(self) -> NoisyRecords:
        """Noise on every machine's mean gradient."""
        return NoisyRecords(**self._shared, noise=self.noise_schedule)
