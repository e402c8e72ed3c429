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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.method.adaptive_clip import EVEN, LEAST_SHARE
from fedprivjax.method.client_method import ClientState
from fedprivjax.method.clipping import clip
from fedprivjax.method.interface import BATCH, scaled_rate, slot_keys
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.local_privacy import NoisySteps, NoisyUpdates
from fedprivjax.method.local_steps import ServerState
from fedprivjax.method.round import RoundInputs
from fedprivjax.noise import Mechanism
from fedprivjax.noise.normals import normals
from fedprivjax.noise.rounds import round_factor
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import Target
from fedprivjax.problem.gradients import Dense
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.fedavg_settings import FedAvgSettings


@struct.dataclass(kw_only=True)
class FedAvg(FedAvgSettings):
    """FedAvg, FedProx and FedOpt, non-private, or private for one record or for one machine.

    Attributes:
        unit: protected unit: "record" for noise in every local step, "machine" for noise on clipped updates.
            Default: no privacy.
        mu, epsilon, noise_std: as in `DPMu2`. None of them is given without a unit. With an `AdaptiveClip`,
            `noise_std` is the noise multiplier, in units of the clip.
        step_size: η, step of the local steps, required.
        step_scale: factor on `step_size`.
        clip: bound on the norm of a record's gradient. None uses the problem's Lipschitz constant with unit = "record",
            and no clip otherwise.
        update_clip: C, bound on the norm of a machine's update, required with unit = "machine"; a number, or an
            `AdaptiveClip` that follows the updates' norms.
        prox: ρ of the proximal term (FedProx), or None for FedAvg.
        server: `ServerOptimizer` of the pseudo-gradient −Δ, for FedAvgM, FedAdam and FedYogi. None adds the mean.
        server_step: learning rate of the server optimiser, required with it: a number, or an optax schedule, which is
            a function of the round from 0, such as `optax.cosine_decay_schedule(1.0, 100)`.
        local_epochs: E, passes over a machine's records in a round. Either it or `local_steps` is given.
        local_steps: K, number of steps in a round, each on an independent sample of records.
        batch: B, number of records of a step, or None for all records of the machine.
        sampler: sampler of the records of a step with `local_steps`: "subset", "replacement", "poisson" or "full".
        rate: public probability of every record in a step with sampler = "poisson", which needs no dataset sizes. The
            sum is still divided by B. Default: B divided by a machine's number of records.
        trust: "none" or "server". Default: "server" with unit = "machine", else "none".
        relation: neighbouring relation, a key of `fedprivjax.privacy.terms.RELATIONS`. Default: "replace-one". With
            unit = "machine" and "add-or-remove-one", a machine's update is present or zero. With unit = "record", it
            needs Poisson samples of a public `rate`.
        noise_schedule: correlation of a trusted server's noise over rounds, with unit = "machine": "independent",
            "tree", "toeplitz" (banded), "optimal" (fitted to the schedule), or a lower triangular matrix F with one row
            per round, also as an object with `materialize(rounds)`, which returns F. `noise_std` is that of the
            released entries of F·x; with a name, also that of the first mean.
        window: number of last iterates whose mean is reported.
        encoder: `Encoder` of the messages, such as `Quantiser(levels=16)`, or None. A machine's own noise is added
            before it, and a trusted server's noise follows the bound on the norm of encoded messages, which are
            clipped to it.

    Machines with unequal numbers of steps are sorted by them in every round and computed in at most four classes, each
    as long as its longest machine. `Run.costs["idle_steps"]` is the share of computed steps that change nothing.

    The weights p_i are equal, or the problem's `machine_weights` within the cohort, such as "sizes".

    **Privacy**: none, or (ε, δ)-DP for replacing one record, or for one machine, in the view of the trust model.

    >>> import numpy as np
    >>> from fedprivjax import Uniform, datasets, from_dataset, simulate
    >>> rows = np.arange(1420).reshape(20, 71)
    >>> problem = from_dataset(datasets.load("digits"), partition_table=rows)
    >>> method = FedAvg(local_epochs=2, batch=10, step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.85)
    True
    """

    # ---- the round

    def server_init(self, problem: Problem, size: Size, key) -> Any:
        server = super().server_init(problem, size, key)
        return server._replace(clip=jnp.asarray(self.update_clip.start, jnp.float32)) if self.adaptive else server

    def round(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key) -> tuple[ClientState, dict]:
        """One round. With an adaptive clip it also reports the round's `clip`."""
        after, info = super().round(problem, state, inputs, noise, key)
        return after, info | ({"clip": self.at_server(state).clip} if self.adaptive else {})

    def client(self, server: Any, own, data: LocalData, noise, key):
        end, _ = self.walk(server.w, data, noise)
        update, info = self.bounded(jax.tree.map(jnp.subtract, end, server.w), server)
        return self.message(update, server, info, noise), own, info

    def encode(self, message, key):
        if self.encoder is None:
            return message
        vector, unravel = ravel_pytree(message)
        encoded = self.encoder.encode(vector, key)
        return unravel(encoded if self.encoded_norm is None else clip(Dense(encoded), self.encoded_norm).value)

    @property
    def noise_at_machines(self) -> bool:
        """True if machines sample noise, in every local step or in their messages before these are encoded."""
        own = self.trust == "none" and self.encoder is not None
        return self.unit == "record" or (self.unit == "machine" and own)

    def bounded(self, update, server: ServerState) -> tuple[Any, dict]:
        """Return a machine's update, clipped to norm C as a whole if there is a C, and clipping metrics."""
        if self.update_clip is None:
            return update, {}
        bound = server.clip if self.adaptive else self.update_clip
        vector = Dense(update)
        norm = vector.norm()
        info = {"clipped_share": (norm > bound).astype(jnp.float32), "message_norm": norm}
        return clip(vector, bound).value, info

    def message(self, update, server: ServerState, info: dict, noise) -> Any:
        """Return a machine's message: its clipped update, with an adaptive clip paired with its bit.

        With unit = "machine", `noise` is the key and standard deviation of the machine's own noise in it, or None.
        """
        if self.adaptive:
            norm = info["message_norm"]
            unclipped = jnp.where(jnp.isfinite(norm), norm, 0.0) <= server.clip  # a non-finite update became zero
            update = self.update_clip.pair(update, unclipped, server.clip, self.bit_factor)
        if self.unit != "machine" or noise is None:
            return update
        (key, deviation), (vector, unravel) = noise, ravel_pytree(update)
        return unravel(vector + deviation * normals(key, vector.shape))

    @property
    def bit_factor(self) -> Any:
        """Norm u of the bit's part of a message with an adaptive clip, traced."""
        if self.unit != "machine":  # the pair has no noise of its own
            return EVEN
        least = self.expected / LEAST_SHARE if self.trust == "server" else 0.0
        return self.update_clip.bit_factor(self.noise_std, least)

    def client_weight(self, data: LocalData):
        """M·p_i, from the weights of the machine's records in the plan."""
        if not self.weighted:
            return 1.0
        batch: Any = self.minibatches.batch
        count = self.local_steps * batch if self.local_steps and batch else jnp.sum(data.weights != 0)
        return jnp.max(data.weights) * count

    def step_noise(self, noise, step, dimension: int):
        if noise is None or self.unit != "record":
            return None
        key, deviation = noise
        return deviation * normals(jax.random.fold_in(key, step), (dimension,))

    @property
    def divisor(self) -> Any:
        """Divisor of a step's sum of gradients: B if records are protected or sampled, None for their number."""
        work = self.minibatches
        return work.batch if self.unit == "record" or work.of_step.independent else None

    def client_noise(self, noise, per_round: int):
        if not self.noise_at_machines or noise is None:
            return None
        key, deviations = noise
        return slot_keys(key, per_round), deviations

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        """The round's noise, or the round's key and the participants' standard deviations if machines sample it."""
        if not self.noise_at_machines:
            return super().noise(state, drawn, host_noise)
        key, relative = drawn
        return state, (key, self.noise_std * relative)

    def serve(self, problem: Problem, server: Any, total, weight, inputs: RoundInputs, noise) -> Any:
        update, server = self.noisy_mean(server, total, weight, inputs, noise)
        return self.moved(problem, server, update)

    def noisy_mean(self, server: ServerState, total, weight, inputs: RoundInputs, noise) -> tuple[Any, ServerState]:
        """The mean update with the noise of unit = "machine", and the state with the next clip."""
        divisor = self.cohort(weight, inputs)
        mean = jax.tree.map(lambda leaf: leaf / divisor, total)
        if not self.noise_at_machines and noise is not None:
            if self.adaptive and self.trust == "server":  # the multiplier is that of the sum
                noise = noise / divisor
            mean = jax.tree.map(jnp.add, mean, ravel_pytree(mean)[1](noise))
        if not self.adaptive:
            return mean, server
        update, bound = self.update_clip.released(mean, server.clip, self.bit_factor)
        return update, server._replace(clip=bound)

    def cohort(self, weight, inputs: RoundInputs):
        """Divisor of the sum of messages: E|S_r| with unit = "machine", else the sum of the weights."""
        return inputs.divisor if self.unit == "machine" else jnp.where(weight > 0, weight, 1.0)

    def noisy_steps(self, problem: Problem, state: ClientState, inputs: RoundInputs, noise, key):
        """Differences v_k − v_{k−1} of every local step, leaves [per_round, K, ...], with unit = "record"."""
        return super().noisy_steps(problem, state, inputs, noise, key) if self.unit == "record" else None

    def broadcast(self, state: ClientState) -> Any:
        """The logarithm of an adaptive clip, which moves with the noisy count, or () with a fixed clip."""
        return jnp.log(self.at_server(state).clip) if self.adaptive else ()

    def message_dimension(self, problem: Problem) -> int:
        """Number of numbers in a message: those of the update, and a bit with an adaptive clip."""
        return problem.dimension + self.adaptive

    def message_bits(self, problem: Problem) -> float:
        return (
            super().message_bits(problem)
            if self.encoder is None
            else self.encoder.bits(self.message_dimension(problem))
        )

    # ---- privacy, on the host

    def privacy(self, problem: Problem) -> NoisySteps | NoisyUpdates:
        """Return the mechanism of the protected unit."""
        if self.unit != "machine":
            return NoisySteps(self.minibatches, self.clip, self.relation)
        return NoisyUpdates(
            str(self.trust),
            self.update_clip,
            self.relation,
            self.noise_schedule,
            stateful=bool(jax.tree.leaves(jax.eval_shape(lambda: self.client_init(problem)))),
            encoder=self.encoder,
            dimension=self.message_dimension(problem),
        )

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.privacy(problem).mechanism(plan, method)

    def event(self, problem: Problem, plan: Plan) -> Event:
        return self.privacy(problem).event(problem, plan, float(self.noise_std))

    def server_noise(self, plan: Plan) -> float:
        factor = round_factor(self.noise_schedule)
        return 1.0 if factor is None else factor.first_std(plan.schedule)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        self.check_target(target)
        expected = float(plan.schedule.divisor) if self.adaptive else None
        norm = self._encoded_norm(problem)
        method = replace(self, weighted=problem.weights is not None, expected=expected, encoded_norm=norm)
        calibrated = super(FedAvg, method).calibrate(problem, plan, target)
        if self.adaptive:
            self.update_clip.check(calibrated.noise_std if self.unit == "machine" else 0.0)
        return calibrated

    def _encoded_norm(self, problem: Problem) -> float | None:
        """Bound to which encoded messages are clipped before a trusted server's noise, or None."""
        privacy = self.privacy(problem)
        if isinstance(privacy, NoisyUpdates) and self.trust == "server" and self.encoder is not None:
            return privacy.norm
        return None

    @property
    def protects_machines(self) -> bool:
        return self.unit == "machine"

    @property
    def shows_clipping(self) -> bool:
        return self.adaptive

    @property
    def gradient_clip(self) -> Any:
        if self.unit != "machine":
            return self.clip
        step = 1.0 if self.step_size is None else float(np.max(self.step_size)) * float(np.max(self.step_scale))
        bound = self.update_clip.start if self.adaptive else self.update_clip
        return float(np.max(bound)) / step

    def scaled_down(self, machines: int):
        """Scale down as in `Protocol.scaled_down`, with a public rate at which a few records are used."""
        return replace(super().scaled_down(machines), rate=scaled_rate(self.rate))

    @classmethod
    def audit_settings(cls) -> dict[str, Any]:
        return {"unit": "record", "clip": 1.0, "local_epochs": 1, "batch": BATCH, "step_size": 1.0}

    @classmethod
    def example_settings(cls) -> tuple[dict[str, Any], ...]:
        steps = {"unit": "record", "clip": 1.0, "local_steps": 2}
        machines = {"unit": "machine", "update_clip": 1.0, "local_epochs": 1, "batch": BATCH}
        return cls.audit_settings(), {**steps, "batch": BATCH}, {**steps, "batch": None}, machines
