"""Audit of one run with many canaries, on a problem of any size, by the attacker's correct guesses of their signs.

The first records of each machine are canaries. The gradient of a canary is its own direction times ±1, by a fair coin.
The attacker knows the directions, computes a weighted sum of a machine's messages (or of the server's points) along
each, and guesses the clearest signs. The number of correct guesses bounds ε and μ from below (`one_run_bounds`). The
first records of a machine influence most of its messages: under the noise schedule "uniform" with n messages, the k-th
record is in n − k + 1 of them and achieves μ·√((n − k + 1)/n).
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.auditing.canaries import direction, with_canaries
from fedprivjax.auditing.canary_search import for_replaced, require_attained, require_claim
from fedprivjax.auditing.neighbouring import records_used
from fedprivjax.auditing.one_run_bounds import OneRunBounds, expected_guesses, one_run_bounds
from fedprivjax.auditing.scores import best_weights
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import known_keywords, require_between, require_positive
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.transcript import replay, require_noisy_messages
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.participation import Participation
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.rounding import down, up
from fedprivjax.problem.problem import Problem

COINS = 1  # separates the coins' random stream from the run's
PATHS = 10  # noise-only directions per number in the measured covariance

REMEDY = "fedprivjax.audit (on the command line, leave out --one-run)"


def own_messages_along(directions, inputs, query, sent, steps):
    """Return a round's messages along their machine's canary directions, then along noise-only directions.

    Args:
        directions: canary directions [machines, each, d], and noise-only directions [others, d].
    """
    own, pure = directions
    return (), jnp.concatenate([jnp.einsum("mkd,md->mk", own[inputs.machine], sent), sent @ pure.T], axis=1)


def query_along(directions, inputs, query, sent, steps):
    """Return a round's query point along all directions, [directions, d]."""
    return directions @ query, ()


class Projections(NamedTuple):
    """Recorded numbers along each canary's direction, [machines, each, numbers], and noise only, [paths, numbers]."""

    own: np.ndarray
    pure: np.ndarray


@dataclass(frozen=True)
class OneRunAudit:
    """Result of `audit_one_run`: lower bounds on the privacy loss, with the claimed guarantee.

    The probability that a bound exceeds the true ε or μ is at most the error probability of the bound.

    Attributes:
        protocol: name of the protocol.
        guarantee: claimed guarantee.
        bounds: lower bounds on ε and μ with error probability `level`.
        strict: lower bounds on ε and μ with error probability `verdict`. If one of these bounds exceeds the claimed
            value, the claim is refuted.
        attained: estimate of the largest μ of Gaussian differential privacy that an attack with one canary (worst-case
            record) can show. If the estimate is much smaller than the claimed μ, the canaries are too weak to test the
            claim. For methods that normalise their steps, the estimate is only approximate.
    """

    protocol: str
    guarantee: PrivacyGuarantee
    bounds: OneRunBounds
    strict: OneRunBounds
    attained: float

    @property
    def refuted(self) -> bool:
        """True if the audit refutes the claimed guarantee.

        The attribute `strict` holds a lower bound on ε and a lower bound on μ. The claim is refuted if one of these
        bounds exceeds the claimed value. A right claim is refuted with probability at most `verdict`, an argument of
        `audit_one_run` (default 10⁻⁴).
        """
        return self.strict.refute(self.guarantee)

    def as_mapping(self) -> dict[str, Any]:
        """Return the audit as JSON values by name: claim, lower bounds, and whether the claim is refuted."""
        return {
            "protocol": self.protocol,
            "claimed": {"epsilon": self.guarantee.epsilon, "delta": self.guarantee.delta, "mu": self.guarantee.mu},
            "guarantee": json.loads(self.guarantee.to_json()),
            "attained_mu": self.attained,
            "bounds": vars(self.bounds),
            "strict": vars(self.strict),
            "refuted": self.refuted,
        }

    def __str__(self) -> str:
        b = self.bounds
        epsilon, mu = down(b.epsilon_lower, 3), down(b.mu_lower, 3)
        proved = f"ε ≥ {epsilon} at δ = {b.delta:g} for any mechanism; μ ≥ {mu} if it is GDP"
        return f"{self.protocol}: {b.right} of {b.guesses} guesses right ({b.canaries} canaries): {proved}\n" + (
            f"  claimed: ε = {up(self.guarantee.epsilon, 4)}; canaries reach μ = {self.attained:.3g}"
        )


