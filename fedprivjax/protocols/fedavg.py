r"""FedAvg, also known as local SGD: the machines of a cohort take local minibatch steps, and the server averages.

McMahan et al., AISTATS 2017; with a proximal term it is FedProx (Li et al., MLSys 2020), with a server optimiser FedOpt
(Reddi et al., ICLR 2021). Machine i of the cohort S_r starts from v = w_r and takes K_i steps,

    v ← Π_W(v − η·(g_k + ρ·(v − w_r)))          Δ_i = v − w_r          w_{r+1} = Π_W(w_r + Σ_i p_i·Δ_i)

with g_k the mean gradient of a minibatch of its records and p_i = 1/|S_r|, or the machines' weights. Steps come from E
passes over the records, or from K independent samples.

Privacy is optional:

* `unit = "record"` adds N(0, σ²·I) to every g_k. Its sum is then always divided by B, so a record moves a step by at
  most 2C/B. All messages follow from the noisy steps.
* `unit = "machine"` (DP-FedAvg, McMahan et al., ICLR 2018) clips every update to norm C and divides their sum by the
  constant m̄ = E|S_r|. The server adds N(0, σ²·I) to this mean. Without a trusted server every machine adds N(0, σ²·I)
  to its own update. A trusted server's noise may be correlated over rounds (`noise_schedule`; DP-FTRL, Kairouz et al.,
  ICML 2021): the noise of a mean is then the difference of two rounds' noise in the running sum of the means.
* With an `AdaptiveClip` (Andrew et al., NeurIPS 2021) C follows a quantile of the norms, and σ is a multiple of it: see
  `fedprivjax/method/adaptive_clip.py`.
"""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_positive
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.algorithm import Public
from fedprivjax.method.encoders import Encoder
from fedprivjax.method.last_iterates import appended, iterate_buffer, mean_of
from fedprivjax.method.local_algorithm import AtServer, LocalAlgorithm, Work, point_of, walked
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.server_step import initial, optimizer_field, rates_of, require_server_step, served
from fedprivjax.method.setting_checks import check_numbers
from fedprivjax.method.small_form import BATCH
from fedprivjax.noise.server_factors import INDEPENDENT
from fedprivjax.plan.samplers import LocalEpochs, LocalSteps, LocalWork, Sampler, as_sampler, require_sampler
from fedprivjax.privacy.relations import REPLACE_ONE


class ServerState(NamedTuple):
    """Iterate w_r, the last `window` iterates or None, and the server optimiser's state."""

    w: Any
    last: Any
    optimizer: Any


@struct.dataclass(kw_only=True)
class LocalGradientSteps(LocalAlgorithm):
    """Algorithm of `FedAvg`: local gradient steps from the server's point, and a server step along the mean update.

    Attributes:
        prox: ρ of the proximal term (ρ/2)·‖v − w‖², which pulls a machine's point v to the received point w. None is no
            proximal term.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives minus the mean update as its gradient. If `server` is None, the
            server adds the mean update to its point.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, local steps are plain gradient steps.
        server_steps: learning rate of each round, shape [rounds], if `server_step` is a function; set before a run.
        window: number of last iterates whose mean is reported.
    """

    prox: Any = None
    server_step: Any = None
    server: Any = optimizer_field()
    local: Any = optimizer_field()
    server_steps: Any = struct.field(default=None, metadata={"derived": True})
    window: int = struct.field(pytree_node=False, default=1)

    def init(self, public: Public, step: Any) -> Any:
        last = iterate_buffer(public.start, self.window) if self.window and self.window > 1 else None
        return ServerState(public.start, last, initial(self.server, public.start, self._rate(1)))

    def sends(self, server: Any) -> Any:
        return server.w

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        v = point_of(carry)
        g = g if self.prox is None else jax.tree.map(lambda g, v, w: g + self.prox * (v - w), g, v, received)
        return walked(self.local, carry, g, work)

    def serve(self, server: Any, mean: Any, at: AtServer) -> Any:
        w, optimizer = served(self.server, server.optimizer, server.w, self._rate(at.t), mean)
        w = at.project(w)
        return ServerState(w, appended(server.last, w), optimizer)

    def point(self, server: Any) -> Any:
        return server.w if self.window == 1 else mean_of(server.last)

    def planned(self, rounds: int) -> Any:
        """Return a copy in which a schedule of the server's learning rate is replaced by its values.

        There is one value for each round.

        Args:
            rounds: number of rounds of the run.
        """
        rates = rates_of(self.server_step, rounds)
        return self if rates is None else replace(self, server_step=None, server_steps=rates)

    def _rate(self, t: Any) -> Any:
        """Return the server's learning rate in a round, or 1 if none is given."""
        if self.server_steps is None:
            return 1.0 if self.server_step is None else self.server_step
        return jnp.asarray(self.server_steps)[jnp.int32(t) - 1]


