"""Means in the shuffle model: vectors summed from one-bit messages (P_VEC of Cheu et al. 2022; `shuffled_sums`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.clipping import clipped, clipping, clipping_info
from fedprivjax.method.division import part_of
from fedprivjax.method.interface import slot_keys
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.method.minibatch_round import gradient_at
from fedprivjax.method.private_mean.interface import PrivateMean
from fedprivjax.method.round import RoundInputs, flat_rows, messages
from fedprivjax.method.shuffled_sums import CHUNK_NUMBERS, VectorSum, require_countable
from fedprivjax.noise import Mechanism
from fedprivjax.noise.binomial import (
    BitNoise,
    HostNoise,
    HostSampled,
    LiteralBits,
    RoundedNormal,
    product_variation,
    require_drawable,
    sample_binomial_noise,
)
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.seeds import binomial_stream
from fedprivjax.privacy.accountants.binomial.accountant import BinomialSums
from fedprivjax.privacy.accountants.binomial.parameters import bits, default_levels
from fedprivjax.privacy.accountants.binomial.vector import gaussian_norm
from fedprivjax.privacy.accountants.records import accounted
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.devices import added
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu

THEOREMS = {
    "exact": "Rényi divergence of the binomial mechanism over all shifts, after Cheu et al. 2022, Theorem 3.2",
    "gaussian-limit": "the Gaussian limit of the binomial mechanism: an approximation, not a proof",
    "paper": "Cheu et al. 2022, Theorem 3.2 with the constants of its proof",
}


@dataclass(frozen=True)
class BitMean(PrivateMean):
    """Mean of gradients that are sent as one-bit messages with binomial noise through a shuffler.

    Attributes:
        sums: fixed-point levels and noise bits of the sums, from `vector_sum`.
        levels: g, or None for the accounting's default rule.
        rounding: coupling of the rounding of two neighbouring records in the accounting.
        accounting: "exact", "gaussian-limit" or "paper".
        honest: fraction of a cohort that certainly adds its noise.
    """

    sums: Any = None
    levels: int | None = None
    rounding: str = "averaged"
    accounting: str = "exact"
    honest: float = 1.0

    # ---- traced

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        """The analyzer's estimate over the participants, or their exact mean if σ is 0."""
        present = inputs.filled

        def add(totals, chunk):
            (samples, machine, keys), present = chunk
            rows, counted = self._rows(problem, w, samples, machine, present)
            plain, ones, beyond = totals
            if noise is not None:
                ones = ones + present.astype(jnp.int32) @ self.sums.rounded_by(keys, rows)
            return (plain + present @ rows, ones, beyond + counted), ()

        dimension = problem.dimension
        zero = jnp.zeros(dimension), jnp.zeros(dimension, jnp.int32), jnp.zeros(2)
        slots = _one_sample(inputs), inputs.machine, slot_keys(key, present.size)
        sums = scan_in_chunks(add, zero, part_of(slots, present), max(1, CHUNK_NUMBERS // dimension))[0]
        plain, ones, beyond = added(sums)
        users = jnp.sum(present)
        info = {} if self.clip is None else clipping_info(beyond, users)
        if noise is None:
            return problem.unravel(plain / users), info
        if noise.key is not None:
            estimate = present @ self.messages(problem, w, inputs, noise, key)
        else:
            estimate = self.sums.estimate(ones, noise.levels, users, noise.remainder)
        return problem.unravel(jnp.where(noise.scale > 0, estimate, plain) / users), info

    def messages(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> Any:
        """Contribution of each participant's bits to the estimated sum, [per_round, d]."""
        present = inputs.filled
        rows, _ = self._rows(problem, w, _one_sample(inputs), inputs.machine, present)
        rows = present[:, None] * rows
        if noise is None:
            return rows
        ones = self.sums.rounded(key, rows) + noise.ones(self.sums.trials, self.sums.probability, rows.shape)
        values = self.sums.unit * (ones - 0.5 * self.sums.levels - self.sums.trials * self.sums.probability)
        return jnp.where(noise.scale > 0, present[:, None] * values, rows)

    def noise(self, noise_std, drawn, host_noise) -> BitNoise:
        """Noise of the round in levels."""
        return drawn.noise(noise_std, self.sums, host_noise)

    def _rows(self, problem: Problem, w, samples, machine, present):
        """Clipped gradients of the given slots, [slots, d], and their sums from `clipping`."""
        vectors = messages(problem, gradient_at(w), problem.take(samples, machine))
        counted = jnp.zeros(2) if self.clip is None else clipping(vectors, present, self.clip)
        rows = jax.vmap(lambda vector: vector.written_out())(clipped(vectors, self.clip))
        return jnp.where(present[:, None] > 0, flat_rows(problem, rows), 0.0), counted

    # ---- noise, views and costs, on the host

    def vector_sum(self, problem: Problem, plan: Plan, noise_std: float) -> VectorSum:
        """Levels and noise bits of the sums for σ.

        Raises:
            Refusal: if the levels of a sum overflow int32.
        """
        levels = self._levels(problem, plan.size.per_round)
        if not noise_std:
            return VectorSum(1.0, np.int32(levels), 1, 0.0)  # only its shape matters: nothing is rounded without noise
        _, trials, probability = bits(accounted(noise_std / self.shift(problem)), levels)
        chosen = VectorSum(self.bound(problem), np.int32(levels), trials, probability)
        require_countable(plan.size.per_round, levels)
        return chosen

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Exact binomials ("auto"), rounded normals ("normal"), or a key for each user's bits ("materialised")."""
        require_choice("noise method", method, ("auto", "normal", "materialised"))
        messages = np.asarray(plan.schedule.present.sum(axis=1), np.float32)
        self.check_method(method)
        if plan.schedule.announced and method != "auto":
            raise Refusal(f"noise method must be 'auto' for cohorts of several sizes, got {method!r}")
        if method == "materialised":
            return LiteralBits(messages)
        if method == "auto":
            return HostSampled(messages)
        if self.accounting != "gaussian-limit":
            raise Refusal(
                "noise method 'normal' must go with accounting = 'gaussian-limit', which states the approximation, "
                f"got {self.accounting!r}"
            )
        return RoundedNormal(messages)

    def check_method(self, method: str) -> None:
        if method == "materialised":
            require_drawable(self.sums.trials)

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> HostNoise:
        """Noise of every round in levels, with the exact binomial distribution."""
        totals = self._totals(plan, self.sums)
        return _host_noise(seed, tuple(totals.tolist()), float(self.sums.probability), dimension)

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """Costs with one shuffler for all coordinates, so every bit includes its coordinate's label.

        If cohorts have several sizes, they are the costs in the smallest cohort.
        """
        if not self.sums.probability:
            return plain
        messages = self.sums.messages_per_user(problem.dimension)
        labelled = self.sums.bits_per_user(problem.dimension, shared_shuffler=True)
        return plain | {"sent_messages": float(messages), "sent_bits": float(labelled)}

    # ---- privacy, on the host

    def accountant(self, problem: Problem, plan: Plan) -> BinomialSums:
        """Accountant for the honest users of the smallest cohort."""
        levels = self._levels(problem, plan.size.per_round)
        require_countable(plan.size.per_round, levels)
        return BinomialSums(self._users(plan), problem.dimension, levels, self.rounding, self.accounting)

    def hiding(self, plan: Plan) -> float:
        """1: the accountant already uses the number of users whose noise protects a record."""
        return 1.0

    def theorem(self, plan: Plan) -> str:
        return THEOREMS[self.accounting]

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float) -> tuple[Assumption, ...]:
        honest = Assumption("honest users", {"users": self._users(plan)})
        if self.accounting != "gaussian-limit" or not noise_std:
            return (honest,)
        sums = self.vector_sum(problem, plan, noise_std)
        totals = self._totals(plan, sums)
        distance = product_variation(totals, float(sums.probability), problem.dimension)
        return honest, Assumption("rounded normals", {"distance": distance})

    def min_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        accountant, releases = self.accountant(problem, plan), int(plan.uses.max())
        return accountant.ratio(target.worst_epsilon, releases, delta=target.stated_delta) * self.shift(problem)

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
        """Cohort size, or the smallest one if sizes are announced: users of larger cohorts add fewer noise bits."""
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
def _host_noise(seed: int, totals: tuple[int, ...], probability: float, dimension: int) -> HostNoise:
    noise, remainder = sample_binomial_noise(binomial_stream(seed), np.array(totals), probability, dimension)
    return HostNoise(noise, np.asarray(remainder, np.float32))


def _one_sample(inputs: RoundInputs):
    """Return the sample of each slot, [per_round]."""
    return inputs.samples if inputs.weights is None else inputs.samples[:, 0]
