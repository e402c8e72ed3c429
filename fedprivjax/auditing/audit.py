"""An audit: thousands of runs in two neighbouring worlds, what an attacker learns from them, and what is claimed."""

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
    labels_of,
    records_used,
    small_federation,
    worlds,
)
from fedprivjax.auditing.running import Progress, Runs, score_runs
from fedprivjax.auditing.scores import Counting, Law, fixed_scores, mixtures, separation, visible, whitened
from fedprivjax.auditing.views import MOST, Sight, Views, chunk_of, different, observed, own_releases
from fedprivjax.checks.keywords import known_keywords
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least, require_between
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.plan.arguments import require_protocol
from fedprivjax.privacy.events import Mixture
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.terms import REPLACE_ONE

LEVEL = 0.05  # of a bound
VERDICT = 1e-4  # total error of a verdict
LEAST = 1000  # runs
PREPARING = 8192  # runs of each world that weights and thresholds come from
PREPARED = 2**20  # sets their seeds apart from those of runs that are counted
CANDIDATES = 12  # records, at most, of machines alike among which the most exposed one is looked for
TIE = 1e-6  # relative: machines whose claims are so near are alike
ATTAINED = 0.5  # of the claimed μ, which a canary must reach at least


@dataclass(frozen=True)
class Found:
    """What one score proves.

    Attributes:
        name: the score.
        bounds: at 95% each.
        strict: at the level of a verdict, shared by all scores and by the bounds of each that are held to the claim.
    """

    name: str
    bounds: LowerBounds
    strict: LowerBounds


@dataclass(frozen=True, repr=False)
class Audit:
    """Lower bounds on what a protocol gives away, beside what it claims.

    Attributes:
        protocol: its name.
        guarantee: what is claimed on the audit's federation; the canary is its worst machine's.
        found: what every score proves, the likelihood ratio first.
        attained: the μ that the canary reaches in the claimed law of the view; None where no μ is claimed.
        verdict: the total error of `refuted`, over all scores.
    """

    protocol: str
    guarantee: PrivacyGuarantee
    found: tuple[Found, ...]
    attained: float | None
    verdict: float

    @property
    def best(self) -> Found:
        """The likelihood ratio's, which is the tightest where the claim is right; else, of the scores that refute it,
        the one that proves the most."""
        refuting = [found for found in self.found if found.name in self.refuted]
        return max(refuting, key=_proved) if refuting else self.found[0]

    @property
    def bounds(self) -> LowerBounds:
        """What the best score proves, at 95%."""
        return self.best.bounds

    @property
    def epsilon_lower(self) -> float:
        """The ε at δ that the likelihood ratio proves, at 95%; through μ where a μ is claimed."""
        bounds = self.best.bounds
        return bounds.epsilon_lower if self.guarantee.mus is None else bounds.gdp_epsilon_lower

    @property
    def tightness(self) -> float:
        """`epsilon_lower` over the claimed ε."""
        return self.epsilon_lower / self.guarantee.epsilon

    @property
    def refuted(self) -> tuple[str, ...]:
        """The scores that prove more than is claimed, at the verdict's level."""
        mu, epsilon = self.guarantee.mu, self.guarantee.epsilon
        beyond = [
            found.name
            for found in self.found
            if found.strict.epsilon_lower > epsilon or (mu is not None and found.strict.mu_lower > mu)
        ]
        return tuple(beyond)

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
        """The audit as JSON takes it."""
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


def _proved(found: Found) -> tuple[float, float]:
    return found.strict.epsilon_lower, found.strict.mu_lower


class NothingClaimed(Refusal):
    """A protocol that promises nothing, which no audit can refute."""


