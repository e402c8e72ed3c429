r"""AC-SA on batches of users: P_AGD of Cheu, Joseph, Mao & Peng (ICLR 2022), in four trust models.

Algorithm 4 (Lan 2012) is for β-smooth losses, with b users of one record each per round, and g their private mean
gradient at w_md. It has α_t = 2/(t+2) and a step of (t+1)/(2(β+S)), where S grows with the noise. That is the update of
`method.acsa` with r = t+1 and v = β+S. The penalty missing in the paper's text is L_t·‖θ − θ_t‖² with L_t = v/(t+1);
with half of it the method diverges even without noise. Non-smooth losses are smoothed (`Moreau`, Theorem 4.7). Strongly
convex losses are minimised in phases, each from the output of the previous one (Theorem 4.8). In the pan-private model
the method is Algorithm 6.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_flag, require_positive
from fedprivjax.method import acsa
from fedprivjax.method.acsa import required_distance
from fedprivjax.method.default_steps import binds
from fedprivjax.method.planning.drafts import one_pass
from fedprivjax.method.planning.uses import POPULATION, Bound, PlannedRun, Use, explicit, missing
from fedprivjax.method.private_mean import TRUSTS, gradient_bound, noise_constant, round_noise
from fedprivjax.method.server_step import optimizer_field
from fedprivjax.method.theory import Theory, TheoryChoices
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedSGD, require_plain_weights
from fedprivjax.protocols.noisy_minibatch_sgd import require_modulus, require_smooth
from fedprivjax.protocols.user_settings import UserSettings
from fedprivjax.theory import cheu

SPREADS = ("optimal", "paper")
SMOOTHINGS = ("given", "phases")


class Stage(NamedTuple):
    """Numbers of users and rounds in one phase of `UserAGD`.

    Attributes:
        per_round: number of users in each round of the phase.
        rounds: number of rounds of the phase.
    """

    per_round: int
    rounds: int


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return 1/(β + S) of the first phase."""
    return float(1 / protocol._places(problem, plan)[0].v)


def _choices(protocol: Any, problem: Problem) -> TheoryChoices:
    choices = {"per_round": _per_round, "cohorts": _cohorts, "smoothing": _envelopes}
    return TheoryChoices(**{name: partial(choice, protocol, problem) for name, choice in choices.items()})


