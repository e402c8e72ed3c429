r"""Noisy minibatch SGD: every machine of a cohort averages gradients over K of its own records and adds noise.

Lowy & Razaviyayn, ICLR 2023, Algorithm 1 (Algorithm 3 in the shuffle model). With S_r the cohort of M_r machines,

    g = (1/M_r)·Σ_{i∈S_r} ((1/K_i)·Σ_j ∇f(w_r; x_ij) + N(0, σ_i²·I))
    w_{r+1} = Π_W(w_r − η·g)                      output Σ_r γ_r·w_r / Σ_r γ_r over w_0 … w_{R−1}

with γ_r = 1, or (1 − μη)^{−(r+1)} for a μ-strongly convex loss. This implementation adds the mean of the last iterates,
including w_R, as an output.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_positive
from fedprivjax.method.algorithm import Algorithm, At, Public
from fedprivjax.method.default_steps import binds, plain_clipped_step, plain_step
from fedprivjax.method.last_iterates import appended, iterate_buffer, mean_of
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.planning import drafts
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import POPULATION, Bound, Draft, PlannedRun, Use, explicit
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.record_settings import RecordSettings
from fedprivjax.method.server_step import initial, optimizer_field, stepped
from fedprivjax.method.theory import Theory
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import lowy_razaviyayn as theory

SUBSETS = 10  # a machine's records divided by those of a secret subset, for planned runs without a batch


class MinibatchState(NamedTuple):
    """State of noisy minibatch SGD.

    Attributes:
        w: iterate w_r.
        average: weighted mean of the iterates before w_r.
        mass: sum of the weights divided by the last weight.
        last: last `window` iterates, or None.
        server: state of the server optimiser.
    """

    w: Any
    average: Any
    mass: jax.Array
    last: Any
    server: Any


@struct.dataclass(kw_only=True)
class MinibatchSGD(Algorithm):
    """Projected SGD with any server optimiser, which reports a mean of its iterates.

    Attributes:
        strong_convexity: modulus of strong convexity of the loss, 0 if unknown.
        window: number of last iterates whose mean is reported, including w_R after R rounds. None reports the mean of
            w_0 … w_{R−1}, in which later iterates have larger weights if `strong_convexity` is positive.
        server: optimiser of the server's steps, such as `optax.adam` or "adam".
    """

    strong_convexity: Any = 0.0
    window: int | None = struct.field(pytree_node=False, default=None)
    server: Any = optimizer_field()

    def __post_init__(self):
        super().__post_init__()
        require_modulus(self.strong_convexity)
        if self.window is not None:
            require_at_least("window", self.window, 1)

    def init(self, public: Public, step: Any) -> MinibatchState:
        w = public.start
        return MinibatchState(w, w, jnp.zeros(()), iterate_buffer(w, self.window), initial(self.server, w, step))

    def message(self, server: MinibatchState, t: Any) -> Linear:
        return gradient(server.w)

    def serve(self, server: MinibatchState, read: Any, at: At) -> MinibatchState:
        w, optimizer = stepped(self.server, server.server, server.w, read, at.step)
        w = at.project(w)
        # mass = Σγ/γ_r, so the newest iterate has weight 1/mass in the mean
        mass = 1 + (1 - self.strong_convexity * at.step) * server.mass
        average = jax.tree.map(lambda a, w: a + (w - a) / mass, server.average, server.w)
        return MinibatchState(w, average, mass, appended(server.last, w), optimizer)

    def point(self, server: MinibatchState) -> Any:
        return server.average if self.window is None else mean_of(server.last)

    def iterates(self, server: MinibatchState) -> dict[str, Any]:
        """The last iterate, evaluated in addition to the output."""
        return {"last": server.w}


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the step of Theorem 2.1 or of clipped gradients."""
    return _own_step(protocol, problem, plan) / protocol.privacy.messages_a_step(plan.schedule.cohort)


def _norm(protocol: Any, problem: Problem, plan: Plan) -> float:
    """Return the norm of the mean gradient and its noise."""
    lipschitz = float(drafts.records_of(protocol).kinds(problem).lipschitz.max())
    return (lipschitz**2 + problem.dimension * float(protocol.noise_std) ** 2 / plan.schedule.cohort) ** 0.5


