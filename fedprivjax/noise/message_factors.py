r"""Factors of running sums: matrices F that correlate the noise over a machine's messages.

A machine sends increments s_1, s_2, …, of which one record changes only one, and adds the noise σ·F⁻¹ξ with independent
normals ξ. It therefore sends F⁻¹·(F·s + σξ), which is as private as F·s + σξ. If the columns of F have norm at most 1,
this is as private as one message with noise σ. The running sums A·s, with A the matrix of ones on and below the
diagonal, have the noise σ·A·F⁻¹ξ.

Independent noise on every running sum, with relative standard deviations r, is F = diag(1/r)·A. F = A^p with 0 < p < 1
(`Toeplitz`) has less noise. An F that is fitted to the protocol's use of the sums (`Optimal`) has the least.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_at_least
from fedprivjax.noise.factors.exposures import sent_rounds
from fedprivjax.noise.factors.interface import Factor
from fedprivjax.noise.factors.matrices import cached_fit, coefficients, inverse_of, require_factor, toeplitz
from fedprivjax.noise.factors.matrices import rows_of as rows_of
from fedprivjax.noise.factors.messages import CorrelatedSums as CorrelatedSums
from fedprivjax.plan.schedule import Schedule

ROUNDING = 1e-9  # tolerance of a column's norm

Workload = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class SumFactor(Factor):
    """Base class of matrices F that correlate the noise over the messages of a machine.

    The server uses only running sums of the messages. Let row k of the matrix s be a machine's k-th message without
    noise. With noise, the messages are the rows of s + σ·F⁻¹ξ, with a matrix ξ of independent standard normals. The
    messages equal F⁻¹·(F·s + σξ), so they are as private as a release of F·s + σξ. Here σ is `noise_std` times a number
    that depends on the machine's privacy target and its number of messages.

    A subclass is a frozen dataclass of static settings that defines `matrix`.
    """

    of_rounds: ClassVar[bool] = False

    def matrix(self, over: int, workload: Workload, /) -> np.ndarray:
        """Return F for machines that send at most n = `over` messages: lower triangular, float64 [n, n].

        The columns of F must have L2 norm at most 1.

        Args:
            over: n, the largest number of messages of a machine.
            workload: function that returns a positive semidefinite matrix V = `workload(n)`, float64 [n, n]. V measures
                the noise of F as `tr(V·(FᵀF)⁻¹)`. For `noise_std` = 1 and step size 1, this is the noise variance of
                one coordinate of the averages that DP-μ²-FL reports, summed over rounds. Other methods get the same V.
        """
        raise Undefined(f"{type(self).__name__} must define matrix(messages, workload)")


@dataclass(frozen=True)
class Toeplitz(SumFactor):
    """Factor over the messages of a machine: a power of the matrix of running sums.

    The matrix F is

        F = A^p/c

    Here A has ones on and below the diagonal. The power p is `power`. The first column of A^p has the first
    coefficients of the power series of (1 − z)^(−p), and c is its L2 norm.

    Attributes:
        power: p, from 0 (independent noise on every message) to 1 (equal independent noise on every running sum).

    Source: Fichtenberger, Henzinger & Upadhyay 2023 for p = 1/2.

    >>> Toeplitz(1.0).matrix(2, None).round(3).tolist()
    [[0.707, 0.0], [0.707, 0.707]]
    """

    power: float = 0.7

    def __post_init__(self):
        if isinstance(self.power, bool) or not isinstance(self.power, int | float) or not 0 <= self.power <= 1:
            raise Refusal(f"power must be a number from 0 to 1, got {self.power!r}")

    def matrix(self, over, workload, /) -> np.ndarray:
        column = coefficients(over, power=self.power)
        return toeplitz(column) / np.linalg.norm(column)


@dataclass(frozen=True)
class Optimal(SumFactor):
    """Correlated noise of a machine's messages, fitted to the averages that DP-μ²-FL reports.

    The factor F minimises the noise variance in the averages of iterates that DP-μ²-FL reports, on average over all
    rounds. Other methods get the same F, which is not fitted to their iterates. F depends on the rounds in which
    machines take part.

    Attributes:
        iterations: largest number of iterations of the optimisation, which starts from `Toeplitz(0.7)`. After 30, the
            noise is within a few per cent of the optimum.
    """

    iterations: int = 30

    def __post_init__(self):
        require_at_least("iterations", self.iterations, 1)

    def matrix(self, over, workload, /) -> np.ndarray:
        squares, start = workload(over), Toeplitz().matrix(over, workload)
        return cached_fit(
            "factors",
            (squares, self.iterations),
            start,
            lambda: optimal_factor(squares, start, self.iterations),
            lambda found: (np.abs(np.linalg.norm(found, axis=0) - 1) <= ROUNDING).all(),
        )


@dataclass(frozen=True)
class Given(SumFactor):
    """Factor whose matrix F the user supplies. It correlates the noise over the messages of a machine.

    If a machine sends n messages, F needs at least n rows. The first n rows and columns of F are used, multiplied by a
    number that makes the largest column norm 1.

    Attributes:
        rows: F, lower triangular with column norms at most 1, as a tuple of rows.

    >>> Given(((1.0, 0.0), (0.5, 1.0)))
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_schedule must have columns of norm at most 1, got 1.11803 (column 1)
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self):
        factor = np.asarray(self.rows, float)
        require_factor(factor)
        norms = np.linalg.norm(factor, axis=0)
        if norms.max() > 1 + ROUNDING:
            worst = f"{norms.max():g} (column {int(norms.argmax()) + 1})"
            raise Refusal(f"noise_schedule must have columns of norm at most 1, got {worst}")

    def matrix(self, over, workload, /) -> np.ndarray:
        if len(self.rows) < over:
            raise Refusal(f"noise_schedule must have at least {over} rows for this schedule, got {len(self.rows)}")
        return np.asarray(self.rows, float)[:over, :over]


