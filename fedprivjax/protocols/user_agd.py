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
from fedprivjax.noise import Mechanism
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import acsa
from fedprivjax.protocols.acsa import AcceleratedState
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.noisy_minibatch_sgd import require_modulus, require_smooth
from fedprivjax.protocols.releases import Release
from fedprivjax.protocols.releases.choice import check_release, noise_for, release_of
from fedprivjax.protocols.round import RoundInputs
from fedprivjax.theory import cheu

SPREADS = ("optimal", "paper")


@struct.dataclass
class UserAGD(Protocol):
    """Private AC-SA on batches of users, one record a message.

    Attributes:
        epsilon, noise_std, step_scale, clip, trust, levels, rounding, accounting, honest, sums: as in `UserSGD`.
        step_size: 1/(β + S) of every phase; None takes the theory's.
        strong_convexity: modulus λ of the loss; positive, it makes a run of phases.
        spread: S, "optimal" for the explicit bound, or the "paper"'s.
        variance: bound on the mean squared error of a round's gradient; None is that of noise, rounding and sampling.
        schedule: every round's place in its phase, see `acsa.schedule_of`; `calibrate` fills it in.

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of `trust`: a record enters one message in
    each round that uses it.
    """

    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    strong_convexity: Any = 0.0
    sums: Any = struct.field(default=None, metadata={"derived": True})
    schedule: Any = struct.field(default=None, metadata={"derived": True})
    trust: str = struct.field(pytree_node=False, default="shuffler")
    levels: int | None = struct.field(pytree_node=False, default=None)
    rounding: str = struct.field(pytree_node=False, default="averaged")
    accounting: str = struct.field(pytree_node=False, default="exact")
    honest: float = struct.field(pytree_node=False, default=1.0)
    spread: str = struct.field(pytree_node=False, default="optimal")
    variance: float | None = struct.field(pytree_node=False, default=None)

    several_epochs = True
    varying_cohorts = True

    def __post_init__(self):
        check_release(self)
        require_modulus(self.strong_convexity)
        require_choice("spread", self.spread, SPREADS)
        require_positive("variance", self.variance, optional=True)

    @property
    def release(self) -> Release:
        """Who adds which noise."""
        return release_of(self)

    @property
    def traced(self):
        host = {"epsilon": None, "levels": None, "rounding": "averaged", "accounting": "exact", "honest": 1.0}
        return replace(self, **host, spread="optimal", variance=None, strong_convexity=0.0)

    # ---- one run, traced

    def init(self, problem: Problem, size: Size, key) -> AcceleratedState:
        return acsa.initial(problem.start)

    def round(self, problem: Problem, state: AcceleratedState, inputs: RoundInputs, noise, key):
        step = self._next(state)
        g, info = self.release.mean(problem, step.middle, inputs, noise, key)
        return acsa.advanced(state, step, g, problem.constraint), info

    def output(self, state: AcceleratedState):
        return state.average

    def query(self, state: AcceleratedState):
        """w_md, the point that users are asked about in the next round."""
        return self._next(state).middle

    def internal(self, state: AcceleratedState):
        return state

    def messages(self, problem: Problem, state: AcceleratedState, inputs: RoundInputs, noise, key):
        return self.release.messages(problem, self.query(state), inputs, noise, key)

    def _next(self, state: AcceleratedState) -> acsa.Step:
        return acsa.next_step(state, self.schedule, 0.0, self.step_scale)

    # ---- noise and privacy

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.release.mechanism(plan, method)

    def noise(self, state: Any, drawn: Any, tape: Any) -> tuple[Any, Any]:
        return state, self.release.noise(self.noise_std, drawn, tape)

    def tape(self, plan: Plan, dimension: int, seed: int) -> Any:
        return self.release.tape(plan, dimension, seed)

    def view(self, observed):
        return self.release.view(observed)

    def costs(self, problem: Problem) -> dict[str, float]:
        return self.release.costs(problem, super().costs(problem))

    def event(self, problem: Problem, plan: Plan) -> RecordEvent:
        return self.release.event(problem, plan, self.noise_std)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """As `Protocol.calibrate`, with the levels and noise bits of shuffled sums, and every round's place."""
        noise_std = noise_for(self, problem, plan, target)
        step = 1.0 if self.step_size is None else self.step_size  # the phases below stand in for the default
        ready = replace(self, step_size=step).with_noise(problem, plan, noise_std, target)
        rounds = plan.size.rounds
        phases = ready._phases(problem, plan) if self.step_size is None else self._given_phases(plan.size)
        return replace(
            ready,
            sums=self.release.chosen(problem, plan, noise_std),
            step_size=float(1 / phases[0].v),
            schedule=acsa.schedule_of(phases, rounds),
        )

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
        if not np.isfinite(distance):
            raise Refusal("distance must be given, or a ball: the theory's step needs a distance to the optimum")
        if not self.strong_convexity:
            deviation = self._variance(problem, plan) ** 0.5
            spread = cheu.agd_spread(rounds=size.rounds, deviation=deviation, distance=distance, form=self.spread)
            return [acsa.Places(size.rounds, 2, smoothness + float(spread))]
        phases = cheu.strong_phases(
            users=size.rounds * size.per_round,
            per_round=size.per_round,
            diameter=distance,
            lipschitz=self.release.bound(problem),
            strong_convexity=float(self.strong_convexity),
            smoothness=smoothness,
            noise=self.noise_constant(problem, plan),
            form=self.spread,
        )
        return [acsa.Places(phase.rounds, 2, smoothness + phase.spread) for phase in phases]

    def _variance(self, problem: Problem, plan: Plan) -> float:
        if self.variance is not None:
            return float(self.variance)
        bound = self.release.bound(problem)
        if not np.isfinite(bound):
            raise Refusal("variance must be given, or clip, for the loss has no finite gradient bound here")
        sampled = plan.size.per_round < plan.size.machines or not plan.repeats
        noise = self.noise_constant(problem, plan)
        return cheu.oracle_variance(per_round=plan.size.per_round, lipschitz=bound, noise=noise, sampling=sampled)

    def noise_constant(self, problem: Problem, plan: Plan) -> float:
        """C of the bounds in `theory.cheu`: noise and rounding of a sum, all coordinates together, over the bound²."""
        return self.release.noise_constant(problem, plan, float(self.noise_std))

    def best_per_round(self, problem: Problem, machines: int, target: Target) -> int:
        """b with the least bound of P_AGD, or after its last phase."""
        known = {"lipschitz": self.release.bound(problem), "smoothness": require_smooth(problem), "form": self.spread}
        noise, distance = self.release.noise_constants(problem, target), problem.distance_to_optimum
        if self.strong_convexity:
            modulus = float(self.strong_convexity)
            return cheu.strong_per_round(
                users=machines, diameter=distance, strong_convexity=modulus, noise=noise, **known
            )
        return cheu.agd_scan(users=machines, distance=distance, noise=noise, **known).per_round

    def messages_in_memory(self, problem: Problem, size: Size) -> int:
        return size.per_round if self.trust == "shuffler" else 0