def _own_step(protocol: Any, problem: Problem, plan: Plan) -> float:
    """Return the step along a mean without an optimiser: of Theorem 2.1, clipped gradients, or a noiseless run."""
    rounds, cohort, records = plan.size.rounds, plan.schedule.cohort, drafts.records_of(protocol)
    modulus, clipped = protocol.algorithm.strong_convexity, binds(problem, protocol.privacy.clip)
    lipschitz, distance = float(records.kinds(problem).lipschitz.max()), problem.distance_to_optimum
    free = not (protocol.noise_std or modulus or clipped)
    if free and np.isfinite(problem.smoothness):
        return _noiseless_step(protocol, problem, plan, lipschitz)
    if not (np.isfinite(lipschitz) and np.isfinite(problem.travel)):
        return np.inf
    if clipped and not modulus:
        noise = float(protocol.noise_std) * (problem.dimension / cohort) ** 0.5
        kind = {"averaged": protocol.algorithm.window is None, "whole": records.whole(problem)}
        return plain_clipped_step(problem, rounds, lipschitz, noise, **kind)
    if not (np.isfinite(distance) and np.isfinite(problem.smoothness)) and not problem.model.factored:
        of_mean = float(protocol.noise_std) / cohort**0.5  # networks: no theorem is claimed
        return plain_step(problem, rounds, lipschitz, of_mean)
    if not np.isfinite(distance):
        return np.inf
    return _proved_step(protocol, problem, plan, lipschitz)


def _noiseless_step(protocol: Any, problem: Problem, plan: Plan, lipschitz: float) -> float:
    """Return 1/β for the gradient of the whole objective; else the minimiser of Lemma E.4's bound, or inf if unknown.

    The step of Theorem 2.1 is not used. It decreases as 1/R to bound overfitting, so that further rounds would not
    move the iterate further from the start.
    """
    cohort, smoothness, records = plan.schedule.cohort, problem.smoothness, drafts.records_of(protocol)
    whole, all_machines = records.whole(problem), cohort >= plan.size.machines
    if whole and all_machines:
        return 1 / smoothness
    if not (np.isfinite(lipschitz) and np.isfinite(problem.distance_to_optimum)):
        return np.inf
    sampling = 0.0 if whole else 4 * lipschitz**2 / (cohort * records.kinds(problem).batch.min())
    left_out = 0.0 if all_machines else lipschitz**2 / cohort
    longest = problem.distance_to_optimum / (2 * plan.size.rounds * (sampling + left_out)) ** 0.5
    return float(min(longest, 1 / (4 * smoothness)))


def _proved_step(protocol: Any, problem: Problem, plan: Plan, lipschitz: float) -> float:
    """Return the step of Theorem 2.1 for the privacy load of the noise, or of the strongly convex theorem."""
    m, modulus = drafts.records_of(protocol).kinds(problem), protocol.algorithm.strong_convexity
    rounds, cohort, smoothness = plan.size.rounds, plan.schedule.cohort, require_smooth(problem)
    if modulus:
        known = {"rounds": rounds, "diameter": problem.distance_to_optimum, "smoothness": smoothness}
        noise = problem.dimension * float(protocol.noise_std) ** 2 / cohort
        variance = theory.Variance(4 * lipschitz**2 / (cohort * m.batch.min()), 0.0, noise)
        return float(theory.strong_step(variance=variance, strong_convexity=float(modulus), **known))
    load = theory.equivalent_load(noise_std=float(protocol.noise_std), lipschitz=lipschitz, rounds=rounds)
    constants = theory.ProblemConstants(
        records=int(m.records.min()),
        per_round=cohort,
        dimension=problem.dimension,
        diameter=problem.distance_to_optimum,
        lipschitz=lipschitz,
    )
    return float(theory.minibatch_step(constants, rounds=rounds, smoothness=smoothness, load=load))


