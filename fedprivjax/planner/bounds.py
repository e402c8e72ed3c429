"""What theory says of every method at the noise and step that it would run with, term by term.

One function a method, from a calibrated protocol on its drawn plan to a `Bound`; each names its theorem. Terms come
from the theorem's own function, evaluated with and without noise and sampling.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.plan.plan import Plan
from fedprivjax.planner.setting import Setting
from fedprivjax.privacy.events import Event
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu, reshef_levy, tran_cutkosky
from fedprivjax.theory import lowy_razaviyayn as isrl

EXPLICIT, ORDER, GRADIENT, MISSING = "explicit", "order only", "gradient norm", "missing"
KINDS = {
    EXPLICIT: "excess loss, every constant proved: comparable with one another",
    ORDER: "excess loss without its constants: a rate",
    GRADIENT: "norm of the gradient, not of the excess loss: for losses that need not be convex",
    MISSING: "no theorem covers this use of the method",
}
TERMS = {
    "optimisation": "steps that are too few or too short",
    "sampling": "records and machines that a round draws",
    "noise": "what privacy costs",
    "stability": "fitting records that are used again",
    "bias": "gradients at old points",
}
PARTIAL_TREES = "its theorem has all machines in every round"
POPULATION, TRAINING, STATIONARITY = "population", "training", "gradient"


@dataclass(frozen=True)
class Bound:
    """A bound's terms.

    Attributes:
        kind: a key of `KINDS`.
        of: the loss that it is of: "population", "training" (the records at hand), or "gradient" of the latter.
        theorem: where it is proved; for a missing one, why it is.
        terms: by names in `TERMS`; empty where there is none.
    """

    kind: str
    of: str
    theorem: str
    terms: dict[str, float]

    @property
    def total(self) -> float:
        """The terms' sum; NaN where there are none."""
        return float(sum(self.terms.values())) if self.terms else np.nan


class Calibrated(NamedTuple):
    """A method as it would run: calibrated, on its drawn plan."""

    setting: Setting
    protocol: Any
    problem: Problem
    plan: Plan
    event: Event

    @property
    def step(self) -> float:
        """η, as the run takes it."""
        return float(self.protocol.step_size) * float(self.protocol.step_scale)


def explicit(of: str, theorem: str, **terms: float) -> Bound:
    """A bound on the excess loss with every constant proved.

    >>> explicit(POPULATION, "a theorem", optimisation=0.25, noise=0.5).total
    0.75
    """
    return Bound(EXPLICIT, of, theorem, terms)


def missing(why: str) -> Bound:
    """No bound, and why there is none.

    >>> missing("nobody proved one").total
    nan
    """
    return Bound(MISSING, "", why, {})


def dp_mu2(run: Calibrated) -> Bound:
    """Reshef & Levy 2024 where all machines take part, elsewhere `anytime_bound`; an increment's error is at most S,
    and that of the mean of K fresh ones S/√K."""
    s, size, constraint, batch = run.setting, run.plan.size, run.problem.constraint, run.plan.width
    largest = reshef_levy.increment_bound(s.lipschitz, s.smoothness, s.diameter)
    deviation = largest / batch**0.5
    if not s.full:
        noise = np.sqrt(s.dimension * run.protocol.noise_variances(run.plan))
        bound = reshef_levy.anytime_bound(
            step=run.step,
            rounds=size.rounds,
            per_round=size.per_round,
            radius=float(constraint.radius),
            lipschitz=s.lipschitz,
            deviation=deviation,
            noise=noise,
            fresh=run.protocol.trust == "server",
        )
        loose = "" if run.protocol.trust == "server" else ", loose for noise that stands"
        return explicit(POPULATION, f"anytime averaging, at any participation (derived here{loose})", **bound._asdict())
    trusted = run.protocol.trust == "server"
    function = reshef_levy.full_trusted_bound if trusted else reshef_levy.full_untrusted_bound
    known = {"machines": size.machines, "rounds": size.rounds, "dimension": s.dimension, "diameter": s.diameter}
    known |= {"increment": largest, "smoothness": s.smoothness, "optimum_gradient": s.lipschitz}
    steps = function(mu=np.inf, **known)
    sampled = function(mu=np.inf, deviation=deviation, **known)
    total = function(mu=batch * run.event.mu, deviation=deviation, **known)  # its noise is that of one increment over K
    server = "trusted" if trusted else "untrusted"
    theorem = f"Reshef & Levy 2024, {server} server"
    return explicit(POPULATION, theorem, optimisation=steps, sampling=sampled - steps, noise=total - sampled)


