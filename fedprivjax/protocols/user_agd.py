r"""AC-SA on batches of users: P_AGD of Cheu, Joseph, Mao & Peng (ICLR 2022), in four trust models.

Algorithm 4 (Lan 2012), for β-smooth losses, with b users of one record each in a round and g their private mean
gradient at w_md: α_t = 2/(t+2) and a step of (t+1)/(2(β+S)), where S grows with the noise. That is the update of
`protocols.acsa` with r = t+1 and v = β+S; the penalty that the paper's text lost is L_t·‖θ − θ_t‖², L_t = v/(t+1), and
half of it diverges even without noise. Losses that are not smooth are smoothed (`Moreau`, Theorem 4.7); strongly convex
ones are run in phases, each from the last one's output (Theorem 4.8). Behind a server that may be looked into this is
Algorithm 6.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_positive
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import acsa
from fedprivjax.protocols.acsa import AcceleratedState
from fedprivjax.protocols.noisy_minibatch_sgd import require_modulus, require_smooth
from fedprivjax.protocols.private_mean import UserMethod
from fedprivjax.protocols.round import RoundInputs
from fedprivjax.theory import cheu

SPREADS = ("optimal", "paper")


@struct.dataclass
class UserAGD(UserMethod):
    """Private AC-SA on batches of users, one record a message.

    Attributes:
        epsilon, noise_std, step_scale, clip, trust, levels, rounding, accounting, honest, vector_sum: as in `UserSGD`.
        step_size: 1/(β + S) of every phase; None takes the theory's.
        strong_convexity: modulus λ of the loss; positive, it makes a run of phases.
        spread: S, "optimal" for the explicit bound, or the "paper"'s.
        variance: bound on the mean squared error of a round's gradient; None is that of noise, rounding and sampling.
        schedule: every round's place in its phase, see `acsa.schedule_of`; `calibrate` fills it in.

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of `trust`: a record enters one message in
    each round that uses it.
    """

    strong_convexity: Any = 0.0
    schedule: Any = struct.field(default=None, metadata={"derived": True})
    spread: str = struct.field(pytree_node=False, default="optimal")
    variance: float | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        super().__post_init__()
        require_modulus(self.strong_convexity)
        require_choice("spread", self.spread, SPREADS)
        require_positive("variance", self.variance, optional=True)

    @property
    def traced(self):
        return replace(super().traced, spread="optimal", variance=None)

    def init(self, problem: Problem, size: Size, key) -> AcceleratedState:
        return acsa.initial(problem.start)

    def round(self, problem: Problem, state: AcceleratedState, inputs: RoundInputs, noise, key):
        step = self._next(state)
        g, info = self.private_mean.mean(problem, step.middle, inputs, noise, key)
        return acsa.advanced(state, step, g, problem.constraint), info

    def output(self, state: AcceleratedState):
        return state.average

    def query(self, state: AcceleratedState):
        """w_md, the point that users are asked about in the next round."""
        return self._next(state).middle

    def _next(self, state: AcceleratedState) -> acsa.Step:
        return acsa.next_step(state, self.schedule, 0.0, self.step_scale)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """1/(β + S) of the first phase."""
        return float(1 / self._phases(problem, plan)[0].v)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """As `Protocol.calibrate`, with the levels and noise bits of shuffled sums, and every round's place."""
        ready = super().calibrate(problem, plan, target)
        phases = ready._phases(problem, plan) if self.step_size is None else self._given_phases(plan.size)
        return replace(ready, schedule=acsa.schedule_of(phases, plan.size.rounds))

    def _given_phases(self, size: Size) -> list[acsa.Places]:
        """As long as the theory's, all with the step that is given."""
        users = size.rounds * size.per_round
        count = cheu.strong_phase_count(users) if self.strong_convexity else 1
        each = users // count // size.per_round
        if not each:
            raise Refusal(f"rounds must be at least {count}, one for each phase, got {size.rounds}")
        return [acsa.Places(each, 2, 1 / float(self.step_size))] * count

    def _phases(self, problem: Problem, plan: Plan) -> list[acsa.Places]:
        smoothness, distance, size = require_smooth(problem), problem.distance_to_optimum, plan.size
        if self.strong_convexity > smoothness:
            raise Refusal(
                f"strong_convexity must be at most the smoothness ({smoothness:g}), got {self.strong_convexity:g}"
            )
        if not np.isfinite(distance):
            raise Refusal("distance must be given, or a ball: the theory's step needs a distance to the optimum")
        if not self.strong_convexity:
            deviation = self._variance(problem, plan) ** 0.5
            spread = cheu.agd_spread(rounds=size.rounds, deviation=deviation, distance=distance, form=self.spread)
            return [acsa.Places(size.rounds, 2, smoothness + float(spread))]
        if self.variance is not None:
            raise Refusal(f"variance must be left out where strong_convexity is positive, got {self.variance:g}")
        phases = cheu.strong_phases(
            users=size.rounds * size.per_round,
            per_round=size.per_round,
            diameter=distance,
            lipschitz=self.private_mean.bound(problem),
            strong_convexity=float(self.strong_convexity),
            smoothness=smoothness,
            noise=self.noise_constant(problem, plan),
            sampling=self._samples(plan),
            form=self.spread,
        )
        return [acsa.Places(phase.rounds, 2, smoothness + phase.spread) for phase in phases]

    def _variance(self, problem: Problem, plan: Plan) -> float:
        if self.variance is not None:
            return float(self.variance)
        bound = self.private_mean.bound(problem)
        if not np.isfinite(bound):
            raise Refusal("variance must be given, or clip, for the loss has no finite gradient bound here")
        noise, per_round = self.noise_constant(problem, plan), plan.size.per_round
        return cheu.oracle_variance(per_round=per_round, lipschitz=bound, noise=noise, sampling=self._samples(plan))

    def _samples(self, plan: Plan) -> bool:
        """Whether a round's gradient has an error from its batch: not where all records are in every round."""
        return plan.size.per_round < plan.size.machines or not plan.repeats

    def best_per_round(self, problem: Problem, machines: int, target: Target) -> int:
        """b with the least bound of P_AGD, or after its last phase."""
        mean = self.private_mean
        known = {"lipschitz": mean.bound(problem), "smoothness": require_smooth(problem), "form": self.spread}
        noise, distance = mean.planned_constant(problem, target), problem.distance_to_optimum
        if self.strong_convexity:
            modulus = float(self.strong_convexity)
            return cheu.strong_per_round(
                users=machines, diameter=distance, strong_convexity=modulus, noise=noise, **known
            )
        return cheu.agd_scan(users=machines, distance=distance, noise=noise, **known).per_round

    def best_smoothing(self, problem: Problem, machines: int, target: Target, *, one_pass: bool) -> float | None:
        """β of the envelopes with the least bound of P_AGD, or of its last phase: one for all phases."""
        mean, distance = self.private_mean, problem.distance_to_optimum
        known: Any = {"lipschitz": mean.bound(problem), "form": self.spread}
        known["noise"] = mean.planned_constant(problem, target)
        if not self.strong_convexity:
            return cheu.smoothed_scan(users=machines, distance=distance, **known).smoothness
        known |= {"diameter": distance, "strong_convexity": float(self.strong_convexity)}
        return cheu.strong_phases(users=machines, **known)[-1].smoothness
