"""What methods that protect a machine's records share: minibatch messages, their noise, and their guarantee (ISRL-DP).

Lowy & Razaviyayn, ICLR 2023. In round r, every machine i of a random cohort sends

    (1/K_i)·Σ_j ∇f(w; x_ij) + N(0, σ_i²·I)

on K_i of its own n_i records, which a sampler picks anew each round; nobody knows which, and that amplifies privacy.
A machine's whole transcript is (ε_i, δ_i)-DP for replacing one of its records, whatever the others do.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag, require_positive
from fedprivjax.noise import Fresh, PerMachine
from fedprivjax.plan.minibatches import Minibatches, Sampling, machine_values, repeated_uses
from fedprivjax.plan.participation import Schedule, Size
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import SAMPLERS, as_sampler
from fedprivjax.privacy.events import SampledEvent
from fedprivjax.privacy.noise_rules import NOISE_RULES, noise_stds
from fedprivjax.problem.gradients import clip
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.clipped import CLIPPED, clipped_messages
from fedprivjax.protocols.cohort import RoundInputs, add_noise, cohort_sum, machine_messages

AGGREGATES = {"mean": "of the messages", "sum": "of the messages: an effective step of M times the step"}
SMALL = 1e-6  # an ε that every rule takes, where only machines' proportions matter
Setting = float | Sequence[float] | None


class Machines(NamedTuple):
    """Every machine's records, batch, Lipschitz constant and privacy target, [machines] each."""

    records: np.ndarray
    batch: np.ndarray
    lipschitz: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray


