"""Factors over a trusted server's rounds, by their matrix: Toeplitz, fitted, banded, and with buffers."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import ClassVar, final

import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_at_least
from fedprivjax.noise.chooser import MAX_BYTES
from fedprivjax.noise.covariance import ROUND_UP, Recursive, banded, padded
from fedprivjax.noise.factors.exposures import exposures, groups, rounds_of
from fedprivjax.noise.factors.fit import LOGGED, fitted
from fedprivjax.noise.factors.interface import Factor, Path, StreamOfRounds
from fedprivjax.noise.factors.least_noise import excess
from fedprivjax.noise.factors.matrices import best_toeplitz, coefficients, entries, optimised, toeplitz
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.schedule import Schedule

MAX_FITTED = 2000  # largest number of rounds of `OptimalFactor`
log = logging.getLogger("fedprivjax")


@dataclass(frozen=True)
class RoundFactor(Factor):
    """Base class of matrices F that correlate a trusted server's noise over its rounds.

    Let x_t be the mean of the messages of round t. The server publishes x + σ·F⁻¹ξ, with independent standard normals ξ
    and σ = `noise_std`. The published values equal F⁻¹·(F·x + σξ), so they are as private as a release of F·x + σξ.

    A subclass is a frozen dataclass of static settings that defines `matrix(schedule)`. It returns F: lower triangular,
    float64, shape [rounds, rounds]. The scale of F does not matter.
    """

    stated: ClassVar[Stated] = Stated(
        by=("exposures",), free=("matrix", "most", "instead", "require_room", "excess"), concrete=True
    )

    def __str__(self) -> str:
        return type(self).__name__

    def exposures(self, schedule: Schedule) -> np.ndarray:
        factor = self.known(schedule)
        return exposures(factor.T @ factor, schedule)

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the relative noise of each release that one machine changes; float64 [releases].

        The releases are the entries of F·x + ξ. F is the factor's matrix, x_t is the sum of messages in round t, and ξ
        are independent standard normals, for `noise_std` = 1. Let c_t be the norm by which release t changes if the
        machine sends the same message of norm 1 in all of its rounds. The relative noise of release t is 1/c_t.
        Releases with c_t = 0 are left out.

        If all entries of FᵀF are at least 0, other messages of norm at most 1 leak no more. Otherwise, the result is a
        single number: the relative noise of one release that leaks at least as much as all releases together, for any
        such messages.

        Args:
            schedule: participation schedule: which machines take part in each round.
            machine: index of the machine.
        """
        factor, when = self.known(schedule), rounds_of(schedule, machine)
        columns = factor[:, when]
        if not when.size:
            return np.zeros(0)
        gram = columns.T @ columns
        moved = np.abs(columns.sum(axis=1)) if (gram >= 0).all() else np.sqrt(np.abs(gram).sum())[None]
        return 1 / moved[moved > 0]

    def mechanism(self, schedule: Schedule) -> Mechanism:
        rows = banded(self.known(schedule))
        return Recursive(padded(rows, -(-max(rows.shape[1] - 1, 1) // ROUND_UP) * ROUND_UP).astype(np.float32))

    def first_std(self, schedule: Schedule) -> float:
        return 1 / float(self.known(schedule)[0, 0])

    def check(self, schedule: Schedule, dimension: int) -> None:
        super().check(schedule, dimension)
        width = banded(self.known(schedule)).shape[1] - 1
        if 4 * width * dimension > MAX_BYTES:
            raise Refusal(
                f"noise_schedule must keep at most {MAX_BYTES / 1e9:.3g} GB of noise in a run, got "
                f"{4 * width * dimension / 1e9:.3g} GB ({width} vectors of {dimension} numbers). Use 'tree'"
            )


@dataclass(frozen=True)
class ToeplitzFactor(RoundFactor):
    """F = A^½ (the same coefficients in every column), cut to a band: entries further below the diagonal are 0.

    The bandwidth is 2^k − 1 or R − 1, or the smallest separation of a machine's rounds less one, with coefficients that
    are optimised for it. The choice with the least noise in prefix sums at equal μ on the schedule is used.
    With 100 of 1000 machines in each of 100 rounds, they have 0.39 times the variance of independent noise
    if cohorts are uniform, 0.17 times if they are cyclic.

    Source: Fichtenberger, Henzinger & Upadhyay 2023; banded: Choquette-Choo et al. 2023.
    """

    def matrix(self, over, workload=None, /) -> np.ndarray:
        return best_toeplitz(over)


@dataclass(frozen=True)
class OptimalFactor(RoundFactor):
    """F fitted to the smallest noise in prefix sums at equal μ on the schedule, for at most 2000 rounds.

    The fit starts from `ToeplitzFactor`, is never worse, and is cached on disk. It stores R vectors of noise. At 1000
    rounds it takes about 100 inversions of a matrix [R, R], 8 to 10 seconds of one core. `excess` bounds its distance
    from the optimum, and is logged above 200 rounds: less than 0.1% if rounds of each machine are equally far apart.
    For random cohorts of up to 200 rounds the bound is 0.3 to 4%, and the distance was 0.3% where a long fit was made.
    At 1000 rounds the fit ends before it converges, and the bound is near 50%.
    With 100 of 1000 machines in each of 100 rounds, prefix sums have 0.28 times the variance of independent noise
    if cohorts are uniform, 0.15 times if they are cyclic.
    """

    most: ClassVar[int] = MAX_FITTED
    instead: ClassVar[str] = "toeplitz"

    def matrix(self, over, workload=None, /) -> np.ndarray:
        patterns = [group.patterns for group in groups(over)]
        import_module("scipy.linalg")  # threads of a library can be limited once it is loaded
        with threadpool_limits(1, user_api="blas"):  # waiting threads cost more, and their number changes the result
            found = fitted(ToeplitzFactor().known(over), patterns)
            if len(found) > LOGGED:
                above = 100 * excess(found, patterns)
                log.info("%s of %d rounds: at most %.2g%% above the least noise", self, len(found), above)
        return found

    def excess(self, schedule: Schedule) -> float:
        """Return a bound on the noise in prefix sums relative to the least one, less 1; inf if no bound is found.

        >>> round(OptimalFactor().excess(Schedule(8, np.arange(8, dtype=np.int32)[:, None])), 3)
        0.0
        """
        return float(excess(self.known(schedule), [group.patterns for group in groups(schedule)]))


@dataclass(frozen=True)
class Banded(RoundFactor):
    """Noise of a trusted server, correlated over `bands` successive rounds by a banded Toeplitz matrix F.

    Let x_t be the mean of the messages of round t. The server publishes x + σ·F⁻¹ξ, with independent standard normals ξ
    and σ = `noise_std`. F depends only on the number of rounds, and is optimised for little noise in the running sums
    of x. If the k rounds of a machine are at least `bands` apart, its messages leak at most as much as k releases with
    independent noise σ.

    Source: Choquette-Choo et al. 2023.

    Args:
        bands: number of diagonals of F that are not 0, including the main diagonal. With 1, the noise is independent.

    >>> np.round(Banded(2).matrix(3), 3).tolist()
    [[0.936, 0.0, 0.0], [0.352, 0.936, 0.0], [0.0, 0.352, 0.936]]
    """

    bands: int

    def __post_init__(self):
        require_at_least("bands", self.bands, 1)

    def __str__(self) -> str:
        return f"Banded(bands={self.bands})"

    def matrix(self, over, workload=None, /) -> np.ndarray:
        rounds = entries(over)
        start = coefficients(rounds)[: self.bands]
        column = optimised(start, rounds)
        return toeplitz(column / np.linalg.norm(column))


@final
@dataclass(frozen=True)
class BLT(RoundFactor):
    """Noise of a trusted server, correlated by a buffered linear Toeplitz matrix F (BLT).

    The server's noise is σ·F⁻¹ξ, as in `RoundFactor`. A run stores a few vectors, the buffers. Buffer i has the decay
    θ_i and the scale s_i. Every column of F has the entries 1, Σ_i s_i, Σ_i s_i·θ_i, Σ_i s_i·θ_i², … from the diagonal
    down. The function `buffered_toeplitz.optimize` of the library jax_privacy computes parameters for a number of
    rounds.

    Source: Dvijotham et al. 2024. For machines that take part several times: McMahan, Xu & Zhang 2024.

    Args:
        decay: θ, decay of each buffer, above 0 and at most 1; `buf_decay` of jax_privacy.
        scale: s, positive scale of each buffer; `output_scale` of jax_privacy.

    >>> BLT(decay=[0.5], scale=[0.4]).matrix(3).tolist()
    [[1.0, 0.0, 0.0], [0.4, 1.0, 0.0], [0.2, 0.4, 1.0]]
    """

    decay: Sequence[float]
    scale: Sequence[float]
    name: ClassVar[str] = "BLT"

    def __post_init__(self):
        for name, most in (("decay", 1.0), ("scale", inf)):
            given = np.atleast_1d(np.asarray(getattr(self, name)))
            numbers = given.ndim == 1 and given.size and np.issubdtype(given.dtype, np.number)
            if not (numbers and ((given > 0) & (given <= most) & (given < inf)).all()):
                limit = f"above 0 and at most {most:g}" if most < inf else "positive and finite"
                raise Refusal(f"{name} must be numbers {limit}, got {getattr(self, name)!s:.80}")
            object.__setattr__(self, name, tuple(given.astype(float).tolist()))
        if len(self.decay) != len(self.scale):
            raise Refusal(f"scale must have one number per buffer, {len(self.decay)}, got {len(self.scale)}")

    def __str__(self) -> str:
        return f"BLT of {len(self.decay)} buffers"

    def matrix(self, over, workload=None, /) -> np.ndarray:
        powers = np.asarray(self.decay) ** np.arange(entries(over) - 1)[:, None]
        return toeplitz(np.append(1.0, powers @ np.asarray(self.scale)))

    def memory(self, dimension: int, rounds: int):
        """Return the buffers before the first round, all zero; shape [buffers, dimension]."""
        return jnp.zeros((len(self.decay), dimension))

    def step(self, path: Path, normal, alpha, epoch=None) -> Path:
        decay, scale = (jnp.asarray(each, normal.dtype) for each in (self.decay, self.scale))
        z = normal - jnp.matmul(scale, path.memory, precision="highest")
        return Path(path.round + 1, path.last + z, decay[:, None] * path.memory + z[None])

    def mechanism(self, schedule: Schedule) -> Mechanism:
        return StreamOfRounds(self, schedule.size.rounds)

    def check(self, schedule: Schedule, dimension: int) -> None:
        Factor.check(self, schedule, dimension)
