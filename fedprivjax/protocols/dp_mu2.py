r"""DP-μ²-FL: anytime averaging with STORM-corrected momentum, private by noise on its running sums.

Reshef & Levy, ICML 2024 (full participation, Algorithms 1 and 2) and ICML 2025 (partial participation, noise
cancellation). The weights are α_t = t and β_t = 1/t. A machine that takes part in round t with a fresh sample z sends

    s_{t,i} = t·∇f(x_t; z) − (t−1)·∇f(x_{t−1}; z),        ‖s‖ ≤ S = G + 2LD, or clipped to ‖s‖ ≤ C

and the server steps along the noisy running mean of the increments:

    q_t = q_{t−1} + (1/m)·Σ_{i∈S_t} s_{t,i}        q̃_t = q_t + noise_std·z_t        m = E|S_t|, one for all rounds
    w_{t+1} = Π_K(w_t − η·q̃_t)                     x_{t+1} = x_t + 2/(t+2)·(w_{t+1} − x_t)        output x_T

The four protocols of the papers are settings of this one. With `trust="server"`, the server adds fresh noise to q_t in
every round. With `trust="none"`, machines add and cancel their own noise, which at full participation is fresh noise on
every machine's running sum. If |S_t| varies, or scheduled machines drop out, m is the same constant in all rounds.
Otherwise noise would be added and cancelled with different divisors, and would accumulate in q̃. A machine that drops
out sends nothing, and keeps its noise and its sample. The guarantee is that of the planned messages.

This implementation adds:

* the noise schedules `uniform` and `gap`, which use the public participation schedule;
* `clip`: the privacy proof then needs only ‖s‖ ≤ C, so G, L and D do not enter the guarantee;
* `batch`: a machine sends the mean of K fresh samples' increments, whose sensitivity to one sample is 2S/K.

With a batch, T/K rounds and K² times the step, the noise in x is that of K = 1, with K times fewer messages. The
default step grows by K² if the noise determines it. Its cap 1/(4LT) for unclipped increments grows only by K. For
clipped batches the cap 2D/(CT) prevents very short runs from crossing the set in every step.
"""

from functools import partial
from math import inf, isfinite
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag
from fedprivjax.method.algorithm import Algorithm, At, NormBound, Public, Reads, Sum
from fedprivjax.method.default_steps import gathered_reach, step_by_theory
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.message_noise import CorrelatedNoise, MessageNoise
from fedprivjax.method.noisy_messages import INDEPENDENT, NoisyMessages
from fedprivjax.method.planning.drafts import one_pass
from fedprivjax.method.planning.uses import POPULATION, Bound, PlannedRun, Use, explicit
from fedprivjax.method.relative_privacy import noise_of_shares
from fedprivjax.method.server_step import initial, optimizer_field, stepped
from fedprivjax.method.setting_checks import fixed_schedule
from fedprivjax.method.theory import Theory
from fedprivjax.noise import NOISE_SCHEDULES
from fedprivjax.noise.message_factors import SUM_FACTORS
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_sgd import MessageSettings
from fedprivjax.theory import reshef_levy


class Mu2State(NamedTuple):
    """Points x_t, x_{t−1} and w_t, pytrees like the parameters, and the state of the server optimiser."""

    x: Any
    x_previous: Any
    w: Any
    optimizer: Any = ()


@struct.dataclass(kw_only=True)
class Mu2(Algorithm):
    """μ²-SGD, which reads the noisy running sum of the mean increments.

    Attributes:
        server: optimiser of the server's steps, which receives the running sum as its gradient.
    """

    server: Any = optimizer_field()

    recalls = True

    @property
    def reads(self) -> Reads:
        """The running sum q̃_t."""
        return Sum()

    def init(self, public: Public, step: Any) -> Mu2State:
        w = public.start
        return Mu2State(w, w, w, initial(self.server, w, step))

    def message(self, server: Mu2State, t: Any) -> Linear:
        """The increment s_t."""
        return t * gradient(server.x) - (t - 1) * gradient(server.x_previous)

    def serve(self, server: Mu2State, read: Any, at: At) -> Mu2State:
        w, optimizer = stepped(self.server, server.optimizer, server.w, read, at.step)
        w = at.project(w)
        x = jax.tree.map(lambda x, w: x + 2 / (at.t + 2) * (w - x), server.x, w)
        return Mu2State(x, server.x, w, optimizer)

    def point(self, server: Mu2State) -> Any:
        """x_T: after T rounds the state already holds x_{T+1}."""
        return server.x_previous

    def bound(self, public: Public) -> NormBound:
        """S = G + 2LD."""
        constants = {"smoothness": public.smoothness, "diameter": float(public.constraint.diameter)}
        smooth = Assumption("lipschitz and smooth", {**lipschitz_values(public), **constants})
        norm = public.lipschitz + 2 * public.smoothness * public.constraint.diameter
        return NormBound(norm, (smooth, Assumption("honest but curious")))


