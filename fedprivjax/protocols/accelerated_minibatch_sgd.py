r"""Accelerated noisy minibatch SGD: AC-SA (Ghadimi & Lan) on the noisy gradients of a cohort.

Lowy & Razaviyayn, ICLR 2023, Algorithm 2, and its one-pass form (Theorem 2.3, with the sampler "disjoint"). The update
is that of `method.acsa`, with g the cohort's noisy mean at w_md. Convex losses use one stage, optionally with a
regulariser (λ/2)‖w − w_0‖² that the server adds. Strongly convex losses may use stages that halve the excess loss.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag, require_positive
from fedprivjax.method import acsa
from fedprivjax.method.acsa import AcceleratedState, required_distance
from fedprivjax.method.algorithm import Algorithm, At, Public
from fedprivjax.method.default_steps import binds
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.planning.drafts import PASSES, disjoint, full_batches, problem_constants, records_of
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import POPULATION, TRAINING, Bound, PlannedRun, Use, explicit
from fedprivjax.method.private_mean import GaussianMean, gradient_bound, noise_constant, round_noise
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.record_settings import RecordSettings
from fedprivjax.method.server_step import initial, optimizer_field
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.method.theory import Theory
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_minibatch_sgd import require_modulus, require_smooth
from fedprivjax.theory import cheu
from fedprivjax.theory import lowy_razaviyayn as theory

FORMS = {
    "plain": "one stage, without a regulariser",
    "regularised": "one stage on the loss with a regulariser centred at the start",
    "multistage": "stages that halve the excess loss of a strongly convex loss",
}
OF_ONE_FORM = {  # settings of one form, with the form and the default
    "regularisation": ("regularised", None),
    "factor": ("regularised", 0.5),
    "gap": ("multistage", None),
    "printed": ("multistage", False),
}


@struct.dataclass(kw_only=True)
class AcceleratedSGD(Algorithm):
    """AC-SA in stages, by default in one stage of the given step 1/v.

    Attributes:
        strong_convexity: modulus μ of the loss.
        regularisation: λ of a regulariser (λ/2)‖w − w_0‖² that the server adds, or None.
        schedule: every round's place in its stage, see `acsa.schedule_of`; None is one stage.
        strengths: strength of the losses' envelopes in every round, or None for the problem's losses.
        step_scale: factor on the steps of a given schedule.
        server: optimiser of the server's steps, such as `optax.adam` or "adam".
    """

    strong_convexity: Any = 0.0
    regularisation: Any = None
    schedule: Any = struct.field(default=None, metadata={"derived": True})
    strengths: Any = struct.field(default=None, metadata={"derived": True})
    step_scale: Any = 1.0
    server: Any = optimizer_field()

    def __post_init__(self):
        super().__post_init__()
        require_modulus(self.strong_convexity)
        require_positive("regularisation", self.regularisation, optional=True)

    def check(self, public: Public) -> None:
        super().check(public)
        require_plain_weights(self.server, bool(self.strong_convexity) or self.regularisation is not None)

    def planned(self, rounds: int, step: float) -> Any:
        """Return a copy with the schedule of one stage, if none is given."""
        if self.schedule is not None:
            return self
        return replace(self, schedule=acsa.schedule_of([acsa.Places(rounds, 1, 1 / step)], rounds))

    def init(self, public: Public, step: Any) -> AcceleratedState:
        return acsa.begun(public.start, initial(self.server, public.start, step))

    def message(self, server: AcceleratedState, t: Any) -> Linear:
        return gradient(self._next(server).middle)

    def smoothing(self, server: AcceleratedState) -> Any:
        return None if self.strengths is None else self.strengths[server.rounds]

    def serve(self, server: AcceleratedState, read: Any, at: At) -> AcceleratedState:
        step, g = self._next(server), read
        if self.regularisation is not None:
            lam = step.modulus - self.strong_convexity
            g = jax.tree.map(lambda g, m, start: g + lam * (m - start), read, step.middle, at.start)
        return acsa.advanced(server, step, g, at.project, self.server)

    def point(self, server: AcceleratedState) -> Any:
        return server.average

    def _next(self, server: AcceleratedState) -> acsa.Step:
        """Points and factors of the round, with μ of the loss plus λ of its regulariser."""
        modulus = self.strong_convexity + (0.0 if self.regularisation is None else self.regularisation)
        return acsa.next_step(server, self.schedule[server.rounds], modulus, self.step_scale)


def require_plain_weights(server: Any, curved: bool) -> None:
    """Raise Refusal for a server optimiser where the loss has a modulus, whose weights are for plain steps."""
    if server is not None and curved:
        raise Refusal(f"server must be left out with a modulus, whose weights are for plain steps, got {server}")


def _uses(method: Any) -> tuple[Use, ...]:
    full = Use("full batches", full_batches(method, _planned_rounds), passes=PASSES)
    return Use("one pass", disjoint(method)), full


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of AC-SA: on the population loss for one pass, else on the training loss."""
    s, rounds, batch, one_pass = run.setting, run.plan.size.rounds, run.batch, protocol.privacy.minibatches.one_pass
    diversity = theory.client_variance(diversity=s.lipschitz**2, machines=s.machines, per_round=s.per_round)
    clients, noise_std = 0.0 if one_pass else diversity / s.per_round, float(protocol.noise_std)
    variance = theory.worst_variance(problem_constants(s), batch=batch, noise_std=noise_std, clients=clients)
    if batch == s.samples and not one_pass:
        variance = variance._replace(sampling=0.0)
    schedule = {"rounds": rounds, "diameter": s.diameter}
    total = theory.acsa_bound(v=1 / run.step, variance=variance.total, **schedule)
    steps = theory.acsa_bound(v=2 * s.smoothness, variance=0.0, **schedule)
    drawn = (total - steps) * (variance.sampling + variance.clients) / variance.total
    terms = {"optimisation": steps, "sampling": drawn, "noise": total - steps - drawn}
    return explicit(POPULATION if one_pass else TRAINING, "AC-SA (Ghadimi & Lan 2012), explicit", **terms)


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    return 1 / _one_stage(protocol, problem, plan.size, plan.schedule.cohort, None)


