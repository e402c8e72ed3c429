"""What a private run promises: the number, and the words without which it means nothing."""

from dataclasses import dataclass

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.privacy import gdp

TRUST = {
    "none": "every message a machine sends (no trusted server)",
    "shuffler": "every round's messages without their senders (a trusted shuffler)",
    "server": "the query points that other machines see (trusted server)",
}
LARGE_EPSILON = 10.0


@dataclass(frozen=True, eq=False)
class PrivacyGuarantee:
    """A μ-GDP guarantee for every machine's data, with its unit, neighbouring relation, trust model and theorem.

    Attributes:
        mu: GDP parameter of the worst machine, the largest of `per_machine`; inf is non-private.
        per_machine: each machine's GDP parameter, float64 [machines], read-only.
        delta: the δ at which ε is stated, inside (0, 1).
        unit: what is protected, such as "one sample of one machine".
        relation: when two data sets are neighbours, such as "replace-one".
        trust: what the guarantee covers: "none", every message a machine sends; "server", the query points that other
            machines see.
        theorem: where the guarantee is proved.
        assumptions: what it rests on.

    Raises:
        ValueError: for an impossible mu, delta or trust, or a mu that is not the worst machine's.

    >>> guarantee = PrivacyGuarantee(2.0, np.array([1.0, 2.0]), 1e-5, "one sample of one machine", "replace-one",
    ...                              "none", "Reshef & Levy 2025, Theorem 4.1", ("each sample is used once",))
    >>> print(guarantee)
    2-GDP for one sample of one machine (replace-one)
      covers: every message a machine sends (no trusted server)
      theorem: Reshef & Levy 2025, Theorem 4.1
      (ε, δ) = (9.997, 1e-05) exact; ε = 11.6 by the paper's conversion; 2-zCDP
      per machine (2): μ min 1, median 1.5, max 2
      assumes: each sample is used once
    """

    mu: float
    per_machine: np.ndarray
    delta: float
    unit: str
    relation: str
    trust: str
    theorem: str
    assumptions: tuple[str, ...]

    def __post_init__(self) -> None:
        require_choice("trust", self.trust, TRUST)
        per_machine = np.array(self.per_machine, float)
        if per_machine.ndim != 1 or per_machine.size == 0:
            raise Refusal(f"per_machine must have shape [machines], got {list(per_machine.shape)}")
        gdp.epsilon(0.0, self.delta)
        gdp.zcdp(per_machine)
        if not (self.mu == per_machine.max() or np.isclose(self.mu, per_machine.max(), rtol=1e-12)):
            raise Refusal(f"mu must be the largest of per_machine ({per_machine.max()}), got {self.mu}")
        per_machine.setflags(write=False)
        object.__setattr__(self, "mu", float(self.mu))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "per_machine", per_machine)
        object.__setattr__(self, "assumptions", tuple(self.assumptions))

    @property
    def epsilon(self) -> float:
        """The exact ε of `mu` at `delta`."""
        return float(gdp.epsilon(self.mu, self.delta))

    @property
    def paper_epsilon(self) -> float:
        """The papers' looser ε of `mu` at `delta`."""
        return float(gdp.paper_epsilon(self.mu, self.delta))

    @property
    def zcdp(self) -> float:
        """The zero-concentrated parameter, `μ²/2`."""
        return float(gdp.zcdp(self.mu))

    @property
    def private(self) -> bool:
        """Whether anything at all is promised."""
        return bool(np.isfinite(self.mu))

    @property
    def large(self) -> bool:
        """Whether ε is above 10: results mark such rows."""
        return self.epsilon > LARGE_EPSILON

    def rdp(self, order: float) -> float:
        """The Rényi divergence of an order above 1, `order·μ²/2`."""
        return float(gdp.rdp(self.mu, order))

    def delta_at(self, epsilon: float) -> float:
        """The exact δ at another ε."""
        return float(gdp.delta(epsilon, self.mu))

    def __str__(self) -> str:
        low, middle, high = np.min(self.per_machine), np.median(self.per_machine), np.max(self.per_machine)
        head = f"{self.mu:.4g}-GDP" if self.private else "non-private: μ = inf"
        large = " (large: ε > 10)" if self.large and self.private else ""
        lines = [
            f"{head} for {self.unit} ({self.relation})",
            f"covers: {TRUST[self.trust]}",
            f"theorem: {self.theorem}",
            f"(ε, δ) = ({self.epsilon:.4g}, {self.delta:g}) exact{large}; "
            f"ε = {self.paper_epsilon:.4g} by the paper's conversion; {self.zcdp:.4g}-zCDP",
            f"per machine ({self.per_machine.size}): μ min {low:.4g}, median {middle:.4g}, max {high:.4g}",
            *(f"assumes: {assumption}" for assumption in self.assumptions),
        ]
        return "\n  ".join(lines)


@dataclass(frozen=True, eq=False)
class RecordGuarantee:
    """An (ε, δ) guarantee of every machine's records, where sampling amplifies privacy and no GDP parameter is stated.

    Attributes:
        per_machine: each machine's ε at `delta`, float64 [machines].
        delta, unit, relation, trust, theorem, assumptions: as in `PrivacyGuarantee`.
    """

    per_machine: np.ndarray
    delta: float
    unit: str
    relation: str
    trust: str
    theorem: str
    assumptions: tuple[str, ...]

    def __post_init__(self) -> None:
        require_choice("trust", self.trust, TRUST)

    @property
    def epsilon(self) -> float:
        """The worst machine's ε at `delta`."""
        return float(self.per_machine.max())

    @property
    def private(self) -> bool:
        """Whether anything at all is promised."""
        return bool(np.isfinite(self.epsilon))

    @property
    def large(self) -> bool:
        """Whether ε is above 10: results mark such rows."""
        return self.epsilon > LARGE_EPSILON

    def __str__(self) -> str:
        low, middle, high = np.min(self.per_machine), np.median(self.per_machine), np.max(self.per_machine)
        large = " (large: ε > 10)" if self.large else ""
        head = f"({self.epsilon:.4g}, {self.delta:g})-DP{large}" if self.private else "non-private: ε = inf"
        lines = [
            f"{head} for {self.unit} ({self.relation})",
            f"covers: {TRUST[self.trust]}",
            f"theorem: {self.theorem}",
            f"per machine ({self.per_machine.size}): ε min {low:.4g}, median {middle:.4g}, max {high:.4g}",
            *(f"assumes: {assumption}" for assumption in self.assumptions),
        ]
        return "\n  ".join(lines)
