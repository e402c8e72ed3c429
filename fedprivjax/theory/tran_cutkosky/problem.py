"""Constants of a smooth problem that need not be convex, and those of its methods on several machines."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, positive, validate


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a smooth Lipschitz problem. All but the dimension may be arrays.

    Attributes:
        records: N, also the rounds of an epoch.
        dimension: d, parameters of the model.
        lipschitz: G, bound on the gradient norm of one record's loss; for noise in general, half of a leaf's
            sensitivity.
        smoothness: L.

    Raises:
        Refusal: a number out of range.

    >>> ProblemConstants(records=0, dimension=10, lipschitz=1.0, smoothness=1.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: records must be at least 1 and finite, got 0.0
    """

    records: Any
    dimension: int
    lipschitz: Any
    smoothness: Any

    def __post_init__(self):
        counts(dimension=self.dimension)
        validate(self, records=at_least_one, lipschitz=positive, smoothness=nonnegative)


class Federated(NamedTuple):
    """Rounds of an epoch (N of the theorems), sensitivity of a leaf, and ratio of the average's noise to one tree's."""

    epoch: int
    sensitivity: float
    noise: float


def federated(*, machines: int, records: int, batch: int, trust: str, lipschitz: float = 1.0) -> Federated:
    """Constants of trees over M machines that each use K of their n records per round, without replacement.

    An epoch has n/K rounds.

    * "server": one tree on the mean gradient, with sensitivity 2G/(KM) of a leaf;
    * "none": one tree per machine on the machine's gradient, with sensitivity 2G/K of a leaf. The server averages the
      trees. The standard deviation of the average is 1/√M of that of one tree, and √M times that of "server".

    The theorems on privacy and noise hold with `epoch` as N and, for the noise, `lipschitz=sensitivity/2`. The number
    of rounds is the number of participations. Neighbours replace one record. A record belongs to one machine, so there
    is no composition over machines.

    Args:
        machines: M.
        records: n, records of one machine.
        batch: K, a divisor of n.
        lipschitz: G.

    Source: derived here; the paper has one machine.

    >>> federated(machines=4, records=100, batch=10, trust="server")
    Federated(epoch=10, sensitivity=0.05, noise=1.0)
    >>> federated(machines=4, records=100, batch=10, trust="none")
    Federated(epoch=10, sensitivity=0.2, noise=0.5)
    """
    counts(machines=machines, records=records, batch=batch)
    require_choice("trust", trust, ("server", "none"))
    if records % batch:
        raise Refusal(f"records must be a multiple of batch ({batch}), got {records}")
    leaf = 2 * one(positive, "lipschitz", lipschitz) / batch
    if trust == "server":
        return Federated(records // batch, leaf / machines, 1.0)
    return Federated(records // batch, leaf, machines**-0.5)