@known_keywords
def audit_one_run(
    protocol,
    problem: Problem,
    participation: Participation,
    *,
    rounds: int | None = None,
    seed: int = 0,
    delta: float = 1e-5,
    each: int = 1,
    canary: float = 100.0,
    level: float = 0.05,
    verdict: float = 1e-4,
    guesses: int | None = None,
) -> OneRunAudit:
    """Attack one run on a problem of any size, and return lower bounds on the privacy loss.

    Every machine gets some worst-case records (canaries), each with a random sign. From the adversary's view of the
    run, an attacker guesses these signs.

    Args:
        protocol: a protocol with a privacy target or a `noise_std`. Its `trust` must be "server" or "none". With
            "server", the adversary sees the points at which machines compute gradients (query points). With "none", the
            adversary sees all messages of machines.
        problem: a problem whose examples are stored. Canaries replace the first records that each machine
            uses. If the choice of records is secret, they replace its first stored records.
        participation: participation scheme, which must be public.
        rounds: number of rounds. None uses all rounds for which machines have records.
        seed: seed of the run and of the random signs.
        delta: δ of the bound on ε.
        each: number of canaries per machine.
        canary: norm of a canary's gradient, divided by the clip. It has no effect on a method without a clip.
        level: error probability of each bound.
        verdict: upper bound on the probability that `OneRunAudit.refuted` is True although the claim is right.
        guesses: number of guessed signs. None takes the number that gives the largest expected bounds if the claim is
            right.

    Raises:
        Refusal: if the settings cannot be run, the adversary sees neither messages nor query points, or canaries change
            messages by less than the claimed sensitivity.

    Source: Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2024.

    >>> from fedprivjax import NoisySGD, Softmax, Uniform, linear_problem
    >>> problem = linear_problem(np.eye(400), np.arange(400) % 2, Softmax(2))
    >>> protocol = NoisySGD(mu=4.0, clip=1.0, step_size=0.1)
    >>> found = audit_one_run(protocol, problem, Uniform(machines=20, per_round=10), rounds=8)
    >>> 0 < found.bounds.mu_lower < found.guarantee.mu, found.refuted
    (True, False)
    """
    require_positive("canary", canary)
    require_between("level", level, 0, 1)
    require_between("verdict", verdict, 0, 1)
    options: dict[str, Any] = {"rounds": rounds, "seed": seed, "delta": delta, "metrics": ()}
    start = ready(protocol, problem, participation, noise_method="materialised", **options)
    require_claim(start)
    if start.plan.schedule.secret is not None:
        secret = start.plan.schedule.secret
        raise Refusal(f"participation must be public for an audit in one run, got {secret}. Use {REMEDY}")
    require_noisy_messages(start)
    private = privacy_of(start.protocol)
    if private.trust not in ("none", "server"):
        raise Refusal(f"trust must be 'none' or 'server' for an audit in one run, got {private.trust!r}")
    if start.guarantee.terms.adversary:
        got = start.protocol.adversary
        raise Refusal(f"adversary must be left out for an audit in one run, got {got}. Use {REMEDY}")
    _require_parameters(start, private.trust)
    rows = first_records(start, each)
    coins, others = np.where(_drawn_coins(rows.shape, seed) < 0.5, -1.0, 1.0)  # the attacker knows `others` only
    norm = problem.lipschitz if private.clip is None else canary * float(np.max(private.clip))
    planted, tried = (with_canaries(problem, rows.ravel(), signs.ravel() * norm) for signs in (coins, others))
    seen = _own_messages if private.trust == "none" else _points
    without_noise = replace(start, protocol=replace(start.protocol, noise_std=0.0))
    noisy, silent = seen(start, planted, each), seen(without_noise, tried, each)
    scores, attained = weigh(noisy, silent.own * others[..., None])
    guarantee = for_replaced(start.guarantee)
    claimed = attained if guarantee.mu is None else guarantee.mu
    require_attained("canaries", attained, claimed)
    served = None if guarantee.mu is not None else delta

    def proved(error: float) -> OneRunBounds:
        count = expected_guesses(claimed, rows.size, served, error) if guesses is None else guesses
        return one_run_bounds(scores, coins.ravel() > 0, count, delta, error)

    return OneRunAudit(start.protocol.name, guarantee, proved(level), proved(verdict), attained)