def noisy_sgd(run: Calibrated) -> Bound:
    """Projected SGD's, of the average of the iterates."""
    s, size = run.setting, run.plan.size
    of_mean = float(run.protocol.noise_std) / (1.0 if run.protocol.trust == "server" else size.per_round**0.5)
    known = {"diameter": s.diameter, "rounds": size.rounds, "lipschitz": s.lipschitz, "dimension": s.dimension}
    steps = reshef_levy.noisy_sgd_bound(noise_std_of_mean=0.0, **known)
    total = reshef_levy.noisy_sgd_bound(noise_std_of_mean=of_mean, **known)
    return explicit(POPULATION, "projected SGD (Zinkevich 2003)", optimisation=steps, noise=total - steps)


def noisy_minibatch_sgd(run: Calibrated) -> Bound:
    """Lemma E.4 at the run's own step; uniform stability where records are used again."""
    s, size, batch = run.setting, run.plan.size, batch_of(run)
    again = not run.protocol.minibatches.one_pass
    constants = isrl_constants(s)
    variance = isrl.worst_variance(constants, batch=batch, noise_std=float(run.protocol.noise_std))
    known = {"step": run.step, "rounds": size.rounds, "diameter": s.diameter, "smoothness": s.smoothness}
    none = isrl.Variance(0.0, 0.0, 0.0)
    steps = isrl.minibatch_step_bound(variance=none, **known)
    sampled = isrl.minibatch_step_bound(variance=variance._replace(noise=0.0), **known) - steps
    noise = isrl.minibatch_step_bound(variance=none._replace(noise=variance.noise), **known) - steps
    terms = {"optimisation": steps, "sampling": sampled, "noise": noise}
    if again:
        terms["stability"] = isrl.uniform_stability(constants, step=run.step, rounds=size.rounds)
    return explicit(POPULATION, "Lowy & Razaviyayn 2023, Lemma E.4" + (" and E.2" if again else ""), **terms)


def accelerated_minibatch_sgd(run: Calibrated) -> Bound:
    """AC-SA's, for the population in one pass, else for the records at hand, of which machines' losses may differ."""
    s, size, batch = run.setting, run.plan.size, batch_of(run)
    one_pass = run.protocol.minibatches.one_pass
    left_out = isrl.client_variance(diversity=s.lipschitz**2, machines=s.machines, per_round=s.per_round) / s.per_round
    clients, noise_std = 0.0 if one_pass else left_out, float(run.protocol.noise_std)
    variance = isrl.worst_variance(isrl_constants(s), batch=batch, noise_std=noise_std, clients=clients)
    if batch == s.samples and not one_pass:
        variance = variance._replace(sampling=0.0)
    schedule = {"rounds": size.rounds, "diameter": s.diameter}
    total = isrl.acsa_bound(v=1 / run.step, variance=variance.total, **schedule)
    steps = isrl.acsa_bound(v=2 * s.smoothness, variance=0.0, **schedule)
    drawn = (total - steps) * (variance.sampling + variance.clients) / variance.total
    terms = {"optimisation": steps, "sampling": drawn, "noise": total - steps - drawn}
    return explicit(POPULATION if one_pass else TRAINING, "AC-SA (Ghadimi & Lan 2012), explicit", **terms)


def user_sgd(run: Calibrated) -> Bound:
    """P_SGD's, or P_GD's where all users take part in every round."""
    s, size = run.setting, run.plan.size
    noise = run.protocol.noise_constant(run.problem, run.plan)
    known: dict[str, Any] = {"distance": s.diameter, "lipschitz": s.lipschitz}
    if not run.plan.repeats:
        known |= {"users": size.rounds * size.per_round, "per_round": size.per_round}
        steps, total = (cheu.sgd_bound(noise=each, **known) for each in (0.0, noise))
        return explicit(POPULATION, "Cheu et al. 2022, proof of Theorem 4.1", optimisation=steps, noise=total - steps)
    known |= {"users": size.per_round, "rounds": size.rounds, "step": run.step, "smoothness": s.smoothness}

    def bound(round_noise: float, again: bool) -> float:
        flags = {"envelope": False, "generalization": again}
        return cheu.gd_bound(round_noise=round_noise, **flags, **known)

    steps = bound(0.0, False)
    stable, total = bound(0.0, True) - steps, bound(noise, True)
    terms = {"optimisation": steps, "noise": total - steps - stable, "stability": stable}
    return explicit(POPULATION, "Cheu et al. 2022, proof of Theorem 4.9", **terms)