def _equivalent(protocol: Any, machines: int):
    """Return the trusted-server form for one machine, whose noise then has the same distribution."""
    privacy = protocol.privacy
    alone = machines == 1 and privacy.noise != INDEPENDENT and privacy.trust == "none"
    return protocol.with_settings({"trust": "server", "relative_privacy": None}) if alone else protocol


def _step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    size, increment, privacy = plan.size, protocol.rounds.bound(problem, plan.size.machines).norm, protocol.privacy
    noise, clip = privacy.noise_of(Sum()), privacy.clip
    wider = noise_of_shares(privacy.relative_privacy, size.machines)
    if not (isfinite(problem.travel) and isfinite(increment)):
        return inf
    single = privacy.batch * privacy.sensitivity(increment, plan.schedule)  # of one sample's increment
    mu = single / (protocol.noise_std * wider) if protocol.noise_std else inf
    theory = partial(
        reshef_levy.step_size,
        trust=privacy.trust,
        noise_schedule=privacy.noise if isinstance(privacy.noise, str) else "uniform",
        mu=mu,
        machines=size.machines,
        per_round=max(1, round(plan.schedule.divisor)),
        rounds=size.rounds,
        dimension=problem.dimension,
        diameter=problem.travel if clip is None else gathered_reach(problem),
        increment=increment,
    )
    theory_step = step_by_theory(problem, theory, mu=mu, clip=clip, rounds=size.rounds, batch=privacy.batch)
    return theory_step * noise.gain(plan) if isinstance(noise, CorrelatedNoise) else theory_step


def noise_variances(protocol: Any, plan: Plan) -> np.ndarray:
    """Return the variance of one coordinate of the calibrated noise in each round's q̃_t; float64, shape [rounds]."""
    return float(protocol.noise_std) ** 2 * protocol.privacy.noise_of(Sum()).variances(plan)


def _uses(method: Any) -> tuple[Use, ...]:
    return (Use("", one_pass(method, "none", "server")),)


def _bound(protocol: Any, run: PlannedRun) -> Bound:
    """Return the bound of Reshef & Levy 2024 at full participation, else `anytime_bound`.

    The error of an increment is at most S, and that of the mean of K fresh increments S/√K.
    """
    s, size, constraint, batch = run.setting, run.plan.size, run.problem.constraint, run.plan.width
    largest = reshef_levy.increment_bound(s.lipschitz, s.smoothness, s.diameter)
    deviation, trusted = largest / batch**0.5, protocol.privacy.trust == "server"
    if not s.full:
        noise = np.sqrt(s.dimension * noise_variances(protocol, run.plan))
        bound = reshef_levy.anytime_bound(
            step=run.step,
            rounds=size.rounds,
            per_round=size.per_round,
            radius=float(constraint.radius),
            lipschitz=s.lipschitz,
            deviation=deviation,
            noise=noise,
            fresh=trusted,
        )
        loose = "" if trusted else ", loose for noise that persists"
        return explicit(POPULATION, f"anytime averaging, at any participation (derived here{loose})", **bound._asdict())
    known = {"machines": size.machines, "rounds": size.rounds, "dimension": s.dimension, "diameter": s.diameter}
    known |= {"increment": largest, "smoothness": s.smoothness, "optimum_gradient": s.lipschitz}
    known["trust"] = protocol.privacy.trust
    steps = reshef_levy.full_bound(mu=np.inf, **known)
    sampled = reshef_levy.full_bound(mu=np.inf, deviation=deviation, **known)
    mu = batch * run.event.mu  # of the noise of one increment, which is divided by K
    total = reshef_levy.full_bound(mu=mu, deviation=deviation, **known)
    theorem = f"Reshef & Levy 2024, {'trusted' if trusted else 'untrusted'} server"
    return explicit(POPULATION, theorem, optimisation=steps, sampling=sampled - steps, noise=total - sampled)


