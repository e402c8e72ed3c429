"""Noble, Bellet & Dieuleveut 2022 (DP-SCAFFOLD): the ε that the authors publish.

In each round, a random fraction l of the M machines takes K local steps. Each step uses a random fraction of the
machine's records. The Gaussian noise of a step is σ times the step's sensitivity. The authors bound the Rényi
divergence for an adversary who sees the server's points, as follows:

* One step has noise σ√(lM), because lM machines add their noises.
* Sampling records amplifies the privacy of the step, and K steps compose.
* Sampling machines amplifies the privacy again, and the rounds compose.

Both amplifications are by Theorem 9 of Wang, Balle & Kasiviswanathan 2019.

**The second amplification does not hold for neighbouring datasets that differ in one record.** It takes the messages of
two machines to be as close as two messages of one machine whose data differ in one record. But the data of two machines
may differ in all records, so that a round may show that a machine takes part. Sampling machines then multiplies only δ
of the round by l, and not ε.
"""

from collections.abc import Callable
from math import ceil, floor, log

import numpy as np
import scipy

from fedprivjax.checks.values import require_at_least, require_between, require_positive, require_probability

ORDERS = range(2, 102)  # integer orders
STEPS = 1000  # orders tried about the best integer


def published_epsilon(
    noise_multiplier: float,
    *,
    machines: int,
    rounds: int,
    steps: int,
    machine_rate: float,
    record_rate: float,
    delta: float,
) -> float:
    """ε that the authors of DP-SCAFFOLD publish, which is not valid for datasets that differ in one record.

    `Scaffold` with unit = "record" states a valid ε.

    Args:
        noise_multiplier: standard deviation of the noise in one machine's step, divided by the step's sensitivity to
            replacing one record.
        machines: number of all machines.
        rounds: number of rounds.
        steps: number of local steps in a round.
        machine_rate: fraction of the machines that take part in a round.
        record_rate: fraction of a machine's records that a step uses.
        delta: δ of the guarantee, in (0, 1).

    Raises:
        Refusal: if a number is out of range.

    Source: the authors' get_epsilon_bound.py.

    >>> rates = {"machine_rate": 0.2, "record_rate": 0.2}
    >>> round(published_epsilon(60.0, machines=100, rounds=100, steps=50, delta=2.5e-6, **rates), 2)
    8.19
    """
    require_positive("noise_multiplier", noise_multiplier)
    for name, value in (("machines", machines), ("rounds", rounds), ("steps", steps)):
        require_at_least(name, value, 1)
    require_probability("machine_rate", machine_rate)
    require_probability("record_rate", record_rate)
    require_between("delta", delta, 0, 1)
    variance = noise_multiplier**2 * machine_rate * machines
    of_machine = {k: steps * _sampled(k, lambda order: order / (2 * variance), record_rate) / (k - 1) for k in ORDERS}
    moments = {1: 0.0} | {k: rounds * _sampled(k, of_machine.__getitem__, machine_rate) for k in ORDERS}

    def epsilon(order: float) -> float:
        low, high = floor(order), ceil(order)
        moment = moments[low] if low == high else (high - order) * moments[low] + (order - low) * moments[high]
        return (moment + log(1 / delta)) / (order - 1)

    best = min(ORDERS[:-1], key=epsilon)
    return float(min(epsilon(order) for order in np.linspace(best - 1 + 1e-4, best + 1, STEPS)))


def _sampled(order: int, divergence: Callable[[int], float], rate: float) -> float:
    """Return a bound on the log moment of samples, from the Rényi divergence of each order without sampling.

    Args:
        order: integer α of at least 2.
    """
    second = divergence(2)
    terms = [0.0, 2 * log(rate) + _choices(order, 2) + min(log(4) + log(np.expm1(second)), second + log(2))]
    terms += [log(2) + (j - 1) * divergence(j) + j * log(rate) + _choices(order, j) for j in range(3, order + 1)]
    return float(scipy.special.logsumexp(terms))


def _choices(n: int, k: int) -> float:
    """Return the logarithm of a binomial coefficient."""
    return float(scipy.special.gammaln(n + 1) - scipy.special.gammaln(n - k + 1) - scipy.special.gammaln(k + 1))
