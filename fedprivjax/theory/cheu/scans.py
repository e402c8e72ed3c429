"""The best batch of P_AGD by its explicit bound: smooth losses (Theorem 4.3) and Moreau envelopes (Theorem 4.7)."""

from fedprivjax.theory._numbers import counts, one, positive
from fedprivjax.theory.cheu._passes import Pass, Phase, checked_pass, phase, runs
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
    """The batch with the least `agd_bound` for a β-smooth loss, `σ² = L²/b + L²C/b²` and a gap of L·D.

    Args:
        users: n, each used once.
        distance: D, from the start to the minimum at most.
        noise: C (`gaussian_noise_constant`, an accountant's d·s², `pan_private_noise_constant`), or a function of b.
        per_round: a batch to take instead of the best.
        sampling: False leaves L²/b out of σ².
        form: "optimal" or "paper", of `agd_spread`.

    Source: Cheu et al. 2022, Theorem 4.3 with explicit constants; the paper's batch is `agd_per_round_order`.

    >>> agd_scan(users=20_000, distance=1.0, lipschitz=1.0, smoothness=1.0, noise=862.0)[:3]
    (20000, 500, 40)
    """
    method = checked_pass(lipschitz, noise, smoothness, envelope=False, sampling=sampling, form=form)
    return _scan(method, users, distance, per_round)


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
    """The batch and the envelopes' smoothness β with the least `agd_bound + L²/(2β)`, for losses that are not smooth.

    At a given batch the best β has a closed form, so the scan is joint. Arguments as in `agd_scan`, and

    Args:
        smoothness: a β to take instead of the best.
        paper_2L: the paper's Lipschitz constant 2L for the envelopes' gradients, in σ and at the start. L is enough.

    Source: Cheu et al. 2022, Theorem 4.7 with explicit constants.

    >>> smoothed_scan(users=20_000, distance=1.0, lipschitz=1.0, noise=862.0)[:3]
    (20000, 108, 185)
    """
    method = checked_pass(lipschitz, noise, smoothness, envelope=True, sampling=sampling, form=form, paper_2L=paper_2L)
    return _scan(method, users, distance, per_round)


def _scan(method: Pass, users: int, distance: float, per_round: int | None) -> Phase:
    counts(users=users)
    distance, tried = one(positive, "distance", distance), candidates(users, per_round)
    every = runs(method, users, tried, distance)
    return phase(users, tried, every, distance, int(every.bound.argmin()))
