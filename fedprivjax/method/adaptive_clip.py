r"""A clip of the machines' updates that follows a quantile of their norms, privately.

Andrew et al., NeurIPS 2021. In round r a machine i of the cohort sends its update, clipped to norm C_r, and the bit
b_i = 1[‖Δ_i‖ ≤ C_r]. The server releases, with m̄ = E|S_r|,

    (1/m̄)·(Σ Δ̃_i + z_Δ·C_r·ξ)          b̃ = ½ + (1/m̄)·(Σ (b_i − ½) + σ_b·ζ)          ξ, ζ standard normal

and sets C_{r+1} = C_r·exp(−η_C·(b̃ − γ)). Every C_r is public. The sums of Δ̃_i/C_r and b_i − ½ together are one Gaussian
mechanism of noise multiplier z if z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2), which needs σ_b > z/2.

Here the pair is one message of norm at most 1, with the same noise N(0, z²) on all its numbers. With u = z/(2σ_b),

    (√(1 − u²)·Δ̃_i/C_r, 2u·(b_i − ½))          z·C_r/√(1 − u²) = z_Δ·C_r          z/(2u) = σ_b

so that dividing by the factors gives the noises above. A machine that is absent sends 0 in both parts.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.decorated import PYTREE, Decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_between, require_one, require_positive
from fedprivjax.method.formatting import changed_settings
from fedprivjax.method.setting_checks import SMALLEST_CLIP, require_clip

LEAST_SHARE = 20  # the default noise of the count of m̄ machines is at least m̄ divided by this
EVEN = 0.5  # u with σ_b = z
RANGE = SMALLEST_CLIP, 1e12  # of the clip in float32: a norm's squares neither underflow nor overflow


@struct.dataclass(kw_only=True)
class AdaptiveClip(Decorated):
    """Privately computed clip that follows a quantile of the norms of machines' updates.

    It replaces a number in the setting `update_clip` of a method such as `FedAvg`. In a round with clip C, a machine
    with update Δ sends a vector Δ̃ and a bit b. The vector is Δ, clipped to norm C. The bit is 1 if ‖Δ‖ ≤ C, and 0
    otherwise. The server reads a noisy mean b̃ of the bits. The clip of the next round is C·exp(−η·(b̃ − γ)), with η =
    `rate` and γ = `quantile`.

    The message is the pair (√(1 − u²)·Δ̃/C, u·(2b − 1)) for a number u in (0, 1). Gaussian noise of standard deviation
    z, the method's `noise_std`, is added to all numbers of the message. A trusted server adds the noise to the sum of
    the messages. Without a trusted server, every machine adds noise to its own message. The server divides the two
    parts of the message by √(1 − u²)/C and 2u. The noise of the updates then has standard deviation z·C/√(1 − u²). The
    noise of the bits has standard deviation σ_b = z/(2u).

    The metric `clip` reports the clip of each round. All attributes can be swept, for example with
    `over={"update_clip.start": [0.1, 1.0]}`.

    Attributes:
        quantile: γ in (0, 1), the fraction of updates that should have a norm of at most the clip.
        start: the clip of the first round, in the units of the update. It must be given.
        rate: η, learning rate of the logarithm of the clip.
        count_noise: σ_b, standard deviation of the noise on the sum of the bits. With trust = "none", it is the noise
            on each machine's bit. It must exceed z/2. If it is None (the default), σ_b is z with trust = "none". With a
            trusted server, σ_b is then max(z, m/20) for m expected participants of a round.

    **Privacy**: in each round, one Gaussian mechanism of noise multiplier z releases the messages. The mechanism is
    2/z-GDP for replacing a machine, and 1/z-GDP for adding or removing a machine. If machines encode messages for a
    trusted server, 2/z and 1/z are multiplied by the encoder's `norm_bound` for messages of norm at most 1. The clips
    have no further privacy cost.

    Source: Andrew et al., NeurIPS 2021.

    Raises:
        Refusal: if the quantile is not in (0, 1), or another number is not positive.

    >>> from fedprivjax import FedAvg, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1400).reshape(100, 14))
    >>> settings = {"local_epochs": 1, "batch": 7, "step_size": 0.1, "unit": "machine", "epsilon": 8.0}
    >>> method = FedAvg(update_clip=AdaptiveClip(start=5.0), **settings)
    >>> run = simulate(method, problem, Uniform(100, 50), rounds=40, metrics=["clip"], eval_every=1)
    >>> bool(0.05 < run.metrics["clip"][-1] < 2.0)
    True
    """

    kind, decorator = "clip", PYTREE
    stated: ClassVar[Stated] = Stated(by=("norm_bound",), concrete=True)
    norm_bound: ClassVar[float] = 1.0  # bound on the norm of a pair of update and bit
    start: Any = None
    quantile: Any = 0.5
    rate: Any = 0.2
    count_noise: Any = None

    def __post_init__(self):
        if isinstance(self.quantile, int | float | np.number):
            require_between("quantile", self.quantile, 0, 1)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list | tuple):
                require_one(field.name, value)
            require_positive(field.name, value, optional=True)
        require_clip("start", self.start)

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(changed_settings(self))})"

    def leaves(self) -> dict[str, Any]:
        """Return all attributes by name, such as "start". All of them can be swept."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def with_values(self, values: Mapping[str, Any]) -> "AdaptiveClip":
        """Return a copy in which some attributes have new values.

        Args:
            values: new values by name of the attribute. For example, `{"rate": 0.1}` changes only `rate`. The value
                None resets an attribute to its default, except `start`, which has no default and stays unchanged.
        """
        default = {field.name: field.default for field in fields(self)} | {"start": self.start}
        return replace(self, **{name: default[name] if one is None else one for name, one in values.items()})

    def check(self, multiplier: float) -> None:
        """Raise Refusal if `start` is None, or if `count_noise` is a number that is at most z/2.

        Args:
            multiplier: z, standard deviation of the noise on machines' messages, whose L2 norm is at most 1. It is the
                `noise_std` of the method.
        """
        if self.start is None:
            raise Refusal("start of AdaptiveClip must be given, got none. Set it to the clip of the first round")
        if self.count_noise is not None and self.count_noise <= multiplier / 2 * (1 + 1e-5):
            raise Refusal(
                f"count_noise must be more than half of the noise multiplier, {multiplier / 2:.4g}, got "
                f"{self.count_noise:.4g}. Leave it out, or use less noise"
            )

    # ---- traced

    def bit_factor(self, multiplier, least) -> Any:
        """Return u = z/(2σ_b), the factor of the bit in a machine's message.

        The noise of the bit has standard deviation σ_b. If `count_noise` is None, σ_b is max(z, least). Otherwise, σ_b
        is `count_noise`. In a run without noise (z = 0), u is ½.

        Args:
            multiplier: z, standard deviation of the noise on the message.
            least: lower bound on σ_b if `count_noise` is None. With a trusted server, it is m/20 for m expected
                participants of a round. Otherwise, it is 0.
        """
        count_noise = jnp.maximum(least, multiplier) if self.count_noise is None else self.count_noise
        return jnp.where(multiplier > 0, multiplier / (2 * count_noise), EVEN)

    def update_factor(self, factor) -> Any:
        """Return √(1 − u²), the factor of the update in a machine's message of norm at most 1.

        The message is the pair (√(1 − u²)·Δ̃/C, ±u), where Δ̃ is the update, clipped to norm C. The sign is + if the
        update had norm at most C before clipping, and − otherwise. The L2 norm of the message is at most √((1 − u²) +
        u²) = 1.

        Args:
            factor: u in (0, 1), from `bit_factor`.
        """
        return jnp.sqrt((1 - factor) * (1 + factor))

    def pair(self, update, unclipped, clip, factor) -> tuple[Any, Any]:
        """Return a machine's message of L2 norm at most 1, the pair (√(1 − u²)·Δ̃/C, ±u).

        Δ̃ is the machine's update, clipped to norm C. The second number is u if the norm of the update was at most C
        before clipping, and −u otherwise.

        Args:
            update: Δ̃, a pytree.
            unclipped: True if the norm of the update was at most C before clipping.
            clip: C, the clip of the round.
            factor: u in (0, 1), from `bit_factor`.
        """
        scale = self.update_factor(factor) / clip
        return jax.tree.map(lambda leaf: scale * leaf, update), factor * jnp.where(unclipped, 1.0, -1.0)

    def released(self, mean: tuple[Any, Any], clip, factor) -> tuple[Any, Any]:
        """Return the mean update in its original units, and the clip of the next round.

        The second part of the mean message gives an estimate b̃ of the fraction of updates with norm at most C. The
        clip of the next round is C·exp(−η·(b̃ − γ)), with η = `rate` and γ = `quantile`.

        Args:
            mean: noisy mean of the machines' messages, a pair.
            clip: C, the clip of this round.
            factor: u in (0, 1), from `bit_factor`.
        """
        scale, fraction = clip / self.update_factor(factor), 0.5 + mean[1] / (2 * factor)
        after = clip * jnp.exp(-self.rate * (fraction - self.quantile))
        return jax.tree.map(lambda leaf: scale * leaf, mean[0]), jnp.clip(after, *RANGE)
