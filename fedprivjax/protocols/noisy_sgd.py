r"""Noisy SGD: one pass of projected SGD with Gaussian noise on every gradient.

    w_{t+1} = Π_K(w_t − η·((1/m)·Σ_{i∈S_t} ∇f(w_t; z_{t,i}) + noise_std·z_t))        output w_{T+1} or (1/T)·Σ_{t≤T} w_t

The baseline of Reshef & Levy 2024 and 2025, after Abadi et al. 2016. There is no amplification, because every sample is
used once. Each machine adds N(0, (2G/μ)²·I) to its own gradient, or a trusted server adds N(0, (2G/(mμ))²·I) to the
mean. With per-sample clipping, C replaces G. If |S_t| varies, m is the constant E|S_t|, so that all samples have the
same weight and the sensitivity does not depend on the round. A machine's gradient may be the mean over K fresh samples,
each clipped; 2G/K then replaces 2G.
"""

from collections.abc import Iterator
from functools import partial
from math import hypot, inf, isfinite
from typing import Any, NamedTuple

import jax
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag
from fedprivjax.method.algorithm import Algorithm, At, Public
from fedprivjax.method.default_steps import binds, plain_clipped_step, plain_step
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.noisy_messages import INDEPENDENT, NoisyMessages
from fedprivjax.method.planning.drafts import capped, one_pass, theory_rounds
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import POPULATION, Bound, Draft, PlannedRun, Use, explicit
from fedprivjax.method.private_mean import TRUSTS, GaussianMean, gradient_bound, noise_constant, round_noise
from fedprivjax.method.protocol import Levels, Protocol
from fedprivjax.method.relative_privacy import noise_of_shares
from fedprivjax.method.server_step import initial, optimizer_field, stepped
from fedprivjax.method.setting_checks import check_numbers
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.method.theory import Theory, TheoryChoices
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu, reshef_levy


class SGDState(NamedTuple):
    """Iterate w_t, mean of w_1 … w_{t−1}, and state of the server optimiser."""

    w: Any
    average: Any
    server: Any


@struct.dataclass(kw_only=True)
class SGD(Algorithm):
    """Projected SGD with any server optimiser.

    Attributes:
        average: True to report the running average instead of the last iterate.
        server: any optax transformation, schedule or name instead of the plain step, see `ServerOptimizer`.
    """

    average: bool = struct.field(pytree_node=False, default=False)
    server: Any = optimizer_field()

    def init(self, public: Public, step: Any) -> SGDState:
        return SGDState(public.start, public.start, initial(self.server, public.start, step))

    def message(self, server: SGDState, t: Any) -> Linear:
        return gradient(server.w)

    def serve(self, server: SGDState, read: Any, at: At) -> SGDState:
        w, optimizer = stepped(self.server, server.server, server.w, read, at.step)
        average = jax.tree.map(lambda a, w: a + (w - a) / at.t, server.average, server.w)
        return SGDState(at.project(w), average, optimizer)

    def point(self, server: SGDState) -> Any:
        return server.average if self.average else server.w

    def iterates(self, server: SGDState) -> dict[str, Any]:
        """The iterate that is not the reported one, evaluated in addition to it."""
        return {"last": server.w} if self.average else {"average": server.average}


def _equivalent(protocol: Any, machines: int):
    """Return the trusted-server form for one machine, whose noise then has the same distribution."""
    alone = machines == 1 and protocol.privacy.trust == "none"
    return protocol.with_settings({"trust": "server", "relative_privacy": None}) if alone else protocol


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    privacy = protocol.privacy
    if privacy.noise != INDEPENDENT:
        raise Refusal(f"step_size must be given for SGD with correlated noise, got the noise {privacy.noise!r:.60}")
    if not isfinite(problem.travel):
        return inf
    rounds, (bound, of_mean) = plan.size.rounds, _bound_and_noise(protocol, plan, problem)
    if binds(problem, privacy.clip):
        noise = problem.dimension**0.5 * of_mean
        return plain_clipped_step(problem, rounds, bound, noise, averaged=protocol.algorithm.average)
    return plain_step(problem, rounds, bound, of_mean)


def _norm(protocol: Any, problem: Problem, plan: Plan) -> float:
    """Return the norm of the mean gradient and its noise."""
    bound, of_mean = _bound_and_noise(protocol, plan, problem)
    return hypot(bound, problem.dimension**0.5 * of_mean)


