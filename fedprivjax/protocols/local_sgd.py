r"""Local SGD (FedAvg), plain and noisy: the machines of a cohort take K local steps each, and the server averages.

The baseline of Lowy & Razaviyayn, ICLR 2023, as in their code (McMahan et al. 2017; Stich 2019). Machine i starts
from w_r and takes K steps, each on one of its own records,

    v ← Π_W(v − η·(∇f(v; x_ik) + N(0, σ²·I)))                  w_{r+1} = (1/M_r)·Σ_{i∈S_r} v_i

Every step is private, and the guarantee composes a machine's R·K steps. It holds for any loss, although only the end
points are sent. Messages are not sums of gradients, so every machine's steps are computed separately.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.values import require_at_least
from fedprivjax.method.algorithm import Public
from fedprivjax.method.default_steps import binds, clipped_pace
from fedprivjax.method.local_algorithm import AtServer, Work, point_of, sub
from fedprivjax.method.planning.drafts import capped, of_records
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Bound, Draft, PlannedRun, Use, missing
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.record_settings import RecordSettings
from fedprivjax.method.record_steps import NoisyRecordSteps
from fedprivjax.method.server_step import optimizer_field, require_server_step
from fedprivjax.method.theory import Theory
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.fedavg import LocalGradientSteps, ServerState
from fedprivjax.protocols.noisy_minibatch_sgd import require_window
from fedprivjax.theory.lowy_razaviyayn import one_pass_rounds

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
class AveragedEndPoints(LocalGradientSteps):
    """FedAvg's local steps, of which machines send the end points, and the mean of the server's iterates.

    Every machine must take a step: one that takes none sends 0, which is no end point.

    Attributes:
        window: number of last iterates whose mean is reported, or None for the mean of all iterates before w_R.
    """

    window: int | None = struct.field(pytree_node=False, default=None)  # type: ignore[assignment]

    equal_weights = True

    def init(self, public: Public, step: Any) -> LocalState:
        first = super().init(public, step)
        return LocalState(first.w, first.last, first.optimizer, public.start, jnp.zeros(()))

    def leave(self, carry: Any, received: Any, own: Any, work: Work) -> Any:
        return point_of(carry)

    def serve(self, server: LocalState, mean: Any, at: AtServer) -> LocalState:
        after = super().serve(ServerState(server.w, server.last, server.optimizer), sub(mean, server.w), at)
        rounds = server.rounds + 1
        average = jax.tree.map(lambda a, w: a + (w - a) / rounds, server.average, server.w)
        return LocalState(after.w, after.last, after.optimizer, average, rounds)

    def point(self, server: LocalState) -> Any:
        return server.average if self.window is None else super().point(server)

    def iterates(self, server: LocalState) -> dict[str, Any]:
        """The last iterate, evaluated in addition to the output."""
        return {"last": server.w}


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the step by a rule of thumb for clipped gradients: `1/η² = K·(R·κ² + κ_1²)`; inf for other gradients.

    κ is `clipped_pace` of the mean over R·K steps, and κ_1 that of the noise in the K steps of one machine.
    """
    clip = protocol.privacy.clip
    if not (binds(problem, clip) and np.isfinite(problem.reach)):
        return np.inf
    noise, steps = float(protocol.noise_std) * problem.dimension**0.5, plan.width
    of_mean = noise / plan.schedule.cohort**0.5
    together = clipped_pace(problem, float(clip), of_mean, averaged=protocol.algorithm.window is None)
    alone = clipped_pace(problem, 0.0, noise)
    return float((steps * (plan.size.rounds * together**2 + alone**2)) ** -0.5)


def _uses(method: Any) -> tuple[Use, ...]:
    return (Use("", partial(_drafts, method)),)


def _drafts(method: Any, s: Setting) -> Iterator[Draft]:
    batch = min(PLANNED_STEPS, s.samples) if s.batch is None else s.batch
    most = one_pass_rounds(records=s.samples, batch=batch)
    rounds, note = capped(s, most if s.rounds is None else s.rounds)
    step = s.diameter / (s.lipschitz * (rounds * batch) ** 0.5)
    stated = "step D/(G√(RK)) as a placeholder: no step is proved, and the noise does not depend on it"
    note = "; ".join(filter(None, (note, stated)))
    yield of_records(method, s, {"sampler": "disjoint", "batch": batch, "step_size": step}, rounds, note)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    return missing("no step and no bound is proved for local steps with noise")


