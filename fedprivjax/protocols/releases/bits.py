"""The shuffled release: sums of vectors from one-bit messages (P_VEC of Cheu et al. 2022, see `protocols.sums`)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.noise import Mechanism
from fedprivjax.noise.binomial import BitNoise, LiteralBits, RoundedNormal, Tape, Taped, binomial_tape, require_drawable
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.seeds import binomial_stream
from fedprivjax.privacy.accountants.binomial import BinomialSums, bits, default_levels, gaussian_norm
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.minibatch_round import record_messages
from fedprivjax.protocols.releases.interface import Release, record_uses
from fedprivjax.protocols.round import RoundInputs, flat_rows
from fedprivjax.protocols.sums import VectorSum
from fedprivjax.protocols.views import Observed, Seen, shuffled_bits
from fedprivjax.theory import cheu

THEOREMS = {
    "exact": "Rényi divergence of the binomial mechanism over all shifts, after Cheu et al. 2022, Theorem 3.2",
    "gaussian-limit": "the Gaussian limit of the binomial mechanism: an approximation, not a proof",
    "paper": "Cheu et al. 2022, Theorem 3.2 with the constants of its proof",
}


@dataclass(frozen=True)
class ShuffledBits(Release):
    """Every gradient as one-bit messages with binomial noise, which a shuffler permutes.

    Attributes:
        sum: the sums' fixed-point levels and noise bits, as `calibrate` chose them.
        levels: g, where it is given; None is the accounting's own rule.
        rounding: how the rounding of two neighbouring records is coupled in the accounting.
        accounting: "exact", "gaussian-limit" or "paper".
        honest: share of a cohort that surely adds its noise.
    """

    sum: VectorSum | None = None
    levels: int | None = None
    rounding: str = "averaged"
    accounting: str = "exact"
    honest: float = 1.0

    # ---- traced

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        rows = flat_rows(problem, record_messages(problem, w, inputs, self.clip))
        present = jnp.ones(rows.shape[0]) if inputs.present is None else inputs.present
        users = jnp.sum(present)
        plain = present @ rows / users
        if noise is None:
            return problem.unravel(plain), {}
        if noise.keys is not None:
            estimate = present @ self._in_bits(rows, noise, key) / users
        else:
            sums: Any = self.sum
            estimate = sums.estimate(sums.rounded_sum(key, rows, present), 0, users) / users + noise.of_mean
        return problem.unravel(jnp.where(noise.scale > 0, estimate, plain)), {}

    def messages(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> Any:
        """The value of each participant's bits, [per_round, d]: what they add to the sum's estimate."""
        rows = flat_rows(problem, record_messages(problem, w, inputs, self.clip))
        if noise is None:
            return rows
        return jnp.where(noise.scale > 0, self._in_bits(rows, noise, key), rows)

    def _in_bits(self, rows, noise: BitNoise, key) -> jax.Array:
        sums: Any = self.sum
        ones = sums.rounded(key, rows) + noise.ones(sums.trials, sums.probability, rows.shape)
        return sums.unit * (ones - 0.5 * sums.levels - sums.trials * sums.probability)

    # ---- on the host

    def chosen(self, problem: Problem, plan: Plan, noise_std: float) -> VectorSum:
        """The sums' levels and noise bits for σ.

        Raises:
            Refusal: more levels in a sum than int32 counts.
        """
        levels = self._levels(problem, plan)
        if not noise_std:
            return VectorSum(1.0, levels, 1, 0.0)  # for its shape alone: a run without noise rounds nothing
        _, trials, probability = bits(noise_std / self.shift(problem), levels)
        chosen = VectorSum(self.bound(problem), levels, trials, probability)
        chosen.require_countable(plan.size.per_round)
        return chosen

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        require_choice("noise method", method, ("auto", "normal", "materialised"))
        messages = np.asarray(plan.schedule.present.sum(axis=1), np.float32)
        if method == "materialised":
            require_drawable(self.sum.trials if self.sum else 1)
            return LiteralBits(messages)
        return (RoundedNormal if method == "normal" else Taped)(messages)

    def noise(self, noise_std, drawn, tape) -> BitNoise:
        return drawn.noise(noise_std, self.sum, tape)

    def view(self, observed: Observed) -> Seen:
        return shuffled_bits(observed)

    def needed(self, problem: Problem, plan: Plan, target: Target) -> float:
        releases = int(record_uses(plan).max())
        ratio = self.accountant(problem, plan).ratio(target.worst_epsilon, releases, delta=target.stated_delta)
        return float(ratio * self.shift(problem))

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        sums: Any = self.sum
        if not sums.probability:
            return plain
        messages = sums.messages_per_user(problem.dimension)
        labelled = sums.bits_per_user(problem.dimension, shared_shuffler=True)
        return {"sent_messages": float(messages), "sent_bits": float(labelled)}

    def noise_constants(self, problem: Problem, target: Target) -> Callable[[Any], Any]:
        given = target.worst_epsilon, target.stated_delta, problem.dimension
        if self.accounting == "paper":
            paper = cheu.paper_noise_constant(*given)
            return lambda users: np.full(np.shape(users), paper)
        limit = cheu.gaussian_noise_constant(*given)

        def constant(users):
            n, dimension = np.asarray(users, float), problem.dimension
            levels = np.ceil(np.maximum(2 * np.sqrt(n), 16 * sqrt(dimension))) if self.levels is None else self.levels
            stretch = np.vectorize(gaussian_norm)(levels, dimension, self.rounding) / levels
            return limit * stretch**2 + cheu.rounding_constant(users=n, levels=levels, dimension=dimension)

        return constant

    def rounding_constant(self, problem: Problem, plan: Plan) -> float:
        levels = self._levels(problem, plan)
        return float(cheu.rounding_constant(users=plan.size.per_round, levels=levels, dimension=problem.dimension))

    def tape(self, plan: Plan, dimension: int, seed: int) -> Tape:
        """Every round's noise in levels, exactly binomial."""
        sums: Any = self.sum
        totals = sums.totals(plan.schedule.present.sum(axis=1))
        noise, remainder = binomial_tape(binomial_stream(seed), totals, float(sums.probability), dimension)
        return Tape(noise, np.asarray(remainder, np.float32))

    def accountant(self, problem: Problem, plan: Plan) -> BinomialSums:
        users = self._users(plan)
        return BinomialSums(users, problem.dimension, self._levels(problem, plan), self.rounding, self.accounting)

    def relative(self, plan: Plan) -> float:
        return 1.0

    def theorem(self, plan: Plan) -> str:
        return f"{THEOREMS[self.accounting]}; {'adaptive' if plan.repeats else 'parallel'} composition"

    def assumptions(self, plan: Plan) -> tuple[Assumption, ...]:
        return (Assumption("honest users", {"users": self._users(plan)}),)

    def _users(self, plan: Plan) -> int:
        users = floor(self.honest * plan.schedule.present.sum(axis=1).min() + 1e-9)
        if users < 1:
            raise Refusal(f"honest must leave at least one user in a round, got {self.honest}")
        return users

    def _levels(self, problem: Problem, plan: Plan) -> int:
        if self.levels is not None:
            return self.levels
        rule = "sqrt" if self.accounting == "paper" else "exact"
        return default_levels(plan.size.per_round, problem.dimension, rule)
