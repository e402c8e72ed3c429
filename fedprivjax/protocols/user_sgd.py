r"""Projected SGD on batches of users: P_SGD and P_GD of Cheu, Joseph, Mao & Peng (ICLR 2022), in four trust models.

With b users of one record each in a round,

    g = (private sum of ∇f(w_t; x_i) over the batch)/b
    w_{t+1} = Π_W(w_t − η·g)                                    output (w_0 + … + w_{T−1})/T

P_SGD (Algorithm 3) uses every user once, in batches: `OnePass` participation. P_GD (Algorithm 5) uses all users in
every round: `Full`, with `order="cyclic"`. The paper's listings have w + ηg, where g estimates the gradient.
"""

from collections.abc import Iterator
from functools import partial
from math import inf, isfinite
from typing import Any

from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.default_steps import binds, plain_clipped_step
from fedprivjax.method.planning.bounds import POPULATION, Bound, PlannedRun, explicit
from fedprivjax.method.planning.drafts import capped, one_pass, theory_rounds
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.method.private_mean import TRUSTS, UserMethod
from fedprivjax.method.theory import Theory, TheoryChoices
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.theory import cheu


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the step of Theorem 4.1's proof, of Theorem 4.9's proof if records are reused, or of clipped gradients."""
    known = _constants(protocol, problem)
    if not (isfinite(known["distance"]) and isfinite(known["lipschitz"])):
        return inf
    noise, size = protocol.noise_constant(problem, plan), plan.size
    if binds(problem, protocol.clip):
        of_round = protocol.round_noise(problem, plan)
        return plain_clipped_step(problem, size.rounds, known["lipschitz"], of_round, averaged=True)
    if not plan.repeats:
        return float(cheu.sgd_step(rounds=size.rounds, per_round=size.per_round, noise=noise, **known))
    smooth = _smooth(problem)
    return float(cheu.gd_step(users=size.per_round, rounds=size.rounds, round_noise=noise, **smooth, **known))


def _choices(protocol: Any, problem: Problem) -> TheoryChoices:
    choices = {"per_round": _per_round, "rounds": _rounds, "smoothing": _envelopes}
    return TheoryChoices(**{name: partial(choice, protocol, problem) for name, choice in choices.items()})


def _per_round(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the b that minimises the bound of P_SGD."""
    noise = protocol.privacy.planned_constant(problem, target, protocol.gradient_bound(problem))
    return cheu.sgd_scan(users=machines, noise=noise, **_constants(protocol, problem)).per_round