@struct.dataclass
class RecordProtocol:
    """Settings and machinery that `NoisyMinibatchSGD`, `AcceleratedMinibatchSGD` and `LocalSGD` share.

    Attributes:
        epsilon: target of every machine, or one for each; inf is non-private. The noise is for one that takes part in
            every round; the guarantee counts a machine's own. Where each has its own target, each gets exactly
            the noise that its own needs. Otherwise machines' noises are in the proportions of the noise rule (of its
            formula L·√ln(1/δ)/(nε), for the accountant), as large as the last machine needs them.
        noise_std: the noisiest machine's σ, per coordinate of its message (instead of one `epsilon` for all).
        step_size, step_scale: as in `DPMu2`.
        clip: bound that a machine enforces on every record's gradient; it takes the place of L.
        clip_at: what is clipped, see `CLIPPED`; all but "record" are there to run what others have run.
        batch: K, an integer or one for each machine; None with the sampler "full".
        sampler: how a machine picks records, see `fedprivjax.plan.samplers`.
        noise_rule: from ε to σ, see `fedprivjax.privacy.noise_rules`.
        acknowledged: needed by the rule "paper_moments", whose claimed ε is not what it gives.
        delta: δ of every machine, or one for each, at most the run's; "records" is 1/n_i²; None is the run's.
        lipschitz: L of every machine, or one for each; None is the problem's.
        records: n in the rule "paper_moments"; None is the machine's own number.
        diameter: D, a bound on the distance from the start to the optimum; None is the constraint set's.
        aggregate: what the server makes of messages, "mean" or "sum".
        machine_weights: p_i of the objective Σ_i p_i·F_i, adding up to 1; messages and L_i are multiplied by p_i times
            the number of machines. None is equal weights. Recorded training losses weigh all records alike.
    """

    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    batch: int | Sequence[int] | None = struct.field(pytree_node=False, default=None)
    sampler: str = struct.field(pytree_node=False, default="subset")
    noise_rule: str = struct.field(pytree_node=False, default="accountant")
    acknowledged: bool = struct.field(pytree_node=False, default=False)
    delta: Setting | str = struct.field(pytree_node=False, default=None)
    lipschitz: Setting = struct.field(pytree_node=False, default=None)
    records: int | None = struct.field(pytree_node=False, default=None)
    diameter: float | None = struct.field(pytree_node=False, default=None)
    aggregate: str = struct.field(pytree_node=False, default="mean")
    clip_at: str = struct.field(pytree_node=False, default="record")
    machine_weights: Sequence[float] | None = struct.field(pytree_node=False, default=None)

    mu = None
    trust = "none"

    def __post_init__(self):
        for name in ("step_size", "step_scale", "clip", "diameter"):
            require_positive(name, getattr(self, name), optional=True)
        if not isinstance(self.epsilon, list | tuple):
            require_positive("epsilon", self.epsilon, optional=True, infinite=True)
        if isinstance(self.noise_std, int | float | np.number) and not 0 <= self.noise_std < np.inf:
            raise Refusal(f"noise_std must be finite and not negative, got {self.noise_std}")
        if self.noise_std is not None and isinstance(self.epsilon, int | float | np.number):
            raise Refusal(f"give epsilon or noise_std, not both, got {self.epsilon} and {self.noise_std}")
        require_flag("acknowledged", self.acknowledged)
        require_choice("sampler", self.sampler, SAMPLERS)
        require_choice("noise_rule", self.noise_rule, NOISE_RULES)
        require_choice("aggregate", self.aggregate, AGGREGATES)
        require_choice("clip_at", self.clip_at, CLIPPED)
        if self.clip_at != "record" and self.clip is None and self.epsilon is not None and self.epsilon != inf:
            raise Refusal(f"clip must be given for clip_at {self.clip_at!r}")
        if self.clip_at == "other" and not (self.sampler == "replacement" and isinstance(self.batch, int)):
            raise Refusal("clip_at 'other' must go with the sampler 'replacement' and one batch for all machines")
        if isinstance(self.delta, str):
            require_choice("delta", self.delta, ("records",))
        if isinstance(self.epsilon, list | tuple) and 0 < np.sum(np.isinf(self.epsilon)) < len(self.epsilon):
            raise Refusal(f"epsilon must be finite on all machines or on none, got {list(self.epsilon)}")
        if self.records is not None and self.noise_rule != "paper_moments":
            raise Refusal(f"records must go with noise_rule 'paper_moments', got {self.noise_rule!r}")
        self._check_weights()
        for name in ("epsilon", "batch", "delta", "lipschitz", "machine_weights"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def sampling(self) -> Sampling:
        batch = 2 * self.batch if self.clip_at == "other" and isinstance(self.batch, int) else self.batch
        factors = None if self.machine_weights is None else tuple(self._factors(len(self.machine_weights)))
        return Sampling(as_sampler(self.sampler, batch), factors)

    @property
    def traced(self):
        """Without what only the host reads, so that other constants are no other program."""
        batch = self.batch if self.clip_at == "other" else None
        return replace(self, batch=batch, sampler="replacement", **self._host_settings())

    def _host_settings(self) -> dict[str, Any]:
        """Static settings that no traced function reads, at the values that stand for any."""
        unset = dict.fromkeys(("epsilon", "delta", "lipschitz", "records", "diameter", "machine_weights"))
        return {**unset, "noise_rule": "accountant", "acknowledged": False}

    def machines(self, problem: Problem, delta: float | None = None) -> Machines:
        """Every machine's constants; δ is the run's where the protocol has none of its own."""
        if problem.table is None:
            raise Refusal("table must be given: machines draw minibatches from records of their own")
        sizes = problem.table.sizes
        if not sizes.all():
            raise Refusal(f"machines must have at least one record each, got none for machine {sizes.argmin()}")
        bound = self.clip if self.clip is not None else problem.lipschitz if self.lipschitz is None else self.lipschitz
        target = inf if self.epsilon is None else self.epsilon
        own: Any = self.delta if self.delta is not None else delta
        own = 1 / sizes**2.0 if self.delta == "records" else np.nan if own is None else own
        lipschitz, epsilon, own = (
            machine_values(name, value, sizes.size)
            for name, value in (("lipschitz", bound), ("epsilon", target), ("delta", own))
        )
        batch = as_sampler(self.sampler, self.batch).batches(sizes)
        return Machines(sizes, batch, lipschitz * self._factors(sizes.size), epsilon, own)

    def relative(self, problem: Problem, size: Size) -> np.ndarray:
        """Each machine's σ as a part of the largest, [machines]."""
        m = self.machines(problem, 1e-5)
        if not np.isfinite(m.lipschitz).all() or (isinstance(self.epsilon, tuple) and inf in self.epsilon):
            return np.ones(m.records.size)
        if isinstance(self.epsilon, tuple):
            needed = self._needed(m, size, self.noise_rule)
        else:
            stands = "advanced" if self.sampler == "disjoint" else "paper_moments"
            rule = stands if self.noise_rule == "accountant" else self.noise_rule
            needed = self._needed(m._replace(epsilon=np.full(m.epsilon.size, SMALL)), size, rule)
        return needed / needed.max()

    def calibrated(self, problem: Problem, plan, *, epsilon=None, delta: float | None = None):
        """A protocol with `noise_std` and `step_size` filled in, and `epsilon` spent."""
        target = self.epsilon if epsilon is None else epsilon
        given = replace(self, epsilon=target, delta=delta if self.delta is None else self.delta)
        size = getattr(plan, "size", plan)
        self._check_delta(problem, delta)
        if given.epsilon is None and given.noise_std is None:
            raise Refusal("give epsilon (with delta) or noise_std; epsilon = inf is non-private")
        noise = given.noise_std if given.noise_std is not None else given._noise_std(problem, size, delta)
        own = given.epsilon if isinstance(given.epsilon, tuple) else None  # the proportions of machines' noises
        ready = replace(given, epsilon=own, noise_std=float(noise))
        step = given.step_size
        if step is None:
            step = ready.default_step(problem, size, cohort_of(plan))
            if not (isfinite(step) and step > 0):
                raise Refusal("step_size must be set: its default needs a finite diameter and gradient bound")
        return replace(ready, step_size=float(step))

    def noise(self, problem: Problem, plan: Plan, method: str = "auto") -> Any:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        relative = self.participants_noise(problem, plan)
        if method == "materialised":
            if plan.schedule.filled is not None:
                raise Refusal("noise method 'materialised' must have a fixed number of machines a round")
            return PerMachine(np.asarray(relative, np.float32), summed=self.aggregate == "sum")
        return Fresh(np.asarray(np.sqrt(np.sum(relative**2, axis=1)) / self._divisor(plan.schedule), np.float32))

    def participants_noise(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Relative noise of every message, [rounds, per_round]; 0 in slots that nobody fills."""
        return self.relative(problem, plan.size)[plan.schedule.participants] * plan.schedule.present

    def sensitivity(self, problem: Problem, size: Size) -> float:
        """2L/K of the machine for which it is largest, in units of its own noise."""
        return float(np.max(self._shift(problem, self.machines(problem), size)))

    def event(self, problem: Problem, plan: Plan) -> SampledEvent:
        return self.sampled_event(problem, plan, self.machines(problem))

    def sampled_event(self, problem: Problem, plan: Plan, m: Machines) -> SampledEvent:
        """The event of messages that are means over a batch, of those that each machine releases."""
        sampler, batch = self._released(m)
        shift = self._shift(problem, m, plan.size)
        messages = plan.schedule.total * self.releases(self.machines(problem))
        theorem = self.theorem
        if SAMPLERS[sampler].secret and not plan.secret:
            sampler, shift, messages = "full", shift * self._known_uses(problem, plan), (messages > 0).astype(int)
            theorem = "adaptive composition of Gaussian mechanisms; which records are used is known"
        return SampledEvent(
            sampler=sampler,
            sensitivity=self.sensitivity(problem, plan.size),
            shift=shift,
            records=m.records,
            batch=batch,
            messages=messages,
            whole_message=self.clip_at == "message",
            trust=self.trust,
            theorem=theorem,
            assumptions=(*self._assumptions(problem), *(["which records are used is secret"] if plan.secret else [])),
        )

    def _known_uses(self, problem: Problem, plan: Plan) -> np.ndarray:
        """By how much more all messages tell of a machine's record than one does, where the samples are known."""
        assert problem.table is not None
        assert plan.weights is not None
        power = 0 if self.clip_at == "message" else 2 if self.releases(self.machines(problem)) == 1 else 1
        uses = repeated_uses(Minibatches(plan.samples, plan.weights), problem.table.rows, power)
        return np.maximum(uses, 1e-300)  # of machines that never take part

    def releases(self, m: Machines) -> int | np.ndarray:
        """Noisy releases that a machine makes in a round, in which it takes part."""
        return 1

    @property
    def theorem(self) -> str:
        return "Lowy & Razaviyayn 2023, Algorithm 1; composed profile of the subsampled Gaussian mechanism"

    def record(self, w):
        """What one record adds to its machine's message, as a function of its gradient oracle."""

        def gradient_of(gradient):
            g = gradient(w)
            return g if self.clip is None else clip(g, self.clip)

        return gradient_of

    def gradient(self, problem: Problem, w, inputs: RoundInputs, noise):
        """The server's aggregate of the cohort's messages at w, with noise."""
        if self.clip is None or self.clip_at == "record":
            total = cohort_sum(problem, self.record(w), inputs, linear=self.clip is None)
        else:
            messages = clipped_messages(problem, w, inputs, self.clip_at, self.clip)
            total = jax.tree.map(lambda rows: jnp.sum(rows, axis=0), messages)
        count = jnp.sum(inputs.present) if self.aggregate == "mean" else 1.0
        return add_noise(problem, jax.tree.map(lambda g: g / count, total), self.noise_std, noise)

    def messages(self, problem: Problem, state, inputs: RoundInputs):
        """The participants' messages without noise, leaves [per_round, ...]."""
        if self.clip is None or self.clip_at == "record":
            return machine_messages(problem, self.record(self.query(state)), inputs)
        return clipped_messages(problem, self.query(state), inputs, self.clip_at, self.clip)

    def query(self, state):
        """The point that machines are asked about."""
        return state.w

    def default_step(self, problem: Problem, size: Size, cohort: float) -> float:
        """The step size of the theory, on a calibrated protocol; infinite where it has none."""
        raise TypeError("a protocol must define default_step")

    def distance(self, problem: Problem) -> float:
        """D: the given bound, or the constraint set's diameter (infinite where there is none)."""
        return problem.constraint.diameter if self.diameter is None else self.diameter

    def _check_delta(self, problem: Problem, delta: float | None) -> None:
        """The run states ε at its δ, so no machine's own may be larger."""
        if self.delta is not None and delta is not None:
            most = self.machines(problem).delta.max()
            if most > delta * (1 + 1e-9):
                raise Refusal(f"delta must be at most {delta:g}, at which ε is stated, got {most:g}")

    def _check_weights(self) -> None:
        if self.machine_weights is None:
            return
        weights = np.asarray(self.machine_weights, float)
        if weights.ndim != 1 or not (weights > 0).all() or abs(weights.sum() - 1) > 1e-6:
            raise Refusal(f"machine_weights must be positive and add up to 1, got a sum of {weights.sum():g}")
        if self.clip_at != "record":
            raise Refusal(f"machine_weights must go with clip_at 'record', got {self.clip_at!r}")

    def _factors(self, machines: int) -> np.ndarray:
        """What messages are multiplied by: p_i times the number of machines."""
        weights = 1 / machines if self.machine_weights is None else self.machine_weights
        return machines * machine_values("machine_weights", weights, machines)

    def _shift(self, problem: Problem, m: Machines, size: Size) -> np.ndarray:
        """How far one record moves each machine's release, in units of the machine's relative noise."""
        if self.clip_at == "other":
            return np.full(m.batch.size, inf if self.noise_std else 1.0)  # no bound; nothing is claimed without noise
        own = 1 if self.clip_at == "message" else m.batch
        return 2 * m.lipschitz / (own * self.relative(problem, size))

    def _divisor(self, schedule: Schedule) -> np.ndarray | float:
        return schedule.present.sum(axis=1) if self.aggregate == "mean" else 1.0

    def _noise_std(self, problem: Problem, size: Size, delta: float | None) -> float:
        m = self.machines(problem, delta)
        if np.isinf(m.epsilon).all():
            return 0.0
        if not np.isfinite(m.lipschitz).all():
            raise Refusal("clip must be set, for the loss has no finite gradient bound here")
        if np.isnan(m.delta).any():
            raise Refusal("delta must be given with epsilon")
        return float(np.max(self._needed(m, size, self.noise_rule) / self.relative(problem, size)))

    def _needed(self, m: Machines, size: Size, rule: str) -> np.ndarray:
        """Every machine's σ by a noise rule, [machines]."""
        sampler, batch = self._released(m)
        records = m.records if self.records is None else np.full(m.records.size, self.records)
        return noise_stds(
            rule,
            sampler=sampler,
            lipschitz=m.lipschitz,
            records=records,
            batch=batch,
            rounds=size.rounds * self.releases(m),
            epsilon=m.epsilon,
            delta=m.delta,
            acknowledged=self.acknowledged or rule != self.noise_rule,
            whole_message=self.clip_at == "message",
        )

    def _released(self, m: Machines) -> tuple[str, np.ndarray]:
        """Sampler and batch of a release as accounting sees them."""
        return self.sampler, m.batch

    def _assumptions(self, problem: Problem) -> tuple[str, ...]:
        bounded = "every record's gradient is clipped" if self.clip is not None else problem.lipschitz_in_words
        if self.clip is None and self.lipschitz is not None:
            constants = f"{np.min(self.lipschitz):.4g} to {np.max(self.lipschitz):.4g}"
            bounded = f"machines' losses are Lipschitz with the given constants, {constants}"
        known = "participation is public and independent of the data"
        return (known, bounded, "hyper-parameters, and what the data were prepared with, are not covered")


def cohort_of(plan) -> float:
    """M, of a drawn plan or of a size."""
    return plan.schedule.cohort if hasattr(plan, "schedule") else plan.per_round