def _one_stage(protocol: Any, problem: Problem, size: Size, cohort: float, variance: float | None) -> float:
    """Return v of one stage.

    Args:
        variance: V², or None for the default of `AcceleratedMinibatchSGD`.
    """
    algorithm, records = protocol.algorithm, records_of(protocol)
    if binds(problem, protocol.privacy.clip) and variance is None and not float(algorithm.strong_convexity):
        clip = float(records.kinds(problem).lipschitz.max())
        noise = float(protocol.noise_std) * (problem.dimension / cohort) ** 0.5
        return acsa.clipped_v(problem, clip, noise, size.rounds, whole=records.whole(problem))
    return _best_v(algorithm, problem, size.rounds, lambda: _variance(protocol, problem, size, cohort, variance))


def _best_v(algorithm: AcceleratedSGD, problem: Problem, rounds: int, variance: Callable[[], float]) -> float:
    """Return the v of one stage that minimises AC-SA's bound for gradients of this mean squared error."""
    known: dict[str, Any] = {"rounds": rounds, "smoothness": require_smooth(problem), "form": "strong"}
    if algorithm.regularisation is not None:
        known["smoothness"] += float(algorithm.regularisation)
    elif not float(algorithm.strong_convexity):
        found = variance()
        known |= {"variance": found, "diameter": required_distance(problem)} if found else {"diameter": 1.0}
        known["form"] = "tight"
    return float(theory.acsa_v(**known))


