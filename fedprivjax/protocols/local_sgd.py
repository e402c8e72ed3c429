r"""Local SGD (FedAvg), plain and noisy: the machines of a cohort take K local steps each, and the server averages.

The baseline of Lowy & Razaviyayn, ICLR 2023, as in their code (McMahan et al. 2017; Stich 2019). Machine i starts
from w_r and takes K steps, each on one of its own records,

    v ← Π_W(v − η·(∇f(v; x_ik) + N(0, σ²·I)))                  w_{r+1} = (1/M_r)·Σ_{i∈S_r} v_i

Every step is private, and the guarantee composes a machine's R·K steps. It holds for any loss, although only the end
points are sent. Messages are not sums of gradients, so every machine's steps are computed separately.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive
from fedprivjax.method.clipping import clip
from fedprivjax.method.default_steps import binds, clipped_pace
from fedprivjax.method.minibatch_round import appended, mean_of, room
from fedprivjax.method.planning.bounds import Bound, PlannedRun, missing
from fedprivjax.method.planning.drafts import capped, of_records
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.record_method import RecordMethod
from fedprivjax.method.round import RoundInputs, oracle
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.server_step import check_server, initial, require_server
from fedprivjax.noise import Mechanism, PerStep
from fedprivjax.noise.fresh import step_noise
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_minibatch_sgd import require_window
from fedprivjax.theory.lowy_razaviyayn import one_pass_rounds

EVERY_STEP = "every local step released (post-processing); composed profile of the subsampled Gaussian mechanism"
PLANNED_STEPS = 10  # local steps of a planned run, if no batch is given


class LocalState(NamedTuple):
    """Iterate w_r, mean and number of the iterates before it, last `window` iterates, and server optimiser's state."""

    w: Any
    average: Any
    rounds: jax.Array
    last: Any
    server: Any


