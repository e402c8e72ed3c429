r"""Local SGD (FedAvg), plain and noisy: machines of a cohort walk K steps by themselves, and the server averages.

The baseline of Lowy & Razaviyayn, ICLR 2023, as their code runs it (McMahan et al. 2017; Stich 2019). Machine i starts
from w_r and does K steps, each on one of its own records,

    v ← Π_W(v − η·(∇f(v; x_ik) + N(0, σ²·I)))                  w_{r+1} = (1/M_r)·Σ_{i∈S_r} v_i

A step is private by itself, so a machine's R·K steps are composed: that is what is proved for any loss, though only
the end points are sent. Messages are no sums of gradients, so every machine's walk is computed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.noise import PerStep
from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs, oracle
from fedprivjax.protocols.noisy_minibatch_sgd import appended, iterates, mean_of, require_window
from fedprivjax.protocols.records import Machines, RecordProtocol


class LocalState(NamedTuple):
    """w_r, the mean of the iterates before it, their number, and the last `window` iterates."""

    w: Any
    average: Any
    rounds: jax.Array
    last: Any


@struct.dataclass
class LocalSGD(RecordProtocol):
    """Local SGD, with noise in every local step where `epsilon` is finite.

    Attributes:
        batch: K, local steps in a round, one record each.
        sampler: how the K records are picked: "replacement" or "disjoint".
        window: report the mean of this many last iterates instead of the mean of all before w_R.

    The other attributes are `RecordProtocol`'s; the noise rule is applied to R·K releases of one record each.

    **Privacy**: (ε_i, δ_i)-DP for replacing one record, every local step released (post-processing covers what is
    sent). Claims beyond that hold for linear losses only.
    """

    sampler: str = struct.field(pytree_node=False, default="replacement")
    window: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        RecordProtocol.__post_init__(self)
        require_choice("sampler", self.sampler, ("replacement", "disjoint"))
        require_choice("aggregate", self.aggregate, ("mean",))
        require_choice("clip_at", self.clip_at, ("record",))
        if self.batch is not None and np.ndim(self.batch):
            raise Refusal("batch must be one number for local SGD: machines take equally many steps")
        if self.machine_weights is not None:
            raise Refusal("machine_weights must be left out in local SGD: end points are averaged alike")
        if self.window is not None:
            require_at_least("window", self.window, 1)

    def init(self, problem: Problem, size: Size) -> LocalState:
        w = problem.start
        return LocalState(w, w, jnp.zeros(()), iterates(w, self.window))

    def round(self, problem: Problem, state: LocalState, inputs: RoundInputs, noise) -> LocalState:
        ends = self.messages(problem, state, inputs, noise)
        count = jnp.sum(inputs.present)
        w = jax.tree.map(lambda rows: jnp.tensordot(inputs.present, rows, axes=1) / count, ends)
        rounds = state.rounds + 1
        average = jax.tree.map(lambda a, w: a + (w - a) / rounds, state.average, state.w)
        return LocalState(w, average, rounds, appended(state.last, w))

    def messages(self, problem: Problem, state: LocalState, inputs: RoundInputs, noise=None):
        """Where the participants' walks end, leaves [per_round, ...]; `noise` is `PerStep`'s of the round, or None."""
        step = self.step_scale * self.step_size
        machines = inputs.machine.shape[0]
        starts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (machines, *leaf.shape)), state.w)

        def one(v, example, z):
            g = self.record(v)(oracle(problem.model.gradients, example)).written_out()
            if z is not None:
                g = jax.tree.map(lambda g, z: g + self.noise_std * z, g, problem.unravel(z))
            return problem.constraint.project(jax.tree.map(lambda v, g: v - step * g, v, g))

        def together(v, some):
            k, samples = some
            z = None if noise is None else PerStep.draw(noise, k, problem.dimension)
            return jax.vmap(one)(v, problem.take(samples, inputs.machine), z), None

        steps = inputs.samples.shape[1]
        return jax.lax.scan(together, starts, (jnp.arange(steps), inputs.samples.T))[0]

    def output(self, state: LocalState):
        return state.average if self.window is None else mean_of(state.last)

    def also(self, state: LocalState) -> dict[str, Any]:
        """The last iterate, recorded beside the output."""
        return {"last": state.w}

    def calibrated(self, problem: Problem, plan, *, epsilon=None, delta: float | None = None):
        """As `RecordProtocol.calibrated`."""
        require_window(self.window, getattr(plan, "size", plan).rounds)
        return RecordProtocol.calibrated(self, problem, plan, epsilon=epsilon, delta=delta)

    def noise(self, problem: Problem, plan: Plan, method: str = "auto") -> Any:
        require_choice("noise method", method, ("auto", "materialised"))
        return PerStep(np.asarray(self.participants_noise(problem, plan), np.float32))

    def releases(self, m: Machines) -> int:
        return int(m.batch[0])

    def sensitivity(self, problem: Problem, size: Size) -> float:
        """2L, of one local step, in units of the noise of the machine for which it is largest."""
        return float(np.max(self._shift(problem, self._single(problem), size)))

    def event(self, problem: Problem, plan: Plan):
        return self.sampled_event(problem, plan, self._single(problem))

    @property
    def theorem(self) -> str:
        return "every local step released (post-processing); composed profile of the subsampled Gaussian mechanism"

    def default_step(self, problem: Problem, size: Size, cohort: float) -> float:
        """None is proved under privacy; set a step."""
        return np.inf

    def _single(self, problem: Problem) -> Machines:
        """The machines as they release a step: of one record."""
        m = self.machines(problem)
        return m._replace(batch=np.ones_like(m.batch))

    def _released(self, m: Machines) -> tuple[str, np.ndarray]:
        return self.sampler, np.ones_like(m.batch)