def require_claim(start: ReadyRun) -> None:
    """Refuse a run whose protocol promises nothing."""
    if not start.guarantee.private:
        epsilon = start.guarantee.epsilon
        raise NothingClaimed(f"{start.protocol.name} must promise something to be audited, got {epsilon} for ε")


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
    """Attack a protocol with a worst-case canary, and bound from below what it gives away.

    Args:
        protocol: with a target or a `noise_std`.
        federation: small; None is `small_federation`.
        runs: of each world, that are counted.
        delta: δ of the bounds on ε.
        seed: of all runs.
        verdict: the total error of `Audit.refuted`.
        public: scalars that rounds report, by name, and that are published.
        loss: "linear" or "quadratic", which the canary is a record of (see `Federation`); None is the federation's.
        folder: keeps the scores of finished runs, from which a stopped audit goes on.
        progress: called with (runs done, runs in all).

    Raises:
        Refusal: settings that cannot be run, and a canary that does not attain the sensitivity.

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
    pair, law, sight = prepared(protocol, federation, delta, seed, public, min(PREPARING, max(runs // 2, MOST)))
    guarantee = for_replaced(pair.start.guarantee)
    attained = _attained(law, guarantee)
    counting = Counting(delta, runs, LEVEL)
    scores = fixed_scores(law, counting, guarantee.mu)
    mixture = pair.start.event.mixture(pair.machine)
    if mixture is not None and _all_in_sight(pair, law, mixture):
        scores[:1] = mixtures(law, mixture, pair.machine, _shift(pair, mixture, seed, sight), counting)
    done = score_runs(Runs(pair, sight, seed, folder, progress), law, scores, counting)
    proofs = 1 if guarantee.mu is None else 2  # of a score against the claim: by ε, and by μ where one is claimed
    strict = verdict / (proofs * len(done))
    found = [
        Found(
            score.name,
            lower_bounds(*worlds, score.threshold, score.middle, delta, LEVEL),
            lower_bounds(*worlds, score.threshold, score.middle, delta, strict),
        )
        for score, worlds in done
    ]
    return Audit(protocol.name, guarantee, tuple(found), attained, verdict)


def for_replaced(guarantee: PrivacyGuarantee) -> PrivacyGuarantee:
    """The guarantee for replacing a record, in which the worlds of an audit differ.

    Raises:
        Refusal: one for another relation that states no μ, of which it would be known at a larger δ alone.
    """
    if guarantee.relation != REPLACE_ONE and guarantee.mus is None:
        raise Refusal(
            f"relation must be {REPLACE_ONE!r} to be audited where no μ is stated, got {guarantee.relation!r}"
        )
    return guarantee.for_relation(REPLACE_ONE)


def prepared(
    protocol,
    federation: Federation,
    delta: float,
    seed: int,
    public: tuple[str, ...],
    preparing: int | None = None,
):
    """The two worlds of the worst record, the law of their views, and what is seen."""
    pair = worlds(protocol, federation, None, delta=delta, seed=seed)
    require_claim(pair.start)
    rows, sight = _candidates(pair), Sight(public, schedule=different(pair), bends=federation.loss != LINEAR)
    law = measured(pair, seed, sight, preparing)
    if rows == [pair.canary]:
        return pair, law, sight
    tried = [law._replace(shift=shift, middle=middle) for shift, middle in _tried(pair, rows, seed, sight)]
    reached = [max(separation(one, whitened(one, seen)) for seen in visible(one)) for one in tried]
    best = int(np.argmax(np.round(reached, 2)))  # of those that are as good, the first
    pair = worlds(protocol, federation, rows[best], delta=delta, seed=seed)
    if different(pair) != sight.schedule:  # participation that depends on data may do so for this record alone
        sight = replace(sight, schedule=different(pair))
        return pair, measured(pair, seed, sight, preparing), sight
    return pair, tried[best], sight


def _candidates(pair: Worlds) -> list[int]:
    """Rows among which the most exposed record is looked for: the first of every machine that claims to be the worst.

    Of these the claim says nothing more, and a wrong claim may be wrong for one of them alone.
    """
    start, claimed = pair.start, pair.start.guarantee.per_machine
    worst = np.flatnonzero(claimed >= claimed.max() * (1 - TIE))[:CANDIDATES]
    if start.plan.secret and start.problem.table is not None:
        return records_used(start, worst[0])[:1]  # records are alike
    most = max(2, CANDIDATES // worst.size)
    return [row for machine in worst for row in records_used(start, machine)[:most]]


def _tried(pair: Worlds, rows: list[int], seed: int, sight: Sight) -> list[tuple[np.ndarray, np.ndarray]]:
    """How far each row, were it the canary, moves the views, and their middle, [columns] each: runs take turns."""
    turn = np.arange(chunk_of(pair.start)) % len(rows)
    labels = labels_of(pair.start.problem)
    chosen = np.eye(labels.size, dtype=bool)[np.array(rows)[turn]]
    others = np.delete(labels, pair.canary)[0]
    own = [labels_of(start.problem)[pair.canary] for start in pair.starts]
    both = [np.where(chosen, label, others) for label in own]
    one, other = (observed(pair.start, seed + PREPARED, 0, sight, labels)[0].values for labels in both)
    parts = [(one[turn == place], other[turn == place]) for place in range(len(rows))]
    return [((after - before).mean(axis=0), (after + before).mean(axis=0) / 2) for before, after in parts]


def measured(pair: Worlds, seed: int, sight: Sight, preparing: int | None = None) -> Law:
    """The law of the views, from `preparing` runs that are not counted; None is `PREPARING`."""
    preparing = PREPARING if preparing is None else preparing
    parts: list[list[Views]] = []
    for begin in range(0, preparing, chunk_of(pair.start)):
        null, other = (observed(start, seed + PREPARED, begin, sight) for start in pair.starts)
        parts.append([other[0], *null])
    other, null, *noise = (np.concatenate([part[place].values for part in parts]) for place in range(len(parts[0])))
    centred = [one - one.mean(axis=0) for one in noise]
    covariance = np.mean([one.T @ one / len(one) for one in centred], axis=0)
    return Law((other - null).mean(axis=0), (other + null).mean(axis=0) / 2, covariance, parts[0][0].columns)


def _shift(pair: Worlds, mixture: Mixture, seed: int, sight: Sight) -> float:
    """How far one occurrence of the canary moves a release from one world to the other, with its sign."""
    one, other = (observed(start, seed + PREPARED, 0, sight)[0] for start in pair.starts)
    moved = (other.values - one.values)[:, own_releases(one.columns, pair.machine)]
    least = np.abs(moved).max() / (2 * mixture.times.max())  # an echo of the canary in later releases is less
    return float(np.sign(moved.sum()) * np.abs(moved)[np.abs(moved) > least].min())


def _all_in_sight(pair: Worlds, law: Law, mixture: Mixture) -> bool:
    """Whether all of the canary's machine's releases are seen, of rounds in which it is present."""
    schedule, machine = pair.start.plan.schedule, pair.machine
    sent = np.count_nonzero(schedule.participants[schedule.present] == machine)
    seen = np.count_nonzero(own_releases(law.columns, machine))
    return bool(seen > 0 and seen * schedule.total[machine] == mixture.releases * sent)


def _attained(law: Law, guarantee: PrivacyGuarantee) -> float | None:
    """The μ that the canary reaches.

    Raises:
        Refusal: one that moves nothing, or much less than the claim allows.
    """
    if not np.abs(law.shift).max() > 0:
        raise Refusal("canary must move what the adversary sees, and it does not: another record, or more rounds")
    if guarantee.mu is None:
        return None
    attained = max(separation(law, whitened(law, seen)) for seen in visible(law))
    if attained < ATTAINED * guarantee.mu:
        raise Refusal(
            f"canary must attain at least {ATTAINED:.0%} of the sensitivity that is claimed, "
            f"got {attained / guarantee.mu:.0%} (μ = {attained:.3g} of {guarantee.mu:.3g})"
        )
    return attained