@struct.dataclass(kw_only=True)
class FedAvg(Protocol):
    """FedAvg, FedProx and FedOpt: local steps and averaging, not private, or private for one record or one machine.

    In round r, a machine (client) starts at the server's point, v = w_r. It takes local steps v ← Π(v − η·(g_k + ρ·(v −
    w_r))). Here g_k is the mean gradient at v of a minibatch of the machine's records, η the step size, and Π the
    projection onto the constraint set. The machine's update is its last v minus w_r. The server adds Δ, the weighted
    mean of the updates, to w_r, or it takes a step of an optimiser along Δ.

    Attributes:
        unit: protected unit. "record" protects one record by noise in every local step. "machine" protects all records
            of a machine by noise on clipped updates. Default: no privacy.
        mu: target μ of Gaussian DP; inf is non-private.
        epsilon: target ε at the run's δ; inf is non-private.
        noise_std: standard deviation per coordinate of the noise. With unit = "record", the noise is in the mean
            gradient of a local step. With unit = "machine", it is in the mean update if the server is trusted, and in
            each update otherwise. For correlated noise, see `noise_schedule`. With an `AdaptiveClip`, `noise_std` is a
            noise multiplier: messages are scaled to norm at most 1. The noise is then in the sum of the scaled messages
            if the server is trusted, and in each of them otherwise.
        step_size: η, step size of the local steps. Required, except if the optimiser `local` has its own learning rate.
        step_scale: factor by which the given or default step size is multiplied.
        clip: bound on the L2 norm of a record's gradient, enforced by clipping. If `clip` is None, runs with noise and
            unit = "record" clip gradients to the Lipschitz constant of the problem. Other runs do not clip gradients.
        update_clip: bound on the L2 norm of a machine's update, enforced by clipping. Required with unit = "machine".
            An `AdaptiveClip` is a bound that follows the norms of the updates.
        prox: ρ, strength of the proximal term of FedProx, or None for FedAvg.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives −Δ as its gradient. If `server` is None, the server adds Δ to w_r.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        local: optimiser of the local steps, such as `optax.adam` or "adam". The learning rate of `optax.adam` is
            `step_size`. The optimiser receives g_k + ρ·(v − w_r) as its gradient, and its state is reset in every
            round. If `local` is None, machines take the local steps above.
        local_epochs: number of passes over a machine's records in a round.
        local_steps: number of steps in a round, each on an independent sample of records. A tuple has one number for
            each machine. The numbers of steps are public, and must not depend on the data.
        batch: B, number of records of a local step, or None for all records of the machine.
        sampler: sampler of the records of a local step: "subset", "replacement", "poisson" or "full".
        rate: public probability with which a local step uses each record, for sampler = "poisson" only. The sum of the
            gradients is divided by B for any `rate`. Default: B divided by the machine's number of records.
        trust: "server" if a trusted server adds the noise, or "none" if the machines add it. Default: "server" with
            unit = "machine", otherwise "none".
        relation: neighbouring relation: "replace-one" (default) or "add-or-remove-one". With unit = "machine", a
            machine is removed by setting its updates to zero. With unit = "record", "add-or-remove-one" needs Poisson
            samples of a public `rate`.
        noise_schedule: correlation of the noise over rounds, with unit = "machine". One of:

            * "independent": independent noise in every round.
            * "tree": noise of a binary tree over all rounds. With {"tree": r}, a new tree starts after every r rounds.
            * "toeplitz": noise correlated by a banded Toeplitz matrix.
            * "optimal": noise correlated by a matrix that is fitted to the participation schedule.
            * An object such as `Banded`, `BLT` or `AnySchedule`.
            * A lower triangular matrix F with one row per round, or an object whose `materialize(rounds)` returns F.
              The server publishes F·x plus independent noise of standard deviation `noise_std`, where row t of x is the
              mean update of round t.
            * A `Pairwise`, for trust = "none".

            With "tree", "toeplitz" or "optimal", `noise_std` is the standard deviation of the noise in the mean update
            of the first round.
        window: number of last iterates whose mean is reported.
        encoder: `Encoder` that compresses messages, such as `Quantiser(levels=16)`, or None for no compression.
            Machines add their noise before encoding. A trusted server clips encoded messages to the norm bound of the
            encoder, and calibrates its noise to this bound.
        calibrate_to: computation of the noise from the target, "rule" or "plan". "rule" is the formula of the method,
            which may count more messages than a machine sends. "plan" is the smallest noise that meets the target on
            the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None is the adversary that `trust`
            implies.

    By default, all updates have the same weight in Δ. If the problem has `machine_weights`, the weights of the updates
    are proportional to them.

    **Privacy**: none, or (ε, δ)-DP for one record or for all records of one machine (`unit`), under the neighbouring
    relation `relation`, against the adversary that `trust` implies.

    Raises:
        Refusal: if a setting is invalid, or no theorem covers the combination of settings. Also if more than one of
            `epsilon`, `mu` and `noise_std` is given, or not exactly one of `local_epochs` and `local_steps`.

    >>> import numpy as np
    >>> from fedprivjax import Uniform, datasets, from_dataset, simulate
    >>> rows = np.arange(1420).reshape(20, 71)
    >>> problem = from_dataset(datasets.load("digits"), partition_table=rows)
    >>> method = FedAvg(local_epochs=2, batch=10, step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

    unit: str | None = struct.field(pytree_node=False, default=None)
    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    update_clip: Any = struct.field(default=None, metadata={"part": AdaptiveClip, "number": True})
    prox: Any = None
    server_step: Any = None
    server: Any = optimizer_field()
    local: Any = optimizer_field()
    local_epochs: int | None = struct.field(pytree_node=False, default=None)
    local_steps: int | tuple[int, ...] | None = struct.field(pytree_node=False, default=None)
    batch: int | None = struct.field(pytree_node=False, default=None)
    sampler: str | Sampler = struct.field(pytree_node=False, default="subset")
    rate: float | None = struct.field(pytree_node=False, default=None)
    trust: str | None = struct.field(pytree_node=False, default=None)
    relation: str = host_only(REPLACE_ONE)
    noise_schedule: Any = host_only(INDEPENDENT)
    window: int = struct.field(pytree_node=False, default=1)
    encoder: Encoder | None = struct.field(pytree_node=False, default=None, metadata={"part": Encoder})

    examples: ClassVar[tuple[dict[str, Any], ...]] = (
        {"unit": "record", "clip": 1.0, "local_epochs": 1, "batch": BATCH, "step_size": 1.0},
        {"unit": "record", "clip": 1.0, "local_steps": 2, "batch": BATCH},
        {"unit": "record", "clip": 1.0, "local_steps": 2, "batch": None},
        {"unit": "machine", "update_clip": 1.0, "local_epochs": 1, "batch": BATCH},
    )

    def __post_init__(self):
        if self.unit is None and self.mu is None and self.epsilon is None and self.noise_std is None:
            object.__setattr__(self, "noise_std", 0.0)
        check_numbers(self, "mu", "epsilon")
        require_server_step(self.server_step)
        require_positive("prox", self.prox, optional=True)
        require_at_least("window", self.window, 1)
        self._check_work()
        private = self.privacy  # raises Refusal unless a theorem covers the settings
        object.__setattr__(self, "trust", private.trust)
        object.__setattr__(self, "noise_schedule", private.noise)

    def _check_work(self) -> None:
        if (self.local_epochs is None) == (self.local_steps is None):
            given = "neither" if self.local_epochs is None else f"{self.local_epochs} and {self.local_steps}"
            raise Refusal(f"local_epochs or local_steps must be given, not both, got {given}. Set one of them")
        if self.local_epochs is not None and self.sampler != "subset":
            raise Refusal(
                f"sampler must be left out with local_epochs, which pass over all records, got {self.sampler!r}. "
                f"Use local_steps for samples"
            )
        if self.local_epochs is not None and self.rate is not None:
            raise Refusal(f"rate must be left out with local_epochs, got {self.rate}. Use local_steps")
        require_sampler(self.sampler, self.batch)
        batch = self.work.batch  # raises Refusal for invalid numbers of steps or records
        if self.local_steps is not None:
            object.__setattr__(self, "local_steps", self.work.number)  # type: ignore[attr-defined]
        if np.ndim(batch):  # type: ignore[arg-type]
            raise Refusal(f"batch must be one number for {self.name}, got {batch}. Set one batch for all machines")

    @property
    def work(self) -> LocalWork:
        """Sampler of the records of a round's local steps: `LocalEpochs` or `LocalSteps`."""
        if self.local_epochs is not None:
            return LocalEpochs(self.local_epochs, self.batch)
        assert self.local_steps is not None
        whole = isinstance(self.sampler, str) and self.batch is None
        return LocalSteps(self.local_steps, as_sampler("full" if whole else self.sampler, self.batch, self.rate))

    @property
    def algorithm(self) -> LocalGradientSteps:
        """Algorithm of the method: local gradient steps, and the server's step."""
        return LocalGradientSteps(**self._steps)

    @property
    def _steps(self) -> dict[str, Any]:
        """Settings of the algorithm by name."""
        return {name: getattr(self, name) for name in ("prox", "server", "server_step", "local", "window")}

    @property
    def privacy(self) -> LocalPrivacy:
        """Privacy object of the method: clipping and noise of local steps or of updates."""
        bounds = {"clip": self.clip, "update_clip": self.update_clip, "encoder": self.encoder}
        model = {"unit": self.unit, "trust": self.trust, "relation": self.relation, "noise": self.noise_schedule}
        return LocalPrivacy(work=self.work, **bounds, **model)

    @property
    def traced(self):
        """Copy in which settings that only the host reads are set to fixed values.

        Compiled programs receive this copy. If `server_step` is a schedule, it is None in the copy, and the programs
        receive an array of its values in all rounds instead.
        """
        return replace(super().traced, server_step=None) if callable(self.server_step) else super().traced
