r"""Projected SGD on batches of users: P_SGD and P_GD of Cheu, Joseph, Mao & Peng (ICLR 2022), in four trust models.

With b users of one record each in a round,

    g = (private sum of ∇f(w_t; x_i) over the batch)/b
    w_{t+1} = Π_W(w_t − η·g)                                    output (w_0 + … + w_{T−1})/T

P_SGD (Algorithm 3) uses every user once, in batches: `OnePass` participation. P_GD (Algorithm 5) uses all users in
every round: `Full`, with `order="cyclic"`. The paper's listings have w + ηg, where g estimates the gradient.
"""

from typing import Any

from flax import struct

from fedprivjax.method.server_step import optimizer_field
from fedprivjax.protocols.noisy_sgd import OF_USERS, SGD
from fedprivjax.protocols.user_settings import UserSettings


@struct.dataclass(kw_only=True)
class UserSGD(UserSettings):
    """Projected SGD on batches of users (machines with one record each), in four trust models.

    It is P_SGD and P_GD of Cheu et al. 2022. In round t, the server steps along a private mean of the users' gradients
    at its point w_t. The setting `trust` says how the mean is made private. After T rounds, the server reports the mean
    of w_0 … w_{T−1}.

    Attributes:
        epsilon: target ε of every record, at the run's δ; inf is non-private.
        noise_std: σ, standard deviation of the noise per message. In every trust model, the noise in the sum of n
            messages has standard deviation σ·√n in each coordinate.
        step_scale: factor on `step_size`, given or the theory's.
        step_size: η. None is the theory's step. If a clip is below the Lipschitz constant, None is the rule of thumb of
            `NoisySGD` (no theorem is claimed).
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        trust: "shuffler" has sums of one-bit messages with binomial noise. "none" has Gaussian noise on every message,
            and "server" on the sum. "pan-private" has Gaussian noise on the sum twice, because an intruder may read the
            memory once.
        levels: g, number of integer levels to which a coordinate is rounded, for "shuffler"; None is the accounting's
            rule.
        rounding: how the accounting compares the random roundings of two neighbouring records: "averaged", "coupled"
            or "independent".
        accounting: accounting of the bits: "exact", "gaussian-limit" (an approximation) or "paper".
        honest: fraction of a round's users that certainly add their noise. The guarantee relies on these users only.
        relative_privacy: relative ε of the users in any unit, one number each. The largest corresponds to `epsilon`.
            For trust "none" only, because in all other trust models one noise protects all users of a round equally.
        server: any optax transformation or schedule instead of the plain step, as in `NoisySGD`. With it, there is no
            default step and no error bound.
        vector_sum, noises: levels and noise bits of the sums, and each user's noise divided by the largest noise,
            `noise_std`; set by `calibrate`.

    `noise_method="normal"` replaces binomial noise by rounded normals, an approximation that requires "gaussian-limit".

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of `trust`: a record enters one message in
    each round that uses it.

    Raises:
        Refusal: if a setting is invalid, both `epsilon` and `noise_std` are given, or a setting of bits is given
            without trust = "shuffler".

    >>> from fedprivjax import Ball, OnePass, datasets, from_dataset, ready
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> start = ready(UserSGD(epsilon=8.0, clip=1.6, trust="none"), problem, OnePass(1420, 142))
    >>> start.plan.size.rounds, round(start.guarantee.epsilon, 3)
    (10, 8.0)
    """

    server: Any = optimizer_field()

    theory = OF_USERS

    @property
    def algorithm(self) -> SGD:
        """Projected SGD, whose output is the mean of the iterates."""
        return SGD(average=True, server=self.server)
