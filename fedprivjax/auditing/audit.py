"""Audit of a protocol: thousands of runs on two neighbouring datasets, compared with the claimed guarantee.

Runs are made in chunks: views are scored and discarded, and stored scores let a stopped audit resume.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.auditing.bounds import LowerBounds, lower_bounds
from fedprivjax.auditing.canary_search import PREPARED, for_replaced, prepared, require_attained
from fedprivjax.auditing.federation import Federation
from fedprivjax.auditing.neighbouring import Worlds, small_federation
from fedprivjax.auditing.scores import (
    Counting,
    Score,
    ViewDistribution,
    clearest,
    discrete,
    discriminant,
    fixed_scores,
    mixtures,
    moments,
    separation,
    sums,
)
from fedprivjax.auditing.views import MOST, ViewOptions, chunk_of, observed, own_releases
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, known_keywords, require_at_least, require_between
from fedprivjax.disk_cache import code_version, digest, read_chunk, write_chunk
from fedprivjax.noise import Randomised
from fedprivjax.plan.arguments import require_protocol
from fedprivjax.privacy.events import Mixture
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.rounding import down, up
from fedprivjax.problem.models import Clipping

LEVEL = 0.05  # error probability of a bound
VERDICT = 1e-4  # total error probability of a verdict
LEAST = 1000  # smallest number of runs
OTHER = 2**21  # offset of the second dataset's seeds

Progress = Callable[[int, int], None]

Chunk = dict[str, np.ndarray]  # "scores" [worlds, scores, runs], "totals" and "products" of their views by world


@dataclass(frozen=True)
class Found:
    """Lower bounds from one score (a test statistic that distinguishes two neighbouring datasets).

    Attributes:
        name: name of the score.
        bounds: lower bounds at 95% each.
        strict: lower bounds at a smaller error probability, by which the claim is refuted or not: the audit's `verdict`
            divided by the number of bounds.
    """

    name: str
    bounds: LowerBounds
    strict: LowerBounds


@dataclass(frozen=True, repr=False)
class Audit:
    """Result of `audit`: empirical lower bounds on a protocol's privacy loss, with its claimed guarantee.

    A score is a test statistic: one number per run, by which an attacker tells two neighbouring datasets apart. These
    datasets differ in one worst-case record, the canary.

    Attributes:
        protocol: name of the protocol.
        guarantee: claimed guarantee on the small federation of the audit. The canary belongs to the machine with the
            weakest guarantee.
        found: lower bounds from each score. The likelihood ratio is the first score.
        attained: largest μ of Gaussian differential privacy that an attack with this canary can show if the claim is
            right. None if the claim is an ε without a μ.
        verdict: upper bound on the probability that `refuted` names a score although the claim is right.
    """

    protocol: str
    guarantee: PrivacyGuarantee
    found: tuple[Found, ...]
    attained: float | None
    verdict: float

    @property
    def best(self) -> Found:
        """Name and lower bounds of the best score.

        A score is a test statistic, one number per run. If no score refutes the claim, the best score is the likelihood
        ratio, which is the most powerful test statistic if the claim is right. Otherwise, the best score is the
        refuting score with the largest bound.
        """
        refuting = [found for found in self.found if found.name in self.refuted]
        return max(refuting, key=lambda one: (one.strict.epsilon_lower, one.strict.mu_lower), default=self.found[0])

    @property
    def bounds(self) -> LowerBounds:
        """Lower bounds on ε and μ from the best test statistic (`best`), each with 95% confidence."""
        return self.best.bounds

    @property
    def epsilon_lower(self) -> float:
        """Lower bound on ε, at the δ of the audit, from the best test statistic (`best`), with 95% confidence.

        If the protocol claims a μ of Gaussian differential privacy, a lower bound on μ is converted to a lower bound on
        ε.
        """
        bounds = self.best.bounds
        return bounds.epsilon_lower if self.guarantee.mus is None else bounds.gdp_epsilon_lower

    @property
    def tightness(self) -> float:
        """Lower bound `epsilon_lower` divided by the claimed ε.

        It is close to 1 if the claim is tight and the attack is strong. It is well above 1 only if the claim is wrong.
        """
        return self.epsilon_lower / self.guarantee.epsilon

    @property
    def refuted(self) -> tuple[str, ...]:
        """Names of the test statistics (scores) whose lower bounds exceed the claim.

        The tuple is empty if the claim is not refuted. A right claim is refuted with probability at most `verdict`.
        """
        return tuple(found.name for found in self.found if found.strict.refute(self.guarantee))

    def __str__(self) -> str:
        claim, bounds = self.guarantee, self.best.bounds
        by_mu = "" if claim.mu is None else f", ε ≥ {down(bounds.gdp_epsilon_lower, 3)} by μ"
        verdict = f"refuted by {', '.join(self.refuted)}" if self.refuted else "not refuted"
        return (
            f"{self.protocol}, trust {claim.terms.against}: claimed ε = {up(claim.epsilon, 4)} at δ = {claim.delta:g} "
            f"on the audit's own small federation; proved at 95%: ε ≥ {down(bounds.epsilon_lower, 3)}{by_mu}, "
            f"by {bounds.runs[0]} runs on each of two datasets; {verdict}"
        )

    __repr__ = __str__

    def as_mapping(self) -> dict[str, Any]:
        """Return the audit as JSON values by name: claim, lower bounds by score, and scores that refute the claim.

        A score is a test statistic, one number per run.
        """
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
    clipping: Clipping | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Return lower bounds on a protocol's privacy loss, from an attack with a worst-case record (canary).

    The protocol runs equally often on two neighbouring datasets of a small federation. Test statistics (scores) of the
    adversary's view distinguish the two datasets.

    Args:
        protocol: a protocol with a privacy target or a `noise_std`.
        federation: a small federation. None takes a federation that suits the protocol.
        runs: number of runs on each of the two datasets. Additional runs before them determine the scores and their
            thresholds.
        delta: δ of the bounds on ε.
        seed: seed of all runs.
        verdict: upper bound on the probability that `Audit.refuted` names a score although the claim is right.
        public: names of metrics that the protocol reports in each round and that the adversary sees, too.
        loss: loss of the records, "linear" or "quadratic" (see `Federation`). None is the federation's loss.
        clipping: code that computes clipped gradients, "auto", "ghost" or "rows" (see `Federation`). None is the
            federation's setting.
        folder: folder in which scores of finished runs are stored, and from which a stopped audit resumes. None stores
            nothing.
        progress: callback, called with (finished runs, all runs).

    Raises:
        Refusal: if the settings cannot be run, or the canary changes messages by less than the claimed sensitivity.

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
    federation = federation if clipping is None else replace(federation, clipping=clipping)
    pair, distribution, options = prepared(protocol, federation, delta, seed, public, max(runs // 2, MOST))
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


# ---- runs


class Runs(NamedTuple):
    """Settings of the runs that an audit makes on two neighbouring datasets.

    Attributes:
        pair: the two prepared runs, one on each dataset.
        options: numbers that the adversary sees in addition to those of the protocol's trust model.
        seed: seed of all runs.
        folder: folder in which the results of finished groups of runs are stored, or None to store nothing.
        progress: callback, called with (finished runs, all runs), or None.
    """

    pair: Worlds
    options: ViewOptions
    seed: int
    folder: Path | None = None
    progress: Progress | None = None


def score_runs(
    runs: Runs, distribution: ViewDistribution, scores: list[Score], counting: Counting
) -> list[tuple[Score, tuple[np.ndarray, np.ndarray]]]:
    """Return every score with its values on both datasets.

    The last score is a discriminant fitted on the first half of the runs, with values of the second half.
    """
    size, half = chunk_of(runs.pair.start), counting.runs // 2
    _claim(runs, counting)

    def chunks(scores: list[Score], begin: int, end: int) -> list[Chunk]:
        done = []
        for start in range(begin, end, size):
            part = range(start, min(start + size, end))
            done.append(_chunk(runs, distribution, scores, part))
            if runs.progress is not None:
                runs.progress(part.stop, counting.runs)
        return done

    first = chunks(scores, 0, half)
    totals, products = (np.sum([chunk[name] for chunk in first], axis=0) for name in ("totals", "products"))
    worlds = (moments(*world, half, distribution.middle) for world in zip(totals, products, strict=True))
    fitted = discriminant(worlds, distribution.columns, counting)
    second = chunks([*scores, fitted], half, counting.runs)
    early, late = (np.concatenate([chunk["scores"] for chunk in done], axis=2) for done in (first, second))
    joined = np.concatenate([early, late[:, :-1]], axis=2)
    numbers = [(joined[0, place], joined[1, place]) for place in range(len(scores))]
    return list(zip([*scores, fitted], [*numbers, (late[0, -1], late[1, -1])], strict=True))


def _chunk(runs: Runs, distribution: ViewDistribution, scores: list[Score], part: range) -> Chunk:
    """Return the stored results of the runs `part`, or compute and store them."""
    file = None if runs.folder is None else runs.folder / f"{part.start:09d}-{part.stop:09d}.npz"
    found = None if file is None else read_chunk(file)
    if found is not None:
        return found
    starts = zip(runs.pair.starts, (runs.seed, runs.seed + OTHER), strict=True)
    views = [observed(start, seed, part.start, runs.options)[0].values[: len(part)] for start, seed in starts]
    totals, products = zip(*(sums(one, distribution.middle) for one in views), strict=True)
    numbers = np.array([[score.function(one) for score in scores] for one in views])
    found = {"scores": numbers, "totals": np.array(totals), "products": np.array(products)}
    if file is not None:
        write_chunk(file, found)
    return found


def _claim(runs: Runs, counting: Counting) -> None:
    """Reserve a folder for this audit, by a digest of its settings, of all input arrays of its runs, and of the code.

    Raises:
        Refusal: if the folder holds runs of another audit or of another version of the code.
    """
    if runs.folder is None:
        return
    start, file = runs.pair.start, runs.folder / "identity"
    clipping = getattr(start.problem.model, "clipping", None)
    settings = f"{start}|{runs.pair.canary}|{counting}|{runs.options}|{runs.seed}|{clipping}"
    numbers = start.arguments._replace(key=jax.random.key_data(start.key))
    identity = digest(code_version(), settings, *map(np.asarray, jax.tree.leaves(numbers)))
    if file.is_file() and file.read_text() != identity:
        raise Refusal(f"folder must be empty or of the same audit and code, got {runs.folder}")
    write_atomically(file, identity)
