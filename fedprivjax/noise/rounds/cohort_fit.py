"""Factor over rounds with little noise in prefix sums, if machines return after any number of rounds.

With X = FᵀF and X(t, s) ≥ 0 at rounds t ≠ s of one machine, the largest exposure max_i Σ_{t,s∈i} X(t, s) is convex, and
so is the noise tr(AᵀA·X⁻¹). The descent runs in float32 with norms over machines in place of the largest exposure.
`excess.py` bounds the distance from the least noise of all factors, those with X(t, s) < 0 included.
"""

from collections.abc import Sequence

import numpy as np

from fedprivjax.noise.rounds.descent import Limits, descended, inverse_sums, noise_of
from fedprivjax.noise.rounds.patterns import factor_of, indicators, largest, together

STAGES = ((16, 0.2), (64, 0.35), (256, 0.4), (1024, 0.05))  # norms over machines, and their parts of all evaluations
WORK = 6 * 10**7  # evaluations of the loss, times squared rounds
LEAST, MOST = 40, 1000  # evaluations
MACHINES = 400  # patterns in the norm of a stage: those with the largest exposures at its start
COUNTED = 1e-6  # weight of a machine in the gradient, relative to the largest
FIRST = 4.0  # size of the first step for norm 1
LIMITS = Limits(evaluations=0, enough=1e-5, averaged=5, memory=20)


def cohort_fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a factor with little noise at equal largest exposure.

    Args:
        start: initial factor, with FᵀF ≥ 0 at rounds of one machine.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    rounds = len(start)
    bounded = together(patterns, rounds)
    gram = (start.T @ start).astype(np.float32)
    evaluations = min(max(WORK // rounds**2, LEAST), MOST)
    for power, part in STAGES:
        used = indicators(largest(gram, patterns, MACHINES), rounds).astype(np.float32)
        gram = descended(
            gram,
            lambda one: _loss(one, used, power),  # noqa: B023
            lambda one, slope: ~(bounded & (one <= 0) & (slope > 0)),
            lambda one: np.where(bounded, np.maximum(one, 0), one),
            LIMITS._replace(evaluations=round(part * evaluations), first=min(1.0, FIRST / power)),
        )
    return factor_of(gram.astype(float))


def _loss(gram: np.ndarray, used: np.ndarray, power: int) -> tuple[float, np.ndarray]:
    """Return the logarithm of the noise times the exposure, and its gradient; inf unless X is positive definite."""
    sums = inverse_sums(gram)
    if sums is None:
        return np.inf, gram
    noise = noise_of(sums)
    squares = np.sum(used @ gram * used, axis=1, dtype=float)
    most = float(squares.max())
    powers = (squares / most) ** power
    total = float(powers.sum())
    some = powers > COUNTED
    weighted = used[some] * np.sqrt(powers[some] / squares[some] / total).astype(gram.dtype)[:, None]
    slope = sums.T @ sums
    slope *= -1 / noise
    slope += weighted.T @ weighted
    return float(np.log(noise) + np.log(most) + np.log(total) / power), slope
