"""What both methods' bounds are made of: the expected gradient norm of a random iterate, term by term."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import nonnegative, plain, positive
from fedprivjax.theory.tran_cutkosky._setting import checked_alpha, checked_rounds


class GradientBound(NamedTuple):
    """Terms that bound E‖∇F(w)‖ of an iterate w drawn uniformly.

    `optimisation` is `3·gap/(2ηT) + 3Lη/4`, `bias` `6ηNL + 3ηL/α`, of old gradients, `variance` `6G√α`, of sampled
    records, `noise` 3 times the noise's mean norm, and `start` `3G(1−α)/(αT)`, of a momentum that begins at 0.
    """

    optimisation: Any
    bias: Any
    variance: Any
    noise: Any
    start: Any

    @property
    def total(self) -> Any:
        return self.optimisation + self.bias + self.variance + self.noise + self.start


def gradient_bound(
    *,
    records: ArrayLike,
    rounds: ArrayLike,
    alpha: ArrayLike,
    step_size: ArrayLike,
    gap: ArrayLike,
    lipschitz: ArrayLike,
    smoothness: ArrayLike,
    noise: ArrayLike,
) -> GradientBound:
    n, t = checked_rounds(records, rounds)
    alpha = checked_alpha(n, alpha)
    step, lipschitz = positive("step_size", step_size), positive("lipschitz", lipschitz)
    smooth = step * nonnegative("smoothness", smoothness)
    terms = (
        3 * nonnegative("gap", gap) / (2 * step * t) + 3 * smooth / 4,
        6 * n * smooth + 3 * smooth / alpha,
        6 * lipschitz * np.sqrt(alpha),
        3 * nonnegative("noise", noise),
        3 * lipschitz * (1 - alpha) / (alpha * t),
    )
    return GradientBound(*(plain(term) for term in terms))
