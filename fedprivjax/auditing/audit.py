"""Audit of a protocol: thousands of runs on two neighbouring datasets, compared with the claimed guarantee."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.auditing.bounds import LowerBounds, lower_bounds
from fedprivjax.auditing.neighbouring import (
    LINEAR,
    Federation,
    Worlds,
    hides_uses,
    labels_of,
    records_used,
    small_federation,
    worlds,
)
from fedprivjax.auditing.running import Progress, Runs, score_runs
from fedprivjax.auditing.scores import (
    Counting,
    ViewDistribution,
    clearest,
    discrete,
    fixed_scores,
    mixtures,
    separation,
)
from fedprivjax.auditing.views import MOST, ViewOptions, Views, chunk_of, different, observed, own_releases
from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.checks.values import called, known_keywords, require_at_least, require_between
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.seen import costs_of
from fedprivjax.noise import Randomised
from fedprivjax.plan.arguments import require_protocol
from fedprivjax.privacy.events import Mixture
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.of_protocol import privacy_of
from fedprivjax.privacy.terms import REPLACE_ONE

LEVEL = 0.05  # error probability of a bound
VERDICT = 1e-4  # total error probability of a verdict
LEAST = 1000  # smallest number of runs
PREPARING = 8192  # runs per neighbouring dataset that fix weights and thresholds
PREPARED = 2**20  # offset of their seeds from those of the counted runs
CANDIDATES = 12  # largest number of records tried in the search for the most exposed one
TIE = 1e-6  # relative difference below which two machines' claims count as equal
CLEARER = 1.02  # separation, relative to that of another canary, from which a canary is preferred to it
ATTAINED = 0.5  # smallest fraction of the claimed μ that canaries must achieve


@dataclass(frozen=True)
class Found:
    """Lower bounds from one score.

    Attributes:
        name: name of the score.
        bounds: lower bounds at 95% each.
        strict: lower bounds at the level of a verdict, which all scores and their bounds share.
    """

    name: str
    bounds: LowerBounds
    strict: LowerBounds


@dataclass(frozen=True, repr=False)
class Audit:
    """Empirical lower bounds on a protocol's privacy loss, with its claimed guarantee.

    Attributes:
        protocol: name of the protocol.
        guarantee: claimed guarantee on the audit's federation. The canary belongs to its worst machine.
        found: lower bounds from every score, the likelihood ratio first.
        attained: μ that the canary achieves under the claimed distribution of the view, or None if no μ is claimed.
        verdict: total error probability of `refuted`, over all scores.
    """

    protocol: str
    guarantee: PrivacyGuarantee
    found: tuple[Found, ...]
    attained: float | None
    verdict: float

    @property
    def best(self) -> Found:
        """Score with the strongest result.

        It is the likelihood ratio, the tightest score if the claim is right. If scores refute the claim, it is the
        refuting score with the largest bound.
        """
        refuting = [found for found in self.found if found.name in self.refuted]
        return max(refuting, key=lambda one: (one.strict.epsilon_lower, one.strict.mu_lower), default=self.found[0])

    @property
    def bounds(self) -> LowerBounds:
        """Lower bounds from the best score, at 95%."""
        return self.best.bounds

    @property
    def epsilon_lower(self) -> float:
        """Lower bound on ε at δ from the best score, at 95%. It is converted from the bound on μ if a μ is claimed."""
        bounds = self.best.bounds
        return bounds.epsilon_lower if self.guarantee.mus is None else bounds.gdp_epsilon_lower

    @property
    def tightness(self) -> float:
        """Ratio of `epsilon_lower` to the claimed ε."""
        return self.epsilon_lower / self.guarantee.epsilon

    @property
    def refuted(self) -> tuple[str, ...]:
        """Names of the scores whose lower bounds exceed the claim, at the verdict's level."""
        return tuple(found.name for found in self.found if found.strict.refute(self.guarantee))

    def __str__(self) -> str:
        claim, bounds = self.guarantee, self.best.bounds
        by_mu = "" if claim.mu is None else f", ε ≥ {bounds.gdp_epsilon_lower:.3g} by μ"
        verdict = f"refuted by {', '.join(self.refuted)}" if self.refuted else "not refuted"
        return (
            f"{self.protocol}, trust {claim.trust}: claimed ε = {claim.epsilon:.4g} at δ = {claim.delta:g}; "
            f"proved at 95%: ε ≥ {bounds.epsilon_lower:.3g}{by_mu}, by {sum(bounds.runs)} runs; {verdict}"
        )

    __repr__ = __str__

    def as_mapping(self) -> dict[str, Any]:
        """The audit as a JSON-serialisable mapping."""
        scores = {
            found.name: {
                "epsilon_lower": found.bounds.epsilon_lower,
                "mu_lower": found.bounds.mu_lower,
                "gdp_epsilon_lower": found.bounds.gdp_epsilon_lower,
                "strict_epsilon_lower": found.strict.epsilon_lower,
                "strict_mu_lower": found.strict.mu_lower,
            }
            for found in self.found
        }
        return {
            "protocol": self.protocol,
            "claimed": {"epsilon": self.guarantee.epsilon, "delta": self.guarantee.delta, "mu": self.guarantee.mu},
            "guarantee": json.loads(self.guarantee.to_json()),
            "attained_mu": self.attained,
            "runs": list(self.best.bounds.runs),
            "scores": scores,
            "verdict_level": self.verdict,
            "refuted_by": list(self.refuted),
        }


