"""Constants of a smooth problem, and nodes of the tree that contain one of its records.

Round t = 1..T uses one record, and every record is used once in N rounds. A node is an interval of rounds
`[first, last]` of the form `[c·2^k + 1, (c + 1)·2^k]`. Sensitivities are in units of α times the sensitivity of a leaf,
which is 2G for gradients of norm at most G.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, plain, positive, validate

ORDERS = ("cyclic", "reshuffled")


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a smooth Lipschitz problem. All but the dimension may be arrays.

    Attributes:
        records: N, also the number of rounds of an epoch.
        dimension: d, parameters of the model.
        lipschitz: G, bound on the gradient norm of one record's loss. Bounds on noise read it as half of the
            sensitivity of one round's gradient, which is 2G when a record is replaced.
        smoothness: L.

    Raises:
        Refusal: if a number is out of range.

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
    """Constants with which the theorems, which are for one machine, hold for several (see `federated`).

    `epoch` is the number of rounds of an epoch (N of the theorems), and `sensitivity` that of one round's gradient.
    `noise` is the standard deviation of the server's noise divided by that of one tree.
    """

    epoch: int
    sensitivity: float
    noise: float


def federated(*, machines: int, records: int, batch: int, trust: str, lipschitz: float = 1.0) -> Federated:
    """Constants with which the theorems for one machine hold for M machines.

    Each machine uses K of its n records per round, without replacement, so that an epoch has n/K rounds.

    * "server": one tree of noisy sums, of the mean gradient; one record changes a round's gradient by 2G/(KM);
    * "none": one tree per machine, of the machine's gradient; one record changes it by 2G/K. The server averages the
      trees. The standard deviation of the average is 1/√M of that of one tree, and √M times that of "server".

    The theorems on privacy and noise hold with `epoch` as N and, for the noise, `lipschitz=sensitivity/2`. Rounds in
    which a machine does not take part do not count. Neighbours replace one record. A record belongs to one machine, so
    there is no composition over machines.

    Args:
        machines: M.
        records: n, records of one machine.
        batch: K, a divisor of n.
        lipschitz: G, Lipschitz constant of one record's loss.

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


