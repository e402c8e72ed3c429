r"""Exposures to a factor over rounds that hold for every schedule in which machines return late and seldom.

A trusted server releases F·x + σξ, where x_t is the sum of round t (see `noise.factors.interface`). A machine that
takes part in at most k rounds, at least b rounds apart, changes F·x by at most the largest

    √(Σ_{j,l∈π} abs((FᵀF)(j, l)))

over the sets π of such rounds. `separated_exposure` returns

* this value if F has at most b bands: the columns of π are then orthogonal;
* this value if F is Toeplitz with non-negative coefficients that do not increase: the worst π is 0, b, 2b, …
  (Kalinin & Lampert 2024, Theorem 2);
* otherwise an upper bound: the smaller of Σ over the worst π of abs((FᵀF)(j, j)) plus the largest sum over rounds that
  are possible with j (Choquette-Choo et al. 2023, Algorithm 4, with round j in every set), and of the exposure to the
  smallest Toeplitz matrix of the second kind that is entrywise at least abs(F).
"""

from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.factors.exposures import participations
from fedprivjax.noise.factors.matrices import toeplitz
from fedprivjax.plan.participation.secret import CyclicPoisson
from fedprivjax.plan.schedule import Schedule

BANDED = "exact exposure: F has at most as many bands as rounds between two uses"
DECREASING = "exact exposure: F is Toeplitz, its coefficients ≥ 0 and non-increasing (Kalinin & Lampert 2024)"
BOUND = "upper bound on the exposure, from |FᵀF|"


class SeparatedExposure(NamedTuple):
    """Exposure of a machine, and the rule by which it was computed, as text."""

    value: float
    rule: str


def separated_exposure(factor: np.ndarray, separation: int, uses: int) -> SeparatedExposure:
    """Return the largest L2 norm by which one machine can change F·x, or an upper bound on this norm.

    F is `factor`, and x_t is the sum of the messages that a trusted server receives in round t. The machine sends
    messages of norm at most 1 in at most `uses` rounds, any two of which are at least `separation` rounds apart. The
    largest norm is taken over all such sets of rounds. The result's attribute `value` is the norm or bound. Its
    attribute `rule` is a text that says how `value` was computed and whether it is exact.

    >>> separated_exposure(np.eye(6), separation=1, uses=4).value
    2.0
    """
    size, above = np.abs(factor.T @ factor), toeplitz(_envelope(factor))
    squares = np.diag(size)
    if not np.tril(factor, -separation).any():
        return SeparatedExposure(float(np.sqrt(largest_sum(squares, separation, uses))), BANDED)
    decreasing = float(np.linalg.norm(above[:, ::separation][:, :uses].sum(axis=1)))
    if (above == factor).all():
        return SeparatedExposure(decreasing, DECREASING)
    apart = np.tril(size, -separation) + np.triu(size, separation)
    each = squares + largest_sum(apart, separation, uses - 1)
    return SeparatedExposure(min(decreasing, float(np.sqrt(largest_sum(each, separation, uses)))), BOUND)


def largest_sum(values: np.ndarray, separation: int, uses: int) -> Any:
    """Return the largest sum of at most `uses` entries ≥ 0 that are `separation` apart, along the last axis.

    >>> float(largest_sum(np.array([1.0, 5.0, 1.0, 3.0]), separation=2, uses=2))
    8.0
    """
    rounds = values.shape[-1]
    best = np.zeros((*values.shape[:-1], rounds + separation))  # of the entries from each place on
    for _ in range(min(uses, -(-rounds // separation))):
        best[..., :rounds] = values + best[..., separation:]
        best = np.maximum.accumulate(best[..., ::-1], axis=-1)[..., ::-1]
    return best[..., 0]


def _envelope(factor: np.ndarray) -> np.ndarray:
    """Return the smallest non-increasing coefficients whose Toeplitz matrix is entrywise at least |F|; [rounds]."""
    size = np.abs(factor)
    largest = np.array([np.diagonal(size, -lag).max() for lag in range(len(factor))])
    return np.maximum.accumulate(largest[::-1])[::-1]


def turns(rounds: int, separation: int, uses: int) -> Schedule:
    """Return a public schedule in which `separation` machines take turns, one machine a round.

    A machine takes part in every `separation`-th round, until it has taken part `uses` times. Then another machine
    takes its place.

    Args:
        rounds: number of rounds.
        separation: number of rounds from one round of a machine to its next.
        uses: number of rounds of a machine.

    >>> turns(5, separation=2, uses=2).participants.ravel().tolist()
    [0, 1, 0, 1, 2]
    """
    t = np.arange(rounds)
    machine = t % separation + separation * (t // (separation * uses))
    return Schedule(int(machine.max()) + 1, machine.astype(np.int32)[:, None])


def public_rounds(schedule: Schedule) -> Schedule:
    """Return the schedule that a factor may depend on: itself, or the groups' turns of a secret `CyclicPoisson`.

    Raises:
        Refusal: if participation is secret in another way.
    """
    scheme = schedule.secret
    if scheme is None:
        return schedule
    if type(scheme) is not CyclicPoisson:
        raise Refusal(
            f"noise_schedule must be 'independent' under secret participation, because the sensitivity of correlated "
            f"noise depends on who takes part, got {scheme}. Use a public scheme, or CyclicPoisson"
        )
    rounds = schedule.size.rounds
    return schedule.once("turns of groups", lambda: turns(rounds, scheme.groups, rounds))


def require_separated(schedule: Schedule, separation: int, uses: int) -> None:
    """Raise Refusal unless machines take part in at most `uses` rounds that are at least `separation` apart."""
    machine, when = participations(schedule, schedule.scheduled)
    between = np.where(machine[1:] == machine[:-1], np.diff(when), np.inf)
    if np.min(between, initial=np.inf) < separation:
        worst = int(np.argmin(between))
        found = f"{between[worst]:.0f} of machine {machine[worst]} (rounds {when[worst] + 1} and {when[worst + 1] + 1})"
        raise Refusal(
            f"separation must be at most that of a machine's rounds on the sampled schedule, got {separation} and "
            f"{found}. Set a smaller separation, or use Cyclic participation"
        )
    if schedule.total.max() > uses:
        found = f"{schedule.total.max()} of machine {schedule.total.argmax()}"
        raise Refusal(
            f"uses must be at least those of a machine on the sampled schedule, got {uses} and {found}. Set larger uses"
        )
