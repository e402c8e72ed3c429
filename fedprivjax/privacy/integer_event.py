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
    """Event of a run in which machines send vectors of integers with independent integer noise.

    The ε of a machine also holds if a server adds integers of b bits modulo 2^b.

    Attributes:
        distribution: distribution of the noise, "skellam" or "discrete-gaussian".
        noise_std: standard deviation of the noise of one coordinate of a message, in units of the integers. 0 is
            non-private.
        norms: `Norms(l2, l1, numbers)`: bounds on the L2 and L1 norm of the change of a message by the protected unit,
            in units of the integers, and the number of coordinates.
        messages: number of each machine's messages, int [machines].
        terms: guarantee statement: protected unit, trust model, theorem and assumptions.
        exposure: `noise_std`/τ for each machine, float64 [machines]. Here τ is the standard deviation of the noise that
            hides the machine's messages from the adversary. If τ differs between the machine's messages, the smallest τ
            counts. None means that each message is seen alone, with exposure 1.

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
        """Return the event against an adversary who sees only functions of messages, such as their sum.

        The noise of other machines then also hides a message. Let τ be the standard deviation of the noise that hides a
        machine's messages from this adversary. If τ differs between the machine's messages, the smallest τ counts.

        Args:
            exposure: `noise_std`/τ for each machine, float64 [machines].
            own: standard deviation of the noise that each machine itself adds to a message, divided by `noise_std`;
                float64 [machines]. The returned event has the product of `own` and `exposure` as its exposure.
            terms: guarantee statement that names this adversary.
        """
        return replace(self, exposure=own * exposure, terms=terms)
