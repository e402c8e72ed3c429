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

    In round t, the server takes a projected step from its point w_t along a private mean of the users' gradients. After
    T rounds, the server reports the mean of w_0 … w_{T−1}.

    Attributes:
        epsilon: target ε of every record, at the run's δ. With inf, the run has no noise.
        noise_std: σ, given instead of `epsilon`: in every trust model, the sum of n messages has noise of standard
            deviation σ·√n per coordinate.
        step_scale: factor by which the given or default step size is multiplied.
        step_size: η, step size. Default if every record is used once: D/√(T·(L² + z²)), from the proof of Theorem 4.1
            of Cheu et al. 2022. Here D bounds the distance from the start to the optimum, T is the number of rounds, L
            the Lipschitz constant or a larger `clip`, and z the root mean squared norm of the noise in a round's mean
            gradient. If records are used in several rounds, the default is `fedprivjax.theory.cheu.gd_step`. If `clip`
            is below the Lipschitz constant, the default is a rule of thumb without a theorem
            (`fedprivjax.method.default_steps.plain_clipped_step`).
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        trust: trust model: "shuffler" for one-bit messages through a shuffler, "none" for noise on every message,
            "server" for noise on the sum, or "pan-private" for a server whose memory an intruder may read once.
        levels: g, number of equal steps into which the range [−C, C] of a coordinate is divided for rounding, for trust
            = "shuffler". Without a `clip`, C is the Lipschitz constant. Default: ⌈max(2√n, 16√d)⌉ for n users in a
            round and d parameters, or ⌈max(2√n, √d, 4)⌉ with accounting = "paper".
        rounding: "averaged", "coupled" or "independent", for trust = "shuffler": bound on the effect of random rounding
            on ε. All three values of ε are valid, and "averaged" gives the smallest.
        accounting: for trust = "shuffler": "exact" for a proved ε, "gaussian-limit" for the ε of Gaussian noise with
            the same variance (an approximation without proof), or "paper" for the ε claimed by Cheu et al.
        honest: for trust = "shuffler": assumed fraction of a round's users that add their noise. The guarantee counts
            the noise of these users only.
        relative_privacy: one number for each user, proportional to the user's own target ε. The largest number belongs
            to the target `epsilon`. None gives all users the target `epsilon`.
        server: optimiser of the server's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`. `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient steps.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the formula of the method,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.
        vector_sum: levels and noise bits of the shuffled sums; set by `calibrate`.
        noises: each user's noise divided by the largest noise, `noise_std`; set by `calibrate`.

    With `noise_method="normal"`, a run replaces binomial noise by rounded normal noise. This approximation needs
    accounting = "gaussian-limit".

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary that `trust` implies.

    Raises:
        Refusal: if a setting is invalid, both `epsilon` and `noise_std` are given, or one of `levels`, `rounding`,
            `accounting` and `honest` is given without trust = "shuffler".

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
        """Algorithm of the method: projected SGD, which reports the mean of the iterates."""
        return SGD(average=True, server=self.server)
