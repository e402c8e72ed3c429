"""Scores of an attacker: one number per run, larger if the canary's label is +1.

All weights and thresholds are fixed before the counted runs, from the claim and from separate runs. The noise's
covariance is measured along directions that the canary does not change. The shift is measured by runs on both datasets
with the same noise. For a correct protocol the linear score is therefore the likelihood ratio of its Gaussian
distribution.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedprivjax.auditing.bounds import expected_threshold, sampled_threshold
from fedprivjax.auditing.views import Column, own_releases
from fedprivjax.privacy.events import Mixture

RIDGE = 1e-6  # fraction of a column's variance that float32 cannot resolve
SIMULATED = 200_000  # largest number of simulated runs of a claimed distribution that is not normal
SIMULATED_NUMBERS = 2**21  # largest number of releases of these runs
LOUDER = 1.05  # separation, relative to the claim, above which the measured distribution is tested too
SILENT = 1e-3  # smallest measured noise, as a fraction of the claimed noise
DIGITS = 9  # of the scores of views with few values
LARGEST = 1e6  # cap on separations: larger ones reveal everything


class ViewDistribution(NamedTuple):
    """Distribution of the views: shift between the datasets, midpoint (both [columns]), and noise covariance."""

    shift: np.ndarray
    middle: np.ndarray
    covariance: np.ndarray
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Score:
    """A statistic of a view, with its thresholds.

    Attributes:
        name: name of the score, for tables.
        function: maps views [runs, columns] to scores [runs].
        threshold: threshold of the bound on ε.
        middle: threshold of the bound on μ.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]
    threshold: float
    middle: float


class Counting(NamedTuple):
    """Setting for which thresholds are chosen: δ, runs per neighbouring dataset, and level of the bound."""

    delta: float
    runs: int
    level: float


def linear(
    name: str, distribution: ViewDistribution, weights: np.ndarray, counting: Counting, claimed: float | None = None
) -> Score:
    """Return the linear score `weights·view` of an attack on two neighbouring datasets, shifted and scaled.

    A view is the vector of all numbers (columns) that the adversary sees in one run. If views are Gaussian, the score
    has the distribution N(0, 1) on the first dataset and N(μ, 1) on the second.

    Args:
        name: name of the score, for tables.
        distribution: distribution of the views.
        weights: weight of each column, shape [columns].
        counting: setting for which thresholds are chosen before the runs.
        claimed: μ by which the score is scaled. None is the μ that follows from `distribution` and `weights`.

    >>> distribution = ViewDistribution(np.array([2.0]), np.zeros(1), np.eye(1), (Column("message", 1, 0),))
    >>> score = linear("one message", distribution, np.ones(1), Counting(1e-5, 1000, 0.05))
    >>> score.function(np.array([[-1.0], [1.0]])).tolist()
    [0.0, 2.0]
    """
    mu = separation(distribution, weights) if claimed is None else claimed
    shift = float(weights @ distribution.shift)
    unit = mu / shift if shift > 0 else 0.0

    def function(views: np.ndarray) -> np.ndarray:
        return np.clip(unit * ((views - distribution.middle) @ weights) + mu / 2, -LARGEST, LARGEST)

    return Score(name, function, expected_threshold(mu, *counting), mu / 2)


def separation(distribution: ViewDistribution, weights: np.ndarray) -> float:
    """Return the distance of the two means of `weights·view`, in standard deviations."""
    shift = float(weights @ distribution.shift)
    variance = float(weights @ distribution.covariance @ weights)
    return min(shift / np.sqrt(variance), LARGEST) if variance > 0 else LARGEST * (shift > 0)


def whitened(distribution: ViewDistribution, chosen: np.ndarray | None = None) -> np.ndarray:
    """Return the weights of the best linear score of the chosen columns; shape [columns], 0 for other columns."""
    kept = np.arange(distribution.shift.size) if chosen is None else np.flatnonzero(chosen)
    weights = np.zeros(distribution.shift.size)
    weights[kept] = best_weights(distribution.covariance[np.ix_(kept, kept)], distribution.shift[kept])
    return weights


