"""Means in the shuffle model: vectors summed from one-bit messages (P_VEC of Cheu et al. 2022; `shuffled_sums`)."""

from collections.abc import Callable
from functools import lru_cache
from math import floor
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_number
from fedprivjax.method.algorithm import Reads
from fedprivjax.method.clipping import clipped, clipping, clipping_info
from fedprivjax.method.division import part_of
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.local_rounds import SERVER
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.method.private_mean import PrivateMean, sensitivity
from fedprivjax.method.release import Limits, RunFacts
from fedprivjax.method.round import Machine, RoundInputs, flat_rows, messages, slot_keys
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.method.shuffled_sums import CHUNK_NUMBERS, VectorSum, require_countable
from fedprivjax.noise import Mechanism, binomial
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.seeds import binomial_stream
from fedprivjax.privacy.accountants.binomial.accountant import ACCOUNTINGS, BinomialSums
from fedprivjax.privacy.accountants.binomial.paper import bits, default_levels
from fedprivjax.privacy.accountants.binomial.vector import ROUNDINGS, gaussian_norm
from fedprivjax.privacy.accountants.records import accounted
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.privacy.views import FullView, View
from fedprivjax.problem.devices import added
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu

THEOREMS = {
    "exact": "Rényi divergence of the binomial mechanism over all shifts, after Cheu et al. 2022, Theorem 3.2",
    "gaussian-limit": "the Gaussian limit of the binomial mechanism: an approximation, not a proof",
    "paper": "Cheu et al. 2022, Theorem 3.2 with the constants of its proof",
}

OF_BITS = {"levels": None, "rounding": "averaged", "accounting": "exact", "honest": 1.0}


