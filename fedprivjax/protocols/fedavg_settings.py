"""Settings of FedAvg and the methods built on it, with their checks."""

from typing import Any, ClassVar

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least, require_choice, require_positive
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.addable_records import require_addable
from fedprivjax.method.encoders import Encoder
from fedprivjax.method.local_privacy import UNITS
from fedprivjax.method.local_steps import AveragedSteps
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.server_step import check_server, require_learning_rate, require_server, require_server_step
from fedprivjax.method.settings import check_numbers, require_clip
from fedprivjax.noise.rounds import INDEPENDENT, over_rounds, round_factor
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalEpochs, LocalSteps, LocalWork, Sampler, as_sampler
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import RELATIONS, REPLACE_ONE
from fedprivjax.problem.problem import Problem


@struct.dataclass(kw_only=True)
class FedAvgSettings(AveragedSteps):
    """Settings of local minibatch steps, of the server's step and of the protected unit. `FedAvg` documents them."""

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
    server_steps: Any = struct.field(default=None, metadata={"derived": True})
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})
    local_epochs: int | None = struct.field(pytree_node=False, default=None)
    local_steps: int | None = struct.field(pytree_node=False, default=None)
    batch: int | None = struct.field(pytree_node=False, default=None)
    sampler: str | Sampler = struct.field(pytree_node=False, default="subset")
    rate: float | None = struct.field(pytree_node=False, default=None)
    trust: str | None = struct.field(pytree_node=False, default=None)
    relation: str = struct.field(pytree_node=False, default=REPLACE_ONE)
    noise_schedule: Any = struct.field(pytree_node=False, default=INDEPENDENT)
    window: int = struct.field(pytree_node=False, default=1)
    encoder: Encoder | None = struct.field(pytree_node=False, default=None, metadata={"part": Encoder})
    weighted: bool = struct.field(pytree_node=False, default=False, metadata={"derived": True})
    expected: Any = struct.field(default=None, metadata={"derived": True})
    encoded_norm: Any = struct.field(default=None, metadata={"derived": True})

    weighs_machines: ClassVar[bool] = True
    plain: ClassVar[dict[str, Any]] = {"relation": REPLACE_ONE, "noise_schedule": INDEPENDENT}

    def __post_init__(self):
        if self.unit is None and self.mu is None and self.epsilon is None and self.noise_std is None:
            object.__setattr__(self, "noise_std", 0.0)
        if self.trust is None:
            object.__setattr__(self, "trust", "server" if self.unit == "machine" else "none")
        check_numbers(self, "mu", "epsilon")
        require_choice("trust", self.trust, ("server", "none"))
        require_server_step(self.server_step)
        require_positive("prox", self.prox, optional=True)
        require_clip("update_clip", self.update_clip)
        require_at_least("window", self.window, 1)
        require_choice("relation", self.relation, RELATIONS)
        require_server(self.server)
        object.__setattr__(self, "noise_schedule", over_rounds(self.noise_schedule))
        self._check_unit()
        self._check_work()

    def _check_unit(self) -> None:
        if self.encoder is not None and not isinstance(self.encoder, Encoder):
            raise Refusal(f"encoder must be an Encoder, such as Quantiser(levels=16), got {called(self.encoder)}")
        if self.unit is not None:
            require_choice("unit", self.unit, UNITS)
        if self.unit == "machine" and self.clip is not None:
            raise Refusal(
                f"clip must be left out with unit = 'machine', got {called(self.clip)}: it bounds one record's "
                f"gradient. Set update_clip, which bounds a machine's update"
            )
        if self.unit != "machine" and self.trust == "server":
            raise Refusal(f"trust must be 'none' with unit = {self.unit!r}, got 'server'. Leave it out")
        if self.unit is None and self.relation != REPLACE_ONE:
            raise Refusal(f"relation must be {REPLACE_ONE!r} with unit = None, got {self.relation!r}. Leave it out")
        if self.noise_schedule != INDEPENDENT and (self.unit != "machine" or self.trust != "server"):
            raise Refusal(
                f"noise_schedule must be {INDEPENDENT!r} without unit = 'machine' and trust = 'server', got "
                f"unit = {self.unit!r} and trust = {self.trust!r}. Leave it out"
            )
        if self.noise_schedule != INDEPENDENT and self.adaptive:
            raise Refusal(
                f"noise_schedule must be {INDEPENDENT!r} with an AdaptiveClip, because noise that follows the clip "
                f"does not cancel over rounds, got {self.noise_schedule!r:.60}. Use a fixed clip"
            )

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
        batch = self.minibatches.batch  # raises Refusal for invalid numbers of steps or records
        if np.ndim(batch):  # type: ignore[arg-type]
            raise Refusal(f"batch must be one number for {self.name}, got {batch}. Set one batch for all machines")
        if self.unit == "record":
            require_addable(self.relation, self.minibatches.of_step)

    @property
    def minibatches(self) -> LocalWork:
        if self.local_epochs is not None:
            return LocalEpochs(self.local_epochs, self.batch)
        assert self.local_steps is not None
        whole = isinstance(self.sampler, str) and self.batch is None
        return LocalSteps(self.local_steps, as_sampler("full" if whole else self.sampler, self.batch, self.rate))

    @property
    def adaptive(self) -> bool:
        """True if the clip of the updates is an `AdaptiveClip`."""
        return isinstance(self.update_clip, AdaptiveClip)

    def check(self, problem: Problem, plan: Plan) -> None:
        check_server(self.server, problem, self.server_step)
        if problem.machine_weights is not None and self.minibatches.of_step.independent:
            raise Refusal(
                f"machine_weights must be left out with the sampler {self.minibatches.of_step.name!r}: a machine whose "
                f"secret sample is empty would have no weight, which shows it. Use 'subset' or 'replacement'"
            )
        if self.unit == "machine" and problem.machine_weights is not None:
            given = "'sizes'" if problem.weighted_by_size else f"{len(problem.machine_weights)} numbers"
            raise Refusal(
                f"machine_weights must be left out with unit = 'machine', got {given}: their sum over a cohort depends "
                f"on who takes part. Without them, all machines count equally"
            )
        factor = round_factor(self.noise_schedule)
        if factor is not None:
            factor.check(plan.schedule, self.message_dimension(problem))

    def check_target(self, target: Target) -> None:
        """Raise Refusal if a setting that a run with this target needs is missing."""
        if self.unit is None and not target.non_private:
            raise Refusal(f"unit must be 'record' or 'machine' for a private run, got None with {target}. Set unit")
        require_learning_rate(self.server, self.server_step)
        if self.unit == "machine" and self.update_clip is None:
            raise Refusal("update_clip must be given with unit = 'machine', got none. Set a norm or an AdaptiveClip")
        if self.step_size is None:
            raise Refusal(f"step_size must be given for {self.name}, which has no default step, got none. Set it")