def best_weights(covariance: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return `Σ⁻¹·shift`, the weights of the likelihood ratio of two normal distributions.

    A ridge of `RIDGE` times each variance separates columns that are equal in float32.

    Args:
        shift: shape [columns] or [shifts, columns]. The result has the same shape.

    >>> best_weights(np.diag([1.0, 4.0]), np.array([1.0, 2.0])).round(3).tolist()
    [1.0, 0.5]
    """
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))  # without noise, rounding may make a variance negative
    scale = np.where(scale > 1e-12 * max(scale.max(), 1e-300), scale, 1.0)
    correlation = covariance / np.multiply.outer(scale, scale) + RIDGE * np.eye(scale.size)
    return np.linalg.solve(correlation, (shift / scale).T).T / scale


def visible(distribution: ViewDistribution) -> list[np.ndarray]:
    """Return the sets of columns that one adversary can see; list of bool [columns].

    An adversary sees all columns that are not the server's memory, and the memory at one round.
    """
    kinds = np.array([column.kind for column in distribution.columns])
    rounds = np.array([column.round for column in distribution.columns])
    memory = kinds == "memory"
    return [~memory | (rounds == t) for t in np.unique(rounds[memory])] if memory.any() else [~memory]


def clearest(distribution: ViewDistribution, candidates: Iterable[np.ndarray] | None = None) -> np.ndarray:
    """Return the candidate weights of the largest separation. Default: the best weights of each visible set."""
    if candidates is None:
        candidates = (whitened(distribution, seen) for seen in visible(distribution))
    return max(candidates, key=lambda weights: separation(distribution, weights))


def best_linear(distribution: ViewDistribution, counting: Counting, claimed: float | None) -> list[Score]:
    """Return the likelihood ratio of the Gaussian distribution, with the threshold of the claim.

    If less noise than claimed is measured, the same score with the threshold of the measured distribution follows.
    """
    weights = clearest(distribution)
    reached = separation(distribution, weights)
    if claimed is None or reached <= LOUDER * claimed:
        mu = None if claimed is None else min(claimed, reached)
        return [linear("likelihood ratio", distribution, weights, counting, mu)]
    names = {"likelihood ratio": claimed, "likelihood ratio, as measured": None}
    return [linear(name, distribution, weights, counting, mu) for name, mu in names.items()]


def alone(distribution: ViewDistribution, counting: Counting) -> Score:
    """Return the score of the single most informative column."""
    each = np.eye(distribution.shift.size) * np.sign(distribution.shift)[:, None]
    return linear("a message alone", distribution, clearest(distribution, each), counting)


def differences(
    name: str, distribution: ViewDistribution, alike: Callable[[Column, Column], bool], counting: Counting
) -> Score | None:
    """Return the score of the most informative sum or difference of comparable columns, or None without any."""
    first = np.argsort(-np.abs(distribution.shift) / np.sqrt(np.maximum(np.diag(distribution.covariance), 1e-300)))[:4]
    each = np.eye(distribution.shift.size)
    pairs = [
        (each[f], each[g])
        for f in first
        for g, other in enumerate(distribution.columns)
        if f != g and alike(distribution.columns[f], other)
    ]
    if not pairs:
        return None
    candidates = [weights for one, other in pairs for weights in (one - other, one + other)]
    signed = [weights * np.sign(weights @ distribution.shift) for weights in candidates]
    return linear(name, distribution, clearest(distribution, signed), counting)


def same_sender(one: Column, other: Column) -> bool:
    """Return True if two columns come from the same sender in different rounds.

    A column describes one number that an adversary sees. Numbers of the server's memory are never from the same sender,
    because an intruder reads the memory at one round only.

    Args:
        one: first column.
        other: second column.
    """
    alike = (one.kind, one.machine) == (other.kind, other.machine)
    return alike and one.round != other.round and one.kind != "memory"


def same_round(one: Column, other: Column) -> bool:
    """Return True if two columns are messages of the same round.

    Args:
        one: first column.
        other: second column.
    """
    return one.kind == other.kind == "message" and one.round == other.round


def mixtures(
    distribution: ViewDistribution,
    claim: Mixture,
    machine: int,
    shift: float,
    counting: Counting,
    *,
    absent: bool = False,
) -> list[Score]:
    """Return the score `mixed` with the claimed noise and, if messages carry less noise, also with the measured noise.

    Args:
        shift: signed shift of a release between the two datasets, for one occurrence of the canary.

    >>> distribution = ViewDistribution(np.array([2.0]), np.zeros(1), np.eye(1), (Column("message", 1, 0),))
    >>> one_in_four = Mixture(ratio=0.5, releases=1, times=np.array([1.0]), chances=np.array([0.25]))
    >>> score = mixed("a machine's messages", distribution, one_in_four, 0, 2.0, Counting(1e-5, 1000, 0.05))
    >>> score.function(np.array([[-1.0], [0.0], [1.0]])).round(3).tolist()  # most messages do not hold the canary
    [-0.366, 0.0, 0.366]
    """
    own = np.diag(distribution.covariance)[own_releases(distribution.columns, machine)]
    measured = np.maximum(np.sqrt(own) / abs(shift), SILENT * claim.ratio)
    known = distribution, claim, machine, shift, counting
    found = [mixed("likelihood ratio", *known, absent=absent)]
    if claim.ratio > LOUDER * measured.min():
        found.append(mixed("likelihood ratio, as measured", *known, measured, absent=absent))
    return found


def mixed(
    name: str,
    distribution: ViewDistribution,
    claim: Mixture,
    machine: int,
    shift: float,
    counting: Counting,
    ratios: np.ndarray | None = None,
    *,
    absent: bool = False,
) -> Score:
    """Return the likelihood ratio of a machine's releases as a score.

    Each release is normal. Its mean depends on the number of occurrences of the canary.

    Args:
        shift: signed shift of a release between the two datasets, for one occurrence of the canary.
        ratios: ratio of noise to shift of each release, shape [releases], or None for the claimed ratio.
    """
    own = own_releases(distribution.columns, machine)
    ratios = np.full(np.count_nonzero(own), claim.ratio) if ratios is None else ratios
    times, chances = np.append(0.0, claim.times), np.append(1 - claim.chances.sum(), claim.chances)
    null_place, other_place = (0.0, 1.0) if absent else (-0.5, 0.5)  # means of the datasets in units of the shift
    centre = (distribution.middle - distribution.shift / 2 if absent else distribution.middle)[own]
    logs = np.log(np.maximum(chances, 1e-300))

    def ratio(releases: np.ndarray) -> np.ndarray:
        total = np.zeros(releases.shape[0])
        for one, each in zip(releases.T, ratios, strict=True):
            for sign, place in ((1.0, other_place), (-1.0, null_place)):
                means = place / each * times
                terms = [log - (one - mean) ** 2 / 2 for log, mean in zip(logs, means, strict=True)]
                total += sign * np.logaddexp.reduce(terms, axis=0)
        return total

    rng, size = np.random.default_rng(0), (min(SIMULATED, SIMULATED_NUMBERS // int(own.sum())), int(own.sum()))
    drawn = [rng.choice(times, size, p=chances / chances.sum()) for _ in range(2)]
    null, other = (
        ratio(place / ratios * d + rng.normal(size=size))
        for place, d in zip((null_place, other_place), drawn, strict=True)
    )

    def function(views: np.ndarray) -> np.ndarray:
        return ratio((views[:, own] - centre) / (ratios * shift))

    return Score(name, function, sampled_threshold(null, other, *counting), 0.0)


def fixed_scores(distribution: ViewDistribution, counting: Counting, claimed: float | None) -> list[Score]:
    """Return all scores whose weights follow from the views' distribution."""
    several = [
        *best_linear(distribution, counting, claimed),
        alone(distribution, counting),
        differences("a difference over rounds", distribution, same_sender, counting),
        differences("a difference over machines", distribution, same_round, counting),
    ]
    return [score for score in several if score is not None]


def discrete(score: Score, null: np.ndarray, other: np.ndarray, counting: Counting) -> Score:
    """Return the score with the best threshold for views with few values, such as those of randomised response.

    Args:
        null, other: views of uncounted runs on the two datasets, [runs, columns].
    """

    def function(views: np.ndarray) -> np.ndarray:
        return np.round(score.function(views), DIGITS)  # equal views have equal scores

    return replace(score, function=function, threshold=sampled_threshold(function(null), function(other), *counting))


def sums(views: np.ndarray, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of views [runs, columns] about an origin, [columns], and of their products, [columns, columns].

    An origin near the views' mean avoids cancellation.
    """
    moved = views - origin
    return moved.sum(axis=0), moved.T @ moved


def moments(total: np.ndarray, products: np.ndarray, runs: int, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean [columns] and covariance [columns, columns] of views from their `sums`."""
    off = total / runs
    return origin + off, products / runs - np.multiply.outer(off, off)


def discriminant(
    worlds: Iterable[tuple[np.ndarray, np.ndarray]], columns: tuple[Column, ...], counting: Counting
) -> Score:
    """Return the linear discriminant of the views on the two datasets, fitted on runs that are not counted.

    Args:
        worlds: mean and covariance of the views on each dataset.
    """
    (null, of_null), (other, of_other) = worlds
    distribution = ViewDistribution(other - null, (null + other) / 2, (of_null + of_other) / 2, columns)
    return linear("a fitted discriminant", distribution, clearest(distribution), counting)