@final
@struct.dataclass(kw_only=True)
class BitMean(PrivateMean):
    """Binomial noise on messages of users (machines with one record each), sent as bits through a shuffler.

    Each user rounds the coordinates of its message at random to integer levels, and sends them as bits, together with
    random noise bits. A shuffler hides which user sent which bit.

    Attributes:
        clip: C, bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, only runs with
            noise clip messages, to the bound that the loss or the algorithm states.
        levels: g, number of steps into which the range [−C, C] of a coordinate is divided for rounding. Default:
            ⌈max(2√n, 16√d)⌉ for n users in a round and d parameters, or ⌈max(2√n, √d, 4)⌉ with accounting = "paper".
        rounding: "averaged", "coupled" or "independent": bound on the effect of random rounding on ε. All three bounds
            are valid, and "averaged" gives the smallest ε.
        accounting: "exact" for a proved ε, or "paper" for the ε that Cheu et al. 2022 claim. "gaussian-limit" is the ε
            of Gaussian noise with the same variance, an approximation without proof.
        honest: fraction of a round's users who are assumed to add their noise bits. The guarantee counts the noise of
            these users only.
        vector_sum: the `VectorSum` of the run, which has the numbers of levels and of noise bits; set by calibration.

    **Privacy**: (ε, δ)-DP for replacing one record, against an adversary who sees a round's bits without their senders.
    The guarantee holds for any algorithm whose `reads` is `Mean()`.

    Raises:
        Refusal: if a setting is invalid.

    >>> from fedprivjax import Protocol
    >>> from fedprivjax.protocols.noisy_sgd import SGD
    >>> print(Protocol(SGD(), privacy=BitMean(clip=1.0), epsilon=2.0, step_size=0.1).privacy)
    BitMean(clip = 1)
    """

    clip: Any = None
    vector_sum: Any = struct.field(default=None, metadata={"derived": True})
    levels: int | None = host_only(None)
    rounding: str = host_only("averaged")
    accounting: str = host_only("exact")
    honest: float = host_only(1.0)

    trust = "shuffler"

    def __post_init__(self):
        require_clip("clip", self.clip)
        require_choice("rounding", self.rounding, ROUNDINGS)
        require_choice("accounting", self.accounting, ACCOUNTINGS)
        if self.levels is not None:
            require_at_least("levels", self.levels, 1)
        require_number("honest", self.honest)
        if not 0 < self.honest <= 1:
            raise Refusal(f"honest must be above 0 and at most 1, got {self.honest}")

    # ---- traced

    def mean(self, problem: Problem, machine: Machine, inputs: RoundInputs, noise, key, bound) -> tuple[Any, dict]:
        """Return the mean of the participants' messages, estimated from their bits, and clipping metrics.

        In a run without noise, it is the exact mean of the clipped messages.

        Args:
            problem: the optimisation problem.
            machine: function that computes one record's message, such as `lambda gradient: 2 * gradient(w)`.
            inputs: the round's participants and their records.
            noise: the round's noise bits, from `round_noise`, or None in a run without noise.
            key: random key of the round, for the random rounding.
            bound: bound on the L2 norm to which each message is clipped, or None.
        """
        present = inputs.filled

        def add(totals, chunk):
            (samples, machines, keys), present = chunk
            rows, counted = _rows(problem, machine, (samples, machines), present, bound)
            plain, ones, beyond = totals
            if noise is not None:
                ones = ones + present.astype(jnp.int32) @ self.vector_sum.rounded_by(keys, rows)
            return (plain + present @ rows, ones, beyond + counted), ()

        dimension = problem.dimension
        zero = jnp.zeros(dimension), jnp.zeros(dimension, jnp.int32), jnp.zeros(2)
        slots = _one_sample(inputs), inputs.machine, slot_keys(key, present.size)
        sums = scan_in_chunks(add, zero, part_of(slots, present), max(1, CHUNK_NUMBERS // dimension))[0]
        plain, ones, beyond = added(sums)
        users = jnp.sum(present)
        info = {} if bound is None else clipping_info(beyond, users)
        if noise is None:
            return problem.unravel(plain / users), info
        if noise.key is not None:
            estimate = present @ self._contributions(problem, machine, inputs, noise, key, bound)
        else:
            estimate = self.vector_sum.estimate(ones, noise.levels, users, noise.remainder)
        return problem.unravel(jnp.where(noise.scale > 0, estimate, plain) / users), info

    def messages(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, limits: Limits, key: Any
    ) -> Any:
        """Return what each participant's bits contribute to the estimated sum of the messages, [per_round, d].

        Args:
            problem: the optimisation problem.
            message: message of one record.
            inputs: the round's participants and their records.
            noise: the round's noise bits, or None in a run without noise.
            limits: `limits.reads` is the value that the server reads, such as `Mean()` for the mean of messages.
                `limits.bound` is the bound on a message's norm that the loss or the algorithm states, or None.
            key: random key of the round, for the random rounding.
        """
        bound = self.enforced(limits, private=noise is not None)
        return self._contributions(problem, of_record(message), inputs, noise, key, bound)

    def _contributions(self, problem: Problem, machine: Machine, inputs: RoundInputs, noise, key, bound) -> Any:
        present, sums = inputs.filled, self.vector_sum
        rows, _ = _rows(problem, machine, (_one_sample(inputs), inputs.machine), present, bound)
        rows = present[:, None] * rows
        if noise is None:
            return rows
        ones = sums.rounded(key, rows) + noise.ones(sums.trials, sums.probability, rows.shape)
        values = sums.unit * (ones - 0.5 * sums.levels - sums.trials * sums.probability)
        return jnp.where(noise.scale > 0, present[:, None] * values, rows)

    def round_noise(self, state: Any, drawn: Any, noise_std: Any, reads: Reads, host_noise: Any) -> tuple[Any, Any]:
        """Return the given state, and the round's noise.

        In each coordinate, the noise is the number of noise bits that are 1, minus its expectation. One bit corresponds
        to one of the integer levels to which users round their coordinates.

        Args:
            state: returned unchanged.
            drawn: the mechanism's sample for the round.
            noise_std: calibrated noise σ.
            reads: value that the server reads, always `Mean()`: the mean of the round's messages.
            host_noise: the round's binomial noise if it was sampled on the host before the run, otherwise None.
        """
        return state, drawn.noise(noise_std, self.vector_sum, host_noise)

    def server_key(self, key: Any) -> Any:
        """Return a random key for the server's own random choices in a round.

        It differs from all keys with which users' messages are rounded.
        """
        return jax.random.fold_in(key, SERVER)

    # ---- on the host

    def of_noise(self, facts: RunFacts, noise_std: float, target: Target) -> dict[str, Any]:
        """Return `{"vector_sum": s}`, where the `VectorSum` s states which bits users send in the run.

        It holds the number of levels to which users round a coordinate, and the number of random noise bits that they
        add. The noise bits of one user have the standard deviation `noise_std`, in units of the message.

        Args:
            facts: facts of the run, such as the number of users in a round.
            noise_std: σ, calibrated standard deviation of one user's noise in a coordinate.
            target: privacy target, or a given noise.

        Raises:
            Refusal: if the noise was given and the accounting does not cover it.
        """
        if target.given_noise and self.accounting == "paper" and target.delta is not None:
            self.event(facts, noise_std).epsilon(target.delta)
        return {"vector_sum": self._sums(facts.problem, facts.plan, noise_std, facts.bound.norm)}

    def _sums(self, problem: Problem, plan: Plan, noise_std: float, bound: float) -> VectorSum:
        """Levels and noise bits of the sums for σ.

        Raises:
            Refusal: if the levels of a sum overflow int32.
        """
        levels = self._levels(problem, plan.size.per_round)
        if not noise_std:
            return VectorSum(1.0, np.int32(levels), 1, 0.0)  # only its shape matters: nothing is rounded without noise
        _, trials, probability = bits(accounted(noise_std / sensitivity(bound)), levels)
        chosen = VectorSum(bound, np.int32(levels), trials, probability)
        require_countable(plan.size.per_round, levels)
        return chosen

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise.

        Args:
            facts: facts of the run, such as the participation schedule.
            method: way of sampling: "auto" for exact binomial numbers, "normal" for rounded normal numbers (an
                approximation), or "materialised" for every bit of every user.
        """
        self._require_mean(facts.reads)
        require_choice("noise method", method, ("auto", "normal", "materialised"))
        schedule = facts.plan.schedule
        messages = np.asarray(schedule.present.sum(axis=1), np.float32)
        self.check_method(method)
        if schedule.announced and method != "auto":
            raise Refusal(f"noise method must be 'auto' for cohorts of several sizes, got {method!r}")
        if method == "materialised":
            return binomial.LiteralBits(messages)
        if method == "auto":
            return binomial.HostSampled(messages)
        if self.accounting != "gaussian-limit":
            raise Refusal(
                "noise method 'normal' must go with accounting = 'gaussian-limit', which states the approximation, "
                f"got {self.accounting!r}"
            )
        return binomial.RoundedNormal(messages)

    def check_method(self, method: str) -> None:
        if method == "materialised":
            binomial.require_drawable(self.vector_sum.trials)

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> binomial.HostNoise:
        """Return the noise of every round, sampled on the host from its exact binomial distribution.

        In a coordinate of a round's sum, the noise is Z − E[Z], where Z is the number of the users' noise bits that are
        1. The result holds the integers Z − ⌊E[Z]⌋, [rounds, d], and the remainders E[Z] − ⌊E[Z]⌋, [rounds].

        Args:
            plan: plan of the run, which gives the number of participants of each round.
            dimension: d, number of coordinates of a message.
            seed: seed of the run.
        """
        totals = self._totals(plan, self.vector_sum)
        return _host_noise(seed, tuple(totals.tolist()), float(self.vector_sum.probability), dimension)

    def view(self, full: FullView) -> View:
        return View(full.queries, full.messages.sum(axis=1))  # shuffled bits reveal their sum only

    def vectors_in_memory(self, problem: Problem, size: Size) -> int:
        return min(size.per_round, max(1, CHUNK_NUMBERS // problem.dimension))

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """Return the costs of one user in one round, by name.

        One shuffler is used for all coordinates. Every bit is therefore sent with the label of its coordinate. If
        rounds have different numbers of users, the costs are those of the round with the fewest users.

        Args:
            problem: the optimisation problem.
            plain: costs of one message of float32 numbers, which are returned in a run without noise.
        """
        if not self.vector_sum.probability:
            return plain
        messages = self.vector_sum.messages_per_user(problem.dimension)
        labelled = self.vector_sum.bits_per_user(problem.dimension, shared_shuffler=True)
        return plain | {"sent_messages": float(messages), "sent_bits": float(labelled)}

    def accountant(self, problem: Problem, plan: Plan) -> BinomialSums:
        """Accountant of the binomial noise that the honest users add in the round with the fewest users."""
        levels = self._levels(problem, plan.size.per_round)
        require_countable(plan.size.per_round, levels)
        return BinomialSums(self._users(plan), problem.dimension, levels, self.rounding, self.accounting)

    def hiding(self, plan: Plan) -> float:
        """Number by which `noise_std` is multiplied before it is given to the accountant: always 1.

        `noise_std` is the standard deviation of one user's noise bits in a coordinate. The noise bits of all honest
        users of a round protect a record. The accountant receives the number of honest users separately, so no factor
        is needed here.

        Args:
            plan: not used.
        """
        return 1.0

    def theorem(self) -> str:
        return THEOREMS[self.accounting]

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float, bound: float) -> tuple[Assumption, ...]:
        honest = Assumption("honest users", {"users": self._users(plan)})
        if self.accounting != "gaussian-limit" or not noise_std:
            return (honest,)
        sums = self._sums(problem, plan, noise_std, bound)
        totals = self._totals(plan, sums)
        distance = binomial.product_variation(totals, float(sums.probability), problem.dimension)
        return honest, Assumption("rounded normals", {"distance": distance})

    def needed_noise(self, facts: RunFacts, target: Target) -> float:
        """Return the smallest `noise_std` that meets a target."""
        accountant, releases = self.accountant(facts.problem, facts.plan), int(facts.plan.uses.max())
        ratio = accountant.ratio(target.worst_epsilon, releases, delta=target.stated_delta)
        return ratio * sensitivity(facts.bound.norm)

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        dimension = problem.dimension
        if self.accounting == "paper":
            paper = cheu.paper_noise_constant(epsilon, delta, dimension) / self.honest
            return lambda users: np.full(np.shape(users), paper)
        limit = cheu.gaussian_noise_constant(epsilon, delta, dimension) / self.honest

        def constant(users):
            levels = self._planned_levels(problem, users)
            return limit * (np.vectorize(gaussian_norm)(levels, dimension, self.rounding) / levels) ** 2

        return constant

    def rounding_constant(self, problem: Problem, users: Any) -> Any:
        levels = self._planned_levels(problem, users)
        return cheu.rounding_constant(users=users, levels=levels, dimension=problem.dimension)

    def noisy_users(self, plan: Plan) -> int:
        """Number n such that the noise in a coordinate of a round's sum has variance n·σ² (σ = `noise_std`).

        It is the number of users in a round. If the number varies, and was announced before the run, it is the smallest
        number. In rounds with more users, every user adds fewer noise bits, so that the variance stays about the same.

        Args:
            plan: plan of the run, which gives the number of users of each round.
        """
        return int(plan.schedule.present.sum(axis=1).min()) if plan.schedule.announced else plan.size.per_round

    def _totals(self, plan: Plan, sums: VectorSum) -> np.ndarray:
        """Number of trials in every round, int64 [rounds].

        If a cohort's size u_t is announced, each user adds ⌈q·u/u_t⌉ bits, with u the smallest size (both sizes count
        honest users only). No sum has fewer trials than the accountant assumes, and additional trials are
        post-processing.
        """
        users = plan.schedule.present.sum(axis=1)
        if not plan.schedule.announced:
            return sums.totals(users)
        honest = np.floor(self.honest * users + 1e-9).astype(np.int64)
        return users * -(-int(sums.trials) * self._users(plan) // honest)

    def _users(self, plan: Plan) -> int:
        users = floor(self.honest * plan.schedule.present.sum(axis=1).min() + 1e-9)
        if users < 1:
            raise Refusal(f"honest must leave at least one user in a round, got {self.honest}")
        return users

    def _planned_levels(self, problem: Problem, users: Any) -> np.ndarray:
        """Levels of sums over the given numbers of users, of the shape of `users`."""
        return np.vectorize(lambda n: self._levels(problem, int(n)))(users)

    def _levels(self, problem: Problem, users: int) -> int:
        if self.levels is not None:
            return self.levels
        return default_levels(users, problem.dimension, "sqrt" if self.accounting == "paper" else "exact")


@lru_cache(maxsize=2)  # configurations that differ only in their steps share the noise
def _host_noise(seed: int, totals: tuple[int, ...], probability: float, dimension: int) -> binomial.HostNoise:
    noise, remainder = binomial.sample_binomial_noise(binomial_stream(seed), np.array(totals), probability, dimension)
    return binomial.HostNoise(noise, np.asarray(remainder, np.float32))


def _one_sample(inputs: RoundInputs):
    """Return the sample of each slot, [per_round]."""
    return inputs.samples if inputs.weights is None else inputs.samples[:, 0]


def _rows(problem: Problem, machine: Machine, slots: tuple, present, bound):
    """Return bounded messages of the slots' samples and machines, [slots, d], and their sums from `clipping`."""
    vectors = messages(problem, machine, problem.take(*slots))
    counted = jnp.zeros(2) if bound is None else clipping(vectors, present, bound)
    rows = jax.vmap(lambda vector: vector.written_out())(clipped(vectors, bound))
    return jnp.where(present[:, None] > 0, flat_rows(problem, rows), 0.0), counted