def _rounds(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the T that nearly minimises the bound of P_GD. A record's T releases share the target."""
    return _descent(protocol, problem, machines, target).rounds


def _envelopes(protocol: Any, problem: Problem, machines: int, target: Target, one_pass: bool) -> float | None:
    """Return the β that minimises the bound of P_GD, or None for P_SGD, which needs no smoothness."""
    return None if one_pass else _descent(protocol, problem, machines, target).smoothness


def _descent(protocol: Any, problem: Problem, machines: int, target: Target) -> cheu.Descent:
    mean, bound = protocol.privacy, protocol.gradient_bound(problem)
    noise = float(mean.planned_noise(problem, target, bound)(machines))
    rounding = 0.0 if target.non_private else float(mean.rounding_constant(problem, machines))
    composed = target.noise_std is None

    def of_round(rounds):
        return noise * (rounds if composed else 1) + rounding

    return cheu.gd_scan(users=machines, noise=of_round, **_smooth(problem), **_constants(protocol, problem))


def _constants(protocol: Any, problem: Problem) -> dict[str, Any]:
    return {"distance": problem.distance_to_optimum, "lipschitz": protocol.gradient_bound(problem)}


def _smooth(problem: Problem) -> dict[str, Any]:
    return {"smoothness": problem.smoothness if isfinite(problem.smoothness) else None}


def _uses(method: Any) -> tuple[Use, ...]:
    return Use("one pass", one_pass(method, *TRUSTS)), Use("all users", partial(_all_users, method))


def _all_users(method: Any, s: Setting) -> Iterator[Draft]:
    """Yield drafts of P_GD: every user's one record in every round."""
    if not s.full or s.samples > 1:
        raise Refusal(
            f"per_round must be machines ({s.machines}) and samples 1, for all records in every round, "
            f"got {s.per_round} and {s.samples}"
        )
    trust: dict[str, Any] = {"trust": s.trust}
    rounds = theory_rounds(method(**trust), s, s.problem) if s.rounds is None else s.rounds
    rounds, note = capped(s, rounds)
    plan = draw_plan(s.owned, s.participation, rounds, s.seed, order="cyclic")
    yield Draft(method, trust, s.owned, plan, note)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of P_SGD, or of P_GD if records are reused."""
    s, size = run.setting, run.plan.size
    noise = protocol.noise_constant(run.problem, run.plan)
    known: dict[str, Any] = {"distance": s.diameter, "lipschitz": s.lipschitz}
    if not run.plan.repeats:
        known |= {"users": size.rounds * size.per_round, "per_round": size.per_round}
        steps, total = (cheu.sgd_bound(noise=each, **known) for each in (0.0, noise))
        theorem = "Cheu et al. 2022, proof of Theorem 4.1"
        return explicit(POPULATION, theorem, optimisation=steps, noise=total - steps)
    known |= {"users": size.per_round, "rounds": size.rounds, "step": run.step, "smoothness": s.smoothness}

    def bound(round_noise: float, again: bool) -> float:
        flags = {"envelope": False, "generalization": again}
        return cheu.gd_bound(round_noise=round_noise, **flags, **known)

    steps = bound(0.0, False)
    stable, total = bound(0.0, True) - steps, bound(noise, True)
    terms = {"optimisation": steps, "noise": total - steps - stable, "stability": stable}
    return explicit(POPULATION, "Cheu et al. 2022, proof of Theorem 4.9", **terms)


@struct.dataclass(kw_only=True)
class UserSGD(UserMethod):
    """SGD on batches of users: behind a shuffler of bits, local, pan-private or trusted server.

    Attributes:
        epsilon: target of every record, at the run's δ; inf is non-private.
        noise_std: σ, noise per message: in every trust model the sum of n messages has σ·√n in each coordinate.
        step_scale: factor on `step_size`, given or the theory's.
        step_size: η. None is the theory's η, or `plain_clipped_step` if a clip is below
            the Lipschitz constant (no theorem is claimed).
        clip: C, bound that is enforced on every record's gradient; None relies on the Lipschitz constant.
        trust: "shuffler" (sums of one-bit messages with binomial noise), "none" (Gaussian noise on every message),
            "server" (Gaussian noise on the sum) or "pan-private" (noise on the sum twice: an intruder may read the
            memory once).
        levels: g, number of fixed-point levels of the bits; None is the accounting's rule.
        rounding: coupling of neighbours' rounding in the accounting: "averaged", "coupled" or "independent".
        accounting: accounting of the bits: "exact", "gaussian-limit" (an approximation) or "paper".
        honest: fraction of a round's users that certainly add their noise; the guarantee relies on these only.
        relative_privacy: relative ε of the users in any unit, one number each: the largest corresponds to `epsilon`;
            trust "none" only. In all other trust models one noise protects all users of a round equally, so Refusal is
            raised.
        vector_sum, noises: levels and noise bits of the sums, and each user's noise divided by the largest, which is
            `noise_std`; set by `calibrate`.

    `noise_method="normal"` replaces binomial noise by rounded normals, an approximation that requires "gaussian-limit".

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of `trust`: a record enters one message in
    each round that uses it.
    """

    theory = Theory(step=_step, bound=_bound, uses=_uses, choices=_choices)

    @property
    def algorithm(self) -> SGD:
        """Projected SGD, whose output is the mean of the iterates."""
        return SGD(average=True)