def _bound_and_noise(protocol: Any, plan: Plan, problem: Problem) -> tuple[float, float]:
    """Return the bound on a message's norm, and the noise of the mean of m machines, 1/√m of one machine's."""
    privacy, machines = protocol.privacy, plan.size.machines
    noise = protocol.noise_std * noise_of_shares(privacy.relative_privacy, machines)
    of_mean = noise / (1.0 if privacy.trust == "server" else plan.schedule.divisor**0.5)
    return protocol.rounds.bound(problem, machines).norm, of_mean


def _uses(method: Any) -> tuple[Use, ...]:
    return (Use("", one_pass(method, "none", "server", average=True)),)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of projected SGD on the average of the iterates."""
    s, size = run.setting, run.plan.size
    of_mean = float(protocol.noise_std) / (1.0 if protocol.privacy.trust == "server" else size.per_round**0.5)
    known = {"diameter": s.diameter, "rounds": size.rounds, "lipschitz": s.lipschitz, "dimension": s.dimension}
    steps = reshef_levy.noisy_sgd_bound(noise_std_of_mean=0.0, **known)
    total = reshef_levy.noisy_sgd_bound(noise_std_of_mean=of_mean, **known)
    return explicit(POPULATION, "projected SGD (Zinkevich 2003)", optimisation=steps, noise=total - steps)


# ---- with a private mean: P_SGD and P_GD of Cheu et al. 2022, see `UserSGD`


def _step_of_users(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the step of Theorem 4.1's proof, of Theorem 4.9's proof if records are reused, or of clipped gradients."""
    if not protocol.algorithm.average:
        raise Refusal(
            "step_size must be given for SGD, whose theory with this privacy is for average = True, got none. Set it"
        )
    known = _constants(protocol, problem)
    if not (isfinite(known["distance"]) and isfinite(known["lipschitz"])):
        return inf
    noise, size = noise_constant(protocol, problem, plan), plan.size
    if binds(problem, protocol.privacy.clip):
        of_round = round_noise(protocol, problem, plan)
        return plain_clipped_step(problem, size.rounds, known["lipschitz"], of_round, averaged=True)
    if not plan.repeats:
        return float(cheu.sgd_step(rounds=size.rounds, per_round=size.per_round, noise=noise, **known))
    smooth = _smooth(problem)
    return float(cheu.gd_step(users=size.per_round, rounds=size.rounds, round_noise=noise, **smooth, **known))


def _choices_of_users(protocol: Any, problem: Problem) -> TheoryChoices:
    choices = {"per_round": _per_round, "rounds": _rounds, "smoothing": _envelopes}
    return TheoryChoices(**{name: partial(choice, protocol, problem) for name, choice in choices.items()})


