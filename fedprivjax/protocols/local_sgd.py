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
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.method.client_method import ClientMethod, ClientState
from fedprivjax.method.default_steps import binds, clipped_pace
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.minibatch_round import appended, iterate_buffer, mean_of
from fedprivjax.method.planning.bounds import Bound, PlannedRun, missing
from fedprivjax.method.planning.drafts import capped, of_records
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.record_method import RecordMethod
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.server_step import (
    check_server,
    initial,
    rates_of,
    require_learning_rate,
    require_server,
    require_server_step,
    stepped,
)
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
    """State of the server.

    Attributes:
        w: iterate w_r.
        last: last `window` iterates, or None.
        optimizer: state of the server optimiser.
        average, rounds: mean and number of the iterates before w_r.
    """

    w: Any
    last: Any
    optimizer: Any
    average: Any
    rounds: jax.Array


@struct.dataclass(kw_only=True)
class LocalSGD(ClientMethod, RecordMethod):
    """Local SGD (FedAvg), plain or with noise in every local step.

    Attributes:
        epsilon, noise_std, step_size, step_scale, clip, noise_rule, delta, relative_privacy: as in `NoisyMinibatchSGD`.
            The noise rule is applied to R·K releases of one record each. No theorem gives a step with noise, so set one
            unless a clip is below the Lipschitz constant: `default_step` then has a rule of thumb.
        batch: K, number of local steps in a round, with one record each.
        sampler: sampler of the K records: "replacement", "disjoint", or a `Sampler` of either kind.
        rate: always None, because a release uses exactly one record of its machine.
        relation: always "replace-one", for the same reason.
        window: number of last iterates whose mean is reported, or None for the mean of all iterates before w_R.
        server: `ServerOptimizer` with w_r minus the mean of the end points as its gradient: FedAvgM with momentum,
            FedAdam (Reddi et al. 2021). None takes the mean, which equals sgd with a `server_step` of 1.
        server_step: learning rate of the server optimiser, required with `server`, as in `FedAvg`; `step_size` is for
            local steps.

    **Privacy**: (ε_i, δ_i)-DP for replacing one record if every local step is released; messages are post-processing.
    Stronger claims hold for linear losses only.
    """

    server_step: Any = None
    server_steps: Any = struct.field(default=None, metadata={"derived": True})
    sampler: str | Sampler = struct.field(pytree_node=False, default="replacement")
    window: int | None = struct.field(pytree_node=False, default=None)
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})

    plain: ClassVar = {**RecordMethod.plain, "sampler": "replacement"}

    weighs_machines = False  # end points are averaged with equal weights

    def __post_init__(self):
        super().__post_init__()
        require_server(self.server)
        require_server_step(self.server_step)
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

    @property
    def traced(self):
        """Copy as in `Protocol.traced`. A schedule is replaced by its numbers."""
        return super().traced if self.server_steps is None else replace(super().traced, server_step=None)

    def fitted(self, problem: Problem, plan: Plan):
        """Return a copy as in `ClientMethod.fitted`, with the learning rate of each round."""
        return replace(super().fitted(problem, plan), server_steps=rates_of(self.server_step, plan.size.rounds))

    @property
    def _rate(self) -> Any:
        """Learning rate of the server: a number, or an array [rounds] for a schedule."""
        return self.server_step if self.server_steps is None else self.server_steps

    def server_init(self, problem: Problem, size: Size, key) -> LocalState:
        w = problem.start
        last = iterate_buffer(w, self.window) if self.window and self.window > 1 else None
        return LocalState(w, last, initial(self.server, w, self._rate), w, jnp.zeros(()))

    def shared(self, server: LocalState, noise) -> tuple[Any, Any]:
        """The point at which machines start, and the round's noise, whose rows are those of the slots."""
        return server.w, noise

    def client_noise(self, noise, per_round: int):
        return None if noise is None else jnp.arange(per_round)

    def client(self, server, own, data: LocalData, noise, key):
        """Return the end point of the machine's local steps; `noise` is its row of the round's noise, or None."""
        return self.local(server, data, noise)[0], own, {}

    def moves(self, server, own, data: LocalData, noise) -> tuple[Any, Any]:
        """Return every local step of a machine, leaves [K, ...], and its noise, [K, d] or None.

        Arguments are those of `client`.
        """
        return self.local(server, data, noise, every_step=True)[1]

    def local(self, server, data: LocalData, slot, **options):
        """Return the result of `walk` from what all machines read."""
        w, noise = server
        return self.walk(w, data, (noise, slot), **options)

    def walk(self, w, data: LocalData, noise, *, every_step: bool = False) -> tuple[Any, Any]:
        """Return a machine's end point and None.

        Args:
            w: start of the local steps.
            noise: the machine's noise, for `step_noise`.
            every_step: True to return the steps' moves, leaves [K, ...], and their noises, [K, d] or None, instead of
                None.
        """
        step, problem = self.step_scale * self.step_size, data.problem

        def one(v, minibatch):
            g = minibatch.gradient(v, divisor=1, clip=self.clip)  # one record a step
            z = self.step_noise(noise, minibatch.step, problem.dimension)
            g = g if z is None else jax.tree.map(jnp.add, g, problem.unravel(z))
            after = problem.constraint.project(jax.tree.map(lambda v, g: v - step * g, v, g))
            return after, (jax.tree.map(jnp.subtract, after, v), z) if every_step else None

        return data.scan(one, w)

    def step_noise(self, noise, step, dimension: int) -> jax.Array | None:
        """Return the noise in the gradient of a machine's local step, [d], or None.

        Args:
            noise: the round's noise or None, and the machine's row of it.
            step: number of the step, from 0.
        """
        of_round, slot = noise
        return None if of_round is None else step_noise(of_round, step, dimension)[slot]

    def slots_together(self, problem: Problem, per_round: int) -> int:
        return per_round  # the noise of a step is sampled for all slots at once

    def serve(self, problem: Problem, server: LocalState, total, weight, inputs: RoundInputs, noise) -> LocalState:
        step = 1.0 if self.server is None else self._rate
        pseudo = jax.tree.map(lambda total, w: -(total / weight - w), total, server.w)
        w, optimizer = stepped(self.server, server.optimizer, server.w, pseudo, step)
        w, rounds = problem.constraint.project(w), server.rounds + 1
        average = jax.tree.map(lambda a, w: a + (w - a) / rounds, server.average, server.w)
        return LocalState(w, appended(server.last, w), optimizer, average, rounds)

    def noisy_steps(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Differences v_k − v_{k−1} of every local step, leaves [per_round, K, ...]."""
        return self._every_step(problem, state, inputs, noise, key)[0]

    def step_noises(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Noise in the gradient of every local step, [per_round, K, d], or None."""
        return self._every_step(problem, state, inputs, noise, key)[1]

    def _every_step(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[Any, Any]:
        """Return every local step, leaves [per_round, K, ...], and its noise, [per_round, K, d] or None."""
        shared = self.shared(state.server, noise)

        def one(inputs, noise, key):
            return self.moves(shared, state.own, self.local_data(problem, inputs), noise)

        return jax.vmap(one)(*self.slots(inputs, noise, key))

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        """The round's key, and the participants' standard deviations."""
        key, relative = drawn
        return state, (key, self.noise_std * relative)

    def output(self, state: ClientState):
        server = state.server
        if self.window is None:
            return server.average
        return server.w if self.window == 1 else mean_of(server.last)

    def query(self, state: ClientState):
        """The point at which machines start."""
        return state.server.w

    def iterates(self, state: ClientState) -> dict[str, Any]:
        """The last iterate, evaluated in addition to the output."""
        return {"last": state.server.w}

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        require_choice("noise method", method, ("auto", "materialised"))
        return PerStep(np.asarray(self.records.message_noise(problem, plan), np.float32))

    def check(self, problem: Problem, plan: Plan) -> None:
        check_server(self.server, problem, self.server_step)

    def event(self, problem: Problem, plan: Plan) -> RecordEvent:
        return self.records.event(problem, plan, self.noise_std, theorem=EVERY_STEP)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        require_window(self.window, plan.size.rounds)
        require_learning_rate(self.server, self.server_step)
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