def _step_of_users(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return 1/v of one stage on the private means of a round's users."""
    size, bound, algorithm = plan.size, gradient_bound(protocol, problem), protocol.algorithm
    if not np.isfinite(bound):
        raise acsa.without_bound("step_size")
    if binds(problem, protocol.privacy.clip) and not float(algorithm.strong_convexity):
        return 1 / acsa.clipped_v(problem, bound, round_noise(protocol, problem, plan), size.rounds)
    drawn = size.per_round < size.machines or not plan.repeats
    known = {"per_round": size.per_round, "lipschitz": bound, "noise": noise_constant(protocol, problem, plan)}
    return 1 / _best_v(algorithm, problem, size.rounds, lambda: cheu.oracle_variance(**known, sampling=drawn))


Theory(step=_step_of_users).of(AcceleratedSGD, GaussianMean, BitMean)


def _stages(protocol: Any, problem: Problem, size: Size, cohort: float) -> list[theory.Stage]:
    if protocol.form != "multistage":
        return [theory.Stage(size.rounds, _one_stage(protocol, problem, size, cohort, protocol.variance))]
    smoothness, lipschitz = require_smooth(problem), float(records_of(protocol).kinds(problem).lipschitz.max())
    gap = protocol.gap or lipschitz * required_distance(problem)
    curved = {"smoothness": smoothness, "strong_convexity": float(protocol.strong_convexity)}
    variance = _variance(protocol, problem, size, cohort, protocol.variance)
    return theory.acsa_stages(rounds=size.rounds, gap=gap, variance=variance, printed=protocol.printed, **curved)


def _variance(protocol: Any, problem: Problem, size: Size, cohort: float, given: float | None) -> float:
    """Return V², or the noise's variance plus bounds for sampling: L²/(MK) for records, L²/M for machines."""
    if given is not None:
        return float(given)
    used = records_of(protocol)
    whole, all_machines, m = used.whole(problem), cohort >= size.machines, used.kinds(problem)
    lipschitz = float(m.lipschitz.max())
    if not (np.isfinite(lipschitz) or (whole and all_machines)):
        raise acsa.without_bound("variance")
    records = 0.0 if whole else lipschitz**2 / (cohort * m.batch.min())
    left_out = 0.0 if all_machines else lipschitz**2 / cohort
    return problem.dimension * float(protocol.noise_std) ** 2 / cohort + records + left_out


@struct.dataclass(kw_only=True)
class AcceleratedMinibatchSGD(RecordSettings, Protocol):
    """Accelerated noisy minibatch SGD (AC-SA), which protects records of each machine without a trusted server.

    In each round, machines (clients) send noisy mean gradients over samples of their own records. The server takes
    accelerated steps along the mean of these messages (Ghadimi & Lan 2012; Lowy & Razaviyayn 2023, Algorithm 2).

    A run has one or several *stages*. Each stage restarts the acceleration at the output of the previous stage.

    Attributes:
        epsilon: target ε: one number for all machines, or one for each. It holds at the δ of the machine, see `delta`.
            With inf, the run has no noise.
        noise_std: σ, standard deviation per coordinate of the noise in a message, given instead of `epsilon`. If the
            noises of machines differ, σ is the largest one.
        step_size: s: in round r of a stage, where r starts at 1, the step has size r·s/2. If `strong_convexity` is
            positive, or the loss is regularised, steps are shorter. Default: the value of the theory for each stage. If
            `clip` is below the Lipschitz constant, and neither `strong_convexity` nor `variance` is given, the default
            is a rule of thumb without a theorem.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        batch: K, number of records in a message: one number for all machines, or one for each. It must be None if
            `sampler` is "full" or a `Sampler` object.
        sampler: sampler of the records of a message: a name of `fedprivjax list samplers`, or a `Sampler` object with
            its own K, such as `Subset(10)`.
        rate: public probability with which a message uses each record, for sampler = "poisson" only. The sum of the
            gradients is divided by K for any `rate`. Default: K divided by the machine's number of records.
        relation: neighbouring relation: "replace-one" (default) or "add-or-remove-one". "add-or-remove-one" needs
            Poisson samples of a public `rate`.
        noise_rule: rule that computes σ from ε: "accountant" (default) or "advanced".
            `fedprivjax.privacy.noise_rules.NOISE_RULES` describes both.
        delta: δ of every machine, or one number for each machine, at most the run's δ. "records" stands for 1/n_i² for
            a machine with n_i records. Default: the run's δ.
        relative_privacy: one number for each machine, proportional to the machine's own target ε. The largest number
            belongs to the target `epsilon`. None gives all machines the target `epsilon`.
        form: "plain" has one stage. "regularised" has one stage, and adds (λ/2)·‖w − w_0‖² to the loss of parameters w,
            where w_0 are the initial parameters. "multistage" needs a strongly convex loss. Each of its stages halves a
            bound on the excess loss, and the run has as many stages as its rounds allow. If `step_size` is given, or
            the run is too short for the first stage, "multistage" has one stage.
        strong_convexity: modulus of strong convexity of the loss, 0 if unknown.
        regularisation: λ of the form "regularised". None is λ = f·V/(D·√R) of the theory. Here f is `factor`, V² is
            `variance`, D is the distance from the start to the optimum, and R is the number of rounds.
        factor: f in the default of λ: 1/2 in the theorem of the paper, 1 in its lemma.
        gap: bound on the initial excess loss, for the form "multistage". None is the Lipschitz constant times the
            distance from the start to the optimum.
        variance: V², bound on the mean squared error of a round's mean gradient. None is the mean squared norm of the
            noise plus a bound for the sampling of records and machines.
        printed: for the form "multistage": True uses the default step sizes that the paper prints. False uses corrected
            step sizes. `fedprivjax.theory.lowy_razaviyayn.acsa_stages` states both formulas.
        server: optimiser of the server's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` in
            round r is r·s/2. The updates of an optimiser with its own learning rate are multiplied by r/2.
            `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient steps.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" follows `noise_rule`, as if
            every machine took part in every round. "plan" is the smallest noise that meets the target on the
            participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is an adversary who sees
            everything that machines send.
        schedule: a row (r, 1/s, b) for each round, shape [rounds, 3]; set by `calibrate`. Here r is the number of the
            round in its stage, from 1, and s is the step size of the stage. b is 1 in the first round of a stage,
            otherwise 0. The server takes no step in rounds after the last stage. Their rows have r = 0 and b = 1.

    **Privacy**: (ε_i, δ_i)-DP for one record of machine i, under the neighbouring relation `relation`. The guarantee
    covers all messages of machine i together (record-level DP between silos, ISRL-DP).

    Raises:
        Refusal: if a setting is invalid or missing, or both `epsilon` and `noise_std` are given.

    >>> import numpy as np
    >>> from fedprivjax import Ball, Full, datasets, from_dataset, ready
    >>> rows = np.arange(1420).reshape(20, 71)  # 20 machines of 71 records
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=rows)
    >>> method = AcceleratedMinibatchSGD(epsilon=8.0, clip=1.6, sampler="full")
    >>> round(ready(method, problem, Full(20), rounds=10).guarantee.epsilon, 3)
    8.0
    """

    strong_convexity: Any = 0.0
    regularisation: Any = None
    schedule: Any = struct.field(default=None, metadata={"derived": True})
    form: str = struct.field(pytree_node=False, default="plain")
    factor: float = host_only(0.5)
    gap: float | None = host_only(None)
    variance: float | None = host_only(None)
    printed: bool = host_only(False)
    server: Any = optimizer_field()

    theory = Theory(step=_step, bound=_bound, uses=_uses).of(AcceleratedSGD, NoisyRecords)

    def __post_init__(self):
        super().__post_init__()
        require_choice("form", self.form, FORMS)
        require_modulus(self.strong_convexity)
        for name in ("regularisation", "gap", "variance", "factor"):
            require_positive(name, getattr(self, name), optional=True)
        require_flag("printed", self.printed)
        for name, (form, default) in OF_ONE_FORM.items():
            if self.form != form and not np.array_equal(getattr(self, name), default):
                raise Refusal(f"{name} must go with the form {form!r}, got the form {self.form!r}")

    @property
    def algorithm(self) -> AcceleratedSGD:
        """Algorithm of the method: AC-SA, accelerated stochastic approximation, with these settings."""
        settings = {"regularisation": self.regularisation, "step_scale": self.step_scale, "schedule": self.schedule}
        made = AcceleratedSGD(strong_convexity=self.strong_convexity, server=self.server)
        return replace(made, **settings)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """Return a calibrated copy, with noise, default step, and the values that depend on the run's length.

        The latter are the regularisation strength λ and the division of the rounds into stages.

        Args:
            problem: the optimisation problem.
            plan: plan of the run: who takes part in each round, and which records each message uses.
            target: privacy target, or a given noise.
        """
        if self.form == "multistage" and not float(self.strong_convexity):  # checked here so the modulus can be swept
            raise Refusal("strong_convexity must be positive for the form 'multistage', got 0")
        size, cohort = plan.size, plan.schedule.cohort
        rounds, given = size.rounds, self.step_size
        require_plain_weights(self.server, self.form != "plain" or bool(self.strong_convexity))
        if given is None and self.server is not None:
            given = self.theory.default_step(self, problem, plan, target)
        step = 1.0 if given is None else given  # placeholder: the stages below set the default
        ready: Any = super(AcceleratedMinibatchSGD, replace(self, step_size=step)).calibrate(problem, plan, target)
        if self.form == "regularised" and self.regularisation is None:
            spread = _variance(ready, problem, size, cohort, self.variance)
            distance = required_distance(problem)
            settings = {"rounds": rounds, "variance": spread, "diameter": distance, "factor": self.factor}
            ready = replace(ready, regularisation=float(theory.acsa_regularization(**settings)))
        stages = [theory.Stage(rounds, 1 / float(step))] if given is not None else _stages(ready, problem, size, cohort)
        schedule = acsa.schedule_of([acsa.Places(stage.rounds, 1, stage.v) for stage in stages], rounds)
        known = replace(ready.known, algorithm=None)  # planned with the placeholder
        return replace(ready, step_size=float(1 / stages[0].v), schedule=schedule, known=known)


def _planned_rounds(s: Setting) -> int:
    """Return the theory's number of rounds for messages of all of a machine's records."""
    load = theory.bare_load(records=s.samples, epsilon=s.epsilon)
    settings = {"batch": s.samples, "smoothness": s.smoothness, "load": load}
    return theory.accelerated_rounds(problem_constants(s), spread=0.0, **settings)
