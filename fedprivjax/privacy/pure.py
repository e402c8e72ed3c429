"""Pure ε₀-DP messages, such as those of randomised response: their event, and the exact ε of their composition.

Every ε₀-DP mechanism is dominated by randomised response with the same ε₀ (Kairouz, Oh & Viswanath, ICML 2015), so
the composition of k of them, adaptive or not, has the profile of k randomised responses,

    δ(ε) = max_m (P[B(k, q) ≤ m] − e^ε·P[B(k, 1 − q) ≤ m])          q = 1/(1 + e^ε₀)

with B binomial. At δ = 0 it is basic composition, ε = k·ε₀.
"""

from dataclasses import dataclass, field
from math import exp, inf, log, nan
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.accountants.dp_accounting_backend import UPPER, AccountantResult
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

ROUNDED = 2.0**-48  # bounds the rounding of logarithms, relative to the terms that they are computed from


def composed_epsilon(level: float, count: int, delta: float) -> float:
    """Return the smallest ε at δ of `count` adaptively composed ε₀-DP releases, exact for randomised response.

    Args:
        level: ε₀ of one release; inf is non-private.
        count: k, number of releases.
        delta: δ, at least 0.

    >>> round(composed_epsilon(0.5, 4, 0.0), 6), round(composed_epsilon(0.1, 100, 1e-5), 2)
    (2.0, 4.31)
    """
    if count == 0 or level == inf:
        return inf if count else 0.0
    lie, truth = _log_cumulative(count, -level)
    rounded = ROUNDED * (count * (1 + level) + float(gammaln(count + 1)))
    lie, truth = lie + rounded, truth - rounded  # before they are compared with δ, where a small error grows
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = lie + np.log(-np.expm1(log(delta) - lie)) - truth if delta else lie - truth
    most = float(np.max(found[np.isfinite(found)], initial=0.0))
    return float(np.clip(most, 0.0, count * level))


def _log_cumulative(count: int, odds: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of P[B(k, q) ≤ m] and P[B(k, 1 − q) ≤ m], float64 [k + 1], with ln(q/(1 − q)) = `odds`."""
    few = np.arange(count + 1)
    choices = gammaln(count + 1) - gammaln(few + 1) - gammaln(count - few + 1)
    least, most = -np.logaddexp(0, -odds), -np.logaddexp(0, odds)  # ln q and ln(1 − q)
    lie = choices + few * least + (count - few) * most
    truth = choices + few * most + (count - few) * least
    return np.logaddexp.accumulate(lie), np.logaddexp.accumulate(truth)


@dataclass(frozen=True, eq=False)
class PureEvent(Event):
    """Event of a run in which every message has pure differential privacy (δ = 0) with the same ε₀.

    Attributes:
        noise_std: 1/ε₀. For Laplace noise on a number of sensitivity 1, it is the scale of the noise. The value 0 is
            non-private.
        messages: number of messages that each machine sends.
        terms: guarantee statement: protected unit, trust model, theorem and assumptions.

    >>> event = PureEvent(2.0, Grouped.of([1, 4]), Terms("none", "randomised response"))
    >>> event.epsilons(1e-5).each.round(3).tolist()
    [0.5, 2.0]
    """

    noise_std: float
    messages: Grouped
    terms: Terms
    sensitivity: float = field(default=nan, init=False)

    def __str__(self) -> str:
        return f"pure messages: ε₀ = {up(self.level, 4)} each\n  messages of {self.messages}"

    __repr__ = __str__

    @property
    def level(self) -> float:
        """ε₀ of one message, which is 1/`noise_std`, or inf without noise."""
        return 1 / self.noise_std if self.noise_std else inf

    @property
    def accounting(self) -> str:
        return "exact composition of pure mechanisms (Kairouz, Oh & Viswanath 2015)"

    def epsilons(self, delta: float) -> Grouped:
        def of_counts(counts: np.ndarray) -> np.ndarray:
            return np.array([composed_epsilon(self.level, int(count), delta) for count in counts])

        return self.messages.map(of_counts)

    def accountant_results(self, delta: float) -> tuple[AccountantResult, ...]:
        """Return ε at δ of the least private machine by the library dp-accounting, to check `epsilons`.

        Each message counts as one randomised response, the worst mechanism with pure differential privacy.
        """
        from dp_accounting.pld.privacy_loss_distribution import from_randomized_response

        if not self.noise_std or not self.messages.max:
            return ()
        one = from_randomized_response(2 / (1 + exp(self.level)), 2)
        epsilon = one.self_compose(int(self.messages.max)).get_epsilon_for_delta(delta)
        return (AccountantResult("dp-accounting PLD", float(epsilon), UPPER),)

    def dp_event(self) -> "DpEvent":
        """Return the least private machine's messages as an event of the library dp-accounting.

        Each message counts as a randomised response, the worst mechanism with a given pure ε₀. The responses are listed
        one by one, because dp-accounting counts a self-composed randomised response only once.
        """
        from dp_accounting import ComposedDpEvent, RandomizedResponseDpEvent

        if not self.noise_std or not self.messages.max:
            raise Refusal("event must have noise and at least one release to be a dp-accounting event")
        each: list[DpEvent] = [RandomizedResponseDpEvent(2 / (1 + exp(self.level)), 2)]
        return ComposedDpEvent(int(self.messages.max) * each)