@struct.dataclass(kw_only=True)
class MinibatchSettings:
    """Settings and default step of minibatch SGD. `NoisyMinibatchSGD` documents the fields."""

    strong_convexity: Any = 0.0
    trust: str = host_only("none")
    window: int | None = struct.field(pytree_node=False, default=None)
    server: Any = optimizer_field()

    theory = Theory(step=_step)

    def __post_init__(self):
        super().__post_init__()  # type: ignore[misc]
        _ = self.algorithm  # raises Refusal if a setting is invalid

    @property
    def algorithm(self) -> MinibatchSGD:
        """Projected SGD."""
        return MinibatchSGD(strong_convexity=self.strong_convexity, window=self.window, server=self.server)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """Calibrate as in `Protocol.calibrate`. Raise Refusal if the step is too long for the averaging weights."""
        require_window(self.window, plan.size.rounds)
        if self.server is not None and self.strong_convexity:
            raise Refusal(
                f"strong_convexity must be 0 with a server optimiser, because its averaging weights are for plain "
                f"steps, got {self.strong_convexity}"
            )
        ready: Any = super().calibrate(problem, plan, target)  # type: ignore[misc]
        step = ready.step_size * float(ready.step_scale)
        shrinkage = float(ready.strong_convexity) * step * ready.privacy.messages_a_step(plan.size.per_round)
        if shrinkage >= 1:
            raise Refusal(f"strong_convexity · step_size must be below 1, got {shrinkage:.4g}")
        return ready


def _uses(method: Any) -> tuple[Use, ...]:
    return (
        Use("one pass", drafts.disjoint(method)),
        Use("full batches", drafts.full_batches(method, _planned_rounds), passes=drafts.PASSES),
        Use("secret subsets", partial(_subsets, method), passes=drafts.PASSES),
        Use("shuffled", partial(_shuffled, method)),
    )


