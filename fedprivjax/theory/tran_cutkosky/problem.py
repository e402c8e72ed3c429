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
    """Constants of a smooth Lipschitz problem. All attributes except the dimension may be arrays.

    Attributes:
        records: N, number of records, also the number of rounds of an epoch.
        dimension: d, number of parameters of the model.
        lipschitz: G, bound on the gradient norm of one record's loss. Bounds on noise use 2G, the largest change of a
            round's gradient if a record is replaced. If another bound on this change holds, give half of that bound
            (see `federated`).
        smoothness: L, smoothness of one record's loss.

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
    """Constants with which the theorems of Tran & Cutkosky 2022 apply to several machines.

    The theorems are for one machine. `federated` returns the constants:

    * `epoch`: number of rounds of an epoch. Use it as `records` in functions for privacy and noise;
    * `sensitivity`: sensitivity of one round's gradient to replacing one record. Use half of it as `lipschitz` in
      functions for noise, such as `momentum_noise_norm`;
    * `noise`: factor by which to multiply the noise from these functions. The factor is 1 with a trusted server.
      Without a trusted server, the factor is 1/√M for M machines, because the server averages M independent noises.
    """

    epoch: int
    sensitivity: float
    noise: float


def federated(*, machines: int, records: int, batch: int, trust: str, lipschitz: float = 1.0) -> Federated:
    """Constants with which the theorems of Tran & Cutkosky 2022 apply to M machines.

    The theorems are for one machine, which adds noise to sums of its gradients over successive rounds. With several
    machines, a trusted server adds noise to sums of the machines' mean gradient. Without a trusted server, each machine
    adds noise to sums of its own gradient, and the server averages the noisy sums of all machines.

    Neighbouring datasets differ by the replacement of one record. Every record belongs to one machine, so that the
    machines' guarantees need no composition. If a machine takes part in some rounds only, the rounds of the theorems
    are the rounds in which it takes part.

    Args:
        machines: M, number of machines.
        records: n, number of records of one machine.
        batch: K, number of a machine's records in a round, drawn without replacement; a divisor of n.
        trust: "server" for a trusted server, or "none".
        lipschitz: G, Lipschitz constant of one record's loss.

    Returns:
        A `Federated` with the fields

        * `epoch`: n/K;
        * `sensitivity`: 2G/(KM) for "server" and 2G/K for "none";
        * `noise`: 1 for "server" and 1/√M for "none".

    Source: derived here.

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
    """Return the numbers of records and rounds. Raise Refusal if there are fewer rounds than records."""
    n, t = np.broadcast_arrays(at_least_one("records", records), at_least_one("rounds", rounds))
    short = t < n
    if short.any():
        raise Refusal(f"rounds must be at least records ({n[short][0]:.15g}), got {t[short][0]:.15g}")
    return n, t


def checked_alpha(records: ArrayLike, alpha: ArrayLike) -> np.ndarray:
    """Return α, the weight of a new gradient in the momentum.

    Raise Refusal if it is outside [1/N, 1] for N records, apart from a relative rounding error of 1e-9.
    """
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
    """Return the number of rounds, rounded up to a multiple of the number of records."""
    return int(np.ceil(rounds / records * (1 - 1e-12))) * records


class ReducedNodes(NamedTuple):
    """Numbers of noisy sums that contain one record, in reduced-noise momentum (Algorithm 2).

    Algorithm 2 of Tran & Cutkosky 2022 releases the noisy sums of three binary trees over the rounds. The first tree
    sums gradients at each epoch's first iterate. The second tree sums the differences between these gradients in
    successive epochs. The third tree sums residuals: current gradients minus gradients at the epoch's first iterate. A
    sum is early if its last round is in the first two epochs. Otherwise, it is late.

    * `early`: bound on the number of early sums of the first two trees together that contain one record;
    * `late`: bound on the number of late sums of the first two trees together that contain one record. It also bounds
      the number of sums of the third tree that contain one record, early or late.
    """

    early: Any
    late: Any


def node_count(*, records: ArrayLike, rounds: ArrayLike) -> Any:
    """Bound on the number of noisy sums that contain one record, in a binary tree over the rounds.

    Level j of the tree has one noisy sum for each successive block of 2^j rounds.

    Args:
        records: N, number of records, also the number of rounds of an epoch.
        rounds: T, number of rounds, at least N.

    Returns:
        `V = (⌊log₂N⌋ + 1)·⌈T/N⌉ + Σ_j ⌊T/2^j⌋`, where the sum is over the integers j from ⌊log₂N⌋ + 1 to ⌊log₂T⌋.

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
    """Numbers of noisy sums that contain one record, in reduced-noise momentum (Algorithm 2).

    Args:
        records: N, number of records, also the number of rounds of an epoch; at least 2.
        rounds: T, number of rounds, at least N.
        form: "corrected", or "paper" for the numbers of the paper, which can be slightly too small.

    Returns:
        Two bounds on the number of noisy sums. `ReducedNodes` says which sums each of them counts.

        * `early` is `3(⌊log₂N⌋ + 1)` for "corrected" and `3·log₂N` for "paper".
        * `late` is `4(T/N)·log₂N`.

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
    """Largest total weight of one record in a noisy sum of gradients over the rounds y to z.

    Round t uses the gradient of one record, which has the weight (1−α)^{z−t} in the sum. The total weight of a record
    is the sum of its weights over the rounds that use it. The sensitivity of the sum is the largest total weight times
    the sensitivity of one round's gradient. A momentum multiplies the sum and its sensitivity by α.

    Args:
        first: y, first round of the sum, counted from 1.
        last: z, last round of the sum.
        records: N, number of records, also the number of rounds of an epoch.
        alpha: α, weight of a new gradient in the momentum, at least 1/N.
        order: order of the records, "cyclic" (the same in every epoch) or "reshuffled" (new in every epoch).

    Returns:
        The largest total weight, over all records and all orders of the kind `order`.

        * for "cyclic": `Σ_{j<⌈(z−y+1)/N⌉} (1−α)^{jN}`, which is at most 1.59;
        * for "reshuffled": `Σ_e (1−α)^{z − min(z, (e+1)N)}` over the epochs e = 0, 1, … that have rounds from y to z,
          at most 2.59.

    Source: "cyclic": Tran & Cutkosky 2022, Theorem 4, which has ⌈(z−y)/N⌉ instead of ⌈(z−y+1)/N⌉. "reshuffled":
    derived here.

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
    """Upper bound on `node_sensitivity` for noisy sums over any number of rounds.

    Args:
        records: N, number of records, also the number of rounds of an epoch.
        alpha: α, weight of a new gradient in the momentum, at least 1/N.
        order: "cyclic" or "reshuffled", order of the records (`node_sensitivity`).

    Returns:
        `1/(1−(1−α)^N)` for "cyclic", and `1 + (1−α)/(1−(1−α)^N)` for "reshuffled". The paper's bound of 2 holds for
        "cyclic" if α ≥ 1/N. For "reshuffled", the bound of 2 holds only if `(1−α)^N ≤ α`.

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
