"""Interface of factors: streaming maps from independent normals to the noise of a momentum.

With leaf gradients g_t, the momentum is `m_t = α·Σ_{s≤t} (1−α)^{t−s}·g_s`: a lower triangular matrix A times α·g. A
factor decomposes A = B·C and releases `B·(C·αg + σz)`, which is m plus the noise `σ·B·z`. C determines a record's
sensitivity (`squares`), B the added noise (`step`). The simulator needs only these two.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.plan.uses import Uses


class Path(NamedTuple):
    """State of a stream: number of finished rounds, noise of the last round [d], and the factor's other memory."""

    round: Any
    last: Any
    memory: Any


class Correlated(NamedTuple):
    """Noise of a momentum in this round and in the previous round, [d] each."""

    now: Any
    before: Any

    def fresh(self, alpha: Any) -> Any:
        """Return this round's addition to α times its gradient: the noise minus the momentum's share of the last."""
        return self.now - (1 - alpha) * self.before


class Factor:
    """Base class of factors: a frozen dataclass of static settings.

    A custom factor has a `name` and defines `step`, `squares` and `variances`. It also defines `memory` if it stores
    more than the noise of the last round.

    Attributes:
        name: name in messages.
        words: one-line description.
        theorem: theorem named in guarantees.
    """

    stated: ClassVar[Stated] = Stated(by=("squares", "contributions"), free=("variances", "theorem"))
    name: ClassVar[str]
    words: ClassVar[str] = ""
    theorem: ClassVar[str] = "Gaussian mechanisms, each chosen after the releases before; their composition"

    def memory(self, dimension: int, rounds: int) -> Any:
        """Return the stream's initial memory in addition to the noise of the last round."""
        return ()

    def init(self, dimension: int, rounds: int) -> Path:
        """Return the stream's state before the first round."""
        return Path(jnp.zeros((), jnp.int32), jnp.zeros(dimension), self.memory(dimension, rounds))

    def step(self, path: Path, normal: jax.Array, alpha: Any, epoch: Any = None) -> Path:
        """Return the state one round later. Its `last` is that round's noise at σ = 1.

        Args:
            normal: the round's standard normals, [d].
            alpha: α, in (0, 1].
            epoch: rounds per epoch, if the factor's noise depends on it.
        """
        raise Undefined(f"{self.name} must define step(path, normal, alpha, epoch)")

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return `Σ (contribution/standard deviation)²` over all releases at σ = 1 for every record; float64 [records].

        A record of weight 1 contributes 1 to the leaf of a round that uses it.
        """
        raise Undefined(f"{self.name} must define squares(uses, rounds, alpha, epoch)")

    def contributions(
        self, used: np.ndarray, weight: np.ndarray, rounds: int, alpha: float, epoch: float | None = None
    ) -> np.ndarray:
        """Return one record's contribution/standard deviation in each release that it changes, at σ = 1; [releases].

        The sum of their squares equals the record's `squares`. A factor may compute them independently.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
        """
        return np.sqrt(self.squares(Uses(used, np.zeros(used.size, int), weight, 1), rounds, alpha, epoch))

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the variance of one coordinate of each round's noise at σ = 1; float64 [rounds]."""
        raise Undefined(f"{self.name} must define variances(rounds, alpha, epoch)")


def discount(alpha: Any, steps: Any, numbers: Any = np) -> Any:
    """Return `(1 − α)^steps`, accurate for small α and many steps. It is 1 for 0 steps, also at α = 1.

    >>> round(float(discount(jnp.float32(1 / 60_000), 60_000.0, jnp)), 6)
    0.367876
    >>> discount(1.0, np.arange(3)).tolist()
    [1.0, 0.0, 0.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return numbers.where(steps == 0, 1.0, numbers.exp(steps * numbers.log1p(-alpha)))
