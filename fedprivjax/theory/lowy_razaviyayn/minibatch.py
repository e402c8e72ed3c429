"""Algorithm 1 for convex losses, noisy minibatch SGD: variance, steps, rounds, bounds (Theorem 2.1).

`per_round` is M˜ and `load` is ξ˜: the pair that `average_or_max` chooses, or the machines of a round and the load if
all machines are identical. L, β, μ and n are those of the worst machine. Functions that return a number of rounds also
accept a load that is a function of the rounds, since ξ contains a logarithm of R.

The variance of the server's mean gradient has three parts: the sampled records of a machine, the sampled machines of a
round, and the noise. The steps of Algorithm 1 use bounds on the first two parts at the optimum, and the noise. Those of
Algorithm 2 use the sum V².
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import as_sampler
from fedprivjax.theory._numbers import at_least_one, counts, inverse, nonnegative, one, ordered, plain, positive, single
from fedprivjax.theory.lowy_razaviyayn._rounds import Load, load_at, min_rounds
from fedprivjax.theory.lowy_razaviyayn.cohorts import checked, harmonic_machines, sizes
from fedprivjax.theory.lowy_razaviyayn.problem import (
    ProblemConstants,
    average_or_max,
    client_diversity,
    client_variance,
    precision,
)


class Variance(NamedTuple):
    """Mean squared L2 error of the server's mean gradient in a round, as three parts.

    * `sampling`: the part due to sampled records;
    * `clients`: the part due to sampled machines;
    * `noise`: the part due to the noise for privacy.
    """

    sampling: float
    clients: float
    noise: float

    @property
    def total(self) -> float:
        """Mean squared error of a round's mean gradient: the sum of `sampling`, `clients` and `noise`."""
        return self.sampling + self.clients + self.noise


def aggregate_variance(
    *,
    sampler: str,
    gradients: ArrayLike,
    spread: ArrayLike,
    records: ArrayLike,
    batch: ArrayLike,
    noise_std: ArrayLike,
    pmf: ArrayLike,
) -> Variance:
    """Exact variance of one round's mean gradient around the gradient of the empirical loss.

    Each round has a random number m of machines, sampled uniformly without replacement from all N machines.

    Args:
        sampler: sampler of a batch: "replacement", "subset" (without replacement), "disjoint" (one pass over the
            records), "poisson" or "full" (all records).
        gradients: g_i, gradient of each machine's empirical loss; shape [machines, dimension].
        spread: s_i², mean squared L2 distance of the gradients of machine i's records to their mean; shape [machines].
        records: n_i, number of records of machine i. An array has one entry per machine, and a number is for all
            machines.
        batch: K_i, number of records in a batch of machine i, as an array or a number; all records for "full".
        noise_std: σ_i, standard deviation of machine i's noise per coordinate, as an array or a number.
        pmf: probabilities of m = 1, 2, …, N machines in a round.

    Returns:
        A `Variance`. Means are over the machines i, and d is the number of parameters. The fields are

        * `sampling = E[1/m]·mean_i v_i`, where v_i is the variance of the mean gradient of one batch;
        * `clients = E[(N−m)/((N−1)m)]·mean_i ‖g_i − g‖²`, where g is the mean of all g_i; 0 if N = 1;
        * `noise = E[1/m]·d·mean_i σ_i²`.

        The variance v_i depends on the sampler.

        * for "replacement": `s_i²/K_i`;
        * for "full": 0;
        * for "subset" and "disjoint": `s_i²/K_i·(n_i−K_i)/(n_i−1)`;
        * for "poisson": `(s_i² + ‖g_i‖²)/K_i·(1−K_i/n_i)`.

    Raises:
        Refusal: if a batch exceeds the records, or the shapes are inconsistent.

    Source: derived here, by conditioning on the machines. The paper has bounds in Lemma E.5.

    >>> aggregate_variance(sampler="replacement", gradients=[[1.0], [-1.0]], spread=[4.0, 4.0], records=8, batch=2,
    ...                    noise_std=0.5, pmf=[1.0, 0.0])
    Variance(sampling=2.0, clients=1.0, noise=0.25)
    """
    pmf = checked(pmf)
    gradients = np.asarray(gradients, float)
    if gradients.ndim != 2 or len(gradients) != pmf.size:
        raise Refusal(f"gradients must be [machines ({pmf.size}), dimension], got shape {gradients.shape}")
    spread, noise_std = nonnegative("spread", spread), nonnegative("noise_std", noise_std)
    records, batch = at_least_one("records", records), at_least_one("batch", batch)
    ordered("batch", batch, "records", records)
    drawn = as_sampler(sampler, batch.tolist())
    if drawn.batch is None and (batch != records).any():
        raise Refusal(f"batch must be records ({records}) for the sampler {sampler!r}, got {batch}")
    within = drawn.variance(records, batch, spread, np.sum(gradients**2, axis=1))
    each = 1 / harmonic_machines(pmf)
    sampling, noise = np.mean(np.broadcast_to(within, pmf.size)), np.mean(np.broadcast_to(noise_std**2, pmf.size))
    clients = _choice(pmf) * client_diversity(gradients)
    return Variance(float(each * sampling), float(clients), float(each * gradients.shape[1] * noise))


