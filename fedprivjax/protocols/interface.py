"""What a protocol must be, for the engine to run it: the whole contract of a method of one's own."""

from typing import Any, Protocol

from fedprivjax.plan.participation import Size
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs


class FederatedProtocol(Protocol):
    """A frozen pytree of hyper-parameters (`flax.struct.dataclass`) with pure functions.

    Real-valued hyper-parameters are leaves, so that they can be swept without another compilation; what fixes a shape
    or a branch is static. `init`, `round`, `output`, `query` and `machine` are traced; the rest runs on the host in
    float64. What a protocol may define beyond the members below:

    * `traced`, a property: the protocol without the static settings that only the host reads, so that they are no other
      program.
    * `also(state) -> {name: params}`: other iterates, recorded beside the output along the dimension `iterate`.
    * `sampling`, a property: a `Sampling`; messages are then means over minibatches of the machine's own records.
    * `calibrated(problem, plan, *, epsilon, delta) -> protocol`, with `noise_std` and `step_size` filled in: it takes
      the place of `theory_step` and of the currency μ, for methods that are private by records.
    * `messages(problem, state, inputs)`: all participants' messages without noise, leaves [per_round, ...], in place of
      `machine` where a message is no sum over examples. Noise inside it (`PerStep`) comes as a fourth argument.

    `RecordProtocol` defines the last three for methods that sample records.
    """

    mu: Any
    noise_std: Any
    step_size: Any
    step_scale: Any
    clip: Any
    trust: Any

    def init(self, problem: Problem, size: Size) -> Any:
        """The state before the first round, a pytree."""
        ...

    def round(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any) -> Any:
        """The state after one round; noise is [d] at unit scale, or None in a run without noise."""
        ...

    def output(self, state: Any) -> Any:
        """The point that one reports."""
        ...

    def query(self, state: Any) -> Any:
        """The point that machines are asked about: what others see of a trusted server."""
        ...

    def machine(self, state: Any, t: Any) -> Any:
        """What one machine sends before noise, as a function of its gradient oracle."""
        ...

    def noise(self, problem: Problem, plan: Plan, method: str = "auto") -> Any:
        """The noise mechanism of a plan."""
        ...

    def sensitivity(self, problem: Problem, size: Size) -> float:
        """Largest L2 change that one replaced sample makes in what is released, infinite where unknown."""
        ...

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        """What the protocol does to privacy on this plan."""
        ...

    def theory_step(self, problem: Problem, size: Size, mu: float) -> float:
        """The step size of the theory."""
        ...