def _require_parameters(start: ReadyRun, trust: str) -> None:
    """Raise Refusal unless there are more parameters than numbers of a canary, whose noises then have full rank.

    Its numbers are projections of messages, which need the form of the parameters, or of steps between query points.
    """
    schedule, dimension = start.plan.schedule, start.problem.dimension
    sent = costs_of(start.protocol).message_dimension(start.problem)
    if trust == "none" and sent != dimension:
        raise Refusal(
            f"messages must have the {dimension} numbers of the parameters for an audit in one run if trust = 'none', "
            f"got {sent} of {start.protocol.name}. Use {REMEDY}"
        )
    numbers = int(schedule.total.min()) if trust == "none" else start.plan.size.rounds - 1
    if numbers < 1:
        raise Refusal(
            f"rounds must show every machine's canary for an audit in one run, got {start.plan.size.rounds}. Use more "
            f"rounds"
        )
    if dimension <= numbers:
        raise Refusal(
            f"problem must have more parameters than a canary has numbers for an audit in one run ({numbers} in "
            f"these rounds), got {dimension}. Use fewer rounds, or {REMEDY}"
        )


def first_records(start: ReadyRun, each: int) -> np.ndarray:
    """Return the first records that each machine uses; int, shape [machines, each].

    Raises:
        Refusal: if a machine uses fewer records.
    """
    own = [records_used(start, machine) for machine in range(start.plan.schedule.machines)]
    most = min(map(len, own))
    if not 1 <= each <= most:
        raise Refusal(f"each must be between 1 and {most}, the records that every machine uses, got {each}")
    return np.array([rows[:each] for rows in own])


def weigh(seen: Projections, signal: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the standardised best linear score of every canary, [canaries], and the μ of the machines' first canaries.

    Args:
        signal: noiseless contribution of a canary with sign +1 to each number, shape [machines, each, numbers].
    """
    centre = seen.pure.mean(axis=0)
    noise = seen.pure - centre
    covariance = noise.T @ noise / len(noise)
    shapes = signal.mean(axis=0)  # [each, numbers]
    weights = best_weights(covariance, shapes)
    deviations = np.sqrt(np.einsum("ki,ij,kj->k", weights, covariance, weights))
    scores = np.einsum("mkn,kn->mk", seen.own - centre, weights) / deviations
    reached = 2 * float((signal[:, 0] @ weights[0]).mean() / deviations[0])
    strength = np.einsum("kn,kn->k", shapes, weights) / deviations  # weight canaries by their clarity
    return (scores * strength).ravel(), reached


def _drawn_coins(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return uniform numbers for the run's coins and the attacker's coins, shape [2, machines, each]."""
    return np.random.default_rng([seed, COINS]).random((2, *shape))


def _own_messages(start: ReadyRun, problem: Problem, each: int) -> Projections:
    """Return the first messages of every machine, the same number for each."""
    schedule = start.plan.schedule
    sent = np.bincount(schedule.participants[schedule.present], minlength=schedule.machines)
    least = int(sent.min())
    others = ceil(PATHS * least / schedule.machines)
    every = _directions(schedule.machines * each + others, problem.dimension)
    directions = every[:-others].reshape(schedule.machines, each, -1), every[-others:]
    arguments = start.arguments._replace(problem=problem.traced)
    _, (_, seen, *_) = replay(arguments, start.plan.size, own_messages_along, directions)
    kept = schedule.present & (schedule.counts <= least)
    rows = np.zeros((schedule.machines, least, each + others))
    rows[schedule.participants[kept], schedule.counts[kept] - 1] = np.asarray(seen, float)[kept]
    rows = np.moveaxis(rows, 2, 1)
    return Projections(rows[:, :each], rows[:, each:].reshape(-1, least))


def _points(start: ReadyRun, problem: Problem, each: int) -> Projections:
    """Return the steps between successive query points."""
    machines, canaries = start.plan.size.machines, start.plan.size.machines * each
    directions = _directions(canaries + PATHS * start.plan.size.rounds, problem.dimension)
    arguments = start.arguments._replace(problem=problem.traced)
    _, (points, *_) = replay(arguments, start.plan.size, query_along, directions)
    steps = np.diff(np.asarray(points, float), axis=0).T
    return Projections(steps[:canaries].reshape(machines, each, -1), steps[canaries:])


@partial(jax.jit, static_argnums=(0, 1))
def _directions(count: int, dimension: int) -> jax.Array:
    """Return the first `count` canary directions, shape [count, dimension]."""
    return jax.lax.map(lambda number: direction(number, dimension), jnp.arange(count))
