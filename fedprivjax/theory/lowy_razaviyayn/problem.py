"""Constants of a federated problem: its machines, their privacy load, heterogeneity.

The privacy load ξ is the cost of a machine's privacy as one number, on which all bounds and step sizes depend. By
advanced composition, the noise of a message is `σ² = 256·R·L²·ξ`. Noise from any other source thus has a load, too.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import (
    at_least_one,
    counts,
    inverse,
    nonnegative,
    ordered,
    plain,
    positive,
    positive_or_inf,
    probability,
    validate,
)
from fedprivjax.theory.lowy_razaviyayn.cohorts import checked, harmonic_machines, second_moment_machines

NOISE_CONSTANT = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a Lipschitz problem on machines with equally many records.

    All attributes except the dimension may be arrays.

    Attributes:
        records: n, number of records of one machine; the smallest number if machines differ.
        per_round: M, number of machines in a round. If the number is random, give its harmonic mean
            (`harmonic_machines`). Results that contain M˜ instead of M also hold for machines with different privacy
            loads (`privacy_load`). For such machines, give M˜ = `average_or_max(loads, pmf).per_round`. For equal
            loads, M˜ is M.
        dimension: d, number of parameters of the model.
        diameter: D, bound on the distance from the start to the optimum.
        lipschitz: L, bound on the gradient norm of one record's loss; the largest bound if machines differ.

    Raises:
        Refusal: if a number is out of range.

    >>> ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=0.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: lipschitz must be positive and finite, got 0.0
    """

    records: Any
    per_round: Any
    dimension: int
    diameter: Any
    lipschitz: Any

    def __post_init__(self):
        counts(dimension=self.dimension)
        validate(self, records=at_least_one, per_round=at_least_one, diameter=positive, lipschitz=positive)