@dataclass(frozen=True, eq=False)
class Materialised(SumFactor):
    """A factor of another library: an object whose `materialize(n)` returns F for n messages.

    It is scaled so that its largest column norm is 1.
    """

    source: Any

    def matrix(self, over, workload, /) -> np.ndarray:
        factor = np.asarray(self.source.materialize(over), float)
        require_factor(factor)
        return factor / np.linalg.norm(factor, axis=0).max()


SUM_FACTORS: dict[str, type[SumFactor]] = {"toeplitz": Toeplitz, "optimal": Optimal}


def optimal_factor(workload: np.ndarray, start: np.ndarray, iterations: int) -> np.ndarray:
    """Return a factor F with nearly the least noise: lower triangular, with columns of norm 1.

    Let row k of the matrix s be a machine's k-th message without noise. With noise, the messages are the rows of s +
    σ·F⁻¹ξ, with a matrix ξ of independent standard normals. The noise of F is measured as `tr(V·(FᵀF)⁻¹)` with V =
    `workload`.

    Args:
        workload: V, shape [n, n], where n is the number of messages of a machine. V is WᵀW if the method uses W·s.
        start: initial factor, shape [n, n].
        iterations: largest number of iterations.

    >>> workload = np.array([[3.0, 1.0], [1.0, 1.0]])
    >>> best = optimal_factor(workload, np.eye(2), 50)
    >>> bool(noise_of(workload, best) < noise_of(workload, np.eye(2)))
    True
    """
    entries, scale = np.tril_indices(len(start)), noise_of(workload, start)

    def noise(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        free = np.zeros_like(start)
        free[entries] = numbers
        norms = np.linalg.norm(free, axis=0)
        factor = free / norms
        inverse = inverse_of(factor)
        part = workload @ inverse
        slope = -2 * inverse.T @ part @ inverse.T
        slope = (slope - factor * np.sum(slope * factor, axis=0)) / norms
        return float(np.sum(inverse * part) / scale), slope[entries] / scale

    begin = (start / np.linalg.norm(start, axis=0))[entries]
    found = scipy.optimize.minimize(noise, begin, jac=True, method="L-BFGS-B", options={"maxiter": iterations}).x
    factor = np.zeros_like(start)
    factor[entries] = found
    return factor / np.linalg.norm(factor, axis=0)


def noise_of(workload: np.ndarray, factor: np.ndarray) -> float:
    """Return the noise variance of one coordinate of a method's iterates, summed over rounds.

    The variance is `tr(V·(FᵀF)⁻¹)` with F = `factor` and V = `workload`, for `noise_std` = 1. Let row k of the matrix s
    be a machine's k-th message without noise. With noise, the messages are the rows of s + F⁻¹ξ, with a matrix ξ of
    independent standard normals. If the iterates of all rounds are W·s, their noise is W·F⁻¹ξ, and V = WᵀW. For several
    machines, V is the sum of their matrices WᵀW.

    Args:
        workload: V, shape [messages, messages].
        factor: F, lower triangular, shape [messages, messages].
    """
    inverse = inverse_of(factor)
    return float(np.sum(inverse * (workload @ inverse)))


def noise_lower_bound(workload: np.ndarray, factor: np.ndarray) -> float:
    """Return a lower bound on the noise of any factor whose column norms are at most 1.

    The noise of a factor F is `tr(V·(FᵀF)⁻¹)` with V = `workload`, a positive semidefinite matrix. Let v be any vector
    of positive numbers, and let √v be the diagonal matrix of their square roots. Then `tr((√v·V·√v)^½)²/Σ_k v_k` is a
    lower bound. The function uses the diagonal of P⁻¹·V·P⁻¹ as v, with P = FᵀF for F = `factor`. The bound is tight if
    `factor` is near the optimum.

    Args:
        workload: V, shape [messages, messages].
        factor: factor with nearly the least noise, shape [messages, messages].

    >>> workload = np.array([[3.0, 1.0], [1.0, 1.0]])
    >>> best = optimal_factor(workload, np.eye(2), 50)
    >>> bool(0.999 * noise_of(workload, best) < noise_lower_bound(workload, best) <= noise_of(workload, best))
    True
    """
    inverse = inverse_of(factor)
    gram = inverse @ inverse.T
    multipliers = np.einsum("ij,jk,ki->i", gram, workload, gram, optimize=True)
    roots = np.sqrt(np.maximum(multipliers, 0.0))
    values = np.linalg.eigvalsh(roots[:, None] * workload * roots)
    total = np.sum(np.sqrt(np.maximum(values, 0.0)))
    return float(total**2 / multipliers.sum())  # the best multiple of v


def steps(rounds: int) -> np.ndarray:
    """Return the matrix that maps noise in the server's aggregates to noise in its iterates, at step size 1.

    The server takes steps w_{t+1} = w_t − (aggregate of round t). The matrix maps the noise z_1, …, z_T of the
    aggregates to the noise of w_2, …, w_{T+1}. The matrix has shape [rounds, rounds], and is −1 on and below the
    diagonal.
    """
    return -np.tril(np.ones((rounds, rounds)))


def anytime(rounds: int) -> np.ndarray:
    """Return the map from the aggregates' noise to that in x_2, …, x_{T+1} at step 1; [rounds, rounds].

    The points x are the means of w_1, w_2, … with weights 1, 2, ….
    """
    t = np.arange(1.0, rounds + 1)
    return 2 / ((t + 1) * (t + 2))[:, None] * np.cumsum((t + 1)[:, None] * steps(rounds), axis=0)


def anytime_workload(schedule: Schedule, shares: np.ndarray, messages: int) -> np.ndarray:
    """Return the matrix V that measures a factor's noise in the averages that the method DP-μ²-FL reports.

    Machines correlate the noise of their messages by one factor F, whose columns have norm 1. The method reports
    averages of its iterates with weights 1, 2, …. For step size 1 and `noise_std` 1, `tr(V·(FᵀF)⁻¹)` is the noise
    variance of one coordinate of these averages, summed over rounds. V is float64 of shape [messages, messages].

    Args:
        schedule: the participation schedule: which machines send in each round.
        shares: ratio of each machine's target μ (of Gaussian differential privacy) to the largest target, shape
            [machines].
        messages: largest number of messages of a machine.

    >>> from fedprivjax.plan.participation import Full
    >>> anytime_workload(Full(2).draw(1, np.random.default_rng(0)), np.ones(2), 1).tolist()  # (2/3)² times variance 1/2
    [[0.2222222222222222]]
    """
    standing = np.cumsum(anytime(schedule.size.rounds)[:, ::-1], axis=1)[:, ::-1]  # an increment's noise persists
    gram, total = standing.T @ standing / schedule.divisor**2, np.zeros((messages, messages))
    for machines, rounds in sent_rounds(schedule):
        sent = rounds.shape[1]
        each = gram[rounds[:, :, None], rounds[:, None, :]]
        total[:sent, :sent] += np.tensordot(shares[machines] ** -2.0, each, 1)
    return total