def population_variance(
    *, deviation: ArrayLike, batch: int, noise_std: ArrayLike, dimension: int, diversity: float, pmf: ArrayLike
) -> Variance:
    """Bound on the variance of a round's mean gradient around the gradient of the population loss.

    All gradients are at one point, such as the optimum for `minibatch_step_bound`. The bound assumes that records are
    new samples from the population, which is true in a single pass only.

    A random number m of all N machines takes part in a round. Let `M = 1/E[1/m]` and `M′ = 1/√E[1/m²]`.

    Args:
        deviation: φ_i, bound on the standard deviation of a record's gradient at machine i (L2 norm over coordinates).
            Give an array, or one number for all machines.
        batch: K, number of records in a batch; the smallest number if machines differ.
        noise_std: σ_i, standard deviation of machine i's noise per coordinate, as an array or one number for all
            machines.
        dimension: d, number of parameters.
        diversity: υ², mean squared distance of the machines' gradients to their mean.
        pmf: probabilities of m = 1, 2, …, N.

    Returns:
        A `Variance` with the fields

        * `sampling = min{Φ²/M′, φ²_max/M}/K`. Here Φ² is `√E[ā_m²]`, where ā_m is the mean of the m largest φ_i², and
          φ²_max is the largest φ_i²;
        * `clients = (1 − (M−1)/(N−1))·υ²/M`, or 0 if N = 1;
        * `noise = d·min{Σ²/M′, σ²_max/M}`. Here Σ² is `√E[b̄_m²]`, where b̄_m is the mean of the m largest σ_i², and
          σ²_max is the largest σ_i².

    Source: Lowy & Razaviyayn 2023, Lemma E.5.

    >>> population_variance(deviation=2.0, batch=2, noise_std=1.0, dimension=3, diversity=1.0, pmf=[0.0, 1.0])
    Variance(sampling=1.0, clients=0.0, noise=1.5)
    """
    counts(batch=batch, dimension=dimension)
    pmf = checked(pmf)
    sampling = average_or_max(nonnegative("deviation", deviation) ** 2, pmf).ratio / batch
    noise = dimension * average_or_max(nonnegative("noise_std", noise_std) ** 2, pmf).ratio
    return Variance(sampling, _clients(diversity, pmf), noise)


