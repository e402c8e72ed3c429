"""Privacy load ξ: the cost of a machine's privacy as one number, on which all bounds and step sizes depend.

By advanced composition, the noise of a message is `σ² = 256·R·L²·ξ`. Noise from any other source thus has a load, too.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import (
    at_least_one,
    counts,
    inverse,
    nonnegative,
    plain,
    positive,
    positive_or_inf,
    probability,
)
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants

NOISE_CONSTANT = 256


def privacy_load(
    *, records: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, rounds: int, lipschitz: ArrayLike = 1.0
) -> Any:
    """Privacy load `ξ = ψ/L²` with the default `lipschitz`, else `ψ = (L/(nε))²·ln(2.5R/δ)·ln(2/δ)`.

    The noise of advanced composition is `σ² = 256·R·ψ`. All arguments but `rounds` broadcast over machines.

    Args:
        records: n, records of a machine.
        epsilon: at most 2·ln(2/δ), or inf for no privacy (load 0).

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
    """Load ξ without its logarithms, `1/(nε)²`, as in the paper's informal theorems.

    It is for plots and for the informal numbers of rounds.

    >>> bare_load(records=100, epsilon=0.5)
    0.0004
    """
    return plain(1 / (at_least_one("records", records) * positive_or_inf("epsilon", epsilon)) ** 2)


def equivalent_load(*, noise_std: ArrayLike, lipschitz: ArrayLike, rounds: int) -> Any:
    """Load ξ that corresponds to given noise under advanced composition: `σ²/(256·R·L²)`.

    It makes the step sizes of the theorems applicable to noise that an accountant calibrated.

    Args:
        noise_std: σ, standard deviation per coordinate of a machine's message (a mean of gradients).

    >>> equivalent_load(noise_std=32.0, lipschitz=1.0, rounds=4)
    1.0
    """
    counts(rounds=rounds)
    ratio = nonnegative("noise_std", noise_std) / positive("lipschitz", lipschitz)
    return plain(ratio**2 / (NOISE_CONSTANT * rounds))


def precision(problem: ProblemConstants, load: ArrayLike) -> np.ndarray:
    """Return `min{n, 1/(dξ)}`, the smaller of the statistical and the private precision."""
    return np.minimum(problem.records, inverse(problem.dimension * nonnegative("load", load)))