def curvatures(strong_convexity: ArrayLike, smoothness: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the strong convexity μ and the smoothness β as float64 arrays. Raise Refusal unless 0 < μ ≤ β."""
    mu, beta = positive("strong_convexity", strong_convexity), positive("smoothness", smoothness)
    ordered("strong_convexity", mu, "smoothness", beta)
    return mu, beta


def privacy_load(
    *, records: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, rounds: int, lipschitz: ArrayLike = 1.0
) -> Any:
    """Privacy load of a machine: a number to which the machine's noise variance is proportional.

    For a load ξ, the paper assumes Gaussian noise of variance `256·R·L²·ξ` per coordinate. All arguments except
    `rounds` may be arrays with one entry per machine.

    Args:
        records: n, number of records of a machine.
        epsilon: ε of the privacy budget, at most 2·ln(2/δ), or inf for no privacy (load 0).
        delta: δ of the privacy budget.
        rounds: R, number of rounds.
        lipschitz: L, Lipschitz constant of the loss. The result is L²·ξ. The default of 1 gives ξ.

    Returns:
        `(L/(nε))²·ln(2.5R/δ)·ln(2/δ)`.

    Raises:
        Refusal: if epsilon is outside the range of the theorem.

    Source: Lowy & Razaviyayn 2023, appendix E.1, where one `ln(2δ)` should be `ln(2/δ)`.

    >>> round(privacy_load(records=100, epsilon=1.0, delta=1e-5, rounds=10), 6)
    0.017982
    """
    counts(rounds=rounds)
    delta, epsilon = np.broadcast_arrays(probability("delta", delta), positive_or_inf("epsilon", epsilon))
    most = 2 * np.log(2 / delta)
    wrong = (epsilon > most) & np.isfinite(epsilon)
    if wrong.any():
        raise Refusal(f"epsilon must be at most 2·ln(2/delta) ({most[wrong][0]:.6g}), got {epsilon[wrong][0]}")
    logs = np.log(2.5 * rounds / delta) * np.log(2 / delta)
    return plain((positive("lipschitz", lipschitz) / (at_least_one("records", records) * epsilon)) ** 2 * logs)


def bare_load(*, records: ArrayLike, epsilon: ArrayLike) -> Any:
    """Simplified privacy load of a machine: `privacy_load` without logarithmic factors.

    The noise variance is proportional to the privacy load. The simplified load is for plots and for numbers of rounds
    without logarithmic factors.

    Args:
        records: n, number of records of a machine.
        epsilon: ε of the privacy budget.

    Returns:
        `1/(nε)²`.

    >>> bare_load(records=100, epsilon=0.5)
    0.0004
    """
    return plain(1 / (at_least_one("records", records) * positive_or_inf("epsilon", epsilon)) ** 2)


def equivalent_load(*, noise_std: ArrayLike, lipschitz: ArrayLike, rounds: int) -> Any:
    """Privacy load that corresponds to given noise, for example to noise that an accountant calibrated.

    The bounds and step sizes of Lowy & Razaviyayn 2023 depend on privacy only through the privacy load ξ. The paper
    assumes noise of variance 256·R·L²·ξ. This function returns the ξ for which this variance is σ².

    Args:
        noise_std: σ, standard deviation per coordinate of the noise of a machine's message (a mean of gradients).
        lipschitz: L, Lipschitz constant of the loss.
        rounds: R, number of rounds.

    Returns:
        `ξ = σ²/(256·R·L²)`.

    >>> equivalent_load(noise_std=32.0, lipschitz=1.0, rounds=4)
    1.0
    """
    counts(rounds=rounds)
    ratio = nonnegative("noise_std", noise_std) / positive("lipschitz", lipschitz)
    return plain(ratio**2 / (NOISE_CONSTANT * rounds))


def precision(problem: ProblemConstants, load: ArrayLike) -> np.ndarray:
    """Return `min{n, 1/(dξ)}`, the smaller of the statistical and the private precision.

    Here n is the number of records of a machine, d the number of parameters, and ξ the privacy load.
    """
    return np.minimum(problem.records, inverse(problem.dimension * nonnegative("load", load)))


class Effective(NamedTuple):
    """Number of machines and common value of all machines, for use in a bound for equal machines.

    The value is, for example, a noise variance. Suppose that the number of machines in a round is random, and that
    machines have different noise variances. The bound for equal machines then holds with `per_round` as the number of
    machines and `value` as every variance. `average_or_max` computes `per_round` and `value`.

    Attributes:
        per_round: number of machines in a round.
        value: one value for all machines: a noise variance, a squared standard deviation of records' gradients, or a
            privacy load. The noise variance is proportional to the privacy load.
    """

    per_round: float
    value: float

    @property
    def ratio(self) -> float:
        """`value` divided by `per_round`.

        For noise variances, this is a bound on the noise variance of the mean over the machines of a round.
        """
        return self.value / self.per_round


def top_averages(values: ArrayLike) -> np.ndarray:
    """Means of the m largest of the machines' values, for m = 1, …, machines; shape [machines].

    Args:
        values: one value per machine, in any order.

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> top_averages([1.0, 3.0, 2.0])
    array([3. , 2.5, 2. ])
    """
    values = np.sort(_per_machine(values))[::-1]
    return np.cumsum(values) / np.arange(1, values.size + 1)


def expected_top(values: ArrayLike, pmf: ArrayLike) -> float:
    """Root mean square of the mean of the m largest of the machines' values, for a random m.

    The random m is the number of machines in a round.

    Args:
        values: privacy loads (`privacy_load`), noise variances or squared deviations. An array has one entry per
            machine, and a number is for all machines.
        pmf: probabilities of m = 1, 2, …, N machines in a round, for N machines in all.

    Returns:
        `√E[ā_m²]`, where ā_m is the mean of the m largest values. The paper writes Φ² for squared deviations of
        records' gradients, Σ² for noise variances, and Ψ and Ξ for loads.

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> expected_top([1.0, 3.0], pmf=[0.0, 1.0])
    2.0
    """
    pmf = checked(pmf)
    return float(np.sqrt(pmf @ top_averages(_for_machines(values, pmf.size)) ** 2))


def average_or_max(values: ArrayLike, pmf: ArrayLike) -> Effective:
    """Number of machines and common value that a bound uses if machines have different values.

    Let m be the random number of machines in a round, and let ā_m be the mean of the m largest values (`top_averages`).

    Args:
        values: noise variances, squared deviations or privacy loads; one per machine, or one number.
        pmf: probabilities of m = 1, 2, …, N machines in a round, of N in all.

    Returns:
        An `Effective`, the one of the following two with the smaller `ratio = value/per_round`:

        * `per_round = 1/√E[1/m²]` (`second_moment_machines`) with `value = √E[ā_m²]` (`expected_top`);
        * `per_round = 1/E[1/m]` (`harmonic_machines`) with the largest of the values.

    Source: Lowy & Razaviyayn 2023, appendix E.1, without the square root that the paper prints around `per_round`.

    >>> average_or_max([4.0, 0.0], pmf=[0.0, 1.0])
    Effective(per_round=2.0, value=2.0)
    """
    average = Effective(second_moment_machines(pmf), expected_top(values, pmf))
    largest = Effective(harmonic_machines(pmf), float(np.max(_for_machines(values, len(checked(pmf))))))
    return average if average.ratio <= largest.ratio else largest


def client_variance(*, diversity: ArrayLike, machines: int, per_round: ArrayLike) -> Any:
    """Variance due to choosing the machines of a round at random.

    Divide the result by the number of machines in a round for the mean squared error of the mean gradient due to this
    choice.

    Args:
        diversity: υ², mean squared distance of the machines' gradients to their mean; at the optimum, the mean squared
            norm of their gradients.
        machines: N, number of all machines.
        per_round: M, number of machines in a round. If the number is random, give its harmonic mean
            (`harmonic_machines`).

    Returns:
        `Υ² = (1 − (M−1)/(N−1))·υ²`, or 0 if N = 1.

    Source: Lowy & Razaviyayn 2023, section 1.

    >>> client_variance(diversity=2.0, machines=5, per_round=3)
    1.0
    """
    counts(machines=machines)
    per_round = at_least_one("per_round", per_round)
    ordered("per_round", per_round, "machines", machines)
    diversity = nonnegative("diversity", diversity)
    share = 0.0 if machines == 1 else 1 - (per_round - 1) / (machines - 1)
    return plain(np.maximum(share, 0.0) * diversity)


def client_diversity(gradients: ArrayLike) -> float:
    """Diversity of machines: the mean squared distance of their gradients at one point to the mean gradient.

    Args:
        gradients: gradient of each machine, shape [machines, dimension].

    >>> client_diversity([[1.0, 0.0], [-1.0, 0.0]])
    1.0
    """
    gradients = np.asarray(gradients, float)
    return float(np.mean(np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1)))


def _per_machine(values: ArrayLike) -> np.ndarray:
    values = nonnegative("values", values)
    if values.ndim != 1 or values.size == 0:
        raise Refusal(f"values must be one per machine, got shape {values.shape}")
    return values


def _for_machines(values: ArrayLike, machines: int) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim and values.shape != (machines,):
        raise Refusal(f"values must be one per machine ({machines}), got shape {values.shape}")
    return np.broadcast_to(nonnegative("values", values), machines)
