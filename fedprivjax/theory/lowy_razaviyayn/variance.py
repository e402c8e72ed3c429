"""The variance of the server's mean of noisy minibatch gradients: exactly, and as the paper bounds it.

It has three parts: the records a machine draws, the machines a round draws, and the noise. A bound on the first two at
the optimum and the noise give Algorithm 1's steps; their sum V² gives Algorithm 2's.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import as_sampler
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, ordered, single
from fedprivjax.theory.lowy_razaviyayn.cohorts import checked, harmonic_machines, sizes
from fedprivjax.theory.lowy_razaviyayn.heterogeneity import average_or_max, client_diversity, client_variance
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants


class Variance(NamedTuple):
    """Mean squared distance (all coordinates together) of the server's mean from the gradient, by cause."""

    sampling: float
    clients: float
    noise: float

    @property
    def total(self) -> float:
        """V², the sum."""
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
    """The exact variance of one round's mean around the empirical gradient, M_r machines chosen uniformly.

    `E[1/M_r]·mean_i(s_i²·c_i/K_i) + E[(N−M_r)/((N−1)M_r)]·υ̂² + E[1/M_r]·d·mean_i σ_i²`, where c is 1 with replacement,
    (n−K)/(n−1) for subsets and (marginally) disjoint batches, and 0 for full ones; a Poisson sample of rate K/n with
    divisor K has `(1−K/n)·(s² + ‖∇F̂_i‖²)` for `s²·c`.

    Args:
        sampler: "replacement", "subset", "disjoint", "poisson" or "full".
        gradients: ∇F̂_i, [machines, dimension].
        spread: s_i², the mean squared distance of a machine's record gradients to its own gradient, [machines].
        records, batch, noise_std: n_i, K_i and σ_i, one per machine or one for all; batch must be n for "full".
        pmf: probabilities of 1, 2, …, machines in a round.

    Raises:
        ValueError: for a batch above the records, or shapes that do not agree.

    Source: our own, by conditioning on the machines; the paper bounds it in Lemma E.5.

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
    """The paper's bound around the population gradient.

    `min{Φ²/(M′K), φ²_max/(MK)} + Υ²/M + d·min{Σ²/M′, σ²_max/M}`. At the optimum with deviations φ* and diversity υ*² it
    is what Theorem 2.1 needs. It takes the records for fresh draws, which they are in a single pass alone.

    Args:
        deviation: φ_i, a bound on a record gradient's standard deviation (all coordinates), one per machine or for all.
        batch: K, the least batch.
        noise_std: σ_i, one per machine or one for all.
        diversity: υ².
        pmf: probabilities of 1, 2, …, machines in a round.

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
    """A bound around the empirical gradient: `Φ̂²/(MK) + Υ²/M + d·min{Σ²/M′, σ²_max/M}`.

    It holds with replacement and for subsets where the machines have equally many records; for full batches give
    spread 0.

    Args:
        spread: Φ̂², the mean squared distance of all records' gradients to the empirical gradient.
        diversity: υ̂². The paper leaves this term out, which is wrong where M < N: one of two machines with full batches
            and gradients ±1 has variance 1.
        total_records: Ñ; where given, the paper's indicator drops the first term if MK ≥ Ñ. That is false with
            replacement.

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
    """The variance that a Lipschitz loss allows, machines alike: `4L²/(MK) + Υ*²/M + dσ²/M`.

    Args:
        clients: Υ*²/M, 0 for machines alike.

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
    """`E[(N−M_r)/((N−1)M_r)]`, 0 for one machine."""
    machines, size = pmf.size, sizes(pmf)
    return 0.0 if machines == 1 else float(pmf @ ((machines - size) / ((machines - 1) * size)))


def _clients(diversity: float, pmf: np.ndarray) -> float:
    per_round = harmonic_machines(pmf)
    return client_variance(diversity=diversity, machines=pmf.size, per_round=per_round) / per_round