@struct.dataclass(kw_only=True)
class DPMu2(MessageSettings):
    """DP-μ²-FL (Reshef & Levy 2024, 2025): one pass over the records, with noise that cancels over rounds.

    In round t, a machine (client) takes a record z that was not used before. It sends the message s = t·∇f(x_t; z) −
    (t−1)·∇f(x_{t−1}; z), where f is the loss and x_t the server's point. The running sum q_t is q_{t−1} plus the mean
    of the round's messages. The server reads only q̃_t, which is q_t plus noise.

    With step size η and the projection Π onto the constraint set, the server takes the step w_{t+1} = Π(w_t − η·q̃_t),
    and averages: x_{t+1} = x_t + 2/(t+2)·(w_{t+1} − x_t). The output after T rounds is x_T.

    Attributes:
        mu: target μ of Gaussian DP. With inf, the method is μ²-SGD without noise.
        epsilon: target ε at the run's δ, given instead of `mu`.
        noise_std: scale of the noise, given instead of `mu`. A machine adds noise of standard deviation r_k·noise_std
            per coordinate to its k-th message. A trusted server instead adds noise of standard deviation r_t·noise_std
            to q_t in round t. The factors r_k and r_t are the *relative noise*, which follows from `noise_schedule` and
            `relative_privacy`. If a matrix correlates the noise (`noise_schedule`), `SumFactor` states the noise of a
            message instead.
        step_size: η, step size of the server. Default: the step of the theory, at which noise moves x_T by at most
            about the diameter of the constraint set. `fedprivjax.theory.reshef_levy.step_size` computes this step. With
            a `clip`, the default is a rule of thumb without a theorem: the distance
            `fedprivjax.method.default_steps.gathered_reach` replaces the diameter.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, bound on the L2 norm of s, enforced by clipping. If `clip` is None, the guarantee relies on the bound G
            + 2LD. Here G is the Lipschitz constant of the problem, L its smoothness, and D the diameter of its
            constraint set.
        trust: "none" if every message is public and machines add the noise. "server" if only the points x_t are public
            and a trusted server adds the noise.
        noise_schedule: distribution of the noise over a machine's messages. One of:

            * A key of `fedprivjax.noise.chooser.NOISE_SCHEDULES`, such as "uniform" for equal noise in all messages.
            * A list of positive numbers: the relative noise of a machine's first, second, … message. Only ratios
              matter.
            * {"toeplitz": p}: noise correlated by `Toeplitz(p)`. "toeplitz" means p = 0.7.
            * "optimal": noise correlated by a matrix that nearly minimises the noise in the points x_t (`Optimal`).
            * A `SumFactor`, or a lower triangular matrix with columns of L2 norm at most 1: noise correlated by this
              matrix.
            * An object whose `materialize(n)` returns a lower triangular matrix for n messages: noise correlated by
              this matrix.
        relative_privacy: one number for each machine, proportional to the machine's own μ. The largest number belongs
            to the target μ. None gives all machines the target μ.
        cancel: True if a machine subtracts the noise of its previous message from its next message, so that noise does
            not accumulate in q̃_t. False omits the subtraction.
        batch: K, number of records in a message. The message is the mean of the vectors s of these records, which are
            clipped one by one. A machine with n records sends at most ⌊n/K⌋ messages, and does not use the remaining
            records.
        server: optimiser of the server's steps, which receives q̃_t as its gradient. The learning rate of `optax.adam`
            (or "adam") is `step_size`. `ServerOptimizer` lists all forms. If `server` is None, steps are plain gradient
            steps.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the formula of the method,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.

    **Privacy**: μ-GDP for replacing one record of a machine. The factors r_k are scaled such that μ is at most
    2S/(K·noise_std). S is the bound on the norm of s: C, or G + 2LD without a `clip`. With a trusted server and m
    machines in a round, S/m replaces S. The same bound holds for correlated noise, and for cancel = False.

    Raises:
        Refusal: if a setting is invalid, or more than one of `epsilon`, `mu` and `noise_std` is given.

    >>> from fedprivjax import Ball, Full, datasets, from_dataset, ready
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> start = ready(DPMu2(epsilon=8.0, clip=1.6), problem, Full(20))
    >>> round(start.guarantee.epsilon, 3), round(float(start.protocol.noise_std), 3)
    (8.0, 1.921)
    """

    trust: str = host_only("none")
    noise_schedule: Any = host_only("uniform")
    cancel: bool = struct.field(pytree_node=False, default=True)
    server: Any = optimizer_field()

    theory = Theory(step=_step, bound=_bound, uses=_uses, equivalent=_equivalent).of(Mu2, NoisyMessages)

    def __post_init__(self):
        require_flag("cancel", self.cancel)
        object.__setattr__(self, "noise_schedule", fixed_schedule(self.noise_schedule, NOISE_SCHEDULES, SUM_FACTORS))
        super().__post_init__()
        if not self.cancel and (self.trust != "none" or self.noise_schedule != "uniform"):
            raise Refusal("cancel=False must go with trust='none' and noise_schedule='uniform'")

    @property
    def algorithm(self) -> Mu2:
        """Algorithm of the method: μ²-SGD, a momentum method with corrected gradients and averaged iterates."""
        return Mu2(server=self.server)

    @property
    def privacy(self) -> NoisyMessages:
        """Privacy object of the method: noise on messages whose running sum the server reads.

        With `cancel = True`, each message cancels the noise of the previous one.
        """
        settings = {"clip": self.clip, "trust": self.trust, "relative_privacy": self.relative_privacy}
        return NoisyMessages(noise=self.noise_schedule if self.cancel else INDEPENDENT, batch=self.batch, **settings)

    @property
    def message_noise(self) -> MessageNoise:
        """Description of the noise: its size in each message, and how it cancels in the running sums."""
        return self.privacy.noise_of(Sum())

    def noise_variances(self, plan: Plan) -> np.ndarray:
        """Return the noise variance of one coordinate of each round's running sum; float64, shape [rounds].

        The protocol must be calibrated.

        Args:
            plan: plan of the run, which says who takes part in each round.
        """
        return noise_variances(self, plan)
