"""What a factor is: one way to make the noise of a momentum out of independent normals, streamed.

With leaf gradients g_t, the momentum is `m_t = α·Σ_{s≤t} (1−α)^{t−s}·g_s`: a lower-triangular matrix A, times α·g. A
factor writes A = B·C and releases `B·(C·αg + σz)`, which is m plus the noise `σ·B·z`. C decides what a record may move
(`squares`), B what is added (`step`), and the simulator needs these two alone.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Undefined
from fedprivjax.plan.uses import Uses


class Path(NamedTuple):
    """A stream's state: rounds done, the last round's noise [d], and what else the factor remembers."""

    round: Any
    last: Any
    memory: Any


class Correlated(NamedTuple):
    """A momentum's noise in this round and in the last one, [d] each."""

    now: Any
    before: Any

    def fresh(self, alpha: Any) -> Any:
        """What this round adds to α times its gradient: the noise less what the momentum carries on of the last."""
        return self.now - (1 - alpha) * self.before


class Factor:
    """A frozen dataclass of static settings.

    One of one's own has a `name` and defines `step`, `squares` and `variances`, and `memory` where it remembers more
    than the last round's noise.

    Attributes:
        name: for refusals.
        words: what it is.
        theorem: what a guarantee names as its proof.
    """

    name: ClassVar[str]
    words: ClassVar[str] = ""
    theorem: ClassVar[str] = "Gaussian mechanisms, each chosen after the releases before; their composition"

    def memory(self, dimension: int, rounds: int) -> Any:
        """What the stream remembers beside the last round's noise, before the first round."""
        return ()

    def init(self, dimension: int, rounds: int) -> Path:
        """The stream before the first round."""
        return Path(jnp.zeros((), jnp.int32), jnp.zeros(dimension), self.memory(dimension, rounds))

    def step(self, path: Path, normal: jax.Array, alpha: Any, epoch: Any = None) -> Path:
        """One round further: `last` becomes its noise, at σ = 1.

        Args:
            normal: the round's own, standard, [d].
            alpha: α, in (0, 1].
            epoch: rounds of an epoch, where the factor's noise depends on it.
        """
        raise Undefined(f"{self.name} must define step(path, normal, alpha, epoch)")

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """`Σ (contribution/standard deviation)²` over all releases at σ = 1, of every record, float64 [records].

        A record of weight 1 contributes 1 to the leaf of a round that uses it.
        """
        raise Undefined(f"{self.name} must define squares(uses, rounds, alpha, epoch)")

    def contributions(
        self, used: np.ndarray, weight: np.ndarray, rounds: int, alpha: float, epoch: float | None = None
    ) -> np.ndarray:
        """Contribution over standard deviation of one record in each release that it moves, at σ = 1, [releases].

        The root of their squares' sum is `squares` of the record; by another way, where the factor has one.

        Args:
            used, weight: the rounds that use the record, from 1, and its weight there, [uses].
        """
        return np.sqrt(self.squares(Uses(used, np.zeros(used.size, int), weight, 1), rounds, alpha, epoch))

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """The variance of one coordinate of every round's noise at σ = 1, float64 [rounds]."""
        raise Undefined(f"{self.name} must define variances(rounds, alpha, epoch)")


def discount(alpha: Any, steps: Any, numbers: Any = np) -> Any:
    """`(1 − α)^steps`, exact where α is small and the steps many; without steps it is 1, where α is 1 too.

    >>> round(float(discount(jnp.float32(1 / 60_000), 60_000.0, jnp)), 6)
    0.367876
    >>> discount(1.0, np.arange(3)).tolist()
    [1.0, 0.0, 0.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return numbers.where(steps == 0, 1.0, numbers.exp(steps * numbers.log1p(-alpha)))
