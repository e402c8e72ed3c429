"""Privacy event of integer messages with integer noise."""

from dataclasses import dataclass, replace
from math import floor

import numpy as np

from fedprivjax.privacy.accountants.integer_sums import Norms, integer_epsilon
from fedprivjax.privacy.events import Event, median_sender
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Terms

SLACK = 1e-6  # of a number of messages that is computed in floating point


@dataclass(frozen=True, eq=False)
class IntegerEvent(Event):
    """Event of integer messages with independent noise. ε of a machine's messages is composed by Rényi divergences.

    The guarantee also holds if a server adds messages of b bits modulo 2^b, because this result is a function of their
    sum.

    Attributes:
        distribution: distribution of the noise, a key of `accountants.integer_sums.DISTRIBUTIONS`.
        noise_std: standard deviation of the noise of one coordinate of a message, in units of the integers. 0 is
            non-private.
        norms: bounds on the change of a message by the protected unit, in units of the integers.
        messages: number of each machine's messages, int [machines].
        terms: guarantee statement: protected unit, trust model, theorem and assumptions.
        exposure: `noise_std` divided by the standard deviation of the noise that hides a machine's least hidden message
            from the adversary; float64 [machines]. None stands for 1. If the adversary only sees the sum of n messages
            with equal noise, the value is 1/√n.

    >>> terms = Terms("none", "the Skellam mechanism")
    >>> event = IntegerEvent("skellam", 20.0, Norms(10.0, 100.0, 16), np.array([10, 0]), terms)
    >>> event.epsilons(1e-5).each.round(2).tolist()
    [8.11, 0.0]
    """

    distribution: str
    noise_std: float
    norms: Norms
    messages: np.ndarray
    terms: Terms
    exposure: np.ndarray | None = None

    def __str__(self) -> str:
        return f"{self.distribution} noise {self.noise_std:.4g} in integers, sensitivity {self.sensitivity:.4g}"

    __repr__ = __str__

    @property
    def sensitivity(self) -> float:
        return self.norms.l2

    @property
    def accounting(self) -> str:
        return "Rényi divergences of integer orders, summed over messages, converted by Canonne et al. 2020"

    def epsilons(self, delta: float) -> Grouped:
        exposures = np.ones(self.messages.size) if self.exposure is None else self.exposure
        columns = np.stack([self.messages, exposures], axis=1)
        rows, group, counts = np.unique(columns, axis=0, return_inverse=True, return_counts=True)
        values = [self._epsilon(int(messages), exposure, delta) for messages, exposure in rows]
        return Grouped(np.array(values), counts, group.ravel().astype(np.int32))

    def _epsilon(self, messages: int, exposure: float, delta: float) -> float:
        if messages == 0:
            return 0.0
        senders = floor(1 / exposure**2 + SLACK)
        return integer_epsilon(self.distribution, self.norms, self.noise_std**2, senders, messages, delta)

    def summary(self, delta: float) -> dict[str, float]:
        each = self.epsilons(delta)
        return {"ε (at most)": each.max, "median ε": median_sender(each, each.values > 0)}

    def hidden(self, exposure: np.ndarray, own: np.ndarray, terms: Terms) -> "IntegerEvent":
        """Return the event against an adversary from whom each machine's messages are hidden by other noise.

        Args:
            exposure: 1 divided by the relative noise that hides the least hidden message, float64 [machines].
            own: relative noise of a machine's own messages, float64 [machines].
            terms: guarantee statement with this adversary.
        """
        return replace(self, exposure=own * exposure, terms=terms)