def user_agd(run: Calibrated) -> Bound:
    """P_AGD's, with the scale S that the run's steps have."""
    s, size = run.setting, run.plan.size
    noise = run.protocol.noise_constant(run.problem, run.plan)
    known = {"rounds": size.rounds, "smoothness": s.smoothness, "distance": s.diameter, "gap": s.first_gap}
    if run.plan.repeats:
        return missing("P_AGD's theorem is for one pass")
    sampling, variance = (
        cheu.oracle_variance(per_round=size.per_round, lipschitz=s.lipschitz, noise=each) for each in (0.0, noise)
    )
    total = cheu.agd_bound(spread=1 / run.step - s.smoothness, variance=variance, **known)
    steps = cheu.agd_bound(spread=0.0, variance=0.0, **known)
    sampled = (total - steps) * sampling / variance
    terms = {"optimisation": steps, "sampling": sampled, "noise": total - steps - sampled}
    return explicit(POPULATION, "Cheu et al. 2022, Theorem 4.3 by Lan's proof", **terms)


def tree_momentum(run: Calibrated) -> Bound:
    """Theorem 6's: the mean norm of the gradient over iterates."""
    if not run.setting.full:
        return missing(PARTIAL_TREES)
    problem, settings, known = _momentum(run)
    return _gradient(tran_cutkosky.momentum_bound(problem, settings, **known), "Theorem 6")


def reduced_tree_momentum(run: Calibrated) -> Bound:
    """Theorem 9's, likewise."""
    if not run.setting.full:
        return missing(PARTIAL_TREES)
    problem, settings, known = _momentum(run)
    with_resets = tran_cutkosky.ReducedSettings(*settings, reset_rate=float(run.protocol.reset_rate))
    bound = tran_cutkosky.reduced_bound(problem, with_resets, **known)
    return _gradient(bound, "Theorem 9, whose sampling term is proved for reshuffled epochs alone")


def stale_momentum(run: Calibrated) -> Bound:
    """None of its clipped form."""
    return missing("its private form has no convergence theorem")


def local_sgd(run: Calibrated) -> Bound:
    """None of steps that have noise each."""
    return missing("no step and no bound is proved for local steps with noise")


def _momentum(
    run: Calibrated,
) -> tuple[tran_cutkosky.ProblemConstants, tran_cutkosky.MomentumSettings, dict[str, float]]:
    """Return the problem, the settings, and the first gap and the noise of a run with momentum."""
    s, protocol, size = run.setting, run.protocol, run.plan.size
    losses = {"lipschitz": s.lipschitz, "smoothness": s.smoothness}
    problem = tran_cutkosky.ProblemConstants(records=int(protocol.epoch), dimension=s.dimension, **losses)
    settings = tran_cutkosky.MomentumSettings(size.rounds, float(protocol.alpha), run.step)
    noise = float(np.mean(np.sqrt(s.dimension * protocol.noise_variances(size))))
    return problem, settings, {"gap": s.first_gap, "noise": noise}


def _gradient(bound: tran_cutkosky.GradientBound, theorem: str) -> Bound:
    terms = {
        "optimisation": float(bound.optimisation + bound.start),
        "sampling": float(bound.variance),
        "noise": float(bound.noise),
        "bias": float(bound.bias),
    }
    return Bound(GRADIENT, STATIONARITY, f"Tran & Cutkosky 2022, {theorem}", terms)


def isrl_constants(s: Setting) -> isrl.ProblemConstants:
    """Return the setting's constants as Lowy & Razaviyayn's theorems take them."""
    sizes = {"records": s.samples, "per_round": s.per_round, "dimension": s.dimension}
    return isrl.ProblemConstants(diameter=s.diameter, lipschitz=s.lipschitz, **sizes)


def batch_of(run: Calibrated) -> int:
    """K, records of a message."""
    return run.protocol.minibatches.batch_of(run.setting.samples)