@struct.dataclass(kw_only=True)
class LocalSGD(RecordMethod):
    """Local SGD (FedAvg), plain or with noise in every local step.

    Attributes:
        epsilon, noise_std, step_size, step_scale, clip, noise_rule, delta, relative_privacy: as in `NoisyMinibatchSGD`.
            The noise rule is applied to R·K releases of one record each. No theorem gives a step with noise, so set one
            unless a clip is below the Lipschitz constant: `default_step` then has a rule of thumb.
        batch: K, number of local steps in a round, with one record each.
        sampler: sampler of the K records: "replacement", "disjoint", or a `Sampler` of either kind.
        rate, relation: always None and "replace-one", because a release uses exactly one record of its machine.
        window: number of last iterates whose mean is reported, or None for the mean of all iterates before w_R.
        server: `ServerOptimizer` with w_r minus the mean of the end points as its gradient: FedAvgM with momentum,
            FedAdam (Reddi et al. 2021). None takes the mean, which equals sgd with a `server_step` of 1.
        server_step: learning rate of the server optimiser, required with `server`; `step_size` is for local steps.

    **Privacy**: (ε_i, δ_i)-DP for replacing one record if every local step is released; messages are post-processing.
    Stronger claims hold for linear losses only.
    """

    server_step: Any = None
    sampler: str | Sampler = struct.field(pytree_node=False, default="replacement")
    window: int | None = struct.field(pytree_node=False, default=None)
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})

    plain: ClassVar = {**RecordMethod.plain, "sampler": "replacement"}

    weighs_machines = False  # end points are averaged with equal weights

    def __post_init__(self):
        super().__post_init__()
        require_server(self.server)
        require_positive("server_step", self.server_step, optional=True)
        if np.ndim(self.batch):  # type: ignore[arg-type]
            raise Refusal("batch must be one number for local SGD: all machines take the same number of steps")
        sampler = self.minibatches
        if not (sampler.repeats or sampler.one_pass):
            raise Refusal(f"sampler must be 'replacement' or 'disjoint' for local SGD, got {sampler.name!r}")
        if self.window is not None:
            require_at_least("window", self.window, 1)

    @property
    def records(self) -> RecordMechanism:
        """Mechanism of the records: their use in local steps, and the noise of these steps."""
        return replace(super().records, by_step=True)

    def init(self, problem: Problem, size: Size, key) -> LocalState:
        w = problem.start
        return LocalState(w, w, jnp.zeros(()), room(w, self.window), initial(self.server, w, self.server_step))

    def round(self, problem: Problem, state: LocalState, inputs: RoundInputs, noise, key) -> tuple[LocalState, dict]:
        ends = self.messages(problem, state, inputs, noise, key)
        count = jnp.sum(inputs.present)

        def mean(rows):
            present = inputs.present.reshape(-1, *[1] * (rows.ndim - 1))
            return jnp.sum(jnp.where(present > 0, rows, 0.0), axis=0) / count  # absent machines have no weight

        w, server = self._served(problem, state, jax.tree.map(mean, ends))
        rounds = state.rounds + 1
        average = jax.tree.map(lambda a, w: a + (w - a) / rounds, state.average, state.w)
        return LocalState(w, average, rounds, appended(state.last, w), server), {}

    def _served(self, problem: Problem, state: LocalState, end) -> tuple[Any, Any]:
        """The next point and the optimiser's state. Without an optimiser it is the mean `end`, which is in the set."""
        if self.server is None:
            return end, state.server
        towards = jax.tree.map(jnp.subtract, state.w, end)
        w, server = self.server.step(state.server, state.w, towards, self.server_step)
        return problem.constraint.project(w), server

    def messages(self, problem: Problem, state: LocalState, inputs: RoundInputs, noise, key):
        """End points of the participants' local steps, leaves [per_round, ...]; `noise` is from `PerStep`, or None."""
        return self.walks(problem, state, inputs, noise)[0]

    def noisy_steps(self, problem: Problem, state: LocalState, inputs: RoundInputs, noise, key):
        """Differences v_k − v_{k−1} of every local step, leaves [per_round, K, ...]."""
        return self.walks(problem, state, inputs, noise, every_step=True)[1]

    def walks(self, problem: Problem, state: LocalState, inputs: RoundInputs, noise, *, every_step: bool = False):
        """Return end points, leaves [per_round, ...], and steps, leaves [per_round, K, ...], or None as the steps.

        The steps are returned only with `every_step`.
        """
        step = self.step_scale * self.step_size
        machines = inputs.machine.shape[0]
        starts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (machines, *leaf.shape)), state.w)

        def one(v, example, z):
            g = oracle(problem.model.gradients, example)(v)
            g = (g if self.clip is None else clip(g, self.clip)).written_out()
            g = g if z is None else jax.tree.map(jnp.add, g, problem.unravel(z))
            return problem.constraint.project(jax.tree.map(lambda v, g: v - step * g, v, g))

        def together(v, inputs_of_step):
            k, samples = inputs_of_step
            z = None if noise is None else step_noise(noise, k, problem.dimension)
            after = jax.vmap(one)(v, problem.take(samples, inputs.machine), z)
            return after, jax.tree.map(jnp.subtract, after, v) if every_step else None

        steps = inputs.samples.shape[1]
        ends, moves = jax.lax.scan(together, starts, (jnp.arange(steps), inputs.samples.T))
        return ends, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), moves)

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        """The round's key, and the participants' standard deviations."""
        key, relative = drawn
        return state, (key, self.noise_std * relative)

    def output(self, state: LocalState):
        return state.average if self.window is None else mean_of(state.last)

    def iterates(self, state: LocalState) -> dict[str, Any]:
        """The last iterate, evaluated in addition to the output."""
        return {"last": state.w}

    def query(self, state: LocalState):
        """The point at which machines start."""
        return state.w

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        require_choice("noise method", method, ("auto", "materialised"))
        return PerStep(np.asarray(self.records.message_noise(problem, plan), np.float32))

    def check(self, problem: Problem, plan: Plan) -> None:
        check_server(self.server, problem)

    def event(self, problem: Problem, plan: Plan) -> RecordEvent:
        return self.records.event(problem, plan, self.noise_std, theorem=EVERY_STEP)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        require_window(self.window, plan.size.rounds)
        if (self.server is None) != (self.server_step is None):
            there = "server" if self.server_step is None else "server_step"
            raise Refusal(f"server and server_step must be given together, got only {there}")
        return super().calibrate(problem, plan, target)

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Step by a rule of thumb for clipped gradients: `1/η² = K·(R·κ² + κ_1²)`; inf for other gradients.

        κ is `clipped_pace` of the mean over R·K steps, and κ_1 that of the noise in the K steps of one machine.
        """
        if not (binds(problem, self.clip) and np.isfinite(problem.reach)):
            return np.inf
        noise, steps = float(self.noise_std) * problem.dimension**0.5, plan.width
        of_mean = noise / plan.schedule.cohort**0.5
        together = clipped_pace(problem, float(self.clip), of_mean, averaged=self.window is None)
        alone = clipped_pace(problem, 0.0, noise)
        return float((steps * (plan.size.rounds * together**2 + alone**2)) ** -0.5)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return size.per_round  # a step takes one record of each machine

    @classmethod
    def uses(cls) -> tuple[Use, ...]:
        return (Use("", cls._drafts),)

    @classmethod
    def _drafts(cls, s: Setting) -> Iterator[Draft]:
        batch = min(PLANNED_STEPS, s.samples) if s.batch is None else s.batch
        most = one_pass_rounds(records=s.samples, batch=batch)
        rounds, note = capped(s, most if s.rounds is None else s.rounds)
        step = s.diameter / (s.lipschitz * (rounds * batch) ** 0.5)
        stated = "step D/(G√(RK)) as a placeholder: no step is proved, and the noise does not depend on it"
        note = "; ".join(filter(None, (note, stated)))
        yield of_records(cls, s, {"sampler": "disjoint", "batch": batch, "step_size": step}, rounds, note)

    def error_bound(self, run: PlannedRun) -> Bound:
        return missing("no step and no bound is proved for local steps with noise")
