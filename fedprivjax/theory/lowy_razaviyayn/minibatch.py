"""Algorithm 1 for convex losses, noisy minibatch SGD: variance, steps, rounds, bounds (Theorem 2.1).

`per_round` is M̃ and `load` is ξ̃: the pair that `average_or_max` chooses, or the machines of a round and the load if all
machines are identical. L, β, μ and n are those of the worst machine. Functions that return a number of rounds also
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
    """Mean squared error of the server's mean gradient in a round, summed over coordinates, by cause.

    `sampling` is due to sampled records, `clients` to sampled machines, and `noise` to privacy.
    """

    sampling: float
    clients: float
    noise: float

    @property
    def total(self) -> float:
        """Sum V² of the parts."""
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
    """Variance of one round's mean gradient around the gradient of the empirical loss, exactly.

    A random number M_r of machines is chosen uniformly from N. The terms are due to sampled records, sampled machines
    and noise: `E[1/M_r]·mean_i(s_i²·c_i/K_i) + E[(N−M_r)/((N−1)M_r)]·υ̂² + E[1/M_r]·d·mean_i σ_i²`

    The factor c_i is 1 for sampling with replacement, 0 for full batches, and (n_i−K_i)/(n_i−1) for subsets and for
    disjoint batches, each of which is a random subset. For a Poisson sample of rate K/n with divisor K,
    `(1−K/n)·(s² + ‖∇F̂_i‖²)` replaces `s²·c`. υ̂² is the mean squared distance of the gradients ∇F̂_i to their mean,
    and d the number of parameters.

    Args:
        sampler: "replacement", "subset", "disjoint", "poisson" or "full".
        gradients: ∇F̂_i, gradient of machine i's empirical loss; shape [machines, dimension].
        spread: s_i², mean squared distance of a machine's per-record gradients to their mean ∇F̂_i; shape [machines].
        records, batch, noise_std: n_i records of a machine, K_i of them in a batch, and the standard deviation σ_i of
            its noise, one per machine or one for all. The batch must be n_i for "full".
        pmf: probabilities of 1, 2, …, machines in a round.

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
    """Bound of the paper on the variance of a round's mean gradient around the population gradient.

    `min{Φ²/(M′K), φ²_max/(MK)} + Υ²/M + d·min{Σ²/M′, σ²_max/M}`

    M is the harmonic mean of the number of machines in a round, M′ its `second_moment_machines`, and Υ² the
    `client_variance`. Φ² and Σ² are `expected_top` of the φ_i² and σ_i²; φ²_max and σ²_max are their largest. The bound
    assumes that records are new samples from the population, which holds in a single pass only. Theorem 2.1 uses it at
    the optimum.

    Args:
        dimension: d, number of parameters.
        deviation: φ_i, bound on the standard deviation of a record's gradient (L2 norm over coordinates), one per
            machine or one for all.
        batch: K, the smallest batch.
        noise_std: σ_i, standard deviation of a machine's noise, one per machine or one for all.
        diversity: υ², mean squared distance of the machines' gradients to their mean.
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
    """Bound on the variance of a round's mean gradient around the gradient of the empirical loss.

    `Φ̂²/(MK) + Υ²/M + d·min{Σ²/M′, σ²_max/M}`

    M is the harmonic mean of the number of machines in a round, M′ its `second_moment_machines`, and Υ² the
    `client_variance`. Σ² is `expected_top` of the noise variances σ_i², and σ²_max the largest. The bound holds for
    sampling with replacement, and for subsets if the machines have equally many records. For full batches, use spread
    0.

    Args:
        dimension: d, number of parameters.
        spread: Φ̂², mean squared distance of all records' gradients to the empirical gradient.
        batch: K, number of records in a batch.
        noise_std: σ_i, standard deviation of a machine's noise, one per machine or one for all.
        pmf: probabilities of 1, 2, …, machines in a round.
        diversity: υ̂², mean squared distance of the machines' gradients to their mean. The paper omits this term, which
            is wrong if M < N: one of two machines with full batches and gradients ±1 has variance 1.
        total_records: number of all machines' records, or None. If given, the first term is dropped for MK of at least
            this number, as the paper does. This is wrong for sampling with replacement.

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
    """Largest variance of a round's mean gradient for a Lipschitz loss: `4L²/(MK) + Υ*²/M + dσ²/M`.

    All machines have the same noise.

    Args:
        problem: constants M (machines in a round), d (parameters) and L (Lipschitz constant).
        batch: K, number of records in a batch.
        noise_std: σ, standard deviation of a machine's noise per coordinate.
        clients: Υ*²/M, variance due to sampled machines at the optimum (see `client_variance`); 0 for identical
            machines.

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
    """Return `E[(N−M_r)/((N−1)M_r)]`, or 0 for one machine."""
    machines, size = pmf.size, sizes(pmf)
    return 0.0 if machines == 1 else float(pmf @ ((machines - size) / ((machines - 1) * size)))


def _clients(diversity: float, pmf: np.ndarray) -> float:
    per_round = harmonic_machines(pmf)
    return client_variance(diversity=diversity, machines=pmf.size, per_round=per_round) / per_round


def minibatch_step(problem: ProblemConstants, *, rounds: int, smoothness: ArrayLike, load: ArrayLike) -> Any:
    """Step of minibatch SGD for a convex loss, if the output is the mean of the iterates.

    `η = min{1/(4β), (D√M̃/(LR))·min{√n, 1/√(dξ̃)}}`

    Args:
        problem: constants n (records of a machine), M̃ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        rounds: R, number of rounds.
        smoothness: β; 0 drops the cap 1/(4β).
        load: ξ̃, privacy load, which is proportional to the noise variance (`privacy_load`); 0 for no privacy.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1, which prints √M̃ for M̃.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_step(problem, rounds=10, smoothness=0.5, load=0.01)
    0.2
    """
    counts(rounds=rounds)
    step = problem.diameter * np.sqrt(problem.per_round * precision(problem, load)) / (problem.lipschitz * rounds)
    return plain(np.minimum(step, _cap(smoothness)))


def minibatch_rounds(problem: ProblemConstants, *, batch: int, smoothness: float, load: Load) -> int:
    """Smallest number R of rounds for `minibatch_bound`: `R ≥ max{(βD√M̃/L)·√p, p/K}` with `p = min{n, 1/(dξ̃)}`.

    Args:
        problem: constants n (records of a machine), M̃ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        batch: K, number of records in a batch.
        smoothness: β.
        load: ξ̃, privacy load, which is proportional to the noise variance (`privacy_load`). If the noise depends on the
            number of rounds, give a function of R. The result is then the smallest R that satisfies the inequality with
            its own load. With `bare_load`, it is the R of the paper's informal theorem, which omits logarithms.

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
    """Bound on the excess population loss of minibatch SGD: `272·(LD/√M̃)·max{1/√n, √(dξ̃)}`.

    It is for a convex loss, the step of `minibatch_step` and the rounds of `minibatch_rounds`.

    Args:
        problem: constants n (records of a machine), M̃ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        load: ξ̃, privacy load, which is proportional to the noise variance (`privacy_load`).

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
    """Bound on the excess loss of minibatch SGD at a step η of at most 1/(4β).

    `α + D²/(ηR) + 2η·(sampling + clients + noise/2)`, where the last three are the fields of `variance`

    With stability α = 0 it bounds the excess empirical loss, for any data. With `uniform_stability` it bounds the
    excess population loss.

    Args:
        step, rounds: η and R.
        diameter: D, bound on the distance from the start to the optimum.
        smoothness: β.
        variance: `Variance` of a round's gradient at the optimum, by `population_variance` or `worst_variance`.
        stability: α, bound on the difference of population and empirical loss.

    Raises:
        Refusal: if the step exceeds 1/(4·smoothness).

    Source: Lowy & Razaviyayn 2023, Lemma E.4 and (27). Equation (26) prints 4Rd for 128Rd.

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
