"""Best batch size of P_AGD by its explicit bound, for smooth losses (Theorem 4.3) and envelopes (Theorem 4.7)."""

from typing import Any

from fedprivjax.theory._numbers import counts, one, positive
from fedprivjax.theory.cheu._passes import Pass, Phase, best_phase
from fedprivjax.theory.cheu.batches import candidates
from fedprivjax.theory.cheu.noise import Noise


def agd_scan(
    *,
    users: int,
    distance: float,
    lipschitz: float,
    smoothness: float,
    noise: Noise,
    per_round: int | None = None,
    sampling: bool = True,
    form: str = "optimal",
) -> Phase:
    """Return the batch size with the smallest `agd_bound` for a β-smooth loss, and its settings.

    The bound uses `σ² = L²/b + L²C/b²` and a gap of L·D.

    Args:
        users: n, each used once.
        distance: D, bound on the distance from the start to the minimum.
        noise: C (`gaussian_noise_constant`, d·s² by an accountant, `pan_private_noise_constant`), or a function of b.
        per_round: batch size, or None for the best.
        sampling: False omits L²/b from σ².
        form: "optimal" or "paper", as in `agd_spread`.

    Source: Cheu et al. 2022, Theorem 4.3 with explicit constants. The order of the paper's batch size is
    `agd_per_round_order`.

    >>> agd_scan(users=20_000, distance=1.0, lipschitz=1.0, smoothness=1.0, noise=862.0)[:3]
    (20000, 500, 40)
    """
    loss = {"lipschitz": lipschitz, "smoothness": smoothness, "envelope": False}
    return _scan(users, distance, per_round, noise=noise, sampling=sampling, form=form, **loss)


def smoothed_scan(
    *,
    users: int,
    distance: float,
    lipschitz: float,
    noise: Noise,
    per_round: int | None = None,
    smoothness: float | None = None,
    sampling: bool = True,
    form: str = "optimal",
    paper_2L: bool = False,
) -> Phase:
    """Return the batch size and the smoothness β of the envelopes with the smallest `agd_bound + L²/(2β)`.

    It is for losses that are not smooth. The best β at a given batch size has a closed form, so the scan is joint.
    Arguments that are not listed are as for `agd_scan`.

    Args:
        smoothness: β, or None for the best.
        paper_2L: use the paper's Lipschitz constant 2L of the envelopes, in σ and at the start, although L suffices.

    Source: Cheu et al. 2022, Theorem 4.7 with explicit constants.

    >>> smoothed_scan(users=20_000, distance=1.0, lipschitz=1.0, noise=862.0)[:3]
    (20000, 108, 185)
    """
    loss = {"lipschitz": lipschitz, "smoothness": smoothness, "envelope": True, "paper_2L": paper_2L}
    return _scan(users, distance, per_round, noise=noise, sampling=sampling, form=form, **loss)


def _scan(users: int, distance: float, per_round: int | None, **settings: Any) -> Phase:
    method = Pass(**settings)
    counts(users=users)
    return best_phase(method, users, candidates(users, per_round), one(positive, "distance", distance))
