"""What a protocol does to privacy, as numbers: Gaussian mechanisms composed over a machine's messages."""

from dataclasses import dataclass

import numpy as np

from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import PrivacyGuarantee


@dataclass(frozen=True)
class GaussianEvent:
    """Every machine's messages are Gaussian mechanisms with noise fixed beforehand, so machine i is μ_i-GDP with
    `μ_i = sensitivity · exposure_i / noise_std`.

    Attributes:
        sensitivity: largest L2 change of a message's running sum when one sample is replaced.
        exposure: `√Σ_k 1/r_k²` over the machine's messages with relative noise r, float64 [machines].
        unit, relation, trust, theorem, assumptions: what is protected, against whom, and why.
    """

    sensitivity: float
    exposure: np.ndarray
    trust: str
    theorem: str
    assumptions: tuple[str, ...] = ()
    unit: str = "one sample of one machine"
    relation: str = "replace-one"

    def mu(self, ratio: np.ndarray) -> np.ndarray:
        """The worst machine's μ where noise_std/sensitivity is `ratio`; infinite where that is 0."""
        with np.errstate(divide="ignore"):
            return self.exposure.max() / np.asarray(ratio, float)

    def epsilon(self, ratio: np.ndarray, delta: float) -> np.ndarray:
        """The worst machine's exact ε at δ, by the same ratio."""
        return gdp.epsilon(self.mu(ratio), delta)

    def guarantee(self, noise_std: float, delta: float) -> PrivacyGuarantee:
        """The guarantee at this noise; noise_std = 0 is non-private."""
        per_machine = np.zeros_like(self.exposure)
        used = self.exposure > 0
        per_machine[used] = np.inf if noise_std == 0 else self.sensitivity * self.exposure[used] / noise_std
        return PrivacyGuarantee(
            mu=float(per_machine.max()),
            per_machine=per_machine,
            delta=delta,
            unit=self.unit,
            relation=self.relation,
            trust=self.trust,
            theorem=self.theorem,
            assumptions=self.assumptions,
        )