class NothingClaimed(Refusal):
    """Refusal of a protocol without a privacy guarantee, which no audit can refute."""


def require_claim(start: ReadyRun) -> None:
    """Raise Refusal if the run's protocol has no privacy guarantee."""
    if not start.guarantee.private:
        epsilon = start.guarantee.epsilon
        raise NothingClaimed(f"{start.protocol.name} must have a finite ε to be audited, got {epsilon}")


@known_keywords
def audit(
    protocol,
    federation: Federation | None = None,
    *,
    runs: int = 20_000,
    delta: float = 1e-5,
    seed: int = 0,
    verdict: float = VERDICT,
    public: tuple[str, ...] = (),
    loss: str | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Attack a protocol with a worst-case canary, and bound its privacy loss from below.

    Args:
        protocol: a protocol with a target or a `noise_std`.
        federation: a small federation, or None for `small_federation(protocol)`.
        runs: number of counted runs per neighbouring dataset.
        delta: δ of the bounds on ε.
        seed: seed of all runs.
        verdict: total error probability of `Audit.refuted`.
        public: names of the scalars reported by rounds that are published.
        loss: "linear" or "quadratic", the canary's loss (see `Federation`), or None for the federation's.
        folder: folder for the scores of finished runs, from which a stopped audit resumes.
        progress: callback, called with (finished runs, all runs).

    Raises:
        Refusal: if the settings cannot be run, or the canary does not achieve the sensitivity.

    >>> from fedprivjax import Federation, Full, NoisySGD
    >>> found = audit(NoisySGD(mu=2.0, clip=0.5), Federation(Full(1), rounds=1, records=1, dimension=4), runs=1000)
    >>> found.refuted, bool(0.7 < found.tightness < 1.0)
    ((), True)
    """
    require_protocol(protocol)
    if federation is not None and not isinstance(federation, Federation):
        small = "such as Federation(Full(4), rounds=12, records=12): audit_one_run takes a problem"
        raise Refusal(f"federation must be a small one, {small}, got {called(federation)}")
    require_at_least("runs", runs, LEAST)
    require_between("delta", delta, 0, 1)
    require_between("verdict", verdict, 0, 1)
    federation = small_federation(protocol) if federation is None else federation
    federation = federation if loss is None else replace(federation, loss=loss)
    preparing = min(PREPARING, max(runs // 2, MOST))
    pair, distribution, options = prepared(protocol, federation, delta, seed, public, preparing)
    guarantee = pair.start.guarantee if pair.absent else for_replaced(pair.start.guarantee)
    attained = _attained(distribution, guarantee)
    counting = Counting(delta, runs, LEVEL)
    scores = fixed_scores(distribution, counting, guarantee.mu)
    mixture = pair.start.event.mixture(pair.machine)
    if mixture is not None and _all_releases_visible(pair, distribution, mixture):
        shift = _shift(pair, mixture, seed, options)
        scores[:1] = mixtures(distribution, mixture, pair.machine, shift, counting, absent=pair.absent)
    if isinstance(pair.start.mechanism, Randomised):
        null, other = (observed(start, seed + PREPARED, 0, options)[0].values for start in pair.starts)
        scores[0] = discrete(scores[0], null, other, counting)
    done = score_runs(Runs(pair, options, seed, folder, progress), distribution, scores, counting)
    proofs = 1 if guarantee.mu is None else 2  # of a score against the claim: by ε, and by μ where one is claimed
    strict = verdict / (proofs * len(done))
    found = []
    for score, numbers in done:
        bounds = [lower_bounds(*numbers, score.threshold, score.middle, delta, level) for level in (LEVEL, strict)]
        found.append(Found(score.name, *bounds))
    return Audit(protocol.name, guarantee, tuple(found), attained, verdict)


def for_replaced(guarantee: PrivacyGuarantee) -> PrivacyGuarantee:
    """Return the guarantee for the replace-one relation, in which an audit's canaries differ.

    Raises:
        Refusal: if the guarantee is for another relation and states no μ. Its conversion holds at a larger δ only.
    """
    if guarantee.relation != REPLACE_ONE and guarantee.mus is None:
        raise Refusal(
            f"relation must be {REPLACE_ONE!r} for an audit in one run of a guarantee without μ, got "
            f"{guarantee.relation!r}. Use audit"
        )
    return guarantee.for_relation(REPLACE_ONE)


Prepared = tuple[Worlds, ViewDistribution, ViewOptions]


def prepared(
    protocol,
    federation: Federation,
    delta: float,
    seed: int,
    public: tuple[str, ...],
    preparing: int | None = None,
) -> Prepared:
    """Return prepared runs that differ in the most exposed record, the distribution of their views, and options.

    Parameters are in two arrays if the federation does not say otherwise and the method takes them.
    """
    known = delta, seed, public, preparing
    if federation.leaves is not None:
        return _clearest(protocol, federation, *known)
    try:
        return _clearest(protocol, replace(federation, leaves=2), *known)
    except Exception as error:
        found = _clearest(protocol, replace(federation, leaves=1), *known)
        warn(
            f"{protocol.name} is audited with its parameters in one array: with two it raises "
            f"{type(error).__name__} ({error}). Clipping array by array is then not seen"
        )
        return found


def _clearest(protocol, federation: Federation, *known: Any) -> Prepared:
    """Return prepared runs with the canary that the view shows best, of those that the federation leaves open.

    In a message that holds a number which grows faster than its update, such as a squared norm, a long canary's update
    has almost no part of the bound. Then a short canary is tried.
    """
    long = _clearest_of(protocol, federation, *known)
    if federation.canary is not None or federation.loss != LINEAR or not _hides_update(long):
        return long
    return max(long, _clearest_of(protocol, federation.shorter(protocol), *known), key=_separation)


def _hides_update(found: Prepared) -> bool:
    """Return True if a canary of whole messages shows much less than is claimed or, without a μ, if it may."""
    start, absent = found[0].start, found[0].absent
    if not privacy_of(start.protocol).protects_machines:
        return False
    mu = (start.guarantee if absent else for_replaced(start.guarantee)).mu
    if mu is not None:
        return _separation(found) < ATTAINED * mu
    numbers = costs_of(start.protocol).message_dimension(start.problem) - privacy_of(start.protocol).shows_clipping
    return numbers % start.problem.dimension > 0


def _clearest_of(protocol, federation: Federation, *known: Any) -> Prepared:
    """Return prepared runs with the canary of this length that the view shows best.

    If messages show whether they were clipped, the canary is clipped with both labels or with one. An absent canary is
    never clipped, and a clipped one would differ from it by more than is claimed.
    """
    best: Prepared | None = None
    for unclipped in (True, False) if privacy_of(protocol).shows_clipping else (federation.unclipped,):
        if best is not None and best[0].absent:
            continue
        for dense in (False, True) if federation.dense is None else (federation.dense,):
            found = _prepared(protocol, replace(federation, unclipped=unclipped, dense=dense), *known)
            if best is None or _separation(found) > CLEARER * _separation(best):
                best = found
    assert best is not None
    return best


def _separation(found: Prepared) -> float:
    return separation(found[1], clearest(found[1]))


def _prepared(
    protocol, federation: Federation, delta: float, seed: int, public: tuple[str, ...], preparing: int | None
) -> Prepared:
    """Return prepared runs that differ in the most exposed record, with its norms as the federation has them."""
    pair = worlds(protocol, federation, None, delta=delta, seed=seed)
    require_claim(pair.start)
    rows, options = _candidates(pair), ViewOptions(public, schedule=different(pair), bends=federation.loss != LINEAR)
    distribution = measured(pair, seed, options, preparing)
    if rows == [pair.canary]:
        return pair, distribution, options
    tried = [distribution._replace(shift=shift, middle=middle) for shift, middle in _tried(pair, rows, seed, options)]
    reached = [separation(one, clearest(one)) for one in tried]
    best = int(np.argmax(np.round(reached, 2)))  # the first among equals
    pair = worlds(protocol, federation, rows[best], delta=delta, seed=seed)
    if different(pair) != options.schedule:  # participation may depend on this record only
        options = replace(options, schedule=different(pair))
        return pair, measured(pair, seed, options, preparing), options
    return pair, tried[best], options


def _candidates(pair: Worlds) -> list[int]:
    """Return the pool rows of candidates for the canary: first records of each machine with the worst claim.

    The claim does not distinguish these records, and a wrong claim may be wrong for only one of them.
    """
    start, claimed = pair.start, pair.start.guarantee.per_machine
    worst = np.flatnonzero(claimed >= claimed.max() * (1 - TIE))[:CANDIDATES]
    if hides_uses(start):
        return records_used(start, worst[0])[:1]  # all records are equally exposed
    most = 1 if privacy_of(start.protocol).protects_machines else max(2, CANDIDATES // worst.size)
    return [row for machine in worst for row in records_used(start, machine)[:most]]


def _tried(pair: Worlds, rows: list[int], seed: int, options: ViewOptions) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each candidate row, the shift of the views and their midpoint, each of shape [columns].

    The runs of one chunk are divided among the candidates.
    """
    turn = np.arange(chunk_of(pair.start)) % len(rows)
    labels = labels_of(pair.start.problem)
    chosen = np.stack([pair.replaced(row) for row in rows])[turn]
    kept = labels[~pair.replaced(pair.canary)]
    others = kept[0] if kept.size else labels[0]  # none is kept if a single machine is replaced
    own = [labels_of(start.problem)[pair.canary] for start in pair.starts]
    both = [np.where(chosen, label, others) for label in own]
    one, other = (observed(pair.start, seed + PREPARED, 0, options, labels)[0].values for labels in both)
    parts = [(one[turn == place], other[turn == place]) for place in range(len(rows))]
    return [((after - before).mean(axis=0), (after + before).mean(axis=0) / 2) for before, after in parts]


def measured(pair: Worlds, seed: int, options: ViewOptions, preparing: int | None = None) -> ViewDistribution:
    """Estimate the views' distribution from `preparing` uncounted runs, by default `PREPARING`."""
    preparing = PREPARING if preparing is None else preparing
    parts: list[list[Views]] = []
    for begin in range(0, preparing, chunk_of(pair.start)):
        null, other = (observed(start, seed + PREPARED, begin, options) for start in pair.starts)
        parts.append([other[0], *null])
    other, null, *noise = (np.concatenate([part[place].values for part in parts]) for place in range(len(parts[0])))
    centred = [one - one.mean(axis=0) for one in noise]
    covariance = np.mean([one.T @ one / len(one) for one in centred], axis=0)
    return ViewDistribution(
        (other - null).mean(axis=0), (other + null).mean(axis=0) / 2, covariance, parts[0][0].columns
    )


def _shift(pair: Worlds, mixture: Mixture, seed: int, options: ViewOptions) -> float:
    """Return the signed shift of a release between the two datasets, for one occurrence of the canary."""
    one, other = (observed(start, seed + PREPARED, 0, options)[0] for start in pair.starts)
    moved = (other.values - one.values)[:, own_releases(one.columns, pair.machine)]
    least = np.abs(moved).max() / (2 * mixture.times.max())  # the canary's effect on later releases is smaller
    return float(np.sign(moved.sum()) * np.abs(moved)[np.abs(moved) > least].min())


def _all_releases_visible(pair: Worlds, distribution: ViewDistribution, mixture: Mixture) -> bool:
    """Return True if the view contains all releases of the canary's machine in rounds in which it is present."""
    schedule, machine = pair.start.plan.schedule, pair.machine
    sent = np.count_nonzero(schedule.participants[schedule.present] == machine)
    seen = np.count_nonzero(own_releases(distribution.columns, machine))
    return bool(seen > 0 and seen * schedule.total[machine] == mixture.releases * sent)


def _attained(distribution: ViewDistribution, guarantee: PrivacyGuarantee) -> float | None:
    """Return the μ that the canary achieves.

    Raises:
        Refusal: if the canary does not change the view, or changes it by much less than the claim allows.
    """
    if not np.abs(distribution.shift).max() > 0:
        raise Refusal("canary must change the adversary's view, and it does not. Choose another record or more rounds")
    if guarantee.mu is None:
        return None
    attained = separation(distribution, clearest(distribution))
    require_attained("canary", attained, guarantee.mu)
    return attained


def require_attained(name: str, attained: float, claimed: float) -> None:
    """Raise Refusal if canaries achieve a μ that is much smaller than the claimed one."""
    if attained < ATTAINED * claimed:
        raise Refusal(
            f"{name} must achieve at least {ATTAINED:.0%} of the claimed sensitivity, "
            f"got {attained / claimed:.0%} (μ = {attained:.3g} of {claimed:.3g})"
        )