def checked_rounds(records: ArrayLike, rounds: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return N and T. Raise Refusal if T < N."""
    n, t = np.broadcast_arrays(at_least_one("records", records), at_least_one("rounds", rounds))
    short = t < n
    if short.any():
        raise Refusal(f"rounds must be at least records ({n[short][0]:.15g}), got {t[short][0]:.15g}")
    return n, t


def checked_alpha(records: ArrayLike, alpha: ArrayLike) -> np.ndarray:
    """Return α. Raise Refusal if it is outside [1/N, 1], apart from a relative rounding error of 1e-9."""
    n, value = np.broadcast_arrays(at_least_one("records", records), positive("alpha", alpha))
    wrong = (value > 1) | (value * n < 1 - 1e-9)
    if wrong.any():
        raise Refusal(f"alpha must be between 1/records ({1 / n[wrong][0]:.6g}) and 1, got {value[wrong][0]:.6g}")
    return value


def decay(alpha: ArrayLike, steps: ArrayLike) -> np.ndarray:
    """Return `(1 − α)^steps` for steps of at least 1.

    Here α is a gradient's weight in the momentum.
    """
    with np.errstate(divide="ignore"):
        return np.exp(np.asarray(steps, float) * np.log1p(-np.asarray(alpha, float)))


def recurrences(alpha: ArrayLike, records: ArrayLike, count: ArrayLike) -> np.ndarray:
    """Return `Σ_{j<count} (1 − α)^{jN}`, or the whole series for a count of inf.

    Here α is a gradient's weight in the momentum and N the number of records.
    """
    count, epoch = np.asarray(count, float), decay(alpha, records)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(count == 0, 1.0, epoch**count)
    return (1 - left) / (1 - epoch)


def floor_log2(value: ArrayLike) -> np.ndarray:
    """Return `⌊log₂ value⌋` exactly."""
    return np.frexp(np.asarray(value, float))[1] - 1


def ceil_log2(value: ArrayLike) -> np.ndarray:
    """Return `⌈log₂ value⌉` exactly."""
    mantissa, exponent = np.frexp(np.asarray(value, float))
    return exponent - (mantissa == 0.5)


def whole_epochs(records: int, rounds: float) -> int:
    """Return T rounded up to a multiple of N."""
    return int(np.ceil(rounds / records * (1 - 1e-12))) * records


class ReducedNodes(NamedTuple):
    """Numbers of noisy sums with one record in reduced-noise momentum (Algorithm 2), for the scale of the noise.

    Algorithm 2 releases a momentum with less noise, by three binary trees over the rounds. A node is the sum of its
    rounds. `early` is for nodes that end by round 2N, for N records, and `late` for all others. All nodes of the tree
    of residuals count as late.
    """

    early: Any
    late: Any


def node_count(*, records: ArrayLike, rounds: ArrayLike) -> Any:
    """Bound on the number of nodes of a binary tree over T rounds that contain one record.

    A node is the sum over 2^j successive rounds. `V = (min(R, ⌊log₂N⌋) + 1)·⌈T/N⌉ + Σ_{j=⌊log₂N⌋+1}^{R} ⌊T/2^j⌋` with
    `R = ⌊log₂T⌋`. It is at most `4(T/N)·log₂T`. The second half of a node is never released as a node of its own. About
    half of V would therefore suffice for shuffled epochs, and up to nine tenths of V if all epochs have the same order.

    Args:
        records: N.
        rounds: T, at least N.

    Source: Tran & Cutkosky 2022, Theorem 4, with ⌈T/N⌉ for T/N, which is too small if N does not divide T.

    >>> node_count(records=100, rounds=1024)
    92.0
    """
    n, t = checked_rounds(records, rounds)
    depth, low = floor_log2(t), floor_log2(n)
    levels = np.arange(int(depth.max()) + 1)
    long = (levels > low[..., None]) & (levels <= depth[..., None])
    return plain((np.minimum(depth, low) + 1) * np.ceil(t / n) + (long * np.floor(t[..., None] / 2.0**levels)).sum(-1))


def reduced_node_counts(*, records: ArrayLike, rounds: ArrayLike, form: str = "corrected") -> ReducedNodes:
    """Numbers of noisy sums with one record in reduced-noise momentum (Algorithm 2), for the scale of the noise.

    Algorithm 2 releases a momentum with less noise, by three binary trees over the rounds. A node is the sum of its
    rounds. `V_<` is for nodes that end by round 2N, and `V_>` for all others.

    * "paper": `3·log₂N` and `4(T/N)·log₂N`;
    * "corrected": `3(⌊log₂N⌋ + 1)`, because up to round 2N a record occurs twice in one tree and once in the other; and
      `4(T/N)·log₂N`, which suffices also if N does not divide T.

    Except in the tree of residuals, only nodes of at most N rounds are used.

    Args:
        records: N, at least 2.
        rounds: T, at least N.

    Source: Tran & Cutkosky 2022, Theorem 8.

    >>> reduced_node_counts(records=64, rounds=1024)
    ReducedNodes(early=21.0, late=384.0)
    """
    require_choice("form", form, ("corrected", "paper"))
    n, t = checked_rounds(at_least_two(records), rounds)
    early = 3 * (np.log2(n) if form == "paper" else floor_log2(n) + 1.0)
    return ReducedNodes(plain(early), plain(4 * t / n * np.log2(n)))


def node_sensitivity(
    *, first: ArrayLike, last: ArrayLike, records: ArrayLike, alpha: ArrayLike, order: str = "cyclic"
) -> Any:
    """Largest weight of one record in a noisy sum over rounds y to z (a node), divided by α.

    In the sum, a gradient counts 1 − α times as much as one of the next round.

    The sensitivity of the node is this, times α, times the sensitivity of one round's gradient.

    * "cyclic", with the same order in every epoch: `Σ_{j<⌈(z−y+1)/N⌉} (1−α)^{jN}`, at most 1.59 for α ≥ 1/N;
    * "reshuffled", with the worst orders: `Σ_e (1−α)^{z − min(z, (e+1)N)}` over the epochs e that intersect the node,
      at most 2.59. A record may be last in one epoch and first in the next.

    Both values are attained.

    Args:
        first: y, first round of the node, counted from 1.
        last: z, last round of the node.
        records: N, also the number of rounds of an epoch.
        alpha: α, weight of a gradient in the momentum.

    Source: "cyclic": Tran & Cutkosky 2022, Theorem 4, whose count ⌈(z−y)/N⌉ is 0 for a leaf. "reshuffled": derived
    here, for the orders in the paper's experiments.

    >>> node_sensitivity(first=1, last=8, records=4, alpha=0.5)
    1.0625
    >>> node_sensitivity(first=1, last=8, records=4, alpha=0.5, order="reshuffled")
    1.0625
    >>> node_sensitivity(first=5, last=6, records=5, alpha=0.5, order="reshuffled")
    1.5
    """
    require_choice("order", order, ORDERS)
    n = at_least_one("records", records)
    y, z = checked_node(first, last)
    alpha = checked_alpha(n, alpha)
    if order == "cyclic":
        return plain(recurrences(alpha, n, np.ceil((z - y + 1) / n)))
    epoch = np.floor((z - 1) / n)
    earlier = epoch - np.floor((y - 1) / n)
    return plain(1 + decay(alpha, z - epoch * n) * recurrences(alpha, n, earlier))


def sensitivity_cap(*, records: ArrayLike, alpha: ArrayLike, order: str = "cyclic") -> Any:
    """Upper bound on `node_sensitivity`, the largest weight of one record in a node divided by α, for any node.

    It is `1/(1−(1−α)^N)` for "cyclic" and `1 + (1−α)/(1−(1−α)^N)` for "reshuffled". The paper's bound is 2 (4αG). It
    holds for "cyclic" (one order of records in all epochs). For "reshuffled" it holds only if `(1−α)^N ≤ α`.

    Here α is a gradient's weight in the momentum and N the number of records.

    >>> sensitivity_cap(records=1, alpha=1.0)
    1.0
    >>> [round(sensitivity_cap(records=10**6, alpha=1e-6, order=order), 3) for order in ("cyclic", "reshuffled")]
    [1.582, 2.582]
    """
    require_choice("order", order, ORDERS)
    alpha = checked_alpha(records, alpha)
    series = recurrences(alpha, records, np.inf)
    return plain(series if order == "cyclic" else 1 + (1 - alpha) * series)


def checked_node(first: ArrayLike, last: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    y, z = np.broadcast_arrays(at_least_one("first", first), at_least_one("last", last))
    wrong = y > z
    if wrong.any():
        raise Refusal(f"last must be at least first ({y[wrong][0]:.15g}), got {z[wrong][0]:.15g}")
    return y, z


def at_least_two(records: ArrayLike) -> np.ndarray:
    n = at_least_one("records", records)
    if (n < 2).any():
        raise Refusal(f"records must be at least 2 for Algorithm 2, got {n.min():.15g}")
    return n
