"""The methods in a federation: what stands for N and for a leaf's sensitivity, and what the average's noise is."""

from typing import NamedTuple

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, one, positive


class Federated(NamedTuple):
    """Rounds of an epoch (the theorems' N), a leaf's sensitivity, and the average's noise over one tree's."""

    epoch: int
    sensitivity: float
    noise: float


def federated(*, machines: int, records: int, batch: int, trust: str, lipschitz: float = 1.0) -> Federated:
    """Trees over M machines, each of which uses K of its n records a round, without replacement: n/K rounds an epoch.

    * "server": one tree on the mean gradient, a leaf's sensitivity 2G/(KM);
    * "none": a tree for every machine on its own gradient, sensitivity 2G/K, and the server averages: a standard
      deviation of 1/√M of a tree's, so √M times that of "server".

    Every theorem holds with `epoch` for N in the privacy and the noise (there with `lipschitz=sensitivity/2`), and as
    many rounds as participations. Replace-one record; a record lives on one machine, so nothing composes across them.

    Args:
        machines: M.
        records: n, of one machine.
        batch: K, a divisor of n.
        lipschitz: G.

    Source: ours; the paper has one machine.

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