def empirical_variance(
    *,
    spread: float,
    batch: int,
    noise_std: ArrayLike,
    dimension: int,
    pmf: ArrayLike,
    diversity: float,
    total_records: int | None = None,
) -> Variance:
    """Bound on the variance of a round's mean gradient around the gradient of the empirical loss.

    The bound holds for batches of K records, sampled with or without replacement, if the machines have equally many
    records. It does not hold for Poisson samples. For full batches, use spread 0.

    A random number m of all N machines takes part in a round. Let `M = 1/E[1/m]` and `M′ = 1/√E[1/m²]`.

    Args:
        spread: Φˆ², mean squared distance of all records' gradients to the empirical gradient.
        batch: K, number of records in a batch.
        noise_std: σ_i, noise standard deviation of machine i per coordinate; an array or a number.
        dimension: d, number of parameters.
        pmf: probabilities of m = 1, 2, …, N.
        diversity: υ², mean squared distance of the machines' gradients to their mean. The paper sets υ² to 0, which is
            correct only if all machines take part in every round or have equal gradients.
        total_records: None, or the number n of all machines' records. If M·K ≥ n, `sampling` is set to 0, as in the
            paper. The value 0 is wrong for sampling with replacement.

    Returns:
        A `Variance` with the fields

        * `sampling = Φˆ²/(MK)`;
        * `clients = (1 − (M−1)/(N−1))·υ²/M`, or 0 if N = 1;
        * `noise = d·min{Σ²/M′, σ²_max/M}`. Here Σ² is `√E[ā_m²]`, where ā_m is the mean of the m largest σ_i², and
          σ²_max is the largest σ_i².

    Source: Lowy & Razaviyayn 2023, Lemma E.5, corrected.

    >>> empirical_variance(spread=4.0, batch=2, noise_std=1.0, dimension=3, diversity=1.0, pmf=[1.0, 0.0])
    Variance(sampling=2.0, clients=1.0, noise=3.0)
    """
    counts(batch=batch, dimension=dimension)
    pmf = checked(pmf)
    taken = harmonic_machines(pmf) * batch
    drawn = total_records is None or taken < total_records
    sampling = one(nonnegative, "spread", spread) / taken if drawn else 0.0
    noise = dimension * average_or_max(nonnegative("noise_std", noise_std) ** 2, pmf).ratio
    return Variance(sampling, _clients(diversity, pmf), noise)


def worst_variance(problem: ProblemConstants, *, batch: int, noise_std: float, clients: float = 0.0) -> Variance:
    """Largest variance of a round's mean gradient for a Lipschitz loss and equal noise of all machines.

    Args:
        problem: constants M (machines in a round), d (parameters) and L (Lipschitz constant).
        batch: K, number of records in a batch.
        noise_std: σ, standard deviation of a machine's noise per coordinate.
        clients: variance of a round's mean gradient at the optimum that is due to the random choice of M machines. An
            example is `client_variance` divided by M. This variance is 0 if all machines are identical, or if all
            machines take part.

    Returns:
        A `Variance` with `sampling = 4L²/(MK)`, the given `clients`, and `noise = dσ²/M`.

    Source: Lowy & Razaviyayn 2023, (21).

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=8, diameter=1.0, lipschitz=1.0)
    >>> worst_variance(problem, batch=2, noise_std=0.5)
    Variance(sampling=0.5, clients=0.0, noise=0.5)
    """
    counts(batch=batch)
    problem = single(problem)
    sampling = 4 * problem.lipschitz**2 / (problem.per_round * batch)
    noise = problem.dimension * one(nonnegative, "noise_std", noise_std) ** 2 / problem.per_round
    return Variance(sampling, one(nonnegative, "clients", clients), noise)


def _choice(pmf: np.ndarray) -> float:
    """Return `E[(N−M_r)/((N−1)M_r)]` for a random number M_r of N machines, or 0 for one machine."""
    machines, size = pmf.size, sizes(pmf)
    return 0.0 if machines == 1 else float(pmf @ ((machines - size) / ((machines - 1) * size)))


def _clients(diversity: float, pmf: np.ndarray) -> float:
    per_round = harmonic_machines(pmf)
    return client_variance(diversity=diversity, machines=pmf.size, per_round=per_round) / per_round