def _subsets(method: Any, s: Setting) -> Iterator[Draft]:
    """Yield drafts with a secret random subset of records in every message."""
    batch = max(1, s.samples // SUBSETS) if s.batch is None else s.batch
    rounds, note = drafts.capped(s, _planned_rounds(s, batch) if s.rounds is None else s.rounds)
    yield drafts.of_records(method, s, {"sampler": "subset", "batch": batch}, rounds, note)


def _shuffled(method: Any, s: Setting) -> Iterator[Draft]:
    if s.trust != "shuffler":
        raise Refusal(f"trust must be 'shuffler' for it, got {s.trust!r}")
    if s.batch not in (None, 1):
        raise Refusal(f"batch must be 1 with a shuffler, got {s.batch}")
    rounds, note = drafts.one_pass_rounds(s)
    yield drafts.of_records(method, s, {"sampler": "subset", "batch": 1, "trust": "shuffler"}, rounds, note)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of Lemma E.4 at the run's step, plus uniform stability if records are reused."""
    s, rounds, again = run.setting, run.plan.size.rounds, not protocol.privacy.minibatches.one_pass
    constants = drafts.problem_constants(s)
    variance = theory.worst_variance(constants, batch=run.batch, noise_std=float(protocol.noise_std))
    known = {"step": run.step, "rounds": rounds, "diameter": s.diameter, "smoothness": s.smoothness}
    none = theory.Variance(0.0, 0.0, 0.0)
    steps = theory.minibatch_step_bound(variance=none, **known)
    sampled = theory.minibatch_step_bound(variance=variance._replace(noise=0.0), **known) - steps
    noise = theory.minibatch_step_bound(variance=none._replace(noise=variance.noise), **known) - steps
    terms = {"optimisation": steps, "sampling": sampled, "noise": noise}
    if again:
        terms["stability"] = theory.uniform_stability(constants, step=run.step, rounds=rounds)
    return explicit(POPULATION, "Lowy & Razaviyayn 2023, Lemma E.4" + (" and E.2" if again else ""), **terms)


@struct.dataclass(kw_only=True)
class NoisyMinibatchSGD(MinibatchSettings, RecordSettings, Protocol):  # type: ignore[misc]
    """Noisy minibatch SGD: machines send noisy mean gradients of samples of their own records.

    In each of R rounds, M machines (clients) take part. Each of them sends the mean gradient of K of its records at the
    server's point w_r, plus noise N(0, σ²·I). The server takes a projected step along the mean of the messages (Lowy &
    Razaviyayn 2023, Algorithm 1).

    Attributes:
        epsilon: target ε: one number for all machines, or one for each. It holds at the δ of the machine, see `delta`.
            With inf, the run has no noise.
        relative_privacy: one number for each machine, proportional to the machine's own target ε. The largest number
            belongs to the target `epsilon`. None gives all machines the target `epsilon`.
        noise_std: σ, standard deviation per coordinate of the noise in a message, given instead of `epsilon`. If the
            noises of machines differ, σ is the largest one.
        step_scale: factor by which the given or default step size is multiplied.
        step_size: η, step size of the server. The default is the first of these that applies:

            * With a positive `strong_convexity`: the step of the theorem for strongly convex losses.
            * With a clip below the Lipschitz constant: a rule of thumb without a theorem
              (`fedprivjax.method.default_steps.plain_clipped_step`).
            * With noise: the step of Theorem 2.1.
            * If every round uses all records of all machines: 1/β, for smoothness β.
            * Otherwise: the step that minimises the bound of Lemma E.4.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        strong_convexity: modulus of strong convexity of the loss, 0 if unknown. A positive modulus gives later iterates
            larger weights in the reported mean.
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
        trust: "none", or "shuffler" for a trusted shuffler, which hides who sent which message of a round. A shuffler
            needs batch = 1, sampler = "subset" or "replacement", and the same number of machines in all rounds. All
            machines must have equal numbers of records, targets and gradient bounds.
        window: number of last iterates, including w_R, whose mean is reported. None reports the weighted mean of w_0 …
            w_{R−1}.
        server: optimiser of the server's steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`. `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient steps.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" follows `noise_rule`, as if
            every machine took part in every round. "plan" is the smallest noise that meets the target on the
            participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.

    If the problem has `machine_weights`, the weights of the messages are proportional to them.

    **Privacy**: (ε_i, δ_i)-DP for one record of machine i, under the neighbouring relation `relation`. The guarantee
    covers all messages of machine i together (record-level DP between silos, ISRL-DP). With a shuffler, it is (ε, δ)-DP
    for replacing one record of one machine, and covers all shuffled messages together.

    Raises:
        Refusal: if a setting is invalid, both `epsilon` and `noise_std` are given, or no theorem covers the combination
            of sampler, relation and trust.

    >>> import numpy as np
    >>> from fedprivjax import Balanced, Ball, datasets, from_dataset, ready
    >>> rows = np.arange(1420).reshape(20, 71)  # 20 machines of 71 records
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=rows)
    >>> method = NoisyMinibatchSGD(epsilon=8.0, clip=1.6, sampler="full", calibrate_to="plan")
    >>> start = ready(method, problem, Balanced(20, 10), rounds=60)
    >>> round(start.guarantee.epsilon, 3), round(float(start.protocol.noise_std), 3)
    (8.0, 0.148)
    """

    theory = Theory(step=_step, norm=_norm, bound=_bound, uses=_uses).of(MinibatchSGD, NoisyRecords)


def _planned_rounds(s: Setting, batch: int | None = None) -> int:
    """Return the rounds of Theorem 2.1 for messages of `batch` records; None means all of a machine's records."""
    load = theory.bare_load(records=s.samples, epsilon=s.epsilon)
    sizes = {"batch": s.samples if batch is None else batch, "smoothness": s.smoothness, "load": load}
    return theory.minibatch_rounds(drafts.problem_constants(s), **sizes)


def require_modulus(value: Any) -> None:
    """Raise Refusal if the modulus of strong convexity is negative or not finite."""
    if isinstance(value, int | float | np.number) and value != 0:
        require_positive("strong_convexity", value)


def require_smooth(problem: Problem) -> float:
    """Return the smoothness that a default step needs.

    Raises:
        Refusal: if it is unknown.
    """
    if not np.isfinite(problem.smoothness):
        raise Refusal("step_size must be set, or the loss smoothed (see Moreau): its smoothness is unknown")
    return problem.smoothness


def require_window(window: int | None, rounds: int) -> None:
    """Raise Refusal if the window has more iterates than the run."""
    if window is not None and window > rounds + 1:
        raise Refusal(f"window must be at most rounds + 1 ({rounds + 1}), got {window}")
