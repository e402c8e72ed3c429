"""Search for the canary of an audit: the record that changes the adversary's view most, and the views' distribution."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from fedprivjax.auditing.canaries import labels_of
from fedprivjax.auditing.federation import LINEAR, Federation
from fedprivjax.auditing.neighbouring import Worlds, hides_uses, records_used, worlds
from fedprivjax.auditing.scores import ViewDistribution, clearest, separation
from fedprivjax.auditing.views import ViewOptions, Views, chunk_of, different, observed
from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.seen import costs_of
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.privacy.rounding import down, up

PREPARING = 8192  # runs per neighbouring dataset that fix weights and thresholds
PREPARED = 2**20  # offset of their seeds from those of the counted runs
CANDIDATES = 12  # largest number of records tried in the search for the most exposed one
TIE = 1e-6  # relative difference below which two machines' claims count as equal
CLEARER = 1.02  # separation, relative to that of another canary, from which a canary is preferred to it
ATTAINED = 0.5  # smallest fraction of the claimed μ that canaries must achieve


class NothingClaimed(Refusal):
    """Refusal of a protocol without a privacy guarantee, which no audit can refute."""


def require_claim(start: ReadyRun) -> None:
    """Raise Refusal if the run's protocol has no privacy guarantee."""
    if not start.guarantee.private:
        epsilon = start.guarantee.epsilon
        raise NothingClaimed(f"{start.protocol.name} must have a finite ε to be audited, got {epsilon}")


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
    protocol, federation: Federation, delta: float, seed: int, public: tuple[str, ...], most: float = inf
) -> Prepared:
    """Return prepared runs that differ in the most exposed record, the distribution of their views, and options.

    Parameters are in two arrays if the federation does not say otherwise and the method takes them.

    Args:
        most: largest number of runs of a dataset from which the distribution is estimated, if below `PREPARING`.
    """
    known = delta, seed, public, most
    if federation.leaves is not None or federation.clipping != "auto":
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
    protocol, federation: Federation, delta: float, seed: int, public: tuple[str, ...], most: float
) -> Prepared:
    """Return prepared runs that differ in the most exposed record, with its norms as the federation has them."""
    pair = worlds(protocol, federation, None, delta=delta, seed=seed)
    require_claim(pair.start)
    rows, options = _candidates(pair), ViewOptions(public, schedule=different(pair), bends=federation.loss != LINEAR)
    distribution = measured(pair, seed, options, most)
    if rows == [pair.canary]:
        return pair, distribution, options
    tried = [distribution._replace(shift=shift, middle=middle) for shift, middle in _tried(pair, rows, seed, options)]
    reached = [separation(one, clearest(one)) for one in tried]
    best = int(np.argmax(np.round(reached, 2)))  # the first among equals
    pair = worlds(protocol, federation, rows[best], delta=delta, seed=seed)
    if different(pair) != options.schedule:  # participation may depend on this record only
        options = replace(options, schedule=different(pair))
        return pair, measured(pair, seed, options, most), options
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


def measured(pair: Worlds, seed: int, options: ViewOptions, most: float = inf) -> ViewDistribution:
    """Estimate the distribution of an adversary's views on the two neighbouring datasets of an audit.

    A view is the vector of all numbers that the adversary sees in one run. The estimate uses 8192 runs per dataset
    (`PREPARING`), or at most `most`. Their seeds differ from those of the runs that are counted in the audit's bounds.

    Args:
        pair: prepared runs on the two neighbouring datasets.
        seed: seed of the audit.
        options: numbers that the adversary sees in addition to those of the protocol's trust model.
        most: largest number of runs per dataset.

    Returns:
        Mean difference between the datasets, midpoint of their means, and covariance of the noise.
    """
    parts: list[list[Views]] = []
    for begin in range(0, int(min(PREPARING, most)), chunk_of(pair.start)):
        null, other = (observed(start, seed + PREPARED, begin, options) for start in pair.starts)
        parts.append([other[0], *null])
    other, null, *noise = (np.concatenate([part[place].values for part in parts]) for place in range(len(parts[0])))
    centred = [one - one.mean(axis=0) for one in noise]
    covariance = np.mean([one.T @ one / len(one) for one in centred], axis=0)
    return ViewDistribution(
        (other - null).mean(axis=0), (other + null).mean(axis=0) / 2, covariance, parts[0][0].columns
    )


def require_attained(name: str, attained: float, claimed: float) -> None:
    """Raise Refusal if canaries achieve a μ that is much smaller than the claimed one."""
    if attained < ATTAINED * claimed:
        raise Refusal(
            f"{name} must achieve at least {ATTAINED:.0%} of the claimed sensitivity, "
            f"got {attained / claimed:.0%} (μ = {down(attained, 3)} of {up(claimed, 3)}). Use a longer canary, "
            f"or fewer rounds and machines per round, as in Federation(Uniform(4, 1), rounds=1, records=12). Or lower "
            f"the bound to the length of its message, or leave numbers that do not follow the gradient out of the "
            f"message"
        )