def minibatch_step(problem: ProblemConstants, *, rounds: int, smoothness: ArrayLike, load: ArrayLike) -> Any:
    """Step size of minibatch SGD for a convex loss, if the output is the mean of the iterates.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        rounds: R, number of rounds.
        smoothness: β, smoothness of the loss.
        load: ξ˜, privacy load (`privacy_load`); 0 for no privacy.

    Returns:
        `η = min{1/(4β), (D√M˜/(LR))·min{√n, 1/√(dξ˜)}}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1, without the square root that the paper prints in the definition of M˜.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_step(problem, rounds=10, smoothness=0.5, load=0.01)
    0.2
    """
    counts(rounds=rounds)
    step = problem.diameter * np.sqrt(problem.per_round * precision(problem, load)) / (problem.lipschitz * rounds)
    return plain(np.minimum(step, _cap(smoothness)))


def minibatch_rounds(problem: ProblemConstants, *, batch: int, smoothness: float, load: Load) -> int:
    """Number of rounds of minibatch SGD for a smooth convex loss.

    After these rounds, `minibatch_bound` bounds the excess population loss.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        batch: K, number of records in a batch.
        smoothness: β, smoothness of the loss.
        load: ξ˜, privacy load (`privacy_load`). If ξ˜ depends on the number of rounds, give a function.

    Returns:
        The smallest integer R with `R ≥ max{(βD√M˜/L)·√p, p/K}` and `p = min{n, 1/(dξ˜)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_rounds(problem, batch=10, smoothness=6.0, load=0.01)
    12
    >>> minibatch_rounds(problem, batch=10, smoothness=6.0, load=lambda rounds: 0.001 * rounds)
    12
    """
    counts(batch=batch)
    problem = single(problem)
    slope = problem.diameter * one(nonnegative, "smoothness", smoothness) / problem.lipschitz
    slope *= np.sqrt(problem.per_round)

    def need(rounds: int) -> float:
        p = float(precision(problem, load_at(load, rounds)))
        return max(slope * np.sqrt(p), p / batch)

    return min_rounds(need)


def minibatch_bound(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Bound on the excess population loss of minibatch SGD for a convex loss.

    The bound holds for the step size `minibatch_step` and the number of rounds `minibatch_rounds`.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `272·(LD/√M˜)·max{1/√n, √(dξ˜)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_bound(problem, load=0.01)
    136.0
    """
    scale = problem.lipschitz * problem.diameter
    return plain(272 * scale / np.sqrt(problem.per_round * precision(problem, load)))


def minibatch_step_bound(
    *,
    step: ArrayLike,
    rounds: int,
    diameter: ArrayLike,
    smoothness: ArrayLike,
    variance: Variance,
    stability: ArrayLike = 0.0,
) -> Any:
    """Bound on the excess loss of minibatch SGD on a convex loss of smoothness β, at any step size up to 1/(4β).

    With `stability` 0, the bound is on the excess empirical loss, for any data. With `stability` from the function
    `uniform_stability`, the bound is on the excess population loss.

    Args:
        step: η, step size, at most 1/(4β).
        rounds: R, number of rounds.
        diameter: D, bound on the distance from the start to the optimum.
        smoothness: β, smoothness of the loss.
        variance: variance of a round's gradient at the optimum, from `population_variance` or `worst_variance`.
        stability: α, bound on the difference of population and empirical loss.

    Returns:
        `α + D²/(ηR) + 2η·(sampling + clients + noise/2)`, where `sampling`, `clients` and `noise` are the fields of
        `variance`.

    Raises:
        Refusal: if the step size exceeds 1/(4β).

    Source: Lowy & Razaviyayn 2023, Lemma E.4 and (27).

    >>> minibatch_step_bound(step=0.5, rounds=4, diameter=1.0, smoothness=0.5, variance=Variance(0.25, 0.0, 0.5))
    1.0
    """
    counts(rounds=rounds)
    step = _allowed(step, smoothness)
    spread = variance.sampling + variance.clients + variance.noise / 2
    start = positive("diameter", diameter) ** 2 / (step * rounds)
    return plain(nonnegative("stability", stability) + start + 2 * step * spread)


def _cap(smoothness: ArrayLike) -> np.ndarray:
    return inverse(4 * nonnegative("smoothness", smoothness))


def _allowed(step: ArrayLike, smoothness: ArrayLike) -> np.ndarray:
    step = positive("step", step)
    ordered("step", step, "1/(4·smoothness)", _cap(smoothness))
    return step