def _per_round(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the b that minimises the bound of P_SGD."""
    noise = protocol.privacy.planned_constant(problem, target, gradient_bound(protocol, problem))
    return cheu.sgd_scan(users=machines, noise=noise, **_constants(protocol, problem)).per_round


def _rounds(protocol: Any, problem: Problem, machines: int, target: Target) -> int:
    """Return the T that nearly minimises the bound of P_GD. A record's T releases share the target."""
    return _descent(protocol, problem, machines, target).rounds


def _envelopes(protocol: Any, problem: Problem, machines: int, target: Target, one_pass: bool) -> float | None:
    """Return the β that minimises the bound of P_GD, or None for P_SGD, which needs no smoothness."""
    return None if one_pass else _descent(protocol, problem, machines, target).smoothness


def _descent(protocol: Any, problem: Problem, machines: int, target: Target) -> cheu.Descent:
    mean, bound = protocol.privacy, gradient_bound(protocol, problem)
    noise = float(mean.planned_noise(problem, target, bound)(machines))
    rounding = 0.0 if target.non_private else float(mean.rounding_constant(problem, machines))
    composed = target.noise_std is None

    def of_round(rounds):
        return noise * (rounds if composed else 1) + rounding

    return cheu.gd_scan(users=machines, noise=of_round, **_smooth(problem), **_constants(protocol, problem))


def _constants(protocol: Any, problem: Problem) -> dict[str, Any]:
    return {"distance": problem.distance_to_optimum, "lipschitz": gradient_bound(protocol, problem)}


def _smooth(problem: Problem) -> dict[str, Any]:
    return {"smoothness": problem.smoothness if isfinite(problem.smoothness) else None}


def _uses_of_users(method: Any) -> tuple[Use, ...]:
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


def _bound_of_users(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of P_SGD, or of P_GD if records are reused."""
    s, size = run.setting, run.plan.size
    noise = noise_constant(protocol, run.problem, run.plan)
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


OF_USERS = Theory(step=_step_of_users, bound=_bound_of_users, uses=_uses_of_users, choices=_choices_of_users)
OF_USERS = OF_USERS.of(SGD, GaussianMean, BitMean)


@struct.dataclass(kw_only=True)
class MessageSettings(Levels, Protocol):
    """Settings of methods with noise on messages of fresh records. `NoisySGD` documents them."""

    clip: Any = None
    relative_privacy: Any = host_only(None)
    mu: Any = None
    batch: int = host_only(1)

    def __post_init__(self):
        check_numbers(self, "mu", "epsilon")
        object.__setattr__(self, "relative_privacy", self.privacy.relative_privacy)


@struct.dataclass(kw_only=True)
class NoisySGD(MessageSettings):
    """Noisy SGD in one pass over the records, with noise from the machines or from a trusted server.

    In each of T rounds, m machines (clients) take part. Each machine takes a record that was not used before, and sends
    the record's gradient at the server's point. The server takes a projected step along the mean of the messages.

    Attributes:
        mu: target μ of Gaussian DP. With inf, the run has no noise.
        epsilon: target ε at the run's δ, given instead of `mu`.
        noise_std: standard deviation per coordinate of the noise, given instead of `mu`. With a trusted server, the
            noise is in the mean of the messages, otherwise in each message. With `relative_privacy`, machine i has
            max(r)/r_i times this noise, where r is `relative_privacy`.
        step_size: step size of the server. Default: D/√(T·(G² + d·σ²)). Here D is the assumed distance to the optimum
            (`problem.travel`), G the Lipschitz constant or a larger `clip`, d the number of parameters, and σ the
            standard deviation per coordinate of the noise in the mean gradient. If `clip` is below the Lipschitz
            constant, the default is a rule of thumb without a theorem
            (`fedprivjax.method.default_steps.plain_clipped_step`).
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        trust: "none" if every message is public and machines add the noise. "server" if a trusted server adds the
            noise.
        relative_privacy: one number for each machine, proportional to the machine's own μ. The largest number belongs
            to the target μ. None gives all machines the target μ.
        batch: K, number of records in a message. The message is the mean of the gradients of these records, which are
            clipped one by one. A machine with n records sends at most ⌊n/K⌋ messages, and does not use the remaining
            records.
        average: True to report the mean of the iterates instead of the last iterate. Metrics evaluate both.
        server: optimiser of the server's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`. `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient steps. For
            `optax.adam`, the default `step_size` is rescaled.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the formula of the method,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.

    **Privacy**: μ-GDP for replacing one record, with μ = 2G/(K·noise_std). With a trusted server, μ =
    2G/(K·m·noise_std). With a `clip`, C replaces G. With `relative_privacy`, the μ of machine i is r_i/max(r) times
    this value.

    Raises:
        Refusal: if a setting is invalid, or more than one of `epsilon`, `mu` and `noise_std` is given.

    >>> from fedprivjax import Ball, Uniform, datasets, from_dataset, ready
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> start = ready(NoisySGD(mu=2.0, clip=1.6, trust="server"), problem, Uniform(20, 10), rounds=30)
    >>> round(float(start.protocol.noise_std), 3)  # 2·C/(m·μ)
    0.16
    """

    trust: str = host_only("none")
    average: bool = struct.field(pytree_node=False, default=False)
    server: Any = optimizer_field()

    theory = Theory(step=_step, norm=_norm, bound=_bound, uses=_uses, equivalent=_equivalent).of(SGD, NoisyMessages)

    def __post_init__(self):
        super().__post_init__()
        require_flag("average", self.average)

    @property
    def algorithm(self) -> SGD:
        """Algorithm of the method: projected SGD."""
        return SGD(average=self.average, server=self.server)

    @property
    def privacy(self) -> NoisyMessages:
        """Privacy object of the method: independent noise in messages, or in a trusted server's mean."""
        settings = {"clip": self.clip, "trust": self.trust, "relative_privacy": self.relative_privacy}
        return NoisyMessages(batch=self.batch, **settings)