def _per_round(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the b that minimises the bound of P_AGD, or the bound after its last phase."""
    noise = protocol.privacy.planned_constant(problem, target, gradient_bound(protocol, problem))
    if protocol.of_phases:
        phased = protocol._constants(problem, protocol._smoothness(problem))
        return cheu.strong_per_round(users=machines, noise=noise, **phased)
    known: dict[str, Any] = {"lipschitz": gradient_bound(protocol, problem), "smoothness": require_smooth(problem)}
    known |= {"distance": problem.distance_to_optimum, "form": protocol.spread, "sampling": protocol.sampling}
    return cheu.agd_scan(users=machines, noise=noise, **known).per_round


def _cohorts(protocol: Any, problem: Problem, machines: int, target: Target) -> tuple[int, ...]:
    """Return the cohort size of every round: in each phase the b that minimises its bound."""
    if not protocol.of_phases:
        raise Refusal("kind 'phases' must go with a positive strong_convexity")
    noise = protocol.privacy.planned_constant(problem, target, gradient_bound(protocol, problem))
    known = protocol._constants(problem, protocol._smoothness(problem))
    phases = cheu.strong_phases(users=machines, noise=noise, **known)
    return tuple(phase.per_round for phase in phases for _ in range(phase.rounds))


def _envelopes(protocol: Any, problem: Problem, machines: int, target: Target, one_pass: bool) -> float | None:
    """Return the β of the envelopes that minimises the bound of P_AGD, or β of its last phase."""
    noise = protocol.privacy.planned_constant(problem, target, gradient_bound(protocol, problem))
    if protocol.of_phases:
        phases = cheu.strong_phases(users=machines, noise=noise, **protocol._constants(problem, None))
        return phases[-1].smoothness
    bound, distance = gradient_bound(protocol, problem), problem.distance_to_optimum
    known: dict[str, Any] = {"lipschitz": bound, "form": protocol.spread, "sampling": protocol.sampling}
    return cheu.smoothed_scan(users=machines, distance=distance, noise=noise, **known).smoothness


def _uses(method: Any) -> tuple[Use, ...]:
    return (Use("", one_pass(method, *TRUSTS)),)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of P_AGD with S computed from the run's step."""
    s, size = run.setting, run.plan.size
    noise = noise_constant(protocol, run.problem, run.plan)
    known = {"rounds": size.rounds, "smoothness": s.smoothness, "distance": s.diameter, "gap": s.first_gap}
    if run.plan.repeats:
        return missing("P_AGD's theorem is for one pass")
    oracle = partial(cheu.oracle_variance, per_round=size.per_round, lipschitz=s.lipschitz)
    sampling, variance = oracle(noise=0.0), oracle(noise=noise)
    total = cheu.agd_bound(spread=1 / run.step - s.smoothness, variance=variance, **known)
    steps = cheu.agd_bound(spread=0.0, variance=0.0, **known)
    sampled = (total - steps) * sampling / variance
    terms = {"optimisation": steps, "sampling": sampled, "noise": total - steps - sampled}
    return explicit(POPULATION, "Cheu et al. 2022, Theorem 4.3 by Lan's proof", **terms)


@struct.dataclass(kw_only=True)
class UserAGD(UserSettings):
    """Accelerated SGD (AC-SA) on batches of users (machines with one record each).

    The method is P_AGD of Cheu et al. 2022. The server takes accelerated steps (Lan 2012) along the mean gradient of a
    round's users. The mean is made private as in `UserSGD`. For strongly convex losses, a run has several *phases*.
    Each phase restarts the acceleration at the output of the previous phase.

    Attributes:
        epsilon: target ε of every record, at the run's δ. With inf, the run has no noise.
        noise_std: σ, given instead of `epsilon`: in every trust model, the sum of n messages has noise of standard
            deviation σ·√n per coordinate.
        step_size: s: in round t of a phase, where t starts at 1, the step has size (t+1)·s/2. Default: s = 1/(β + S) of
            the theory, with the smoothness β and a number S ≥ 0 that grows with the noise (see `spread`). If `clip` is
            below the Lipschitz constant, and neither `strong_convexity` nor `variance` is given, the default is instead
            a rule of thumb without a theorem.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        trust: trust model: "shuffler" for one-bit messages through a shuffler, "none" for noise on every message,
            "server" for noise on the sum, or "pan-private" for a server whose memory an intruder may read once.
        levels: g, number of equal steps into which the range [−C, C] of a coordinate is divided for rounding, for trust
            = "shuffler". Without a `clip`, C is the Lipschitz constant. Default: ⌈max(2√n, 16√d)⌉ for n users in a
            round and d parameters, or ⌈max(2√n, √d, 4)⌉ with accounting = "paper".
        rounding: "averaged", "coupled" or "independent", for trust = "shuffler": bound on the effect of random rounding
            on ε. All three values of ε are valid, and "averaged" gives the smallest.
        accounting: for trust = "shuffler": "exact" for a proved ε, "gaussian-limit" for the ε of Gaussian noise with
            the same variance (an approximation without proof), or "paper" for the ε claimed by Cheu et al.
        honest: for trust = "shuffler": assumed fraction of a round's users that add their noise. The guarantee counts
            the noise of these users only.
        relative_privacy: one number for each user, proportional to the user's own target ε. The largest number belongs
            to the target `epsilon`. None gives all users the target `epsilon`.
        vector_sum: levels and noise bits of the shuffled sums; set by `calibrate`.
        noises: each user's noise divided by the largest noise; set by `calibrate`.
        strong_convexity: modulus of strong convexity of the loss. If it is positive, the run has phases.
        spread: rule for S in the default step size: "optimal" minimises the error bound, and "paper" is the formula of
            the paper. `fedprivjax.theory.cheu.agd_spread` computes both.
        variance: bound on the mean squared error of a round's mean gradient. None is the mean squared error of noise
            and rounding plus a bound for the sampling of users.
        phases: number of phases. None is ⌈log₂ log₂ n⌉ for n users (`fedprivjax.theory.cheu.strong_phase_count`).
        smoothing: strength of the Moreau envelopes that make a loss smooth. "given" uses the loss of the problem as it
            is. "phases" uses the strength that minimises the error bound of each phase, and needs a loss with envelopes
            (`Moreau`).
        server: optimiser of the server's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` in
            round t is (t+1)·s/2. The updates of an optimiser with its own learning rate are multiplied by (t+1)/2.
            `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient steps.
        sampling: False ignores the sampling error of a round's users in the choice of step sizes and numbers of users.
            Use it for data for which one point minimises the loss of every record.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the formula of the method,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.
        schedule: a row (t + 1, 1/s, b) for each round, shape [rounds, 3]; set by `calibrate`. Here t is the number of
            the round in its phase, from 1, and s is the step size of the phase. b is 1 in the first round of a phase,
            otherwise 0. The server takes no step in rounds after the last phase. Their rows have 0 instead of t + 1,
            and b = 1.
        strengths: strength of the Moreau envelopes in every round if smoothing = "phases", else None; set by
            `calibrate`.

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary that `trust` implies.

    Raises:
        Refusal: if a setting is invalid, or both `epsilon` and `noise_std` are given.

    >>> from fedprivjax import Ball, OnePass, datasets, from_dataset, ready
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> start = ready(UserAGD(epsilon=8.0, clip=1.6, trust="server"), problem, OnePass(1420, 142))
    >>> start.plan.size.rounds, round(start.guarantee.epsilon, 3)
    (10, 8.0)
    """

    strong_convexity: Any = 0.0
    schedule: Any = struct.field(default=None, metadata={"derived": True})
    strengths: Any = struct.field(default=None, metadata={"derived": True})
    spread: str = host_only("optimal")
    variance: float | None = host_only(None)
    phases: int | None = host_only(None, small=lambda _: None)
    smoothing: str = host_only("given")
    sampling: bool = host_only(True)
    server: Any = optimizer_field()

    theory = Theory(step=_step, bound=_bound, uses=_uses, choices=_choices)

    def __post_init__(self):
        super().__post_init__()
        require_modulus(self.strong_convexity)
        require_choice("spread", self.spread, SPREADS)
        require_positive("variance", self.variance, optional=True)
        require_choice("smoothing", self.smoothing, SMOOTHINGS)
        require_flag("sampling", self.sampling)
        if self.phases is not None:
            require_at_least("phases", self.phases, 1)
        if isinstance(self.strong_convexity, int | float) and not self.strong_convexity:
            for name, value in (("phases", self.phases), ("smoothing", self.smoothing)):
                if value not in (None, "given"):
                    raise Refusal(f"{name} must go with a positive strong_convexity, got {value!r}")

    @property
    def algorithm(self) -> AcceleratedSGD:
        """Algorithm of the method: AC-SA, accelerated stochastic approximation, with these settings."""
        settings = {"schedule": self.schedule, "strengths": self.strengths, "step_scale": self.step_scale}
        return replace(AcceleratedSGD(server=self.server), **settings)

    @property
    def of_phases(self) -> bool:
        return bool(self.strong_convexity)

    def check(self, problem: Problem, plan: Plan) -> None:
        super().check(problem, plan)
        require_plain_weights(self.server, self.of_phases)
        model: Any = problem.model
        if self.smoothing == "phases" and (not model.factored or model.loss.unsmoothed is model.loss):
            raise Refusal(f"loss must be an envelope (see Moreau) with smoothing = 'phases', got {model}")

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """Return a calibrated copy, with noise, default step, and the values that depend on the run's length.

        The latter are the division of the rounds into phases and the smoothing strength of each round.

        Args:
            problem: the optimisation problem.
            plan: plan of the run: who takes part in each round, and which records each message uses.
            target: privacy target, or a given noise.
        """
        ready = super().calibrate(problem, plan, target)
        plain = self.step_size is None and self.server is None
        places = ready._places(problem, plan) if plain else ready._given_places(plan)
        strengths = None
        if self.smoothing == "phases":
            lasting = zip(ready._strong(problem, plan), ready._stages(plan), strict=False)
            strengths = [phase.smoothness for phase, stage in lasting for _ in range(stage.rounds)]
            left = plan.size.rounds - len(strengths)
            strengths = np.array(strengths + strengths[-1:] * left, np.float32)
        known = replace(ready.known, algorithm=None)  # planned for one stage
        return replace(ready, schedule=acsa.schedule_of(places, plan.size.rounds), strengths=strengths, known=known)

    def _count(self, users: int) -> int:
        """Number of phases k for this number of users."""
        if not self.of_phases:
            return 1
        return cheu.strong_phase_count(users) if self.phases is None else self.phases

    def _stages(self, plan: Plan) -> list[Stage]:
        """Phases of the run: equally long for cohorts of one size, else recovered from the announced sizes."""
        size = plan.size
        if plan.schedule.announced:
            count = self._count(size.machines)
            return stages(plan.schedule.present.sum(axis=1), size.machines // count, count)
        users = size.rounds * size.per_round
        each = users // self._count(users) // size.per_round
        if not each:
            raise Refusal(f"rounds must be at least {self._count(users)}, one for each phase, got {size.rounds}")
        return [Stage(size.per_round, each)] * self._count(users)

    def _given_places(self, plan: Plan) -> list[acsa.Places]:
        """Phases of the theory's lengths, all with the given step."""
        return [acsa.Places(stage.rounds, 2, 1 / float(self.step_size)) for stage in self._stages(plan)]

    def _places(self, problem: Problem, plan: Plan) -> list[acsa.Places]:
        size = plan.size
        if not self.of_phases and self.variance is None and binds(problem, self.clip):
            clip, noise = gradient_bound(self, problem), round_noise(self, problem, plan)
            return [acsa.Places(size.rounds, 2, acsa.clipped_v(problem, clip, noise, size.rounds))]
        smoothness, distance = require_smooth(problem), required_distance(problem)
        if not self.of_phases:
            deviation = self._variance(problem, plan) ** 0.5
            spread = cheu.agd_spread(rounds=size.rounds, deviation=deviation, distance=distance, form=self.spread)
            return [acsa.Places(size.rounds, 2, smoothness + float(spread))]
        lasting = zip(self._strong(problem, plan), self._stages(plan), strict=False)
        return [acsa.Places(stage.rounds, 2, phase.smoothness + phase.spread) for phase, stage in lasting]

    def _strong(self, problem: Problem, plan: Plan) -> list[cheu.Phase]:
        """Phases of the theory with the plan's cohorts, including those that a short run does not reach."""
        smoothness = require_smooth(problem)
        if self.strong_convexity > smoothness:
            raise Refusal(
                f"strong_convexity must be at most the smoothness ({smoothness:g}), got {self.strong_convexity:g}"
            )
        if self.variance is not None:
            raise Refusal(f"variance must be left out if strong_convexity is positive, got {self.variance:g}")
        size, batches = plan.size, [stage.per_round for stage in self._stages(plan)]
        users = size.machines if plan.schedule.announced else size.rounds * size.per_round
        count = self._count(users)
        return cheu.strong_phases(
            users=users,
            per_round=batches + batches[-1:] * (count - len(batches)),
            noise=noise_constant(self, problem, plan),
            **self._constants(problem, self._smoothness(problem)) | {"phases": count, "sampling": self._samples(plan)},
        )

    def _constants(self, problem: Problem, smoothness: float | None) -> dict[str, Any]:
        """Arguments of the theory of phases, from the problem and the settings."""
        return {
            "diameter": required_distance(problem),
            "lipschitz": gradient_bound(self, problem),
            "strong_convexity": float(self.strong_convexity),
            "smoothness": smoothness,
            "phases": self.phases,
            "sampling": self.sampling,
            "form": self.spread,
        }

    def _smoothness(self, problem: Problem) -> float | None:
        """β of the problem, or None if every phase chooses β."""
        return None if self.smoothing == "phases" else require_smooth(problem)

    def _variance(self, problem: Problem, plan: Plan) -> float:
        if self.variance is not None:
            return float(self.variance)
        bound = gradient_bound(self, problem)
        if not np.isfinite(bound):
            raise acsa.without_bound("variance")
        noise, per_round = noise_constant(self, problem, plan), plan.size.per_round
        return cheu.oracle_variance(per_round=per_round, lipschitz=bound, noise=noise, sampling=self._samples(plan))

    def _samples(self, plan: Plan) -> bool:
        """True if steps include a sampling error: unless `sampling` is False or every round uses all records."""
        return self.sampling and (plan.size.per_round < plan.size.machines or not plan.repeats)


def stages(sizes: Sequence[int], each: int, count: int) -> list[Stage]:
    """Return the phases of a run with these cohorts. A phase ends if the size changes or its users are used up.

    Args:
        sizes: number of users in each round.
        each: largest number of users in a phase.
        count: largest number of phases; a run that is cut short has fewer.

    >>> stages([2, 2, 5, 5], each=5, count=3)
    [Stage(per_round=2, rounds=2), Stage(per_round=5, rounds=1), Stage(per_round=5, rounds=1)]
    """
    found: list[Stage] = []
    for size in map(int, sizes):
        last = found[-1] if found else Stage(0, 0)
        if size == last.per_round and size * (last.rounds + 1) <= each:
            found[-1] = Stage(size, last.rounds + 1)
        else:
            found.append(Stage(size, 1))
    if len(found) > count or max(sizes) > each:
        raise Refusal(f"cohorts must be those of {count} phases of {each} users each, got {len(found)} phases")
    return found
