"""Explicit bound of one AC-SA pass for many batch sizes at once, on a smooth loss or on Moreau envelopes."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_flag
from fedprivjax.theory._numbers import one, positive, validate
from fedprivjax.theory.cheu.agd import agd_bound, agd_spread, shrinkage
from fedprivjax.theory.cheu.noise import Noise, oracle_variance


class Phase(NamedTuple):
    """Settings of one AC-SA pass, and the bound on the expected excess loss of its output.

    `smoothness` is the β of its steps, of the loss or of its envelopes. `distance` is the bound for which `spread` was
    set, on the (root mean square) distance from the start of the pass to the minimum. `users` includes the remainder if
    `per_round` does not divide it.
    """

    users: int
    per_round: int
    rounds: int
    spread: float
    smoothness: float
    distance: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Settings that all batch sizes share. With `smoothness` None, every batch size has its best envelope."""

    lipschitz: float
    noise: Noise
    smoothness: float | None
    envelope: bool
    sampling: bool = True
    form: str = "optimal"
    paper_2L: bool = False

    def __post_init__(self):
        require_flag("sampling", self.sampling)
        require_flag("paper_2L", self.paper_2L)
        given = ("lipschitz",) if self.smoothness is None else ("smoothness", "lipschitz")
        validate(self, **dict.fromkeys(given, partial(one, positive)))


class Runs(NamedTuple):
    """Rounds, scale S, smoothness and bound for every batch size; each of shape [batch sizes]."""

    rounds: np.ndarray
    spread: np.ndarray
    smoothness: np.ndarray
    bound: np.ndarray


def runs(
    method: Pass, users: int, per_round: np.ndarray, distance: ArrayLike, gap: float | np.ndarray = np.inf
) -> Runs:
    """Evaluate one pass over `users` users for every batch size. `gap` is a bound on the excess loss at the start."""
    rounds = users // per_round
    length = method.lipschitz * (2 if method.paper_2L else 1)
    variance = oracle_variance(per_round=per_round, lipschitz=length, noise=method.noise, sampling=method.sampling)
    distance = np.broadcast_to(np.asarray(distance, float), rounds.shape)
    spread = agd_spread(rounds=rounds, deviation=np.sqrt(variance), distance=distance, form=method.form)
    most = length * distance

    def bound(beta: np.ndarray) -> np.ndarray:
        away = method.lipschitz**2 / (2 * beta) if method.envelope else 0.0
        start = np.minimum(most, gap + away)
        settings = {"rounds": rounds, "spread": spread, "distance": distance, "variance": variance}
        return agd_bound(smoothness=beta, gap=start, **settings) + away

    tried = np.stack(_smoothness(method, rounds, distance))
    bounds = np.stack([bound(beta) for beta in tried])
    best, each = np.argmin(bounds, axis=0), np.arange(rounds.size)
    return Runs(rounds, spread, tried[best, each], bounds[best, each])


def best_phase(method: Pass, users: int, per_round: np.ndarray, distance: float, gap: float = np.inf) -> Phase:
    """Return the settings of one pass with the batch size that has the smallest bound."""
    computed = runs(method, users, per_round, distance, gap)
    best = int(computed.bound.argmin())
    rounds, spread, smoothness, bound = (values[best].item() for values in computed)
    return Phase(users, int(per_round[best]), rounds, spread, smoothness, distance, bound)


def _smoothness(method: Pass, rounds: np.ndarray, distance: np.ndarray) -> list[np.ndarray]:
    """Return candidates of β: the given one, or the minimisers of the bound for a start at L·D and at the gap."""
    if method.smoothness is not None:
        return [np.full(rounds.shape, method.smoothness)]
    still = shrinkage(rounds)
    first = method.lipschitz / (distance * np.sqrt(2 * still))
    return [first, first * np.sqrt(1 + still)]
