"""Theorem 10: composition of Gaussian noise on the nodes of a tree."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.privacy import gdp
from fedprivjax.theory._numbers import nonnegative, plain, positive, probability

_FORMS = ("exact", "renyi", "paper")


def composition_zcdp(*, nodes: ArrayLike, ratio: ArrayLike) -> Any:
    """zCDP parameter of releasing sums of records with noise proportional to their sensitivities: `Vρ²/2`.

    The release is √V·ρ-GDP, so its Rényi divergence of order a is `a·Vρ²/2`. Later releases may depend on earlier ones.

    Args:
        nodes: V, largest number of sums that contain one record.
        ratio: ρ, sensitivity of a sum divided by the standard deviation of its noise; the same for all sums.

    Source: Tran & Cutkosky 2022, Theorem 10.

    >>> composition_zcdp(nodes=8, ratio=0.5)
    1.0
    """
    return plain(nonnegative("nodes", nodes) * nonnegative("ratio", ratio) ** 2 / 2)


def composition_epsilon(*, nodes: ArrayLike, ratio: ArrayLike, delta: ArrayLike, form: str = "exact") -> Any:
    """ε of releasing sums of records with noise proportional to their sensitivities.

    * "exact": the ε of √V·ρ-GDP;
    * "renyi": at the best order, `Vρ²/2 + ρ·√(2V·log(1/δ))`;
    * "paper": `2ρ·√(V·log(1/δ))`, which is at least "renyi" if `ρ√V ≤ 2(2 − √2)·√log(1/δ)`. The factor 2(2 − √2) is
      1.17; the paper has 1.

    Args:
        nodes: V, largest number of sums that contain one record.
        ratio: ρ, sensitivity of a sum divided by the standard deviation of its noise.

    Raises:
        Refusal: if the condition of "paper" does not hold.

    Source: Tran & Cutkosky 2022, Theorem 10. At the paper's order, ε is `Vρ²/2 + 1.5ρ√(V·log(1/δ))`, which differs from
    the printed one. The condition of "paper" is derived here.

    >>> settings = {"nodes": 4, "ratio": 0.5, "delta": 1e-5}
    >>> [round(composition_epsilon(form=form, **settings), 2) for form in ("exact", "renyi", "paper")]
    [4.38, 5.3, 6.79]
    """
    require_choice("form", form, _FORMS)
    mu = np.sqrt(nonnegative("nodes", nodes)) * nonnegative("ratio", ratio)
    if form == "paper":
        return _simple(mu, probability("delta", delta))
    return epsilon_of(mu, delta, form)


def epsilon_of(mu: ArrayLike, delta: ArrayLike, form: str) -> Any:
    """Return the ε of μ-GDP, exactly or by Rényi divergences."""
    return gdp.epsilon(mu, delta) if form == "exact" else gdp.paper_epsilon(mu, delta)


def mu_of(epsilon: ArrayLike, delta: ArrayLike, form: str) -> Any:
    """Return the μ of μ-GDP with this ε, exactly or by Rényi divergences."""
    if form == "exact":
        return gdp.mu(epsilon, delta)
    log = 2 * np.log(1 / probability("delta", delta))
    epsilon = positive("epsilon", epsilon)
    return 2 * epsilon / (np.sqrt(log + 2 * epsilon) + np.sqrt(log))


def _simple(mu: np.ndarray, delta: np.ndarray) -> Any:
    mu, root = np.broadcast_arrays(mu, np.sqrt(np.log(1 / delta)))
    most = 2 * (2 - np.sqrt(2)) * root
    wrong = mu > most * (1 + 1e-9)
    if wrong.any():
        raise Refusal(
            f"ratio must be at most {most[wrong][0]:.6g}/√nodes for the paper's ε, got {mu[wrong][0]:.6g}/√nodes"
        )
    return plain(2 * mu * root)