@struct.dataclass(kw_only=True)
class LocalSGD(RecordSettings, Protocol):  # type: ignore[misc]
    """Local SGD (FedAvg) with one record per local step, plain or with noise in every step.

    In each of R rounds, a machine (client) starts from the server's point w_r and takes K projected steps. Each step
    uses one of the machine's own records x: v ← Π(v − η·(∇f(v; x) + N(0, σ²·I))). Here f is the loss, η the step size,
    σ² the variance of the noise per coordinate, and Π the projection onto the constraint set. The server's next point
    w_{r+1} is the mean of the machines' last points.

    Attributes:
        epsilon: target ε: one number for all machines, or one for each. It holds at the δ of the machine, see `delta`.
            With inf, the run has no noise.
        noise_std: σ, standard deviation per coordinate of the noise in a local step, given instead of `epsilon`. If the
            noises of machines differ, σ is the largest one.
        step_size: η, step size of the local steps. If `clip` is below the Lipschitz constant, and a bound on the
            distance to the optimum is known (`problem.reach`), the default is a rule of thumb without a theorem.
            Otherwise, there is no default.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of every record's gradient, enforced by clipping. If `clip` is None, the guarantee
            relies on the Lipschitz constant that the problem states.
        noise_rule: rule that computes σ from ε: "accountant" (default) or "advanced".
            `fedprivjax.privacy.noise_rules.NOISE_RULES` describes both. The rule counts every local step as a message.
        delta: δ of every machine, or one number for each machine, at most the run's δ. "records" stands for 1/n_i² for
            a machine with n_i records. Default: the run's δ.
        relative_privacy: one number for each machine, proportional to the machine's own target ε. The largest number
            belongs to the target `epsilon`. None gives all machines the target `epsilon`.
        batch: K, number of local steps in a round.
        sampler: "replacement" samples the K records of a round with replacement. "disjoint" uses no record twice in the
            whole run.
        rate: always None, because a step uses exactly one record.
        relation: always "replace-one".
        window: number of last iterates whose mean is reported. None reports the mean of w_0 … w_{R−1}.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives w_r minus the mean of the machines' last points as its gradient. If
            `server` is None, w_{r+1} is this mean.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        local: optimiser of the local steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`, which then has no default. If `local` is None, steps are plain gradient steps.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" follows `noise_rule`, as if
            every machine took part in every round. "plan" is the smallest noise that meets the target on the
            participation schedule of the run.
        adversary: adversary against whom the guarantee holds. None is an adversary who sees every local step.

    **Privacy**: (ε_i, δ_i)-DP for replacing one record of machine i, even against an adversary who sees every local
    step.

    Raises:
        Refusal: if a setting is invalid, or both `epsilon` and `noise_std` are given.

    >>> import numpy as np
    >>> from fedprivjax import Ball, Full, datasets, from_dataset, ready
    >>> rows = np.arange(1420).reshape(20, 71)  # 20 machines of 71 records
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=rows)
    >>> method = LocalSGD(epsilon=8.0, clip=1.6, batch=5, step_size=0.1)
    >>> round(ready(method, problem, Full(20), rounds=10).guarantee.epsilon, 3)
    8.0
    """

    server_step: Any = None
    sampler: str | Sampler = host_only("replacement")
    window: int | None = struct.field(pytree_node=False, default=None)
    server: Any = optimizer_field()
    local: Any = optimizer_field()

    theory = Theory(step=_step, bound=_bound, uses=_uses).of(AveragedEndPoints, NoisyRecordSteps)

    def __post_init__(self):
        super().__post_init__()
        require_server_step(self.server_step)
        if self.window is not None:
            require_at_least("window", self.window, 1)

    @property
    def algorithm(self) -> AveragedEndPoints:
        """Algorithm of the method: local steps, and the server's step."""
        own = {name: getattr(self, name) for name in ("server", "server_step", "local", "window")}
        return AveragedEndPoints(**own)

    @property
    def privacy(self) -> NoisyRecordSteps:
        """Privacy object of the method: noise in every local step."""
        return NoisyRecordSteps(**self._shared)

    @property
    def traced(self):
        """Copy in which settings that only the host reads are set to fixed values.

        Compiled programs receive this copy. If `server_step` is a schedule, it is None in the copy, and the programs
        receive an array of its values in all rounds instead.
        """
        return replace(super().traced, server_step=None) if callable(self.server_step) else super().traced

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        require_window(self.window, plan.size.rounds)
        return super().calibrate(problem, plan, target)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        return size.per_round  # a step takes one record of each machine
