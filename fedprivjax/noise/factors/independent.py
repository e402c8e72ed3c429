"""Fresh noise on every round's gradient: B = A, C = I."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedprivjax.noise.factors.interface import Factor, Path
from fedprivjax.plan.uses import Uses


@dataclass(frozen=True)
class Independent(Factor):
    """Independent noise on every round's gradient, which the momentum accumulates.

    >>> uses = Uses(np.array([1, 3]), np.array([0, 0]), np.ones(2), 1)
    >>> Independent().squares(uses, rounds=4, alpha=0.5).tolist()
    [2.0]
    """

    name: ClassVar[str] = "independent"
    words: ClassVar[str] = "fresh noise on every round's gradient"
    theorem: ClassVar[str] = "the Gaussian mechanism on every gradient, adaptive composition over a record's uses"

    def step(self, path: Path, normal, alpha, epoch=None) -> Path:
        return Path(path.round + 1, (1 - alpha) * path.last + normal, path.memory)

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        return np.bincount(uses.record, uses.weight**2.0, minlength=uses.records)

    def contributions(self, used, weight, rounds, alpha, epoch=None) -> np.ndarray:
        return np.asarray(weight, float)

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        kept = (1 - alpha) ** 2
        return (1 - kept ** np.arange(1.0, rounds + 1)) / (1 - kept)
